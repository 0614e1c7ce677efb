//! Registered memory.

use driver::DmaMemory;
use hw_mlx::ring::Lent;

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pub(super) index: u32,
    /// Keeps the device's mapping of the memory until the key is gone.
    pub(super) memory: Lent<DmaMemory>,
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.memory.is_returned() {
            // The arena keeps it mapped. Its owner need not wait for the key to end.
            self.memory.get().withdraw();
        }
    }
}

impl Region {
    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &DmaMemory {
        self.memory.get()
    }
}
