//! The device's objects that each instance has of its own.

use driver::Block;
use mlx_prm::{UarIndex, UarPage};

use crate::eq::Eq;

/// A UAR page, and the completion event queue that rings it.
pub(crate) struct Parts {
    pub(crate) uar_index: UarIndex,
    pub(crate) uar: Block<UarPage>,
    pub(crate) eq: Eq,
    /// Vector of the event queue, by number.
    pub(crate) vector: usize,
}
