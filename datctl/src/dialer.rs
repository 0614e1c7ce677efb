//! The active end of `ping`, `perf` and `cmtime`: connects, and waits for its events.
//!
//! A wait polls `POLLS` times before it sleeps, because on hardware most events arrive sooner than a sleep ends. If the
//! passive end is in this process too ([`Dialer::beside`]), the passive end handles its events between the polls.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use udapl::endpoint::EpTransport;
use udapl::event::DtoCompletion;
use udapl::memory::RmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpHandle, Event, OpenOptions, Qos, Timeout,
};

use crate::adapter::{Adapter, PATIENCE, Region, deadline, unexpected};
use crate::hello::{Hello, HelloReply, Reverse, Role};
use crate::listener::Listener;

/// Number of polls before the first sleep.
const POLLS: u32 = 2_000;
/// The longest sleep. The passive end, if it is in this process, makes progress between two sleeps.
const SLEEP: Duration = Duration::from_millis(1);
/// Interval of keep-alive messages to a peer that only provides memory.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Cookie of the empty keep-alive message to the peer.
const KEEP_ALIVE_COOKIE: u64 = u64::MAX;
/// Cookie of a receive for a message of the peer's own operations ([`Reverse`]).
const REVERSE_COOKIE: u64 = u64::MAX - 1;

/// The active end.
pub(crate) struct Dialer {
    pub(crate) adapter: Adapter,
    listener: Option<Listener>,
    sessions: Vec<Session>,
}

struct Session {
    ep: EpHandle,
    region: Region,
    reply: HelloReply,
    /// Slot of the receives for messages of the peer's own operations; `None` if it sends none.
    inbox: Option<usize>,
    /// Time of the next keep-alive message; `None` if the peer needs none.
    next_keep_alive: Option<Instant>,
}

impl Dialer {
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Self, Box<dyn Error>> {
        Ok(Self::on(Adapter::open(name, options)?))
    }

    /// Creates an active end on an adapter that is open.
    pub(crate) const fn on(adapter: Adapter) -> Self {
        Self {
            adapter,
            listener: None,
            sessions: Vec::new(),
        }
    }

    /// Adds the passive end, in the same process and thread.
    pub(crate) fn beside(self, listener: Listener) -> Self {
        Self {
            listener: Some(listener),
            ..self
        }
    }

    /// Makes a connection, which is the next lane (lanes are the existing connections, counted from 0). Our side gets
    /// `slots` slots of memory, each for the longest message. The last slot is for the peer's own operations, if any.
    pub(crate) fn connect(
        &mut self,
        peer: IpAddr,
        qualifier: u64,
        hello: &Hello,
        slots: usize,
    ) -> Result<(), Box<dyn Error>> {
        let (requests, most) = (self.requests(hello.depth)?, self.adapter.most_dtos());
        // A passive end in this thread sends several messages for each event that we take. On a simulated function a
        // message without a receive would wait for virtual time, which does not advance meanwhile.
        let receives = match self.listener {
            Some(_) if hello.reverse.is_some() => (requests * 6).min(most),
            Some(_) | None => requests,
        };
        let lanes = u32::try_from(self.sessions.len())? + 1;
        self.check_events(lanes, hello.depth, requests + receives)?;
        let ep = self.adapter.endpoint(requests, receives)?;
        self.adapter.set_transport(ep, &EpTransport::default())?;
        let region = {
            // A slot has at least 8 bytes, the size of the peer's count.
            let slot_bytes = usize::try_from(hello.bytes)?.next_multiple_of(8);
            self.adapter.region(slots, slot_bytes)?
        };
        let inbox = hello.reverse.map(|_| slots.saturating_sub(1));
        let inbox = inbox.filter(|_| hello.role == Role::Sink);
        // The receives are posted before the peer can send: a message without a receive waits for the RNR timer.
        for _ in 0..inbox.map_or(0, |_| receives) {
            self.receive(ep, &region, inbox)?;
        }
        let hello = &Hello {
            reverse: hello.reverse.map(|reverse| Reverse {
                memory: region.remote(slots.saturating_sub(1)),
                ..reverse
            }),
            ..*hello
        };
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        let begun = self.adapter.ia.ep_connect(
            ep,
            peer,
            ConnQual(qualifier),
            patience,
            &hello.encode(),
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        );
        begun.map_err(|error| self.adapter.unreachable_error(peer, &error))?;
        let event = loop {
            let event = self.next()?;
            // The peer may already send on earlier lanes.
            let aside = match &event {
                Event::Dto(done) if done.status == DtoStatus::Success => self.is_internal(done)?,
                // Flushes of an earlier connection may be reported after its end.
                Event::Dto(done) if done.status == DtoStatus::ErrFlushed => {
                    let ours = |session: &Session| session.ep == done.ep;
                    done.ep != ep && !self.sessions.iter().any(ours)
                }
                Event::Dto(_)
                | Event::RmrBind(_)
                | Event::ConnectionRequest(_)
                | Event::Connection(_)
                | Event::Async(_)
                | Event::Software(_) => false,
            };
            if !aside {
                break event;
            }
        };
        let up = matches!(&event, Event::Connection(event) if event.kind == ConnectionEventKind::Established);
        if !up {
            return Err(unexpected(&event, &format!("a connection to {peer}")));
        }
        let said = self.adapter.ia.ep_private_data(ep)?;
        let reply =
            HelloReply::decode(said).filter(|reply| reply.memory.segment_length >= hello.bytes);
        let reply = reply.ok_or_else(|| {
            format!("{peer} answers, but not as a datctl of this version: {said:02x?}")
        })?;
        self.sessions.push(Session {
            ep,
            region,
            reply,
            inbox,
            // Only a memory peer gets keep-alive messages. An echo peer would send the empty message back, and we would
            // mistake it for an echo that is being measured.
            next_keep_alive: (hello.role == Role::Memory)
                .then(|| Instant::now() + KEEP_ALIVE_INTERVAL),
        });
        Ok(())
    }

