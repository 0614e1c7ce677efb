//! RQ tables: receive queues among which packets are spread. The low bits of a packet's hash are the index.

use mlx_prm::Rqtc;

/// An RQ table.
#[derive(Clone, Debug)]
pub struct Rqt {
    /// The context as created; the sizes are current.
    pub context: Rqtc,
    /// Receive queues, a power of two of them.
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
