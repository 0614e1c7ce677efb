//! The passive end of `ping`, `perf` and `cmtime`: handles each connection as the active end requests.
//!
//! [`Listener::serve`] does the pending work and never waits, so that one thread can be both ends. The listener serves
//! one peer at a time, with as many connections as the peer makes. It rejects other peers meanwhile, and a peer that is
//! no datctl of this version. A peer that is silent for longer than [`PATIENCE`] is regarded as dead, which is an
//! error; an active end that needs no answers sends an empty message every 2 s.
//!
//! If the active end requests it, operations of the listener are continuously outstanding until the connection ends.
//! The listener counts them in memory that the active end reads.
//!
//! ```text
//! slots of a connection's memory:
//!   echo     4 slots for messages
//!   sink     a pool of slots for messages
//!   memory   slot 0 for the peer's Writes and Reads, slot 1 for our own Reads, the last slot for empty messages
//!   the last slot also has our count, if we have operations of our own
//! ```

use std::error::Error;
use std::net::IpAddr;
use std::time::Instant;

use udapl::connection::CrHandle;
use udapl::endpoint::EpTransport;
use udapl::event::DtoCompletion;
use udapl::{
    CompletionFlags, ConnQual, ConnectionEventKind, DtoCookie, DtoStatus, EpHandle, Event,
    OpenOptions, PspFlags,
};

use crate::adapter::{Adapter, PATIENCE, Region, deadline, unexpected};
use crate::hello::{Hello, HelloReply, Reverse, Role};

/// Limit on the bytes of the posted receives of a sink. There are at least two receives in any case.
const POOL_BYTES: u64 = 64 << 20;
/// Flags of a cookie, beside the number of the slot: an echo that we send, and an operation of our own.
const SENT: u64 = 1 << 32;
const OWN: u64 = 1 << 33;
/// Number of receives of a memory connection, for the peer's empty messages.
const EMPTY: u32 = 2;
/// Limit on the events that `Listener::serve` handles before it returns, so that an active end in the same thread runs.
/// On a simulated function our own operations may complete as fast as they are posted. Without a limit, such an active
/// end would never run.
const EVENTS_PER_CALL: usize = 4;

/// The passive end.
pub(crate) struct Listener {
    adapter: Adapter,
    simulated: bool,
    /// Address of the peer that is served; `None` before there is one.
    peer: Option<IpAddr>,
    sessions: Vec<Session>,
    /// Number of connections that the peer announced and has not requested yet; `None` before the first request.
    expected: Option<u16>,
    answered: u64,
    /// Time after which the peer, if there is one and it stays silent, is regarded as dead.
    deadline: Instant,
}

struct Session {
    ep: EpHandle,
    region: Option<Region>,
    role: Role,
    bytes: usize,
    depth: u32,
    /// Number of EVD entries for the events of the connection.
    events: u32,
    reverse: Option<Reverse>,
    /// Number of our own operations that have completed.
    done: u64,
}

impl Session {
    /// Returns the slot that holds the count and receives the empty messages.
    fn last(region: &Region) -> usize {
        region.slots() - 1
    }
}

impl Listener {
    pub(crate) fn open(
        name: &str,
        options: &OpenOptions,
        qualifier: u64,
    ) -> Result<Self, Box<dyn Error>> {
        Self::on(Adapter::open(name, options)?, qualifier)
    }

    /// Creates a passive end on an adapter that is open.
    pub(crate) fn on(mut adapter: Adapter, qualifier: u64) -> Result<Self, Box<dyn Error>> {
        let events = adapter.events;
        adapter
            .ia
            .psp_create(ConnQual(qualifier), events, PspFlags::CONSUMER)?;
        Ok(Self {
            simulated: adapter.is_simulated(),
            adapter,
            peer: None,
            sessions: Vec::new(),
            expected: None,
            answered: 0,
            deadline: deadline(),
        })
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.adapter.address()
    }

