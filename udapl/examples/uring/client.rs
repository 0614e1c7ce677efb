//! The client: writes every block, reads every block, and compares.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use udapl::endpoint::EpAttr;
use udapl::memory::{LmrCreated, LmrSlice, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, Qos,
    explain, ia_open,
};

use super::wire::{Command, Kind, MESSAGE, Response, SERVICE};
use super::{BLOCK, BLOCKS, DEPTH};

const PATIENCE: Duration = Duration::from_secs(60);
const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
const ESTABLISHED: u32 = ConnectionEventKind::Established.number();
/// Size of a slot in bytes: a command, a response and a block.
const SLOT: usize = 2 * MESSAGE + BLOCK;
/// Flag in the cookie of a command. The cookie of a receive is the number of its slot.
const COMMAND: u64 = 1 << 32;

pub struct Client {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    region: LmrCreated,
    local: LmrSlice,
}

impl Client {
    pub fn open(name: &str) -> Result<Self> {
        let mut ia = ia_open(name, &OpenOptions::default())?;
        let zone = ia.pz_create()?;
        let events = ia.evd_create(64, EvdFlags::CONNECTION | EvdFlags::DTO)?;
        let attr = EpAttr {
            max_rdma_read_in: 4, // the target reads what we write
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), Some(&attr))?;
        let memory = udapl::alloc(&ia, DEPTH * SLOT)?;
        let region = ia.lmr_create(memory.clone(), zone, MemPrivFlags::all())?;
        Ok(Self {
            local: ia.lmr_slice(region.lmr, 0, (DEPTH * SLOT) as u64)?,
            ia,
            events,
            ep,
            memory,
            region,
        })
    }

    /// Connects, writes and reads. Returns the number of blocks read back unchanged.
    pub fn use_blocks(&mut self, target: IpAddr) -> Result<u64> {
        let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        let ia = &mut self.ia;
        ia.ep_connect(self.ep, target, SERVICE, PATIENCE, b"", best, none)?;
        let event = self.event()?;
        ensure!(event.number() == ESTABLISHED, "no connection: {event:?}");
        self.all(Kind::Write)?;
        let good = self.all(Kind::Read)?;
        self.ia.ep_disconnect(self.ep, CloseFlags::Graceful)?;
        while !matches!(self.event()?, Event::Connection(_)) {}
        Ok(good)
    }

    fn event(&mut self) -> Result<Event> {
        Ok(self.ia.evd_wait(self.events, PATIENCE, 1)?.0)
    }

    /// Writes or reads every block once, several at a time. Returns the number of blocks with the right bytes.
    fn all(&mut self, kind: Kind) -> Result<u64> {
        let mut blocks = 0..BLOCKS;
        let (mut asked, mut good, mut at) = (0, 0, [0; DEPTH]);
        for (slot, block) in (0..DEPTH).zip(blocks.by_ref()) {
            self.ask(kind, slot, slot, block)?;
            (at[slot], asked) = (block, asked + 1);
        }
        while asked > 0 {
            let (slot, buffer) = self.answer()?;
            asked -= 1;
            let came = self.memory.read(slot * SLOT + 2 * MESSAGE, BLOCK)?;
            good += u64::from(came == pattern(at[slot]));
            if let Some(block) = blocks.next() {
                self.ask(kind, slot, buffer, block)?;
                (at[slot], asked) = (block, asked + 1);
            }
        }
        Ok(good)
    }

    fn part(&self, at: usize, bytes: usize) -> Result<LmrSlice> {
        let part = self.local.part(at as u64, bytes as u64);
        part.context("inside the memory")
    }

    /// Sends the command of a slot. First posts the response buffer of slot `buffer`, which may get the response to any
    /// command.
    fn ask(&mut self, kind: Kind, slot: usize, buffer: usize, block: u64) -> Result<()> {
        let start = slot * SLOT;
        let data = match kind {
            Kind::Write => pattern(block),
            Kind::Read => vec![0; BLOCK],
        };
        self.memory.write_from(start + 2 * MESSAGE, &data)?;
        let command = Command {
            kind,
            tag: u16::try_from(slot)?,
            block,
            place: RmrTriplet {
                rmr_context: self.region.rmr_context,
                target_address: self.region.registered_address + (start + 2 * MESSAGE) as u64,
                segment_length: BLOCK as u64,
            },
        };
        self.memory.write_from(start, &command.to_bytes())?;
        let command = self.part(start, MESSAGE)?;
        let response = self.part(buffer * SLOT + MESSAGE, MESSAGE)?;
        self.ia.batch(self.ep, |batch| {
            batch.recv(&[response], DtoCookie(buffer as u64), NO_FLAGS)?;
            batch.send(&[command], DtoCookie(COMMAND), CompletionFlags::SUPPRESS)
        })?;
        Ok(())
    }

    /// Returns the slot of the next completed command, and the buffer of its response.
    fn answer(&mut self) -> Result<(usize, usize)> {
        let Event::Dto(done) = self.event()? else {
            bail!("something else than a completion");
        };
        ensure!(done.status == DtoStatus::Success, "{}", explain(&done));
        let buffer = usize::try_from(done.cookie.0)?;
        let bytes = usize::try_from(done.transferred_length)?;
        let message = self.memory.read(buffer * SLOT + MESSAGE, bytes)?;
        let response = Response::parse(&message)?;
        let error = std::io::Error::from_raw_os_error(i32::try_from(response.error)?);
        ensure!(response.error == 0, "the target's disk: {error}");
        let slot = usize::from(response.tag);
        ensure!(slot < DEPTH, "a response to command {slot}");
        Ok((slot, buffer))
    }
}

/// Returns the contents of block `number`.
fn pattern(number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}
