//! Calls on EVDs: length, modes, software events, free. For a wait with concurrent calls, the tests call its steps
//! (`evd_wait_begin`, `evd_wait_check`), as a facade does through which several threads use one adapter.
//!
//! `evd.rs` tests plain waits, `evd_overflow.rs` full EVDs, `cno.rs` CNOs.

use hw_sim::Fault;
use mlx_prm::Opcode;
use udapl::endpoint::EpChange;
use udapl::error::{ReturnType, Subtype};
use udapl::event::SoftwareEvent;
use udapl::wait::{EvdState, EvdWait, EvdWaitStatus};
use udapl::{CompletionFlags, DtoCookie, DtoStatus, EvdFlags, EvdHandle, Event, Timeout};

use crate::support::connecting::EMPTY;
use crate::support::waiting::{FOREVER, se};
use crate::support::{A, B, NONE, Pair, PairConfig, refused};

const NOW: Timeout = Timeout::ZERO;

fn unconnected() -> Pair {
    Pair::unconnected(&PairConfig::default())
}

fn state(pair: &Pair, evd: EvdHandle) -> EvdState {
    pair.sides[A].ia.evd_query(evd).expect("exists").state
}

fn qlen(pair: &Pair, evd: EvdHandle) -> u32 {
    pair.sides[A].ia.evd_query(evd).expect("exists").qlen
}

/// Begins a wait that does not end at once. Returns the pending wait.
fn blocked(pair: &mut Pair, evd: EvdHandle, threshold: u32) -> EvdWait {
    let ia = &mut pair.sides[A].ia;
    let wait = ia
        .evd_wait_begin(evd, FOREVER, threshold)
        .expect("waitable");
    match ia.evd_wait_check(wait).expect("not over") {
        EvdWaitStatus::Pending(wait, _) => wait,
        EvdWaitStatus::Ready(event, _) => panic!("{event:?}"),
    }
}

/// Clauses: EVDC-1, EVDC-2, EVDC-4, EVDQ-1.
#[test]
fn an_evd_is_as_asked_for_and_says_so() {
    let mut pair = unconnected();
    let ia = &mut pair.sides[A].ia;
    for flags in [EvdFlags::SOFTWARE, EvdFlags::DTO, EvdFlags::DEFAULT] {
        let evd = ia.evd_create(17, flags).expect("an EVD");
        let param = ia.evd_query(evd).expect("exists");
        assert!(param.qlen >= 17);
        assert_eq!((param.flags, param.cno), (flags, None));
        let new = EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD;
        assert_eq!(param.state, new);
    }
    let most = ia.query().ia.max_evd_qlen;
    let error = refused(
        ia.evd_create(0, EvdFlags::DTO),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2);
    let error = refused(
        ia.evd_create(most + 1, EvdFlags::DTO),
        ReturnType::InsufficientResources,
    );
    assert_eq!(error.subtype(), Subtype::ResourceTevd);
    for flags in [EvdFlags::empty(), EvdFlags::from_bits_retain(0x200)] {
        let error = refused(ia.evd_create(1, flags), ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg4);
    }
}

/// An EVD of the reported maximum length can be created, and another EVD can be resized to this length.
///
/// Clauses: EVDC-1, EVDR-1.
#[test]
fn the_longest_evd_that_is_announced_can_be_had_and_be_grown_to() {
    let mut pair = unconnected();
    let ia = &mut pair.sides[A].ia;
    let most = ia.query().ia.max_evd_qlen;
    for flags in [EvdFlags::SOFTWARE, EvdFlags::DTO] {
        let evd = ia.evd_create(1, flags).expect("an EVD");
        ia.evd_resize(evd, most).expect("announced");
        assert!(ia.evd_query(evd).expect("exists").qlen >= most);
        ia.evd_free(evd).expect("unused");
    }
    let evd = ia.evd_create(most, EvdFlags::DTO).expect("announced");
    assert!(ia.evd_query(evd).expect("exists").qlen >= most);
}

