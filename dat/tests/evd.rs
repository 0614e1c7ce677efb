//! Event dispatchers: waiting, counting, overflowing, sharing, and freeing what is still in use.
//!
//! What each completion flag does to a waiter is in `flags.rs`.

mod support;

use dat::{
    AsyncEvent, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DatResult,
    DtoStatus, EpAttr, EpChange, EpHandle, EpState, EvdFlags, EvdHandle, EvdState, Event, IaConfig,
    LmrTriplet, PspFlags, Qos, ReturnType, SoftwareEvent, SrqAttr, Subtype, Timeout,
};
use support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

/// An I/O vector of nothing, typed.
const EMPTY: &[LmrTriplet] = &[];
/// A waiter for ever, if nothing comes.
const FOREVER: Timeout = Timeout::INFINITE;

/// What a wait came to: the event and how many are left, or the error and how many there are.
type Waited = Result<(Event, u32), (ReturnType, Subtype, u32)>;

impl Pair {
    /// An EVD of A.
    fn evd(&mut self, qlen: u32, flags: EvdFlags) -> EvdHandle {
        self.sides[A].ia.evd_create(qlen, flags).expect("an EVD")
    }

    /// Puts software events on an EVD of A.
    fn post_se(&mut self, evd: EvdHandle, words: impl IntoIterator<Item = u64>) {
        for word in words {
            self.sides[A]
                .ia
                .evd_post_se(evd, SoftwareEvent(word))
                .expect("room");
        }
    }

    /// Waits on an EVD of A; what came of it, and how many microseconds it took.
    fn wait(&mut self, evd: EvdHandle, timeout: Timeout, threshold: u32) -> (Waited, u64) {
        let before = self.now();
        let result = self.sides[A].ia.evd_wait(evd, timeout, threshold);
        let took = (self.now().0 - before.0) / 1000;
        let result = result.map_err(|error| {
            (
                error.error.return_type(),
                error.error.subtype(),
                error.nmore,
            )
        });
        (result, took)
    }

    /// The wait gives this event at once, and says how many are left.
    #[track_caller]
    fn expect_at_once(&mut self, evd: EvdHandle, threshold: u32, event: Event, nmore: u32) {
        assert_eq!(self.wait(evd, FOREVER, threshold), (Ok((event, nmore)), 0));
    }

    fn start(&mut self, ep: EpHandle, conn_qual: u64) {
        let address = self.sides[B].ia.query().ia.ia_address;
        let none = ConnectFlags::empty();
        self.sides[A]
            .ia
            .ep_connect(ep, address, conn_qual, LONG, b"", Qos::BEST_EFFORT, none)
            .expect("starts");
    }
}

const fn se(word: u64) -> Event {
    Event::Software(SoftwareEvent(word))
}

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
fn the_state_of_an_evd_follows_the_streams_attached_to_it() {
    let cases = [
        (CompletionFlags::UNSIGNALLED, EvdState::CONFIG_NOTIFY),
        (CompletionFlags::SOLICITED_WAIT, EvdState::CONFIG_SOLICITED),
        (CompletionFlags::EVD_THRESHOLD, EvdState::CONFIG_THRESHOLD),
        (CompletionFlags::empty(), EvdState::CONFIG_THRESHOLD),
    ];
    let mut pair = Pair::unconnected(&PairConfig::default());
    for (flags, expected) in cases {
        let evd = pair.evd(8, EvdFlags::DTO);
        let side = &mut pair.sides[A];
        let attr = EpAttr {
            recv_completion_flags: flags,
            ..attributes(&side.ia)
        };
        let config =
            |ia: &dat::Ia| ia.evd_query(evd).expect("exists").state & EvdState::CONFIG_THRESHOLD;
        let ep = side
            .ia
            .ep_create(Some(side.pz), Some(evd), None, None, Some(&attr))
            .expect("an endpoint");
        assert_eq!(config(&side.ia), expected, "{flags:?}");
        side.ia.ep_free(ep).expect("freed");
        assert_eq!(config(&side.ia), EvdState::CONFIG_THRESHOLD);
    }
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
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(se(1)));
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(se(2)));
    let empty = refused(pair.sides[A].ia.evd_dequeue(evd), ReturnType::QueueEmpty);
    assert_eq!(empty.code(), 0x800d_0000);
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
                Ok(Event::Dto(_))
            ));
        }
        while pair.sides[B].ia.evd_dequeue(pair.sides[B].request).is_ok() {}
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
    assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(se(1)));
    pair.sides[A].ia.evd_clear_unwaitable(evd).expect("exists");
    pair.expect_at_once(evd, 1, se(2), 0);
}

