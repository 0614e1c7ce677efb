//! Close of an adapter: graceful, when no object is left; abrupt, in any state; and after the device died. In every
//! case no thread hangs, and the driver has no object and no resource of the device left.

use hw_sim::Fault;
use udapl::endpoint::EpState;
use udapl::error::{NotClosed, ReturnType, Subtype};
use udapl::event::{AsyncEvent, SoftwareEvent};
use udapl::fabric::Fabric;
use udapl::memory::LmrTriplet;
use udapl::srq::SrqAttr;
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DatResult, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos,
    Timeout,
};

use crate::support::{
    self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, beside, refused,
};

/// An empty I/O vector, with its type.
const EMPTY: &[LmrTriplet] = &[];
/// One second, in ns.
const SECOND: u64 = 1_000_000_000;

/// Checks that the function of a closed side has nothing to report.
#[track_caller]
fn assert_clean(fabric: &Fabric, side: usize) {
    let report = fabric.report(side);
    assert!(report.is_clean(), "side {side}: {report:#?}");
}

/// Closes an adapter, and checks that all its resources are returned.
#[track_caller]
fn close(ia: Ia, flags: CloseFlags) {
    let report = udapl::ia_close(ia, flags).expect("closes");
    assert_eq!(
        (report.pages_not_returned, report.slots_quarantined),
        (0, 0)
    );
    assert_eq!(
        (report.pages_given, &report.objects_left[..]),
        (report.pages_returned, &[][..])
    );
    assert_eq!((report.dead, report.page_requests_refused), (None, 0));
    assert!(report.pages_given > 0);
}

/// Clauses: IAC-1.
#[test]
fn an_adapter_in_which_nothing_was_made_closes_gracefully_and_opens_again() {
    let fabric = Fabric::pair(3);
    for _ in 0..3 {
        close(fabric.open(A).expect("opens"), CloseFlags::Graceful);
        assert_clean(&fabric, A);
    }
}

/// A function that frees an object, and the objects that were made for it.
type Made = Box<dyn FnOnce(&mut Ia)>;

/// A function that makes an object, and returns the function that frees it.
type Maker = fn(&mut Ia) -> Made;

fn makers() -> Vec<(&'static str, Maker)> {
    fn zone(ia: &mut Ia) -> udapl::memory::PzHandle {
        ia.pz_create().expect("a PZ")
    }
    vec![
        ("a PZ", |ia| {
            let pz = zone(ia);
            Box::new(move |ia| ia.pz_free(pz).expect("unused"))
        }),
        ("an LMR", |ia| {
            let (pz, memory) = (zone(ia), udapl::alloc(ia, 100).expect("memory"));
            let lmr = ia
                .lmr_create(memory, pz, MemPrivFlags::all())
                .expect("an LMR")
                .lmr;
            Box::new(move |ia| {
                ia.lmr_free(lmr).expect("unused");
                ia.pz_free(pz).expect("unused");
            })
        }),
        ("an EVD", |ia| {
            let evd = ia.evd_create(1, EvdFlags::SOFTWARE).expect("an EVD");
            Box::new(move |ia| ia.evd_free(evd).expect("unused"))
        }),
        ("an EVD with a completion queue and an event in it", |ia| {
            let evd = ia
                .evd_create(1, EvdFlags::SOFTWARE | EvdFlags::DTO)
                .expect("an EVD");
            ia.evd_post_se(evd, SoftwareEvent(1)).expect("room");
            Box::new(move |ia| ia.evd_free(evd).expect("unused"))
        }),
        ("an endpoint", |ia| {
            let ep = ia.ep_create(None, EpEvds::NONE, None).expect("an endpoint");
            Box::new(move |ia| ia.ep_free(ep).expect("unused"))
        }),
        ("an SRQ", |ia| {
            let pz = zone(ia);
            let attr = SrqAttr {
                max_recv_dtos: 4,
                max_recv_iov: 1,
                low_watermark: 0,
            };
            let srq = ia.srq_create(pz, attr).expect("an SRQ");
            Box::new(move |ia| {
                ia.srq_free(srq).expect("unused");
                ia.pz_free(pz).expect("unused");
            })
        }),
        ("a PSP", |ia| {
            let evd = ia.evd_create(1, EvdFlags::CR).expect("an EVD");
            let psp = ia
                .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
                .expect("a PSP");
            Box::new(move |ia| {
                ia.psp_free(psp).expect("exists");
                ia.evd_free(evd).expect("unused");
            })
        }),
        ("an RSP", |ia| {
            let evd = ia.evd_create(1, EvdFlags::CR).expect("an EVD");
            let rsp = ia.rsp_create(CONN_QUAL, None, evd).expect("an RSP");
            Box::new(move |ia| {
                ia.rsp_free(rsp).expect("exists");
                ia.evd_free(evd).expect("unused");
            })
        }),
        ("an RMR", |ia| {
            let pz = zone(ia);
            let rmr = ia.rmr_create(pz).expect("an RMR");
            Box::new(move |ia| {
                ia.rmr_free(rmr).expect("unbound");
                ia.pz_free(pz).expect("unused");
            })
        }),
        ("a CNO", |ia| {
            let cno = ia.cno_create(None).expect("a CNO");
            Box::new(move |ia| ia.cno_free(cno).expect("unused"))
        }),
    ]
}