    /// Adds a connection that was made elsewhere as the next lane, with our region and the peer's memory.
    pub(crate) fn adopt(&mut self, ep: EpHandle, region: Region, memory: RmrTriplet) {
        let reply = HelloReply {
            memory,
            count: 0,
            simulated: false,
        };
        self.sessions.push(Session {
            ep,
            region,
            reply,
            inbox: None,
            next_keep_alive: None,
        });
    }

    /// Sets the RMR context and address of a lane's peer memory, if the peer sent them after the connection was made.
    // PANIC: only a bug in datctl names a lane that does not exist.
    pub(crate) fn redirect(&mut self, lane: usize, rmr_context: u32, target_address: u64) {
        let session = self.sessions.get_mut(lane).expect("a connection");
        session.reply.memory.rmr_context = rmr_context;
        session.reply.memory.target_address = target_address;
    }

    /// Removes all lanes and returns them. The caller must end their connections.
    pub(crate) fn take_lanes(&mut self) -> Vec<(EpHandle, Region)> {
        let sessions = std::mem::take(&mut self.sessions);
        let pairs = sessions.into_iter().map(|it| (it.ep, it.region));
        pairs.collect()
    }

    /// Returns the number of requests that an endpoint needs for this depth, or an error if the adapter allows fewer.
    pub(crate) fn requests(&self, depth: u32) -> Result<u32, String> {
        let most = self.adapter.most_dtos();
        // Two more requests: one for the keep-alive message, one to read the peer's count.
        let requests = depth.saturating_add(2);
        if requests > most {
            return Err(format!(
                "a depth of {depth}; the adapter can do {}",
                most - 2
            ));
        }
        Ok(requests)
    }

    /// Checks that the EVD holds the events of `lanes` endpoints with `of_each` events each.
    pub(crate) fn check_events(&self, lanes: u32, depth: u32, of_each: u32) -> Result<(), String> {
        let most = self.adapter.most_events;
        if lanes.saturating_mul(of_each) > most {
            return Err(format!(
                "{lanes} endpoints with a depth of {depth}: {most} events are all that one EVD has here"
            ));
        }
        Ok(())
    }

    /// Returns the endpoint of the only connection, our region, and the peer's memory.
    pub(crate) fn session(&self) -> (EpHandle, &Region, RmrTriplet) {
        let (ep, region, reply) = self.lane(0);
        (ep, region, reply.memory)
    }

    /// Returns a lane's endpoint, our region, and the peer's private data.
    // PANIC: only a bug in datctl names a lane that does not exist.
    pub(crate) fn lane(&self, lane: usize) -> (EpHandle, &Region, HelloReply) {
        let session = self.sessions.get(lane).expect("a connection");
        (session.ep, &session.region, session.reply)
    }

