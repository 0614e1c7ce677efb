//! The target: a slot for each command, a disk, and one loop.
//!
//! ```text
//!   receive posted --command--> read:   disk reads the slot's block ---> RDMA Write and Send, one doorbell --> receive posted
//!                          \--> write:  RDMA Read into the block --> disk writes it --> Send --> receive posted
//! ```

use std::fs::OpenOptions as FileOptions;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::libc::O_DIRECT;
use udapl::endpoint::EpAttr;
use udapl::memory::{Bytes, LmrSlice};
use udapl::reactor::ReactorError;
use udapl::reactor::{Clock, Completion, File, FileOperation, Instant, Reactor, RealClock};
use udapl::wait::Arm;
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DmaMemory, DtoCookie, DtoStatus, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, explain,
    ia_close, ia_open,
};

use super::wire::{Command, Kind, MESSAGE, Response, SERVICE};
use super::{BLOCK, DEPTH};

/// Number of slots: twice the number of commands, because a slot whose response is being sent cannot take a new
/// command.
const SLOTS: usize = 2 * DEPTH;

const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
/// Kinds of completions, in the low bits of a cookie. The other bits are the slot.
const RECV: u64 = 0;
const FETCHED: u64 = 1;
const SENT: u64 = 2;
const PUT: u64 = 3;

pub struct Target {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    /// Memory of the slots: a command and a response for each, then, page-aligned, the blocks.
    memory: DmaMemory,
    local: LmrSlice,
    disk: File,
    direct: bool,
    reactor: Reactor,
    /// The command in each slot.
    commands: [Option<Command>; SLOTS],
    disk_transfers: u64,
    sleeps: u64,
}

const BLOCKS_AT: usize = BLOCK;
const fn command_at(slot: usize) -> usize {
    2 * slot * MESSAGE
}
const fn response_at(slot: usize) -> usize {
    command_at(slot) + MESSAGE
}
const fn block_at(slot: usize) -> usize {
    BLOCKS_AT + slot * BLOCK
}

/// Returns the block of a slot, for the disk.
fn block_of(memory: &DmaMemory, slot: usize) -> Result<Bytes<'_>> {
    Ok(memory.bytes(block_at(slot)..block_at(slot + 1))?)
}

/// Opens the disk with O_DIRECT if possible; not every file system supports it (tmpfs does from Linux 6.6 on).
fn open_disk(path: &Path) -> Result<(File, bool)> {
    let mut options = FileOptions::new();
    options.read(true).write(true);
    match File::open_with(options.clone().custom_flags(O_DIRECT), path) {
        Ok(file) => Ok((file, true)),
        Err(ReactorError::Open { .. }) => Ok((File::open_with(&options, path)?, false)),
        Err(other) => Err(other.into()),
    }
}