/// Clauses: IAC-1.
#[test]
fn a_graceful_close_is_refused_while_anything_is_left_and_leaves_it_alone() {
    for (what, make) in makers() {
        let fabric = Fabric::pair(1);
        let mut ia = fabric.open(A).expect("opens");
        let free = make(&mut ia);
        let refused = ia.close(CloseFlags::Graceful).map(drop).expect_err(what);
        assert_eq!(
            refused.error.return_type(),
            ReturnType::InvalidState,
            "{what}"
        );
        assert_eq!(refused.error.subtype(), Subtype::StateIaInUse, "{what}");
        let mut ia = refused.ia;
        free(&mut ia);
        close(ia, CloseFlags::Graceful);
        assert_clean(&fabric, A);
    }
}

#[test]
fn a_graceful_close_that_finds_objects_says_so_and_gives_the_adapter_back() {
    for (what, make) in makers() {
        let fabric = Fabric::pair(1);
        let mut ia = fabric.open(A).expect("opens");
        let _free = make(&mut ia);
        let Err(NotClosed::InUse(open)) = udapl::ia_close(ia, CloseFlags::Graceful) else {
            panic!("{what} is left");
        };
        assert_eq!(open.error.return_type(), ReturnType::InvalidState, "{what}");
        let mut ia = open.into_ia();
        ia.pz_create().expect("it is open");
        udapl::ia_close(ia, CloseFlags::Abrupt).expect("closed");
        assert_clean(&fabric, A);
    }
}

