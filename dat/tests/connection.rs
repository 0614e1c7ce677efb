//! Connections: every way an attempt can end, every way a connection can end, what private data survives the
//! journey, and what becomes of all of it when endpoints, adapters or devices go away.

mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dat::fabric::Fabric;
use dat::{
    CloseFlags, ConnectFlags, ConnectionEvent, ConnectionEventKind as Kind, CrHandle, DatResult,
    DtoStatus, EpChange, EpHandle, EpState, EvdFlags, Event, LmrTriplet, MemPrivFlags, PspFlags,
    Qos, ReturnType, Subtype, Timeout,
};
use hw_mlx::prm::Opcode;
use hw_sim::{Fault, Faults, LinkFaults};
use support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

/// An I/O vector of nothing, typed.
const EMPTY: &[LmrTriplet] = &[];
/// A second.
const SECOND: u64 = 1_000_000_000;

impl Pair {
    /// Starts a connection from an endpoint of a side to a qualifier of the other.
    fn start(
        &mut self,
        side: usize,
        ep: EpHandle,
        conn_qual: u64,
        timeout: Timeout,
        data: &[u8],
    ) -> DatResult<()> {
        let address = self.sides[1 - side].ia.query().ia.ia_address;
        let none = ConnectFlags::empty();
        self.sides[side].ia.ep_connect(
            ep,
            address,
            conn_qual,
            timeout,
            data,
            Qos::BEST_EFFORT,
            none,
        )
    }

    /// Starts a connection from A's endpoint to where B listens.
    fn start_usual(&mut self) {
        let ep = self.sides[A].ep;
        self.start(A, ep, CONN_QUAL, LONG, b"request")
            .expect("UNCONNECTED");
    }

    /// The next connection request at a side.
    #[track_caller]
    fn request(&mut self, side: usize) -> CrHandle {
        let Event::ConnectionRequest(request) = self.wait_event(side, self.sides[side].cr) else {
            panic!("a connection request");
        };
        request.cr
    }

    /// One more endpoint of a side, with the same EVDs.
    fn another_ep(&mut self, side: usize) -> EpHandle {
        let side = &mut self.sides[side];
        let attr = attributes(&side.ia);
        let (recv, request, connect) = (side.recv, side.request, side.connect);
        side.ia
            .ep_create(
                Some(side.pz),
                Some(recv),
                Some(request),
                Some(connect),
                Some(&attr),
            )
            .expect("an endpoint")
    }

    /// The state of any endpoint of a side.
    fn state_of(&self, side: usize, ep: EpHandle) -> EpState {
        self.sides[side]
            .ia
            .ep_get_status(ep)
            .expect("a status")
            .state
    }

    /// The next connection event of a side.
    #[track_caller]
    fn connection_event(&mut self, side: usize) -> ConnectionEvent {
        match self.wait_event(side, self.sides[side].connect) {
            Event::Connection(event) => event,
            other => panic!("a connection event, not {other:?}"),
        }
    }

    /// The side's attempt or connection has ended in this way: told once, and the state is changed by then.
    #[track_caller]
    fn expect_end(&mut self, side: usize, kind: Kind) {
        let event = self.connection_event(side);
        assert_eq!(
            (event.kind, event.ep),
            (kind, self.sides[side].ep),
            "side {side}"
        );
        assert_eq!(event.private_data_size, 0);
        assert_eq!(self.state(side), EpState::Disconnected, "side {side}");
        self.expect_nothing(side, self.sides[side].connect);
    }

    /// A receive of the side, and its number of bytes of no interest.
    fn receive(&mut self, side: usize, cookie: u64) {
        self.post_recv(side, EMPTY, cookie, NONE)
            .expect("legal in every state");
    }

    /// From now on nothing passes the wire.
    fn cut(&mut self) {
        let nothing = Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        };
        self.fabric
            .sim
            .set_faults(self.fabric.link, LinkFaults::both(nothing));
    }

    /// Lets the world and both sides run for a while.
    fn run_for(&mut self, millis: u64) {
        for _ in 0..millis * 10 {
            self.pump();
        }
    }

    /// Connects, again if a provider still takes the other's endpoint for that of the last connection (a stale one,
    /// as IBTA volume 1 calls it): it does until it has heard that this is over.
    #[track_caller]
    fn connect_patiently(&mut self) {
        for _ in 0..100 {
            self.start_usual();
            let (a, b) = (self.sides[A].ep, self.sides[B].ep);
            loop {
                if let Ok(event) = self.sides[B].ia.evd_dequeue(self.sides[B].cr) {
                    let Event::ConnectionRequest(request) = event else {
                        panic!("{event:?}")
                    };
                    self.sides[B]
                        .ia
                        .cr_accept(request.cr, Some(b), b"")
                        .expect("accepted");
                    if self.connection_event(A).kind == Kind::Established {
                        self.expect_connection(B, Kind::Established);
                        return;
                    }
                    // It was our own provider.
                    self.expect_end(B, Kind::AcceptCompletionError);
                    self.sides[B].ia.ep_reset(b).expect("DISCONNECTED");
                    self.sides[A].ia.ep_reset(a).expect("DISCONNECTED");
                    self.run_for(100);
                    break;
                }
                if let Ok(event) = self.sides[A].ia.evd_dequeue(self.sides[A].connect) {
                    let Event::Connection(event) = event else {
                        panic!("{event:?}")
                    };
                    assert_eq!(event.kind, Kind::NonPeerRejected);
                    self.sides[A].ia.ep_reset(a).expect("DISCONNECTED");
                    self.run_for(100);
                    break;
                }
                self.pump();
            }
        }
        panic!("never connected");
    }

    /// The connection carries messages both ways.
    #[track_caller]
    fn expect_alive(&mut self) {
        for (from, to) in [(A, B), (B, A)] {
            let (data, sink) = (self.buffer(from, 32), self.buffer(to, 32));
            data.write(0, b"it is alive, is it not? It is it");
            self.post_recv(to, &[sink.all()], 51, NONE).expect("posted");
            self.post_send(from, &[data.all()], 52, NONE)
                .expect("posted");
            self.expect_request(from, 52, DtoStatus::Success);
            self.expect_recv(to, 51, DtoStatus::Success);
            assert_eq!(sink.read(0, 32), data.read(0, 32));
        }
    }

    /// Nothing went wrong that nobody was told.
    #[track_caller]
    fn expect_no_async_event(&mut self) {
        for side in [A, B] {
            let evd = self.sides[side].ia.async_evd();
            self.expect_nothing(side, evd);
        }
    }
}

