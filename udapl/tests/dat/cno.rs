//! Consumer notification objects: triggers, waiters, agents.
//!
//! For a wait with concurrent calls, the tests call its steps (`cno_wait_begin`, `cno_wait_check`), as a facade does
//! that shares an adapter between threads.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use driver::Interrupt;
use udapl::endpoint::EpAttr;
use udapl::error::{ReturnType, Subtype};
use udapl::event::SoftwareEvent;
use udapl::wait::{Agent, CnoHandle, CnoWaitStatus, EvdWaitStatus};
use udapl::{CloseFlags, CompletionFlags, DtoCookie, EpEvds, EvdFlags, EvdHandle, Timeout};

use crate::support::connecting::EMPTY;
use crate::support::waiting::{FOREVER, se};
use crate::support::{A, B, NONE, Pair, PairConfig, Side, attributes, refused};

const NOW: Timeout = Timeout::ZERO;

/// Returns an agent, and a channel with the EVD of each upcall of the agent.
fn agent() -> (Agent, Receiver<Option<EvdHandle>>) {
    let (told, hears) = channel();
    let agent = Agent::new(move |evd| told.send(evd).expect("the test listens"));
    (agent, hears)
}

/// Creates a CNO of A without an agent, and a software EVD attached to the CNO.
fn with_evd(pair: &mut Pair) -> (CnoHandle, EvdHandle) {
    let cno = pair.sides[A].ia.cno_create(None).expect("a CNO");
    (cno, attached(pair, cno))
}

fn attached(pair: &mut Pair, cno: CnoHandle) -> EvdHandle {
    pair.sides[A]
        .ia
        .evd_create_with_cno(8, Some(cno), EvdFlags::SOFTWARE)
        .expect("an EVD")
}

fn nothing(pair: &mut Pair, cno: CnoHandle) {
    let error = refused(pair.sides[A].ia.cno_wait(cno, NOW), ReturnType::QueueEmpty);
    assert_eq!(error.code(), 0x800d_0000);
}

fn unconnected() -> Pair {
    Pair::unconnected(&PairConfig::default())
}

/// Clauses: CNO-1, CNO-6, CNO-16, CNO-17.
#[test]
fn a_cno_is_made_without_evds_and_ends_when_no_evd_refers_to_it() {
    let mut pair = unconnected();
    let ia = &mut pair.sides[A].ia;
    let cno = ia.cno_create(None).expect("a CNO");
    assert!(!ia.cno_query(cno).expect("exists").has_agent);
    refused(ia.cno_wait(cno, NOW), ReturnType::QueueEmpty);
    let evd = ia
        .evd_create_with_cno(4, Some(cno), EvdFlags::SOFTWARE)
        .expect("an EVD");
    assert_eq!(ia.evd_query(evd).expect("exists").cno, Some(cno));
    let error = refused(ia.cno_free(cno), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateCnoInUse);
    ia.evd_free(evd).expect("unused");
    ia.cno_free(cno).expect("unused");
    let calls = [
        ia.cno_free(cno).err(),
        ia.cno_query(cno).err(),
        ia.cno_modify_agent(cno, None).err(),
        ia.cno_wait(cno, NOW).err(),
        ia.cno_wait_begin(cno, NOW).err(),
        ia.evd_create_with_cno(4, Some(cno), EvdFlags::SOFTWARE)
            .err(),
    ];
    let foreign = pair.sides[B].ia.cno_create(None).expect("a CNO");
    let foreign = pair.sides[A].ia.cno_query(foreign).err();
    for error in calls.into_iter().chain([foreign]) {
        let error = error.expect("there is no such CNO");
        assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidHandle, Subtype::HandleCno)
        );
    }
}