impl Pair {
    /// Returns a pair in which A has objects of every kind, endpoints in several connection states, undecided requests
    /// and outstanding DTOs. Also returns endpoints of B, each with the connection event that it must get when A is
    /// closed.
    fn busy() -> (Self, Vec<(EpHandle, Kind)>) {
        let mut pair = Self::unconnected(&PairConfig::default());
        for side in [A, B] {
            let ia = &mut pair.sides[side].ia;
            pair.sides[side].connect = ia.evd_create(100, EvdFlags::CONNECTION).expect("an EVD");
        }
        let evd = pair.sides[A].cr;
        pair.sides[A]
            .ia
            .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
            .expect("a PSP");
        let mut heard = Vec::new();

        // Two connections: `a` gets requests of all kinds below; `gone` is disconnected, and the completions of its
        // flushed receives are not dequeued.
        let (a, b) = (pair.another_ep(A), pair.another_ep(B));
        pair.connect_endpoints(a, b);
        heard.push((b, Kind::Disconnected));
        let (local, remote) = (pair.buffer(A, 4096), pair.buffer(B, 4096));
        let (gone, gone_peer) = (pair.another_ep(A), pair.another_ep(B));
        pair.connect_endpoints(gone, gone_peer);
        for cookie in 0..5 {
            pair.sides[A]
                .ia
                .ep_post_recv(gone, &[local.all()], DtoCookie(cookie), NONE)
                .expect("posted");
        }
        pair.sides[A]
            .ia
            .ep_disconnect(gone, CloseFlags::Abrupt)
            .expect("CONNECTED");
        pair.expect_connection(A, Kind::Disconnected);
        pair.expect_connection(B, Kind::Disconnected);
        // An RMR, a CNO with an EVD, an RSP without an endpoint, and an RSP whose endpoint has a null connect EVD.
        let side = &mut pair.sides[A];
        let attr = attributes(&side.ia);
        side.ia.rmr_create(side.pz).expect("an RMR");
        let cno = side.ia.cno_create(None).expect("a CNO");
        side.ia.evd_modify_cno(side.recv, Some(cno)).expect("a CNO");
        let unheard = EpEvds::NONE.recv(side.recv).request(side.request);
        let unheard = side.ia.ep_create(Some(side.pz), unheard, Some(&attr));
        let unheard = unheard.expect("an endpoint");
        for (at, ep) in [(1, None), (2, Some(unheard))] {
            let rsp = side.ia.rsp_create(beside(at), ep, side.cr);
            rsp.expect("an RSP");
        }
        // An SRQ. Its endpoint has a null request EVD and has received a message, whose completion is not dequeued.
        let attr = SrqAttr {
            max_recv_dtos: 8,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let (pz, recv, connect) = (pair.sides[A].pz, pair.sides[A].recv, pair.sides[A].connect);
        let srq = pair.sides[A].ia.srq_create(pz, attr).expect("an SRQ");
        for cookie in 0..8 {
            pair.sides[A]
                .ia
                .srq_post_recv(srq, &[local.all()], DtoCookie(cookie))
                .expect("posted");
        }
        let usual = attributes(&pair.sides[A].ia);
        let on_srq = pair.sides[A]
            .ia
            .ep_create_with_srq(
                Some(pz),
                EpEvds::NONE.recv(recv).connect(connect),
                srq,
                &usual,
            )
            .expect("an endpoint");
        let sender = pair.another_ep(B);
        pair.connect_endpoints(on_srq, sender);
        heard.push((sender, Kind::Disconnected));
        pair.sides[B]
            .ia
            .ep_post_send(sender, &[remote.part(0, 64)], DtoCookie(7), NONE)
            .expect("posted");
        pair.wait_request(B);
        // Two requests that are never decided.
        for _ in 0..2 {
            let asking = pair.another_ep(B);
            pair.start(B, asking, CONN_QUAL, LONG, b"x")
                .expect("starts");
            heard.push((asking, Kind::NonPeerRejected));
        }
        let Event::ConnectionRequest(_) = pair.wait_event(A, pair.sides[A].cr) else {
            panic!("a request")
        };
        // A request that A has accepted, but whose requester does not complete the handshake.
        let (asking, accepting) = (pair.another_ep(B), pair.another_ep(A));
        pair.start(B, asking, CONN_QUAL, LONG, b"x")
            .expect("starts");
        let _undecided = pair.wait_event(A, pair.sides[A].cr);
        let Event::ConnectionRequest(third) = pair.wait_event(A, pair.sides[A].cr) else {
            panic!("a request")
        };
        pair.cut();
        pair.sides[A]
            .ia
            .cr_accept(third.cr, Some(accepting), b"")
            .expect("accepted");
        // The peer cannot distinguish the end of this attempt from a rejection by A's consumer.
        heard.push((asking, Kind::PeerRejected));
        // One endpoint is connecting, and one is in DISCONNECT_PENDING with DTOs of all kinds outstanding.
        let connecting = pair.another_ep(A);
        pair.start(A, connecting, CONN_QUAL, LONG, b"x")
            .expect("starts");
        for cookie in 0..5 {
            let ia = &mut pair.sides[A].ia;
            ia.ep_post_recv(a, &[local.all()], DtoCookie(cookie), NONE)
                .expect("posted");
            ia.ep_post_send(a, &[local.all()], DtoCookie(cookie), NONE)
                .expect("posted");
            ia.ep_post_rdma_write(
                a,
                &[local.all()],
                DtoCookie(cookie),
                &remote.remote(0, 4096),
                NONE,
            )
            .expect("posted");
            ia.ep_post_rdma_read(
                a,
                &[local.all()],
                DtoCookie(cookie),
                &remote.remote(0, 4096),
                NONE,
            )
            .expect("posted");
        }
        pair.sides[A]
            .ia
            .ep_disconnect(a, CloseFlags::Graceful)
            .expect("CONNECTED");
        assert_eq!(
            pair.sides[A].ia.ep_get_status(a).expect("exists").state,
            EpState::DisconnectPending
        );
        (pair, heard)
    }
}

/// Clauses: IAC-4.
#[test]
fn an_abrupt_close_ends_everything_tells_every_peer_and_leaks_nothing() {
    let (pair, heard) = Pair::busy();
    let Pair {
        fabric,
        sides: [a, mut b],
        ..
    } = pair;
    fabric.sim.heal();
    close(a.ia, CloseFlags::Abrupt);
    assert_clean(&fabric, A);
    // Each of B's endpoints gets one event.
    let mut told = Vec::new();
    while told.len() < heard.len() {
        let (event, _) = b.ia.evd_wait(b.connect, LONG, 1).expect("B hears of it");
        let Event::Connection(event) = event else {
            panic!("{event:?}")
        };
        told.push((event.ep, event.kind));
    }
    for expected in &heard {
        assert_eq!(
            told.iter()
                .filter(|(ep, _)| *ep == expected.0)
                .collect::<Vec<_>>(),
            [expected],
            "{told:?}"
        );
    }
    let more =
        b.ia.evd_wait(b.connect, Timeout::from_micros(10_000_000), 1)
            .expect_err("once is enough");
    assert_eq!(more.error.return_type(), ReturnType::TimeoutExpired);
    close(b.ia, CloseFlags::Abrupt);
    assert_clean(&fabric, B);
}

/// Clauses: IAC-4.
#[test]
fn an_abrupt_close_over_a_dead_wire_does_not_wait_for_anybody() {
    let (pair, _) = Pair::busy();
    let Pair {
        fabric,
        sides: [a, b],
        ..
    } = pair;
    for (side, ia) in [(A, a.ia), (B, b.ia)] {
        let before = fabric.sim.clock().now();
        close(ia, CloseFlags::Abrupt);
        assert_clean(&fabric, side);
        let took = fabric.sim.clock().now().0 - before.0;
        // The close takes less than 25 s of simulated time, although the peer answers nothing.
        assert!(took < 25 * SECOND, "{took} ns");
    }
}

#[test]
fn an_adapter_closed_in_the_middle_of_everything_opens_and_connects_again() {
    let (pair, _) = Pair::busy();
    let Pair {
        fabric,
        sides: [a, b],
        ..
    } = pair;
    fabric.sim.heal();
    close(a.ia, CloseFlags::Abrupt);
    close(b.ia, CloseFlags::Abrupt);
    let mut again = Pair::over(fabric, &PairConfig::default());
    again.connect();
    let (from, to) = (again.buffer(A, 100), again.buffer(B, 100));
    again.send(&from, &to, 100);
    again.assert_no_complaints();
}

/// Faults after which the driver declares the device dead.
const FAULTS: [Fault; 4] = [
    Fault::HealthSyndrome(1),
    Fault::SurpriseRemoval,
    Fault::BarAllOnes,
    Fault::HealthCounterStops,
];

fn kill(pair: &mut Pair, side: usize, fault: &Fault) {
    let function = pair.fabric.function(side);
    pair.fabric.sim.inject(&function, fault);
}

/// Waits on an EVD of A without a timeout and without other activity. Checks that the wait ends within 25 s of
/// simulated time. Returns the event or the type of the error.
fn wait(pair: &mut Pair, evd: EvdHandle) -> Result<Event, ReturnType> {
    let before = pair.now();
    let result = pair.sides[A].ia.evd_wait(evd, Timeout::INFINITE, 1);
    let took = pair.now().0 - before.0;
    // If the health counter does not change for ten seconds, the driver tests the device with a command. The driver
    // declares the device dead if the command does not complete within ten seconds.
    assert!(took < 25 * SECOND, "{took} ns");
    result
        .map(|(event, _)| event)
        .map_err(|error| error.error.return_type())
}

#[test]
fn whoever_waits_when_the_device_dies_is_released_and_told_why() {
    for fault in &FAULTS {
        let mut pair = Pair::connected();
        for cookie in [1, 2] {
            pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
        }
        pair.cut();
        pair.post_send(A, EMPTY, 3, NONE).expect("posted");
        kill(&mut pair, A, fault);
        let (recv, request, connect) = (
            pair.sides[A].recv,
            pair.sides[A].request,
            pair.sides[A].connect,
        );
        // No peer sends anything: the wait ends because the device has died.
        for cookie in [1, 2] {
            let Ok(Event::Dto(done)) = wait(&mut pair, recv) else {
                panic!("{fault:?}")
            };
            assert_eq!(
                (done.cookie.0, done.status),
                (cookie, DtoStatus::ErrFlushed),
                "{fault:?}"
            );
            let text = udapl::explain(&done);
            assert!(
                text.contains("DAT_DTO_ERR_FLUSHED (1)") && text.contains("look for"),
                "{text}"
            );
        }
        assert_eq!(wait(&mut pair, recv), Err(ReturnType::Abort), "{fault:?}");
        let Ok(Event::Dto(done)) = wait(&mut pair, request) else {
            panic!("{fault:?}")
        };
        // The Send over the cut wire may exhaust its retries before the driver declares the device dead.
        assert!(
            matches!(done.status, DtoStatus::ErrFlushed | DtoStatus::ErrTransport),
            "{fault:?}: {done:?}"
        );
        assert_eq!(
            wait(&mut pair, request),
            Err(ReturnType::Abort),
            "{fault:?}"
        );
        let Ok(Event::Connection(event)) = wait(&mut pair, connect) else {
            panic!("{fault:?}")
        };
        assert_eq!(event.kind, Kind::Broken, "{fault:?}");
        assert_eq!(
            wait(&mut pair, connect),
            Err(ReturnType::Abort),
            "{fault:?}"
        );
        let evd = pair.sides[A].ia.async_evd();
        assert_eq!(
            wait(&mut pair, evd),
            Ok(Event::Async(AsyncEvent::IaCatastrophic)),
            "{fault:?}"
        );
        assert_eq!(
            wait(&mut pair, evd),
            Err(ReturnType::Abort),
            "once: {fault:?}"
        );
        assert_eq!(pair.state(A), EpState::Disconnected, "{fault:?}");
    }
}

#[test]
fn whoever_waits_for_the_asynchronous_event_gets_it_first() {
    for fault in &FAULTS {
        let mut pair = Pair::connected();
        kill(&mut pair, A, fault);
        let evd = pair.sides[A].ia.async_evd();
        assert_eq!(
            wait(&mut pair, evd),
            Ok(Event::Async(AsyncEvent::IaCatastrophic)),
            "{fault:?}"
        );
        // A wait whose threshold exceeds the number of events, or that has a time limit, ends, too.
        for timeout in [
            Timeout::ZERO,
            Timeout::from_micros(1_000),
            Timeout::INFINITE,
        ] {
            let error = pair.sides[A]
                .ia
                .evd_wait(evd, timeout, 2)
                .expect_err("nothing comes");
            let expected = [ReturnType::Abort, ReturnType::TimeoutExpired];
            assert!(
                expected.contains(&error.error.return_type()),
                "{fault:?}: {error}"
            );
        }
    }
}

#[test]
fn an_attempt_to_connect_ends_when_the_device_dies() {
    for fault in &FAULTS {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let ep = pair.sides[A].ep;
        pair.start(A, ep, CONN_QUAL, LONG, b"x").expect("starts");
        kill(&mut pair, A, fault);
        let connect = pair.sides[A].connect;
        let Ok(Event::Connection(event)) = wait(&mut pair, connect) else {
            panic!("{fault:?}")
        };
        // A device whose health counter stops is declared dead after twenty seconds. The connection attempt ends before
        // that, because the peer does not answer.
        let kind = if matches!(fault, Fault::HealthCounterStops) {
            Kind::Unreachable
        } else {
            Kind::NonPeerRejected
        };
        assert_eq!((event.kind, event.ep), (kind, ep), "{fault:?}");
        assert_eq!(pair.state(A), EpState::Disconnected, "{fault:?}");
    }
}

#[test]
fn the_peer_of_a_dead_device_notices_when_it_sends_and_lives_on() {
    for fault in &FAULTS[..3] {
        let mut pair = Pair::connected();
        kill(&mut pair, A, fault);
        pair.post_send(B, EMPTY, 1, NONE).expect("posted");
        pair.expect_request(B, 1, DtoStatus::ErrTransport);
        pair.expect_connection(B, Kind::Broken);
        let buffer = pair.buffer(B, 10);
        pair.sides[B]
            .ia
            .lmr_free(buffer.lmr.lmr)
            .expect("the adapter works");
        assert_eq!(pair.state(B), EpState::Disconnected);
    }
}

#[test]
fn calls_that_need_a_dead_device_say_so_and_calls_that_free_work() {
    for fault in &FAULTS {
        let mut pair = Pair::connected();
        let buffer = pair.buffer(A, 64);
        let unconnected = pair.another_ep(A);
        let memory = udapl::alloc(&pair.sides[A].ia, 10).expect("memory");
        let evd = pair.sides[A].cr;
        let psp = pair.sides[A]
            .ia
            .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
            .expect("a PSP");
        let asking = pair.another_ep(B);
        let undecided = [0; 2].map(|_| {
            pair.start(B, asking, CONN_QUAL, LONG, b"x")
                .expect("starts");
            let Event::ConnectionRequest(request) = pair.wait_event(A, evd) else {
                panic!("a request")
            };
            let (ia, connect) = (&mut pair.sides[B].ia, pair.sides[B].connect);
            ia.ep_disconnect(asking, CloseFlags::Abrupt)
                .expect("connecting");
            assert!(matches!(
                ia.evd_dequeue(connect),
                Ok(Some(Event::Connection(_)))
            ));
            ia.ep_reset(asking).expect("DISCONNECTED");
            request.cr
        });
        kill(&mut pair, A, fault);
        let connect = pair.sides[A].connect;
        assert!(
            matches!(wait(&mut pair, connect), Ok(Event::Connection(_))),
            "{fault:?}"
        );

        let address = pair.sides[B].ia.query().ia.ia_address;
        let side = &mut pair.sides[A];
        let attr = SrqAttr {
            max_recv_dtos: 4,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let none = ConnectFlags::empty();
        let calls: Vec<(&str, DatResult<()>)> = vec![
            ("pz_create", side.ia.pz_create().map(drop)),
            (
                "lmr_create",
                side.ia
                    .lmr_create(memory, side.pz, MemPrivFlags::all())
                    .map(drop),
            ),
            ("evd_create", side.ia.evd_create(1, EvdFlags::DTO).map(drop)),
            (
                "ep_create",
                side.ia
                    .ep_create(Some(side.pz), EpEvds::NONE, None)
                    .map(drop),
            ),
            ("srq_create", side.ia.srq_create(side.pz, attr).map(drop)),
            (
                "psp_create",
                side.ia
                    .psp_create(ConnQual(1), side.cr, PspFlags::CONSUMER)
                    .map(drop),
            ),
            (
                "psp_create_any",
                side.ia
                    .psp_create_any(side.cr, PspFlags::CONSUMER)
                    .map(drop),
            ),
            (
                "ep_connect",
                side.ia.ep_connect(
                    unconnected,
                    address,
                    CONN_QUAL,
                    LONG,
                    b"",
                    Qos::BEST_EFFORT,
                    none,
                ),
            ),
            (
                "cr_accept",
                side.ia.cr_accept(undecided[0], Some(unconnected), b""),
            ),
            ("ep_reset", side.ia.ep_reset(side.ep)),
        ];
        for (name, result) in calls {
            let error = refused(result, ReturnType::InternalError);
            assert!(!error.detail().is_empty(), "{name}: {error}");
        }
        // Calls that need no resource, that free something, or that only read memory, still work.
        side.ia.ep_query(side.ep).expect("exists");
        side.ia
            .ep_disconnect(side.ep, CloseFlags::Graceful)
            .expect("no effect");
        side.ia.cr_reject(undecided[0]).expect("undecided");
        side.ia.cr_reject(undecided[1]).expect("undecided");
        side.ia.psp_free(psp).expect("exists");
        side.ia.ep_free(side.ep).expect("exists");
        side.ia.ep_free(unconnected).expect("exists");
        side.ia.lmr_free(buffer.lmr.lmr).expect("exists");
        side.ia.pz_free(side.pz).expect("unused");
        for evd in [side.recv, side.request, side.connect, side.cr] {
            side.ia.evd_free(evd).expect("unused");
        }
        assert!(side.ia.is_unused(), "{fault:?}");
        let [a, _] = pair.sides;
        let report =
            udapl::ia_close(a.ia, CloseFlags::Graceful).expect("a dead device can be closed");
        assert!(report.dead.is_some(), "{fault:?}");
    }
}

#[test]
fn a_device_that_died_comes_back_with_the_next_open_unless_it_is_gone() {
    for fault in &FAULTS {
        let (mut pair, _) = Pair::busy();
        kill(&mut pair, A, fault);
        let evd = pair.sides[A].ia.async_evd();
        assert_eq!(
            wait(&mut pair, evd),
            Ok(Event::Async(AsyncEvent::IaCatastrophic)),
            "{fault:?}"
        );
        let Pair {
            fabric,
            sides: [a, b],
            ..
        } = pair;
        let report =
            udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("a dead device can be closed");
        assert!(report.dead.is_some(), "{fault:?}");
        fabric.sim.heal();
        close(b.ia, CloseFlags::Abrupt);
        if matches!(fault, Fault::HealthSyndrome(_) | Fault::HealthCounterStops) {
            let mut again = Pair::over(fabric, &PairConfig::default());
            again.connect();
            let (from, to) = (again.buffer(A, 100), again.buffer(B, 100));
            again.send(&from, &to, 100);
        } else {
            fabric.open(A).map(drop).expect_err("it is not there");
        }
    }
}

/// Ends B's adapter by `end`, without a close. Checks that B's device then accesses no memory and keeps no object.
/// `told` is false if the wire is cut, so that A gets no message about the end.
fn gone_without_a_close(end: impl FnOnce(support::Side), told: bool) {
    let mut pair = Pair::connected();
    let (memory, far) = (pair.buffer(B, 64), pair.buffer(A, 64));
    for cookie in 0..3 {
        pair.post_recv(B, &[memory.all()], cookie, NONE)
            .expect("posted");
    }
    if !told {
        pair.cut();
    }
    let Pair { fabric, sides, .. } = pair;
    let [mut a, b] = sides;
    let begun = fabric.sim.clock().now();
    end(b);
    let took = fabric.sim.clock().now() - begun;
    assert!(took <= std::time::Duration::from_millis(200), "{took:?}");
    fabric.sim.heal();
    memory.memory.write_from(0, &[0x11; 64]).expect("inside");
    // B's device acknowledges no request of A, and places no data.
    let (send, target) = (far.all(), memory.all_remote());
    a.ia.ep_post_send(a.ep, &[send], DtoCookie(1), NONE)
        .expect("posted");
    a.ia.ep_post_rdma_write(a.ep, &[send], DtoCookie(2), &target, NONE)
        .expect("posted");
    for _ in 0..2 {
        let (event, _) = a.ia.evd_wait(a.request, LONG, 1).expect("it ends");
        let Event::Dto(done) = event else {
            panic!("{event:?}")
        };
        assert_ne!(done.status, DtoStatus::Success);
    }
    assert_eq!(memory.read(0, 64), [0x11; 64]);
    let (event, _) = a.ia.evd_wait(a.connect, LONG, 1).expect("A hears of it");
    let Event::Connection(event) = event else {
        panic!("{event:?}")
    };
    let kind = if told {
        Kind::Disconnected
    } else {
        Kind::Broken
    };
    assert_eq!(event.kind, kind);
    // B has no mapping and no object left, and the function can be opened again.
    drop(memory);
    let report = fabric.report(B);
    assert!(report.objects.is_empty(), "{report:#?}");
    assert_eq!(report.driver_bugs, [""; 0]);
    close(fabric.open(B).expect("opens again"), CloseFlags::Graceful);
    close(a.ia, CloseFlags::Abrupt);
}

#[test]
fn a_dropped_adapter_tells_its_peers_and_reaches_nothing_any_more() {
    gone_without_a_close(drop, true);
}

#[test]
fn a_dropped_adapter_whose_peers_hear_nothing_reaches_nothing_either() {
    gone_without_a_close(drop, false);
}

#[test]
fn a_panic_in_the_program_stops_the_adapter_it_unwinds_through() {
    let panics = |side: support::Side| {
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _side = side;
            panic!("an error of the program's");
        }));
        unwound.expect_err("a panic");
    };
    gone_without_a_close(panics, false);
}