#[test]
fn events_of_every_stream_wake_a_waiter() {
    // Connection request, at the passive side; the waiter is B's.
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.set_delay(100);
    let ep = pair.sides[A].ep;
    pair.start(ep, CONN_QUAL);
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
        (0x2001, pair.psp, CONN_QUAL)
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
    // A connection that ends, though nobody looks at anything but connections.
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
    pair.fabric
        .sim
        .inject(&function, &hw_sim::Fault::HealthSyndrome(1));
    let evd = pair.sides[A].ia.async_evd();
    let (result, _) = pair.wait(evd, FOREVER, 1);
    assert_eq!(result, Ok((Event::Async(AsyncEvent::IaCatastrophic), 0)));
    // Software: posted before, for nobody else runs while we wait.
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
        (done.cookie, took),
        (3, 5_000),
        "the count decides at the end"
    );
    // What is there already needs no notification.
    pair.post_send(A, EMPTY, 4, CompletionFlags::UNSIGNALLED)
        .expect("posted");
    pair.fabric
        .sim
        .advance(core::time::Duration::from_millis(1));
    let (result, took) = pair.wait(request, FOREVER, 1);
    let Ok((Event::Dto(done), 0)) = result else {
        panic!("{result:?}")
    };
    assert_eq!((done.cookie, took), (4, 0));
}

#[test]
fn software_events_fill_an_evd_to_its_length_and_the_next_is_refused_without_a_trace() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for qlen in [1, 7, 64] {
        let evd = pair.evd(qlen, EvdFlags::SOFTWARE);
        let room = u64::from(pair.sides[A].ia.evd_query(evd).expect("exists").qlen);
        for round in 0..3 {
            pair.post_se(evd, (0..room).map(|at| at + round));
            for _ in 0..3 {
                let error = refused(
                    pair.sides[A].ia.evd_post_se(evd, SoftwareEvent(777)),
                    ReturnType::QueueFull,
                );
                assert_eq!(error.code(), 0x800e_0000);
            }
            for at in 0..room {
                assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(se(at + round)));
            }
            refused(pair.sides[A].ia.evd_dequeue(evd), ReturnType::QueueEmpty);
        }
    }
    let evd = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, evd);
    // Not every EVD takes them.
    let other = pair.evd(4, EvdFlags::DEFAULT);
    let error = refused(
        pair.sides[A].ia.evd_post_se(other, SoftwareEvent(1)),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg1);
}

#[test]
fn a_connection_event_that_does_not_fit_is_lost_and_the_asynchronous_evd_says_where() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(2, EvdFlags::CONNECTION);
    let room = pair.sides[A].ia.evd_query(evd).expect("exists").qlen as usize;
    let eps: Vec<_> = (0..room + 2)
        .map(|_| {
            let side = &mut pair.sides[A];
            side.ia
                .ep_create(Some(side.pz), None, None, Some(evd), None)
                .expect("an endpoint")
        })
        .collect();
    for &ep in &eps {
        pair.start(ep, 7);
        for _ in 0..10 {
            pair.pump();
        }
        assert_eq!(
            pair.sides[A].ia.ep_get_status(ep).expect("exists").state,
            EpState::Disconnected
        );
    }
    let lost = Event::Async(AsyncEvent::EvdOverflow(evd));
    assert_eq!(lost.number(), 0x8001);
    let asynchronous = pair.sides[A].ia.async_evd();
    for _ in 0..2 {
        assert_eq!(pair.wait_event(A, asynchronous), lost);
    }
    pair.expect_nothing(A, asynchronous);
    for &ep in &eps[..room] {
        let Event::Connection(event) = pair.wait_event(A, evd) else {
            panic!("an event")
        };
        assert_eq!(
            (event.ep, event.kind),
            (ep, ConnectionEventKind::NonPeerRejected)
        );
    }
    pair.expect_nothing(A, evd);
}

