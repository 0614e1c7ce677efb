//! The work of a call does not grow with the number of objects. The tests count polls and arms of completion queues,
//! not time.

use super::*;
use crate::event::ConnectionEventKind as Kind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of objects of each kind.
const MANY: usize = 150;
/// Bound on the polls and arms of one call, independent of the number of objects. Some calls may need twice as many.
const FEW: u64 = 40;

/// Many endpoints, each with the EVD that receives its completions.
type ManyEndpoints = Vec<(EpHandle, EvdHandle)>;

/// Makes many endpoints, each with its own completion queue, and one EVD for all their connection events.
fn many_endpoints(side: &mut Side) -> ManyEndpoints {
    let flags = EvdFlags::CONNECTION | EvdFlags::CR;
    side.connect = side.ia.evd_create(512, flags).expect("an EVD");
    let one = |_| {
        let evd = side.ia.evd_create(4, EvdFlags::DTO).expect("an EVD");
        let evds = EpEvds::dto(evd).connect(side.connect);
        let ep = side.ia.ep_create(Some(side.pz), evds, None);
        (ep.expect("an EP"), evd)
    };
    (0..MANY).map(one).collect()
}

/// Makes two sides with many endpoints each.
fn two_sides_with_many() -> (Net, Side, ManyEndpoints, Side, ManyEndpoints) {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let (of_a, of_b) = (many_endpoints(&mut a), many_endpoints(&mut b));
    (net, a, of_a, b, of_b)
}

/// Returns the number of polls and arms that `act` causes.
fn steps(net: &Net, act: impl FnOnce()) -> u64 {
    let before = net.steps();
    act();
    net.steps() - before
}

fn wait_without_event(side: &mut Side) {
    let timeout = Timeout::from_micros(10);
    let nothing = side.ia.evd_wait(side.connect, timeout, 1);
    assert!(nothing.is_err(), "{nothing:?}");
}

#[test]
fn a_wait_for_connection_events_asks_only_queues_that_have_answered() {
    let (net, mut a, of_a, mut b, of_b) = two_sides_with_many();
    (a.ep, b.ep) = (of_a[MANY - 1].0, of_b[0].0);
    connect(&mut a, &mut b);
    wait_without_event(&mut a);
    let again = steps(&net, || wait_without_event(&mut a));
    assert!(again <= FEW, "{again}");
    // A queue that reports an entry later is polled, and armed again.
    for cookie in 0..3 {
        b.post_recv(cookie).expect("posts");
    }
    a.send(0, NO_FLAGS).expect("posts");
    wait_without_event(&mut a);
    net.fail_next(a.qpn(), DtoStatus::ErrRemoteAccess);
    a.send(1, NO_FLAGS).expect("posts");
    let timeout = Timeout::from_micros(10);
    let (event, _) = a.ia.evd_wait(a.connect, timeout, 1).expect("an event");
    assert_eq!(kinds(&[event]), [Kind::Broken]);
}

#[test]
fn polling_for_connection_events_looks_at_some_queues_at_a_time_and_finds_every_error() {
    let (net, mut a, of_a, mut b, of_b) = two_sides_with_many();
    (a.ep, b.ep) = (of_a[MANY / 2].0, of_b[0].0);
    connect(&mut a, &mut b);
    let poll = |a: &mut Side| a.ia.evd_dequeue(a.connect).expect("an EVD of its own");
    let once = steps(&net, || assert_eq!(poll(&mut a), None));
    assert!(once <= 2 * FEW, "{once}");
    net.fail_next(a.qpn(), DtoStatus::ErrRemoteAccess);
    a.send(1, NO_FLAGS).expect("posts");
    // Most dequeues poll no other queue.
    let found = (0..MANY * 128).find_map(|_| poll(&mut a));
    assert_eq!(kinds(&Vec::from_iter(found)), [Kind::Broken]);
}

#[test]
fn endpoints_that_are_being_disconnected_are_not_looked_at_until_they_are_done() {
    let (net, mut a, of_a, mut b, of_b) = two_sides_with_many();
    for ((ep, _), (other, _)) in of_a.iter().zip(&of_b) {
        (a.ep, b.ep) = (*ep, *other);
        connect(&mut a, &mut b);
        b.post_recv(0).expect("posts");
    }
    net.hold();
    for (ep, _) in &of_a {
        a.ep = *ep;
        a.send(0, NO_FLAGS).expect("posts");
        let ended = a.ia.ep_disconnect(a.ep, CloseFlags::Graceful);
        ended.expect("begins");
    }
    (0..MANY).for_each(|_| a.ia.progress());
    let turn = steps(&net, || a.ia.progress());
    assert!(turn <= FEW, "{turn}");
    wait_without_event(&mut a);
    let waiting = steps(&net, || wait_without_event(&mut a));
    assert!(waiting <= FEW, "{waiting}");
    net.release();
    let mut ended = Vec::new();
    while ended.len() < MANY {
        let timeout = Timeout::from_micros(2_000_000);
        let (event, _) = a.ia.evd_wait(a.connect, timeout, 1).expect("an end");
        ended.extend(kinds(&[event]));
    }
    assert_eq!(ended, vec![Kind::Disconnected; MANY]);
}