/// Calls refuse handles that name no EVD.
///
/// Clauses: EVDC-3, EVDF-3.
#[test]
fn handles_that_name_nothing_are_refused_by_every_call() {
    let mut pair = unconnected();
    let foreign = pair.sides[B].cr;
    let gone = pair.evd(4, EvdFlags::SOFTWARE);
    let ia = &mut pair.sides[A].ia;
    ia.evd_free(gone).expect("unused");
    for evd in [gone, foreign] {
        let errors = [
            ia.evd_query(evd).err(),
            ia.evd_free(evd).err(),
            ia.evd_resize(evd, 4).err(),
            ia.evd_post_se(evd, SoftwareEvent(1)).err(),
            ia.evd_modify_cno(evd, None).err(),
            ia.evd_enable(evd).err(),
            ia.evd_disable(evd).err(),
            ia.evd_set_unwaitable(evd).err(),
            ia.evd_clear_unwaitable(evd).err(),
            ia.evd_dequeue(evd).err(),
            ia.evd_wait(evd, NOW, 1).err().map(|error| error.error),
            ia.evd_wait_begin(evd, NOW, 1).err(),
            ia.evd_poll(evd, &mut [Event::NONE]).err(),
            ia.evd_stats(evd).err(),
            ia.arm(&[evd]).err(),
        ];
        for (call, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("call {call}"));
            assert_eq!(
                error.return_type(),
                ReturnType::InvalidHandle,
                "call {call}"
            );
        }
    }
    let cno = pair.sides[B].ia.cno_create(None).expect("a CNO");
    let made = pair.sides[A]
        .ia
        .evd_create_with_cno(4, Some(cno), EvdFlags::SOFTWARE);
    let error = refused(made, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleCno);
}

/// An EVD can be freed, with its queued events, when no stream feeds it and no thread waits on it.
///
/// Clauses: EVDF-1, EVDF-2.
#[test]
fn an_evd_ends_with_what_is_in_it_when_nothing_feeds_it_and_nobody_waits() {
    let mut pair = unconnected();
    let evd = pair.evd(4, EvdFlags::SOFTWARE);
    let wait = blocked(&mut pair, evd, 2);
    let ia = &mut pair.sides[A].ia;
    let error = refused(ia.evd_free(evd), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEvdWaiter);
    ia.evd_wait_cancel(wait);
    ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
    ia.evd_free(evd).expect("nobody waits");
    for fed in [pair.sides[A].recv, pair.sides[A].connect] {
        let error = refused(pair.sides[A].ia.evd_free(fed), ReturnType::InvalidState);
        assert_eq!(error.subtype(), Subtype::StateEvdInUse);
    }
    let cr = pair.sides[B].cr;
    let error = refused(pair.sides[B].ia.evd_free(cr), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEvdInUse);
}

/// Making an EVD unwaitable ends its wait with an error. Dequeuing, posting and the CNO work as before.
///
/// Clauses: EVDM-7, EVDM-8, EVDM-9, EVDM-10.
#[test]
fn an_unwaitable_evd_sends_its_waiter_away_and_works_otherwise() {
    let mut pair = unconnected();
    let cno = pair.sides[A].ia.cno_create(None).expect("a CNO");
    let evd = pair.evd(4, EvdFlags::SOFTWARE);
    pair.sides[A]
        .ia
        .evd_modify_cno(evd, Some(cno))
        .expect("exists");
    let wait = blocked(&mut pair, evd, 1);
    let ia = &mut pair.sides[A].ia;
    for _ in 0..2 {
        ia.evd_set_unwaitable(evd).expect("exists");
    }
    assert_eq!(
        ia.evd_query(evd).expect("exists").state,
        EvdState::ENABLED | EvdState::UNWAITABLE | EvdState::CONFIG_THRESHOLD
    );
    // The wait ends with the error even though the EVD is waitable again and has an event.
    ia.evd_clear_unwaitable(evd).expect("exists");
    ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
    let error = ia.evd_wait_check(wait).expect_err("sent away").error;
    assert_eq!(
        (error.return_type(), error.subtype()),
        (ReturnType::InvalidState, Subtype::StateEvdUnwaitable)
    );
    ia.evd_set_unwaitable(evd).expect("exists");
    for timeout in [NOW, FOREVER] {
        let error = ia.evd_wait(evd, timeout, 1).expect_err("unwaitable").error;
        assert_eq!(error.subtype(), Subtype::StateEvdUnwaitable);
    }
    assert_eq!(ia.cno_wait(cno, NOW), Ok(Some(evd)));
    assert_eq!(ia.evd_dequeue(evd), Ok(Some(se(1))));
    for _ in 0..2 {
        ia.evd_clear_unwaitable(evd).expect("exists");
    }
    assert_eq!(
        state(&pair, evd),
        EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD
    );
    pair.post_se(evd, [2]);
    pair.expect_at_once(evd, 1, se(2), 0);
}