#[test]
fn an_asynchronous_evd_that_overflows_loses_events_and_nothing_else() {
    let mut config = PairConfig::default();
    config.options[A].ia = IaConfig {
        async_evd_min_qlen: 2,
        ..IaConfig::default()
    };
    let mut pair = Pair::unconnected(&config);
    let evd = pair.evd(1, EvdFlags::CONNECTION);
    for _ in 0..10 {
        let side = &mut pair.sides[A];
        let ep = side
            .ia
            .ep_create(Some(side.pz), None, None, Some(evd), None)
            .expect("an endpoint");
        pair.start(ep, 7);
        for _ in 0..10 {
            pair.pump();
        }
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    let room = pair.sides[A]
        .ia
        .evd_query(asynchronous)
        .expect("exists")
        .qlen;
    for _ in 0..room {
        assert!(matches!(
            pair.wait_event(A, asynchronous),
            Event::Async(AsyncEvent::EvdOverflow(_))
        ));
    }
    pair.expect_nothing(A, asynchronous);
    pair.connect();
    pair.assert_no_complaints();
}

#[test]
fn completions_that_do_not_fit_break_their_connections_and_the_asynchronous_evd_says_where() {
    // A's receives complete on an EVD far too short for them, and nobody takes any out.
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(4, EvdFlags::DTO);
    let ep = pair.sides[A].ep;
    let short = EpChange {
        recv_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &short).expect("UNCONNECTED");
    pair.connect();
    for cookie in 0..64 {
        pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
    }
    for cookie in 0..64 {
        pair.post_send(B, EMPTY, cookie, NONE).expect("posted");
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    assert_eq!(
        pair.wait_event(A, asynchronous),
        Event::Async(AsyncEvent::EvdOverflow(evd))
    );
    pair.expect_nothing(A, asynchronous);
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(pair.state(A), EpState::Disconnected);
    // What did fit is there, in order; the other side hears of the end.
    let mut next = 0;
    while let Ok(Event::Dto(done)) = pair.sides[A].ia.evd_dequeue(evd) {
        assert_eq!((done.cookie, done.status), (next, DtoStatus::Success));
        next += 1;
    }
    assert!((4..64).contains(&next), "{next}");
    assert!(matches!(
        pair.wait_event(B, pair.sides[B].connect),
        Event::Connection(_)
    ));
    assert_eq!(pair.state(B), EpState::Disconnected);
    // The EVD is spent; the endpoint is not, with another.
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    let recv = pair.sides[A].recv;
    let usual = EpChange {
        recv_evd: Some(Some(recv)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &usual).expect("UNCONNECTED");
    pair.sides[A].ia.evd_free(evd).expect("nothing feeds it");
    let b = pair.sides[B].ep;
    pair.sides[B].ia.ep_reset(b).expect("DISCONNECTED");
    pair.connect();
    let (from, to) = (pair.buffer(B, 9), pair.buffer(A, 9));
    pair.post_recv(A, &[to.all()], 1, NONE).expect("posted");
    // Requests of B from before are of no interest.
    while pair.sides[B].ia.evd_dequeue(pair.sides[B].request).is_ok() {}
    pair.post_send(B, &[from.all()], 2, NONE).expect("posted");
    pair.expect_recv(A, 1, DtoStatus::Success);
    pair.assert_no_complaints();
}

#[test]
fn an_evd_as_long_as_what_may_be_outstanding_never_overflows() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(64, EvdFlags::DTO);
    let ep = pair.sides[A].ep;
    let just = EpChange {
        recv_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &just).expect("UNCONNECTED");
    pair.connect();
    for round in 0..5 {
        for cookie in 0..64 {
            pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
        }
        for cookie in 0..64 {
            pair.post_send(B, EMPTY, cookie, NONE).expect("posted");
        }
        for cookie in 0..64 {
            let done = pair.wait_dto(A, evd);
            assert_eq!(
                (done.cookie, done.status),
                (cookie, DtoStatus::Success),
                "round {round}"
            );
            pair.expect_request(B, cookie, DtoStatus::Success);
        }
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, asynchronous);
}

/// An endpoint of A with these EVDs and completion flags.
fn endpoint(
    pair: &mut Pair,
    [recv, request, connect]: [Option<EvdHandle>; 3],
    [recv_flags, request_flags]: [CompletionFlags; 2],
) -> DatResult<EpHandle> {
    let side = &mut pair.sides[A];
    let attr = EpAttr {
        recv_completion_flags: recv_flags,
        request_completion_flags: request_flags,
        ..attributes(&side.ia)
    };
    side.ia
        .ep_create(Some(side.pz), recv, request, connect, Some(&attr))
}

const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const THRESHOLD: CompletionFlags = CompletionFlags::EVD_THRESHOLD;

/// The sharing rules, one case a row: where an endpoint's three streams go (to EVD 0 or 1), how its receives and
/// requests notify, and whether that may be.
const SHARING: [([usize; 3], [CompletionFlags; 2], bool); 16] = [
    // Everything counts: all may share.
    ([0, 0, 0], [THRESHOLD, THRESHOLD], true),
    ([0, 0, 0], [NONE, THRESHOLD], true),
    ([0, 1, 0], [THRESHOLD, THRESHOLD], true),
    // Rule 1: equal flags on one EVD.
    ([0, 0, 1], [UNSIGNALLED, THRESHOLD], false),
    ([0, 0, 1], [THRESHOLD, UNSIGNALLED], false),
    ([0, 0, 1], [SOLICITED, THRESHOLD], false),
    ([0, 0, 1], [SOLICITED, UNSIGNALLED], false),
    ([0, 0, 1], [UNSIGNALLED, UNSIGNALLED], true),
    // Each on its own.
    ([0, 1, 1], [UNSIGNALLED, THRESHOLD], true),
    ([0, 1, 1], [SOLICITED, THRESHOLD], true),
    // Rule 2: with another kind of stream only what counts.
    ([0, 1, 0], [UNSIGNALLED, THRESHOLD], false),
    ([1, 0, 0], [THRESHOLD, UNSIGNALLED], false),
    ([0, 0, 0], [UNSIGNALLED, UNSIGNALLED], false),
    // Rule 4: solicited receives alone.
    ([0, 1, 0], [SOLICITED, THRESHOLD], false),
    ([0, 0, 0], [SOLICITED, THRESHOLD], false),
    ([0, 1, 1], [SOLICITED, UNSIGNALLED], false),
];

#[test]
fn streams_share_an_evd_as_the_rules_have_it() {
    for (row, (evds, flags, legal)) in SHARING.into_iter().enumerate() {
        for strict in [true, false] {
            let mut config = PairConfig::default();
            config.options[A].ia = IaConfig {
                strict_evd_sharing: strict,
                ..IaConfig::default()
            };
            let mut pair = Pair::unconnected(&config);
            let made = [0; 2].map(|_| pair.evd(300, EvdFlags::DTO | EvdFlags::CONNECTION));
            let streams = evds.map(|evd| Some(made[evd]));
            let result = endpoint(&mut pair, streams, flags);
            if legal || !strict {
                let ep = result.unwrap_or_else(|error| panic!("row {row}: {error}"));
                pair.sides[A].ia.ep_free(ep).expect("freed");
            } else {
                let error = refused(result, ReturnType::InvalidParameter);
                assert_eq!(error.subtype(), Subtype::Arg6, "row {row}");
            }
            // A refused one holds nothing.
            for evd in made {
                pair.sides[A].ia.evd_free(evd).expect("nothing feeds it");
            }
            pair.assert_no_complaints();
        }
    }
}

#[test]
fn endpoints_that_share_an_evd_must_agree() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for (first, second, legal) in [
        (UNSIGNALLED, UNSIGNALLED, true),
        (SOLICITED, SOLICITED, true),
        (THRESHOLD, NONE, true),
        (UNSIGNALLED, SOLICITED, false),
        (SOLICITED, UNSIGNALLED, false),
        (THRESHOLD, UNSIGNALLED, false),
        (SOLICITED, THRESHOLD, false),
    ] {
        let evd = pair.evd(300, EvdFlags::DTO);
        let one = endpoint(&mut pair, [Some(evd), None, None], [first, NONE]).expect("alone");
        let two = endpoint(&mut pair, [Some(evd), None, None], [second, NONE]);
        assert_eq!(two.is_ok(), legal, "{first:?} and {second:?}");
        // A change is held to the same rules: away, and back.
        let moved = endpoint(&mut pair, [None, None, None], [second, NONE]).expect("nowhere");
        let there = EpChange {
            recv_evd: Some(Some(evd)),
            ..EpChange::default()
        };
        let changed = pair.sides[A].ia.ep_modify(moved, &there);
        assert_eq!(changed.is_ok(), legal, "{first:?} and {second:?}");
        if let Err(error) = changed {
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidParameter, Subtype::Arg3)
            );
        }
        // Those that are gone do not count.
        pair.sides[A].ia.ep_free(one).expect("freed");
        pair.sides[A].ia.ep_free(moved).expect("freed");
        if let Ok(two) = two {
            pair.sides[A].ia.ep_free(two).expect("freed");
        }
        let alone =
            endpoint(&mut pair, [Some(evd), None, None], [second, NONE]).expect("alone now");
        pair.sides[A].ia.ep_free(alone).expect("freed");
        pair.sides[A].ia.evd_free(evd).expect("unused");
    }
    pair.assert_no_complaints();
}

