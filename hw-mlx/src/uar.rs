//! Doorbells: the registers of a UAR page that wake the device.
//!
//! A UAR page is 4 KiB of BAR 0 that belongs to one driver context. The queues here use two of its
//! registers: the send doorbell at 0x800, which takes the first eight bytes of the last control
//! segment posted, and the CQ arm doorbell at 0x20 (PRM "User Access Region"). Both are 64 bits
//! wide and must be reached by one store; halves would be two bus transactions.
//!
//! The registers at 0x900, 0xa00, … are not used: alternating between halves of a BlueFlame register
//! keeps two write-combined doorbells from merging, and VFIO maps BARs uncached, where they cannot
//! (`mmio_write64_be` without toggling on non-cached UARs, providers/mlx5/qp.c of rdma-core). For the
//! same reason there is no BlueFlame copy.
//!
//! Ordering is not here. The caller that rings has made its memory visible first; see [`crate::qp::SendQueue`] and
//! [`crate::cq::Cq`].

use driver::{Be64, Block, Register};

use mlx_prm::UarPage;

/// The doorbell registers of our UAR page. Clones ring the same page.
#[derive(Clone)]
pub struct Doorbells {
    page: Block<UarPage>,
}

impl Doorbells {
    /// Makes the doorbells of `page`, which is the UAR page named in the contexts of the queues that ring it.
    #[must_use]
    pub fn new(page: Block<UarPage>) -> Self {
        Self { page }
    }

    /// Returns the doorbell of send queues.
    #[must_use]
    pub fn of_send_queues(&self) -> SendDoorbell {
        SendDoorbell(self.page.register(|page| &page.send_doorbell))
    }

    /// Arms a completion queue. `arm` is the doorbell record's arm word.
    #[inline]
    pub fn ring_cq(&self, arm: u32, cqn: u32) {
        self.page.write(
            |page| &page.cq_doorbell,
            Be64::new(u64::from(arm) << 32 | u64::from(cqn)),
        );
    }
}

/// The doorbell of send queues. Each queue keeps a copy among the fields that a post reads.
pub struct SendDoorbell(Register<Be64>);

impl SendDoorbell {
    /// Tells the device that a send queue has grown. `control` is the first eight bytes of the last
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
