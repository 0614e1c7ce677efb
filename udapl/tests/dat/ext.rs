//! Operations of the device that DAT 1.2 lacks: rejection with private data, immediate data, atomic operations,
//! invalidation by the peer.

use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::event::DtoDetail;
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::post::{CompareSwap, FetchAdd};
use udapl::{
    CompletionFlags, ConnQual, ConnectionEventKind as Kind, DatError, DtoCookie, DtoStatus, Event,
    MemPrivFlags,
};

use crate::support::rdma::{UNTOUCHED, number};
use crate::support::windows::BOTH_WAYS;
use crate::support::wire::packets_to;
use crate::support::{A, B, Buffer, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

/// A rejection reaches the peer with its private data, for every kind of service.
#[test]
fn private_data_of_a_rejection_comes_with_the_event() {
    // Services: an IB service ID, and a port of the RDMA CM. The private data of the RDMA CM has no length field, so
    // the peer gets all 148 bytes.
    for (service, limit, told) in [(CONN_QUAL, 144, 4), (ConnQual(4791), 148, 148)] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let evd = pair.sides[B].cr;
        if service != CONN_QUAL {
            let flags = udapl::PspFlags::CONSUMER;
            let psp = pair.sides[B].ia.psp_create(service, evd, flags);
            psp.expect("a PSP");
        }
        let ep = pair.sides[A].ep;
        pair.start(A, ep, service, LONG, b"request")
            .expect("UNCONNECTED");
        let cr = pair.request(B);
        let ia = &mut pair.sides[B].ia;
        let long = refused(
            ia.cr_reject_with(cr, &vec![1; limit + 1]),
            ReturnType::InvalidParameter,
        );
        assert_eq!(long.subtype(), Subtype::Arg2);
        ia.cr_reject_with(cr, b"full").expect("still undecided");
        refused(ia.cr_reject_with(cr, b"again"), ReturnType::InvalidHandle);
        let event = pair.connection_event(A);
        assert_eq!(
            (event.kind, event.private_data_size),
            (Kind::PeerRejected, told)
        );
        let data = pair.sides[A].ia.ep_private_data(ep).expect("an endpoint");
        assert_eq!((&data[..4], data.len()), (&b"full"[..], told));
        assert!(data[4..].iter().all(|&byte| byte == 0));
        pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
        let data = pair.sides[A].ia.ep_private_data(ep).expect("an endpoint");
        assert_eq!(data, b"");
        pair.connect();
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

#[test]
fn a_rejection_that_says_nothing_brings_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.start_usual();
    let cr = pair.request(B);
    pair.sides[B].ia.cr_reject(cr).expect("undecided");
    let event = pair.connection_event(A);
    assert_eq!(
        (event.kind, event.private_data_size),
        (Kind::PeerRejected, 0)
    );
    assert_eq!(pair.state(A), EpState::Disconnected);
}

const ATOMIC: MemPrivFlags = MemPrivFlags::all().union(MemPrivFlags::REMOTE_ATOMIC);

impl Pair {
    /// Makes memory of B with a number for A's atomic operations, and memory of A for results.
    fn counter(&mut self, value: u64) -> (Buffer, Buffer) {
        let pz = self.sides[B].pz;
        let counter = self.buffer_in(B, 64, pz, ATOMIC);
        counter.write(0, &number(value));
        (counter, self.untouched(A, 64))
    }

    /// Posts a fetch-and-add at A to the number at `remote`.
    fn fetch_add(
        &mut self,
        result: &[LmrTriplet],
        remote: &RmrTriplet,
        add: u64,
    ) -> Result<(), DatError> {
        let ep = self.sides[A].ep;
        let ia = &mut self.sides[A].ia;
        ia.ep_post_fetch_add(ep, result, DtoCookie(30), remote, add, NONE)
    }
}

#[test]
fn immediate_data_of_a_send_is_told_by_the_receive_of_the_peer() {
    let mut pair = Pair::connected();
    let (data, sink) = (pair.filled(A, 1, 10_000), pair.untouched(B, 10_000));
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    // Messages: empty, of one packet, of several packets, and inline without an LMR.
    for (bytes, immediate) in [(0, 0x0102_0304), (100, 0), (10_000, u32::MAX), (16, 7)] {
        let ia = &mut pair.sides[B].ia;
        ia.ep_post_recv(b, &[sink.all()], DtoCookie(1), NONE)
            .expect("posted");
        let ia = &mut pair.sides[A].ia;
        let posted = if bytes == 16 {
            ia.ep_post_send_inline_immediate(a, &data.read(0, 16), DtoCookie(2), immediate, NONE)
        } else {
            ia.ep_post_send_immediate(a, &[data.part(0, bytes)], DtoCookie(2), immediate, NONE)
        };
        posted.expect("posted");
        let done = pair.expect_recv(B, 1, DtoStatus::Success);
        assert_eq!(
            (done.transferred_length, done.detail, done.syndrome()),
            (bytes as u64, DtoDetail::SendImmediate(immediate), (0, 0))
        );
        let done = pair.expect_request(A, 2, DtoStatus::Success);
        assert_eq!(done.detail, DtoDetail::None);
        assert_eq!(sink.read(0, bytes), data.read(0, bytes));
    }
    let fabric = pair.fabric.simulated().expect("in this process");
    assert_eq!(packets_to(fabric, B, "SendOnlyImmediate").len(), 3);
    assert_eq!(packets_to(fabric, B, "SendLastImmediate").len(), 1);
    pair.assert_no_complaints();
}

#[test]
fn a_buffer_of_an_srq_tells_immediate_data_too() {
    let mut pair = Pair::connected_with(&PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    });
    let (data, sink) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
    let (a, srq) = (pair.sides[A].ep, pair.srq.expect("an SRQ"));
    let ia = &mut pair.sides[B].ia;
    ia.srq_post_recv(srq, &[sink.all()], DtoCookie(5))
        .expect("posted");
    let ia = &mut pair.sides[A].ia;
    ia.ep_post_send_immediate(a, &[data.all()], DtoCookie(6), 99, NONE)
        .expect("posted");
    let done = pair.expect_recv(B, 5, DtoStatus::Success);
    assert_eq!(done.detail.immediate(), Some(99));
    pair.expect_request(A, 6, DtoStatus::Success);
}

