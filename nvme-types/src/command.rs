//! Commands: the submission queue entry and its fields (Base specification, "Common Command Format"; NVM Command Set
//! specification, chapter 3).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::sgl::Sgl;

/// A submission queue entry: 64 bytes, which begin every command capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sqe {
    /// The opcode.
    pub opcode: u8,
    /// Bits 7:6 are PSDT, which is 01b on fabrics. Bits 1:0 are FUSE.
    pub flags: u8,
    /// The command identifier, which the host chooses.
    pub cid: U16,
    /// Namespace identifier. In a fabrics command the first byte of this field is the command's type.
    pub nsid: U32,
    rsvd_08: U64,
    /// Metadata pointer.
    pub mptr: U64,
    /// SGL descriptor of the data.
    pub sgl: Sgl,
    /// Dword 10. The meaning of dwords 10 to 15 depends on the opcode.
    pub cdw10: U32,
    /// Dword 11.
    pub cdw11: U32,
    /// Dword 12.
    pub cdw12: U32,
    /// Dword 13.
    pub cdw13: U32,
    /// Dword 14.
    pub cdw14: U32,
    /// Dword 15.
    pub cdw15: U32,
}

/// Size of a command in bytes.
pub const BYTES: u32 = 64;

static_assertions::const_assert_eq!(size_of::<Sqe>(), BYTES as usize);
static_assertions::const_assert_eq!(core::mem::offset_of!(Sqe, sgl), 24);
static_assertions::const_assert_eq!(core::mem::offset_of!(Sqe, cdw10), 40);

/// Bits 1:0 of the flags (FUSE): nonzero for each command of a fused pair.
pub const FUSE: u8 = 0x03;
/// FUSE of the first command of a fused pair.
pub const FUSE_FIRST: u8 = 0x01;
/// FUSE of the second command of a fused pair.
pub const FUSE_SECOND: u8 = 0x02;
/// Bits 7:6 of the flags: the data pointer is a PRP or an SGL. Fabrics use SGLs.
pub const PSDT: u8 = 0xc0;
/// PSDT of an SGL; the metadata pointer has no meaning.
pub const PSDT_SGL: u8 = 0x40;

/// NSID that means all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Opcodes of admin commands (Base specification, "Admin Command Set").
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    /// Delete I/O Completion Queue.
    pub const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Fabrics commands, on admin queues and I/O queues.
    pub const FABRICS: u8 = 0x7f;
}

/// Opcodes of I/O commands (NVM Command Set specification; reservations: Base specification).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// Direction of the data transfer: bits 1:0 of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The command transfers no data.
    None,
    /// To the controller.
    ToController,
    /// To the host.
    ToHost,
    /// Both ways. No supported command has this direction.
    Both,
}

/// Returns the direction of an opcode, or of a fabrics command's type.
#[inline]
#[must_use]
pub const fn direction(opcode: u8) -> Direction {
    match opcode & 3 {
        0 => Direction::None,
        1 => Direction::ToController,
        2 => Direction::ToHost,
        _ => Direction::Both,
    }
}

/// Returns whether an I/O command writes blocks.
#[inline]
#[must_use]
pub const fn writes(opcode: u8) -> bool {
    matches!(
        opcode,
        io::WRITE | io::WRITE_ZEROES | io::DATASET_MANAGEMENT | io::COPY
    )
}

impl Sqe {
    /// Makes a command without namespace, data and parameters.
    #[inline]
    #[must_use]
    pub fn of(opcode: u8) -> Self {
        let mut sqe = Self::new_zeroed();
        sqe.opcode = opcode;
        sqe
    }

    /// Returns PRP entries 1 and 2, which are in the place of an SGL descriptor.
    #[inline]
    #[must_use]
    pub fn prp(&self) -> [u64; 2] {
        let prp: [U64; 2] = zerocopy::transmute!(self.sgl);
        prp.map(U64::get)
    }

    /// Sets PRP entries 1 and 2.
    #[inline]
    pub fn set_prp(&mut self, prp: [u64; 2]) {
        self.sgl = zerocopy::transmute!(prp.map(U64::new));
    }

    /// Returns whether an I/O command writes this block. For a command with a list of ranges, returns whether it writes
    /// at all.
    #[must_use]
    pub fn may_write(&self, block: u64) -> bool {
        match self.opcode {
            io::WRITE | io::WRITE_ZEROES => {
                let first = self.first_block();
                (first..first.saturating_add(self.blocks().into())).contains(&block)
            }
            // Dataset Management and Copy: their ranges are in the data, not in the command.
            other => writes(other),
        }
    }

    /// Returns the type of a fabrics command.
    #[inline]
    #[must_use]
    pub const fn fabrics_type(&self) -> u8 {
        (self.nsid.get() & 0xff) as u8 // CAST: eight bits are left.
    }

    /// Returns the direction of the command's data.
    #[inline]
    #[must_use]
    pub const fn direction(&self) -> Direction {
        if self.opcode == admin::FABRICS {
            direction(self.fabrics_type())
        } else {
            direction(self.opcode)
        }
    }

    /// Returns the first block of Read, Write, Compare, Write Zeroes or Verify (SLBA, dwords 10 and 11).
    #[inline]
    #[must_use]
    pub const fn first_block(&self) -> u64 {
        self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32
    }

    /// Returns the first block of a command of this queue, for the error log; `None` if the command has no such field.
    /// `None` also for Copy: SLBA is the first block of its destination, but the error may concern a source range.
    #[must_use]
    pub const fn start(&self, queue: u16) -> Option<u64> {
        match (queue, self.opcode) {
            (1.., io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES | io::VERIFY) => {
                Some(self.first_block())
            }
            _ => None,
        }
    }

    /// Returns the NSID of a command of this queue, which may be FFFFFFFFh; `None` if the command has no NSID. A
    /// fabrics command has its type in that field.
    #[must_use]
    pub const fn namespace(&self, queue: u16) -> Option<u32> {
        match (queue, self.opcode) {
            (_, admin::FABRICS) => None,
            (
                0,
                admin::IDENTIFY | admin::GET_LOG_PAGE | admin::SET_FEATURES | admin::GET_FEATURES,
            )
            | (1.., _) => Some(self.nsid.get()),
            (0, _) => None,
        }
    }

    /// Returns the number of blocks (NLB plus one).
    #[inline]
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        (self.cdw12.get() & 0xffff) + 1
    }

    /// Returns whether Force Unit Access is set: the data must be on the medium before the response.
    #[inline]
    #[must_use]
    pub const fn is_forced(&self) -> bool {
        self.cdw12.get() & 1 << 30 != 0
    }
}

/// A range in the data of Dataset Management.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Range {
    /// Context attributes, which are hints.
    pub attributes: U32,
    /// Number of blocks.
    pub blocks: U32,
    /// The first block.
    pub first: U64,
}

impl Range {
    /// Size of a range in bytes.
    pub const BYTES: u32 = 16;
}

static_assertions::const_assert_eq!(size_of::<Range>(), Range::BYTES as usize);

/// A source range of Copy, descriptor format 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyRange {
    rsvd_00: U64,
    /// The first block.
    pub first: U64,
    /// Number of blocks, less one.
    pub blocks: U16,
    rsvd_12: [u8; 14],
}

impl CopyRange {
    /// Size of a source range in bytes.
    pub const BYTES: u32 = 32;
}

static_assertions::const_assert_eq!(size_of::<CopyRange>(), CopyRange::BYTES as usize);
