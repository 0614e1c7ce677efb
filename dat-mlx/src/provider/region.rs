//! Registered memory.

use dat_core::provider::Registration;
use dat_core::types::MemPrivFlags;
use driver::DmaMemory;
use hw_mlx::ring::Lent;

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pub(super) index: u32,
    /// Variant (low byte) of the key.
    pub(super) variant: u8,
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
    /// Returns the key.
    pub(super) const fn key(&self) -> u32 {
        self.index << 8 | self.variant as u32
    }

    /// Returns what the consumer knows of the region, which was registered with `access`.
    pub(super) fn registration(self, access: MemPrivFlags) -> Registration<Self> {
        let (key, memory) = (self.key(), self.memory());
        let remote = access.intersects(
            MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_WRITE | MemPrivFlags::REMOTE_ATOMIC,
        );
        Registration {
            lmr_context: key,
            rmr_context: if remote { key } else { 0 },
            address: memory.address(),
            // CAST: widening, on every target of the driver.
            bytes: memory.len() as u64,
            region: self,
        }
    }

    /// Returns the memory of the region.
    #[must_use]
    pub fn memory(&self) -> &DmaMemory {
        self.memory.get()
    }
}