/// An RDMA Write with immediate data consumes a receive, and leaves the receive's buffer unchanged. If no receive is
/// posted, the RDMA Write is retried, and succeeds if a receive is posted before the RNR retries are used up.
#[test]
fn a_write_with_immediate_data_writes_and_completes_a_receive() {
    let mut pair = Pair::connected();
    let (data, place, sink) = (
        pair.filled(A, 2, 5_000),
        pair.untouched(B, 5_000),
        pair.untouched(B, 16),
    );
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    for (bytes, immediate) in [(5_000, 0xdead_beef), (8, 1), (0, 2)] {
        let remote = place.remote(0, bytes);
        let iov = [data.part(0, bytes)];
        let ia = &mut pair.sides[A].ia;
        ia.ep_post_rdma_write_immediate(a, &iov, DtoCookie(3), &remote, immediate, NONE)
            .expect("posted");
        // The test waits 1 ms, which is less than the RNR retries take (six waits of 0.64 ms).
        assert_eq!(pair.poll_event(B, pair.sides[B].recv, 10), None);
        let ia = &mut pair.sides[B].ia;
        ia.ep_post_recv(b, &[sink.all()], DtoCookie(4), NONE)
            .expect("posted");
        let done = pair.expect_recv(B, 4, DtoStatus::Success);
        assert_eq!(
            (done.transferred_length, done.detail),
            (bytes as u64, DtoDetail::WriteImmediate(immediate))
        );
        pair.expect_request(A, 3, DtoStatus::Success);
        assert_eq!(place.read(0, bytes), data.read(0, bytes));
        assert_eq!(sink.read(0, 16), [UNTOUCHED; 16]);
    }
    // A plain RDMA Write completes no receive.
    let remote = place.remote(0, 8);
    pair.post_write(A, &[data.part(0, 8)], 5, &remote, NONE)
        .expect("posted");
    pair.expect_request(A, 5, DtoStatus::Success);
    pair.expect_nothing(B, pair.sides[B].recv);
    pair.assert_no_complaints();
}