/// The modes enabled/disabled and waitable/unwaitable are independent of each other. Waits depend only on
/// waitable/unwaitable.
///
/// Clauses: EVDM-3, EVDM-4, EVDM-6, EVDQ-1.
#[test]
fn the_two_axes_of_the_state_turn_apart_and_waiters_care_for_one_of_them_only() {
    let mut pair = unconnected();
    let evd = pair.evd(4, EvdFlags::SOFTWARE);
    let ia = &mut pair.sides[A].ia;
    ia.evd_disable(evd).expect("exists");
    ia.evd_set_unwaitable(evd).expect("exists");
    assert_eq!(
        ia.evd_query(evd).expect("exists").state,
        EvdState::DISABLED | EvdState::UNWAITABLE | EvdState::CONFIG_THRESHOLD
    );
    ia.evd_clear_unwaitable(evd).expect("exists");
    assert_eq!(
        ia.evd_query(evd).expect("exists").state,
        EvdState::DISABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD
    );
    let wait = blocked(&mut pair, evd, 1);
    pair.post_se(evd, [1]);
    let look = pair.sides[A].ia.evd_wait_check(wait);
    assert!(matches!(look, Ok(EvdWaitStatus::Ready(event, 0)) if event == se(1)));
    pair.sides[A].ia.evd_enable(evd).expect("exists");
    assert!(state(&pair, evd).contains(EvdState::ENABLED));
}

/// While a thread waits on an EVD, dequeue, another wait and resize are refused.
///
/// Clauses: EVDD-2, EVDW-6, EVDR-6.
#[test]
fn an_evd_belongs_to_the_one_who_waits() {
    let mut pair = unconnected();
    for flags in [EvdFlags::SOFTWARE, EvdFlags::SOFTWARE | EvdFlags::DTO] {
        let evd = pair.evd(4, flags);
        let wait = blocked(&mut pair, evd, 2);
        let ia = &mut pair.sides[A].ia;
        ia.evd_post_se(evd, SoftwareEvent(7)).expect("room");
        let errors = [
            ia.evd_dequeue(evd).err(),
            ia.evd_wait(evd, NOW, 1).err().map(|error| error.error),
            ia.evd_wait_begin(evd, NOW, 1).err(),
            ia.evd_resize(evd, 8).err(),
        ];
        for error in errors {
            let error = error.expect("somebody waits");
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidState, Subtype::StateEvdWaiter)
            );
        }
        ia.evd_post_se(evd, SoftwareEvent(8)).expect("room");
        let look = ia.evd_wait_check(wait);
        assert!(matches!(look, Ok(EvdWaitStatus::Ready(event, 1)) if event == se(7)));
        assert_eq!(ia.evd_dequeue(evd), Ok(Some(se(8))));
    }
}

/// While a thread waits on an EVD of completions, a dequeue is refused, too.
///
/// Clauses: EVDD-2.
#[test]
fn completions_too_are_the_waiters() {
    let mut pair = Pair::connected();
    let evd = pair.sides[A].request;
    let wait = blocked(&mut pair, evd, 2);
    for cookie in 0..2 {
        pair.receive(B, cookie);
    }
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    let error = refused(pair.sides[A].ia.evd_dequeue(evd), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEvdWaiter);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    let look = pair.sides[A].ia.evd_wait_check(wait);
    let Ok(EvdWaitStatus::Ready(Event::Dto(done), 1)) = look else {
        panic!("{look:?}")
    };
    assert_eq!((done.cookie.0, pair.wait_request(A).cookie.0), (1, 2));
}

/// Clauses: EVDW-8.
#[test]
fn an_interrupted_wait_says_how_many_events_there_are() {
    let mut pair = unconnected();
    let evd = pair.evd(8, EvdFlags::SOFTWARE);
    let wait = blocked(&mut pair, evd, 5);
    pair.post_se(evd, [1, 2, 3]);
    let error = pair.sides[A].ia.evd_wait_cancel(wait);
    assert_eq!(
        (error.error.return_type(), error.nmore),
        (ReturnType::InterruptedCall, 3)
    );
    pair.expect_at_once(evd, 3, se(1), 2);
}