#[test]
fn service_points_and_software_events_share_with_streams_that_count_only() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let all = EvdFlags::DTO | EvdFlags::CR | EvdFlags::CONNECTION;
    for (flags, legal) in [(UNSIGNALLED, false), (SOLICITED, false), (THRESHOLD, true)] {
        // The endpoint first.
        let evd = pair.evd(300, all);
        let ep = endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).expect("alone");
        let psp = pair.sides[A].ia.psp_create(5, evd, PspFlags::CONSUMER);
        assert_eq!(psp.is_ok(), legal, "{flags:?}");
        match psp {
            Ok(psp) => pair.sides[A].ia.psp_free(psp).expect("exists"),
            Err(error) => assert_eq!(error.return_type(), ReturnType::InvalidParameter),
        }
        pair.sides[A].ia.ep_free(ep).expect("freed");
        // The service point first.
        let psp = pair.sides[A]
            .ia
            .psp_create(5, evd, PspFlags::CONSUMER)
            .expect("alone");
        assert_eq!(
            endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).is_ok(),
            legal,
            "{flags:?}"
        );
        pair.sides[A].ia.psp_free(psp).expect("exists");
        // Software events.
        let evd = pair.evd(300, all | EvdFlags::SOFTWARE);
        assert_eq!(
            endpoint(&mut pair, [Some(evd), None, None], [flags, NONE]).is_ok(),
            legal,
            "{flags:?}"
        );
    }
}

