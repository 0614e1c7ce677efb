//! Handling of an adapter's events, and the checks at each event.

use rand::Rng;
use udapl::event::{AsyncEvent, DtoCompletion, DtoDetail, RmrBindCompletion};
use udapl::{ConnectionEventKind, DtoStatus, Event};

use crate::actions::traffic::immediate;
use crate::bytes;
use crate::end::{End, GRACEFUL, Kind, Link, Name, Phase, Sent, WINDOW, Work};
use crate::side::offered_tag;
use crate::world::World;

impl World {
    /// Dequeues and handles all events of a side.
    pub fn events(&mut self, side: usize) {
        self.crowd(side);
        if let Some(open) = &mut self.sides[side].open {
            open.heard = 0;
        }
        if self.random.random_ratio(1, 4) {
            self.poll(side);
        }
        loop {
            let event = self.timed(side, "dat_evd_dequeue", |world| {
                let open = world.sides[side].open.as_mut()?;
                let evds = [open.dto, open.connect, open.cr, open.ia.async_evd()];
                evds.into_iter()
                    .find_map(|evd| open.ia.evd_dequeue(evd).expect("an EVD"))
            });
            let state = self.state_of(side);
            self.cover.call("dat_evd_dequeue", state, event.is_some());
            let Some(event) = event else { break };
            self.event(side, event);
        }
        if let Some(open) = &mut self.sides[side].open {
            // All events are dequeued, so nothing is outstanding in the EVD.
            open.crowded = open.spent;
        }
        let one = &self.sides[side];
        assert!(
            !one.unanswered || one.open.as_ref().is_none_or(|open| open.dead),
            "side {side} goes on, and nobody knows what its device reaches"
        );
        self.crowd(side);
        self.rewind(side);
        self.replace_spent(side);
        self.let_go(side);
    }

    /// Handles one event of a side.
    pub fn event(&mut self, side: usize, event: Event) {
        self.trace_line(side, format_args!("{event:?}"));
        match event {
            Event::Dto(done) => self.dto(side, &done),
            Event::RmrBind(done) => self.bound(side, &done),
            Event::ConnectionRequest(request) => self.request(side, request.cr),
            Event::Connection(event) => {
                if let Some(open) = &mut self.sides[side].open {
                    open.heard += 1;
                }
                self.connection(side, event.ep, event.kind);
            }
            Event::Async(event) => self.asynchronous(side, event),
            Event::Software(event) => {
                panic!("side {side}: {event:?} where nobody posts any")
            }
        }
    }

    fn asynchronous(&mut self, side: usize, event: AsyncEvent) {
        let what = match event {
            AsyncEvent::IaCatastrophic => "catastrophic",
            AsyncEvent::EpBroken(_) => "endpoint broken",
            AsyncEvent::SrqError(_) => "SRQ error",
            AsyncEvent::SrqLowWatermark(_) => "SRQ low watermark",
            AsyncEvent::EpSoftHighWatermark(_) => "soft high watermark",
            AsyncEvent::ProviderInternalError => "internal error",
            AsyncEvent::Network(_) => "network",
            AsyncEvent::EvdOverflow(evd) => self.overflowed(side, evd),
        };
        self.cover.count("asynchronous event", what);
        if event == AsyncEvent::IaCatastrophic {
            self.spoil_side("a device that is dead", side);
            if let Some(open) = &mut self.sides[side].open {
                open.dead = true;
            }
        }
    }

