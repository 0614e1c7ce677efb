//! Commands that read and write blocks.
//!
//! ```text
//!   begin_io   which namespace? inside of it? may it be written? data of the right length?
//!   place      4 KiB are in the I/O's own page, more are in a buffer, which may have to be waited for
//!   fetch      data from the host, unless it came with the command
//!   execute    the disk
//!   disk_done  the next step, or the answer
//! ```

use std::sync::Arc;

use nix::errno::Errno;
use udapl::reactor::{FileOperation, ReactorError};

use super::admission::Owner;
use super::io::{Io, Step, Work};
use super::layout::{PAGE, Spot};
use super::queue::{Attached, Queue};
use super::steps::Next;
use super::worker::{Worker, WorkerError};
use crate::disk::Handle;
use crate::model::{MAX_TRANSFER, Namespace, Reservations, Shelf, Tally, reservation_bytes};
use crate::nvme::command::{
    ALL_NAMESPACES, CopyRange, FUSE, FUSE_FIRST, FUSE_SECOND, PSDT, PSDT_SGL, Range, io as opcode,
};
use crate::nvme::sgl::Data;
use crate::nvme::{Sqe, Status};

/// Ranges of Dataset Management at most.
const RANGES: u32 = 256;
/// Bit of Write Zeroes: the blocks may be deallocated.
const MAY_DEALLOCATE: u32 = 1 << 25;

/// A namespace as a worker has it.
#[derive(Debug)]
pub(super) struct Local {
    pub namespace: Arc<Namespace>,
    pub handle: Handle,
    pub tally: Arc<Tally>,
    /// Its reservations as they were seen, and after how many changes; none: there has never been one.
    reservations: (u64, Option<Arc<Reservations>>),
    /// Blocks that are locked, likewise.
    pub locks: Vec<u64>,
}

impl Local {
    /// Takes in the reservations that there are now.
    #[cold]
    fn refresh(&mut self, changes: u64) {
        self.reservations = (changes, Some(self.namespace.reservations()));
        self.locks = self.namespace.locks();
    }

    /// Whether reservations let a host do this.
    #[inline]
    fn allows(&self, host: &[u8; 16], opcode: u8) -> bool {
        let there = self.reservations.1.as_ref();
        there.is_none_or(|one| one.allows(host, writes(opcode) || opcode == opcode::FLUSH))
    }
}

/// The namespaces of a subsystem as a worker has them.
#[derive(Debug)]
struct LocalShelf {
    shelf: Arc<Shelf>,
    /// Queues of the worker whose namespaces are on it.
    users: u32,
    seen: u64,
    namespaces: Vec<Option<Local>>,
}

/// The shelves of a worker.
#[derive(Debug, Default)]
pub(super) struct Shelves(Vec<LocalShelf>);

impl Shelves {
    /// The number of a shelf, which one more queue uses; it is looked at when it is used.
    pub(super) fn join(&mut self, shelf: &Arc<Shelf>) -> usize {
        let same = |one: &LocalShelf| Arc::ptr_eq(&one.shelf, shelf);
        let there = self.0.iter().position(same);
        let there = there.or_else(|| self.0.iter().position(|one| one.users == 0));
        let at = there.unwrap_or(self.0.len());
        match self.0.get_mut(at) {
            Some(one) if same(one) => one.users += 1,
            Some(one) => *one = LocalShelf::new(shelf),
            None => self.0.push(LocalShelf::new(shelf)),
        }
        at
    }

    /// A queue uses it no more. What nobody uses keeps no disk open.
    pub(super) fn leave(&mut self, shelf: usize) {
        if let Some(one) = self.0.get_mut(shelf) {
            one.users -= 1;
            if one.users == 0 {
                one.namespaces.clear();
                one.seen = u64::MAX;
            }
        }
    }

    /// A namespace.
    #[inline]
    pub(super) fn namespace(&mut self, shelf: usize, nsid: u32) -> Option<&Local> {
        let shelf = self.0.get_mut(shelf)?;
        if shelf.shelf.generation() != shelf.seen {
            shelf.refresh();
        }
        // CAST: 32 bits fit.
        let place = shelf.namespaces.get_mut((nsid as usize).wrapping_sub(1));
        let local = place?.as_mut()?;
        let changes = local.namespace.changes();
        if changes != local.reservations.0 {
            local.refresh(changes);
        }
        Some(local)
    }

    /// All namespaces of a shelf.
    pub(super) fn all(&mut self, shelf: usize) -> impl Iterator<Item = &Local> {
        if let Some(shelf) = self.0.get_mut(shelf) {
            if shelf.shelf.generation() != shelf.seen {
                shelf.refresh();
            }
            for local in shelf.namespaces.iter_mut().flatten() {
                let changes = local.namespace.changes();
                if changes != local.reservations.0 {
                    local.refresh(changes);
                }
            }
        }
        self.0
            .get(shelf)
            .into_iter()
            .flat_map(|shelf| shelf.namespaces.iter().flatten())
    }
}