    /// Posts a receive for a message of the peer's own operations, if the peer sends such messages.
    fn receive(
        &mut self,
        ep: EpHandle,
        region: &Region,
        inbox: Option<usize>,
    ) -> Result<(), Box<dyn Error>> {
        let Some(inbox) = inbox else {
            return Ok(());
        };
        let place = region.local(inbox, region.offset(1));
        let (cookie, flags) = (DtoCookie(REVERSE_COOKIE), CompletionFlags::empty());
        Ok(self.adapter.ia.ep_post_recv(ep, &[place], cookie, flags)?)
    }

    /// Returns the next event; an error if there is none within `PATIENCE`. The passive end, if it is in this process,
    /// handles its events meanwhile.
    pub(crate) fn next(&mut self) -> Result<Event, Box<dyn Error>> {
        let (mut polls, mut give_up) = (0, None);
        loop {
            if let Some(event) = self.adapter.poll()? {
                return Ok(event);
            }
            if let Some(listener) = &mut self.listener
                && listener.serve()?
            {
                continue;
            }
            polls += 1;
            if polls < POLLS {
                continue;
            }
            if let Some(event) = self.adapter.sleep(SLEEP)? {
                return Ok(event);
            }
            if Instant::now() > *give_up.get_or_insert_with(deadline) {
                return Err(format!("no event for {} s", PATIENCE.as_secs()).into());
            }
        }
    }

    /// Lets the passive end, if it is in this process, handle its events, so that it reposts receives in time.
    pub(crate) fn serve_listener(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(listener) = &mut self.listener {
            listener.serve()?;
        }
        Ok(())
    }

    /// Returns the next completion of our own DTOs, or an error if the DTO failed.
    pub(crate) fn completed(&mut self) -> Result<DtoCompletion, Box<dyn Error>> {
        loop {
            let event = self.next()?;
            let Event::Dto(done) = event else {
                if let Event::Connection(change) = &event {
                    let ep = change.ep;
                    return Err(self.adapter.instead_of(ep, "a completion", &event));
                }
                return Err(unexpected(&event, "a completion"));
            };
            if done.status != DtoStatus::Success {
                return Err(self.adapter.dto_failed(&done));
            }
            if !self.is_internal(&done)? {
                return Ok(done);
            }
        }
    }

    /// Returns true if the completion belongs to no DTO of the caller, but to a keep-alive message, or to a message of
    /// the peer's own operations. Posts the receive of such a message again.
    fn is_internal(&mut self, done: &DtoCompletion) -> Result<bool, Box<dyn Error>> {
        if done.cookie == DtoCookie(REVERSE_COOKIE) {
            let Some(session) = self.sessions.iter().find(|it| it.ep == done.ep) else {
                return Ok(true);
            };
            let place = session.inbox.map(|inbox| {
                let region = &session.region;
                region.local(inbox, region.offset(1))
            });
            if let Some(place) = place {
                let (cookie, flags) = (done.cookie, CompletionFlags::empty());
                self.adapter
                    .ia
                    .ep_post_recv(done.ep, &[place], cookie, flags)?;
            }
            return Ok(true);
        }
        Ok(done.cookie == DtoCookie(KEEP_ALIVE_COOKIE))
    }

    /// Sends a keep-alive message on each connection to a memory peer whose next keep-alive message is due.
    pub(crate) fn send_keep_alives(&mut self) -> Result<(), Box<dyn Error>> {
        let now = Instant::now();
        let quiet = |session: &&mut Session| session.next_keep_alive.is_some_and(|due| now >= due);
        for session in self.sessions.iter_mut().filter(quiet) {
            session.next_keep_alive = Some(now + KEEP_ALIVE_INTERVAL);
            let nothing = session.region.local(0, 0);
            let flags = CompletionFlags::empty();
            self.adapter.ia.ep_post_send(
                session.ep,
                &[nothing],
                DtoCookie(KEEP_ALIVE_COOKIE),
                flags,
            )?;
        }
        Ok(())
    }

