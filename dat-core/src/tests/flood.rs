//! Floods of datagrams from hosts that are not connected.

use super::*;
use crate::event::ConnectionEventKind as Kind;

/// Sends `count` connection requests to `b`, each from a different queue pair of `a`.
fn flood(net: &Net, a: &mut Side, b: &Side, count: usize) {
    for _ in 0..count {
        let attr = EpAttr::defaults(a.ia.query().ia);
        let ep =
            a.ia.ep_create(Some(a.pz), EpEvds::NONE, Some(&attr))
                .expect("an EP");
        a.ia.ep_connect(
            ep,
            b.address(),
            QUAL,
            Timeout::INFINITE,
            b"",
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("starts");
    }
    assert!(net.mads().len() >= count);
}

/// The work of one call is bounded, independent of the number of datagrams that peers send.
#[test]
fn one_call_takes_in_a_bounded_number_of_datagrams_and_no_wait_sleeps_with_some_left() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    flood(&net, &mut a, &b, 150);
    let received = |b: &Side| b.ia.cm_counters().received;
    for (so_far, sleeps) in [(64, false), (128, false), (150, true)] {
        b.ia.progress();
        assert_eq!(received(&b), so_far);
        let now = b.ia.provider().now();
        assert_eq!(b.ia.sleeps_until(now) > now, sleeps, "{so_far}");
    }
}

/// The same EVD receives connection requests and the connection events of endpoints. A host that sends many requests
/// must not displace the event of a connection's end.
#[test]
fn requests_of_strangers_do_not_push_out_the_events_of_a_connection() {
    let (net, mut a, mut b) = connected_with(|_| {});
    let room = b.ia.evd_query(b.connect).expect("exists").qlen as usize;
    flood(&net, &mut a, &b, 3 * room);
    progress_both(&mut a, &mut b);
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("disconnects");
    progress_both(&mut a, &mut b);
    let events = b.events(b.connect);
    let requests = events
        .iter()
        .filter(|event| matches!(event, Event::ConnectionRequest(_)))
        .count();
    assert_eq!(requests, room - 1, "a place is kept for the endpoint's");
    assert_eq!(kinds(&events), [Kind::Disconnected]);
    assert_eq!(b.events(b.ia.async_evd()), [], "nothing was lost");
}
