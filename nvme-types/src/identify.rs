//! Data structures that Identify returns (Base specification, "Identify Controller Data Structure" and others; NVM
//! Command Set specification, "Identify Namespace Data Structure"). Each is 4,096 bytes.

use core::mem::offset_of;

use static_assertions::const_assert_eq;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of each data structure in bytes.
pub const BYTES: usize = 4096;

/// Values of CNS: the data structure to return.
pub mod cns {
    /// Identify Namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// List of the active namespaces, in the order of their numbers.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// List of the identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// Identify Namespace of one command set.
    pub const SET_NAMESPACE: u8 = 0x05;
    /// Identify Controller of one command set.
    pub const SET_CONTROLLER: u8 = 0x06;
    /// List of the active namespaces of one command set, in the order of their numbers.
    pub const SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Identify Namespace, independent of the command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// List of the controllers to which a namespace is attached.
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// List of the controllers of the subsystem.
    pub const SUBSYSTEM_CONTROLLERS: u8 = 0x13;
}

/// Identify Controller: the fields that the target sets or the driver reads.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Controller {
    rsvd_000: [u8; 4],
    /// SN: serial number, padded with blanks.
    pub serial: [u8; 20],
    /// MN: model number, padded with blanks.
    pub model: [u8; 40],
    /// FR: firmware revision, padded with blanks.
    pub firmware: [u8; 8],
    rsvd_048: [u8; 4],
    /// CMIC: bit 0 several ports, 1 several controllers, 3 asymmetric namespace access.
    pub sharing: u8,
    /// MDTS: the maximum data transfer size is 4 KiB shifted left by this number; 0 means no limit.
    pub max_transfer: u8,
    /// CNTLID: the controller's number.
    pub id: U16,
    /// VER: version of the Base specification.
    pub version: U32,
    rsvd_054: [u8; 4],
    /// RTD3E: time in microseconds that a shutdown typically takes; 0 means that it is not reported.
    pub shutdown_time: U32,
    /// OAES: supported asynchronous events.
    pub events: U32,
    /// CTRATT: bit 0, host identifiers of 128 bits; bit 6, any traffic keeps a controller alive (TBKAS).
    pub attributes: U32,
    rsvd_064: [u8; 11],
    /// CNTRLTYPE: 1 I/O, 2 discovery.
    pub kind: u8,
    rsvd_070: [u8; 144],
    /// OACS: supported optional admin commands.
    pub admin_commands: U16,
    /// ACL: maximum number of concurrent Abort commands, less one.
    pub aborts: u8,
    /// AERL: maximum number of outstanding event requests, less one.
    pub event_requests: u8,
    /// FRMW: bit 0, the first firmware slot is read only; bits 3:1, the number of slots.
    pub firmware_slots: u8,
    /// LPA: bit 0, SMART page of each namespace; bit 1, command effects page; bit 2, pages can be read from any offset.
    pub log_pages: u8,
    /// ELPE: maximum number of entries of the error log, less one.
    pub error_entries: u8,
    rsvd_107: [u8; 3],
    /// WCTEMP and CCTEMP: warning and critical temperature thresholds, which are not reported.
    rsvd_10a: [u8; 4],
    rsvd_10e: [u8; 50],
    /// KAS: granularity of keep-alive times, in units of 100 ms.
    pub keep_alive: U16,
    rsvd_142: [u8; 20],
    /// ANATT: maximum time in seconds that a namespace group is in ANA state Change.
    pub access_change: u8,
    /// ANACAP: supported ANA states and properties.
    pub access: u8,
    /// ANAGRPMAX: the highest number of an ANA group.
    pub access_group_max: U32,
    /// NANAGRPID: number of ANA groups.
    pub access_groups: U32,
    rsvd_160: [u8; 160],
    /// SQES: size of a submission queue entry as a power of two; bits 3:0 required, bits 7:4 maximum.
    pub submission_entry: u8,
    /// CQES: size of a completion queue entry as a power of two; bits 3:0 required, bits 7:4 maximum.
    pub completion_entry: u8,
    /// MAXCMD: maximum number of commands that a queue processes at once.
    pub max_commands: U16,
    /// NN: the highest namespace number.
    pub namespaces: U32,
    /// ONCS: supported optional commands of the NVM command set.
    pub commands: U16,
    /// FUSES: bit 0, fused Compare and Write.
    pub fused: U16,
    rsvd_20c: [u8; 1],
    /// VWC: bit 0, there is a volatile write cache; bits 2:1, support of Flush for all namespaces.
    pub write_cache: u8,
    rsvd_20e: [u8; 4],
    rsvd_212: [u8; 1],
    /// NWPC: bit 0, namespaces can be write protected.
    pub write_protection: u8,
    /// ACWU: maximum number of blocks of a fused Compare and Write, less one.
    pub fused_blocks: U16,
    /// OCFS: supported formats of Copy's source ranges.
    pub copy_formats: U16,
    /// SGLS: supported SGL descriptors.
    pub sgl: U32,
    /// MNAN: maximum number of namespaces.
    pub max_namespaces: U32,
    rsvd_220: [u8; 224],
    /// The subsystem's name.
    pub subsystem: [u8; 256],
    rsvd_400: [u8; 768],
    /// IOCCSZ: size of a command capsule of an I/O queue, in units of 16 bytes.
    pub command_capsule: U32,
    /// IORCSZ: size of a response capsule of an I/O queue, in units of 16 bytes.
    pub response_capsule: U32,
    /// ICDOFF: offset of in-capsule data from the end of the command, in units of 16 bytes.
    pub data_offset: U16,
    /// FCATT: bit 0, controllers are static.
    pub fabrics: u8,
    /// MSDBD: maximum number of SGL data descriptors of a command.
    pub descriptors: u8,
    rsvd_70c: [u8; 244],
    rsvd_800: [u8; 2048],
}

