//! RQ tables: lists of receive queues over which packets are distributed. The low bits of a packet's hash are the
//! index.

use mlx_prm::Rqtc;

/// An RQ table.
#[derive(Clone, Debug)]
pub struct Rqt {
    /// The context as created, with the current sizes.
    pub context: Rqtc,
    /// Numbers of the receive queues. Their count is a power of two.
    pub entries: Vec<u32>,
}

impl Rqt {
    /// Returns the receive queue for a hash.
    pub fn queue(&self, hash: u32) -> Option<u32> {
        let mask = self.entries.len().checked_sub(1)?;
        let index = usize::try_from(hash).unwrap_or(0) & mask;
        self.entries.get(index).copied()
    }
}