impl LocalShelf {
    fn new(shelf: &Arc<Shelf>) -> Self {
        Self {
            shelf: Arc::clone(shelf),
            users: 1,
            seen: u64::MAX,
            namespaces: Vec::new(),
        }
    }

    /// Takes in what is on the shelf now. A namespace that was here already stays as it is.
    #[cold]
    fn refresh(&mut self) {
        let (seen, there) = self.shelf.look();
        self.seen = seen;
        let mut before: Vec<Local> = self.namespaces.drain(..).flatten().collect();
        self.namespaces = there
            .iter()
            .map(|namespace| {
                let namespace = namespace.as_ref()?;
                let known = before.iter().position(|one| Arc::ptr_eq(&one.namespace, namespace));
                if let Some(known) = known {
                    return Some(before.swap_remove(known));
                }
                let handle = namespace.disk().handle();
                let handle = handle.inspect_err(|error| {
                    tracing::error!(nsid = namespace.nsid(), %error, "a namespace whose disk cannot be opened");
                });
                Some(Local {
                    handle: handle.ok()?,
                    tally: namespace.tally(),
                    reservations: (0, None),
                    locks: Vec::new(),
                    namespace: Arc::clone(namespace),
                })
            })
            .collect();
    }
}

/// What a command wants of its namespace, once that was looked at.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Bytes of data, in either direction.
    pub bytes: u32,
}

/// Whether blocks are inside of a namespace.
pub(super) fn inside(namespace: &Namespace, first: u64, blocks: u64) -> Result<(), Status> {
    let end = first.checked_add(blocks);
    if end.is_some_and(|end| end <= namespace.blocks()) {
        Ok(())
    } else {
        Err(Status::LBA_RANGE.dnr())
    }
}

/// Commands that the model carries out.
const fn is_reservation(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::RESERVATION_REGISTER
            | opcode::RESERVATION_REPORT
            | opcode::RESERVATION_ACQUIRE
            | opcode::RESERVATION_RELEASE
    )
}

pub(super) const fn writes(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::WRITE | opcode::WRITE_ZEROES | opcode::DATASET_MANAGEMENT | opcode::COPY
    )
}

/// Looks whether a queue's host may do this on a namespace now: by the access of its port, by reservations, and by
/// write protection. Each step of a command at a disk comes by here. Reservation commands have their own rules, which
/// the model knows.
#[inline]
pub(super) fn permit(opcode: u8, attached: &Attached, local: &Local) -> Result<(), Status> {
    let namespace = &*local.namespace;
    attached.access.check(namespace.group())?;
    if !local.allows(&attached.host_id, opcode) && !is_reservation(opcode) {
        return Err(Status::RESERVATION.dnr());
    }
    if writes(opcode) && namespace.is_protected() {
        return Err(Status::WRITE_PROTECTED.dnr());
    }
    Ok(())
}

