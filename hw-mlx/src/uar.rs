//! Doorbells: the registers of a UAR page that notify the device of new work.
//!
//! A UAR page is 4 KiB of BAR 0 that belongs to one driver context. The queues here use two of its
//! registers: the send doorbell at 0x800, which takes the first eight bytes of the last control
//! segment posted, and the CQ arm doorbell at 0x20 (PRM "User Access Region"). Both are 64 bits
//! wide and must be written by one store, because two stores would be two bus transactions.
//!
//! The registers at 0x900, 0xa00, … are not used. They serve to alternate between the halves of a BlueFlame register,
//! so that two write-combined doorbells do not merge. VFIO maps BARs uncached, where doorbells cannot merge
//! (`mmio_write64_be` without toggling on non-cached UARs, providers/mlx5/qp.c of rdma-core). For the same reason there
//! is no BlueFlame copy.
//!
//! This module has no memory barriers. The caller makes its memory visible before it rings a doorbell; see
//! [`crate::qp::SendQueue`] and [`crate::cq::Cq`].

use driver::{Be64, Block, Register};

use mlx_prm::UarPage;

/// The doorbell registers of our UAR page. Clones write to the same registers.
#[derive(Clone)]
pub struct Doorbells {
    page: Block<UarPage>,
}

impl Doorbells {
    /// Makes the doorbells of `page`, the UAR page that the contexts of the queues name.
    #[must_use]
    pub fn new(page: Block<UarPage>) -> Self {
        Self { page }
    }

    /// Returns the doorbell of send queues.
    #[must_use]
    pub fn of_send_queues(&self) -> SendDoorbell {
        SendDoorbell(self.page.register(|page| &page.send_doorbell))
    }

    /// Arms completion queue `cqn`. `arm` is the arm word, as it is in the doorbell record.
    #[inline]
    pub fn ring_cq(&self, arm: u32, cqn: u32) {
        self.page.write(
            |page| &page.cq_doorbell,
            Be64::new(u64::from(arm) << 32 | u64::from(cqn)),
        );
    }
}

/// The doorbell register of send queues. Each queue keeps a copy beside the other fields that a post reads.
pub struct SendDoorbell(Register<Be64>);

impl SendDoorbell {
    /// Notifies the device that a send queue has new WQEs. `control` is the first eight bytes of the last
    /// WQE's control segment, as a number.
    #[inline]
    pub fn ring(&self, control: u64) {
        self.0.write(Be64::new(control));
    }
}

impl core::fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Doorbells")
    }
}