#[test]
fn an_evd_takes_only_the_streams_it_was_made_for() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let bare = pair.evd(300, EvdFlags::SOFTWARE);
    let foreign = pair.sides[B].recv;
    let gone = pair.evd(300, EvdFlags::all());
    pair.sides[A].ia.evd_free(gone).expect("unused");
    for evd in [bare, foreign, gone] {
        for (at, subtype) in [
            Subtype::HandleEvdRecv,
            Subtype::HandleEvdRequest,
            Subtype::HandleEvdConn,
        ]
        .into_iter()
        .enumerate()
        {
            let mut evds = [None; 3];
            evds[at] = Some(evd);
            let error = refused(
                endpoint(&mut pair, evds, [NONE; 2]),
                ReturnType::InvalidHandle,
            );
            assert_eq!(error.subtype(), subtype);
        }
        let error = refused(
            pair.sides[A].ia.psp_create(5, evd, PspFlags::CONSUMER),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleEvdCr);
    }
    let ia = &mut pair.sides[A].ia;
    for evd in [foreign, gone] {
        refused(ia.evd_dequeue(evd), ReturnType::InvalidHandle);
        refused(ia.evd_query(evd).map(drop), ReturnType::InvalidHandle);
        refused(ia.evd_free(evd), ReturnType::InvalidHandle);
        refused(
            ia.evd_post_se(evd, SoftwareEvent(1)),
            ReturnType::InvalidHandle,
        );
        refused(ia.evd_set_unwaitable(evd), ReturnType::InvalidHandle);
        refused(ia.evd_clear_unwaitable(evd), ReturnType::InvalidHandle);
        let error = ia.evd_wait(evd, FOREVER, 1).expect_err("no such EVD").error;
        assert_eq!(error.return_type(), ReturnType::InvalidHandle);
    }
}