#[test]
fn an_accepted_request_connects_both_sides_and_each_is_told_once() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    assert_eq!(
        (pair.state(A), pair.state(B)),
        (EpState::Unconnected, EpState::Unconnected)
    );
    pair.start_usual();
    assert_eq!(pair.state(A), EpState::ActiveConnectionPending);
    let cr = pair.request(B);
    let asked = pair.sides[B].ia.cr_query(cr).expect("undecided");
    assert_eq!(
        (asked.conn_qual, asked.private_data),
        (CONN_QUAL, &b"request"[..])
    );
    assert_eq!(
        asked.remote_ia_address,
        pair.sides[A].ia.query().ia.ia_address
    );
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), b"accept")
        .expect("UNCONNECTED");
    assert_eq!(pair.state(B), EpState::CompletionPending);
    let active = pair.connection_event(A);
    assert_eq!(
        (active.kind, active.ep, active.private_data_size),
        (Kind::Established, pair.sides[A].ep, 6)
    );
    let passive = pair.connection_event(B);
    assert_eq!(
        (passive.kind, passive.ep, passive.private_data_size),
        (Kind::Established, b, 0)
    );
    assert_eq!(pair.sides[B].ia.ep_private_data(b).expect("connected"), b"");
    assert_eq!(
        (pair.state(A), pair.state(B)),
        (EpState::Connected, EpState::Connected)
    );
    for side in [A, B] {
        pair.expect_nothing(side, pair.sides[side].connect);
    }
    // The request is used up.
    refused(
        pair.sides[B].ia.cr_query(cr).map(drop),
        ReturnType::InvalidHandle,
    );
    refused(pair.sides[B].ia.cr_reject(cr), ReturnType::InvalidHandle);
    refused(
        pair.sides[B].ia.cr_accept(cr, Some(b), b""),
        ReturnType::InvalidHandle,
    );
    pair.expect_alive();
    pair.expect_no_async_event();
    pair.assert_no_complaints();
}

#[test]
fn a_request_the_peer_rejects_is_peer_rejected() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.receive(A, 1);
    pair.receive(A, 2);
    pair.start_usual();
    let cr = pair.request(B);
    pair.sides[B].ia.cr_reject(cr).expect("undecided");
    assert_eq!(
        refused(pair.sides[B].ia.cr_reject(cr), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleCr
    );
    pair.expect_end(A, Kind::PeerRejected);
    pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
    pair.expect_recv(A, 2, DtoStatus::ErrFlushed);
    assert_eq!(pair.state(B), EpState::Unconnected);
    pair.expect_nothing(B, pair.sides[B].connect);
    // Nothing stands in the way of another try.
    let ep = pair.sides[A].ep;
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    pair.connect();
    pair.expect_alive();
    pair.assert_no_complaints();
}

#[test]
fn a_request_to_where_nobody_listens_is_rejected_by_the_provider() {
    for conn_qual in [CONN_QUAL + 1, 1, 0xffff, u64::MAX] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.receive(A, 1);
        let ep = pair.sides[A].ep;
        pair.start(A, ep, conn_qual, LONG, b"")
            .expect("nobody knows yet");
        pair.expect_end(A, Kind::NonPeerRejected);
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
        pair.expect_nothing(B, pair.sides[B].cr);
        pair.assert_no_complaints();
    }
}

#[test]
fn a_freed_service_point_refuses_new_requests_and_leaves_the_old_ones_to_the_consumer() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let second = pair.another_ep(A);
    pair.start_usual();
    let cr = pair.request(B);
    let psp = pair.psp;
    pair.sides[B].ia.psp_free(psp).expect("exists");
    refused(pair.sides[B].ia.psp_free(psp), ReturnType::InvalidHandle);
    pair.start(A, second, CONN_QUAL, LONG, b"").expect("starts");
    let event = pair.connection_event(A);
    assert_eq!((event.kind, event.ep), (Kind::NonPeerRejected, second));
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), b"")
        .expect("reported before");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.expect_alive();
    pair.assert_no_complaints();
}

#[test]
fn a_request_beyond_the_backlog_is_rejected_by_the_provider_and_loses_nothing() {
    const BACKLOG: usize = 3;
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[B]
        .ia
        .evd_create(BACKLOG as u32, EvdFlags::CR)
        .expect("an EVD");
    let room = pair.sides[B].ia.evd_query(evd).expect("exists").qlen as usize;
    pair.sides[B]
        .ia
        .psp_create(77_000, evd, PspFlags::CONSUMER)
        .expect("a PSP");
    let eps: Vec<_> = (0..room + 2).map(|_| pair.another_ep(A)).collect();
    for (at, &ep) in eps.iter().enumerate() {
        pair.start(A, ep, 77_000, LONG, &[u8::try_from(at).expect("few")])
            .expect("starts");
        pair.run_for(1);
    }
    for &ep in &eps[room..] {
        let event = pair.connection_event(A);
        assert_eq!((event.kind, event.ep), (Kind::NonPeerRejected, ep));
    }
    // That is no overflow; the others wait, in order, and can be accepted.
    pair.expect_no_async_event();
    for (at, &ep) in eps[..room].iter().enumerate() {
        let Event::ConnectionRequest(request) = pair.wait_event(B, evd) else {
            panic!("a request")
        };
        assert_eq!(
            pair.sides[B]
                .ia
                .cr_query(request.cr)
                .expect("undecided")
                .private_data,
            [at as u8]
        );
        let b = pair.another_ep(B);
        pair.sides[B]
            .ia
            .cr_accept(request.cr, Some(b), b"")
            .expect("accepted");
        let event = pair.connection_event(A);
        assert_eq!((event.kind, event.ep), (Kind::Established, ep));
        assert_eq!(pair.connection_event(B).ep, b);
    }
    pair.assert_no_complaints();
}