impl Target {
    pub fn open(name: &str, disk: &Path) -> Result<Self> {
        let (disk, direct) = open_disk(disk)?;
        let mut ia = ia_open(name, &OpenOptions::default())?;
        let zone = ia.pz_create()?;
        let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(256, streams)?;
        let attr = EpAttr {
            max_recv_dtos: u32::try_from(SLOTS)?,
            max_request_dtos: u32::try_from(2 * SLOTS)?,
            max_rdma_read_out: 4,
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), Some(&attr))?;
        // O_DIRECT requires memory that is aligned to the disk's blocks; page alignment satisfies this.
        let bytes = BLOCKS_AT + SLOTS * BLOCK;
        let memory = udapl::memory::alloc_aligned(&ia, bytes, BLOCK)?;
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory.clone(), zone, rights)?.lmr;
        let local = ia.lmr_slice(lmr, 0, bytes as u64)?;
        ia.psp_create(SERVICE, events, PspFlags::CONSUMER)?;
        let mut reactor = Reactor::new(64)?;
        // If the system does not allow the registration, transfers work as well, but are slower.
        let _pinned = reactor.register([memory.bytes(..)?])?;
        let mut target = Self {
            ia,
            events,
            ep,
            memory,
            local,
            disk,
            direct,
            reactor,
            commands: [None; SLOTS],
            disk_transfers: 0,
            sleeps: 0,
        };
        for slot in 0..SLOTS {
            target.post_buffer(slot)?;
        }
        Ok(target)
    }

    pub fn address(&self) -> IpAddr {
        self.ia.query().ia.ia_address
    }

    /// Serves one client until it disconnects. Returns the number of disk transfers, the number of sleeps, and
    /// whether O_DIRECT was used.
    pub fn serve(mut self) -> Result<(u64, u64, bool)> {
        let mut events = [Event::NONE; 16];
        let clock = RealClock::new();
        loop {
            let taken = self.ia.evd_poll(self.events, &mut events)?;
            for event in &events[..taken] {
                if !self.take(*event)? {
                    ia_close(self.ia, CloseFlags::Abrupt)?;
                    return Ok((self.disk_transfers, self.sleeps, self.direct));
                }
            }
            while let Some(ended) = self.reactor.take_completion() {
                self.moved(&ended)?;
            }
            match self.ia.arm(&[self.events])? {
                // An event is waiting: submits and completes disk transfers without sleeping.
                Arm::Ready => self.reactor.wait_for(&[], Instant(0))?,
                Arm::Armed(armed) => {
                    let until = clock.now() + armed.timeout();
                    self.sleeps += 1;
                    self.reactor.wait_for(&[armed.as_fd()], until)?
                }
            };
        }
    }

    /// Handles an event. Returns false if the client has disconnected.
    fn take(&mut self, event: Event) -> Result<bool> {
        match event {
            Event::ConnectionRequest(request) => {
                self.ia.cr_accept(request.cr, Some(self.ep), b"")?;
            }
            Event::Connection(event) if event.kind == ConnectionEventKind::Established => {}
            Event::Connection(event) if event.kind == ConnectionEventKind::Disconnected => {
                return Ok(false);
            }
            // The client has disconnected or is doing so.
            Event::Dto(done) if done.status == DtoStatus::ErrFlushed => {}
            Event::Dto(done) => {
                ensure!(done.status == DtoStatus::Success, "{}", explain(&done));
                let slot = usize::try_from(done.cookie.0 >> 2)?;
                match done.cookie.0 & 3 {
                    RECV => self.begin(slot, usize::try_from(done.transferred_length)?)?,
                    FETCHED => self.store(slot)?,
                    SENT => self.post_buffer(slot)?,
                    _ => {}
                }
            }
            Event::Connection(_) | Event::RmrBind(_) | Event::Async(_) | Event::Software(_) => {
                bail!("an event nobody hoped for: {event:?}")
            }
        }
        Ok(true)
    }

    fn part(&self, at: usize, bytes: usize) -> Result<LmrSlice> {
        let part = self.local.part(at as u64, bytes as u64);
        part.context("inside the memory")
    }

    fn post_buffer(&mut self, slot: usize) -> Result<()> {
        let buffer = self.part(command_at(slot), MESSAGE)?;
        let cookie = DtoCookie((slot as u64) << 2 | RECV);
        Ok(self.ia.ep_post_recv(self.ep, &[buffer], cookie, NO_FLAGS)?)
    }

    /// Starts a received command.
    fn begin(&mut self, slot: usize, bytes: usize) -> Result<()> {
        let message = self.memory.read(command_at(slot), bytes)?;
        let command = Command::parse(&message)?;
        self.commands[slot] = Some(command);
        // A command moves exactly one block, at a byte offset of at most 64 bits.
        let offset = command.block.checked_mul(BLOCK as u64);
        let (Some(offset), true) = (offset, command.place.segment_length == BLOCK as u64) else {
            return self.respond(slot, nix::errno::Errno::EINVAL as u32);
        };
        match command.kind {
            Kind::Write => {
                let block = self.part(block_at(slot), BLOCK)?;
                let cookie = DtoCookie((slot as u64) << 2 | FETCHED);
                let post = &mut self.ia;
                post.ep_post_rdma_read(self.ep, &[block], cookie, &command.place, NO_FLAGS)?;
            }
            Kind::Read => {
                let read = FileOperation::read(offset, block_of(&self.memory, slot)?);
                self.reactor.submit(&self.disk, read, slot as u64)?;
            }
        }
        Ok(())
    }

    /// Writes to the disk the block that was read from the client's memory.
    fn store(&mut self, slot: usize) -> Result<()> {
        let command = self.commands[slot].context("a command")?;
        let write =
            FileOperation::write(command.block * BLOCK as u64, block_of(&self.memory, slot)?);
        self.reactor.submit(&self.disk, write, slot as u64)?;
        Ok(())
    }

    /// Handles the completion of a disk transfer.
    fn moved(&mut self, ended: &Completion) -> Result<()> {
        self.disk_transfers += 1;
        let error = match &ended.result {
            Ok(BLOCK) => 0,
            // The transfer is beyond the end of the file.
            Ok(_) => nix::errno::Errno::ENXIO as u32,
            Err(error) => error
                .raw_os_error()
                .unwrap_or(nix::libc::EIO)
                .unsigned_abs(),
        };
        let slot = usize::try_from(ended.tag)?;
        self.respond(slot, error)
    }

    /// Sends the response of a command. A block that was read is written to the client first, with the same doorbell.
    fn respond(&mut self, slot: usize, error: u32) -> Result<()> {
        let command = self.commands[slot].take().context("a command")?;
        let response = Response {
            tag: command.tag,
            error,
        };
        self.memory
            .write_from(response_at(slot), &response.to_bytes())?;
        let block = self.part(block_at(slot), BLOCK)?;
        let response = self.part(response_at(slot), MESSAGE)?;
        let cookie = (slot as u64) << 2;
        self.ia.batch(self.ep, |batch| {
            if command.kind == Kind::Read && error == 0 {
                batch.rdma_write(
                    &[block],
                    DtoCookie(cookie | PUT),
                    &command.place,
                    CompletionFlags::SUPPRESS,
                )?;
            }
            batch.send(&[response], DtoCookie(cookie | SENT), NO_FLAGS)
        })?;
        Ok(())
    }
}
