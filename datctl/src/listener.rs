//! The passive end of `ping` and `perf`: does on each connection what the active end asks for.
//!
//! It never waits by itself: [`Listener::serve`] does what there is to do, so that one thread can be both ends. A peer
//! that does not speak our language is turned away and the listener goes on. A peer that falls silent for
//! longer than [`PATIENCE`] has died, and that is an error; an active end in no need of answers sends an empty message
//! now and then.

use std::error::Error;
use std::net::IpAddr;
use std::time::Instant;

use udapl::{
    CompletionFlags, ConnQual, ConnectionEventKind, CrHandle, DtoCompletion, DtoCookie, DtoStatus,
    EpHandle, Event, OpenOptions, PspFlags,
};

use crate::adapter::{Adapter, PATIENCE, Region, deadline, dto_failed, unexpected};
use crate::hello::{Hello, Role, encode_memory};

/// Bytes of receives that are posted at a time, at most; but two messages in any case.
const POOL_BYTES: u64 = 64 << 20;
/// Cookies: the slot, and this for what we send.
const SENT: u64 = 1 << 32;

/// The passive end.
pub(crate) struct Listener {
    adapter: Adapter,
    session: Option<Session>,
    /// Connections that were announced.
    expected: Option<u8>,
    answered: u64,
    /// When the peer, if there is one, has been silent for too long.
    deadline: Instant,
}

struct Session {
    ep: EpHandle,
    region: Region,
    role: Role,
    more: u8,
}

impl Listener {
    pub(crate) fn open(
        name: &str,
        options: &OpenOptions,
        qualifier: u64,
    ) -> Result<Self, Box<dyn Error>> {
        Self::on(Adapter::open(name, options)?, qualifier)
    }

    /// On an adapter that is open.
    pub(crate) fn on(mut adapter: Adapter, qualifier: u64) -> Result<Self, Box<dyn Error>> {
        let events = adapter.events;
        adapter
            .ia
            .psp_create(ConnQual(qualifier), events, PspFlags::CONSUMER)?;
        Ok(Self {
            adapter,
            session: None,
            expected: None,
            answered: 0,
            deadline: deadline(),
        })
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.adapter.address()
    }

    /// Messages that were sent back.
    pub(crate) const fn answered(&self) -> u64 {
        self.answered
    }

    /// The last connection that was announced has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.expected == Some(0) && self.session.is_none()
    }

    /// Somebody is connected.
    pub(crate) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Does what there is to do. False: nothing was.
    pub(crate) fn serve(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut busy = false;
        while let Some(event) = self.adapter.poll()? {
            self.handle(&event)?;
            busy = true;
        }
        Ok(busy)
    }

    /// Serves until the peer has done all it announced. Waits for a first peer for as long as it takes.
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
        let current = self.session.as_ref().is_some_and(|it| it.ep == change.ep);
        if !current || change.kind == ConnectionEventKind::Established {
            return Ok(());
        }
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        self.adapter.release(session.ep, &session.region)?;
        if change.kind == ConnectionEventKind::Disconnected {
            self.expected = Some(session.more);
            Ok(())
        } else {
            Err(unexpected(event, "a disconnect"))
        }
    }

    fn requested(&mut self, cr: CrHandle) -> Result<(), Box<dyn Error>> {
        let request = self.adapter.ia.cr_query(cr)?;
        let (peer, hello) = (
            request.remote_ia_address,
            Hello::decode(request.private_data),
        );
        let most = self.adapter.most_dtos();
        let Some(hello) = hello.filter(|hello| self.session.is_none() && hello.depth <= most)
        else {
            tracing::warn!(%peer, "turned away: busy, or it asks for what this datctl does not know");
            return Ok(self.adapter.ia.cr_reject(cr)?);
        };
        let slots = match hello.role {
            Role::Echo => 4,
            Role::Sink => {
                let fit = u32::try_from(POOL_BYTES / hello.bytes).unwrap_or(u32::MAX);
                hello.depth.saturating_mul(2).min(fit).clamp(2, most)
            }
            // The first is what the peer writes and reads; the others take its empty messages.
            Role::Memory => 3,
        };
        let slot_bytes = usize::try_from(hello.bytes)?;
        let ep = self.adapter.endpoint(slots, slots)?;
        let region = self.adapter.region(slots as usize, slot_bytes)?;
        let first = match hello.role {
            Role::Echo | Role::Sink => 0,
            Role::Memory => {
                let data = pattern(MEMORY_SEED, slot_bytes);
                region.memory.write_from(0, &data)?;
                1
            }
        };
        let told = encode_memory(&region.remote(0));
        self.session = Some(Session {
            ep,
            region,
            role: hello.role,
            more: hello.more,
        });
        for slot in first..slots as usize {
            self.receive(slot)?;
        }
        self.expected = Some(hello.more.saturating_add(1));
        Ok(self.adapter.ia.cr_accept(cr, Some(ep), &told)?)
    }

    fn receive(&mut self, slot: usize) -> Result<(), Box<dyn Error>> {
        if let Some(session) = &self.session {
            let place = session.region.local(slot, session.region.offset(1));
            self.adapter.ia.ep_post_recv(
                session.ep,
                &[place],
                DtoCookie(slot as u64),
                CompletionFlags::empty(),
            )?;
        }
        Ok(())
    }

    fn completed(&mut self, done: &DtoCompletion) -> Result<(), Box<dyn Error>> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        // What was flushed belongs to a connection whose end is told separately.
        if done.ep != session.ep || done.status == DtoStatus::ErrFlushed {
            return Ok(());
        }
        if done.status != DtoStatus::Success {
            return Err(dto_failed(done));
        }
        let slot = usize::try_from(done.cookie.0 & (SENT - 1))?;
        if done.cookie.0 & SENT != 0 || session.role != Role::Echo {
            return self.receive(slot);
        }
        let back = session
            .region
            .local(slot, usize::try_from(done.transferred_length)?);
        let cookie = DtoCookie(done.cookie.0 | SENT);
        self.answered += 1;
        Ok(self
            .adapter
            .ia
            .ep_post_send(session.ep, &[back], cookie, CompletionFlags::empty())?)
    }
}

/// The seed of what the passive end's memory holds at first.
pub(crate) const MEMORY_SEED: u32 = 0x5eed;

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| {
            // A linear congruential generator; its high byte is its best.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}
