//! Log pages (Base specification, "Get Log Page").

use core::mem::offset_of;

use static_assertions::const_assert_eq;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identifiers of log pages.
pub mod page {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Error information.
    pub const ERRORS: u8 = 0x01;
    /// SMART and health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed namespaces.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ACCESS: u8 = 0x0c;
    /// Feature identifiers supported and effects.
    pub const FEATURE_EFFECTS: u8 = 0x12;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation notifications.
    pub const RESERVATION: u8 = 0x80;
}

/// Fields of a Get Log Page command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Identifier of the page.
    pub page: u8,
    /// LSP: the field that is specific to the page.
    pub specific: u8,
    /// RAE: true if reading the page does not clear the event.
    pub retain: bool,
    /// Number of bytes to return.
    pub bytes: u64,
    /// Offset in the page, in bytes.
    pub offset: u64,
}

impl Wanted {
    /// Reads the fields from a Get Log Page command.
    #[must_use]
    pub const fn of(sqe: &super::Sqe) -> Self {
        let (first, second) = (sqe.cdw10.get(), sqe.cdw11.get());
        let dwords = (first >> 16) as u64 | (second as u64 & 0xffff) << 16;
        // CAST: keeps the low bits, which are the field.
        #[expect(clippy::cast_possible_truncation, reason = "the bits that are meant")]
        Self {
            page: first as u8,
            specific: (first >> 8) as u8 & 0x7f,
            retain: first & 1 << 15 != 0,
            bytes: (dwords + 1) * 4,
            offset: sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32,
        }
    }
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorEntry {
    /// Number of errors so far, including this one; 0 in an unused entry.
    pub count: U64,
    /// Identifier of the queue.
    pub sqid: U16,
    /// Identifier of the failed command.
    pub cid: U16,
    /// Status Field, as [`super::Status::field`] returns it.
    pub status: U16,
    /// Location of the invalid parameter in the command; 0xffff means none.
    pub location: U16,
    /// First block of the command, or 0 if the command has none.
    pub block: U64,
    /// Namespace of the command, or 0 if the command has none.
    pub nsid: U32,
    rsvd_1c: [u8; 36],
}

const_assert_eq!(size_of::<ErrorEntry>(), 64);

impl ErrorEntry {
    /// Returns the error log entry of a failed command.
    #[must_use]
    pub fn new(count: u64, sqid: u16, sqe: &super::Sqe, status: super::Status) -> Self {
        Self::logged(count, sqid, sqe.cid.get(), status.field()).about(
            sqe.start(sqid).unwrap_or(0),
            sqe.namespace(sqid).unwrap_or(0),
        )
    }

    /// Returns an entry with these values, for a command without a block and without a namespace.
    #[must_use]
    pub fn logged(count: u64, sqid: u16, cid: u16, status: u16) -> Self {
        Self {
            count: count.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status: status.into(),
            location: 0xffff.into(),
            block: 0.into(),
            nsid: 0.into(),
            rsvd_1c: [0; 36],
        }
    }

    /// Returns the entry with the first block and the namespace of its command.
    #[must_use]
    pub fn about(self, block: u64, nsid: u32) -> Self {
        Self {
            block: block.into(),
            nsid: nsid.into(),
            ..self
        }
    }
}

/// The SMART / Health Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Health {
    /// Critical warnings.
    pub warnings: u8,
    /// Composite temperature, in kelvins.
    pub temperature: [u8; 2],
    /// Available spare, in percent.
    pub spare: u8,
    /// Threshold of the available spare, in percent.
    pub spare_threshold: u8,
    rsvd_005: [u8; 27],
    /// Data units read, in units of 512,000 bytes; 128 bits.
    pub read: [U64; 2],
    /// Data units written, in units of 512,000 bytes; 128 bits.
    pub written: [U64; 2],
    /// Number of read commands.
    pub reads: [U64; 2],
    /// Number of write commands.
    pub writes: [U64; 2],
    rsvd_060: [u8; 80],
    /// Number of error log entries over the lifetime.
    pub errors: [U64; 2],
    rsvd_0c0: [u8; 320],
}

const_assert_eq!(size_of::<Health>(), 512);
const_assert_eq!(offset_of!(Health, read), 32);
const_assert_eq!(offset_of!(Health, errors), 176);

/// The header of the Asymmetric Namespace Access log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccessHead {
    /// Change count of the page.
    pub changes: U64,
    /// Number of groups that follow.
    pub groups: U16,
    rsvd_0a: [u8; 6],
}

const_assert_eq!(size_of::<AccessHead>(), 16);

/// A group descriptor. The numbers of its namespaces follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccessGroup {
    /// Number of the group.
    pub group: U32,
    /// Number of namespaces that follow.
    pub namespaces: U32,
    /// Change count of the group.
    pub changes: U64,
    /// ANA state: an [`Access`].
    pub state: u8,
    rsvd_11: [u8; 15],
}

const_assert_eq!(size_of::<AccessGroup>(), 32);

/// ANA state: access to a group of namespaces through one controller's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Access {
    /// Optimized.
    #[default]
    Optimized = 0x1,
    /// Non-optimized: commands succeed, but are slower.
    NonOptimized = 0x2,
    /// Inaccessible.
    Inaccessible = 0x3,
    /// Persistent loss.
    PersistentLoss = 0x4,
    /// Change: a transition to another state is in progress.
    Change = 0xf,
}

impl AccessHead {
    /// Returns the header of a page with this many groups.
    #[must_use]
    pub fn new(changes: u64, groups: u16) -> Self {
        Self {
            changes: changes.into(),
            groups: groups.into(),
            rsvd_0a: [0; 6],
        }
    }
}

impl AccessGroup {
    /// Returns the descriptor of a group with this many namespaces.
    #[must_use]
    pub fn new(group: u32, namespaces: u32, changes: u64, state: Access) -> Self {
        Self {
            group: group.into(),
            namespaces: namespaces.into(),
            changes: changes.into(),
            state: state as u8,
            rsvd_11: [0; 15],
        }
    }
}
