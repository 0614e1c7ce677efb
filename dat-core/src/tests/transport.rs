//! Transport settings of connections, and keep-alive.

use core::time::Duration;

use super::{NO_FLAGS, Side, connect, kinds, progress_both};
use crate::error::{DatError, ReturnType, Subtype};
use crate::event::ConnectionEventKind as Kind;
use crate::mock::Net;
use crate::types::{CloseFlags, CompletionFlags, DtoStatus, Qos, Timeout};
use crate::{EndCause, EpChange, EpState, EpTransport};

fn set(side: &mut Side, transport: EpTransport) -> Result<(), DatError> {
    let change = EpChange {
        transport: Some(transport),
        ..EpChange::default()
    };
    side.ia.ep_modify(side.ep, &change)
}

fn keep_alive(seconds: u64) -> EpTransport {
    EpTransport {
        keep_alive: Some(Duration::from_secs(seconds)),
        ..EpTransport::default()
    }
}

#[test]
fn settings_are_the_endpoints_and_what_is_out_of_range_is_refused_by_name() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let good = EpTransport {
        dscp: Some(26),
        ack_timeout: Some(31),
        ..keep_alive(1)
    };
    set(&mut a, good).expect("legal");
    assert_eq!(a.ia.ep_query(a.ep).expect("an EP").transport, good);
    for bad in [
        EpTransport {
            dscp: Some(64),
            ..good
        },
        EpTransport {
            priority: Some(8),
            ..good
        },
        EpTransport {
            flow_label: Some(1 << 20),
            ..good
        },
        EpTransport {
            hop_limit: Some(0),
            ..good
        },
        EpTransport {
            ack_timeout: Some(32),
            ..good
        },
        EpTransport {
            retry_count: Some(8),
            ..good
        },
        EpTransport {
            rnr_retry: Some(8),
            ..good
        },
        EpTransport {
            min_rnr_timer: Some(32),
            ..good
        },
        EpTransport {
            keep_alive: Some(Duration::from_millis(9)),
            ..good
        },
    ] {
        let refused = set(&mut a, bad).expect_err("out of range");
        assert_eq!(
            refused,
            DatError::new(ReturnType::InvalidParameter, Subtype::Arg3)
        );
        assert_eq!(a.ia.ep_query(a.ep).expect("an EP").transport, good);
    }
}

/// Clauses: 6.5 "Requested QoS must be among dat_qos_supported locally".
#[test]
fn the_provider_supports_the_four_qualities_of_service() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    assert_eq!(a.ia.query().provider.dat_qos_supported, Qos::all());
}

fn sleep(side: &mut Side, seconds: u32) {
    let evd = side.connect;
    let timeout = Timeout::from_micros(seconds * 1_000_000);
    side.ia
        .evd_wait(evd, timeout, 1)
        .expect_err("nothing comes");
}

#[test]
fn an_idle_connection_is_tried_now_and_then_and_the_consumer_sees_nothing_of_it() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    let before = net.posted(a.qpn());
    sleep(&mut a, 21);
    assert_eq!(net.posted(a.qpn()) - before, 10, "once in two seconds");
    assert_eq!(a.completions(a.request), []);
    let stats = a.ia.ep_stats(a.ep).expect("an EP");
    assert_eq!((stats.requests, stats.requests_outstanding), (0, 0));
    assert!(a.ia.ep_get_status(a.ep).expect("an EP").request_idle);
    assert_eq!(
        (a.state(), b.state()),
        (EpState::Connected, EpState::Connected)
    );
    assert_eq!(net.posted(b.qpn()), 0, "who did not ask for it does not");
}

#[test]
fn a_connection_in_use_is_not_tried() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    for cookie in 0..8 {
        b.post_recv(cookie).expect("posts");
        a.send(cookie, NO_FLAGS).expect("posts");
        sleep(&mut a, 1);
    }
    assert_eq!(net.posted(a.qpn()), 8);
    assert_eq!(a.completions(a.request).len(), 8);
}