#[test]
fn an_attempt_ends_when_the_consumers_time_is_over_and_not_before() {
    for millis in [1, 50, 3_000] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.receive(A, 1);
        let (ep, before) = (pair.sides[A].ep, pair.now());
        pair.start(A, ep, CONN_QUAL, Timeout::from_micros(millis * 1000), b"")
            .expect("starts");
        // The peer has it, and does not decide.
        let cr = pair.request(B);
        pair.expect_end(A, Kind::TimedOut);
        let took = pair.now().0 - before.0 - 10_000_000;
        let limit = u64::from(millis) * 1_000_000;
        assert!(
            (limit..limit + 300_000).contains(&took),
            "{took} ns of {limit}"
        );
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
        // Nobody waits for the peer's answer any more.
        let b = pair.sides[B].ep;
        pair.receive(B, 2);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"late")
            .expect("the request is there still");
        pair.expect_end(B, Kind::AcceptCompletionError);
        pair.expect_recv(B, 2, DtoStatus::ErrFlushed);
        pair.expect_nothing(A, pair.sides[A].connect);
        // Both are as good as before.
        for side in [A, B] {
            let ep = pair.sides[side].ep;
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
        }
        pair.connect();
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

/// The requester goes away before the request is decided, in one way or another.
const WAYS_TO_GIVE_UP: [fn(&mut Pair); 3] = [
    |pair| {
        let ep = pair.sides[A].ep;
        pair.sides[A]
            .ia
            .ep_disconnect(ep, CloseFlags::Abrupt)
            .expect("ACTIVE_CONNECTION_PENDING");
        pair.expect_end(A, Kind::Disconnected);
    },
    |pair| {
        let ep = pair.sides[A].ep;
        pair.sides[A]
            .ia
            .ep_disconnect(ep, CloseFlags::Graceful)
            .expect("ACTIVE_CONNECTION_PENDING");
        pair.expect_end(A, Kind::Disconnected);
    },
    |pair| {
        let ep = pair.sides[A].ep;
        pair.sides[A].ia.ep_free(ep).expect("freed");
        pair.run_for(1);
        pair.expect_nothing(A, pair.sides[A].connect);
    },
];

#[test]
fn an_accept_of_a_request_nobody_waits_for_ends_in_an_accept_completion_error() {
    for give_up in WAYS_TO_GIVE_UP {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.start_usual();
        let cr = pair.request(B);
        give_up(&mut pair);
        pair.run_for(5);
        pair.receive(B, 2);
        let b = pair.sides[B].ep;
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"late")
            .expect("the request is there still");
        pair.expect_end(B, Kind::AcceptCompletionError);
        pair.expect_recv(B, 2, DtoStatus::ErrFlushed);
        pair.assert_no_complaints();
    }
}

#[test]
fn an_accept_that_crosses_with_the_end_of_the_attempt_ends_in_an_accept_completion_error() {
    for give_up in WAYS_TO_GIVE_UP {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.start_usual();
        let cr = pair.request(B);
        pair.set_delay(2_000);
        let b = pair.sides[B].ep;
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"too late")
            .expect("accepted");
        assert_eq!(pair.state(B), EpState::CompletionPending);
        give_up(&mut pair);
        pair.expect_end(B, Kind::AcceptCompletionError);
        pair.expect_nothing(A, pair.sides[A].connect);
        pair.assert_no_complaints();
    }
}

#[test]
fn a_reject_of_a_request_nobody_waits_for_is_silent() {
    for give_up in WAYS_TO_GIVE_UP {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.start_usual();
        let cr = pair.request(B);
        give_up(&mut pair);
        pair.run_for(5);
        pair.sides[B]
            .ia
            .cr_reject(cr)
            .expect("the request is there still");
        pair.run_for(5);
        for side in [A, B] {
            pair.expect_nothing(side, pair.sides[side].connect);
        }
        pair.assert_no_complaints();
    }
}

#[test]
fn a_peer_that_never_answers_is_unreachable() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.receive(A, 1);
    pair.cut();
    let (ep, before) = (pair.sides[A].ep, pair.now());
    pair.start(A, ep, CONN_QUAL, Timeout::INFINITE, b"")
        .expect("starts");
    let connect = pair.sides[A].connect;
    let (event, _) = pair.sides[A].ia.evd_wait(connect, LONG, 1).expect("an end");
    let Event::Connection(event) = event else {
        panic!("{event:?}")
    };
    assert_eq!((event.kind, event.ep), (Kind::Unreachable, ep));
    let took = pair.now().0 - before.0;
    assert!((10 * SECOND..30 * SECOND).contains(&took), "{took} ns");
    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
    pair.fabric.sim.heal();
    pair.expect_nothing(A, connect);
    pair.expect_nothing(B, pair.sides[B].cr);
    pair.assert_no_complaints();
}

#[test]
fn the_consumers_time_comes_first_when_it_is_the_shorter() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.cut();
    let ep = pair.sides[A].ep;
    pair.start(A, ep, CONN_QUAL, Timeout::from_micros(2_000_000), b"")
        .expect("starts");
    pair.expect_end(A, Kind::TimedOut);
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let v4 = |a, b, c, d| IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    let cases = [
        (v4(0, 0, 0, 0), Subtype::AddressMalformed),
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), Subtype::AddressMalformed),
        (v4(224, 0, 0, 1), Subtype::AddressUnsupported),
        (v4(255, 255, 255, 255), Subtype::AddressUnsupported),
        (
            "ff02::1".parse().expect("an address"),
            Subtype::AddressUnsupported,
        ),
        (v4(192, 0, 2, 99), Subtype::AddressUnreachable),
        (
            "2001:db8::1".parse().expect("an address"),
            Subtype::AddressUnreachable,
        ),
    ];
    let ep = pair.sides[A].ep;
    for (address, subtype) in cases {
        let none = ConnectFlags::empty();
        let tried =
            pair.sides[A]
                .ia
                .ep_connect(ep, address, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none);
        let error = refused(tried, ReturnType::InvalidAddress);
        assert_eq!(error.subtype(), subtype, "{address}");
        assert_eq!(pair.state(A), EpState::Unconnected);
    }
    pair.expect_nothing(A, pair.sides[A].connect);
    pair.connect();
}

