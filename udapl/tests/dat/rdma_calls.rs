//! Common properties of `ep_post_rdma_read` and `ep_post_rdma_write`: handles and states, flags, cookies, limits.

use core::time::Duration;

use hw_sim::LinkFaults;
use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::memory::RmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DtoStatus, EpEvds, Event, Qos,
    Timeout,
};

use crate::support::rdma::{BOTH, Rdma, UNTOUCHED};
use crate::support::wire::packets;
use crate::support::{A, B, Buffer, CONN_QUAL, LONG, NONE, Pair, PairConfig, pattern, refused};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const FENCE: CompletionFlags = CompletionFlags::BARRIER_FENCE;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;

/// Creates the source and the destination of the data. Returns the local buffer of `side` and the peer's buffer.
fn buffers(pair: &mut Pair, rdma: Rdma, side: usize, seed: u64, bytes: usize) -> [Buffer; 2] {
    match rdma {
        Rdma::Read => [
            pair.untouched(side, bytes),
            pair.filled(1 - side, seed, bytes),
        ],
        Rdma::Write => [
            pair.filled(side, seed, bytes),
            pair.untouched(1 - side, bytes),
        ],
    }
}

/// Returns the buffer to which the operation moves the data.
fn sink(rdma: Rdma, [local, remote]: &[Buffer; 2]) -> &Buffer {
    match rdma {
        Rdma::Read => local,
        Rdma::Write => remote,
    }
}

/// Clauses: READ-1, WRITE-1.
#[test]
fn a_freed_or_foreign_endpoint_is_no_handle() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let both = buffers(&mut pair, rdma, A, 1, 64);
        let side = &mut pair.sides[A];
        let freed = side
            .ia
            .ep_create(Some(side.pz), EpEvds::NONE, None)
            .expect("an endpoint");
        side.ia.ep_free(freed).expect("freed");
        let own = pair.sides[A].ep;
        for ep in [freed, pair.sides[B].ep] {
            pair.sides[A].ep = ep;
            let posted = rdma.post(
                &mut pair,
                A,
                &[both[0].all()],
                1,
                &both[1].remote(0, 64),
                NONE,
            );
            let error = refused(posted, ReturnType::InvalidHandle);
            assert_eq!(error.subtype(), Subtype::HandleEp);
        }
        pair.sides[A].ep = own;
        pair.expect_idle(A);
        assert_eq!(sink(rdma, &both).read(0, 64), vec![UNTOUCHED; 64]);
    }
}

/// Clauses: READ-4, READ-14, WRITE-3.
#[test]
fn cookies_come_back_unchanged_whatever_they_are_and_however_often_the_same() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let [local, remote] = buffers(&mut pair, rdma, A, 2, 64);
        let cookies = [0, u64::MAX, 1 << 63, 0xdead_beef_0bad_cafe, 0, 0, u64::MAX];
        for cookie in cookies {
            rdma.post(
                &mut pair,
                A,
                &[local.all()],
                cookie,
                &remote.remote(0, 64),
                NONE,
            )
            .expect("posted");
        }
        for cookie in cookies {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        pair.expect_idle(A);
    }
}

/// Clauses: READ-7, WRITE-5.
#[test]
fn a_suppressed_operation_is_silent_when_it_succeeds() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let both = buffers(&mut pair, rdma, A, 3, 128);
        for (at, flags) in [(0, SUPPRESS), (64, NONE)] {
            let (part, remote) = (both[0].part(at, 64), both[1].remote(at, 64));
            rdma.post(&mut pair, A, &[part], at as u64, &remote, flags)
                .expect("posted");
        }
        pair.expect_request(A, 64, DtoStatus::Success);
        pair.expect_idle(A);
        assert_eq!(sink(rdma, &both).read(0, 128), pattern(3, 128), "{rdma:?}");
    }
}