#[test]
fn a_peer_that_does_not_answer_any_more_is_noticed() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    let qpn = a.qpn();
    net.fail_next(qpn, DtoStatus::ErrTransport);
    let inf = Timeout::INFINITE;
    let (event, _) = a.ia.evd_wait(a.connect, inf, 1).expect("it ends");
    assert_eq!(kinds(&[event]), [Kind::Broken]);
    let cause = a.ia.ep_end_cause(a.ep).expect("an EP");
    assert!(
        matches!(cause, Some(EndCause::KeepAlive { .. })),
        "{cause:?}"
    );
    assert_eq!(a.completions(a.request), [], "no request of the consumer's");
}

#[test]
fn as_many_requests_as_requested_fit_beside_a_probe() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    net.hold();
    sleep(&mut a, 3);
    assert_eq!(net.posted(a.qpn()), 1);
    let most = a.ia.ep_query(a.ep).expect("an EP").attr.max_request_dtos;
    for cookie in 0..most {
        a.send(cookie.into(), NO_FLAGS).expect("it fits");
    }
    let stats = a.ia.ep_stats(a.ep).expect("an EP");
    assert_eq!(stats.requests_outstanding, most.into());
}

fn cause(side: &Side) -> Option<EndCause> {
    side.ia.ep_end_cause(side.ep).expect("an EP")
}

/// The success of a suppressed request is not reported, so the request stays outstanding until a later request is
/// reported. Such a connection is probed like any idle connection.
#[test]
fn a_connection_whose_last_request_was_suppressed_is_tried_like_any_other() {
    for requests in [1, 2, 5] {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        set(&mut a, keep_alive(2)).expect("legal");
        connect(&mut a, &mut b);
        for cookie in 0..requests {
            b.post_recv(cookie).expect("posts");
            a.send(cookie, CompletionFlags::SUPPRESS).expect("posts");
        }
        let before = net.posted(a.qpn());
        // The first check sends no probe, because a request was posted shortly before. Every later check sends one.
        sleep(&mut a, 21);
        assert_eq!(net.posted(a.qpn()) - before, 9);
        assert_eq!(a.completions(a.request), []);
        assert!(a.ia.ep_get_status(a.ep).expect("an EP").request_idle);
        net.fail_next(a.qpn(), DtoStatus::ErrTransport);
        let (event, _) =
            a.ia.evd_wait(a.connect, Timeout::INFINITE, 1)
                .expect("it ends");
        assert_eq!(kinds(&[event]), [Kind::Broken]);
        assert!(matches!(cause(&a), Some(EndCause::KeepAlive { .. })));
    }
}

/// If a program dequeues no completions, its EVD becomes full, and further entries stay in the completion queue. The
/// failure of a probe behind them must still be noticed.
#[test]
fn a_probe_is_seen_to_fail_behind_completions_that_are_not_taken() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    let room = a.ia.evd_query(a.request).expect("an EVD").qlen;
    for cookie in 0..u64::from(room) {
        if b.post_recv(cookie).is_err() {
            b.completions(b.recv);
            b.post_recv(cookie).expect("there is room now");
        }
        a.send(cookie, NO_FLAGS).expect("posts");
        a.ia.progress();
    }
    sleep(&mut a, 1);
    net.fail_next(a.qpn(), DtoStatus::ErrTransport);
    let ten = Timeout::from_micros(10_000_000);
    let (event, _) = a.ia.evd_wait(a.connect, ten, 1).expect("it ends");
    assert_eq!(kinds(&[event]), [Kind::Broken]);
    assert!(matches!(cause(&a), Some(EndCause::KeepAlive { .. })));
    let done = a.completions(a.request).len();
    assert_eq!(done, usize::try_from(room).expect("some"));
}

