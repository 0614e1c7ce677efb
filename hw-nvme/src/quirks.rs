//! Deviations of public devices (Linux 6.12 `drivers/nvme/host/pci.c`, `nvme_id_table`; SPDK `lib/nvme/nvme_quirks.c`).

use core::time::Duration;

/// Exceptions for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quirks {
    /// Time between a change of CC.EN and the first read of CSTS (`NVME_QUIRK_DELAY_BEFORE_CHK_RDY`).
    pub ready_delay: Duration,
    /// If CAP.MQES says one entry, the queues have this many (`nvme_pci_enable`).
    pub entries: Option<u32>,
    /// Write Zeroes is slow or wrong (`NVME_QUIRK_DISABLE_WRITE_ZEROES`).
    pub no_write_zeroes: bool,
}

/// Delay of `NVME_QUIRK_DELAY_BEFORE_CHK_RDY` (Linux: 2.3 s; SPDK: 2.5 s).
const DELAY: Duration = Duration::from_millis(2500);

/// Devices that this driver refuses, by vendor and device ID: one vector for all queues, or entries of another size
/// (Linux `NVME_QUIRK_SINGLE_VECTOR`, `NVME_QUIRK_128_BYTES_SQES`).
pub(crate) const REFUSED: [(u16, u16); 2] = [(0x106b, 0x2001), (0x106b, 0x2005)];

const DELAYED: [(u16, u16); 6] = [
    (0x1bb1, 0x0100),
    (0x1c58, 0x0003),
    (0x1c58, 0x0023),
    (0x1c5f, 0x0540),
    (0x144d, 0xa821),
    (0x144d, 0xa822),
];
const ONE_ENTRY: [(u16, u16); 2] = [(0x144d, 0xa821), (0x144d, 0xa822)];
const NO_WRITE_ZEROES: [(u16, u16); 9] = [
    (0x8086, 0xf1a5),
    (0x8086, 0x5845),
    (0x1c5c, 0x1504),
    (0x1987, 0x5019),
    (0x15b7, 0x2001),
    (0x1cc4, 0x6303),
    (0x2646, 0x5018),
    (0x144d, 0xa809),
    (0x144d, 0xa80b),
];

impl Quirks {
    /// Returns the deviations of a device by its vendor and device ID.
    #[must_use]
    pub fn of(vendor: u16, device: u16) -> Self {
        let id = (vendor, device);
        Self {
            ready_delay: if DELAYED.contains(&id) {
                DELAY
            } else {
                Duration::ZERO
            },
            entries: ONE_ENTRY.contains(&id).then_some(64),
            no_write_zeroes: NO_WRITE_ZEROES.contains(&id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_all_of_its_deviations_and_others_have_none() {
        assert_eq!(Quirks::of(0x144d, 0xa808), Quirks::default());
        let several = Quirks::of(0x144d, 0xa821);
        assert_eq!((several.ready_delay, several.entries), (DELAY, Some(64)));
        assert!(Quirks::of(0x144d, 0xa809).no_write_zeroes);
    }
}
