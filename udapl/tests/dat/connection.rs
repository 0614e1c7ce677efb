//! Connection attempts, and every way in which either side can end an attempt.
//!
//! `disconnect.rs` tests the end of connections, `closing.rs` the close of adapters, `private_data.rs` private data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mlx_prm::Opcode;
use udapl::endpoint::{EpChange, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::fabric::Fabric;
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DtoCookie, DtoStatus, EpEvds,
    EvdFlags, Event, PspFlags, Qos, Timeout,
};

use crate::support::connecting::SECOND;
use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

/// Clauses: CONN-1.
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
    // The request handle is no longer valid.
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

/// The device reports that acknowledgements take 2^16 units of 4.096 µs (`local_ca_ack_delay` 16, as a ConnectX-4 Lx
/// does), which is 268 ms. With a shorter timeout the peer would retransmit packets that were not lost.
///
/// Clauses: RECV-R6, CONN-3.
#[test]
fn a_connection_waits_for_acknowledgements_as_long_as_the_device_says() {
    let mut pair = Pair::connected();
    for side in [A, B] {
        let context = pair.connected_qp(side).1;
        assert_eq!(context.primary_address_path().ack_timeout(), 17);
    }
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
    // Another attempt is possible.
    let ep = pair.sides[A].ep;
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    pair.connect();
    pair.expect_alive();
    pair.assert_no_complaints();
}

