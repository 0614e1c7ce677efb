//! Latencies of requests and of wakeups are measured on demand, while most posts still take the fast path.

use super::*;
use crate::latency::Histogram;
use crate::post::{Post, Send};

const LONG: u64 = 10_000_000;

/// Returns the number of times in the histogram, and the upper bound of its last non-empty bucket.
fn count_and_bound(of: Option<&Histogram>) -> (u64, u64) {
    let last = of.and_then(|of| of.places().last());
    (
        of.map_or(0, Histogram::count),
        last.map_or(0, |(end, _)| end),
    )
}

/// Makes an endpoint whose next request will be timed, and a peer with posted receives.
fn measured() -> (Net, Side, Side) {
    let (net, mut a, mut b) = connected();
    (0..8).for_each(|cookie| b.post_recv(cookie).expect("posts"));
    a.ia.measure(true);
    a.ia.progress();
    (net, a, b)
}

fn at_once(a: &mut Side) -> bool {
    let one = a.triplet(0, 8);
    Send.at_once(&mut a.ia, a.ep, &[one], DtoCookie(1), NO_FLAGS)
}

fn taken(a: &mut Side) -> usize {
    let request = a.request;
    a.completions(request).len()
}

#[test]
fn one_request_is_timed_from_its_doorbell_until_its_completion_is_taken_in() {
    let (net, mut a, _b) = measured();
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    net.pass(5_000);
    net.release();
    assert_eq!(taken(&mut a), 1);
    let all = a.ia.latencies();
    assert_eq!(
        count_and_bound(all.completion.as_deref()),
        (1, 5_120),
        "{all:?}"
    );
    let wanted = Wanted {
        objects: 1,
        ..Wanted::default()
    };
    let of = &a.ia.view(wanted).eps[0].latencies;
    assert_eq!(of.completion, all.completion);
    assert!(all.wakeup.is_none(), "nobody slept");
}

#[test]
fn between_two_samples_everything_is_posted_at_once() {
    let (net, mut a, _b) = measured();
    assert!(!at_once(&mut a), "it is to be the sample");
    a.send(1, NO_FLAGS).expect("posts");
    assert!(at_once(&mut a), "it was");
    assert_eq!(taken(&mut a), 2);
    a.ia.progress();
    assert!(at_once(&mut a), "the next one has time");
    net.pass(LONG);
    a.ia.progress();
    assert!(!at_once(&mut a));
}

#[test]
fn an_endpoint_that_posts_much_has_a_sample_though_little_time_has_passed() {
    let (_net, mut a, b) = measured();
    let (one, remote) = (a.triplet(0, 8), b.remote(8));
    for _ in 0..3 * 1_024 {
        a.ia.ep_post_rdma_write(a.ep, &[one], DtoCookie(1), &remote, NO_FLAGS)
            .expect("posts");
        assert_eq!(taken(&mut a), 1);
        a.ia.progress();
    }
    let all = a.ia.latencies();
    assert_eq!(count_and_bound(all.completion.as_deref()).0, 3, "{all:?}");
}

#[test]
fn receives_are_posted_at_once_however_requests_are_measured() {
    let (_net, mut a, _b) = measured();
    let one = a.triplet(0, 8);
    assert!(crate::post::Recv.at_once(&mut a.ia, a.ep, &[one], DtoCookie(1), NO_FLAGS));
}

#[test]
fn measuring_switched_off_leaves_no_obstacle() {
    let (net, mut a, mut b) = measured();
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    assert!(!a.ia.dequeues_at_once(a.request));
    a.ia.measure(false);
    assert!(a.ia.dequeues_at_once(a.request));
    net.pass(LONG);
    net.release();
    assert_eq!(taken(&mut a), 1);
    assert!(at_once(&mut a));
    assert!(a.ia.latencies().completion.is_none(), "it was not finished");
    // Measuring can also be switched off if no request was timed.
    b.ia.measure(true);
    b.ia.progress();
    b.ia.measure(false);
    assert!(at_once(&mut b));
}

