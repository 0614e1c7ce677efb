//! EVDs: their length, waiting on them, and the order of events.
//!
//! `flags.rs` tests the effect of each completion flag on a waiter.

use dat_core::FastPoll;
use hw_sim::Fault;
use udapl::endpoint::{EpChange, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::event::AsyncEvent;
use udapl::wait::EvdState;
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoStatus, EvdFlags, Event, Timeout,
};

use crate::support::connecting::EMPTY;
use crate::support::waiting::{FOREVER, se};
use crate::support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

#[test]
fn an_evd_has_a_length_and_streams_and_says_so() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let ia = &mut pair.sides[A].ia;
    let most = ia.query().ia.max_evd_qlen;
    let all = [
        EvdFlags::SOFTWARE,
        EvdFlags::CR,
        EvdFlags::DTO,
        EvdFlags::CONNECTION,
        EvdFlags::RMR_BIND,
        EvdFlags::ASYNC,
    ];
    for flags in all.into_iter().chain([EvdFlags::DEFAULT, EvdFlags::all()]) {
        for qlen in [1, 2, 3, 1000] {
            let evd = ia.evd_create(qlen, flags).expect("an EVD");
            let param = ia.evd_query(evd).expect("exists");
            assert!(param.qlen >= qlen, "{param:?}");
            assert_eq!(param.flags, flags);
            assert_eq!(
                param.state,
                EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD
            );
            ia.evd_free(evd).expect("unused");
            assert_eq!(
                refused(ia.evd_query(evd).map(drop), ReturnType::InvalidHandle).subtype(),
                Subtype::None
            );
        }
    }
    let bad = [
        (ia.evd_create(0, EvdFlags::DTO), Subtype::Arg2),
        (ia.evd_create(1, EvdFlags::empty()), Subtype::Arg4),
        (
            ia.evd_create(1, EvdFlags::from_bits_retain(0x200)),
            Subtype::Arg4,
        ),
        (
            ia.evd_create(1, EvdFlags::from_bits_retain(0x121 | 0x8000_0000)),
            Subtype::Arg4,
        ),
    ];
    for (made, subtype) in bad {
        assert_eq!(
            refused(made, ReturnType::InvalidParameter).subtype(),
            subtype
        );
    }
    for flags in [EvdFlags::DTO, EvdFlags::SOFTWARE] {
        refused(
            ia.evd_create(most + 1, flags),
            ReturnType::InsufficientResources,
        );
    }
    pair.assert_no_complaints();
}

#[test]
fn a_threshold_of_none_or_of_more_than_fits_is_the_third_argument() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(5, EvdFlags::SOFTWARE);
    let qlen = pair.sides[A].ia.evd_query(evd).expect("exists").qlen;
    pair.post_se(evd, [1]);
    for threshold in [0, qlen + 1, u32::MAX] {
        let (result, took) = pair.wait(evd, FOREVER, threshold);
        let Err((kind, subtype, _)) = result else {
            panic!("{threshold}")
        };
        assert_eq!(
            (kind, subtype, took),
            (ReturnType::InvalidParameter, Subtype::Arg3, 0),
            "{threshold}"
        );
    }
    pair.post_se(evd, 2..=u64::from(qlen));
    pair.expect_at_once(evd, qlen, se(1), qlen - 1);
}

#[test]
fn a_wait_returns_at_once_when_enough_is_there_and_says_how_many_are_left() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(10, EvdFlags::SOFTWARE);
    pair.post_se(evd, 1..=5);
    pair.expect_at_once(evd, 5, se(1), 4);
    pair.expect_at_once(evd, 1, se(2), 3);
    pair.expect_at_once(evd, 3, se(3), 2);
    pair.expect_at_once(evd, 1, se(4), 1);
    pair.expect_at_once(evd, 1, se(5), 0);
    let (result, took) = pair.wait(evd, Timeout::ZERO, 1);
    assert_eq!(
        (result, took),
        (Err((ReturnType::TimeoutExpired, Subtype::None, 0)), 0)
    );
}

#[test]
fn a_wait_for_more_than_comes_takes_exactly_its_time_and_takes_nothing_out() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(10, EvdFlags::SOFTWARE);
    pair.post_se(evd, [1, 2]);
    for micros in [0, 1, 1_000, 250_000, 5_000_000] {
        let (result, took) = pair.wait(evd, Timeout::from_micros(micros), 3);
        assert_eq!(result, Err((ReturnType::TimeoutExpired, Subtype::None, 2)));
        assert_eq!(took, u64::from(micros));
    }
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(1))));
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(2))));
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(None));
}