#[test]
fn the_link_local_address_connects_as_the_ipv4_address_does() {
    for ipv4 in [true, false] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let address = if ipv4 {
            Fabric::ipv4(B)
        } else {
            let gid = pair.sides[B].ia.provider().hca().gids()[0].gid;
            IpAddr::V6(Ipv6Addr::from(gid))
        };
        assert_eq!(address.is_ipv4(), ipv4);
        let ep = pair.sides[A].ep;
        let none = ConnectFlags::empty();
        pair.sides[A]
            .ia
            .ep_connect(ep, address, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none)
            .expect("starts");
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        let asker = pair.sides[B]
            .ia
            .cr_query(cr)
            .expect("undecided")
            .remote_ia_address;
        assert_eq!(asker.is_ipv4(), ipv4, "{asker}");
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"")
            .expect("accepted");
        pair.expect_connection(A, Kind::Established);
        pair.expect_connection(B, Kind::Established);
        assert_eq!(
            pair.sides[A]
                .ia
                .ep_query(ep)
                .expect("exists")
                .remote_ia_address,
            Some(address)
        );
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

#[test]
fn parameters_of_a_connect_are_refused_before_anything_happens() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (ep, address) = (pair.sides[A].ep, pair.sides[B].ia.query().ia.ia_address);
    let none = ConnectFlags::empty();
    let ia = &mut pair.sides[A].ia;
    let long = [0; 65];
    let best = Qos::BEST_EFFORT;
    let bad = [
        (
            ia.ep_connect(ep, address, 0, LONG, b"", best, none),
            Subtype::Arg3,
        ),
        (
            ia.ep_connect(ep, address, CONN_QUAL, Timeout::ZERO, b"", best, none),
            Subtype::Arg4,
        ),
        (
            ia.ep_connect(ep, address, CONN_QUAL, LONG, &long, best, none),
            Subtype::Arg5,
        ),
        (
            ia.ep_connect(ep, address, 80, LONG, &long[..57], best, none),
            Subtype::Arg5,
        ),
        (
            ia.ep_connect(
                ep,
                address,
                CONN_QUAL,
                LONG,
                b"",
                best,
                ConnectFlags::from_bits_retain(2),
            ),
            Subtype::Arg8,
        ),
    ];
    for (tried, subtype) in bad {
        assert_eq!(
            refused(tried, ReturnType::InvalidParameter).subtype(),
            subtype
        );
    }
    for qos in [
        Qos::HIGH_THROUGHPUT,
        Qos::LOW_LATENCY,
        Qos::ECONOMY,
        Qos::PREMIUM,
    ] {
        refused(
            ia.ep_connect(ep, address, CONN_QUAL, LONG, b"", qos, none),
            ReturnType::ModelNotSupported,
        );
    }
    refused(
        ia.ep_connect(
            ep,
            address,
            CONN_QUAL,
            LONG,
            b"",
            best,
            ConnectFlags::MULTIPATH,
        ),
        ReturnType::ModelNotSupported,
    );
    // Without a PZ there is nothing to connect.
    let bare = ia
        .ep_create(None, None, None, None, None)
        .expect("half-configured");
    let error = refused(
        ia.ep_connect(bare, address, CONN_QUAL, LONG, b"", best, none),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpNotReady);
    assert_eq!(pair.state(A), EpState::Unconnected);
    pair.run_for(1);
    pair.expect_nothing(B, pair.sides[B].cr);
    pair.assert_no_complaints();
}

/// Connects with this private data in both directions; what arrived.
fn exchange_private_data(
    conn_qual: u64,
    request: &[u8],
    accept: &[u8],
) -> (Pair, Vec<u8>, Vec<u8>) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[B].cr;
    if conn_qual != CONN_QUAL {
        pair.sides[B]
            .ia
            .psp_create(conn_qual, evd, PspFlags::CONSUMER)
            .expect("a PSP");
    }
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    let mut own = request.to_vec();
    pair.start(A, a, conn_qual, LONG, &own).expect("starts");
    own.fill(0xee); // it is ours again
    let cr = pair.request(B);
    let asked = pair.sides[B]
        .ia
        .cr_query(cr)
        .expect("undecided")
        .private_data
        .to_vec();
    let mut own = accept.to_vec();
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), &own)
        .expect("accepted");
    own.fill(0xee);
    let event = pair.connection_event(A);
    assert_eq!(event.kind, Kind::Established);
    let answered = pair.sides[A]
        .ia
        .ep_private_data(a)
        .expect("connected")
        .to_vec();
    assert_eq!(event.private_data_size, answered.len());
    pair.expect_connection(B, Kind::Established);
    (pair, asked, answered)
}

#[test]
fn private_data_arrives_byte_for_byte_whatever_its_length() {
    for bytes in 0..=64 {
        let (request, accept) = (support::pattern(1, bytes), support::pattern(2, 64 - bytes));
        let (mut pair, asked, answered) = exchange_private_data(CONN_QUAL, &request, &accept);
        assert_eq!((asked, &answered), (request, &accept), "{bytes} bytes");
        // It stays while the endpoint is DISCONNECTED, and no longer.
        pair.disconnect();
        let ep = pair.sides[A].ep;
        assert_eq!(
            pair.sides[A].ia.ep_private_data(ep).expect("exists"),
            accept
        );
        pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
        assert_eq!(pair.sides[A].ia.ep_private_data(ep).expect("exists"), b"");
    }
}

#[test]
fn private_data_that_looks_like_a_header_or_like_padding_arrives_all_the_same() {
    let cases: [&[u8]; 6] = [
        &[0; 64],
        &[0xff; 64],
        &[0; 1],
        &[0xda, 1, 0, 2, 9, 9],
        &[0xda; 64],
        &[0xda, 1],
    ];
    for data in cases {
        let (_, asked, answered) = exchange_private_data(CONN_QUAL, data, data);
        assert_eq!((&asked[..], &answered[..]), (data, data));
    }
}