#[test]
fn a_buffer_for_a_full_srq_is_refused_without_a_look_at_all_its_endpoints() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let attr = SrqAttr {
        max_recv_dtos: 4,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let srq = a.ia.srq_create(a.pz, attr).expect("an SRQ");
    let of_eps = EpAttr::defaults(a.ia.query().ia);
    for _ in 0..MANY {
        let ep =
            a.ia.ep_create_with_srq(Some(a.pz), EpEvds::NONE, srq, &of_eps);
        ep.expect("an EP");
    }
    let iov = [a.triplet(0, 64)];
    for cookie in 0..4 {
        let posted = a.ia.srq_post_recv(srq, &iov, DtoCookie(cookie));
        posted.expect("there is room");
    }
    let refused = steps(&net, || {
        let refused = a.ia.srq_post_recv(srq, &iov, DtoCookie(4));
        let refused = refused.expect_err("there is none");
        assert_eq!(refused.return_type(), ReturnType::InsufficientResources);
    });
    assert!(refused <= FEW, "{refused}");
}

#[test]
fn an_agent_costs_a_turn_no_more_with_more_evds_and_hears_of_each() {
    let (net, mut a, of_a, mut b, of_b) = two_sides_with_many();
    let (ep, evd) = of_a[MANY - 2];
    (a.ep, b.ep) = (ep, of_b[0].0);
    connect(&mut a, &mut b);
    let heard = Arc::new(AtomicUsize::new(0));
    let agent = {
        let heard = Arc::clone(&heard);
        Agent::new(move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        })
    };
    let cno = a.ia.cno_create(Some(agent)).expect("a CNO");
    for (_, evd) in &of_a {
        a.ia.evd_modify_cno(*evd, Some(cno)).expect("attaches");
    }
    (0..MANY).for_each(|_| a.ia.progress());
    let turn = steps(&net, || a.ia.progress());
    assert!(turn <= FEW, "{turn}");
    // A waiter for connection events arms the same queues, but only for solicited or failed completions.
    wait_without_event(&mut a);
    b.post_recv(0).expect("posts");
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(heard.load(Ordering::Relaxed), 0);
    a.ia.progress();
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    let which = a.ia.cno_wait(cno, Timeout::ZERO).expect("a trigger");
    assert_eq!(which, Some(evd));
    // A consumer can also wait on the CNO, without an agent.
    wait_for(&mut a, cno);
    let waiting = steps(&net, || wait_for(&mut a, cno));
    assert!(waiting <= 2 * FEW, "{waiting}");
    b.post_recv(1).expect("posts");
    a.send(1, NO_FLAGS).expect("posts");
    let timeout = Timeout::from_micros(10);
    let which = a.ia.cno_wait(cno, timeout).expect("a trigger");
    assert_eq!(which, Some(evd));
}

#[test]
fn who_waits_for_connection_events_takes_nobody_his_interrupt() {
    let (net, mut a, mut b) = connected();
    let wait = a.ia.evd_wait_begin(a.request, Timeout::INFINITE, 1);
    let Ok(EvdWaitStatus::Pending(wait, _)) = a.ia.evd_wait_check(wait.expect("begins")) else {
        panic!("nothing has come");
    };
    wait_without_event(&mut a);
    b.post_recv(0).expect("posts");
    a.send(5, NO_FLAGS).expect("posts");
    let until = net.now() + 1_000_000;
    let woken = a.ia.provider_mut().wait(until);
    assert!(woken.is_ok_and(|woken| woken), "the completion says so");
    let Ok(EvdWaitStatus::Ready(event, 0)) = a.ia.evd_wait_check(wait) else {
        panic!("it has come");
    };
    assert_eq!(dtos(&[event]), [(5, DtoStatus::Success)]);
}

fn wait_for(side: &mut Side, cno: CnoHandle) {
    let nothing = side.ia.cno_wait(cno, Timeout::from_micros(10));
    assert!(nothing.is_err(), "{nothing:?}");
}