#[test]
fn atomic_operations_change_the_number_at_the_peer_and_tell_what_it_was() {
    let mut pair = Pair::connected();
    assert!(pair.sides[A].ia.has_atomics());
    let (counter, results) = pair.counter(40);
    let remote = counter.remote(0, 8);
    pair.fetch_add(&[results.part(0, 8)], &remote, 2)
        .expect("posted");
    let done = pair.expect_request(A, 30, DtoStatus::Success);
    assert_eq!(done.transferred_length, 8);
    let ep = pair.sides[A].ep;
    for (at, compare, swap, before, after) in [(8, 42, 7, 42, 7), (16, 42, 9, 7, 7)] {
        let ia = &mut pair.sides[A].ia;
        let result = [results.part(at, 8)];
        ia.ep_post_compare_swap(ep, &result, DtoCookie(31), &remote, compare, swap, NONE)
            .expect("posted");
        pair.expect_request(A, 31, DtoStatus::Success);
        assert_eq!(results.read(at, 8), number(before));
        assert_eq!(counter.read(0, 8), number(after));
    }
    assert_eq!(results.read(0, 8), number(40));
    assert_eq!(results.read(24, 8), [UNTOUCHED; 8]);
    // A Fetch and Add with a suppressed completion changes the number, and reports no event.
    let ia = &mut pair.sides[A].ia;
    let suppressed = CompletionFlags::SUPPRESS;
    ia.ep_post_fetch_add(
        ep,
        &[results.part(0, 8)],
        DtoCookie(32),
        &remote,
        u64::MAX,
        suppressed,
    )
    .expect("posted");
    pair.expect_nothing(A, pair.sides[A].request);
    assert_eq!(counter.read(0, 8), number(6));
    pair.assert_no_complaints();
}

/// Atomic operations in excess of the connection's read resources wait for earlier atomic operations. No operation is
/// lost.
#[test]
fn more_atomic_operations_than_read_resources_are_done_one_after_the_other() {
    let mut pair = Pair::connected();
    let (counter, results) = pair.counter(0);
    let (ep, remote) = (pair.sides[A].ep, counter.remote(0, 8));
    let ia = &mut pair.sides[A].ia;
    let posted = ia.batch(ep, |batch| {
        (0..40).try_for_each(|n| {
            let result = [results.part(n % 8 * 8, 8)];
            let one = FetchAdd {
                remote: &remote,
                add: 1,
            };
            batch.fetch_add(&result, DtoCookie(n as u64), one, NONE)
        })
    });
    posted.expect("room for 64");
    for n in 0..40 {
        pair.expect_request(A, n, DtoStatus::Success);
    }
    assert_eq!(counter.read(0, 8), number(40));
    pair.assert_no_complaints();
}

#[test]
fn atomic_operations_that_make_no_sense_are_refused_and_change_nothing() {
    let mut pair = Pair::connected();
    let (counter, results) = pair.counter(1);
    let remote = counter.remote(0, 8);
    let one = |bytes| [results.part(0, bytes)];
    for (result, remote, with) in [
        (&one(4)[..], &remote, ReturnType::LengthError),
        (&one(16), &remote, ReturnType::LengthError),
        (&[], &remote, ReturnType::LengthError),
        (&one(8), &counter.remote(0, 4), ReturnType::LengthError),
        (&one(8), &counter.remote(4, 8), ReturnType::InvalidParameter),
        (
            &[results.part(0, 4), results.part(4, 4)],
            &remote,
            ReturnType::InvalidParameter,
        ),
    ] {
        refused(pair.fetch_add(result, remote, 1), with);
    }
    // The result is written, so its memory needs LOCAL_WRITE.
    let pz = pair.sides[A].pz;
    let readable = pair.buffer_in(A, 8, pz, MemPrivFlags::LOCAL_READ);
    refused(
        pair.fetch_add(&[readable.all()], &remote, 1),
        ReturnType::PrivilegesViolation,
    );
    pair.expect_idle(A);
    assert_eq!(counter.read(0, 8), number(1));
    // REMOTE_INVALIDATE is not a right of an LMR.
    let pz = pair.sides[B].pz;
    let memory = counter.memory.clone();
    let ia = &mut pair.sides[B].ia;
    let bad = ia.lmr_create(memory, pz, MemPrivFlags::REMOTE_INVALIDATE);
    assert_eq!(
        refused(bad, ReturnType::InvalidParameter).subtype(),
        Subtype::Arg6
    );
}