#[test]
fn what_is_in_use_cannot_be_freed_and_can_when_it_no_longer_is() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let buffer = pair.buffer(A, 64);
    let side = &mut pair.sides[A];
    let (ia, pz) = (&mut side.ia, side.pz);
    let in_use = |result: DatResult<()>, subtype| {
        assert_eq!(refused(result, ReturnType::InvalidState).subtype(), subtype);
    };
    let evd = ia.evd_create(8, EvdFlags::all()).expect("an EVD");
    let asynchronous = ia.async_evd();
    in_use(ia.evd_free(asynchronous), Subtype::StateEvdInUse);
    // A PZ: endpoints, LMRs, SRQs, one after the other.
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    ia.ep_free(side.ep).expect("unconnected");
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    ia.lmr_free(buffer.lmr.lmr).expect("nothing is bound to it");
    let attr = SrqAttr {
        max_recv_dtos: 4,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let srq = ia.srq_create(pz, attr).expect("an SRQ");
    in_use(ia.pz_free(pz), Subtype::StatePzInUse);
    // An EVD: receives, requests, connections, requests for connections.
    let streams = [
        [Some(evd), None, None],
        [None, Some(evd), None],
        [None, None, Some(evd)],
    ];
    for [recv, request, connect] in streams {
        let ep = ia
            .ep_create(None, recv, request, connect, None)
            .expect("an endpoint");
        in_use(ia.evd_free(evd), Subtype::StateEvdInUse);
        // The reference moves with the endpoint's configuration.
        let other = ia.evd_create(8, EvdFlags::all()).expect("an EVD");
        let away = EpChange {
            recv_evd: recv.map(|_| Some(other)),
            request_evd: request.map(|_| Some(other)),
            connect_evd: connect.map(|_| Some(other)),
            ..EpChange::default()
        };
        ia.ep_modify(ep, &away).expect("UNCONNECTED");
        in_use(ia.evd_free(other), Subtype::StateEvdInUse);
        ia.ep_free(ep).expect("unconnected");
        ia.evd_free(other).expect("nothing feeds it");
    }
    let psp = ia.psp_create(5, evd, PspFlags::CONSUMER).expect("a PSP");
    in_use(ia.evd_free(evd), Subtype::StateEvdInUse);
    ia.psp_free(psp).expect("never in use");
    ia.evd_free(evd).expect("nothing feeds it");
    // An SRQ: its endpoints. The endpoint's PZ is another.
    let zone = ia.pz_create().expect("a PZ");
    let usual = attributes(ia);
    let ep = ia
        .ep_create_with_srq(Some(zone), None, None, None, srq, &usual)
        .expect("an endpoint");
    in_use(ia.srq_free(srq), Subtype::StateSrqInUse);
    in_use(ia.pz_free(zone), Subtype::StatePzInUse);
    ia.ep_free(ep).expect("unconnected");
    ia.srq_free(srq).expect("no endpoint uses it");
    for pz in [zone, pz] {
        ia.pz_free(pz).expect("nothing is in it");
        assert_eq!(
            refused(ia.pz_free(pz), ReturnType::InvalidHandle).subtype(),
            Subtype::HandlePz
        );
    }
    assert_eq!(
        refused(ia.srq_free(srq), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleSrq
    );
    assert_eq!(
        refused(ia.ep_free(ep), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleEp
    );
    assert_eq!(
        refused(ia.psp_free(psp), ReturnType::InvalidHandle).subtype(),
        Subtype::HandlePsp
    );
    assert_eq!(
        refused(ia.lmr_free(buffer.lmr.lmr), ReturnType::InvalidHandle).subtype(),
        Subtype::HandleLmr
    );
    pair.assert_no_complaints();
}

#[test]
fn requests_in_an_evd_that_is_freed_are_refused() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let ep = pair.sides[A].ep;
    pair.start(ep, CONN_QUAL);
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
    pair.start(a, CONN_QUAL);
    let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(b), b"")
        .expect("accepted");
    // B does not look before everything has happened: connected, six messages, disconnected.
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
            Event::Dto(done) => (done.status as u32, done.cookie),
            other => panic!("{other:?}"),
        });
    }
    let established = (0x4001, u64::MAX);
    let messages = (0..6).map(|cookie| (DtoStatus::Success as u32, cookie));
    let ended = (0x4005, u64::MAX);
    let flushed = (6..10).map(|cookie| (DtoStatus::ErrFlushed as u32, cookie));
    assert_eq!(events[0], established);
    assert!(events[1..7].iter().copied().eq(messages), "{events:?}");
    // The flushed receives may stand before the end or behind it.
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
            assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(se(next + 1)));
            next += 2;
        }
    }
}