/// Looks at a command before anything is done for it.
pub(super) fn check(sqe: &Sqe, attached: &Attached, local: &Local) -> Result<Wanted, Status> {
    permit(sqe.opcode, attached, local)?;
    let namespace = &*local.namespace;
    let shift = namespace.shift();
    match sqe.opcode {
        // No namespace has protection information, and without it PRINFO says nothing, here and of Copy.
        opcode::READ | opcode::WRITE | opcode::COMPARE => {
            inside(namespace, sqe.first_block(), sqe.blocks().into())?;
            let bytes = sqe.blocks() << shift;
            if bytes > MAX_TRANSFER {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok(Wanted { bytes })
        }
        opcode::WRITE_ZEROES | opcode::VERIFY => {
            inside(namespace, sqe.first_block(), sqe.blocks().into())?;
            Ok(Wanted { bytes: 0 })
        }
        opcode::FLUSH => Ok(Wanted { bytes: 0 }),
        opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE => Ok(Wanted {
            bytes: reservation_bytes(sqe.opcode),
        }),
        opcode::DATASET_MANAGEMENT => {
            let ranges = (sqe.cdw10.get() & 0xff) + 1;
            Ok(Wanted {
                bytes: ranges.min(RANGES) * Range::BYTES,
            })
        }
        opcode::COPY => {
            // Bits 11:8 of dword 12: the format of the ranges, of which 0 is the one that is there.
            if sqe.cdw12.get() >> 8 & 0xf != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            let ranges = (sqe.cdw12.get() & 0xff) + 1;
            if ranges > 128 {
                return Err(Status::COPY_SIZE.dnr());
            }
            Ok(Wanted {
                bytes: ranges * CopyRange::BYTES,
            })
        }
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// What a host is told of an error of a disk. What a failed flush loses was written.
pub(super) fn status_of(error: &ReactorError, opcode: u8) -> Status {
    let is_write = writes(opcode) || opcode == opcode::FLUSH;
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Status::CAPACITY.dnr(),
        Some(Errno::EOPNOTSUPP) => Status::INVALID_OPCODE.dnr(),
        Some(Errno::EROFS | Errno::EPERM | Errno::EBADF) => Status::WRITE_PROTECTED.dnr(),
        // The host tries again.
        Some(Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR) => Status::INTERNAL,
        Some(_) if is_write => Status::WRITE_FAULT.dnr(),
        Some(_) => Status::UNRECOVERED_READ.dnr(),
        None => Status::INTERNAL.dnr(),
    }
}

impl Worker {
    /// What an I/O's command needs of its queue and its namespace. Neither may be there any more.
    #[inline]
    pub(super) fn parts<'a>(
        queues: &'a super::queue::Queues,
        shelves: &'a mut Shelves,
        io: &Io,
    ) -> Result<(&'a Queue, &'a Attached, &'a Local), Status> {
        let queue = queues.get(io.queue).ok_or(Status::ABORTED_QUEUE)?;
        let attached = queue.attached.as_ref().ok_or(Status::SEQUENCE.dnr())?;
        let shelf = attached.shelf.ok_or(Status::INVALID_OPCODE.dnr())?;
        let local = shelves.namespace(shelf, io.sqe.nsid.get());
        Ok((
            queue,
            attached,
            local.ok_or(Status::INVALID_NAMESPACE.dnr())?,
        ))
    }

    /// A command of an I/O queue.
    #[inline]
    pub(super) fn begin_io(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let sqe = io.sqe;
        if sqe.flags & (FUSE | PSDT) != PSDT_SGL {
            return self.begin_fused(at);
        }
        if sqe.opcode == opcode::FLUSH && sqe.nsid.get() == ALL_NAMESPACES {
            return self.flush_all(at);
        }
        if sqe.opcode == opcode::RESERVATION_REPORT {
            let parts = Self::parts(&self.queues, &mut self.shelves, io);
            return match parts.and_then(|(_, attached, local)| permit(sqe.opcode, attached, local))
            {
                Ok(()) => self.administer(at),
                Err(status) => self.refuse(at, status),
            };
        }
        let wanted = match Self::parts(&self.queues, &mut self.shelves, io) {
            Ok((_, attached, local)) => check(&sqe, attached, local),
            Err(status) => Err(status),
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(status) => return self.refuse(at, status),
        };
        let there = io.data.bytes();
        // A host may have room for more ranges than it names.
        let is_list = matches!(sqe.opcode, opcode::DATASET_MANAGEMENT | opcode::COPY);
        if there != wanted.bytes && !(is_list && there > wanted.bytes) {
            return self.refuse(at, Status::SGL_LENGTH.dnr());
        }
        self.ios[at as usize].bytes = wanted.bytes;
        self.place(at, false)
    }

    /// A command with odd flags: it may be one of a fused pair.
    #[cold]
    fn begin_fused(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let (flags, opcode) = (io.sqe.flags, io.sqe.opcode);
        let queue = self.queues.get_mut(io.queue);
        match (flags & (FUSE | PSDT) ^ PSDT_SGL, queue) {
            (FUSE_FIRST, Some(queue)) if opcode == opcode::COMPARE => {
                queue.fused = Some(at);
                Ok(())
            }
            (FUSE_SECOND, _) if opcode == opcode::WRITE => {
                self.refuse(at, Status::MISSING_FUSED.dnr())
            }
            _ => self.refuse(at, Status::INVALID_FIELD.dnr()),
        }
    }

    /// Finds room for an I/O's data, and has it come. `has_buffers`: it has waited for them, and they are free.
    pub(super) fn place(&mut self, at: u32, has_buffers: bool) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        let in_capsule = matches!(io.data, Data::Capsule { .. });
        let in_page = in_capsule || io.bytes <= PAGE;
        // What is compared, copied or verified comes from the disk to a second place.
        let is_double = matches!(
            io.sqe.opcode,
            opcode::COMPARE | opcode::COPY | opcode::VERIFY
        );
        let needs = usize::from(!in_page) + usize::from(is_double);
        let owner = if needs == 0 {
            Owner::default()
        } else {
            let queue = self.queues.get(io.queue);
            queue.map_or(Owner::default(), |queue| queue.share.owner)
        };
        if needs != 0 && !has_buffers && !self.buffers.has(owner, needs) {
            io.step(Step::Lack);
            self.buffers.wait(at, owner, needs);
            return Ok(());
        }
        io.spot = if in_page {
            Some(Spot::Page(at))
        } else {
            self.buffers.take(owner).map(Spot::Buffer)
        };
        if is_double {
            io.second = self.buffers.take(owner);
        }
        let comes = io.sqe.direction() == crate::nvme::command::Direction::ToController;
        if comes && io.bytes != 0 && !in_capsule {
            self.fetch(at)
        } else if has_buffers {
            self.resume(at)
        } else {
            self.execute(at)
        }
    }

    /// Goes on with a command that has waited, for its data or for a buffer: what was looked at when it came may be
    /// otherwise now. Its namespace may be protected, reserved by somebody else, shorter, or another one.
    pub(super) fn resume(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let (sqe, bytes) = (io.sqe, io.bytes);
        let looked = match Self::parts(&self.queues, &mut self.shelves, io) {
            Ok((_, attached, local)) => check(&sqe, attached, local),
            Err(status) => Err(status),
        };
        match looked {
            Ok(wanted) if wanted.bytes == bytes => self.execute(at),
            // Its blocks have another size.
            Ok(_) => self.refuse(at, Status::SGL_LENGTH.dnr()),
            Err(status) => self.refuse(at, status),
        }
    }

    /// Asks the disk.
    pub(super) fn execute(&mut self, at: u32) -> Result<(), WorkerError> {
        let Self {
            ios,
            queues,
            shelves,
            memory,
            disks,
            buffers,
            ..
        } = self;
        let io = &mut ios[at as usize];
        if is_reservation(io.sqe.opcode) {
            return self.administer(at);
        }
        if let Some(partner) = io.partner {
            return self.join(at, partner);
        }
        if io.work == Work::Abandoned {
            return self.refuse(at, Status::FAILED_FUSED.dnr());
        }
        let local = match Self::parts(queues, shelves, io) {
            Ok((_, _, local)) => local,
            Err(status) => return self.refuse(at, status),
        };
        let (sqe, shift) = (io.sqe, local.namespace.shift());
        if !local.locks.is_empty()
            && io.lock.is_none()
            && local
                .locks
                .iter()
                .any(|block| super::fused::touches(&sqe, *block))
        {
            io.step(Step::Lack);
            self.locked_out.push(at);
            return Ok(());
        }
        if matches!(local.handle, Handle::Null) {
            count(&local.tally, sqe.opcode, io.bytes);
            match sqe.opcode {
                opcode::READ => {
                    // Its own place has what another host's command left there.
                    if let Some(Spot::Buffer(buffer)) = io.spot.replace(Spot::Zeros) {
                        buffers.give_back(buffer);
                    }
                    self.respond_with_data(at);
                }
                opcode::COMPARE => return self.compare_with(at, Spot::Zeros),
                _ => self.respond_with(at, Status::SUCCESS, 0),
            }
            return Ok(());
        }
        let (first, blocks) = (sqe.first_block() << shift, u64::from(sqe.blocks()) << shift);
        let spot = io.spot.unwrap_or(Spot::Page(at));
        let (region, from) = memory.at(spot);
        let buffer = &region.buffer;
        let (buffer_offset, bytes) = (from as usize, io.bytes as usize); // CAST: 32 bits fit.
        let operation = match sqe.opcode {
            opcode::READ => FileOperation::Read {
                offset: first,
                buffer,
                buffer_offset,
                bytes,
            },
            opcode::WRITE => FileOperation::Write {
                offset: first,
                buffer,
                buffer_offset,
                bytes,
                through: sqe.is_forced(),
            },
            opcode::FLUSH => FileOperation::Sync,
            opcode::WRITE_ZEROES
                if sqe.cdw12.get() & MAY_DEALLOCATE != 0
                    && local.namespace.disk().deallocates() =>
            {
                FileOperation::Deallocate {
                    offset: first,
                    bytes: blocks,
                }
            }
            opcode::WRITE_ZEROES => FileOperation::Zero {
                offset: first,
                bytes: blocks,
            },
            _ => return self.execute_steps(at),
        };
        let next = Next::of(disks.ask(&local.handle, operation, at), sqe.opcode);
        self.go_on(at, next)
    }
}

/// Counts a command that was carried out.
#[inline]
pub(super) fn count(tally: &Tally, opcode: u8, bytes: u32) {
    match opcode {
        opcode::READ | opcode::COMPARE => {
            Tally::add(&tally.reads, 1);
            Tally::add(&tally.read_bytes, bytes.into());
        }
        opcode::WRITE => {
            Tally::add(&tally.writes, 1);
            Tally::add(&tally.written_bytes, bytes.into());
        }
        _ => {}
    }
}
