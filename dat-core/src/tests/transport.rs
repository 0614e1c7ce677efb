//! What connections ask of the network, and keep-alive.

use core::time::Duration;

use super::{NO_FLAGS, Side, connect, kinds};
use crate::error::{DatError, ReturnType, Subtype};
use crate::event::ConnectionEventKind as Kind;
use crate::mock::Net;
use crate::types::{DtoStatus, Qos, Timeout};
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
fn as_many_requests_as_were_asked_for_fit_beside_a_trial() {
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
