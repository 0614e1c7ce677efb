//! PCI configuration space of the simulated SSD: type 0 header, power management, PCI Express, MSI-X.
//!
//! The bytes are kept in memory order, with a mask of the bits that software may change. BAR 0 has the controller's
//! registers, and behind them the MSI-X table and its pending bits.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Vendor and device ID. They are of a range for experiments (QEMU `docs/specs/pci-ids.rst`: 1af4:10f0 to 1af4:10ff).
pub(super) const ID: [u16; 2] = [0x1af4, 0x10f0];
/// Bytes of BAR 0.
pub(super) const BAR_BYTES: usize = 0x4000;
/// Offset of the MSI-X table in BAR 0.
pub(super) const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;
const CONFIG_BYTES: usize = 4096;
/// Class code: mass storage, non-volatile memory, NVMe I/O controller.
const CLASS: [u8; 3] = [0x02, 0x08, 0x01];

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR_0: usize = 0x10;
const POWER: usize = 0x40;
const EXPRESS: usize = 0x50;
const MSIX: usize = 0x90;
const DEVICE_CONTROL: usize = EXPRESS + 8;
/// Bus Master Enable, in the low byte of the command register.
const BUS_MASTER: u8 = 1 << 2;
/// Initiate Function Level Reset, in the high byte of Device Control.
const INITIATE_RESET: u8 = 1 << 7;

/// The configuration space of a function.
pub(super) struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    power_on: Vec<u8>,
}

impl ConfigSpace {
    /// Makes the space of a function with this many MSI-X vectors.
    pub(super) fn new(vectors: u16) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_BYTES],
            writable: vec![0; CONFIG_BYTES],
            power_on: Vec::new(),
        };
        space.put(0x00, &ID.map(U16::new));
        // Software may set Memory Space, Bus Master and Interrupt Disable.
        space.allow(COMMAND, &[0x06, 0x04]);
        // The function has a list of capabilities.
        space.put(STATUS, &U16::new(1 << 4));
        space.put(0x09, &CLASS);
        // The BAR has 64 bits.
        space.put(BAR_0, &U32::new(0x4));
        // CAST: a power of two below 2^32.
        let mask = U64::new(!(BAR_BYTES as u64 - 1));
        space.allow(BAR_0, mask.as_bytes());
        space.put(0x2c, &ID.map(U16::new));
        // CAST: the offsets of capabilities are below 256.
        #[expect(clippy::cast_possible_truncation, reason = "offsets below 256")]
        let [power, express, msix] = [POWER as u8, EXPRESS as u8, MSIX as u8];
        space.put(0x34, &power);
        // The version is 3. Software may change the power state, which has no effect.
        space.put(POWER, &[0x01, express, 0x03, 0x00, 0x08]);
        space.allow(POWER + 4, &[0x03]);
        // The version is 2, and the function an endpoint. It has a function level reset, role-based errors and payloads
        // of 256 bytes.
        space.put(EXPRESS, &[0x10, msix, 0x02, 0x00]);
        space.put(EXPRESS + 4, &U32::new(1 << 28 | 1 << 15 | 1));
        space.allow(DEVICE_CONTROL, &[0xff, 0x7f]);
        // The link has four lanes at 8 GT/s.
        space.put(EXPRESS + 0x0c, &U32::new(0x43));
        space.put(EXPRESS + 0x12, &U16::new(0x43));
        space.put(EXPRESS + 0x2c, &U32::new(0x0e));
        space.put(MSIX, &[0x11, 0x00]);
        space.put(MSIX + 2, &U16::new(vectors - 1));
        // Software may set Enable and Function Mask.
        space.allow(MSIX + 2, &[0x00, 0xc0]);
        // The table and its pending bits are in BAR 0.
        space.put(MSIX + 4, &[MSIX_TABLE, MSIX_PENDING].map(U32::new));
        space.power_on = space.bytes.clone();
        space
    }

    /// Reads bytes. Bytes behind the end read as ones.
    pub(super) fn read(&self, offset: u16, out: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(out) {
            *byte = self.bytes.get(at).copied().unwrap_or(0xff);
        }
    }

    /// Changes the writable bits. Returns whether software has asked for a function level reset.
    pub(super) fn write(&mut self, offset: u16, data: &[u8]) -> bool {
        let mut is_reset = false;
        for (at, new) in (usize::from(offset)..).zip(data) {
            is_reset |= at == DEVICE_CONTROL + 1 && new & INITIATE_RESET != 0;
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | new & mask;
            }
        }
        is_reset
    }

    /// Returns whether the function may access memory and send interrupts.
    pub(super) fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }

    /// Sets the values that a function level reset leaves.
    pub(super) fn reset(&mut self) {
        self.bytes.clone_from(&self.power_on);
    }

    fn put<T: IntoBytes + zerocopy::Immutable + ?Sized>(&mut self, at: usize, value: &T) {
        let value = value.as_bytes();
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux `drivers/nvme/host/pci.c` binds by class code 01 08 02. VFIO finds the capabilities by the chain.
    #[test]
    fn the_class_is_nvme_and_the_chain_has_power_express_and_msix() {
        let space = ConfigSpace::new(9);
        let mut class = [0; 4];
        space.read(8, &mut class);
        assert_eq!(class, [0, 0x02, 0x08, 0x01]);
        let (mut at, mut ids) = ([0], Vec::new());
        space.read(0x34, &mut at);
        while at[0] != 0 {
            let mut capability = [0; 2];
            space.read(at[0].into(), &mut capability);
            ids.push(capability[0]);
            at = [capability[1]];
        }
        assert_eq!(ids, [0x01, 0x10, 0x11]);
        let mut vectors = [0; 2];
        space.read(0x92, &mut vectors);
        assert_eq!(vectors, [8, 0], "nine vectors");
    }

    #[test]
    fn sizing_bar_0_gives_its_length_and_a_reset_is_seen() {
        let mut space = ConfigSpace::new(1);
        space.write(0x10, &[0xff; 8]);
        let mut sized = [0; 8];
        space.read(0x10, &mut sized);
        assert_eq!(sized, [0x04, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(!space.is_bus_master());
        assert!(!space.write(4, &[6, 0]) && space.is_bus_master());
        assert!(space.write(0x58, &[0, 0x80]));
        space.reset();
        assert!(!space.is_bus_master());
        space.write(0, &[0; 4]);
        let mut id = [0; 4];
        space.read(0, &mut id);
        assert_eq!(id, [0xf4, 0x1a, 0xf0, 0x10], "the ID cannot be written");
    }
}