/// A wait returns at its threshold and not before, and reports the exact number of events that are left.
///
/// Clauses: EVDD-1, EVDW-1, EVDW-2, EVDW-3, EVDW-4.
#[test]
fn thresholds_and_what_is_left_are_exact() {
    let mut pair = unconnected();
    let evd = pair.evd(16, EvdFlags::SOFTWARE);
    for threshold in [1, 2, 7, 16] {
        for there in 0..=16 {
            pair.post_se(evd, 0..u64::from(there));
            let (result, _) = pair.wait(evd, NOW, threshold);
            let left = if there >= threshold {
                assert_eq!(result, Ok((se(0), there - 1)), "{there} for {threshold}");
                1
            } else {
                let expired = (ReturnType::TimeoutExpired, Subtype::None, there);
                assert_eq!(result, Err(expired), "{there} for {threshold}");
                0
            };
            for word in left..u64::from(there) {
                assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
            }
            assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(None));
        }
    }
    for threshold in [0, qlen(&pair, evd) + 1] {
        let (result, _) = pair.wait(evd, NOW, threshold);
        assert_eq!(
            result,
            Err((ReturnType::InvalidParameter, Subtype::Arg3, 0))
        );
    }
}

/// Clauses: EVDW-5.
#[test]
fn where_the_consumer_controls_notification_the_threshold_is_one() {
    for (flags, subtype) in [
        (CompletionFlags::UNSIGNALLED, Subtype::StateEvdConfigNotify),
        (
            CompletionFlags::SOLICITED_WAIT,
            Subtype::StateEvdConfigSolicited,
        ),
    ] {
        let mut pair = Pair::unconnected(&PairConfig::with_attr(|attr| {
            attr.recv_completion_flags = flags;
        }));
        let evd = pair.sides[A].recv;
        let (result, _) = pair.wait(evd, NOW, 2);
        assert_eq!(result, Err((ReturnType::InvalidState, subtype, 0)));
        let (result, _) = pair.wait(evd, NOW, 1);
        assert_eq!(result, Err((ReturnType::TimeoutExpired, Subtype::None, 0)));
    }
}

/// Clauses: EVDW-9.
#[test]
fn a_dead_device_ends_a_wait_that_nothing_can_satisfy() {
    let mut pair = unconnected();
    let evd = pair.evd(4, EvdFlags::SOFTWARE);
    let wait = blocked(&mut pair, evd, 1);
    pair.fabric
        .sim
        .inject(&pair.fabric.function(A), &Fault::SurpriseRemoval);
    pair.run_for(3_000);
    let error = pair.sides[A]
        .ia
        .evd_wait_check(wait)
        .expect_err("nothing can come");
    assert_eq!(error.error.return_type(), ReturnType::Abort);
}

/// Clauses: EVDS-1, EVDS-2, EVDS-3, EVDS-4.
#[test]
fn software_events_come_back_as_they_were_posted_until_the_queue_is_full() {
    let mut pair = unconnected();
    let evd = pair.evd(3, EvdFlags::SOFTWARE);
    let room = u64::from(qlen(&pair, evd));
    let words = [0, u64::MAX, 0xdead_beef_0bad_cafe];
    pair.post_se(evd, words);
    for word in words {
        assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
    }
    pair.post_se(evd, 0..room);
    let full = refused(
        pair.sides[A].ia.evd_post_se(evd, SoftwareEvent(99)),
        ReturnType::QueueFull,
    );
    assert_eq!(full.code(), 0x800e_0000);
    for word in 0..room {
        assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, asynchronous);
    let wait = blocked(&mut pair, evd, 1);
    pair.post_se(evd, [5]);
    assert!(matches!(
        pair.sides[A].ia.evd_wait_check(wait),
        Ok(EvdWaitStatus::Ready(event, 0)) if event == se(5)
    ));
    let other = pair.evd(3, EvdFlags::DEFAULT);
    let error = refused(
        pair.sides[A].ia.evd_post_se(other, SoftwareEvent(1)),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg1);
}