#[test]
fn private_data_through_a_port_of_the_rdma_cm_is_padded_with_zeros() {
    for (port, bytes) in [(1, 0), (80, 1), (4420, 55), (0xffff, 56)] {
        let (request, accept) = (support::pattern(3, bytes), support::pattern(4, 64 - bytes));
        let (pair, asked, answered) = exchange_private_data(port, &request, &accept);
        let mut padded = request.clone();
        padded.resize(56, 0);
        assert_eq!(asked, padded, "{bytes} bytes");
        let mut padded = accept.clone();
        padded.resize(196, 0);
        assert_eq!(answered, padded, "{bytes} bytes");
        // Such a connection has a port of its own, which the peer is told.
        let param = pair.sides[A].ia.ep_query(pair.sides[A].ep).expect("exists");
        assert!(
            (0xc000..=0xffff).contains(&param.local_port_qual),
            "{}",
            param.local_port_qual
        );
        assert_eq!(param.remote_port_qual, port);
        let peer = pair.sides[B].ia.ep_query(pair.sides[B].ep).expect("exists");
        assert_eq!(peer.remote_port_qual, param.local_port_qual);
    }
}

#[test]
fn an_accept_with_too_much_private_data_leaves_the_request_undecided() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.start_usual();
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let error = refused(
        pair.sides[B].ia.cr_accept(cr, Some(b), &[0; 65]),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg3);
    refused(
        pair.sides[B].ia.cr_accept(cr, None, b""),
        ReturnType::InvalidHandle,
    );
    assert_eq!(pair.state(B), EpState::Unconnected);
    assert_eq!(
        pair.sides[B]
            .ia
            .cr_query(cr)
            .expect("undecided")
            .private_data,
        b"request"
    );
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), &[0; 64])
        .expect("as much as fits");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.assert_no_complaints();
}

const FLAGS: [CloseFlags; 2] = [CloseFlags::Abrupt, CloseFlags::Graceful];