/// A CNO stays triggered until a wait consumes the trigger. Further triggers before this wait have no effect.
///
/// Clauses: CNO-7, CNO-8, CNO-12, EVDS-4.
#[test]
fn a_trigger_stays_until_it_is_taken_and_more_of_them_are_one() {
    let mut pair = unconnected();
    let (cno, one) = with_evd(&mut pair);
    let two = attached(&mut pair, cno);
    nothing(&mut pair, cno);
    pair.post_se(two, [1]);
    pair.post_se(one, [2, 3]);
    let woken = pair.sides[A].ia.cno_wait(cno, FOREVER).expect("triggered");
    assert_eq!(woken, Some(two), "the first to trigger");
    nothing(&mut pair, cno);
    // The wait on the CNO has dequeued no event. The next event triggers the CNO again.
    for (evd, words) in [(two, vec![1]), (one, vec![2, 3])] {
        for word in words {
            assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
        }
    }
    pair.post_se(one, [4]);
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(one)));
}

/// A wait on a CNO without a trigger ends exactly at its timeout.
///
/// Clauses: CNO-8.
#[test]
fn a_wait_for_nothing_takes_its_time_and_no_longer() {
    let mut pair = unconnected();
    let (cno, _evd) = with_evd(&mut pair);
    for micros in [0, 1, 1_000, 2_500_000] {
        let before = pair.now();
        let wait = pair.sides[A].ia.cno_wait(cno, Timeout::from_micros(micros));
        refused(wait, ReturnType::QueueEmpty);
        assert_eq!((pair.now().0 - before.0) / 1000, u64::from(micros));
    }
}

/// Clauses: CNO-7, CNO-11.
#[test]
fn completions_and_connection_events_trigger_and_those_that_do_not_notify_do_not() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
        attr.recv_completion_flags = CompletionFlags::UNSIGNALLED;
    }));
    let cno = pair.sides[A].ia.cno_create(None).expect("a CNO");
    let (request, recv, connect) = {
        let side = &mut pair.sides[A];
        for evd in [side.request, side.recv, side.connect] {
            side.ia.evd_modify_cno(evd, Some(cno)).expect("exists");
        }
        (side.request, side.recv, side.connect)
    };
    for cookie in 0..4 {
        pair.receive(B, cookie);
    }
    pair.post_send(A, EMPTY, 1, CompletionFlags::UNSIGNALLED)
        .expect("posted");
    nothing(&mut pair, cno);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    assert_eq!(pair.sides[A].ia.cno_wait(cno, FOREVER), Ok(Some(request)));
    pair.receive(A, 3);
    pair.post_send(B, EMPTY, 4, NONE).expect("posted");
    assert_eq!(pair.sides[A].ia.cno_wait(cno, FOREVER), Ok(Some(recv)));
    assert_eq!(
        pair.wait_request(A).cookie,
        DtoCookie(1),
        "queued all the same"
    );
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(2));
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .ep_disconnect(b, CloseFlags::Abrupt)
        .expect("CONNECTED");
    for _ in 0..20 {
        pair.pump();
    }
    assert_eq!(pair.sides[A].ia.cno_wait(cno, FOREVER), Ok(Some(connect)));
}

/// Clauses: CNO-9, EVDM-3, EVDM-4, EVDM-5, EVDM-6.
#[test]
fn a_disabled_evd_queues_without_triggering_and_enabling_does_not_make_up_for_it() {
    let mut pair = unconnected();
    let (cno, evd) = with_evd(&mut pair);
    for _ in 0..2 {
        pair.sides[A].ia.evd_disable(evd).expect("exists");
    }
    pair.post_se(evd, [1, 2]);
    nothing(&mut pair, cno);
    pair.expect_at_once(evd, 2, se(1), 1);
    for _ in 0..2 {
        pair.sides[A].ia.evd_enable(evd).expect("exists");
    }
    nothing(&mut pair, cno);
    pair.post_se(evd, [3]);
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(evd)));
    for word in [2, 3] {
        assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
    }
}