/// Clauses: EVDR-1, EVDR-2, EVDR-5, EVDR-7.
#[test]
fn a_software_evd_takes_another_length_with_its_events() {
    let mut pair = unconnected();
    let evd = pair.evd(4, EvdFlags::SOFTWARE);
    pair.post_se(evd, 1..=4);
    pair.sides[A].ia.evd_resize(evd, 9).expect("longer");
    assert_eq!(qlen(&pair, evd), 9);
    pair.post_se(evd, 5..=9);
    refused(
        pair.sides[A].ia.evd_post_se(evd, SoftwareEvent(10)),
        ReturnType::QueueFull,
    );
    refused(
        pair.sides[A].ia.evd_resize(evd, 8),
        ReturnType::InvalidState,
    );
    assert_eq!(qlen(&pair, evd), 9);
    pair.expect_at_once(evd, 9, se(1), 8);
    pair.sides[A].ia.evd_resize(evd, 8).expect("eight are left");
    assert_eq!(qlen(&pair, evd), 8);
    refused(
        pair.sides[A].ia.evd_post_se(evd, SoftwareEvent(10)),
        ReturnType::QueueFull,
    );
    let (result, _) = pair.wait(evd, NOW, 9);
    assert_eq!(
        result,
        Err((ReturnType::InvalidParameter, Subtype::Arg3, 0))
    );
    for word in 2..=9 {
        assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(word))));
    }
}

/// Clauses: EVDR-3, EVDR-4.
#[test]
fn a_length_that_cannot_be_had_changes_nothing() {
    let mut pair = unconnected();
    let most = pair.sides[A].ia.query().ia.max_evd_qlen;
    for flags in [EvdFlags::SOFTWARE, EvdFlags::DTO] {
        let evd = pair.evd(4, flags);
        let before = qlen(&pair, evd);
        let error = refused(
            pair.sides[A].ia.evd_resize(evd, 0),
            ReturnType::InvalidParameter,
        );
        assert_eq!(error.subtype(), Subtype::Arg2);
        let error = refused(
            pair.sides[A].ia.evd_resize(evd, most + 1),
            ReturnType::InsufficientResources,
        );
        assert_eq!(error.subtype(), Subtype::ResourceTevd);
        assert_eq!(qlen(&pair, evd), before);
    }
    let evd = pair.sides[A].request;
    let before = qlen(&pair, evd);
    pair.refuse_next(A, Opcode::MODIFY_CQ);
    refused(
        pair.sides[A].ia.evd_resize(evd, 4 * before),
        ReturnType::InsufficientResources,
    );
    assert_eq!(qlen(&pair, evd), before);
    pair.connect();
    pair.expect_alive();
    pair.sides[A].ia.evd_resize(evd, 4 * before).expect("now");
    pair.expect_alive();
    pair.assert_no_complaints();
}

/// Clauses: EVDR-1, EVDR-2.
#[test]
fn a_completion_queue_takes_another_length_again_and_again_and_no_completion_is_lost() {
    let mut pair = Pair::connected();
    let (request, recv) = (pair.sides[A].request, pair.sides[B].recv);
    let mut posted = 0;
    let mut seen = [0; 2];
    // The EVDs are resized up and down, with 0, 15 or all of the 40 new completions dequeued, and over more than one
    // wrap of the ring.
    for (round, length) in [300, 1000, 64, 65, 4000, 70, 256, 128]
        .into_iter()
        .enumerate()
    {
        for _ in 0..40 {
            pair.receive(B, posted);
            pair.post_send(A, EMPTY, posted, NONE).expect("posted");
            posted += 1;
        }
        let mut take = |pair: &mut Pair, count: u64| {
            for (at, (side, evd)) in [(A, request), (B, recv)].into_iter().enumerate() {
                for _ in 0..count {
                    let done = pair.wait_dto(side, evd);
                    assert_eq!((done.cookie.0, done.status), (seen[at], DtoStatus::Success));
                    seen[at] += 1;
                }
            }
        };
        take(&mut pair, [0, 15, 40][round % 3]);
        pair.sides[A].ia.evd_resize(request, length).expect("fits");
        pair.sides[B].ia.evd_resize(recv, length).expect("fits");
        assert!(qlen(&pair, request) >= length);
        pair.receive(B, posted);
        pair.post_send(A, EMPTY, posted, NONE).expect("posted");
        posted += 1;
        take(&mut pair, 41 - [0, 15, 40][round % 3]);
    }
    pair.expect_nothing(A, request);
    pair.expect_nothing(B, recv);
    // Waiting works in the new ring, too.
    let wait = blocked(&mut pair, request, 1);
    pair.receive(B, posted);
    pair.post_send(A, EMPTY, posted, NONE).expect("posted");
    assert!(matches!(
        pair.sides[A].ia.evd_wait_check(wait),
        Ok(EvdWaitStatus::Ready(Event::Dto(done), 0)) if done.cookie.0 == posted
    ));
    pair.assert_no_complaints();
}

