//! RQ tables: receive queues to spread packets over. The low bits of a packet's hash are the index.

use mlx_prm::Rqtc;

/// An RQ table.
#[derive(Clone, Debug)]
pub struct Rqt {
    /// As created; the sizes are live.
    pub context: Rqtc,
    /// Receive queues, a power of two of them.
    pub entries: Vec<u32>,
}

impl Rqt {
    /// The receive queue of a hash.
    pub fn queue(&self, hash: u32) -> Option<u32> {
        let mask = self.entries.len().checked_sub(1)?;
        let index = usize::try_from(hash).unwrap_or(0) & mask;
        self.entries.get(index).copied()
    }
}
