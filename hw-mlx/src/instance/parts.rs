//! The device objects that each instance has for itself.

use driver::Block;
use mlx_prm::{UarIndex, UarPage};

use crate::eq::Eq;

/// A UAR page, and the completion event queue that is armed through it.
pub(crate) struct Parts {
    pub(crate) uar_index: UarIndex,
    pub(crate) uar: Block<UarPage>,
    pub(crate) eq: Eq,
    /// Number of the event queue's interrupt vector.
    pub(crate) vector: usize,
}