/// A completion triggers the CNO if the EVD is enabled when the completion arrives. The state of the EVD when a call
/// polls the completion does not matter.
///
/// Clauses: EVDM-3, EVDM-5.
#[test]
fn a_completion_counts_for_the_moment_it_came_not_for_the_one_it_was_seen() {
    let mut pair = Pair::connected();
    let cno = pair.sides[A].ia.cno_create(None).expect("a CNO");
    let evd = pair.sides[A].request;
    let side = &mut pair.sides[A].ia;
    side.evd_modify_cno(evd, Some(cno)).expect("exists");
    side.evd_disable(evd).expect("exists");
    for cookie in 0..2 {
        pair.receive(B, cookie);
    }
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    // The completion is in the CQ, and no call has polled it yet.
    pair.sides[A].ia.evd_enable(evd).expect("exists");
    nothing(&mut pair, cno);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    pair.sides[A].ia.evd_disable(evd).expect("exists");
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(evd)));
}

/// Clauses: EVDM-1, EVDM-2, EVDQ-1.
#[test]
fn an_evd_triggers_the_cno_it_refers_to_now() {
    let mut pair = unconnected();
    let (old, evd) = with_evd(&mut pair);
    let new = pair.sides[A].ia.cno_create(None).expect("a CNO");
    let gone = pair.sides[A].ia.cno_create(None).expect("a CNO");
    pair.sides[A].ia.cno_free(gone).expect("unused");
    pair.post_se(evd, [1]);
    let error = refused(
        pair.sides[A].ia.evd_modify_cno(evd, Some(gone)),
        ReturnType::InvalidHandle,
    );
    assert_eq!(error.subtype(), Subtype::HandleCno);
    assert_eq!(
        pair.sides[A].ia.evd_query(evd).expect("exists").cno,
        Some(old)
    );
    for _ in 0..2 {
        pair.sides[A]
            .ia
            .evd_modify_cno(evd, Some(new))
            .expect("exists");
    }
    assert_eq!(
        pair.sides[A].ia.evd_query(evd).expect("exists").cno,
        Some(new)
    );
    assert_eq!(
        pair.sides[A].ia.cno_wait(old, NOW),
        Ok(Some(evd)),
        "what came before was the old one's"
    );
    pair.post_se(evd, [2]);
    nothing(&mut pair, old);
    assert_eq!(pair.sides[A].ia.cno_wait(new, NOW), Ok(Some(evd)));
    pair.sides[A].ia.cno_free(old).expect("no EVD refers to it");
    pair.sides[A].ia.evd_modify_cno(evd, None).expect("exists");
    pair.post_se(evd, [3]);
    nothing(&mut pair, new);
    assert_eq!(pair.sides[A].ia.evd_query(evd).expect("exists").cno, None);
    pair.sides[A].ia.cno_free(new).expect("no EVD refers to it");
}

/// An EVD that triggered a CNO is detached and then freed. A wait names another EVD of the CNO, or none.
#[test]
fn a_wait_does_not_name_an_evd_that_was_detached_and_freed() {
    for others in [0, 1] {
        let mut pair = unconnected();
        let (cno, evd) = with_evd(&mut pair);
        let other = (0..others).map(|_| attached(&mut pair, cno)).last();
        pair.post_se(evd, [1]);
        let ia = &mut pair.sides[A].ia;
        ia.evd_modify_cno(evd, None).expect("exists");
        ia.evd_free(evd).expect("unused");
        assert_eq!(ia.cno_wait(cno, NOW), Ok(other));
    }
}

/// While a thread is blocked in a wait on an EVD, events of this EVD do not trigger its CNO.
///
/// Clauses: CNO-10, EVDW-7.
#[test]
fn while_somebody_is_blocked_on_an_evd_its_cno_is_left_alone() {
    let mut pair = unconnected();
    let (cno, evd) = with_evd(&mut pair);
    let ia = &mut pair.sides[A].ia;
    let wait = ia.evd_wait_begin(evd, FOREVER, 2).expect("waitable");
    ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
    let EvdWaitStatus::Pending(wait, _) = ia.evd_wait_check(wait).expect("not over") else {
        panic!("one is not two")
    };
    refused(ia.cno_wait(cno, NOW), ReturnType::QueueEmpty);
    ia.evd_post_se(evd, SoftwareEvent(2)).expect("room");
    let EvdWaitStatus::Ready(event, nmore) = ia.evd_wait_check(wait).expect("over") else {
        panic!("two are there")
    };
    assert_eq!((event, nmore), (se(1), 1));
    refused(ia.cno_wait(cno, NOW), ReturnType::QueueEmpty);
    ia.evd_post_se(evd, SoftwareEvent(3)).expect("room");
    assert_eq!(
        ia.cno_wait(cno, NOW),
        Ok(Some(evd)),
        "nobody is blocked any more"
    );
}