#[test]
fn a_disconnect_ends_the_connection_for_both_whoever_asks_and_however() {
    for side in [A, B] {
        for flags in FLAGS {
            let mut pair = Pair::connected();
            for side in [A, B] {
                pair.receive(side, 1);
                pair.receive(side, 2);
            }
            let ep = pair.sides[side].ep;
            pair.sides[side]
                .ia
                .ep_disconnect(ep, flags)
                .expect("CONNECTED");
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                pair.expect_recv(side, 1, DtoStatus::ErrFlushed);
                pair.expect_recv(side, 2, DtoStatus::ErrFlushed);
            }
            // Again is no error, and no event.
            for flags in FLAGS {
                pair.sides[side]
                    .ia
                    .ep_disconnect(ep, flags)
                    .expect("no effect");
            }
            for side in [A, B] {
                pair.expect_nothing(side, pair.sides[side].connect);
            }
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn disconnects_of_both_at_once_end_the_connection_once_for_each() {
    for (one, other) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for delay in [0, 500] {
            let mut pair = Pair::connected();
            pair.set_delay(delay);
            for (side, flags) in [(A, FLAGS[one]), (B, FLAGS[other])] {
                pair.receive(side, 1);
                let ep = pair.sides[side].ep;
                pair.sides[side]
                    .ia
                    .ep_disconnect(ep, flags)
                    .expect("CONNECTED");
            }
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                pair.expect_recv(side, 1, DtoStatus::ErrFlushed);
            }
            // Long after the last datagram may still come.
            pair.run_for(2_000);
            for side in [A, B] {
                pair.expect_nothing(side, pair.sides[side].connect);
            }
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn a_graceful_disconnect_finishes_what_was_posted_and_takes_nothing_new() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 10_000), pair.buffer(B, 10_000));
    from.write(0, &support::pattern(5, 10_000));
    for cookie in 0..4 {
        pair.post_recv(B, &[to.all()], cookie, NONE)
            .expect("posted");
    }
    pair.receive(A, 9);
    pair.set_delay(3_000);
    for cookie in 0..3 {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    let error = refused(
        pair.post_send(A, &[from.all()], 7, NONE),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpDisconnectPending);
    refused(
        pair.post_write(A, &[from.all()], 7, &to.remote(0, 10_000), NONE),
        ReturnType::InvalidState,
    );
    refused(
        pair.post_read(A, &[from.all()], 7, &to.remote(0, 10_000), NONE),
        ReturnType::InvalidState,
    );
    pair.receive(A, 10);
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("no effect");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    for cookie in 0..3 {
        pair.expect_request(A, cookie, DtoStatus::Success);
        pair.expect_recv(B, cookie, DtoStatus::Success);
    }
    assert_eq!(to.read(0, 10_000), support::pattern(5, 10_000));
    pair.expect_end(A, Kind::Disconnected);
    pair.expect_end(B, Kind::Disconnected);
    pair.expect_recv(A, 9, DtoStatus::ErrFlushed);
    pair.expect_recv(A, 10, DtoStatus::ErrFlushed);
    pair.expect_recv(B, 3, DtoStatus::ErrFlushed);
    pair.assert_no_complaints();
}

#[test]
fn an_abrupt_disconnect_ends_a_graceful_one_that_takes_too_long() {
    let mut pair = Pair::connected();
    pair.cut();
    for cookie in 0..3 {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    pair.run_for(1);
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("DISCONNECT_PENDING");
    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.expect_end(A, Kind::Disconnected);
    for cookie in 0..3 {
        pair.expect_request(A, cookie, DtoStatus::ErrFlushed);
    }
    pair.fabric.sim.heal();
    pair.expect_end(B, Kind::Disconnected);
    pair.assert_no_complaints();
}

#[test]
fn a_graceful_disconnect_that_runs_into_an_error_is_a_broken_connection() {
    let mut pair = Pair::connected();
    pair.cut();
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("CONNECTED");
    pair.expect_end(A, Kind::Broken);
    pair.expect_request(A, 1, DtoStatus::ErrTransport);
}

#[test]
fn a_wire_that_is_pulled_breaks_the_connection_and_heals_for_the_next() {
    let mut pair = Pair::connected();
    let function = pair.fabric.function(B);
    pair.fabric.sim.inject(&function, &Fault::LinkDown);
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    pair.expect_end(A, Kind::Broken);
    pair.expect_request(A, 1, DtoStatus::ErrTransport);
    pair.fabric.sim.inject(&function, &Fault::LinkUp);
    pair.expect_end(B, Kind::Disconnected);
    for side in [A, B] {
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    pair.connect();
    pair.expect_alive();
}

#[test]
fn an_endpoint_connects_again_after_a_reset_and_has_forgotten_the_past() {
    let mut pair = Pair::connected();
    for round in 0..5 {
        pair.expect_alive();
        for cookie in 0..10 {
            pair.receive(A, cookie);
            pair.receive(B, cookie);
        }
        let side = round % 2;
        let ep = pair.sides[side].ep;
        pair.sides[side]
            .ia
            .ep_disconnect(ep, FLAGS[side])
            .expect("CONNECTED");
        for side in [A, B] {
            pair.expect_end(side, Kind::Disconnected);
            let ep = pair.sides[side].ep;
            // The marker: when it is there, nothing earlier can be lost.
            pair.receive(side, 99);
            for cookie in (0..10).chain([99]) {
                pair.expect_recv(side, cookie, DtoStatus::ErrFlushed);
            }
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
            assert_eq!(pair.state(side), EpState::Unconnected);
            pair.sides[side].ia.ep_reset(ep).expect("a no-op");
            let status = pair.sides[side].ia.ep_get_status(ep).expect("exists");
            assert!(status.recv_idle && status.request_idle);
            let param = pair.sides[side].ia.ep_query(ep).expect("exists");
            assert_eq!((param.remote_ia_address, param.remote_port_qual), (None, 0));
        }
        pair.connect();
    }
    pair.expect_alive();
    pair.assert_no_complaints();
}

#[test]
fn an_endpoint_may_be_active_in_one_connection_and_passive_in_the_next() {
    let mut pair = Pair::connected();
    let evd = pair.sides[A].cr;
    pair.sides[A]
        .ia
        .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
        .expect("a PSP");
    pair.disconnect();
    for side in [A, B] {
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    pair.start(B, b, CONN_QUAL, LONG, b"the other way")
        .expect("starts");
    let cr = pair.request(A);
    pair.sides[A]
        .ia
        .cr_accept(cr, Some(a), b"")
        .expect("accepted");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.expect_alive();
    pair.assert_no_complaints();
}

#[test]
fn receives_posted_before_the_connection_survive_a_reset_that_does_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let to = pair.buffer(B, 64);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.post_recv(B, &[to.all()], 2, NONE).expect("posted");
    let b = pair.sides[B].ep;
    pair.sides[B].ia.ep_reset(b).expect("a no-op");
    assert!(!pair.sides[B].ia.ep_get_status(b).expect("exists").recv_idle);
    pair.connect();
    let from = pair.buffer(A, 64);
    for cookie in [1, 2] {
        pair.post_send(A, &[from.all()], 9, NONE).expect("posted");
        pair.expect_recv(B, cookie, DtoStatus::Success);
    }
    pair.assert_no_complaints();
}

#[test]
fn freeing_a_connected_endpoint_disconnects_the_peer_and_tells_nobody_here() {
    for side in [A, B] {
        let mut pair = Pair::connected();
        pair.receive(side, 1);
        pair.receive(1 - side, 2);
        pair.post_send(side, EMPTY, 3, NONE).expect("posted");
        let ep = pair.sides[side].ep;
        pair.sides[side].ia.ep_free(ep).expect("legal in CONNECTED");
        refused(pair.sides[side].ia.ep_free(ep), ReturnType::InvalidHandle);
        refused(
            pair.sides[side].ia.ep_get_status(ep),
            ReturnType::InvalidHandle,
        );
        pair.expect_end(1 - side, Kind::Disconnected);
        pair.run_for(10);
        pair.expect_nothing(side, pair.sides[side].connect);
        // Everything it used is free.
        let (evds, pz) = (
            [
                pair.sides[side].recv,
                pair.sides[side].request,
                pair.sides[side].connect,
            ],
            pair.sides[side].pz,
        );
        for evd in evds {
            pair.sides[side].ia.evd_free(evd).expect("nothing feeds it");
        }
        pair.sides[side].ia.pz_free(pz).expect("nothing is in it");
        pair.assert_no_complaints();
    }
}

#[test]
fn a_null_connect_evd_hears_nothing_and_the_endpoint_connects_all_the_same() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for side in [A, B] {
        let ep = pair.sides[side].ep;
        let deaf = EpChange {
            connect_evd: Some(None),
            ..EpChange::default()
        };
        pair.sides[side]
            .ia
            .ep_modify(ep, &deaf)
            .expect("UNCONNECTED");
    }
    pair.start_usual();
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), b"")
        .expect("accepted");
    pair.run_for(1);
    assert_eq!(
        (pair.state(A), pair.state(B)),
        (EpState::Connected, EpState::Connected)
    );
    pair.expect_alive();
    let a = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(a, CloseFlags::Abrupt)
        .expect("CONNECTED");
    pair.run_for(1);
    assert_eq!(
        (pair.state(A), pair.state(B)),
        (EpState::Disconnected, EpState::Disconnected)
    );
    for side in [A, B] {
        pair.expect_nothing(side, pair.sides[side].connect);
    }
    pair.expect_no_async_event();
    pair.assert_no_complaints();
}

/// An endpoint in a state, the side it is on, and a request that is undecided there.
fn endpoint_in(state: EpState) -> (Pair, usize, CrHandle) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[A].cr;
    pair.sides[A]
        .ia
        .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
        .expect("a PSP");
    let side = usize::from(state == EpState::CompletionPending);
    let other = pair.another_ep(1 - side);
    pair.start(1 - side, other, CONN_QUAL, LONG, b"another")
        .expect("starts");
    let undecided = pair.request(side);
    match state {
        EpState::Unconnected => {}
        EpState::ActiveConnectionPending => pair.start_usual(),
        EpState::CompletionPending => {
            pair.start_usual();
            let (cr, b) = (pair.request(B), pair.sides[B].ep);
            // A's software does not run, so nobody completes the handshake.
            pair.sides[B]
                .ia
                .cr_accept(cr, Some(b), b"")
                .expect("accepted");
        }
        EpState::Connected => pair.connect(),
        EpState::DisconnectPending => {
            pair.connect();
            pair.cut();
            pair.post_send(A, EMPTY, 0, NONE).expect("posted");
            let a = pair.sides[A].ep;
            pair.sides[A]
                .ia
                .ep_disconnect(a, CloseFlags::Graceful)
                .expect("CONNECTED");
        }
        EpState::Disconnected => {
            pair.connect();
            pair.disconnect();
        }
        EpState::Reserved
        | EpState::PassiveConnectionPending
        | EpState::TentativeConnectionPending => {
            panic!("{state:?} is reached otherwise")
        }
    }
    assert_eq!(pair.state(side), state);
    (pair, side, undecided)
}

