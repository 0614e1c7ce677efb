//! Data structures that Identify returns (Base specification, "Identify Controller Data Structure" and others; NVM
//! Command Set specification, "Identify Namespace Data Structure"). Each is 4,096 bytes.

use core::mem::offset_of;

use static_assertions::const_assert_eq;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of each data structure.
pub const BYTES: usize = 4096;

/// Values of CNS: the data structure to return.
pub mod cns {
    /// A namespace, as the NVM command set has it.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Namespaces by number.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// A namespace's identifiers.
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, of a command set.
    pub const SET_NAMESPACE: u8 = 0x05;
    /// The controller, of a command set.
    pub const SET_CONTROLLER: u8 = 0x06;
    /// Namespaces of a command set, by number.
    pub const SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// A namespace, whatever its command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Controllers that have a namespace.
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const SUBSYSTEM_CONTROLLERS: u8 = 0x13;
}

/// Identify Controller: the fields that this target sets.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Controller {
    rsvd_000: [u8; 4],
    /// Serial number, padded with blanks.
    pub serial: [u8; 20],
    /// Model, likewise.
    pub model: [u8; 40],
    /// Firmware revision, likewise.
    pub firmware: [u8; 8],
    rsvd_048: [u8; 4],
    /// CMIC: bit 0 several ports, 1 several controllers, 3 asymmetric namespace access.
    pub sharing: u8,
    /// MDTS: the longest transfer is 4 KiB shifted by it; 0 is any.
    pub max_transfer: u8,
    /// The controller's number.
    pub id: U16,
    /// Version.
    pub version: U32,
    rsvd_054: [u8; 8],
    /// OAES: supported events.
    pub events: U32,
    /// CTRATT: bit 0 host identifiers of 128 bits, 6 any traffic keeps a controller alive (TBKAS).
    pub attributes: U32,
    rsvd_064: [u8; 11],
    /// CNTRLTYPE: 1 I/O, 2 discovery.
    pub kind: u8,
    rsvd_070: [u8; 144],
    /// OACS.
    pub admin_commands: U16,
    /// ACL: abort commands at once, less one.
    pub aborts: u8,
    /// AERL: event requests at once, less one.
    pub event_requests: u8,
    /// FRMW: bit 0 the first slot is read only, 3:1 slots.
    pub firmware_slots: u8,
    /// LPA: bit 0 SMART of each namespace, 1 command effects, 2 pages from any offset.
    pub log_pages: u8,
    /// ELPE: entries of the error log, less one.
    pub error_entries: u8,
    rsvd_107: [u8; 3],
    /// WCTEMP and CCTEMP.
    rsvd_10a: [u8; 4],
    rsvd_10e: [u8; 50],
    /// KAS: granularity of keep-alive times, in 100 ms.
    pub keep_alive: U16,
    rsvd_142: [u8; 20],
    /// ANATT: the longest that a change of access takes, in seconds.
    pub access_change: u8,
    /// ANACAP.
    pub access: u8,
    /// ANAGRPMAX: the highest group.
    pub access_group_max: U32,
    /// NANAGRPID: groups.
    pub access_groups: U32,
    rsvd_160: [u8; 160],
    /// SQES.
    pub submission_entry: u8,
    /// CQES.
    pub completion_entry: u8,
    /// MAXCMD.
    pub max_commands: U16,
    /// NN: the highest namespace.
    pub namespaces: U32,
    /// ONCS: supported optional commands of the NVM command set.
    pub commands: U16,
    /// FUSES: bit 0 compare and write.
    pub fused: U16,
    rsvd_20c: [u8; 1],
    /// VWC: bit 0 there is a volatile write cache, 2:1 Flush of all namespaces.
    pub write_cache: u8,
    rsvd_20e: [u8; 4],
    rsvd_212: [u8; 1],
    /// NWPC: bit 0 namespaces can be write protected.
    pub write_protection: u8,
    /// ACWU: blocks of a compare and write, less one.
    pub fused_blocks: U16,
    /// OCFS: formats of Copy's ranges.
    pub copy_formats: U16,
    /// SGLS.
    pub sgl: U32,
    /// MNAN: namespaces, at most.
    pub max_namespaces: U32,
    rsvd_220: [u8; 224],
    /// The subsystem's name.
    pub subsystem: [u8; 256],
    rsvd_400: [u8; 768],
    /// IOCCSZ: a command capsule of an I/O queue, in 16 bytes.
    pub command_capsule: U32,
    /// IORCSZ: a response capsule, likewise.
    pub response_capsule: U32,
    /// ICDOFF.
    pub data_offset: U16,
    /// FCATT: bit 0 controllers are static.
    pub fabrics: u8,
    /// MSDBD: descriptors of a command.
    pub descriptors: u8,
    rsvd_70c: [u8; 244],
    rsvd_800: [u8; 2048],
}

