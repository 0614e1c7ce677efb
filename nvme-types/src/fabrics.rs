//! Fabrics commands and properties (Base specification, "Fabrics Command Set" and "Controller Properties").

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Sqe;

/// Types of fabrics commands.
pub mod kind {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Offsets of properties. Only a controller on PCIe has the admin queues' ones.
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset.
    pub const NSSR: u32 = 0x20;
    /// Admin Queue Attributes.
    pub const AQA: u32 = 0x24;
    /// Address of the admin submission queue, 8 bytes.
    pub const ASQ: u32 = 0x28;
    /// Address of the admin completion queue, 8 bytes.
    pub const ACQ: u32 = 0x30;
    /// Controller Ready Timeouts.
    pub const CRTO: u32 = 0x68;
}

/// Fields of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format.
    pub format: u16,
    /// Identifier of the queue.
    pub queue: u16,
    /// Number of entries of the queue, less one.
    pub size: u16,
    /// Attributes. If bit 2 is set, the host disables flow control of the submission queue.
    pub attributes: u8,
    /// Keep-alive time in milliseconds; 0 means none.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Reads the fields from a Connect command.
    #[must_use]
    pub const fn of(sqe: &Sqe) -> Self {
        let (first, second) = (sqe.cdw10.get(), sqe.cdw11.get());
        // CAST: keeps the low bits, which are the field.
        #[expect(clippy::cast_possible_truncation, reason = "the bits that are meant")]
        Self {
            format: first as u16,
            queue: (first >> 16) as u16,
            size: second as u16,
            attributes: (second >> 16) as u8,
            keep_alive_ms: sqe.cdw12.get(),
        }
    }

    /// Returns whether the host disables flow control. Completions then do not carry the head of the submission queue.
    #[must_use]
    pub const fn without_head(self) -> bool {
        self.attributes & 1 << 2 != 0
    }
}

/// The data of Connect: 1,024 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Controller number. On the admin queue, 0xffff requests any controller.
    pub controller: U16,
    rsvd_12: [u8; 238],
    /// The subsystem's name.
    pub subsystem: [u8; 256],
    /// The host's name.
    pub host: [u8; 256],
    rsvd_300: [u8; 256],
}

static_assertions::const_assert_eq!(size_of::<ConnectData>(), ConnectData::BYTES as usize);

/// Controller number that requests any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

impl ConnectData {
    /// Size of the data in bytes.
    pub const BYTES: u32 = 1024;

    /// Returns the data of a Connect, as a host sends it.
    #[must_use]
    pub fn new(host_id: [u8; 16], controller: u16, subsystem: [u8; 256], host: [u8; 256]) -> Self {
        Self {
            host_id,
            controller: controller.into(),
            rsvd_12: [0; 238],
            subsystem,
            host,
            rsvd_300: [0; 256],
        }
    }
}

/// The fields of Property Get and Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Offset of the property.
    pub offset: u32,
    /// True if the property has 8 bytes, false if it has 4.
    pub is_long: bool,
    /// Value to set. For a property of four bytes the upper half is 0, because the command reserves the upper bytes.
    pub value: u64,
}

impl Property {
    /// Reads the fields from a command; `None` if the size is neither 4 nor 8 bytes.
    #[must_use]
    pub const fn of(sqe: &Sqe) -> Option<Self> {
        let is_long = match sqe.cdw10.get() & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let upper = if is_long { sqe.cdw13.get() } else { 0 };
        // CAST: widening.
        Some(Self {
            offset: sqe.cdw11.get(),
            is_long,
            value: sqe.cdw12.get() as u64 | (upper as u64) << 32,
        })
    }
}

/// Controller Configuration (CC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Returns whether EN is set.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns SHN, the shutdown notification: 0 none, 1 normal, 2 abrupt.
    #[must_use]
    pub const fn shutdown(self) -> u32 {
        self.0 >> 14 & 3
    }

    /// Returns whether the target supports the fields' values: NVM command set, memory pages of 4 KiB, round robin
    /// arbitration, queue entries of 64 and 16 bytes.
    #[must_use]
    pub const fn is_offered(self) -> bool {
        let (command_set, page, arbitration) =
            (self.0 >> 4 & 7, self.0 >> 7 & 0xf, self.0 >> 11 & 7);
        let (submissions, completions) = (self.0 >> 16 & 0xf, self.0 >> 20 & 0xf);
        command_set == 0 && page == 0 && arbitration == 0 && submissions == 6 && completions == 4
    }
}

/// Bits of Controller Status (CSTS).
pub mod csts {
    /// Ready.
    pub const RDY: u32 = 1;
    /// Controller fatal status.
    pub const CFS: u32 = 1 << 1;
    /// Shutdown status: occurring.
    pub const SHST_OCCURRING: u32 = 1 << 2;
    /// Shutdown status: complete.
    pub const SHST_COMPLETE: u32 = 2 << 2;
    /// Shutdown status, both bits.
    pub const SHST: u32 = 3 << 2;
}

/// Returns the result of a refused Connect: the offset of the invalid parameter, in the command or in the data.
#[must_use]
pub const fn bad_parameter(offset: u16, in_data: bool) -> u64 {
    offset as u64 | (in_data as u64) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of CC that Linux writes to disable, enable and shut down a controller are supported (`nvme_enable_ctrl`,
    /// `nvme_disable_ctrl`).
    #[test]
    fn configurations_that_linux_writes_are_offered() {
        let [off, on, over] = [0x0046_0000, 0x0046_0001, 0x0046_4001].map(Configuration);
        assert!([off, on, over].iter().all(|one| one.is_offered()));
        assert!(!off.is_enabled() && on.is_enabled());
        assert_eq!((on.shutdown(), over.shutdown()), (0, 1));
        // Another command set, or pages of 8 KiB, are not supported.
        assert!(
            !Configuration(0x0046_0061).is_offered() && !Configuration(0x0046_0081).is_offered()
        );
    }
}