/// A call on the endpoint of a side, which may decide a request.
type Call = fn(&mut Pair, usize, EpHandle, CrHandle) -> DatResult<()>;

#[test]
fn every_call_is_legal_in_the_states_of_the_table_and_in_no_other() {
    use EpState as S;
    let states = [
        S::Unconnected,
        S::ActiveConnectionPending,
        S::CompletionPending,
        S::Connected,
        S::DisconnectPending,
        S::Disconnected,
    ];
    // Where each call leads, by state; None is DAT_INVALID_STATE with the state's name.
    let calls: [(&str, Call, [Option<EpState>; 6]); 8] = [
        (
            "connect",
            |pair, side, ep, _| pair.start(side, ep, CONN_QUAL, LONG, b""),
            [
                Some(S::ActiveConnectionPending),
                None,
                None,
                None,
                None,
                None,
            ],
        ),
        (
            "accept",
            |pair, side, ep, cr| pair.sides[side].ia.cr_accept(cr, Some(ep), b""),
            [Some(S::CompletionPending), None, None, None, None, None],
        ),
        (
            "abrupt disconnect",
            |pair, side, ep, _| pair.sides[side].ia.ep_disconnect(ep, CloseFlags::Abrupt),
            [
                None,
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
            ],
        ),
        (
            "graceful disconnect",
            |pair, side, ep, _| {
                if pair.state(side) == S::Connected {
                    pair.cut();
                    pair.post_send(side, EMPTY, 0, NONE)?;
                }
                pair.sides[side].ia.ep_disconnect(ep, CloseFlags::Graceful)
            },
            [
                None,
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::DisconnectPending),
                Some(S::DisconnectPending),
                Some(S::Disconnected),
            ],
        ),
        (
            "reset",
            |pair, side, ep, _| pair.sides[side].ia.ep_reset(ep),
            [
                Some(S::Unconnected),
                None,
                None,
                None,
                None,
                Some(S::Unconnected),
            ],
        ),
        (
            "post_send",
            |pair, side, _, _| pair.post_send(side, EMPTY, 1, NONE),
            [
                None,
                None,
                None,
                Some(S::Connected),
                None,
                Some(S::Disconnected),
            ],
        ),
        (
            "post_recv",
            |pair, side, _, _| pair.post_recv(side, EMPTY, 1, NONE),
            states.map(Some),
        ),
        (
            "modify",
            |pair, side, ep, _| {
                let mut attr = pair.sides[side].ia.ep_query(ep)?.attr;
                attr.max_recv_dtos += 1;
                pair.sides[side].ia.ep_modify(
                    ep,
                    &EpChange {
                        attr: Some(attr),
                        ..EpChange::default()
                    },
                )
            },
            [Some(S::Unconnected), None, None, None, None, None],
        ),
    ];
    for (name, call, leads_to) in calls {
        for (state, expected) in states.into_iter().zip(leads_to) {
            let (mut pair, side, cr) = endpoint_in(state);
            let ep = pair.sides[side].ep;
            let result = call(&mut pair, side, ep, cr);
            match expected {
                Some(next) => {
                    result.unwrap_or_else(|error| panic!("{name} in {state:?}: {error}"));
                    assert_eq!(pair.state(side), next, "{name} in {state:?}");
                }
                None => {
                    let error = refused(result, ReturnType::InvalidState);
                    assert_eq!(error.subtype(), state.subtype(), "{name} in {state:?}");
                    assert_eq!(pair.state(side), state, "{name} in {state:?}");
                    pair.sides[side].ia.cr_query(cr).expect("undecided still");
                }
            }
            // Queries are legal anyway, and so is the end.
            pair.sides[side]
                .ia
                .ep_query(ep)
                .expect("legal in every state");
            pair.sides[side]
                .ia
                .ep_get_status(ep)
                .expect("legal in every state");
            pair.sides[side]
                .ia
                .ep_free(ep)
                .expect("legal in every state it can be in here");
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn a_qualifier_is_listened_at_once_and_again_when_it_is_free() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[B];
    refused(
        side.ia.psp_create(CONN_QUAL, side.cr, PspFlags::CONSUMER),
        ReturnType::ConnQualInUse,
    );
    let bad = refused(
        side.ia.psp_create(0, side.cr, PspFlags::CONSUMER),
        ReturnType::InvalidParameter,
    );
    assert_eq!(bad.subtype(), Subtype::Arg2);
    let bad = refused(
        side.ia.psp_create(5, side.recv, PspFlags::CONSUMER),
        ReturnType::InvalidHandle,
    );
    assert_eq!(bad.subtype(), Subtype::HandleEvdCr);
    let (first, _) = side
        .ia
        .psp_create_any(side.cr, PspFlags::CONSUMER)
        .expect("there are many");
    let (second, psp) = side
        .ia
        .psp_create_any(side.cr, PspFlags::CONSUMER)
        .expect("there are many");
    assert_ne!(first, second);
    assert_eq!(side.ia.psp_query(psp).expect("exists").conn_qual, second);
    side.ia.psp_free(pair.psp).expect("exists");
    pair.psp = side
        .ia
        .psp_create(CONN_QUAL, side.cr, PspFlags::CONSUMER)
        .expect("free again");
    pair.connect();
    let a = pair.another_ep(A);
    pair.start(A, a, second, LONG, b"").expect("starts");
    let cr = pair.request(B);
    assert_eq!(
        pair.sides[B].ia.cr_query(cr).expect("undecided").conn_qual,
        second
    );
    pair.assert_no_complaints();
}

#[test]
fn connections_come_and_go_over_a_wire_that_loses_and_each_end_is_told_once() {
    for seed in 0..12 {
        let faults = Faults {
            loss_ppm: 200_000,
            duplicate_ppm: 100_000,
            reorder_ppm: 100_000,
            reorder_ns: 500_000,
            delay_ns: 20_000,
            ..Faults::NONE
        };
        let config = PairConfig {
            seed,
            faults: LinkFaults::both(faults),
            event_log: false,
            ..PairConfig::default()
        };
        let mut pair = Pair::unconnected(&config);
        for round in 0..4 {
            pair.connect_patiently();
            let side = (round + usize::from(seed % 2 == 0)) % 2;
            let ep = pair.sides[side].ep;
            pair.sides[side]
                .ia
                .ep_disconnect(ep, FLAGS[round / 2])
                .expect("CONNECTED");
            for side in [A, B] {
                pair.expect_end(side, Kind::Disconnected);
                let ep = pair.sides[side].ep;
                pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
            }
        }
        pair.assert_no_complaints();
    }
}

#[test]
fn many_connections_of_two_adapters_do_not_disturb_each_other() {
    const MANY: usize = 100;
    let mut pair = Pair::unconnected(&PairConfig {
        event_log: false,
        ..PairConfig::default()
    });
    for side in [A, B] {
        let ia = &mut pair.sides[side].ia;
        pair.sides[side].connect = ia.evd_create(1_000, EvdFlags::CONNECTION).expect("an EVD");
    }
    let all: Vec<_> = (0..MANY)
        .map(|_| (pair.another_ep(A), pair.another_ep(B)))
        .collect();
    for &(a, b) in &all {
        pair.connect_endpoints(a, b);
    }
    let (from, to) = (pair.buffer(A, 8), pair.buffer(B, 8 * MANY));
    for (at, &(a, b)) in all.iter().enumerate() {
        pair.sides[B]
            .ia
            .ep_post_recv(b, &[to.part(8 * at, 8)], at as u64, NONE)
            .expect("posted");
        from.write(0, &(at as u64).to_be_bytes());
        pair.sides[A]
            .ia
            .ep_post_send(a, &[from.all()], at as u64, NONE)
            .expect("posted");
        assert_eq!(pair.wait_request(A).ep, a);
        let done = pair.wait_recv(B);
        assert_eq!((done.ep, done.cookie), (b, at as u64));
        assert_eq!(to.read(8 * at, 8), (at as u64).to_be_bytes());
    }
    // Every other one goes.
    for &(a, b) in all.iter().step_by(2) {
        pair.sides[A]
            .ia
            .ep_disconnect(a, CloseFlags::Abrupt)
            .expect("CONNECTED");
        let (here, there) = (pair.connection_event(A), pair.connection_event(B));
        assert_eq!(
            (here.kind, here.ep, there.kind, there.ep),
            (Kind::Disconnected, a, Kind::Disconnected, b)
        );
    }
    for (at, &(a, b)) in all.iter().enumerate() {
        let expected = if at % 2 == 0 {
            EpState::Disconnected
        } else {
            EpState::Connected
        };
        assert_eq!(
            (pair.state_of(A, a), pair.state_of(B, b)),
            (expected, expected)
        );
    }
    pair.assert_no_complaints();
}

#[test]
fn memory_rights_of_a_region_are_no_matter_of_the_connection() {
    // A region registered before the connection serves it, and the next one.
    let mut pair = Pair::unconnected(&PairConfig::default());
    let pz = pair.sides[B].pz;
    let to = pair.buffer_in(
        B,
        64,
        pz,
        MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_WRITE,
    );
    let from = pair.buffer(A, 64);
    from.write(0, &[7; 64]);
    for _ in 0..2 {
        pair.connect();
        to.write(0, &[0; 64]);
        pair.post_write(A, &[from.all()], 1, &to.remote(0, 64), NONE)
            .expect("posted");
        pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(to.read(0, 64), [7; 64]);
        pair.disconnect();
        for side in [A, B] {
            let ep = pair.sides[side].ep;
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
        }
    }
    pair.assert_no_complaints();
}

/// The firmware refuses the next command with this opcode.
fn refuse_next(pair: &Pair, side: usize, opcode: Opcode) {
    let fault = Fault::CommandFailure {
        opcode: Some(opcode.0),
        status: 0x0f,
        syndrome: 0x1234,
        count: 1,
    };
    pair.fabric.sim.inject(&pair.fabric.function(side), &fault);
}

#[test]
fn an_accept_the_device_refuses_leaves_the_request_and_the_endpoint_as_they_were() {
    for opcode in [Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.start_usual();
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        refuse_next(&pair, B, opcode);
        let error = refused(
            pair.sides[B].ia.cr_accept(cr, Some(b), b""),
            ReturnType::InsufficientResources,
        );
        assert_eq!(error.subtype(), Subtype::ResourceTep, "{opcode:?}");
        // What the device said is there for a person.
        let said = pair.sides[B]
            .ia
            .last_device_error()
            .expect("it said something");
        assert!(
            said.contains("0x0f") && said.contains("0x00001234"),
            "{said}"
        );
        assert_eq!(pair.state(B), EpState::Unconnected);
        pair.sides[B].ia.cr_query(cr).expect("undecided");
        pair.expect_nothing(B, pair.sides[B].connect);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"")
            .expect("the second time it works");
        pair.expect_connection(A, Kind::Established);
        pair.expect_connection(B, Kind::Established);
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

#[test]
fn a_reply_the_device_does_not_follow_ends_the_attempt_for_both() {
    for opcode in [Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.receive(A, 1);
        pair.start_usual();
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"")
            .expect("accepted");
        refuse_next(&pair, A, opcode);
        pair.expect_end(A, Kind::NonPeerRejected);
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
        pair.expect_end(B, Kind::AcceptCompletionError);
        for side in [A, B] {
            let ep = pair.sides[side].ep;
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
        }
        pair.connect();
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

#[test]
fn a_reset_the_device_refuses_leaves_the_endpoint_disconnected() {
    let mut pair = Pair::connected();
    pair.disconnect();
    let ep = pair.sides[A].ep;
    refuse_next(&pair, A, Opcode::TO_RST_QP);
    refused(
        pair.sides[A].ia.ep_reset(ep),
        ReturnType::InsufficientResources,
    );
    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.sides[A]
        .ia
        .ep_reset(ep)
        .expect("the second time it works");
    assert_eq!(pair.state(A), EpState::Unconnected);
}
