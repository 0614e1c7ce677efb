//! PCI configuration space of the function: type 0 header and four capabilities.
//!
//! The 4 KiB are kept as bytes in memory order, together with a mask of the bits that software may change. A write
//! changes masked bits only. Its effect on the device (function-level reset) is returned as a [`ConfigEffect`], and
//! bus mastering and relaxed ordering are read from the bytes. So this module needs no device.
//!
//! Capability chain: power management (0x40) -> PCI Express endpoint with function-level reset (0x60) -> MSI-X (0x9c)
//! -> vendor specific (0xc0). The MSI-X table and pending bits are in BAR 0, in pages that are never allocated as UARs.
//! BAR 0 is one 64-bit prefetchable memory BAR. Sizing works through the mask of its address bits. There is no
//! expansion ROM, no INTx and no extended capability: reads of these return zero.
//!
//! The vendor specific capability is the gateway to the card's internal address spaces. Its semaphore works: software
//! reads a ticket from the counter and writes it while the semaphore is zero. The semaphore stays taken until zero is
//! written. None of the address spaces exists, and the status bits of the control register report that.

use crate::profile::Profile;

/// Size of the configuration space in bytes, extended space included.
pub const CONFIG_BYTES: usize = 4096;
/// Offset of the MSI-X table inside BAR 0.
pub const MSIX_TABLE_OFFSET: u32 = 0x2000;
/// Offset of the MSI-X pending bit array inside BAR 0.
pub const MSIX_PBA_OFFSET: u32 = 0x3000;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const CAP_PM: usize = 0x40;
const CAP_PCIE: usize = 0x60;
const CAP_MSIX: usize = 0x9c;
const CAP_VENDOR: usize = 0xc0;
const VENDOR_BYTES: u8 = 0x18;
/// Offset of the register that selects an address space. Bits 31:29 are nonzero if the selected space exists.
const VENDOR_CONTROL: usize = CAP_VENDOR + 0x4;
/// Offset of the counter from which software reads tickets for the semaphore.
const VENDOR_COUNTER: usize = CAP_VENDOR + 0x8;
const VENDOR_SEMAPHORE: usize = CAP_VENDOR + 0xc;
const DEVICE_CONTROL: usize = CAP_PCIE + 8;

const COMMAND_BUS_MASTER: u8 = 0x04;
/// Bit 15 of Device Control (Initiate FLR), as a mask of the register's upper byte.
const INITIATE_FLR: u8 = 0x80;
/// Bit 4 of Device Control.
const ENABLE_RELAXED_ORDERING: u8 = 0x10;

/// Effect of a configuration write on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigEffect {
    /// No effect on the device.
    None,
    /// Software set Initiate Function Level Reset.
    FunctionLevelReset,
}

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    power_on: Vec<u8>,
}