#[test]
fn a_request_whose_completion_is_suppressed_or_that_fails_is_no_sample() {
    let (net, mut a, _b) = measured();
    a.send(1, CompletionFlags::SUPPRESS).expect("posts");
    assert!(!at_once(&mut a), "the next one is to be it");
    net.fail_next(a.qpn(), DtoStatus::ErrRemoteAccess);
    a.send(2, NO_FLAGS).expect("posts");
    assert_eq!(taken(&mut a), 1);
    assert!(a.ia.latencies().completion.is_none());
}

#[test]
fn a_sample_does_not_outlive_its_connection() {
    let (net, mut a, mut b) = measured();
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt).expect("ends");
    net.release();
    assert_eq!(taken(&mut a), 1);
    a.ia.ep_reset(a.ep).expect("it is over");
    progress_both(&mut a, &mut b);
    for side in [&mut a, &mut b] {
        side.connection_events();
    }
    b.ia.ep_reset(b.ep).expect("it is over");
    connect(&mut a, &mut b);
    b.post_recv(7).expect("posts");
    a.ia.measure(false);
    assert!(at_once(&mut a));
    assert!(a.ia.dequeues_at_once(a.request));
}

#[test]
fn an_endpoint_that_is_freed_takes_its_sample_along() {
    let (net, mut a, _b) = measured();
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    a.ia.ep_free(a.ep).expect("freed");
    net.release();
    a.ia.progress();
    assert!(a.ia.evd_free(a.request).is_ok());
    assert!(a.ia.latencies().completion.is_none());
}

#[test]
fn a_wait_that_slept_is_counted_and_timed_by_the_clock_of_the_device() {
    let (net, mut a, mut b) = measured();
    net.age(70);
    b.ia.measure(true);
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    net.release_at(net.now() + 1_000);
    b.ia.evd_wait(b.recv, Timeout::INFINITE, 1)
        .expect("a message");
    let stats = b.ia.evd_stats(b.recv).expect("an EVD");
    assert_eq!((stats.wakeups, b.ia.stats().wakeups), (1, 1));
    let all = b.ia.latencies();
    assert_eq!(count_and_bound(all.wakeup.as_deref()), (1, 72), "{all:?}");
}

#[test]
fn neither_a_wait_that_finds_its_event_nor_a_look_is_a_wakeup() {
    let (_net, mut a, mut b) = connected();
    b.post_recv(1).expect("posts");
    a.send(1, NO_FLAGS).expect("posts");
    b.ia.evd_wait(b.recv, Timeout::INFINITE, 1)
        .expect("a message");
    assert_eq!(taken(&mut a), 1);
    for side in [&a, &b] {
        assert_eq!(side.ia.stats().wakeups, 0);
    }
}

#[test]
fn a_wait_on_a_cno_that_slept_is_counted_where_it_found_something() {
    let (net, mut a, mut b) = connected();
    b.post_recv(1).expect("posts");
    let cno = b.ia.cno_create(None).expect("a CNO");
    b.ia.evd_modify_cno(b.recv, Some(cno)).expect("an EVD");
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    net.release_at(net.now() + 1_000);
    let woken = b.ia.cno_wait(cno, Timeout::INFINITE).expect("woken");
    assert_eq!(woken, Some(b.recv));
    let stats = b.ia.evd_stats(b.recv).expect("an EVD");
    assert_eq!((stats.wakeups, b.ia.stats().wakeups), (1, 1));
}

#[test]
fn an_instance_that_comes_while_others_are_measured_is_measured_too() {
    let net = Net::default();
    let first = Side::new(&net, |_| {});
    assert!(first.ia.opened().measure(true));
    let opened = first.ia.opened();
    let second = opened.instance(net.node(), IaConfig::default());
    let mut second = second.expect("an instance");
    assert!(second.is_observed());
    assert!(opened.measure(true) && opened.measure(false));
    second.progress();
    assert!(second.is_observed(), "one still wants to know");
    assert!(opened.measure(false));
    second.progress();
    assert!(!second.is_observed());
}