/// Clauses: READ-7, READ-R7, WRITE-5, WRITE-R5.
#[test]
fn a_suppressed_operation_that_fails_is_reported_and_so_are_those_behind_it() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let [local, remote] = buffers(&mut pair, rdma, A, 4, 64);
        let good = remote.remote(0, 64);
        let beyond = RmrTriplet {
            target_address: good.target_address + 1,
            ..good
        };
        pair.set_delay(20);
        for (cookie, remote) in [(1, &good), (2, &beyond), (3, &good)] {
            rdma.post(&mut pair, A, &[local.all()], cookie, remote, SUPPRESS)
                .expect("posted");
        }
        pair.expect_request(A, 2, DtoStatus::ErrRemoteAccess);
        pair.expect_request(A, 3, DtoStatus::ErrFlushed);
        pair.expect_broken();
        pair.expect_idle(A);
    }
}

/// Clauses: READ-6, READ-8, WRITE-5.
#[test]
fn an_unsignalled_operation_wakes_no_waiter_and_a_plain_one_does() {
    for rdma in BOTH {
        let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
        let [local, remote] = buffers(&mut pair, rdma, A, 5, 64);
        pair.set_delay(100);
        for (flags, wakes) in [(NONE, true), (UNSIGNALLED, false)] {
            rdma.post(
                &mut pair,
                A,
                &[local.all()],
                4,
                &remote.remote(0, 64),
                flags,
            )
            .expect("posted");
            let (start, request) = (pair.now(), pair.sides[A].request);
            let (event, _) = pair.sides[A]
                .ia
                .evd_wait(request, Timeout::from_micros(5_000), 1)
                .expect("an event");
            let Event::Dto(done) = event else {
                panic!("{event:?}")
            };
            assert_eq!((done.cookie.0, done.status), (4, DtoStatus::Success));
            // Without a wake-up the wait lasts until its timeout, and then finds that there are enough events.
            let took = Duration::from_nanos(pair.now().0 - start.0);
            let promptly = took < Duration::from_micros(1_000);
            assert_eq!(promptly, wakes, "{rdma:?}, {flags:?}: {took:?}");
        }
    }
}

/// Clauses: READ-9, READ-R1, WRITE-5, WRITE-6, WRITE-R4.
#[test]
fn flags_that_are_unknown_or_not_the_endpoints_are_the_sixth_argument() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let both = buffers(&mut pair, rdma, A, 6, 64);
        let (local, remote) = (both[0].all(), both[1].remote(0, 64));
        let illegal = [
            UNSIGNALLED,
            UNSIGNALLED | SUPPRESS,
            CompletionFlags::EVD_THRESHOLD,
            CompletionFlags::from_bits_retain(0x20),
            CompletionFlags::from_bits_retain(0x8000_0000),
        ];
        for flags in illegal {
            let posted = rdma.post(&mut pair, A, &[local], 1, &remote, flags);
            let error = refused(posted, ReturnType::InvalidParameter);
            assert_eq!(error.subtype(), Subtype::Arg6, "{rdma:?}, {flags:?}");
        }
        pair.expect_idle(A);
        assert_eq!(sink(rdma, &both).read(0, 64), vec![UNTOUCHED; 64]);
        for flags in [NONE, SOLICITED, FENCE, FENCE | SOLICITED] {
            rdma.post(&mut pair, A, &[local], 2, &remote, flags)
                .expect("posted");
            pair.expect_request(A, 2, DtoStatus::Success);
        }

        let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
        let both = buffers(&mut pair, rdma, A, 6, 64);
        let (local, remote) = (both[0].all(), both[1].remote(0, 64));
        let all = UNSIGNALLED | SUPPRESS | FENCE | SOLICITED;
        for (cookie, flags) in [(3, all), (4, UNSIGNALLED)] {
            rdma.post(&mut pair, A, &[local], cookie, &remote, flags)
                .expect("posted");
        }
        pair.expect_request(A, 4, DtoStatus::Success);
        for flags in [
            CompletionFlags::EVD_THRESHOLD,
            CompletionFlags::from_bits_retain(0x40),
        ] {
            let posted = rdma.post(&mut pair, A, &[local], 1, &remote, flags);
            refused(posted, ReturnType::InvalidParameter);
        }
        pair.expect_idle(A);
    }
}

