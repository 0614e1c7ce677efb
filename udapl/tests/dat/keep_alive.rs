//! Keep-alive: for every kind of post and every kind of death, the peer's death is noticed in time.
//!
//! Each combination of side, flag, SRQ, request and death is tested with a new connection. One side posts requests of
//! one kind, which complete, and posts nothing more. Then its peer dies. The test measures the virtual time from the
//! death to the event, and prints a table of the longest times.

use core::time::Duration;
use std::collections::BTreeMap;

use driver::Device;
use hw_sim::Fault;
use udapl::connection::EndCause;
use udapl::endpoint::{EpChange, EpState, EpTransport};
use udapl::{
    CompletionFlags, ConnectionEventKind as Kind, DtoCookie, Event, MemPrivFlags, Timeout,
};

use crate::support::{A, B, Buffer, NONE, Pair, PairConfig};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;

const INTERVAL: Duration = Duration::from_millis(500);
/// Exponent of the local ACK timeout: 4.096 us * 2^14 = 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// Longest time from the peer's death to the event: twice the interval and eight attempts of one ACK timeout each, as
/// in docs/reconnecting.md, plus the rounding of the last wait.
const PROMISED: Duration = Duration::from_millis(2 * 500 + 8 * 68 + 10);
/// Number of receives, and of requests of each kind except `Full`, that are posted at a time.
const SOME: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    None,
    Send,
    Inline,
    Batch,
    Write,
    Read,
    FetchAdd,
    /// As many RDMA Writes as the queue holds.
    Full,
}