    /// Resets the endpoints whose connection is over and whose posted requests have all completed.
    fn rewind(&mut self, side: usize) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        // The endpoints of a dead adapter stay DISCONNECTED until the adapter is opened again.
        if open.dead {
            return;
        }
        let over = |end: &End| {
            end.phase == Phase::Over && end.requests.is_empty() && end.receives.is_empty()
        };
        let ended: Vec<usize> = (0..open.ends.len())
            .filter(|at| over(&open.ends[*at]))
            .collect();
        for at in ended {
            self.reset(side, at);
        }
    }

    /// Returns the index of the connection with this identity. Creates the record if there is none.
    pub fn link(&mut self, name: Name) -> usize {
        if let Some(link) = self.by_name.get(&name) {
            return *link;
        }
        let link = self.links.len();
        self.links.push(Link {
            ends: [(name.side, 0, name.end), (usize::MAX, 0, 0)],
            sent: Default::default(),
            anybody: None,
            up: [false; 2],
            spoiled: (self.until.is_some() || self.now() < self.trained).then_some("the wire"),
        });
        self.by_name.insert(name, link);
        self.spoil_if_tampered(link, name.side);
        link
    }

    /// Records that a connection may end at any time if this adapter is under a fault.
    pub fn spoil_if_tampered(&mut self, link: usize, side: usize) {
        let one = self.sides.get(side);
        if one.is_some_and(|one| one.tampered) {
            self.links[link].spoil("an adapter with faults");
        }
    }

    /// Records an event that may end the connection of an endpoint.
    pub fn spoil_end(&mut self, why: &'static str, side: usize, at: usize) {
        let link = self.sides[side]
            .open
            .as_ref()
            .and_then(|open| open.ends[at].link);
        if let Some((link, _)) = link {
            self.links[link].spoil(why);
        }
    }

    fn connection(&mut self, side: usize, ep: udapl::EpHandle, kind: ConnectionEventKind) {
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let Some(at) = open.end_of(ep) else {
            // The endpoint was freed meanwhile.
            return;
        };
        let end = &mut open.ends[at];
        if kind == ConnectionEventKind::Established {
            assert_eq!(
                end.phase,
                Phase::Pending,
                "side {side}, endpoint {at}: ESTABLISHED"
            );
            end.phase = Phase::Up;
            if let Some((link, own)) = end.link {
                self.links[link].up[own] = true;
            }
            self.cover.count("connect", "established");
            return;
        }
        assert!(
            matches!(end.phase, Phase::Pending | Phase::Up | Phase::Over),
            "side {side}, endpoint {at}: {kind:?} of an endpoint that is {:?}",
            end.phase
        );
        end.phase = Phase::Over;
        if kind == ConnectionEventKind::Disconnected {
            self.close_notice_arrived(side, at);
        }
        let came_to = match kind {
            ConnectionEventKind::Established => "established",
            ConnectionEventKind::PeerRejected => "rejected",
            ConnectionEventKind::NonPeerRejected => "rejected otherwise",
            ConnectionEventKind::AcceptCompletionError => "accept failed",
            ConnectionEventKind::Disconnected => "disconnected",
            ConnectionEventKind::Broken => "broken",
            ConnectionEventKind::TimedOut => "timed out",
            ConnectionEventKind::Unreachable => "unreachable",
        };
        self.cover.count("connection", came_to);
        self.needs_a_reason(side, at, came_to);
    }

    /// Checks that an endpoint's connection has a recorded reason to end or to fail requests. `what` names the event in
    /// the message of a failure.
    pub fn needs_a_reason(&self, side: usize, at: usize, what: &str) {
        let open = self.sides[side].open.as_ref().expect("it has an event");
        if let Some((link, _)) = open.ends[at].link {
            let link = &self.links[link];
            assert!(
                link.spoiled.is_some(),
                "side {side}, endpoint {at}: {what}, and nothing has happened to its connection, {:?}",
                link.ends
            );
        }
    }

    fn dto(&mut self, side: usize, done: &DtoCompletion) {
        if let Some(context) = done.detail.invalidated() {
            self.key_invalidated(side, context);
        }
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let there = open.end_of(done.ep);
        let shares = there.is_some_and(|at| open.ends[at].shares);
        let name = (done.request, done.cookie.0);
        if there.is_some() && (done.request || !shares) && open.orphans.remove(&name) {
            self.cover
                .count("completion", "after its endpoint began anew");
            return;
        }
        let Some(at) = there else {
            // Completions from before the free may be dequeued after it (uDAPL 1.2, dat_ep_free), but only once.
            let known = if done.request {
                open.orphans.remove(&name)
            } else {
                open.buffers.remove(&done.cookie.0).is_some() || open.orphans.remove(&name)
            };
            assert!(known, "side {side}: {done:?} of an endpoint that was freed");
            self.cover.count("completion", "after its endpoint");
            return;
        };
        if done.request {
            self.requested(side, at, done);
        } else {
            self.received(side, at, done);
        }
    }

    /// Removes the oldest request of an endpoint, and checks that this is the request that has completed.
    fn oldest(&mut self, side: usize, at: usize, cookie: u64, status: DtoStatus) -> Work {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let end = &mut open.ends[at];
        let work = end.requests.pop_front().unwrap_or_else(|| {
            panic!("side {side}, endpoint {at}: request {cookie} completes, and none is there")
        });
        assert_eq!(
            work.cookie, cookie,
            "side {side}, endpoint {at}: {status:?} of another request than {work:?}"
        );
        self.cover.count(name_of(work.kind), status.name());
        let drains = end.drains.is_some_and(|until| cookie < until);
        let sound = end
            .link
            .is_some_and(|(link, _)| self.links[link].spoiled == Some(GRACEFUL));
        if status != DtoStatus::Success {
            assert!(
                !drains || !sound,
                "side {side}, endpoint {at}: {} of {work:?}, which a graceful disconnect waits for",
                status.name()
            );
            self.failed(side, at, status);
        }
        work
    }

    /// Handles a failed request or receive of an endpoint, which ends the endpoint's connection.
    fn failed(&mut self, side: usize, at: usize, status: DtoStatus) {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let end = &mut open.ends[at];
        if end.phase == Phase::Up {
            end.phase = Phase::Over;
        }
        if matches!(end.phase, Phase::Up | Phase::Over) {
            self.needs_a_reason(side, at, status.name());
        }
    }

    fn bound(&mut self, side: usize, done: &RmrBindCompletion) {
        let number = self.next_number();
        let open = self.sides[side].open.as_mut().expect("it has an event");
        if open.orphans.remove(&(true, done.cookie.0)) {
            self.cover.count("completion", "after its endpoint");
            return;
        }
        let posted = |end: &End| end.requests.iter().any(|work| work.cookie == done.cookie.0);
        let at = open.ends.iter().position(posted);
        let at = at.unwrap_or_else(|| panic!("side {side}: {done:?}, which was not posted"));
        let work = self.oldest(side, at, done.cookie.0, done.status);
        let Kind::Bind(window_memory) = work.kind else {
            panic!("side {side}: {done:?} for {work:?}");
        };
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let target = &mut open.window_memories[window_memory];
        target.binds -= 1;
        if target.binds == 0 {
            // All binds of a window are on one endpoint and complete in order, so this bind was posted last.
            let bound = done.status == DtoStatus::Success && target.key.is_some();
            open.bind_done(window_memory, bound, number);
        }
    }

    fn requested(&mut self, side: usize, at: usize, done: &DtoCompletion) {
        let work = self.oldest(side, at, done.cookie.0, done.status);
        if done.status != DtoStatus::Success {
            return;
        }
        assert_eq!(
            done.transferred_length, work.bytes as u64,
            "{work:?} {done:?}"
        );
        let open = self.sides[side].open.as_ref().expect("it has an event");
        let end = &open.ends[at];
        let (link, own) = end.link.expect("it was posted on a connection");
        let other = self.links[link].ends[1 - own];
        let (peer, opening, there) = other;
        // If the peer's endpoint has had another connection since, that connection's peer writes to the same slots and
        // may already have done so.
        let later = &self.links[link + 1..];
        let overwritten = later.iter().any(|link| link.ends.contains(&other));
        let slot = there * WINDOW + work.slot;
        let there = self.sides.get(peer).and_then(|other| {
            let open = other.open.as_ref();
            open.filter(|_| other.openings == opening)
        });
        match work.kind {
            Kind::Send | Kind::Empty => {}
            Kind::Invalidate(context) => self.took(side, (peer, opening), &work, context),
            Kind::Count => {
                let was = bytes::number(&open.sink.memory, at * WINDOW + work.slot);
                if let Some(other) = self.sides.get_mut(peer)
                    && other.openings == opening
                    && let Some(other) = &mut other.open
                {
                    assert!(
                        other.counted.insert(was),
                        "side {side} is told that the counter of side {peer} was {was}, and somebody was told so before"
                    );
                }
            }
            Kind::Bind(_) => panic!("side {side}: {done:?} for {work:?}"),
            Kind::Attack => {
                if let (Some((address, context)), Some(open)) = (work.void, there) {
                    assert!(
                        work.bytes == 0 || open.is_live(address, context),
                        "side {side} wrote {} bytes to side {peer} with key {context:#x}, which was void before",
                        work.bytes
                    );
                }
            }
            Kind::Read => {
                let sink = &open.sink.memory;
                let own = at * WINDOW + work.slot;
                assert!(
                    bytes::is(sink, own, offered_tag(peer), work.bytes),
                    "side {side} read {work:?}, and what it has is not what side {peer} offers"
                );
            }
            Kind::Write => {
                if let Some(open) = there.filter(|_| !overwritten) {
                    assert!(
                        bytes::is(&open.written.memory, slot, work.cookie, work.bytes),
                        "side {side} wrote {work:?}, and side {peer} has something else in slot {slot}"
                    );
                }
            }
        }
    }

    /// Removes a completed receive from the records, and returns its slot.
    fn buffer(&mut self, side: usize, at: usize, done: &DtoCompletion) -> usize {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let end = &mut open.ends[at];
        if end.shares {
            return open.buffers.remove(&done.cookie.0).unwrap_or_else(|| {
                panic!("side {side}, endpoint {at}: {done:?}, which the SRQ has not")
            });
        }
        let cookie = end.receives.pop_front();
        assert_eq!(
            cookie,
            Some(done.cookie.0),
            "side {side}, endpoint {at}: {done:?}"
        );
        usize::try_from(done.cookie.0 & 0xff).expect("a slot")
    }

    fn received(&mut self, side: usize, at: usize, done: &DtoCompletion) {
        let slot = self.buffer(side, at, done);
        self.cover.count("receive", done.status.name());
        if done.status != DtoStatus::Success {
            self.failed(side, at, done.status);
            return;
        }
        let open = self.sides[side].open.as_ref().expect("it has an event");
        let end = &open.ends[at];
        let (link, own) = end.link.expect("it is connected");
        let sent = self.links[link].sent[1 - own].pop_front();
        let Sent {
            number: tag,
            bytes,
            takes,
        } = sent.unwrap_or_else(|| panic!("side {side}, endpoint {at}: {done:?} was never sent"));
        assert_eq!(
            done.transferred_length, bytes as u64,
            "side {side}, endpoint {at}: the length of message {tag:#x}"
        );
        let detail = match (takes, immediate(tag)) {
            (Some(context), _) => DtoDetail::Invalidated(context),
            (None, Some(data)) => DtoDetail::SendImmediate(data),
            (None, None) => DtoDetail::None,
        };
        assert_eq!(
            done.detail, detail,
            "side {side}, endpoint {at}: what came with message {tag:#x}"
        );
        let region = if end.shares {
            &open.shared
        } else {
            &open.inbox
        };
        assert!(
            bytes::is(&region.memory, slot, tag, bytes),
            "side {side}, endpoint {at}: receive {:#x} is not message {tag:#x}",
            done.cookie.0
        );
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Send => "send",
        Kind::Invalidate(_) => "send that invalidates",
        Kind::Write => "write",
        Kind::Read => "read",
        Kind::Count => "count",
        Kind::Empty => "empty write",
        Kind::Attack => "write with a key that may be void",
        Kind::Bind(_) => "bind",
    }
}
