//! Checks of a command: against its namespace, and against what its queue's host may do there now.

use nix::errno::Errno;
use udapl::reactor::ReactorError;

use super::buffers::Owner;
use super::namespaces::Local;
use crate::model::{COPY_BLOCKS, MAX_TRANSFER, Namespace, PortAccess, reservation_bytes};
use crate::nvme::command::{CopyRange, Range, io as opcode, writes};
use crate::nvme::{Sqe, Status};

/// Most ranges of Dataset Management.
const RANGES: u32 = 256;
/// Most source ranges of Copy.
const COPY_RANGES: u32 = 128;

/// The queue that a command came by, as far as the command's meaning depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issuer<'a> {
    /// Number of the list that its namespaces are in ([`super::namespaces::LocalLists::join`]).
    pub list: u32,
    /// The access of its port to groups of namespaces.
    pub access: &'a PortAccess,
    /// The identifier of its host.
    pub host_id: &'a [u8; 16],
    /// The party that its buffers are counted for.
    pub owner: Owner,
}

/// Checks that blocks are inside a namespace.
pub(crate) fn inside(namespace: &Namespace, first: u64, blocks: u64) -> Result<(), Status> {
    let end = first.checked_add(blocks);
    if end.is_some_and(|end| end <= namespace.blocks()) {
        Ok(())
    } else {
        Err(Status::LBA_RANGE.dnr())
    }
}

/// Returns whether the model carries out a command of an I/O queue.
pub(crate) const fn is_reservation(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::RESERVATION_REGISTER
            | opcode::RESERVATION_REPORT
            | opcode::RESERVATION_ACQUIRE
            | opcode::RESERVATION_RELEASE
    )
}

/// Checks that a queue's host may do this on a namespace now: by the access of its port, by reservations, by write
/// protection. Each step of a command at a disk is checked so. Reservation commands have rules of their own, which the
/// model knows.
#[inline]
pub(crate) fn permit(opcode: u8, issuer: &Issuer<'_>, local: &Local) -> Result<(), Status> {
    let namespace = &*local.namespace;
    issuer.access.check(namespace.group())?;
    if !local.allows(issuer.host_id, opcode) && !is_reservation(opcode) {
        return Err(Status::RESERVATION.dnr());
    }
    if writes(opcode) && namespace.is_protected() {
        return Err(Status::WRITE_PROTECTED.dnr());
    }
    Ok(())
}

/// Checks a command, and returns the bytes of its data in either direction.
#[inline]
pub(crate) fn check(sqe: &Sqe, issuer: &Issuer<'_>, local: &Local) -> Result<u32, Status> {
    permit(sqe.opcode, issuer, local)?;
    let namespace = &*local.namespace;
    match sqe.opcode {
        // No namespace has protection information. Without it PRINFO has no meaning, also of Copy.
        opcode::READ | opcode::WRITE | opcode::COMPARE => {
            inside(namespace, sqe.first_block(), sqe.blocks().into())?;
            let bytes = sqe.blocks() << namespace.shift();
            if bytes > MAX_TRANSFER {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok(bytes)
        }
        _ => check_other(sqe, namespace),
    }
}

fn check_other(sqe: &Sqe, namespace: &Namespace) -> Result<u32, Status> {
    match sqe.opcode {
        opcode::WRITE_ZEROES | opcode::VERIFY => {
            inside(namespace, sqe.first_block(), sqe.blocks().into())?;
            Ok(0)
        }
        opcode::FLUSH => Ok(0),
        opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE => Ok(reservation_bytes(sqe.opcode)),
        opcode::DATASET_MANAGEMENT => {
            let ranges = (sqe.cdw10.get() & 0xff) + 1;
            Ok(ranges.min(RANGES) * Range::BYTES)
        }
        opcode::COPY => {
            // Bits 11:8 of dword 12: the format of the ranges. The target has format 0.
            if sqe.cdw12.get() >> 8 & 0xf != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            let ranges = (sqe.cdw12.get() & 0xff) + 1;
            if ranges > COPY_RANGES {
                return Err(Status::COPY_SIZE.dnr());
            }
            Ok(ranges * CopyRange::BYTES)
        }
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// Checks the source ranges of a Copy, and its destination.
pub(super) fn check_copy(
    sqe: &Sqe,
    ranges: &[CopyRange],
    namespace: &Namespace,
) -> Result<(), Status> {
    let mut blocks = 0;
    for range in ranges {
        let count = u32::from(range.blocks.get()) + 1;
        inside(namespace, range.first.get(), count.into())?;
        blocks += count;
    }
    if blocks > u32::from(COPY_BLOCKS) {
        return Err(Status::COPY_SIZE.dnr());
    }
    inside(namespace, sqe.first_block(), blocks.into())
}

/// The status of a disk's error. A failed flush loses data that was written, so it is a write fault.
pub(crate) fn status_of(error: &ReactorError, opcode: u8) -> Status {
    let is_write = writes(opcode) || opcode == opcode::FLUSH;
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Status::CAPACITY.dnr(),
        Some(Errno::EOPNOTSUPP) => Status::INVALID_OPCODE.dnr(),
        Some(Errno::EROFS | Errno::EPERM | Errno::EBADF) => Status::WRITE_PROTECTED.dnr(),
        // Without DNR: the host tries again.
        Some(Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR) => Status::INTERNAL,
        Some(_) if is_write => Status::WRITE_FAULT.dnr(),
        Some(_) => Status::UNRECOVERED_READ.dnr(),
        None => Status::INTERNAL.dnr(),
    }
}
