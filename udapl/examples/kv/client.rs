//! A thread of clients: an instance with several connections, which send requests in turn. One request of the thread is
//! in flight at a time.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use udapl::endpoint::EpAttr;
use udapl::memory::{LmrSlice, PzHandle, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, Qos, explain,
    ia_close,
};

use super::values::{KEYS, MESSAGE, Message, SLOT, VALUE, Value, What, whole};
use super::{CLIENTS, REQUESTS, SERVICE};

const PATIENCE: Duration = Duration::from_secs(60);
const NO_FLAGS: CompletionFlags = CompletionFlags::empty();
/// Maximum number of attempts to read one value.
const TRIES: u32 = 1_000;

/// Counters of requests.
#[derive(Debug, Default)]
pub struct Asked {
    pub puts: u64,
    pub gets: u64,
    pub reads: u64,
    /// Number of reads that found a half-written value.
    pub torn: u64,
}

impl Asked {
    pub fn add(&mut self, other: &Self) {
        self.puts += other.puts;
        self.gets += other.gets;
        self.reads += other.reads;
        self.torn += other.torn;
    }
}

/// A connection with its memory: a request, a response, and a slot for reads.
struct Client {
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    local: LmrSlice,
    /// RMR triplet of the values in the server's memory.
    values: RmrTriplet,
}

/// Connects, sends requests, and checks the responses.
pub fn use_values(mut ia: Ia, thread: u64, server: IpAddr) -> Result<Asked> {
    let zone = ia.pz_create()?;
    let clients = (0..CLIENTS).map(|_| Client::connect(&mut ia, zone, server));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    let mut asked = Asked::default();
    for turn in 0..REQUESTS {
        for (number, client) in (0..).zip(&mut clients) {
            // All clients write every key, so that values change while others read them.
            let who = thread * CLIENTS as u64 + number;
            let key = u32::try_from((turn * 7 + who) % u64::from(KEYS))?;
            match turn % 4 {
                0 => {
                    client.ask(&mut ia, What::Put, key, written(key, who, turn))?;
                    asked.puts += 1;
                }
                1 => {
                    let got = client.ask(&mut ia, What::Get, key, [0; VALUE])?;
                    ensure!(is_sound(key, &got), "key {key}: {got:02x?}");
                    asked.gets += 1;
                }
                _ => {
                    let got = client.read(&mut ia, key, &mut asked)?;
                    ensure!(is_sound(key, &got), "key {key}: {got:02x?}");
                }
            }
        }
    }
    for client in clients {
        ia.ep_disconnect(client.ep, CloseFlags::Graceful)?;
        while !matches!(client.event(&mut ia)?, Event::Connection(_)) {}
    }
    ia_close(ia, CloseFlags::Abrupt)?;
    Ok(asked)
}

/// Returns a new value: the key, the client's number and a sequence number, repeated.
fn written(key: u32, who: u64, turn: u64) -> Value {
    let word = u64::from(key) << 32 | who << 16 | turn | 1 << 63;
    let mut value = [0; VALUE];
    for chunk in value.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_be_bytes());
    }
    value
}

/// Returns whether the value is the initial one, or whole and of this key. Does not check which client wrote it, or
/// when.
fn is_sound(key: u32, value: &Value) -> bool {
    let (words, _) = value.as_chunks::<8>();
    let first = u64::from_be_bytes(words[0]);
    let of_key = first >> 32 == u64::from(key | 1 << 31);
    words.iter().all(|word| *word == words[0]) && (first == 0 || of_key)
}

impl Client {
    fn connect(ia: &mut Ia, zone: PzHandle, server: IpAddr) -> Result<Self> {
        let events = ia.evd_create(16, EvdFlags::CONNECTION | EvdFlags::DTO)?;
        let attr = EpAttr {
            max_rdma_read_out: 4,
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), Some(&attr))?;
        let bytes = 2 * MESSAGE + SLOT;
        let memory = udapl::alloc(ia, bytes)?;
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory.clone(), zone, rights)?.lmr;
        let local = ia.lmr_slice(lmr, 0, bytes as u64)?;
        let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        ia.ep_connect(ep, server, SERVICE, PATIENCE, b"", best, none)?;
        let (event, _) = ia.evd_wait(events, PATIENCE, 1)?;
        ensure!(
            event.number() == ConnectionEventKind::Established.number(),
            "no connection: {event:?}"
        );
        let place = ia.ep_private_data(ep)?;
        Ok(Self {
            values: RmrTriplet::from_bytes(place).context("where values are")?,
            events,
            ep,
            memory,
            local,
        })
    }

    fn event(&self, ia: &mut Ia) -> Result<Event> {
        Ok(ia.evd_wait(self.events, PATIENCE, 1)?.0)
    }

    fn part(&self, at: usize, bytes: usize) -> Result<LmrSlice> {
        let part = self.local.part(at as u64, bytes as u64);
        part.context("inside the memory")
    }

    /// Waits for the next completion, which must be a success.
    fn success(&self, ia: &mut Ia) -> Result<()> {
        let Event::Dto(done) = self.event(ia)? else {
            bail!("something else than a completion");
        };
        ensure!(done.status == DtoStatus::Success, "{}", explain(&done));
        Ok(())
    }

    /// Sends a request and returns the value in the response.
    fn ask(&self, ia: &mut Ia, what: What, key: u32, value: Value) -> Result<Value> {
        let message = Message { what, key, value };
        self.memory.write_from(0, &message.to_bytes())?;
        let (request, answer) = (self.part(0, MESSAGE)?, self.part(MESSAGE, MESSAGE)?);
        ia.batch(self.ep, |batch| {
            batch.recv(&[answer], DtoCookie(1), NO_FLAGS)?;
            batch.send(&[request], DtoCookie(2), CompletionFlags::SUPPRESS)
        })?;
        self.success(ia)?;
        let answer = Message::parse(&self.memory.read(MESSAGE, MESSAGE)?)?;
        ensure!(answer.key == key && answer.what == what, "{answer:?}");
        Ok(answer.value)
    }

    /// Reads a value from the server's memory. Repeats the read until the checksum matches, at most [`TRIES`] times.
    fn read(&self, ia: &mut Ia, key: u32, asked: &mut Asked) -> Result<Value> {
        let slot = self.part(2 * MESSAGE, SLOT)?;
        let mut place = self.values;
        place.target_address += u64::from(key) * SLOT as u64;
        place.segment_length = SLOT as u64;
        for _ in 0..TRIES {
            ia.ep_post_rdma_read(self.ep, &[slot], DtoCookie(3), &place, NO_FLAGS)?;
            self.success(ia)?;
            asked.reads += 1;
            match whole(&self.memory.read(2 * MESSAGE, SLOT)?) {
                Some(value) => return Ok(value),
                None => asked.torn += 1,
            }
        }
        bail!("key {key} was being written {TRIES} times")
    }
}