    /// Ends all connections, waits until each of them is disconnected, and frees their objects.
    pub(crate) fn disconnect_all(&mut self) -> Result<(), Box<dyn Error>> {
        let sessions = std::mem::take(&mut self.sessions);
        for session in &sessions {
            self.adapter
                .ia
                .ep_disconnect(session.ep, CloseFlags::Abrupt)?;
        }
        let mut left = sessions.len();
        while left > 0 {
            let event = self.next()?;
            if let Event::Connection(event) = &event
                && event.kind == ConnectionEventKind::Disconnected
            {
                left -= 1;
                continue;
            }
            // All other events here must be completions of flushed receives.
            if !matches!(event, Event::Dto(_)) {
                return Err(unexpected(&event, "a disconnect"));
            }
        }
        for session in sessions {
            self.adapter.release(session.ep, &session.region)?;
        }
        // The passive end, if it is in this process, handles the disconnect before this function returns.
        let give_up = deadline();
        while let Some(listener) = &mut self.listener
            && listener.has_session()
        {
            listener.serve()?;
            if Instant::now() > give_up {
                return Err("the other end does not hear of the disconnect".into());
            }
        }
        Ok(())
    }

    pub(crate) fn close(self) -> Result<(), Box<dyn Error>> {
        let listener = self.listener.map_or(Ok(()), Listener::close);
        self.adapter.close()?;
        listener
    }
}

#[cfg(test)]
mod tests {
    use hw_sim::{LinkFaults, SimConfig};
    use udapl::fabric::Fabric;

    use super::*;

    const SERVICE: u64 = 0x1_0000_0001;
    const NONE: CompletionFlags = CompletionFlags::empty();
    const BYTES: usize = 64;

    /// If a device allows fewer events than an EVD usually holds, both ends refuse connections that need more. The
    /// smallest completion queue that the driver accepts has 2^10 entries.
    #[test]
    fn neither_end_promises_more_events_than_its_evd_holds() -> Result<(), Box<dyn Error>> {
        let fabric = Fabric::with(
            SimConfig::seeded(1),
            LinkFaults::default(),
            |mut profile| {
                profile.general.set(|page| {
                    page.set_log_max_cq_sz(10);
                });
                profile
            },
        );
        let dialer = Dialer::on(Adapter::of(fabric.open(0)?)?);
        let most = dialer.adapter.ia.query().ia.max_evd_qlen;
        assert!(most < 1 << 10, "{most} events");
        assert_eq!(dialer.check_events(1, most, most), Ok(()));
        let refused = dialer.check_events(2, 600, 600);
        assert_eq!(
            refused,
            Err(format!(
                "2 endpoints with a depth of 600: {most} events are all that one EVD has here"
            ))
        );
        let listener = Listener::on(Adapter::of(fabric.open(1)?)?, SERVICE)?;
        let takes = |depth| {
            let hello = Hello {
                role: Role::Sink,
                more: 0,
                depth,
                bytes: BYTES as u64,
                reverse: None,
            };
            listener.takes(dialer.adapter.address(), hello).is_some()
        };
        assert_eq!((takes(300), takes(500)), (true, false));
        dialer.close()?;
        listener.close()
    }

    /// An echo peer gets no keep-alive message, so it sends back only the messages that are measured.
    #[test]
    fn an_echo_gets_no_message_that_nobody_waits_for() -> Result<(), Box<dyn Error>> {
        let options = OpenOptions::default();
        let listener = Listener::open("sim:echo", &options, SERVICE)?;
        let peer = listener.address();
        let mut dialer = Dialer::open("sim:dialer", &options)?.beside(listener);
        for role in [Role::Echo, Role::Memory] {
            let hello = Hello {
                role,
                more: u16::from(role == Role::Echo),
                depth: 1,
                bytes: BYTES as u64,
                reverse: None,
            };
            dialer.connect(peer, SERVICE, &hello, 2)?;
            for _ in 0..6 {
                // The keep-alive interval is over.
                let session = &mut dialer.sessions[0];
                session.next_keep_alive = session.next_keep_alive.map(|_| Instant::now());
                dialer.send_keep_alives()?;
                let (ep, region, remote) = dialer.session();
                let (outbox, inbox) = (region.local(0, BYTES), region.local(1, BYTES));
                let ia = &mut dialer.adapter.ia;
                if role == Role::Memory {
                    ia.ep_post_rdma_read(ep, &[inbox], DtoCookie(1), &remote, NONE)?;
                    assert_eq!(dialer.completed()?.cookie, DtoCookie(1));
                    dialer.serve_listener()?;
                    continue;
                }
                ia.ep_post_recv(ep, &[inbox], DtoCookie(1), NONE)?;
                ia.ep_post_send(ep, &[outbox], DtoCookie(2), NONE)?;
                for _ in 0..2 {
                    let done = dialer.completed()?;
                    assert_eq!(done.transferred_length, BYTES as u64, "{done:?}");
                }
            }
            dialer.disconnect_all()?;
        }
        dialer.close()
    }
}
