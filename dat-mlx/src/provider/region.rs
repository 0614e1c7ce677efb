//! Registered memory.

use driver::DmaMemory;
use hw_mlx::ring::Lent;

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pub(super) index: u32,
    /// The registered memory. The device's mapping of it is kept until the key is destroyed.
    pub(super) memory: Lent<DmaMemory>,
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.memory.is_returned() {
            // The arena keeps the memory mapped, because the key was not destroyed. The owner may use the memory again
            // now.
            self.memory.get().withdraw();
        }
    }
}

impl Region {
    /// Returns the memory of the region.
    #[must_use]
    pub fn memory(&self) -> &DmaMemory {
        self.memory.get()
    }
}