/// Rights to read and write do not allow atomic operations (IBTA volume 1, "Memory access rights").
#[test]
fn an_atomic_operation_needs_the_right_to_it() {
    let mut pair = Pair::connected();
    let (_, results) = pair.counter(0);
    let plain = pair.buffer(B, 8);
    plain.write(0, &number(5));
    pair.fetch_add(&[results.part(0, 8)], &plain.remote(0, 8), 1)
        .expect("posted");
    let done = pair.expect_request(A, 30, DtoStatus::ErrRemoteAccess);
    assert_ne!(done.syndrome(), (0, 0));
    pair.expect_broken();
    assert_eq!(plain.read(0, 8), number(5));
    assert_eq!(results.read(0, 8), [UNTOUCHED; 8]);
}

/// Atomic operations count against the depth of RDMA Reads: an endpoint whose depth is 0 may not post them.
#[test]
fn an_atomic_operation_needs_the_depth_of_a_read() {
    let mut pair = Pair::shaped(|side, attr| {
        if side == A {
            attr.max_rdma_read_out = 0;
        }
    });
    let (counter, results) = pair.counter(0);
    let refusal = pair.fetch_add(&[results.part(0, 8)], &counter.remote(0, 8), 1);
    refused(refusal, ReturnType::InsufficientResources);
    pair.expect_idle(A);
}

/// Atomic operations need the responder's resources for RDMA Reads: a responder without such resources refuses them
/// (IBTA volume 1, "RDMA READ and ATOMIC resources").
#[test]
fn a_peer_that_lets_no_reads_in_lets_no_atomic_operations_in() {
    let mut pair = Pair::shaped(|side, attr| {
        if side == B {
            attr.max_rdma_read_in = 0;
        }
    });
    let (counter, results) = pair.counter(3);
    pair.fetch_add(&[results.part(0, 8)], &counter.remote(0, 8), 1)
        .expect("posted");
    pair.expect_request(A, 30, DtoStatus::ErrRemoteResponder);
    pair.expect_broken();
    assert_eq!(counter.read(0, 8), number(3));
    assert_eq!(results.read(0, 8), [UNTOUCHED; 8]);
}

/// A region with REMOTE_ATOMIC must also have LOCAL_WRITE, as in Linux (`ib_check_mr_access`).
#[test]
fn memory_that_peers_count_in_may_be_written_here() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[A];
    let memory = udapl::alloc(&side.ia, 8).expect("memory");
    let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::REMOTE_ATOMIC;
    let error = refused(
        side.ia.lmr_create(memory.clone(), side.pz, rights),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.argument(), Some("privileges"));
    let created = side
        .ia
        .lmr_create(memory, side.pz, rights | MemPrivFlags::LOCAL_WRITE);
    created.expect("with the right to write");
}

/// For a device without atomic operations `has_atomics` returns false, and the calls fail with DAT_MODEL_NOT_SUPPORTED.
#[test]
fn a_device_without_atomic_operations_refuses_them_by_name() {
    let mut pair = Pair::unconnected(&PairConfig {
        profile: |mut profile| {
            profile.general.max.set_atomic(false);
            profile.general.current.set_atomic(false);
            profile
        },
        ..PairConfig::default()
    });
    assert!(!pair.sides[A].ia.has_atomics());
    pair.connect();
    let results = pair.buffer(A, 8);
    let pz = pair.sides[A].pz;
    let ia = &mut pair.sides[A].ia;
    let region = ia.lmr_create(results.memory.clone(), pz, ATOMIC);
    refused(region, ReturnType::ModelNotSupported);
    let remote = pair.buffer(B, 8).remote(0, 8);
    refused(
        pair.fetch_add(&[results.all()], &remote, 1),
        ReturnType::ModelNotSupported,
    );
    pair.expect_idle(A);
    pair.expect_alive();
}

