//! What adapters hear, and what has to be true then.

use dat::{ConnectionEventKind, DtoCompletion, DtoStatus, Event, ReturnType};
use rand::Rng;

use crate::bytes;
use crate::end::{Kind, Link, Name, Phase, WINDOW};
use crate::side::offered_tag;
use crate::world::World;

impl World {
    /// Takes all events of a side.
    pub fn events(&mut self, side: usize) {
        loop {
            let event = self.timed("dequeue", |world| {
                let open = world.sides[side].open.as_mut()?;
                let evds = [open.dto, open.connect, open.cr, open.ia.async_evd()];
                evds.into_iter()
                    .find_map(|evd| match open.ia.evd_dequeue(evd) {
                        Ok(event) => Some(event),
                        Err(error) => {
                            assert_eq!(error.return_type(), ReturnType::QueueEmpty, "{error}");
                            None
                        }
                    })
            });
            match event {
                None => break,
                Some(Event::Dto(done)) => self.dto(side, &done),
                Some(Event::ConnectionRequest(request)) => self.request(side, request.cr),
                Some(Event::Connection(event)) => self.connection(side, event.ep, event.kind),
                Some(Event::Async(event)) => {
                    let dead = event == dat::AsyncEvent::IaCatastrophic;
                    self.cover.count(
                        "asynchronous event",
                        if dead { "catastrophic" } else { "other" },
                    );
                    if let Some(open) = &mut self.sides[side].open {
                        open.dead |= dead;
                    }
                }
                Some(other @ (Event::RmrBind(_) | Event::Software(_))) => {
                    panic!("side {side}: {other:?}, which nobody asked for")
                }
            }
        }
        self.rewind(side);
    }

    /// Endpoints whose connection is over begin again, once all that was posted has come back.
    fn rewind(&mut self, side: usize) {
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        for end in &mut open.ends {
            let Some(ep) = end.ep else { continue };
            if end.phase == Phase::Over && end.requests.is_empty() && end.receives.is_empty() {
                if open.dead {
                    // It stays DISCONNECTED until the adapter is opened anew.
                    continue;
                }
                if open.ia.ep_reset(ep).is_ok() {
                    end.phase = Phase::Idle;
                    end.link = None;
                }
            }
        }
    }

    fn request(&mut self, side: usize, cr: dat::CrHandle) {
        let accept = self.healing || self.random.random_ratio(9, 10);
        let number = self.next_number();
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let name = open
            .ia
            .cr_query(cr)
            .ok()
            .and_then(|param| Name::read(param.private_data));
        let idle = open
            .ends
            .iter()
            .position(|end| end.phase == Phase::Idle && end.ep.is_some());
        let (Some(name), Some(at), true) = (name, idle, accept) else {
            let rejected = open.ia.cr_reject(cr).is_ok();
            self.cover
                .count("reject", if rejected { "done" } else { "refused" });
            return;
        };
        let answer = Name {
            side,
            end: at,
            number,
        };
        if open
            .ia
            .cr_accept(cr, open.ends[at].ep, &answer.bytes())
            .is_err()
        {
            self.cover.count("accept", "refused");
            return;
        }
        self.cover.count("accept", "done");
        let opening = self.sides[side].openings;
        let link = self.link(name);
        self.links[link].ends[1] = (side, opening, at);
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = Some((link, 1));
        }
    }

    /// The connection of a name.
    pub fn link(&mut self, name: Name) -> usize {
        if let Some(link) = self.by_name.get(&name) {
            return *link;
        }
        let link = self.links.len();
        self.links.push(Link {
            ends: [(name.side, 0, name.end), (usize::MAX, 0, 0)],
            sent: Default::default(),
        });
        self.by_name.insert(name, link);
        link
    }

    fn connection(&mut self, side: usize, ep: dat::EpHandle, kind: ConnectionEventKind) {
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let Some(at) = open.end_of(ep) else {
            // It was freed meanwhile.
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
            self.cover.count("connect", "established");
            return;
        }
        assert!(
            matches!(end.phase, Phase::Pending | Phase::Up | Phase::Over),
            "side {side}, endpoint {at}: {kind:?} of an endpoint that is idle"
        );
        end.phase = Phase::Over;
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
    }

    fn dto(&mut self, side: usize, done: &DtoCompletion) {
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let Some(at) = open.end_of(done.ep) else {
            panic!("side {side}: {done:?} of an endpoint that was freed");
        };
        if done.request {
            self.requested(side, at, done);
        } else {
            self.received(side, at, done);
        }
    }

    fn requested(&mut self, side: usize, at: usize, done: &DtoCompletion) {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let end = &mut open.ends[at];
        let work = end.requests.pop_front();
        let work = work
            .unwrap_or_else(|| panic!("side {side}, endpoint {at}: {done:?} completes nothing"));
        assert_eq!(
            work.cookie, done.cookie,
            "side {side}, endpoint {at}: {done:?} for {work:?}"
        );
        self.cover.count(name_of(work.kind), done.status.name());
        if done.status != DtoStatus::Success {
            if end.phase == Phase::Up {
                end.phase = Phase::Over;
            }
            return;
        }
        assert_eq!(
            done.transferred_length, work.bytes as u64,
            "{work:?} {done:?}"
        );
        let (link, own) = end.link.expect("it was posted on a connection");
        let (peer, opening, there) = self.links[link].ends[1 - own];
        let slot = there * WINDOW + work.slot;
        match work.kind {
            Kind::Send | Kind::Attack => {}
            Kind::Read => {
                let sink = &open.sink.memory;
                let own = at * WINDOW + work.slot;
                assert!(
                    bytes::is(sink, own, offered_tag(peer), work.bytes),
                    "side {side} read {work:?}, and what it has is not what side {peer} offers"
                );
            }
            Kind::Write => {
                let other = &self.sides[peer];
                if let Some(open) = other.open.as_ref().filter(|_| other.openings == opening) {
                    assert!(
                        bytes::is(&open.written.memory, slot, work.cookie, work.bytes),
                        "side {side} wrote {work:?}, and side {peer} has something else in slot {slot}"
                    );
                }
            }
        }
    }

    fn received(&mut self, side: usize, at: usize, done: &DtoCompletion) {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        let end = &mut open.ends[at];
        let cookie = end.receives.pop_front();
        assert_eq!(
            cookie,
            Some(done.cookie),
            "side {side}, endpoint {at}: {done:?}"
        );
        self.cover.count("receive", done.status.name());
        if done.status != DtoStatus::Success {
            if end.phase == Phase::Up {
                end.phase = Phase::Over;
            }
            return;
        }
        let (link, own) = end.link.expect("it is connected");
        let sent = self.links[link].sent[1 - own].pop_front();
        let (tag, bytes) =
            sent.unwrap_or_else(|| panic!("side {side}, endpoint {at}: {done:?} was never sent"));
        assert_eq!(done.transferred_length, bytes as u64, "message {tag:#x}");
        let slot = usize::try_from(done.cookie & 0xff).expect("a slot");
        assert!(
            bytes::is(&open.inbox.memory, slot, tag, bytes),
            "side {side}, endpoint {at}: receive {:#x} is not message {tag:#x}",
            done.cookie
        );
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Send => "send",
        Kind::Write => "write",
        Kind::Read => "read",
        Kind::Attack => "write to freed memory",
    }
}
