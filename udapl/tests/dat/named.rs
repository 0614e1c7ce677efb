//! Completions of named endpoints (`ep_set_name`), over the simulated device: completions that a facade gets on the
//! short path (`evd_poll_fast`), and completions that it does not get there.

use dat_core::FastPoll;
use udapl::{CompletionFlags, DtoCookie, DtoStatus, EvdHandle, Event};

use crate::support::{A, B, NONE, Pair, PairConfig, Side};

const NAME: u64 = 1 << 63 | 5;

/// Takes a completion on the short path. Returns the endpoint's name, the cookie, the number of bytes, and true for a
/// request.
fn take_plain(pair: &mut Pair, side: usize, evd: EvdHandle) -> Option<(u64, u64, u32, bool)> {
    let Side { ia, ep: named, .. } = &mut pair.sides[side];
    let polled = ia.evd_poll_fast(evd, |ep, name, done| {
        assert_eq!(ep, *named);
        (name, done.cookie, done.bytes, done.request)
    });
    if let FastPoll::Taken(seen) = polled {
        Some(seen)
    } else {
        None
    }
}

/// Makes two connected sides; their endpoints are named [`NAME`] and the next number.
fn named(config: &PairConfig) -> Pair {
    let mut pair = Pair::connected_with(config);
    for (side, name) in [(A, NAME), (B, NAME + 1)] {
        let ep = pair.sides[side].ep;
        pair.sides[side]
            .ia
            .ep_set_name(ep, name)
            .expect("an endpoint");
    }
    pair
}

/// Posts `count` receives at B with cookies from 20 on, and `count` Sends at A with cookies from 10 on.
fn sends(pair: &mut Pair, count: u64) {
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    for cookie in 10..10 + count {
        pair.post_recv(B, &[to.all()], cookie + 10, NONE)
            .expect("posted");
        let side = &mut pair.sides[A];
        side.ia
            .ep_post_send(side.ep, &[from.all()], DtoCookie(cookie), NONE)
            .expect("posted");
    }
    for _ in 0..100 {
        pair.pump();
    }
}

#[test]
fn completions_are_told_with_the_name_of_their_endpoint_in_their_order() {
    let mut pair = named(&PairConfig::default());
    sends(&mut pair, 3);
    let (request, recv) = (pair.sides[A].request, pair.sides[B].recv);
    let requests = [(); 4].map(|()| take_plain(&mut pair, A, request));
    let [first, second, third] = [10, 11, 12].map(|cookie| Some((NAME, cookie, 64, true)));
    assert_eq!(requests, [first, second, third, None]);
    let recvs = [(); 4].map(|()| take_plain(&mut pair, B, recv));
    let [first, second, third] = [20, 21, 22].map(|cookie| Some((NAME + 1, cookie, 64, false)));
    assert_eq!(recvs, [first, second, third, None]);
    pair.assert_no_complaints();
}

#[test]
fn an_endpoint_without_a_name_is_told_as_0() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.post_recv(B, &[to.all()], 2, NONE).expect("posted");
    pair.post_send(A, &[from.all()], 1, NONE).expect("posted");
    for _ in 0..100 {
        pair.pump();
    }
    let request = pair.sides[A].request;
    assert_eq!(take_plain(&mut pair, A, request), Some((0, 1, 64, true)));
}

#[test]
fn a_completion_behind_suppressed_requests_is_left_to_the_call_that_looks_for_it() {
    let mut pair = named(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    for (cookie, flags) in [(1, CompletionFlags::SUPPRESS), (2, NONE)] {
        pair.post_recv(B, &[to.all()], cookie, NONE)
            .expect("posted");
        pair.post_send(A, &[from.all()], cookie, flags)
            .expect("posted");
    }
    for _ in 0..100 {
        pair.pump();
    }
    let request = pair.sides[A].request;
    assert_eq!(take_plain(&mut pair, A, request), None);
    let done = pair.wait_request(A);
    assert_eq!((done.cookie.0, done.status), (2, DtoStatus::Success));
    sends(&mut pair, 1);
    assert_eq!(
        take_plain(&mut pair, A, request),
        Some((NAME, 10, 64, true))
    );
}

#[test]
fn buffers_of_an_srq_failures_and_what_waits_in_software_are_left_too() {
    let mut pair = named(&PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    });
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let srq = pair.srq.expect("an SRQ");
    pair.sides[B]
        .ia
        .srq_post_recv(srq, &[to.all()], DtoCookie(3))
        .expect("posted");
    pair.post_send(A, &[from.all()], 4, NONE).expect("posted");
    for _ in 0..100 {
        pair.pump();
    }
    let (request, recv) = (pair.sides[A].request, pair.sides[B].recv);
    assert_eq!(take_plain(&mut pair, B, recv), None);
    assert_eq!(pair.wait_recv(B).cookie, DtoCookie(3));
    assert_eq!(take_plain(&mut pair, A, request), Some((NAME, 4, 64, true)));

    // A disconnect moves the completions into the software queue, before the DISCONNECTED event.
    pair.post_send(A, &[from.all()], 5, NONE).expect("posted");
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, udapl::CloseFlags::Abrupt)
        .expect("disconnects");
    for _ in 0..100 {
        pair.pump();
    }
    assert_eq!(take_plain(&mut pair, A, request), None);
    assert!(matches!(pair.wait_event(A, request), Event::Dto(done) if done.cookie.0 == 5));
}