#[test]
fn what_dat_has_not_is_refused_and_flushed_where_sends_are() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let data = pair.buffer(A, 8);
    let (ep, remote, iov) = (pair.sides[A].ep, data.remote(0, 8), [data.all()]);
    let post_all = |pair: &mut Pair| {
        let ia = &mut pair.sides[A].ia;
        [
            ia.ep_post_send_immediate(ep, &iov, DtoCookie(1), 1, NONE),
            ia.ep_post_send_invalidate(ep, &iov, DtoCookie(2), 1, NONE),
            ia.ep_post_rdma_write_immediate(ep, &iov, DtoCookie(3), &remote, 1, NONE),
            ia.ep_post_fetch_add(ep, &iov, DtoCookie(4), &remote, 1, NONE),
            ia.ep_post_compare_swap(ep, &iov, DtoCookie(5), &remote, 1, 1, NONE),
            ia.ep_post_send_inline_immediate(ep, b"x", DtoCookie(6), 1, NONE),
            ia.ep_post_send_inline_invalidate(ep, b"x", DtoCookie(7), 1, NONE),
        ]
    };
    for refusal in post_all(&mut pair) {
        refused(refusal, ReturnType::InvalidState);
    }
    pair.connect();
    pair.disconnect();
    for posted in post_all(&mut pair) {
        posted.expect("DISCONNECTED takes posts");
    }
    for cookie in 1..=7 {
        pair.expect_request(A, cookie, DtoStatus::ErrFlushed);
    }
}