/// One trigger releases one waiter. A waiter that is interrupted does not take the trigger.
///
/// Clauses: CNO-13, CNO-15, CNO-16.
#[test]
fn one_trigger_releases_one_waiter_and_an_interrupted_one_leaves_it_alone() {
    let mut pair = unconnected();
    let (cno, evd) = with_evd(&mut pair);
    let ia = &mut pair.sides[A].ia;
    let waits = [(); 3].map(|()| ia.cno_wait_begin(cno, FOREVER).expect("exists"));
    let [one, two, three] = waits;
    ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
    let error = ia.cno_wait_cancel(one);
    assert_eq!(error.return_type(), ReturnType::InterruptedCall);
    let CnoWaitStatus::Woken(woken) = ia.cno_wait_check(two).expect("over") else {
        panic!("triggered")
    };
    assert_eq!(woken, Some(evd));
    let CnoWaitStatus::Pending(three, _) = ia.cno_wait_check(three).expect("not over") else {
        panic!("the trigger was taken")
    };
    ia.evd_modify_cno(evd, None).expect("exists");
    let error = refused(ia.cno_free(cno), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateCnoInUse, "somebody waits");
    ia.cno_wait_cancel(three);
    ia.cno_free(cno).expect("nobody waits");
}

/// Posting a software event to an attached EVD and detaching that EVD releases a waiter of the CNO.
///
/// Clauses: CNO-18.
#[test]
fn an_event_posted_and_its_evd_detached_free_a_waiter() {
    let mut pair = unconnected();
    let ia = &mut pair.sides[A].ia;
    let cno = ia.cno_create(None).expect("a CNO");
    let wait = ia.cno_wait_begin(cno, FOREVER).expect("exists");
    let CnoWaitStatus::Pending(wait, _) = ia.cno_wait_check(wait).expect("not over") else {
        panic!("nothing has come")
    };
    let evd = ia
        .evd_create_with_cno(1, Some(cno), EvdFlags::SOFTWARE)
        .expect("an EVD");
    ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
    ia.evd_modify_cno(evd, None).expect("exists");
    assert!(matches!(
        ia.cno_wait_check(wait),
        Ok(CnoWaitStatus::Woken(Some(woken))) if woken == evd
    ));
    ia.cno_free(cno).expect("nobody waits");
}

/// Freeing the last EVD of a CNO releases all its waiters, without an EVD.
///
/// Clauses: CNO-14.
#[test]
fn when_the_last_evd_is_freed_everybody_is_sent_home_without_one() {
    let mut pair = unconnected();
    let (cno, one) = with_evd(&mut pair);
    let two = attached(&mut pair, cno);
    let (agent, hears) = agent();
    let ia = &mut pair.sides[A].ia;
    ia.cno_modify_agent(cno, Some(agent)).expect("exists");
    let waits = [(); 2].map(|()| ia.cno_wait_begin(cno, FOREVER).expect("exists"));
    ia.evd_free(one).expect("unused");
    assert!(hears.try_recv().is_err(), "one EVD is left");
    let waits = waits.map(|wait| match ia.cno_wait_check(wait).expect("not over") {
        CnoWaitStatus::Pending(wait, _) => wait,
        CnoWaitStatus::Woken(evd) => panic!("{evd:?}"),
    });
    ia.evd_free(two).expect("unused");
    assert_eq!(hears.try_recv(), Ok(None));
    for wait in waits {
        assert!(matches!(
            ia.cno_wait_check(wait),
            Ok(CnoWaitStatus::Woken(None))
        ));
    }
    refused(ia.cno_wait(cno, NOW), ReturnType::QueueEmpty);
    assert!(!ia.cno_query(cno).expect("exists").has_agent);
    ia.cno_free(cno).expect("nobody waits");
}