const REQUESTS: [Request; 8] = [
    Request::None,
    Request::Send,
    Request::Inline,
    Request::Batch,
    Request::Write,
    Request::Read,
    Request::FetchAdd,
    Request::Full,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerFailure {
    /// The peer's process was killed: its function is reset.
    Killed,
    /// The peer's function is removed.
    Removed,
    /// The cable is cut.
    Cut,
}

const PEER_FAILURES: [PeerFailure; 3] =
    [PeerFailure::Killed, PeerFailure::Removed, PeerFailure::Cut];

struct Fixture {
    pair: Pair,
    /// The surviving side.
    side: usize,
    near: Buffer,
    far: Buffer,
}

impl Fixture {
    fn new(side: usize, flags: CompletionFlags, srq: bool) -> Self {
        let mut config = PairConfig::with_attr(|attr| {
            if flags == UNSIGNALLED {
                attr.request_completion_flags = UNSIGNALLED;
            }
        });
        config.srq = srq.then_some(64);
        Self::of(side, &config)
    }

    fn of(side: usize, config: &PairConfig) -> Self {
        let mut pair = Pair::unconnected(config);
        for end in &mut pair.sides {
            let transport = EpTransport {
                keep_alive: Some(INTERVAL),
                ack_timeout: Some(ACK_TIMEOUT),
                ..EpTransport::default()
            };
            let change = EpChange {
                transport: Some(transport),
                ..EpChange::default()
            };
            end.ia.ep_modify(end.ep, &change).expect("unconnected");
        }
        pair.connect();
        let atomic = MemPrivFlags::all().union(MemPrivFlags::REMOTE_ATOMIC);
        let zone = pair.sides[1 - side].pz;
        let near = pair.buffer(side, 64);
        let far = pair.buffer_in(1 - side, 64, zone, atomic);
        Self {
            pair,
            side,
            near,
            far,
        }
    }

    /// Posts `SOME` receives on the side whose death is tested.
    fn receives(&mut self) {
        let (other, place) = (1 - self.side, self.far.all());
        for cookie in 0..SOME {
            match self.pair.srq.filter(|_| other == B) {
                Some(srq) => {
                    let ia = &mut self.pair.sides[B].ia;
                    ia.srq_post_recv(srq, &[place], DtoCookie(cookie))
                        .expect("room");
                }
                None => {
                    let posted = self.pair.post_recv(other, &[place], cookie, NONE);
                    posted.expect("room");
                }
            }
        }
    }

    fn post(&mut self, request: Request, flags: CompletionFlags) {
        self.receives();
        let (local, remote) = (self.near.part(0, 8), self.far.remote(0, 8));
        let side = &mut self.pair.sides[self.side];
        let (ep, ia) = (side.ep, &mut side.ia);
        let count = match request {
            Request::None => 0,
            Request::Full => ia.ep_query(ep).expect("an EP").attr.max_request_dtos.into(),
            Request::Batch => 1,
            Request::Send
            | Request::Inline
            | Request::Write
            | Request::Read
            | Request::FetchAdd => SOME,
        };
        for cookie in (0..count).map(DtoCookie) {
            let posted = match request {
                Request::None => Ok(()),
                Request::Send => ia.ep_post_send(ep, &[local], cookie, flags),
                Request::Inline => ia.ep_post_send_inline(ep, &[7; 8], cookie, flags),
                Request::Batch => ia.batch(ep, |batch| {
                    for _ in 0..SOME {
                        batch.rdma_write(&[local], cookie, &remote, flags)?;
                    }
                    Ok(())
                }),
                Request::Write | Request::Full => {
                    ia.ep_post_rdma_write(ep, &[local], cookie, &remote, flags)
                }
                Request::Read => ia.ep_post_rdma_read(ep, &[local], cookie, &remote, flags),
                Request::FetchAdd => ia.ep_post_fetch_add(ep, &[local], cookie, &remote, 1, flags),
            };
            posted.unwrap_or_else(|error| panic!("{request:?}: {error}"));
        }
        self.pair.run_for(20);
    }

    fn dies(&mut self, failure: PeerFailure) {
        let function = self.pair.fabric.function(1 - self.side);
        match failure {
            PeerFailure::Killed => function.reset(),
            PeerFailure::Removed => self
                .pair
                .fabric
                .sim
                .inject(&function, &Fault::SurpriseRemoval),
            PeerFailure::Cut => self.pair.cut(),
        }
    }

    /// Waits for the survivor's next connection event, for at most `longest`. Returns the kind of the event and the
    /// duration of the wait.
    fn next_event(&mut self, longest: Duration) -> Option<(Kind, Duration)> {
        let side = &mut self.pair.sides[self.side];
        let (connect, begun) = (side.connect, self.pair.fabric.sim.clock().now());
        let micros = u32::try_from(longest.as_micros()).expect("short");
        let event = side.ia.evd_wait(connect, Timeout::from_micros(micros), 1);
        let took = Duration::from_nanos(self.pair.now().0 - begun.0);
        match event {
            Ok((Event::Connection(event), _)) => Some((event.kind, took)),
            Ok((other, _)) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    fn cause(&self) -> Option<EndCause> {
        let side = &self.pair.sides[self.side];
        side.ia.ep_end_cause(side.ep).expect("an EP")
    }

    /// Dequeues the survivor's completions of requests. Returns their number.
    fn completions(&mut self) -> usize {
        let side = &mut self.pair.sides[self.side];
        let request = side.request;
        core::iter::from_fn(|| side.ia.evd_dequeue(request).expect("an EVD")).count()
    }
}

#[test]
fn the_death_of_a_peer_is_noticed_whatever_was_posted_and_however_it_dies() {
    let mut longest: BTreeMap<(Request, &str), BTreeMap<PeerFailure, Duration>> = BTreeMap::new();
    for side in [A, B] {
        for (flags, flag) in [
            (NONE, "none"),
            (SUPPRESS, "SUPPRESS"),
            (UNSIGNALLED, "UNSIGNALLED"),
        ] {
            for srq in [false, true] {
                for request in REQUESTS {
                    for failure in PEER_FAILURES {
                        let mut fixture = Fixture::new(side, flags, srq);
                        fixture.post(request, flags);
                        fixture.dies(failure);
                        let what = format!("{request:?} {flag} {failure:?} side {side} SRQ {srq}");
                        let Some((kind, took)) = fixture.next_event(Duration::from_secs(60)) else {
                            panic!("{what}: not noticed");
                        };
                        assert_eq!(kind, Kind::Broken, "{what}");
                        assert!(took <= PROMISED, "{what}: {took:?}");
                        let cause = fixture.cause();
                        assert!(
                            matches!(cause, Some(EndCause::KeepAlive { .. })),
                            "{what}: {cause:?}"
                        );
                        let cell = longest.entry((request, flag)).or_default();
                        let most = cell.entry(failure).or_default();
                        *most = took.max(*most);
                    }
                }
            }
        }
    }
    println!("| Requests | Flag | killed | removed | cut |\n|---|---|---|---|---|");
    for ((request, flag), row) in longest {
        let seconds = |failure| row[&failure].as_secs_f64();
        println!(
            "| {request:?} | {flag} | {:.2} s | {:.2} s | {:.2} s |",
            seconds(PeerFailure::Killed),
            seconds(PeerFailure::Removed),
            seconds(PeerFailure::Cut)
        );
    }
}

/// A peer whose process is stopped is not reported dead: its device still answers, as the device of a busy process
/// does. Only messages of the program can distinguish a stopped process from a busy process.
#[test]
fn a_peer_that_is_stopped_is_not_taken_for_dead() {
    for flags in [NONE, SUPPRESS] {
        let mut fixture = Fixture::new(A, flags, false);
        fixture.post(Request::Write, flags);
        assert_eq!(fixture.next_event(Duration::from_secs(60)), None);
        assert_eq!(fixture.pair.state(A), EpState::Connected);
    }
}

/// Keep-alive probes take no slot of the program's queue, and the program sees no completion of a probe.
#[test]
fn trials_take_nothing_of_the_program_and_are_not_seen() {
    for flags in [NONE, SUPPRESS] {
        let mut fixture = Fixture::new(A, flags, false);
        for round in 0..4 {
            fixture.post(Request::Full, flags);
            let all = if flags == SUPPRESS { 0 } else { 64 };
            assert_eq!(fixture.completions(), all, "round {round}");
            let before = fixture.pair.sides[A].ia.ep_stats(fixture.pair.sides[A].ep);
            assert_eq!(fixture.next_event(Duration::from_secs(3)), None);
            assert_eq!(fixture.completions(), 0, "round {round}");
            let after = fixture.pair.sides[A].ia.ep_stats(fixture.pair.sides[A].ep);
            assert_eq!(
                before.map(|stats| stats.requests),
                after.map(|stats| stats.requests)
            );
        }
        fixture.pair.assert_no_complaints();
    }
}

impl Fixture {
    /// Returns a fixture with a new connection whose sides retry without limit while the peer has no posted receive.
    fn with_endless_rnr_retries(flags: CompletionFlags) -> Self {
        let mut fixture = Self::new(A, flags, false);
        let side = &mut fixture.pair.sides[A];
        let ep = side.ep;
        side.ia
            .ep_disconnect(ep, udapl::CloseFlags::Abrupt)
            .expect("connected");
        fixture.pair.expect_connection(A, Kind::Disconnected);
        fixture.pair.expect_connection(B, Kind::Disconnected);
        for end in &mut fixture.pair.sides {
            end.ia.ep_reset(end.ep).expect("disconnected");
            let mut transport = end.ia.ep_query(end.ep).expect("an EP").transport;
            transport.rnr_retry = Some(7);
            let change = EpChange {
                transport: Some(transport),
                ..EpChange::default()
            };
            end.ia.ep_modify(end.ep, &change).expect("unconnected");
        }
        fixture.pair.connect();
        fixture
    }
}

/// A peer without a posted receive is alive: the requested RNR retries continue, and no probe ends them.
#[test]
fn a_peer_that_is_slow_to_post_a_receive_is_waited_for() {
    for flags in [NONE, SUPPRESS] {
        let mut fixture = Fixture::with_endless_rnr_retries(flags);
        let place = fixture.near.part(0, 8);
        fixture.pair.post_send(A, &[place], 1, flags).expect("room");
        assert_eq!(fixture.next_event(Duration::from_secs(20)), None);
        // The peer posts a receive in the end, the message arrives, and the connection is unchanged.
        fixture.receives();
        fixture.pair.run_for(100);
        assert_eq!(fixture.pair.wait_recv(B).transferred_length, 8);
        assert_eq!(fixture.pair.state(A), EpState::Connected);
        // If the peer dies later, its death is noticed in time.
        fixture.dies(PeerFailure::Killed);
        let noticed = fixture.next_event(Duration::from_secs(60));
        assert!(
            noticed.is_some_and(|(kind, took)| kind == Kind::Broken && took <= PROMISED),
            "{noticed:?}"
        );
    }
}

/// RNR retries without limit end when the peer has died: the next attempt gets no answer, so the ACK timeouts end it.
#[test]
fn a_peer_that_dies_during_rnr_retries_is_noticed() {
    for flags in [NONE, SUPPRESS] {
        for failure in PEER_FAILURES {
            let mut fixture = Fixture::with_endless_rnr_retries(flags);
            let place = fixture.near.part(0, 8);
            fixture.pair.post_send(A, &[place], 1, flags).expect("room");
            assert_eq!(fixture.next_event(Duration::from_secs(1)), None);
            fixture.dies(failure);
            let noticed = fixture.next_event(Duration::from_secs(60));
            assert!(
                noticed.is_some_and(|(kind, took)| kind == Kind::Broken && took <= PROMISED),
                "{failure:?}, {flags:?}: {noticed:?}"
            );
        }
    }
}

/// If the peer has just died, a graceful disconnect ends when the retries are exhausted, even if the completions of the
/// last requests are suppressed.
#[test]
fn a_graceful_disconnect_from_a_dead_peer_ends_with_the_retries() {
    for flags in [NONE, SUPPRESS] {
        let mut fixture = Fixture::new(A, flags, false);
        fixture.post(Request::Write, flags);
        fixture.dies(PeerFailure::Killed);
        let (local, remote) = (fixture.near.part(0, 8), fixture.far.remote(0, 8));
        let side = &mut fixture.pair.sides[A];
        let ep = side.ep;
        side.ia
            .ep_post_rdma_write(ep, &[local], DtoCookie(9), &remote, flags)
            .expect("room");
        side.ia
            .ep_disconnect(ep, udapl::CloseFlags::Graceful)
            .expect("connected");
        let ended = fixture.next_event(Duration::from_secs(60));
        assert!(
            ended.is_some_and(|(kind, took)| kind == Kind::Broken && took <= PROMISED),
            "{ended:?}"
        );
    }
}
