//! BAR 0 of a controller: its properties and its doorbells (Base specification 2.0, "Controller Properties"; PCIe
//! Transport specification 1.0, "Doorbells").
//!
//! All registers are little-endian. A property of 64 bits is accessed as two halves, the low one first, as Linux does
//! (`drivers/nvme/host/pci.c`, `lo_hi_readq`).

use core::time::Duration;

use driver::{Le32, Ro, Rw, Wo};
use static_assertions::const_assert_eq;
use zerocopy::FromBytes;

/// Offset of the first doorbell.
pub const DOORBELLS: u64 = 0x1000;

/// The controller properties.
#[derive(FromBytes)]
#[repr(C)]
pub struct Properties {
    /// CAP, low half ([`Cap`]).
    pub cap_low: Ro<Le32>,
    /// CAP, high half.
    pub cap_high: Ro<Le32>,
    /// VS: version. Major in 31:16, minor in 15:8.
    pub vs: Ro<Le32>,
    /// INTMS: sets bits of the mask of the pin or of MSI. Not accessed with MSI-X.
    pub intms: Rw<Le32>,
    /// INTMC: clears bits of that mask.
    pub intmc: Rw<Le32>,
    /// CC: controller configuration ([`cc`]).
    pub cc: Rw<Le32>,
    rsvd_18: u32,
    /// CSTS: controller status ([`csts`]).
    pub csts: Ro<Le32>,
    /// NSSR: subsystem reset.
    pub nssr: Rw<Le32>,
    /// AQA: sizes of the admin queues, less one. Submission queue in 11:0, completion queue in 27:16.
    pub aqa: Rw<Le32>,
    /// ASQ: address of the admin submission queue, low half.
    pub asq_low: Rw<Le32>,
    /// ASQ, high half.
    pub asq_high: Rw<Le32>,
    /// ACQ: address of the admin completion queue, low half.
    pub acq_low: Rw<Le32>,
    /// ACQ, high half.
    pub acq_high: Rw<Le32>,
    rsvd_38: [u32; 12],
    /// CRTO: limits of the time until the controller is ready. With media in 15:0, in units of 500 ms.
    pub crto: Ro<Le32>,
}

const_assert_eq!(core::mem::offset_of!(Properties, cc), 0x14);
const_assert_eq!(core::mem::offset_of!(Properties, csts), 0x1c);
const_assert_eq!(core::mem::offset_of!(Properties, aqa), 0x24);
const_assert_eq!(core::mem::offset_of!(Properties, acq_low), 0x30);
const_assert_eq!(core::mem::offset_of!(Properties, crto), 0x68);

/// A doorbell: the new tail of a submission queue, or the new head of a completion queue. It is never read.
#[derive(FromBytes)]
#[repr(C)]
pub struct Doorbell {
    /// Index in 15:0.
    pub index: Wo<Le32>,
}

/// Bits of CC.
pub mod cc {
    /// EN: the controller processes commands.
    pub const ENABLE: u32 = 1;
    /// IOSQES: an I/O submission queue entry has 2^6 bytes.
    pub const SUBMISSION_ENTRY: u32 = 6 << 16;
    /// IOCQES: an I/O completion queue entry has 2^4 bytes.
    pub const COMPLETION_ENTRY: u32 = 4 << 20;
    /// Mask of SHN.
    pub const SHUTDOWN_MASK: u32 = 3 << 14;
    /// SHN: a normal shutdown.
    pub const SHUTDOWN_NORMAL: u32 = 1 << 14;
    /// SHN: a shutdown that does not wait for outstanding commands.
    pub const SHUTDOWN_ABRUPT: u32 = 2 << 14;
}

/// Bits of CSTS.
pub mod csts {
    /// RDY.
    pub const READY: u32 = 1;
    /// CFS: an error that no completion can report.
    pub const FATAL: u32 = 1 << 1;
    /// Mask of SHST.
    pub const SHUTDOWN_MASK: u32 = 3 << 2;
    /// SHST: the shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}

/// Value of every register of a function that is gone.
pub const GONE: u32 = u32::MAX;

/// Unit of CAP.TO and CRTO.
const READY_UNIT: Duration = Duration::from_millis(500);

/// CAP: the controller's capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap(pub u64);

impl Cap {
    /// MQES: maximum number of entries of an I/O queue.
    #[must_use]
    pub const fn max_entries(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1 // CAST: 16 bits are left.
    }

    /// TO: time limit until the controller is ready after a change of CC.EN. A controller that says 0 has one unit, as
    /// with Linux.
    #[must_use]
    pub fn ready_limit(self) -> Duration {
        // CAST: 8 bits.
        #[expect(clippy::cast_possible_truncation, reason = "8 bits")]
        let units = self.bits(24, 8) as u32;
        READY_UNIT * (units + 1)
    }

    /// DSTRD: distance of two doorbells in bytes.
    #[must_use]
    pub const fn doorbell_stride(self) -> u64 {
        4 << self.bits(32, 4)
    }

    /// CSS: whether there is the NVM command set.
    #[must_use]
    pub const fn has_nvm_commands(self) -> bool {
        self.bits(37, 1) != 0
    }

    /// MPSMIN: smallest memory page in bytes.
    #[must_use]
    pub const fn min_page(self) -> u64 {
        4096 << self.bits(48, 4)
    }

    /// CRMS.CRWMS: whether CRTO has the time limit.
    #[must_use]
    pub const fn has_ready_limit(self) -> bool {
        self.bits(59, 1) != 0
    }

    const fn bits(self, from: u32, count: u32) -> u64 {
        self.0 >> from & ((1 << count) - 1)
    }
}

/// Returns the time limit of CRTO.CRWMT.
#[must_use]
pub fn media_limit(crto: u32) -> Duration {
    READY_UNIT * (crto & 0xffff)
}

/// Returns the offset of a doorbell in BAR 0: that of a submission queue's tail, or of a completion queue's head.
#[must_use]
pub const fn doorbell(cap: Cap, queue: u16, is_completion: bool) -> u64 {
    DOORBELLS + (2 * queue as u64 + is_completion as u64) * cap.doorbell_stride()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CAP of QEMU's controller (7.2, hw/nvme/ctrl.c `nvme_init_ctrl`): 2,048 entries, 7.5 s, no stride, pages from
    /// 4 KiB on.
    #[test]
    fn the_fields_of_the_capabilities_are_found() {
        let cap = Cap(0x0040_0020_0f01_07ff);
        assert_eq!(cap.max_entries(), 2048);
        assert_eq!(cap.ready_limit(), Duration::from_secs(8));
        assert_eq!((cap.doorbell_stride(), cap.min_page()), (4, 4096));
        assert!(cap.has_nvm_commands() && !cap.has_ready_limit());
        assert_eq!(doorbell(cap, 0, false), 0x1000);
        assert_eq!(doorbell(cap, 3, true), 0x101c);
        assert_eq!(doorbell(Cap(2 << 32), 1, false), 0x1020);
    }
}