#[test]
fn a_wait_for_several_is_released_by_the_last_of_them() {
    let mut pair = Pair::connected();
    let evd = pair.sides[A].recv;
    for cookie in 0..8 {
        pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
    }
    pair.set_delay(100);
    for threshold in [1, 2, 5] {
        for cookie in 0..u64::from(threshold) {
            pair.post_send(B, EMPTY, cookie, NONE).expect("posted");
            pair.fabric
                .sim
                .advance(core::time::Duration::from_micros(10));
        }
        let (result, took) = pair.wait(evd, FOREVER, threshold);
        let Ok((Event::Dto(done), nmore)) = result else {
            panic!("{result:?}")
        };
        assert_eq!((done.status, nmore), (DtoStatus::Success, threshold - 1));
        assert_eq!(took, 90, "the last one was sent 10 us before");
        for _ in 1..threshold {
            assert!(matches!(
                pair.sides[A].ia.evd_dequeue(evd),
                Ok(Some(Event::Dto(_)))
            ));
        }
        while matches!(
            pair.sides[B].ia.evd_dequeue(pair.sides[B].request),
            Ok(Some(_))
        ) {}
    }
    pair.assert_no_complaints();
}

#[test]
fn an_unwaitable_evd_never_blocks_and_still_takes_and_gives_events() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(10, EvdFlags::SOFTWARE);
    let ia = &mut pair.sides[A].ia;
    ia.evd_clear_unwaitable(evd).expect("no effect");
    ia.evd_set_unwaitable(evd).expect("exists");
    ia.evd_set_unwaitable(evd).expect("no effect");
    let state = ia.evd_query(evd).expect("exists").state;
    assert!(
        state.contains(EvdState::UNWAITABLE | EvdState::ENABLED)
            && !state.contains(EvdState::WAITABLE),
        "{state:?}"
    );
    pair.post_se(evd, [1, 2]);
    for timeout in [Timeout::ZERO, LONG, FOREVER] {
        let (result, took) = pair.wait(evd, timeout, 1);
        let Err((kind, subtype, _)) = result else {
            panic!("unwaitable")
        };
        assert_eq!(
            (kind, subtype, took),
            (ReturnType::InvalidState, Subtype::StateEvdUnwaitable, 0)
        );
    }
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(1))));
    pair.sides[A].ia.evd_clear_unwaitable(evd).expect("exists");
    pair.expect_at_once(evd, 1, se(2), 0);
}