/// Operations beyond DAT 1.2 keep the order of the batch, even if some of them ring doorbells of their own.
#[test]
fn a_batch_mixes_them_with_requests_of_dat() {
    let mut pair = Pair::connected();
    let (counter, results) = pair.counter(3);
    let (data, sink) = (pair.filled(A, 3, 64), pair.untouched(B, 64));
    let (ep, remote) = (pair.sides[A].ep, counter.remote(0, 8));
    for cookie in 10..13 {
        pair.post_recv(B, &[sink.all()], cookie, NONE)
            .expect("posted");
    }
    let place = pair.buffer(B, 64).remote(0, 64);
    let ia = &mut pair.sides[A].ia;
    let posted = ia.batch(ep, |batch| {
        batch.send_immediate(&[data.part(0, 8)], DtoCookie(1), 11, NONE)?;
        let swap = CompareSwap {
            remote: &remote,
            compare: 3,
            swap: 4,
        };
        batch.compare_swap(&[results.part(0, 8)], DtoCookie(2), swap, NONE)?;
        batch.rdma_write_immediate(&[data.part(0, 32)], DtoCookie(3), &place, 12, NONE)?;
        batch.send(&[data.part(0, 16)], DtoCookie(4), NONE)
    });
    posted.expect("room");
    for cookie in 1..=4 {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
    pair.run_for(1);
    let mut events = [Event::NONE; 8];
    let (evd, ia) = (pair.sides[B].recv, &mut pair.sides[B].ia);
    assert_eq!(ia.evd_poll(evd, &mut events).expect("three"), 3);
    let told = events[..3].iter().map(|event| {
        let Event::Dto(done) = event else {
            panic!("a completion, not {event:?}");
        };
        (done.cookie.0, done.transferred_length, done.detail)
    });
    let expected = [
        (10, 8, DtoDetail::SendImmediate(11)),
        (11, 32, DtoDetail::WriteImmediate(12)),
        (12, 16, DtoDetail::None),
    ];
    assert!(told.eq(expected));
    assert_eq!(counter.read(0, 8), number(4));
    pair.assert_no_complaints();
}

/// A window bound with REMOTE_INVALIDATE is unbound after the peer's invalidation: its context is invalid before the
/// receive completes, and the receive's completion names the context (IBTA volume 1, "Send with Invalidate").
#[test]
fn a_peer_invalidates_a_window_that_was_bound_so_and_it_counts_as_unbound() {
    let mut pair = Pair::binding();
    let (data, place, sink) = (
        pair.filled(A, 4, 64),
        pair.untouched(B, 64),
        pair.untouched(B, 64),
    );
    let rmr = pair.rmr(B);
    let may = BOTH_WAYS | MemPrivFlags::REMOTE_INVALIDATE;
    for round in 0..3 {
        let context = pair.bind(B, rmr, &place.all(), may);
        let window = RmrTriplet {
            rmr_context: context,
            ..place.all_remote()
        };
        pair.post_write(A, &[data.all()], 1, &window, NONE)
            .expect("posted");
        pair.expect_request(A, 1, DtoStatus::Success);
        pair.post_recv(B, &[sink.all()], 2, NONE).expect("posted");
        let (ep, ia) = (pair.sides[A].ep, &mut pair.sides[A].ia);
        let posted = if round == 1 {
            ia.ep_post_send_inline_invalidate(ep, b"done", DtoCookie(3), context, NONE)
        } else {
            ia.ep_post_send_invalidate(ep, &[data.part(0, 4)], DtoCookie(3), context, NONE)
        };
        posted.expect("posted");
        let done = pair.expect_recv(B, 2, DtoStatus::Success);
        assert_eq!(done.detail.invalidated(), Some(context));
        pair.expect_request(A, 3, DtoStatus::Success);
        let queried = pair.sides[B].ia.rmr_query(rmr).expect("an RMR");
        assert_eq!(queried.binding, None);
        if round == 2 {
            // No window is bound to the memory any more, and no peer can access it.
            let ia = &mut pair.sides[B].ia;
            ia.lmr_free(place.lmr.lmr).expect("not bound");
            pair.post_write(A, &[data.all()], 4, &window, NONE)
                .expect("posted");
            pair.expect_request(A, 4, DtoStatus::ErrRemoteAccess);
        }
    }
    pair.sides[B].ia.rmr_free(rmr).expect("unbound");
}

/// An invalidation takes effect even if the consumer has not yet dequeued the completion of the bind.
#[test]
fn an_invalidation_that_is_told_before_the_bind_counts() {
    let mut pair = Pair::binding();
    let (place, sink) = (pair.untouched(B, 64), pair.untouched(B, 64));
    let note = pair.untouched(A, 64);
    pair.post_recv(A, &[note.all()], 7, NONE).expect("posted");
    let rmr = pair.rmr(B);
    let may = BOTH_WAYS | MemPrivFlags::REMOTE_INVALIDATE;
    let context = pair
        .post_bind(B, rmr, &place.all(), may, 9, NONE)
        .expect("posted");
    pair.post_recv(B, &[sink.all()], 2, NONE).expect("posted");
    // A request that is posted after a bind starts only when the bind is done. So the window exists when B's Send
    // arrives.
    pair.post_send(B, &[], 8, NONE).expect("posted");
    pair.expect_recv(A, 7, DtoStatus::Success);
    let (ep, ia) = (pair.sides[A].ep, &mut pair.sides[A].ia);
    ia.ep_post_send_invalidate(ep, &[] as &[LmrTriplet], DtoCookie(3), context, NONE)
        .expect("posted");
    let done = pair.expect_recv(B, 2, DtoStatus::Success);
    assert_eq!(done.detail.invalidated(), Some(context));
    let queried = pair.sides[B].ia.rmr_query(rmr).expect("an RMR");
    assert_eq!(queried.binding, None);
    let Event::RmrBind(done) = pair.wait_event(B, pair.sides[B].request) else {
        panic!("the bind");
    };
    assert_eq!((done.cookie.0, done.status), (9, DtoStatus::Success));
    pair.expect_request(B, 8, DtoStatus::Success);
    let ia = &mut pair.sides[B].ia;
    ia.lmr_free(place.lmr.lmr).expect("nothing reaches through");
    pair.expect_request(A, 3, DtoStatus::Success);
}

/// The device refuses to invalidate these contexts: a window bound without the right, a window bound again without the
/// right, a region, and a context that does not exist. The connection breaks, and the object stays valid.
#[test]
fn what_may_not_be_invalidated_breaks_the_connection_and_stays() {
    for what in 0..4 {
        let mut pair = Pair::binding();
        let (place, sink) = (pair.untouched(B, 64), pair.untouched(B, 64));
        let rmr = pair.rmr(B);
        if what == 1 {
            pair.bind(
                B,
                rmr,
                &place.all(),
                BOTH_WAYS | MemPrivFlags::REMOTE_INVALIDATE,
            );
        }
        let window = pair.bind(B, rmr, &place.all(), BOTH_WAYS);
        let context = match what {
            0 | 1 => window,
            2 => place.lmr.rmr_context,
            _ => 0x00ab_cd12,
        };
        pair.post_recv(B, &[sink.all()], 2, NONE).expect("posted");
        let (ep, ia) = (pair.sides[A].ep, &mut pair.sides[A].ia);
        ia.ep_post_send_invalidate(ep, &[] as &[LmrTriplet], DtoCookie(3), context, NONE)
            .expect("posted");
        pair.expect_request(A, 3, DtoStatus::ErrRemoteAccess);
        pair.expect_recv(B, 2, DtoStatus::ErrFlushed);
        pair.expect_broken();
        let queried = pair.sides[B].ia.rmr_query(rmr).expect("an RMR");
        assert_eq!(queried.binding.map(|bound| bound.rmr_context), Some(window));
    }
}