/// If an EVD has triggered the CNO and is then freed, the wait still returns, with another EVD that triggered.
///
/// Clauses: CNO-14.
#[test]
fn a_trigger_of_an_evd_that_was_freed_still_wakes_and_names_one_that_is_there() {
    let mut pair = unconnected();
    let (cno, one) = with_evd(&mut pair);
    let two = attached(&mut pair, cno);
    pair.post_se(one, [1]);
    pair.post_se(two, [2]);
    pair.sides[A].ia.evd_free(one).expect("unused");
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(two)));
}

/// Clauses: CNO-2, CNO-3, CNO-4, CNO-5, CNO-6.
#[test]
fn an_agent_is_called_once_for_a_trigger_and_waiters_are_released_too() {
    let mut pair = unconnected();
    let (first, first_hears) = agent();
    let cno = pair.sides[A].ia.cno_create(Some(first)).expect("a CNO");
    assert!(pair.sides[A].ia.cno_query(cno).expect("exists").has_agent);
    let evd = attached(&mut pair, cno);
    assert!(first_hears.try_recv().is_err());
    pair.post_se(evd, [1, 2]);
    assert_eq!(first_hears.try_recv(), Ok(Some(evd)));
    assert!(!pair.sides[A].ia.cno_query(cno).expect("exists").has_agent);
    // The CNO is still triggered, so another agent is called only after a wait has consumed the trigger.
    let (second, second_hears) = agent();
    pair.sides[A]
        .ia
        .cno_modify_agent(cno, Some(second))
        .expect("exists");
    pair.post_se(evd, [3]);
    assert!(second_hears.try_recv().is_err());
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(evd)));
    assert!(second_hears.try_recv().is_err());
    pair.post_se(evd, [4]);
    assert_eq!(second_hears.try_recv(), Ok(Some(evd)));
    assert_eq!(
        pair.sides[A].ia.cno_wait(cno, NOW),
        Ok(Some(evd)),
        "and the waiter"
    );
    // An agent that was replaced or detached is not called.
    let (third, third_hears) = agent();
    let (fourth, fourth_hears) = agent();
    let ia = &mut pair.sides[A].ia;
    ia.cno_modify_agent(cno, Some(third)).expect("exists");
    ia.cno_modify_agent(cno, Some(fourth)).expect("exists");
    ia.cno_modify_agent(cno, None).expect("exists");
    pair.post_se(evd, [5]);
    assert!(third_hears.try_recv().is_err() && fourth_hears.try_recv().is_err());
}

/// Clauses: CNO-2.
#[test]
fn an_agent_hears_of_a_completion_when_the_interrupt_said_so_and_progress_looked() {
    let mut pair = Pair::connected();
    let evd = pair.sides[A].recv;
    let eventfd = Interrupt::new().expect("an eventfd");
    let signal = eventfd.clone();
    let agent = move || {
        let signal = signal.clone();
        Agent::new(move |_evd| signal.signal())
    };
    let ia = &mut pair.sides[A].ia;
    let cno = ia.cno_create(Some(agent())).expect("a CNO");
    ia.evd_modify_cno(evd, Some(cno)).expect("exists");
    for round in 0..20 {
        pair.receive(A, round);
        // The function's own interrupts show when the program has to poll.
        let interrupts: Vec<Interrupt> = pair.sides[A].ia.provider().hca().interrupts().to_vec();
        for interrupt in &interrupts {
            let _before = interrupt.take();
        }
        // The program takes the interrupts, polls, and then sleeps. In this order no event is lost.
        pair.sides[A].ia.progress();
        pair.post_send(B, EMPTY, round, NONE).expect("posted");
        pair.fabric.sim.advance(Duration::from_micros(100));
        assert!(
            interrupts.iter().any(Interrupt::is_pending),
            "round {round}: the completion queue was not armed"
        );
        assert!(!eventfd.is_pending());
        pair.sides[A].ia.progress();
        assert_eq!(eventfd.take(), 1, "round {round}");
        assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(evd)));
        assert_eq!(pair.wait_recv(A).cookie, DtoCookie(round));
        assert_eq!(pair.wait_request(B).cookie, DtoCookie(round));
        pair.sides[A]
            .ia
            .cno_modify_agent(cno, Some(agent()))
            .expect("exists");
    }
    // A dequeue before `progress` takes the event. The next event still causes an upcall.
    pair.receive(A, 100);
    pair.post_send(B, EMPTY, 100, NONE).expect("posted");
    pair.fabric.sim.advance(Duration::from_micros(100));
    let taken = pair.sides[A].ia.evd_dequeue(evd);
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(None));
    assert_eq!(eventfd.take(), 0);
    pair.receive(A, 101);
    pair.post_send(B, EMPTY, 101, NONE).expect("posted");
    pair.fabric.sim.advance(Duration::from_micros(100));
    pair.sides[A].ia.progress();
    assert_eq!(eventfd.take(), 1);
    pair.assert_no_complaints();
}