    /// Returns the number of messages that were echoed.
    pub(crate) const fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns true if the last announced connection was made and all connections have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.expected == Some(0) && self.sessions.is_empty()
    }

    /// Returns true if a peer is connected.
    pub(crate) const fn has_session(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Handles at most `EVENTS_PER_CALL` pending events. Returns false if there was none.
    pub(crate) fn serve(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut busy = false;
        for _ in 0..EVENTS_PER_CALL {
            let Some(event) = self.adapter.poll()? else {
                break;
            };
            self.handle(&event)?;
            busy = true;
        }
        Ok(busy)
    }

    /// Serves until the peer has ended all connections that it announced. Waits for the first peer without limit.
    pub(crate) fn run(&mut self) -> Result<(), Box<dyn Error>> {
        while !self.is_done() {
            if self.serve()? {
                continue;
            }
            if let Some(event) = self.adapter.sleep(PATIENCE / 10)? {
                self.handle(&event)?;
            } else if self.expected.is_some() && Instant::now() > self.deadline {
                return Err(format!(
                    "nothing was heard of the peer for {} s; it is gone",
                    PATIENCE.as_secs()
                )
                .into());
            }
        }
        Ok(())
    }

    pub(crate) fn close(self) -> Result<(), Box<dyn Error>> {
        self.adapter.close()
    }

    fn handle(&mut self, event: &Event) -> Result<(), Box<dyn Error>> {
        self.deadline = deadline();
        if let Event::ConnectionRequest(request) = event {
            return self.requested(request.cr);
        }
        if let Event::Dto(done) = event {
            return self.completed(done);
        }
        let Event::Connection(change) = event else {
            return Err(unexpected(event, "a message"));
        };
        let Some(at) = self.sessions.iter().position(|it| it.ep == change.ep) else {
            return Ok(());
        };
        if change.kind == ConnectionEventKind::Established {
            return self.begin(at);
        }
        let session = self.sessions.remove(at);
        let ended = self.adapter.instead_of(session.ep, "a disconnect", event);
        match &session.region {
            Some(region) => self.adapter.release(session.ep, region)?,
            None => self.adapter.ia.ep_free(session.ep)?,
        }
        if self.sessions.is_empty() && self.expected == Some(0) {
            self.peer = None;
        }
        if change.kind == ConnectionEventKind::Disconnected {
            Ok(())
        } else {
            Err(ended)
        }
    }

    fn requested(&mut self, cr: CrHandle) -> Result<(), Box<dyn Error>> {
        let request = self.adapter.ia.cr_query(cr)?;
        let (peer, hello) = (
            request.remote_ia_address,
            Hello::decode(request.private_data),
        );
        let Some((hello, requests, receives)) = hello.and_then(|hello| self.takes(peer, hello))
        else {
            tracing::warn!(%peer, "turned away: busy, or it asks for what this datctl does not know");
            return Ok(self.adapter.ia.cr_reject(cr)?);
        };
        let slots = match hello.role {
            Role::Echo | Role::Sink => receives,
            Role::Memory => 1 + u32::from(hello.reverse.is_some_and(|reverse| reverse.reads)),
            Role::Nothing => 0,
        };
        let ep = self.adapter.endpoint(requests, receives)?;
        if hello.role != Role::Nothing {
            self.adapter.set_transport(ep, &EpTransport::default())?;
        }
        let bytes = usize::try_from(hello.bytes)?;
        let region = match hello.role {
            Role::Nothing => None,
            Role::Echo | Role::Sink | Role::Memory => {
                // The slots are multiples of 8 bytes, because the peer reads the count as one number.
                let slot_bytes = bytes.next_multiple_of(8);
                let last = hello.role == Role::Memory || hello.reverse.is_some();
                Some(
                    self.adapter
                        .region(slots as usize + usize::from(last), slot_bytes)?,
                )
            }
        };
        let mut reply = HelloReply {
            memory: udapl::memory::RmrTriplet {
                rmr_context: 0,
                target_address: 0,
                segment_length: hello.bytes,
            },
            count: 0,
            simulated: self.simulated,
        };
        if let Some(region) = &region {
            if hello.role == Role::Memory {
                region.memory.write_from(0, &pattern(MEMORY_SEED, bytes))?;
            }
            let last = Session::last(region);
            region.memory.write_from(region.offset(last), &[0; 8])?;
            reply.memory = region.remote(0);
            reply.count = region.remote(last).target_address;
        }
        self.sessions.push(Session {
            ep,
            region,
            role: hello.role,
            bytes,
            depth: hello.depth,
            events: requests + receives,
            reverse: hello.reverse,
            done: 0,
        });
        let at = self.sessions.len() - 1;
        for slot in 0..receives as usize {
            if hello.role != Role::Nothing {
                self.receive(at, slot)?;
            }
        }
        self.peer = Some(peer);
        // Requests that are sent at once may arrive in any order, so the smallest announced number counts.
        let before = self.expected.filter(|_| self.sessions.len() > 1);
        self.expected = Some(before.map_or(hello.more, |before| before.min(hello.more)));
        Ok(self.adapter.ia.cr_accept(cr, Some(ep), &reply.encode())?)
    }

    /// Checks whether the listener can serve the request. Returns the request, and the number of requests and receives
    /// that the endpoint needs. `None` if it cannot.
    pub(crate) fn takes(&self, peer: IpAddr, hello: Hello) -> Option<(Hello, u32, u32)> {
        let most = self.adapter.most_dtos();
        if hello.depth > most {
            return None;
        }
        // While a peer is connected, only that peer may make another connection.
        if self.has_session() && self.peer != Some(peer) {
            return None;
        }
        let receives = match hello.role {
            Role::Echo => 4,
            Role::Sink => {
                let fit = u32::try_from(POOL_BYTES / hello.bytes).unwrap_or(u32::MAX);
                hello.depth.saturating_mul(2).min(fit).clamp(2, most)
            }
            Role::Memory => EMPTY,
            Role::Nothing => 1,
        };
        let requests = match (hello.role, hello.reverse) {
            (Role::Echo, _) => receives,
            (_, Some(_)) => hello.depth,
            (_, None) => 1,
        };
        let reserved_events: u32 = self.sessions.iter().map(|session| session.events).sum();
        // An eighth of the EVD's entries is reserved for connection events.
        let room = reserved_events + requests + receives <= self.adapter.most_events / 8 * 7;
        room.then_some((hello, requests, receives))
    }

    fn receive(&mut self, at: usize, slot: usize) -> Result<(), Box<dyn Error>> {
        let session = &self.sessions[at];
        let Some(region) = &session.region else {
            return Ok(());
        };
        let place = match session.role {
            Role::Memory => region.local(Session::last(region), 8),
            Role::Echo | Role::Sink | Role::Nothing => region.local(slot, region.offset(1)),
        };
        self.adapter.ia.ep_post_recv(
            session.ep,
            &[place],
            DtoCookie(slot as u64),
            CompletionFlags::empty(),
        )?;
        Ok(())
    }

    /// Begins the listener's own operations on a connection, if the peer requested them.
    fn begin(&mut self, at: usize) -> Result<(), Box<dyn Error>> {
        if self.sessions[at].reverse.is_none() {
            return Ok(());
        }
        for _ in 0..self.sessions[at].depth {
            self.act(at)?;
        }
        Ok(())
    }

    /// Posts one of the listener's own operations.
    fn act(&mut self, at: usize) -> Result<(), Box<dyn Error>> {
        let session = &self.sessions[at];
        let (Some(reverse), Some(region)) = (session.reverse, &session.region) else {
            return Ok(());
        };
        let (ep, bytes, flags) = (session.ep, session.bytes, CompletionFlags::empty());
        let (from, into) = (region.local(0, bytes), region.local(1, bytes));
        let cookie = DtoCookie(OWN);
        let ia = &mut self.adapter.ia;
        Ok(match (session.role, reverse.reads) {
            (Role::Memory, false) => {
                ia.ep_post_rdma_write(ep, &[from], cookie, &reverse.memory, flags)
            }
            (Role::Memory, true) => {
                ia.ep_post_rdma_read(ep, &[into], cookie, &reverse.memory, flags)
            }
            (Role::Echo | Role::Sink | Role::Nothing, _) => {
                ia.ep_post_send(ep, &[from], cookie, flags)
            }
        }?)
    }

    fn completed(&mut self, done: &DtoCompletion) -> Result<(), Box<dyn Error>> {
        // Flushed DTOs belong to a connection whose end is reported separately.
        let at = self.sessions.iter().position(|it| it.ep == done.ep);
        let Some(at) = at.filter(|_| done.status != DtoStatus::ErrFlushed) else {
            return Ok(());
        };
        if done.cookie == DtoCookie(OWN) {
            // If the peer disconnects while our operations are outstanding, a connection event reports it.
            if done.status == DtoStatus::Success {
                self.counted(at)?;
            }
            return Ok(());
        }
        if done.status != DtoStatus::Success {
            return Err(self.adapter.dto_failed(done));
        }
        let slot = usize::try_from(done.cookie.0 & (SENT - 1))?;
        if done.cookie.0 & SENT != 0 || self.sessions[at].role != Role::Echo {
            return self.receive(at, slot);
        }
        let Some(region) = &self.sessions[at].region else {
            return Ok(());
        };
        let back = region.local(slot, usize::try_from(done.transferred_length)?);
        let cookie = DtoCookie(done.cookie.0 | SENT);
        self.answered += 1;
        Ok(self
            .adapter
            .ia
            .ep_post_send(done.ep, &[back], cookie, CompletionFlags::empty())?)
    }

    /// Counts one of our own operations that has completed, and posts the next one.
    fn counted(&mut self, at: usize) -> Result<(), Box<dyn Error>> {
        let session = &mut self.sessions[at];
        session.done += 1;
        if let Some(region) = &session.region {
            let count = session.done.to_be_bytes();
            let place = region.offset(Session::last(region));
            region.memory.write_from(place, &count)?;
        }
        if let Err(refused) = self.act(at) {
            // The peer has disconnected; the next event reports it.
            tracing::debug!(%refused, "no more of our own");
        }
        Ok(())
    }
}

/// Seed of the initial contents of the passive end's memory.
pub(crate) const MEMORY_SEED: u32 = 0x5eed;

/// Returns bytes that differ by position and by seed.
pub(crate) fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| {
            // This is a linear congruential generator. Its high byte is the most random one.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}