/// Clauses: CONN-4.
#[test]
fn a_request_to_where_nobody_listens_is_rejected_by_the_provider() {
    for conn_qual in [support::beside(1).0, 1, 0xffff, u64::MAX].map(ConnQual) {
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

/// Clauses: CONN-4, PSPC-6.
#[test]
fn a_request_beyond_the_backlog_is_rejected_by_the_provider_and_loses_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[B]
        .ia
        .evd_create(3, EvdFlags::CR)
        .expect("an EVD");
    let room = pair.sides[B].ia.evd_query(evd).expect("exists").qlen as usize;
    pair.sides[B]
        .ia
        .psp_create(ConnQual(77_000), evd, PspFlags::CONSUMER)
        .expect("a PSP");
    let eps: Vec<_> = (0..room + 2).map(|_| pair.another_ep(A)).collect();
    for (at, &ep) in eps.iter().enumerate() {
        pair.start(
            A,
            ep,
            ConnQual(77_000),
            LONG,
            &[u8::try_from(at).expect("few")],
        )
        .expect("starts");
        pair.run_for(1);
    }
    for &ep in &eps[room..] {
        let event = pair.connection_event(A);
        assert_eq!((event.kind, event.ep), (Kind::NonPeerRejected, ep));
    }
    // The rejection is no overflow of the EVD. The other requests are queued in order, and can be accepted.
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
            [u8::try_from(at).expect("few")]
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

/// Clauses: CONN-5.
#[test]
fn an_attempt_ends_when_the_consumers_time_is_over_and_not_before() {
    for millis in [1, 50, 3_000] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.receive(A, 1);
        let (ep, before) = (pair.sides[A].ep, pair.now());
        pair.start(A, ep, CONN_QUAL, Timeout::from_micros(millis * 1000), b"")
            .expect("starts");
        // The peer has received the request, and does not decide it.
        let cr = pair.request(B);
        pair.expect_end(A, Kind::TimedOut);
        let took = pair.now().0 - before.0 - 10_000_000;
        let limit = u64::from(millis) * 1_000_000;
        assert!(
            (limit..limit + 300_000).contains(&took),
            "{took} ns of {limit}"
        );
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
        // The attempt has ended, so the peer's reply has no effect.
        let b = pair.sides[B].ep;
        pair.receive(B, 2);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"late")
            .expect("the request is there still");
        pair.expect_end(B, Kind::AcceptCompletionError);
        pair.expect_recv(B, 2, DtoStatus::ErrFlushed);
        pair.expect_nothing(A, pair.sides[A].connect);
        // Both endpoints can connect again.
        for side in [A, B] {
            let ep = pair.sides[side].ep;
            pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
        }
        pair.connect();
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

/// Ways in which the requester gives up before the peer has decided the request.
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

/// An accept of a request whose requester has given up ends in DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR.
///
/// Clauses: CRA-5.
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

/// Clauses: CONN-6.
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

/// Clauses: CONN-8.
#[test]
fn an_address_that_is_none_is_refused_at_once() {
    // Without the network module, an address that cannot be resolved is refused at once, too.
    let mut pair = Pair::unconnected(&PairConfig {
        options: [A, B].map(|side| Fabric::options(side).network(false)),
        ..PairConfig::default()
    });
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
        assert!(!error.detail().is_empty(), "{error}");
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

/// Clauses: CONN-8.
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
            ia.ep_connect(ep, address, ConnQual(0), LONG, b"", best, none),
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
            ia.ep_connect(ep, address, ConnQual(80), LONG, &long[..57], best, none),
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
    let unknown = Qos::from_bits_retain(0x10);
    refused(
        ia.ep_connect(ep, address, CONN_QUAL, LONG, b"", unknown, none),
        ReturnType::ModelNotSupported,
    );
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
    // An endpoint without a PZ cannot connect.
    let bare = ia
        .ep_create(None, EpEvds::NONE, None)
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

/// An endpoint with a null connect EVD connects, and no event reports the connection.
///
/// Clauses: EPC-3.
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

#[test]
fn a_qualifier_is_listened_at_once_and_again_when_it_is_free() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[B];
    refused(
        side.ia.psp_create(CONN_QUAL, side.cr, PspFlags::CONSUMER),
        ReturnType::ConnQualInUse,
    );
    let bad = refused(
        side.ia.psp_create(ConnQual(0), side.cr, PspFlags::CONSUMER),
        ReturnType::InvalidParameter,
    );
    assert_eq!(bad.subtype(), Subtype::Arg2);
    let bad = refused(
        side.ia
            .psp_create(ConnQual(5), side.recv, PspFlags::CONSUMER),
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
            .ep_post_recv(b, &[to.part(8 * at, 8)], DtoCookie(at as u64), NONE)
            .expect("posted");
        from.write(0, &(at as u64).to_be_bytes());
        pair.sides[A]
            .ia
            .ep_post_send(a, &[from.all()], DtoCookie(at as u64), NONE)
            .expect("posted");
        assert_eq!(pair.wait_request(A).ep, a);
        let done = pair.wait_recv(B);
        assert_eq!((done.ep, done.cookie.0), (b, at as u64));
        assert_eq!(to.read(8 * at, 8), (at as u64).to_be_bytes());
    }
    // Every second connection is disconnected.
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
fn an_accept_the_device_refuses_leaves_the_request_and_the_endpoint_as_they_were() {
    for opcode in [Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.start_usual();
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        pair.refuse_next(B, opcode);
        let error = refused(
            pair.sides[B].ia.cr_accept(cr, Some(b), b""),
            ReturnType::InsufficientResources,
        );
        assert_eq!(error.subtype(), Subtype::ResourceTep, "{opcode:?}");
        // The device's error is available as text.
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

/// An accept that the device refuses does not lose the receives that were posted to the endpoint before, even if the
/// device also refuses a command of the rollback.
///
/// Clauses: RECV-7.
#[test]
fn an_accept_the_device_refuses_keeps_the_receives_posted_before() {
    for also in [None, Some(Opcode::TO_RST_QP), Some(Opcode::RST2INIT_QP)] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let (sink, data) = (pair.buffer(B, 64), pair.buffer(A, 64));
        for (cookie, at) in [(1, 0), (2, 32)] {
            pair.post_recv(B, &[sink.part(at, 32)], cookie, NONE)
                .expect("posted");
        }
        pair.start_usual();
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        pair.refuse_next(B, Opcode::RTR2RTS_QP);
        if let Some(opcode) = also {
            pair.refuse_next(B, opcode);
        }
        refused(
            pair.sides[B].ia.cr_accept(cr, Some(b), b""),
            ReturnType::InsufficientResources,
        );
        let status = pair.sides[B].ia.ep_get_status(b).expect("a status");
        assert_eq!(
            (status.state, status.recv_idle),
            (EpState::Unconnected, false)
        );
        let taken = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
        taken.expect("the second time it works");
        pair.expect_connection(A, Kind::Established);
        pair.expect_connection(B, Kind::Established);
        data.write(0, &support::pattern(1, 64));
        for (cookie, at) in [(1, 0), (2, 32)] {
            pair.post_send(A, &[data.part(at, 32)], cookie, NONE)
                .expect("posted");
            pair.expect_recv(B, cookie, DtoStatus::Success);
        }
        assert_eq!(sink.read(0, 64), data.read(0, 64), "{also:?}");
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
        pair.refuse_next(A, opcode);
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