const_assert_eq!(size_of::<Controller>(), BYTES);
const_assert_eq!(offset_of!(Controller, sharing), 76);
const_assert_eq!(offset_of!(Controller, shutdown_time), 88);
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

/// An LBA format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockFormat {
    /// Number of metadata bytes of a block.
    pub metadata: U16,
    /// Size of a block in bytes, as a power of two.
    pub shift: u8,
    /// Relative performance.
    pub performance: u8,
}

/// Identify Namespace.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Namespace {
    /// NSZE: number of blocks.
    pub blocks: U64,
    /// NCAP: number of blocks that can be in use; 0 in an inactive namespace.
    pub capacity: U64,
    /// NUSE: number of blocks in use.
    pub used: U64,
    /// NSFEAT: bit 4, the preferred sizes are valid.
    pub features: u8,
    /// NLBAF: number of LBA formats, less one.
    pub formats: u8,
    /// FLBAS: index of the LBA format in use.
    pub format: u8,
    rsvd_01b: [u8; 3],
    /// NMIC: bit 0, several controllers may have the namespace attached.
    pub sharing: u8,
    /// RESCAP: supported reservation types.
    pub reservations: u8,
    rsvd_020: [u8; 1],
    /// DLFEAT: bits 2:0, content of deallocated blocks (1 is zeros); bit 3, Write Zeroes may deallocate.
    pub deallocation: u8,
    rsvd_022: [u8; 30],
    /// NPWG, NPWA, NPDG, NPDA, NOWS: preferred sizes in blocks, less one.
    pub preferred: [U16; 5],
    /// MSSRL: maximum number of blocks of one source range of Copy.
    pub copy_range: U16,
    /// MCL: maximum number of blocks of all source ranges of Copy.
    pub copy_blocks: U32,
    /// MSRC: maximum number of source ranges of Copy, less one.
    pub copy_ranges: u8,
    rsvd_051: [u8; 11],
    /// ANAGRPID: number of the ANA group.
    pub access_group: U32,
    rsvd_060: [u8; 3],
    /// NSATTR: bit 0, the namespace is write protected.
    pub attributes: u8,
    rsvd_064: [u8; 4],
    /// NGUID: namespace globally unique identifier.
    pub nguid: [u8; 16],
    /// EUI64: IEEE extended unique identifier.
    pub eui64: [u8; 8],
    /// LBAF: the LBA formats.
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
    /// NMIC: bit 0, several controllers may have the namespace attached.
    pub sharing: u8,
    /// RESCAP: supported reservation types.
    pub reservations: u8,
    rsvd_003: [u8; 1],
    /// ANAGRPID: number of the ANA group.
    pub access_group: U32,
    /// NSATTR: bit 0, the namespace is write protected.
    pub attributes: u8,
    rsvd_009: [u8; 5],
    /// NSTAT: bit 0, the namespace is ready.
    pub state: u8,
    rsvd_00f: [u8; 4081],
}

const_assert_eq!(size_of::<IndependentNamespace>(), BYTES);
const_assert_eq!(offset_of!(IndependentNamespace, state), 14);

/// Identify Controller for the NVM command set.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NvmController {
    /// VSL: the maximum size of Verify is 4 KiB shifted left by this number; 0 means no limit.
    pub verify: u8,
    /// WZSL: the maximum size of Write Zeroes is 4 KiB shifted left by this number; 0 means no limit.
    pub zeroes: u8,
    rsvd_002: [u8; 1],
    /// DMRL: maximum number of ranges of Dataset Management.
    pub ranges: u8,
    /// DMRSL: maximum number of blocks of one range.
    pub range_blocks: U32,
    /// DMSL: maximum number of blocks of all ranges.
    pub all_blocks: U64,
    rsvd_010: [u8; 4080],
}

const_assert_eq!(size_of::<NvmController>(), BYTES);

/// Types of identifiers in the list that [`cns::DESCRIPTORS`] returns.
pub mod identifier {
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command set, 1 byte.
    pub const COMMAND_SET: u8 = 4;
}

/// Returns a text field of fixed length: padded with blanks, truncated if the text is too long.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}