/// A CQ that is armed for solicited completions only is armed for all completions when an endpoint that does not use
/// SOLICITED_WAIT is added.
#[test]
fn an_evd_of_a_cno_is_asked_again_when_another_endpoint_comes_to_it() {
    let mut pair = unconnected();
    let evd = pair.evd(8, EvdFlags::DTO);
    let (agent, hears) = agent();
    let Side {
        ia,
        pz,
        request,
        connect,
        ..
    } = &mut pair.sides[A];
    let cno = ia.cno_create(Some(agent)).expect("a CNO");
    ia.evd_modify_cno(evd, Some(cno)).expect("exists");
    let evds = EpEvds {
        recv: Some(evd),
        request: Some(*request),
        connect: Some(*connect),
    };
    let first = EpAttr {
        recv_completion_flags: CompletionFlags::SOLICITED_WAIT,
        ..attributes(ia)
    };
    let first = ia
        .ep_create(Some(*pz), evds, Some(&first))
        .expect("an endpoint");
    ia.progress();
    ia.ep_free(first).expect("freed");
    let attr = attributes(ia);
    let second = ia
        .ep_create(Some(*pz), evds, Some(&attr))
        .expect("an endpoint");
    pair.sides[A].ep = second;
    pair.connect();
    pair.receive(A, 1);
    pair.sides[A].ia.progress();
    pair.post_send(B, EMPTY, 2, NONE).expect("posted");
    pair.fabric.sim.advance(Duration::from_micros(100));
    pair.sides[A].ia.progress();
    assert_eq!(hears.try_recv(), Ok(Some(evd)));
}

/// Clauses: CNO-7.
#[test]
fn a_wait_sleeps_until_the_peer_does_something() {
    let mut pair = unconnected();
    let cno = pair.sides[B].ia.cno_create(None).expect("a CNO");
    let cr = pair.sides[B].cr;
    pair.sides[B]
        .ia
        .evd_modify_cno(cr, Some(cno))
        .expect("exists");
    pair.start_usual();
    assert_eq!(pair.sides[B].ia.cno_wait(cno, FOREVER), Ok(Some(cr)));
    pair.request(B);
}

/// Clauses: IAC-2.
#[test]
fn closing_the_adapter_tells_the_agents_that_there_is_no_evd_any_more() {
    let mut pair = unconnected();
    let (agent, hears) = agent();
    let Pair { sides, .. } = &mut pair;
    let ia = &mut sides[A].ia;
    let cno = ia.cno_create(Some(agent)).expect("a CNO");
    ia.evd_create_with_cno(4, Some(cno), EvdFlags::SOFTWARE)
        .expect("an EVD");
    let [a, b] = pair.sides;
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
    assert_eq!(hears.try_recv(), Ok(None));
    assert!(hears.try_recv().is_err(), "once");
    drop(b);
}