#[test]
fn events_of_every_stream_wake_a_waiter() {
    // Connection request at the passive side; B waits.
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.set_delay(100);
    let ep = pair.sides[A].ep;
    pair.start(A, ep, CONN_QUAL, LONG, b"").expect("starts");
    let cr = pair.sides[B].cr;
    let (event, _) = pair.sides[B]
        .ia
        .evd_wait(cr, FOREVER, 1)
        .expect("a request");
    let Event::ConnectionRequest(request) = event else {
        panic!("{event:?}")
    };
    assert_eq!(
        (event.number(), request.psp, request.conn_qual),
        (0x2001, Some(pair.psp), CONN_QUAL)
    );
    // Connection.
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(b), b"")
        .expect("accepted");
    let connect = pair.sides[A].connect;
    let (result, took) = pair.wait(connect, FOREVER, 1);
    let Ok((Event::Connection(event), 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(
        (event.kind, event.kind.number(), took),
        (ConnectionEventKind::Established, 0x4001, 100)
    );
    let (event, _) = pair.sides[B]
        .ia
        .evd_wait(pair.sides[B].connect, FOREVER, 1)
        .expect("established");
    assert_eq!(event.number(), 0x4001);
    // DTO.
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    let request = pair.sides[A].request;
    let (result, took) = pair.wait(request, FOREVER, 1);
    let Ok((event, 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!((event.number(), took), (0x0001, 200));
    // The connection ends, and the program waits only on the connection EVD.
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .ep_disconnect(b, CloseFlags::Abrupt)
        .expect("CONNECTED");
    let (result, took) = pair.wait(connect, FOREVER, 1);
    let Ok((event, 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!((event.number(), took), (0x4005, 100));
    // Asynchronous.
    let function = pair.fabric.function(A);
    pair.fabric.sim.inject(&function, &Fault::HealthSyndrome(1));
    let evd = pair.sides[A].ia.async_evd();
    let (result, _) = pair.wait(evd, FOREVER, 1);
    assert_eq!(result, Ok((Event::Async(AsyncEvent::IaCatastrophic), 0)));
    // Software: the event is posted before the wait, because no other code runs during the wait.
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(1, EvdFlags::SOFTWARE);
    pair.post_se(evd, [9]);
    pair.expect_at_once(evd, 1, se(9), 0);
    assert_eq!(se(9).number(), 0x1_0001);
}

#[test]
fn a_broken_connection_wakes_who_waits_for_connections_only() {
    let mut pair = Pair::connected();
    let from = pair.buffer(A, 65);
    let to = pair.buffer(B, 64);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(100);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let connect = pair.sides[A].connect;
    let (result, took) = pair.wait(connect, FOREVER, 1);
    let Ok((event, 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!((event.number(), took), (0x4006, 200));
}

#[test]
fn where_the_consumer_controls_notification_the_threshold_is_one() {
    for (flags, subtype) in [
        (CompletionFlags::UNSIGNALLED, Subtype::StateEvdConfigNotify),
        (
            CompletionFlags::SOLICITED_WAIT,
            Subtype::StateEvdConfigSolicited,
        ),
    ] {
        let mut pair = Pair::shaped(|_, attr| attr.recv_completion_flags = flags);
        let evd = pair.sides[A].recv;
        let (result, took) = pair.wait(evd, FOREVER, 2);
        let Err((kind, found, _)) = result else {
            panic!("{flags:?}")
        };
        assert_eq!((kind, found, took), (ReturnType::InvalidState, subtype, 0));
        let (result, _) = pair.wait(evd, Timeout::from_micros(1), 1);
        assert_eq!(result, Err((ReturnType::TimeoutExpired, Subtype::None, 0)));
    }
}

#[test]
fn completions_that_notify_nobody_end_a_wait_when_its_time_is_over_and_not_before() {
    let mut pair = Pair::shaped(|_, attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
    });
    for cookie in [1, 2] {
        pair.post_recv(B, EMPTY, cookie, NONE).expect("posted");
    }
    pair.set_delay(100);
    pair.post_send(A, EMPTY, 3, CompletionFlags::UNSIGNALLED)
        .expect("posted");
    let request = pair.sides[A].request;
    let (result, took) = pair.wait(request, Timeout::from_micros(5_000), 1);
    let Ok((Event::Dto(done), 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(
        (done.cookie.0, took),
        (3, 5_000),
        "the count decides at the end"
    );
    // An event that is already there needs no notification.
    pair.post_send(A, EMPTY, 4, CompletionFlags::UNSIGNALLED)
        .expect("posted");
    pair.fabric
        .sim
        .advance(core::time::Duration::from_millis(1));
    let (result, took) = pair.wait(request, FOREVER, 1);
    let Ok((Event::Dto(done), 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!((done.cookie.0, took), (4, 0));
}

#[test]
fn requests_in_an_evd_that_is_freed_are_refused() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let ep = pair.sides[A].ep;
    pair.start(A, ep, CONN_QUAL, LONG, b"").expect("starts");
    for _ in 0..10 {
        pair.pump();
    }
    let (psp, evd) = (pair.psp, pair.sides[B].cr);
    pair.sides[B].ia.psp_free(psp).expect("exists");
    pair.sides[B].ia.evd_free(evd).expect("nothing feeds it");
    pair.expect_connection(A, ConnectionEventKind::NonPeerRejected);
    pair.assert_no_complaints();
}

#[test]
fn on_one_evd_established_comes_first_and_the_end_after_the_completions() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[B]
        .ia
        .evd_create(300, EvdFlags::DTO | EvdFlags::CONNECTION)
        .expect("an EVD");
    let b = pair.sides[B].ep;
    let one = EpChange {
        recv_evd: Some(Some(evd)),
        request_evd: Some(Some(evd)),
        connect_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[B].ia.ep_modify(b, &one).expect("UNCONNECTED");
    for cookie in 0..10 {
        pair.post_recv(B, EMPTY, cookie, NONE).expect("posted");
    }
    let a = pair.sides[A].ep;
    pair.start(A, a, CONN_QUAL, LONG, b"").expect("starts");
    let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(b), b"")
        .expect("accepted");
    // B polls only after the connection, six messages and the disconnect.
    let connect = pair.sides[A].connect;
    let (result, _) = pair.wait(connect, FOREVER, 1);
    assert!(
        matches!(result, Ok((Event::Connection(_), 0))),
        "{result:?}"
    );
    for cookie in 0..6 {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    pair.sides[A]
        .ia
        .ep_disconnect(a, CloseFlags::Graceful)
        .expect("CONNECTED");
    let mut events = Vec::new();
    while events.len() < 12 {
        events.push(match pair.wait_event(B, evd) {
            Event::Connection(event) => (event.kind.number(), u64::MAX),
            Event::Dto(done) => (done.status as u32, done.cookie.0),
            other @ (Event::ConnectionRequest(_)
            | Event::RmrBind(_)
            | Event::Async(_)
            | Event::Software(_)) => panic!("{other:?}"),
        });
    }
    let established = (0x4001, u64::MAX);
    let messages = (0..6).map(|cookie| (DtoStatus::Success as u32, cookie));
    let ended = (0x4005, u64::MAX);
    let flushed = (6..10).map(|cookie| (DtoStatus::ErrFlushed as u32, cookie));
    assert_eq!(events[0], established);
    assert!(events[1..7].iter().copied().eq(messages), "{events:?}");
    // The flushed receives may come before or after the DISCONNECTED event.
    assert!(events[7..].contains(&ended), "{events:?}");
    assert!(
        events[7..]
            .iter()
            .copied()
            .filter(|event| *event != ended)
            .eq(flushed),
        "{events:?}"
    );
    pair.assert_no_complaints();
}

#[test]
fn events_of_one_stream_come_out_in_the_order_they_went_in() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(2_000, EvdFlags::SOFTWARE);
    let mut next = 0;
    for at in 0..5_000_u64 {
        pair.post_se(evd, [at]);
        if at % 3 == 2 {
            let (result, _) = pair.wait(evd, FOREVER, 2);
            let Ok((event, nmore)) = result else {
                panic!("{result:?}")
            };
            assert_eq!(event, se(next));
            assert_eq!(u64::from(nmore), at - next);
            assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(next + 1))));
            next += 2;
        }
    }
}

/// The connections of a consumer that finds a completion at every poll still make progress: A gets the reply to its
/// connection request, and B gets A's RTU.
#[test]
fn who_never_finds_a_queue_empty_still_connects() {
    for by_name in [false, true] {
        let mut pair = Pair::connected();
        let (from, to) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
        let (ours, theirs) = (pair.another_ep(A), pair.another_ep(B));
        pair.start(A, ours, CONN_QUAL, LONG, b"").expect("starts");
        let cr = pair.request(B);
        let accepted = pair.sides[B].ia.cr_accept(cr, Some(theirs), b"");
        accepted.expect("accepted");
        let (evd, connect) = (pair.sides[A].request, pair.sides[B].connect);
        let mut taken = 0;
        let heard = loop {
            for _ in 0..8 {
                pair.post_write(A, &[from.all()], 7, &to.all_remote(), NONE)
                    .expect("there is room");
            }
            pair.fabric.pass_time();
            if let Ok(Some(event)) = pair.sides[B].ia.evd_dequeue(connect) {
                break event;
            }
            // Eight completions stay in the EVD, so that it is never empty.
            for _ in 0..if taken == 0 { 0 } else { 8 } {
                let ia = &mut pair.sides[A].ia;
                if !(by_name && ia.evd_poll_fast(evd, |_, _, _| ()) == FastPoll::Taken(())) {
                    let event = ia.evd_dequeue(evd).expect("there are more");
                    assert!(matches!(event, Some(Event::Dto(_))), "{event:?}");
                }
            }
            taken += 8;
            assert!(taken < 10_000, "by name: {by_name}");
        };
        let Event::Connection(event) = heard else {
            panic!("a connection event, not {heard:?}");
        };
        assert_eq!(event.kind, ConnectionEventKind::Established);
        assert_eq!(pair.state_of(A, ours), EpState::Connected);
        pair.assert_no_complaints();
    }
}

/// The connections of a consumer that only polls an empty completion queue still make progress.
#[test]
fn who_only_looks_at_an_empty_queue_still_connects() {
    for by_name in [false, true] {
        let mut pair = Pair::connected();
        let (ours, theirs) = (pair.another_ep(A), pair.another_ep(B));
        pair.start(A, ours, CONN_QUAL, LONG, b"").expect("starts");
        let cr = pair.request(B);
        let accepted = pair.sides[B].ia.cr_accept(cr, Some(theirs), b"");
        accepted.expect("accepted");
        pair.fabric.pass_time();
        let evd = pair.sides[A].request;
        let mut looks = 0;
        while pair.state_of(A, ours) != EpState::Connected {
            let ia = &mut pair.sides[A].ia;
            if !(by_name && ia.evd_poll_fast(evd, |_, _, _| ()) == FastPoll::Empty) {
                assert_eq!(ia.evd_dequeue(evd), Ok(None), "nothing was posted");
            }
            looks += 1;
            assert!(looks < 1_000, "by name: {by_name}");
        }
        pair.assert_no_complaints();
    }
}

/// After a number of completions, a poll takes the slow path once, in which connections make progress. The waits of a
/// consumer that only waits return to the fast path (`evd_wait_at_once`) afterwards.
#[test]
fn who_only_waits_goes_on_finding_events_at_once() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
    let evd = pair.sides[A].request;
    let mut longer = 0;
    for _ in 0..5_000 {
        pair.post_write(A, &[from.all()], 7, &to.all_remote(), NONE)
            .expect("there is room");
        pair.fabric.pass_time();
        let ia = &mut pair.sides[A].ia;
        if ia.evd_wait_at_once(evd, 1).is_none() {
            longer += 1;
            ia.evd_wait(evd, FOREVER, 1).expect("it is there");
        }
    }
    assert!(longer < 100, "{longer} of 5000 took the longer way");
    pair.assert_no_complaints();
}