/// Clauses: READ-23, READ-24, READ-25, WRITE-14.
#[test]
fn connected_and_disconnected_endpoints_take_operations_and_no_others_do() {
    for rdma in BOTH {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let sides = [A, B].map(|side| buffers(&mut pair, rdma, side, 7, 64));
        let post = |pair: &mut Pair, side: usize, cookie, flags| {
            let [local, remote] = &sides[side];
            rdma.post(
                pair,
                side,
                &[local.all()],
                cookie,
                &remote.remote(0, 64),
                flags,
            )
        };
        let refuse = |pair: &mut Pair, side: usize, state: Subtype| {
            let error = refused(post(pair, side, 1, NONE), ReturnType::InvalidState);
            assert_eq!(error.subtype(), state, "{rdma:?}");
        };
        refuse(&mut pair, A, Subtype::StateEpUnconnected);

        let (ep, address) = (pair.sides[A].ep, pair.sides[B].ia.query().ia.ia_address);
        pair.sides[A]
            .ia
            .ep_connect(
                ep,
                address,
                CONN_QUAL,
                LONG,
                b"",
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            )
            .expect("accepted");
        refuse(&mut pair, A, Subtype::StateEpActiveConnectionPending);

        let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
            panic!("a request")
        };
        let ep_b = pair.sides[B].ep;
        pair.sides[B]
            .ia
            .cr_accept(request.cr, Some(ep_b), b"")
            .expect("accepted");
        refuse(&mut pair, B, Subtype::StateEpCompletionPending);

        pair.expect_connection(A, ConnectionEventKind::Established);
        pair.expect_connection(B, ConnectionEventKind::Established);
        for side in [A, B] {
            post(&mut pair, side, 4, NONE).expect("connected");
            pair.expect_request(side, 4, DtoStatus::Success);
            assert_eq!(sink(rdma, &sides[side]).read(0, 64), pattern(7, 64));
        }

        pair.set_delay(50);
        post(&mut pair, A, 5, NONE).expect("connected");
        pair.sides[A]
            .ia
            .ep_disconnect(ep, CloseFlags::Graceful)
            .expect("begun");
        assert_eq!(pair.state(A), EpState::DisconnectPending);
        refuse(&mut pair, A, Subtype::StateEpDisconnectPending);
        pair.expect_request(A, 5, DtoStatus::Success);
        pair.expect_connection(A, ConnectionEventKind::Disconnected);
        pair.expect_connection(B, ConnectionEventKind::Disconnected);

        let before = packets(&pair.fabric).len();
        for side in [A, B] {
            for (cookie, flags) in [(7, NONE), (8, SUPPRESS), (9, NONE)] {
                post(&mut pair, side, cookie, flags).expect("accepted, to be flushed");
            }
            // The flush is immediate: the first dequeue finds the completions.
            for cookie in [7, 8, 9] {
                let request = pair.sides[side].request;
                let event = pair.sides[side].ia.evd_dequeue(request).expect("an EVD");
                let Some(Event::Dto(done)) = event else {
                    panic!("{event:?}")
                };
                assert_eq!(
                    (done.cookie.0, done.status, done.request, done.ep),
                    (cookie, DtoStatus::ErrFlushed, true, pair.sides[side].ep)
                );
            }
            pair.expect_idle(side);
        }
        assert_eq!(packets(&pair.fabric).len(), before, "nothing went out");
        // Arguments are checked even if the endpoint is disconnected.
        let [local, remote] = &sides[A];
        let outside = local.part(0, 65);
        let posted = rdma.post(&mut pair, A, &[outside], 9, &remote.remote(0, 65), NONE);
        refused(posted, ReturnType::InvalidParameter);
        pair.sides[A].ia.ep_reset(ep).expect("reset");
        refuse(&mut pair, A, Subtype::StateEpUnconnected);
        pair.expect_idle(A);
    }
}