/// A connection with an outstanding request that will be reported is not probed: the request itself would fail, and a
/// probe behind it would fail no sooner.
#[test]
fn a_connection_that_waits_for_a_slow_peer_is_not_tried() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    set(&mut a, keep_alive(2)).expect("legal");
    connect(&mut a, &mut b);
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    sleep(&mut a, 21);
    assert_eq!(net.posted(a.qpn()), 1);
    // Behind a suppressed request, exactly one probe is posted.
    a.send(2, CompletionFlags::SUPPRESS).expect("posts");
    sleep(&mut a, 21);
    assert_eq!(net.posted(a.qpn()), 3);
    let stats = a.ia.ep_stats(a.ep).expect("an EP");
    assert_eq!((stats.requests, stats.requests_outstanding), (2, 2));
}

/// A graceful disconnect ends at its time limit, even if the peer answers but never posts a receive.
#[test]
fn a_graceful_disconnect_ends_whatever_the_peer_does() {
    for (flags, transport) in [
        (NO_FLAGS, EpTransport::default()),
        (NO_FLAGS, keep_alive(2)),
        (CompletionFlags::SUPPRESS, EpTransport::default()),
        (CompletionFlags::SUPPRESS, keep_alive(2)),
    ] {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        set(&mut a, transport).expect("legal");
        connect(&mut a, &mut b);
        net.hold();
        a.send(1, flags).expect("posts");
        a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
            .expect("starts");
        sleep(&mut a, 179);
        assert_eq!(a.state(), EpState::DisconnectPending);
        let two = Timeout::from_micros(2_000_000);
        let (event, _) = a.ia.evd_wait(a.connect, two, 1).expect("it ends");
        assert_eq!(kinds(&[event]), [Kind::Disconnected]);
        assert_eq!(a.state(), EpState::Disconnected);
        assert_eq!(cause(&a), Some(EndCause::DrainTimedOut));
        assert_eq!(
            a.completions(a.request),
            [(1, DtoStatus::ErrFlushed)],
            "and nothing of ours"
        );
        progress_both(&mut a, &mut b);
        assert_eq!(b.connection_events(), [Kind::Disconnected]);
        assert_eq!(cause(&b), Some(EndCause::PeerDisconnected));
    }
}

/// A graceful disconnect that ends in time leaves no timer that would wake the program later.
#[test]
fn a_graceful_disconnect_that_ends_leaves_no_timer() {
    let (_net, mut a, mut b) = super::connected();
    let checks = |a: &Side| a.ia.checks_ahead();
    assert_eq!(checks(&a), 0);
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("starts");
    progress_both(&mut a, &mut b);
    assert_eq!(a.state(), EpState::Disconnected);
    assert_eq!(cause(&a), Some(EndCause::Disconnected));
    assert_eq!(checks(&a), 0);
}

/// A peer that asks for 7 RNR retries (no limit) gets no more than the adapter's setting, unless the endpoint sets 7
/// itself. Otherwise a peer that posts no receive would block every Send.
#[test]
fn a_peer_cannot_ask_for_retries_without_end() {
    let own = |rnr_retry| EpTransport {
        rnr_retry,
        ..EpTransport::default()
    };
    // Columns: the RNR retries that the peer asks for; the endpoint's own setting (the adapter's is 6); the value used.
    for (peer, ours, used) in [
        (7, None, 6),
        (6, None, 6),
        (0, None, 0),
        (7, Some(7), 7),
        (0, Some(7), 7),
        (7, Some(2), 2),
    ] {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        set(&mut a, own(Some(peer))).expect("legal");
        set(&mut b, own(ours)).expect("legal");
        connect(&mut a, &mut b);
        assert_eq!(net.rnr_retry(b.qpn()), used, "accepts: {peer} {ours:?}");
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        set(&mut a, own(ours)).expect("legal");
        set(&mut b, own(Some(peer))).expect("legal");
        connect(&mut a, &mut b);
        assert_eq!(net.rnr_retry(a.qpn()), used, "connects: {peer} {ours:?}");
    }
}