const_assert_eq!(size_of::<Controller>(), BYTES);
const_assert_eq!(offset_of!(Controller, sharing), 76);
const_assert_eq!(offset_of!(Controller, events), 92);
const_assert_eq!(offset_of!(Controller, kind), 111);
const_assert_eq!(offset_of!(Controller, admin_commands), 256);
const_assert_eq!(offset_of!(Controller, error_entries), 262);
const_assert_eq!(offset_of!(Controller, keep_alive), 320);
const_assert_eq!(offset_of!(Controller, access_change), 342);
const_assert_eq!(offset_of!(Controller, access_groups), 348);
const_assert_eq!(offset_of!(Controller, submission_entry), 512);
const_assert_eq!(offset_of!(Controller, commands), 520);
const_assert_eq!(offset_of!(Controller, write_cache), 525);
const_assert_eq!(offset_of!(Controller, write_protection), 531);
const_assert_eq!(offset_of!(Controller, fused_blocks), 532);
const_assert_eq!(offset_of!(Controller, copy_formats), 534);
const_assert_eq!(offset_of!(Controller, sgl), 536);
const_assert_eq!(offset_of!(Controller, max_namespaces), 540);
const_assert_eq!(offset_of!(Controller, subsystem), 768);
const_assert_eq!(offset_of!(Controller, command_capsule), 1792);
const_assert_eq!(offset_of!(Controller, descriptors), 1803);

/// A format of blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockFormat {
    /// Metadata bytes.
    pub metadata: U16,
    /// Bytes of a block, as a power of two.
    pub shift: u8,
    /// Relative performance.
    pub performance: u8,
}

/// Identify Namespace.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Namespace {
    /// NSZE: blocks.
    pub blocks: U64,
    /// NCAP: blocks that can be in use; 0 is an inactive namespace.
    pub capacity: U64,
    /// NUSE: blocks in use.
    pub used: U64,
    /// NSFEAT: bit 4 the preferred sizes are given.
    pub features: u8,
    /// NLBAF: formats, less one.
    pub formats: u8,
    /// FLBAS: the format in use.
    pub format: u8,
    rsvd_01b: [u8; 3],
    /// NMIC: bit 0 several controllers may have it.
    pub sharing: u8,
    /// RESCAP: kinds of reservations.
    pub reservations: u8,
    rsvd_020: [u8; 1],
    /// DLFEAT: bits 2:0 content of deallocated blocks, 1 is zeroes; 3 Write Zeroes may deallocate.
    pub deallocation: u8,
    rsvd_022: [u8; 30],
    /// NPWG, NPWA, NPDG, NPDA, NOWS: preferred sizes in blocks, less one.
    pub preferred: [U16; 5],
    /// MSSRL: blocks of one range of Copy.
    pub copy_range: U16,
    /// MCL: blocks of all ranges of Copy.
    pub copy_blocks: U32,
    /// MSRC: ranges of Copy, less one.
    pub copy_ranges: u8,
    rsvd_051: [u8; 11],
    /// ANAGRPID.
    pub access_group: U32,
    rsvd_060: [u8; 3],
    /// NSATTR: bit 0 write protected.
    pub attributes: u8,
    rsvd_064: [u8; 4],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF: the formats.
    pub block_formats: [BlockFormat; 64],
    rsvd_180: [u8; 3712],
}

const_assert_eq!(size_of::<Namespace>(), BYTES);
const_assert_eq!(offset_of!(Namespace, sharing), 30);
const_assert_eq!(offset_of!(Namespace, deallocation), 33);
const_assert_eq!(offset_of!(Namespace, preferred), 64);
const_assert_eq!(offset_of!(Namespace, copy_range), 74);
const_assert_eq!(offset_of!(Namespace, access_group), 92);
const_assert_eq!(offset_of!(Namespace, attributes), 99);
const_assert_eq!(offset_of!(Namespace, nguid), 104);
const_assert_eq!(offset_of!(Namespace, block_formats), 128);

/// Identify Namespace, independent of the command set.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IndependentNamespace {
    rsvd_000: [u8; 1],
    /// NMIC.
    pub sharing: u8,
    /// RESCAP.
    pub reservations: u8,
    rsvd_003: [u8; 1],
    /// ANAGRPID.
    pub access_group: U32,
    /// NSATTR.
    pub attributes: u8,
    rsvd_009: [u8; 5],
    /// NSTAT: bit 0 ready.
    pub state: u8,
    rsvd_00f: [u8; 4081],
}

const_assert_eq!(size_of::<IndependentNamespace>(), BYTES);
const_assert_eq!(offset_of!(IndependentNamespace, state), 14);

/// Identify Controller for the NVM command set.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NvmController {
    /// VSL: the longest Verify is 4 KiB shifted by it; 0 is any.
    pub verify: u8,
    /// WZSL: likewise Write Zeroes.
    pub zeroes: u8,
    rsvd_002: [u8; 1],
    /// DMRL: ranges of Dataset Management.
    pub ranges: u8,
    /// DMRSL: blocks of one range.
    pub range_blocks: U32,
    /// DMSL: blocks of all ranges.
    pub all_blocks: U64,
    rsvd_010: [u8; 4080],
}

const_assert_eq!(size_of::<NvmController>(), BYTES);

/// Kinds of identifiers in the list that [`cns::DESCRIPTORS`] gives.
pub mod identifier {
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command set, 1 byte.
    pub const COMMAND_SET: u8 = 4;
}

/// Text in a field of fixed length: padded with blanks, cut where it is too long.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}