/// Clauses: READ-26, WRITE-15.
#[test]
fn as_many_operations_as_max_request_dtos_may_be_outstanding() {
    for rdma in BOTH {
        let mut pair = Pair::shaped(|_, attr| attr.max_request_dtos = 6);
        let [local, remote] = buffers(&mut pair, rdma, A, 8, 64);
        let post = |pair: &mut Pair, cookie, flags| {
            rdma.post(
                pair,
                A,
                &[local.all()],
                cookie,
                &remote.remote(0, 64),
                flags,
            )
        };
        pair.set_delay(50);
        // Suppressed operations count, too.
        for cookie in 0..6 {
            let flags = if cookie % 2 == 0 { SUPPRESS } else { NONE };
            post(&mut pair, cookie, flags).expect("posted");
        }
        for _ in 0..2 {
            refused(post(&mut pair, 6, NONE), ReturnType::InsufficientResources);
        }
        for cookie in [1, 3, 5] {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        for cookie in 10..16 {
            post(&mut pair, cookie, NONE).expect("there is room again");
        }
        refused(post(&mut pair, 6, NONE), ReturnType::InsufficientResources);
        for cookie in 10..16 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        pair.expect_idle(A);
    }
}

/// Clauses: READ-26, READ-7, WRITE-15, WRITE-5.
#[test]
fn an_operation_that_is_complete_holds_no_slot_although_nobody_dequeued_it() {
    for rdma in BOTH {
        let mut pair = Pair::shaped(|_, attr| attr.max_request_dtos = 4);
        let [local, remote] = buffers(&mut pair, rdma, A, 9, 64);
        let post = |pair: &mut Pair, cookie, flags| {
            rdma.post(
                pair,
                A,
                &[local.all()],
                cookie,
                &remote.remote(0, 64),
                flags,
            )
        };
        for cookie in 0..16 {
            post(&mut pair, cookie, NONE).expect("those before it are complete");
        }
        for cookie in 0..16 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        for cookie in 0..100 {
            post(&mut pair, cookie, SUPPRESS).expect("those before it are complete");
        }
        post(&mut pair, 99, NONE).expect("posted");
        pair.expect_request(A, 99, DtoStatus::Success);
        pair.expect_idle(A);
    }
}

/// Clauses: READ-11, READ-21, WRITE-7, WRITE-11.
#[test]
fn an_operation_of_many_packets_is_whole_over_a_wire_that_is_not() {
    const BYTES: usize = 5 << 20;
    for (rdma, seed) in [(Rdma::Read, 1), (Rdma::Write, 2)] {
        let mut pair = Pair::connected();
        let both = buffers(&mut pair, rdma, A, 10, BYTES);
        let link = pair.fabric.link;
        pair.fabric.sim.set_faults(link, LinkFaults::swarm(seed));
        // The operation has more packets than may be unacknowledged at a time, odd addresses, and several segments.
        let local = &both[0];
        let iov = [
            local.part(1, 1 << 20),
            local.part((1 << 20) + 1, 3),
            local.part((1 << 20) + 4, BYTES - (1 << 20) - 5),
        ];
        let remote = both[1].remote(1, BYTES - 2);
        rdma.post(&mut pair, A, &iov, 1, &remote, NONE)
            .expect("posted");
        let done = pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(done.transferred_length, BYTES as u64 - 2);
        let (sink, data) = (sink(rdma, &both).read(0, BYTES), pattern(10, BYTES));
        assert!(sink[1..BYTES - 1] == data[1..BYTES - 1], "{rdma:?}");
        assert_eq!((sink[0], sink[BYTES - 1]), (UNTOUCHED, UNTOUCHED));
        pair.assert_no_complaints();
    }
}