/// Clauses: EVDR-2, EVDR-5.
#[test]
fn more_completions_than_the_new_length_refuse_it_and_stay() {
    let mut pair = Pair::connected();
    let request = pair.sides[A].request;
    for cookie in 0..20 {
        pair.receive(B, cookie);
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    let before = qlen(&pair, request);
    refused(
        pair.sides[A].ia.evd_resize(request, 19),
        ReturnType::InvalidState,
    );
    assert_eq!(qlen(&pair, request), before);
    pair.sides[A].ia.evd_resize(request, 20).expect("they fit");
    for cookie in 0..20 {
        assert_eq!(pair.wait_request(A).cookie, DtoCookie(cookie));
    }
    pair.expect_nothing(A, request);
}

/// Clauses: EVDR-7.
#[test]
fn a_longer_completion_queue_holds_more() {
    let mut pair = Pair::connected_with(&PairConfig {
        evd_qlen: 64,
        ..PairConfig::default()
    });
    // The requests of A complete on an EVD that is created too short for them, and then resized.
    let evd = pair.evd(4, EvdFlags::DTO);
    pair.sides[A].ia.evd_resize(evd, 300).expect("longer");
    pair.disconnect();
    let ep = pair.sides[A].ep;
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    let b = pair.sides[B].ep;
    pair.sides[B].ia.ep_reset(b).expect("DISCONNECTED");
    let change = EpChange {
        request_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A]
        .ia
        .ep_modify(ep, &change)
        .expect("UNCONNECTED");
    pair.connect();
    for round in 0..4 {
        for cookie in 0..60 {
            pair.receive(B, cookie);
            pair.post_send(A, EMPTY, round * 60 + cookie, NONE)
                .expect("posted");
        }
        // B's receive EVD keeps its length, so the test dequeues its completions.
        for _ in 0..60 {
            pair.wait_recv(B);
        }
        // The wait moves the completions into the EVD's software queue, which frees the slots of A's send queue.
        let (result, _) = pair.wait(evd, NOW, 300);
        let there = u32::try_from(60 * (round + 1)).expect("few");
        assert_eq!(
            result,
            Err((ReturnType::TimeoutExpired, Subtype::None, there))
        );
    }
    for cookie in 0..240 {
        assert_eq!(pair.wait_dto(A, evd).cookie, DtoCookie(cookie));
    }
    pair.expect_no_async_event();
}

/// Clauses: IAO-2, IAO-3, IAO-4.
#[test]
fn the_asynchronous_evd_takes_another_length_and_a_cno() {
    let mut pair = unconnected();
    let asynchronous = pair.sides[A].ia.async_evd();
    let ia = &mut pair.sides[A].ia;
    let param = ia.evd_query(asynchronous).expect("exists");
    assert_eq!((param.flags, param.cno), (EvdFlags::ASYNC, None));
    ia.evd_resize(asynchronous, 500).expect("longer");
    assert_eq!(ia.evd_query(asynchronous).expect("exists").qlen, 500);
    let cno = ia.cno_create(None).expect("a CNO");
    ia.evd_modify_cno(asynchronous, Some(cno)).expect("exists");
    let error = refused(ia.evd_free(asynchronous), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEvdInUse);
    pair.fabric
        .sim
        .inject(&pair.fabric.function(A), &Fault::SurpriseRemoval);
    pair.run_for(3_000);
    assert_eq!(pair.sides[A].ia.cno_wait(cno, NOW), Ok(Some(asynchronous)));
    assert_eq!(
        pair.sides[A]
            .ia
            .evd_dequeue(asynchronous)
            .expect("an EVD")
            .map(|event| event.number()),
        Some(0x8002)
    );
}
