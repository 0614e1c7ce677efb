//! Checks of a command: its parameters against its namespace, and whether its host may execute it there now.

use nix::errno::Errno;
use udapl::reactor::ReactorError;

use super::buffers::Owner;
use super::namespaces::Local;
use crate::model::{COPY_BLOCKS, Namespace, PortAccess, reservation_bytes};
use crate::nvme::command::{CopyRange, Range, io as opcode, writes};
use crate::nvme::{Nqn, Sqe, Status};

/// Maximum number of ranges of Dataset Management.
const RANGES: u32 = 256;
/// Maximum number of source ranges of Copy.
const COPY_RANGES: u32 = 128;

/// The properties of a command's queue that the execution of the command depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issuer<'a> {
    /// Number of the list with the queue's namespaces ([`super::namespaces::LocalLists::join`]).
    pub list: u32,
    /// Access of the port to groups of namespaces.
    pub access: &'a PortAccess,
    /// Identifier of the host.
    pub host_id: &'a [u8; 16],
    /// Name of the host.
    pub host: &'a Nqn,
    /// Party that the command's buffers are counted for.
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

/// Returns whether a command of an I/O queue is a reservation command, which the model carries out.
pub(crate) const fn is_reservation(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::RESERVATION_REGISTER
            | opcode::RESERVATION_REPORT
            | opcode::RESERVATION_ACQUIRE
            | opcode::RESERVATION_RELEASE
    )
}

/// Checks whether a queue's host may execute a command on a namespace now: whether it sees the namespace, and by the
/// access of the port, reservations and write protection. Every step of a command on a disk is checked again. The model
/// checks the reservation rules for reservation commands.
#[inline]
pub(crate) fn permit(opcode: u8, issuer: &Issuer<'_>, local: &Local) -> Result<(), Status> {
    let namespace = &*local.namespace;
    match &local.rules {
        None => issuer.access.check(namespace.group())?,
        Some(rules) => {
            rules.check_visible(issuer.host)?;
            issuer.access.check(namespace.group())?;
            if !rules.allow(issuer.host_id, opcode) && !is_reservation(opcode) {
                return Err(Status::RESERVATION.dnr());
            }
        }
    }
    if writes(opcode) && namespace.is_protected() {
        return Err(Status::WRITE_PROTECTED.dnr());
    }
    Ok(())
}

/// Checks a command, and returns the length of its data in bytes, in either direction.
#[inline(always)]
pub(crate) fn check(sqe: &Sqe, issuer: &Issuer<'_>, local: &Local) -> Result<u32, Status> {
    permit(sqe.opcode, issuer, local)?;
    let namespace = &*local.namespace;
    match sqe.opcode {
        // No namespace has protection information. Without it, PRINFO has no meaning, including that of Copy.
        opcode::READ | opcode::WRITE | opcode::COMPARE => {
            inside(namespace, sqe.first_block(), sqe.blocks().into())?;
            let bytes = sqe.blocks() << namespace.shift();
            if bytes > local.most_bytes {
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
            // Bits 11:8 of dword 12 are the format of the ranges. The target supports format 0 only.
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

/// Returns the status for a disk's error. A failed flush is a write fault, because it loses data that was written.
pub(crate) fn status_of(error: &ReactorError, opcode: u8) -> Status {
    let is_write = writes(opcode) || opcode == opcode::FLUSH;
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Status::CAPACITY.dnr(),
        Some(Errno::EOPNOTSUPP) => Status::INVALID_OPCODE.dnr(),
        Some(Errno::EROFS | Errno::EPERM | Errno::EBADF) => Status::WRITE_PROTECTED.dnr(),
        // DNR is not set, so that the host tries again.
        Some(Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR) => Status::INTERNAL,
        Some(_) if is_write => Status::WRITE_FAULT.dnr(),
        Some(_) => Status::UNRECOVERED_READ.dnr(),
        None => Status::INTERNAL.dnr(),
    }
}