impl ConfigSpace {
    /// Builds the space of a function with this `profile`, which may be a virtual function.
    pub fn new(profile: &Profile, is_virtual: bool) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_BYTES],
            writable: vec![0; CONFIG_BYTES],
            power_on: Vec::new(),
        };
        space.header(profile);
        space.power_management();
        space.pci_express(is_virtual);
        space.msix(profile);
        space.vendor();
        space.power_on = space.bytes.clone();
        space
    }

    /// Reads bytes into `out`. Bytes beyond the end read as ones, as an unanswered request does.
    pub fn read(&self, offset: u16, out: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(out.iter_mut()) {
            *byte = self.bytes.get(at).copied().unwrap_or(0xff);
        }
    }

    /// Changes the writable bits and returns the effect on the device. The semaphore has its own rules for a write.
    pub fn write(&mut self, offset: u16, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::None;
        if usize::from(offset) == VENDOR_SEMAPHORE {
            self.semaphore_written(data);
            return effect;
        }
        for (at, &new) in (usize::from(offset)..).zip(data) {
            if at == DEVICE_CONTROL + 1 && new & INITIATE_FLR != 0 {
                effect = ConfigEffect::FunctionLevelReset;
            }
            if let (Some(byte), Some(&mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = (*byte & !mask) | (new & mask);
            }
        }
        effect
    }

    /// Handles a write of the semaphore. A nonzero value takes the semaphore if it is free, and the counter then
    /// advances. Zero releases the semaphore.
    fn semaphore_written(&mut self, data: &[u8]) {
        let Some(&ticket) = data.first_chunk::<4>() else {
            return;
        };
        let is_free = self.bytes[VENDOR_SEMAPHORE..VENDOR_SEMAPHORE + 4] == [0; 4];
        if ticket != [0; 4] && !is_free {
            return;
        }
        self.put(VENDOR_SEMAPHORE, &ticket);
        if ticket != [0; 4] {
            let [a, b, c, d] = ticket;
            let next = u32::from_be_bytes([d, c, b, a]).wrapping_add(1).max(1);
            self.put32(VENDOR_COUNTER, next);
        }
    }

    /// Returns whether the function may start DMA and interrupts.
    pub fn bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_BUS_MASTER != 0
    }

    /// Returns whether the function's accesses may pass others (Device Control, Enable Relaxed Ordering).
    pub fn relaxed_ordering(&self) -> bool {
        self.bytes[DEVICE_CONTROL] & ENABLE_RELAXED_ORDERING != 0
    }

    /// Restores power-on values, as a function-level reset does. The PCI core of the host, not the device, restores
    /// BAR addresses afterwards.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.power_on);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put16(&mut self, at: usize, value: u16) {
        // PCI configuration space is little-endian on every device.
        let [high, low] = value.to_be_bytes();
        self.put(at, &[low, high]);
    }

    fn put32(&mut self, at: usize, value: u32) {
        let [a, b, c, d] = value.to_be_bytes();
        self.put(at, &[d, c, b, a]);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    fn header(&mut self, profile: &Profile) {
        self.put16(0x00, profile.vendor_id);
        self.put16(0x02, profile.device_id);
        // Writable bits: memory space, bus master, parity response, SERR, INTx disable.
        self.allow(COMMAND, &[0x46, 0x05]);
        self.put16(STATUS, 0x0010); // capability list
        self.put(0x08, &[profile.revision]);
        self.put(0x09, &[0x00, profile.subclass, 0x02]); // network controller
        self.allow(0x0c, &[0xff]); // cache line size
        self.put32(BAR0, 0x0000_000c); // 64-bit, prefetchable
        let mask = !(profile.bar_bytes as u64 - 1);
        let mask = mask.to_be_bytes();
        let mask = [
            mask[7] & 0xf0,
            mask[6],
            mask[5],
            mask[4],
            mask[3],
            mask[2],
            mask[1],
            mask[0],
        ];
        self.allow(BAR0, &mask);
        self.put16(0x2c, profile.vendor_id);
        self.put16(0x2e, profile.subsystem_id);
        self.put(0x34, &[0x40]); // first capability
        self.allow(0x3c, &[0xff]); // interrupt line: a scratch byte for the host
    }

    fn power_management(&mut self) {
        self.put(CAP_PM, &[0x01, 0x60, 0x03, 0x00]); // id, next 0x60, version 3, no D1/D2, no PME
        self.put(CAP_PM + 4, &[0x08, 0x00]); // no soft reset on D3hot -> D0
        self.allow(CAP_PM + 4, &[0x03]);
    }

    fn pci_express(&mut self, is_virtual: bool) {
        self.put(CAP_PCIE, &[0x10, 0x9c]);
        self.put16(CAP_PCIE + 0x02, 0x0002); // version 2, endpoint
        self.put32(CAP_PCIE + 0x04, 0x1000_8fe2); // FLR, 512-byte payload, extended tags, role-based errors
        // Read requests of 512 bytes, relaxed ordering and no snoop allowed. In a virtual function only Initiate FLR
        // exists; the physical function's other bits apply (PCI Express, "VF Device Control").
        let (control, writable) = if is_virtual {
            (0, [0, 0])
        } else {
            (0x2810, [0xff, 0x7f])
        };
        self.put16(DEVICE_CONTROL, control);
        self.allow(DEVICE_CONTROL, &writable);
        self.put32(CAP_PCIE + 0x0c, 0x0000_0103); // x16 at 8 GT/s
        self.put16(CAP_PCIE + 0x12, 0x0103);
        self.put32(CAP_PCIE + 0x24, 0x0000_001f); // completion timeout ranges
        self.allow(CAP_PCIE + 0x28, &[0x1f]);
        self.put32(CAP_PCIE + 0x2c, 0x0000_000e); // link speeds up to 8 GT/s
        self.put16(CAP_PCIE + 0x30, 0x0003);
    }

    fn msix(&mut self, profile: &Profile) {
        self.put(CAP_MSIX, &[0x11, 0xc0]);
        self.put16(CAP_MSIX + 2, profile.msix_vectors.max(1) - 1);
        self.allow(CAP_MSIX + 2, &[0x00, 0xc0]); // enable, function mask
        self.put32(CAP_MSIX + 4, MSIX_TABLE_OFFSET); // BAR 0 in the low three bits
        self.put32(CAP_MSIX + 8, MSIX_PBA_OFFSET);
    }

    fn vendor(&mut self) {
        self.put(CAP_VENDOR, &[0x09, 0x00, VENDOR_BYTES]);
        self.allow(VENDOR_CONTROL, &[0xff, 0xff]);
        self.put32(VENDOR_COUNTER, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(space: &ConfigSpace, offset: u16) -> u32 {
        let mut out = [0; 4];
        space.read(offset, &mut out);
        out.reverse();
        u32::from_be_bytes(out)
    }

    #[test]
    fn sizing_bar_0_gives_its_length() {
        let profile = Profile::default();
        let mut space = ConfigSpace::new(&profile, false);
        space.write(0x10, &[0xff; 8]);
        let low = read32(&space, 0x10);
        assert_eq!(low & 0xf, 0xc, "64-bit prefetchable");
        let size = !(u64::from(low & !0xf) | u64::from(read32(&space, 0x14)) << 32) + 1;
        assert_eq!(size, profile.bar_bytes as u64);
    }

    #[test]
    fn the_capability_chain_is_power_management_express_msix_and_vendor() {
        let space = ConfigSpace::new(&Profile::default(), false);
        let mut at = 0x34;
        let mut ids = Vec::new();
        let mut byte = [0];
        space.read(at, &mut byte);
        while byte[0] != 0 {
            at = u16::from(byte[0]);
            let mut cap = [0; 2];
            space.read(at, &mut cap);
            ids.push(cap[0]);
            byte[0] = cap[1];
        }
        assert_eq!(ids, [0x01, 0x10, 0x11, 0x09]);
    }

    #[test]
    fn identity_is_read_only_and_the_command_register_is_not() {
        let mut space = ConfigSpace::new(&Profile::default(), false);
        let id = read32(&space, 0);
        space.write(0, &[0; 4]);
        assert_eq!(read32(&space, 0), id);
        assert!(!space.bus_master());
        space.write(4, &[0x06, 0x00]);
        assert!(space.bus_master());
    }

    /// The semaphore is taken as Linux drivers/net/ethernet/mellanox/mlx5/core/lib/pci_vsc.c does it: read zero, read
    /// the counter, write the counter's value and read that value back. No address space exists. Without the capability
    /// `mlx5_core` warns: "Failed to get valid vendor specific ID".
    #[test]
    fn the_vendor_semaphore_is_taken_with_a_ticket_and_no_space_exists_behind_it() {
        let mut space = ConfigSpace::new(&Profile::default(), false);
        assert_eq!(read32(&space, 0xcc), 0);
        let ticket = read32(&space, 0xc8);
        let [a, b, c, d] = ticket.to_be_bytes();
        space.write(0xcc, &[d, c, b, a]);
        assert_eq!(read32(&space, 0xcc), ticket);
        assert_ne!(read32(&space, 0xc8), ticket);
        space.write(0xcc, &[9, 0, 0, 0]);
        assert_eq!(read32(&space, 0xcc), ticket, "it is taken");
        space.write(0xc4, &[7, 0, 0, 0]);
        assert_eq!(read32(&space, 0xc4) >> 29, 0, "no such space");
        space.write(0xcc, &[0; 4]);
        assert_eq!(read32(&space, 0xcc), 0);
    }

    #[test]
    fn device_control_bit_15_asks_for_a_function_level_reset() {
        let mut space = ConfigSpace::new(&Profile::default(), false);
        assert_eq!(
            space.write(0x68, &[0x10, 0xa8]),
            ConfigEffect::FunctionLevelReset
        );
        assert_eq!(space.write(0x68, &[0x10, 0x28]), ConfigEffect::None);
        let mut control = [0; 2];
        space.read(0x68, &mut control);
        assert_eq!(control[1] & 0x80, 0, "the bit reads as zero");
    }

    /// PCI Express Base Specification, SR-IOV: all bits of Device Control of a virtual function are reserved, except
    /// Initiate FLR.
    #[test]
    fn a_virtual_function_has_of_device_control_initiate_flr_alone() {
        for (is_virtual, at_power_on, written) in
            [(false, [0x10, 0x28], [0xff, 0x7f]), (true, [0; 2], [0; 2])]
        {
            let mut space = ConfigSpace::new(&Profile::default(), is_virtual);
            let mut control = [0; 2];
            space.read(0x68, &mut control);
            assert_eq!(control, at_power_on, "virtual: {is_virtual}");
            assert_eq!(space.relaxed_ordering(), !is_virtual);
            let effect = space.write(0x68, &[0xff; 2]);
            assert_eq!(effect, ConfigEffect::FunctionLevelReset);
            space.read(0x68, &mut control);
            assert_eq!(control, written, "virtual: {is_virtual}");
            assert_eq!(space.relaxed_ordering(), !is_virtual);
        }
    }
}
