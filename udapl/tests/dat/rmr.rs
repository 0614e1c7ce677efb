//! Memory windows (RMRs): `rmr_bind`, and a peer's accesses through RMR contexts before and after a bind or a free.

use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::event::{DtoCompletion, RmrBindCompletion};
use udapl::memory::{LmrTriplet, RmrCookie};
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, EvdFlags,
    Event, MemPrivFlags, Timeout,
};

use crate::support::connecting::EMPTY;
use crate::support::rdma::{BOTH, Rdma};
use crate::support::windows::{BOTH_WAYS, NOTHING, window};
use crate::support::{A, B, NONE, Pair, PairConfig, pattern, refused};

/// Clauses: BIND-1, BIND-2, BIND-3, BIND-8.
#[test]
fn a_peer_reaches_memory_through_the_context_a_bind_returns() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 4_096);
    let rmr = pair.rmr(B);
    let context = pair.bind(B, rmr, &memory.part(1_024, 512), BOTH_WAYS);
    assert_ne!(context, memory.lmr.rmr_context);
    let target = window(&memory, context, 1_024, 512);
    pair.expect_readable(&target, &pattern(5, 4_096)[1_024..1_536]);
    let source = pair.filled(A, 6, 512);
    pair.post_write(A, &[source.all()], 2, &target, NONE)
        .expect("the write is posted");
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(memory.read(1_024, 512), pattern(6, 512));
    assert_eq!(memory.read(0, 1_024), pattern(5, 4_096)[..1_024]);
    pair.assert_no_complaints();
}

/// Clauses: BIND-13.
#[test]
fn after_a_rebind_the_previous_context_fails_and_the_new_one_works() {
    for rdma in [Rdma::Read, Rdma::Write] {
        let mut pair = Pair::binding();
        let memory = pair.filled(B, 5, 4_096);
        let rmr = pair.rmr(B);
        let old = pair.bind(B, rmr, &memory.part(0, 512), BOTH_WAYS);
        let new = pair.bind(B, rmr, &memory.part(0, 512), BOTH_WAYS);
        assert_ne!(old, new);
        pair.expect_readable(&window(&memory, new, 0, 512), &pattern(5, 4_096)[..512]);
        pair.expect_no_access(rdma, &window(&memory, old, 0, 512));
        assert_eq!(memory.read(0, 4_096), pattern(5, 4_096));
    }
}

/// A bind of no bytes unbinds the window, and the LMR can then be freed.
///
/// Clauses: BIND-15.
#[test]
fn a_bind_of_no_bytes_takes_the_window_away_and_lets_the_lmr_go() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 4_096);
    let rmr = pair.rmr(B);
    let context = pair.bind(B, rmr, &memory.part(0, 512), BOTH_WAYS);
    pair.bind(B, rmr, &NOTHING, MemPrivFlags::empty());
    assert_eq!(
        pair.sides[B].ia.rmr_query(rmr).expect("the RMR").binding,
        None
    );
    pair.expect_no_access(Rdma::Read, &window(&memory, context, 0, 512));
    pair.sides[B]
        .ia
        .lmr_free(memory.lmr.lmr)
        .expect("nothing is bound to it");
    pair.assert_no_complaints();
}

/// Clauses: BIND-4, BIND-R2.
#[test]
fn a_peer_may_do_what_the_bind_says_and_nothing_else() {
    let read = MemPrivFlags::REMOTE_READ;
    let write = MemPrivFlags::REMOTE_WRITE;
    let local = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
    for (privileges, allowed) in [
        (MemPrivFlags::empty(), &[][..]),
        (local, &[]),
        (read, &[Rdma::Read]),
        (read | local, &[Rdma::Read]),
        (write, &[Rdma::Write]),
        (MemPrivFlags::all(), &BOTH),
    ] {
        for rdma in BOTH {
            let mut pair = Pair::binding();
            let memory = pair.filled(B, 5, 512);
            let rmr = pair.rmr(B);
            let context = pair.bind(B, rmr, &memory.all(), privileges);
            let target = window(&memory, context, 0, 512);
            if allowed.contains(&rdma) {
                let local = pair.filled(A, 6, 512);
                rdma.post(&mut pair, A, &[local.all()], 1, &target, NONE)
                    .expect("the request is posted");
                pair.expect_request(A, 1, DtoStatus::Success);
            } else {
                pair.expect_no_access(rdma, &target);
                assert_eq!(memory.read(0, 512), pattern(5, 512));
            }
        }
    }
    let mut pair = Pair::binding();
    let (memory, rmr) = (pair.buffer(B, 64), pair.rmr(B));
    let unknown = MemPrivFlags::from_bits_retain(0x04);
    let bind = pair.post_bind(B, rmr, &memory.all(), unknown, 0, NONE);
    assert_eq!(
        refused(bind, ReturnType::InvalidParameter).subtype(),
        Subtype::Arg3
    );
}

/// Clauses: BIND-4.
#[test]
fn a_window_ends_where_the_bind_says() {
    for (offset, bytes) in [(1_023, 1), (1_536, 1), (1_024, 513), (0, 8)] {
        let mut pair = Pair::binding();
        let memory = pair.filled(B, 5, 4_096);
        let rmr = pair.rmr(B);
        let context = pair.bind(B, rmr, &memory.part(1_024, 512), BOTH_WAYS);
        pair.expect_readable(
            &window(&memory, context, 1_535, 1),
            &pattern(5, 4_096)[1_535..1_536],
        );
        pair.expect_no_access(Rdma::Write, &window(&memory, context, offset, bytes));
        assert_eq!(memory.read(0, 4_096), pattern(5, 4_096));
    }
}

/// Clauses: BIND-5.
#[test]
fn cookies_come_back_as_they_were_and_may_repeat() {
    let mut pair = Pair::binding();
    let (memory, rmr) = (pair.buffer(B, 64), pair.rmr(B));
    let cookies = [0, 7, 7, u64::MAX, 1 << 63];
    for cookie in cookies {
        pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, cookie, NONE)
            .expect("the bind is posted");
    }
    for cookie in cookies {
        pair.expect_bind(B, rmr, cookie, DtoStatus::Success);
    }
}

/// Clauses: BIND-6.
#[test]
fn a_suppressed_bind_takes_effect_and_is_told_only_if_it_fails() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 64);
    let rmr = pair.rmr(B);
    let suppress = CompletionFlags::SUPPRESS;
    let mut context = 0;
    // The test posts more binds than the queue holds. A bind is refused while the device has not completed enough
    // earlier binds.
    for number in 0..200 {
        let mut looks = 0;
        context = loop {
            match pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 1, suppress) {
                Ok(context) => break context,
                Err(error) if looks < 100 => {
                    assert_eq!(
                        error.return_type(),
                        ReturnType::InsufficientResources,
                        "bind {number}"
                    );
                    looks += 1;
                    pair.expect_nothing(B, pair.sides[B].request);
                }
                Err(error) => panic!("bind {number}: {error} after {looks} looks"),
            }
        };
    }
    pair.expect_nothing(B, pair.sides[B].request);
    pair.expect_readable(&window(&memory, context, 0, 64), &pattern(5, 64));
    pair.disconnect();
    pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 2, suppress)
        .expect("legal in DISCONNECTED");
    pair.expect_bind(B, rmr, 2, DtoStatus::ErrFlushed);
}

/// Clauses: BIND-6.
#[test]
fn a_bind_with_a_barrier_waits_for_earlier_reads() {
    let mut pair = Pair::binding();
    let (near, far) = (pair.buffer(B, 64), pair.filled(A, 5, 64));
    let rmr = pair.rmr(B);
    pair.set_delay(500);
    pair.post_read(B, &[near.all()], 1, &far.all_remote(), NONE)
        .expect("the read is posted");
    let fence = CompletionFlags::BARRIER_FENCE;
    pair.post_bind(B, rmr, &near.all(), BOTH_WAYS, 2, fence)
        .expect("the bind is posted");
    let before = pair.now();
    pair.expect_request(B, 1, DtoStatus::Success);
    pair.expect_bind(B, rmr, 2, DtoStatus::Success);
    assert!(pair.now() - before >= core::time::Duration::from_millis(1));
    pair.assert_no_complaints();
}

/// Clauses: BIND-6.
#[test]
fn a_bind_notifies_unless_it_is_unsignalled() {
    let mut pair = Pair::binding_with(|attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
    });
    let (near, far) = (pair.buffer(B, 64), pair.buffer(A, 64));
    let rmr = pair.rmr(B);
    let (evd, remote) = (pair.sides[B].request, far.all_remote());
    // A read takes two milliseconds, and the bind waits for the read.
    pair.set_delay(1_000);
    let patience = udapl::Timeout::from_micros(10_000);
    for (flag, micros) in [(CompletionFlags::UNSIGNALLED, 10_000), (NONE, 2_000)] {
        pair.post_read(B, &[near.all()], 0, &remote, CompletionFlags::SUPPRESS)
            .expect("the read is posted");
        let flags = flag | CompletionFlags::BARRIER_FENCE;
        pair.post_bind(B, rmr, &near.all(), BOTH_WAYS, 1, flags)
            .expect("the bind is posted");
        let before = pair.now();
        let waited = pair.sides[B].ia.evd_wait(evd, patience, 1);
        let (event, _) = waited.expect("the count decides in the end");
        assert!(matches!(event, Event::RmrBind(done) if done.cookie.0 == 1));
        let took = (pair.now() - before).as_micros();
        assert_eq!(took / 1_000 * 1_000, micros, "{flag:?}: {took}");
    }
}

/// Clauses: BIND-7.
#[test]
fn unsignalled_and_unknown_flags_are_refused() {
    let mut pair = Pair::binding();
    let (memory, rmr) = (pair.buffer(B, 64), pair.rmr(B));
    for bits in [0x04, 0x10, 0x20, 0x8000_0000] {
        let flags = CompletionFlags::from_bits_retain(bits);
        let bind = pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 1, flags);
        let error = refused(bind, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg6, "{bits:#x}");
    }
    pair.expect_idle(B);
    let solicited = CompletionFlags::SOLICITED_WAIT;
    pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 2, solicited)
        .expect("means nothing here");
    pair.expect_bind(B, rmr, 2, DtoStatus::Success);
}

/// A context that is sent after its bind is valid when the peer receives it.
///
/// Clauses: BIND-11.
#[test]
fn a_context_sent_behind_its_bind_is_never_too_early() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 4_096);
    let (note, inbox) = (pair.buffer(B, 64), pair.buffer(A, 64));
    let rmr = pair.rmr(B);
    for round in 0..100_usize {
        pair.post_recv(A, &[inbox.all()], 1, NONE)
            .expect("the receive is posted");
        let at = round * 32;
        let context = pair
            .post_bind(B, rmr, &memory.part(at, 32), BOTH_WAYS, 2, NONE)
            .expect("the bind is posted");
        note.write(0, &context.to_be_bytes());
        let pieces = [note.part(0, 4), note.part(4, 8), note.part(12, 1)];
        let iov = if round % 2 == 0 {
            &pieces[..1]
        } else {
            &pieces
        };
        let flags = if round % 3 == 0 {
            CompletionFlags::SUPPRESS
        } else {
            NONE
        };
        pair.post_send(B, iov, 3, flags)
            .expect("the send is posted");
        pair.expect_recv(A, 1, DtoStatus::Success);
        let told = inbox.read(0, 4).try_into().expect("four bytes");
        let target = window(&memory, u32::from_be_bytes(told), at, 32);
        pair.expect_readable(&target, &pattern(5, 4_096)[at..at + 32]);
        pair.expect_bind(B, rmr, 2, DtoStatus::Success);
        if flags == NONE {
            pair.expect_request(B, 3, DtoStatus::Success);
        }
    }
    // The simulated function would complain if a request followed a bind without waiting for it.
    pair.assert_no_complaints();
}

/// Clauses: BIND-11.
#[test]
fn whatever_follows_a_bind_waits_for_it() {
    let mut pair = Pair::binding();
    let (near, far) = (pair.buffer(B, 256), pair.filled(A, 5, 256));
    let (inbox, rmr) = (pair.buffer(A, 64), pair.rmr(B));
    pair.post_recv(A, &[inbox.all()], 9, NONE)
        .expect("the receive is posted");
    let remote = far.all_remote();
    for follower in 0..5 {
        pair.post_bind(B, rmr, &near.all(), BOTH_WAYS, 1, NONE)
            .expect("the bind is posted");
        let posted = match follower {
            0 => pair.post_read(B, &[near.all()], 2, &remote, NONE),
            1 => pair.post_write(B, &[near.part(0, 8), near.part(8, 8)], 2, &remote, NONE),
            2 => pair.post_send(B, &[near.part(0, 64)], 2, NONE),
            3 => pair.post_write(B, EMPTY, 2, &remote, NONE),
            _ => pair
                .post_bind(B, rmr, &near.all(), BOTH_WAYS, 2, NONE)
                .map(drop),
        };
        posted.expect("posted");
        pair.expect_bind(B, rmr, 1, DtoStatus::Success);
        if follower == 4 {
            pair.expect_bind(B, rmr, 2, DtoStatus::Success);
        } else {
            pair.expect_request(B, 2, DtoStatus::Success);
        }
        pair.post_write(B, &[near.part(0, 1)], 3, &remote, NONE)
            .expect("and the one after that as ever");
        pair.expect_request(B, 3, DtoStatus::Success);
    }
    pair.assert_no_complaints();
}

/// Clauses: BIND-12.
#[test]
fn a_bind_that_fails_later_breaks_the_connection() {
    let mut pair = Pair::binding();
    let (near, far) = (pair.buffer(B, 64), pair.filled(A, 5, 64));
    let rmr = pair.rmr(B);
    pair.set_delay(500);
    pair.post_read(B, &[near.all()], 1, &far.all_remote(), NONE)
        .expect("the read is posted");
    let fence = CompletionFlags::BARRIER_FENCE;
    pair.post_bind(B, rmr, &near.all(), BOTH_WAYS, 2, fence)
        .expect("the bind is posted");
    pair.post_send(B, EMPTY, 3, NONE).expect("posted");
    pair.sides[B]
        .ia
        .rmr_free(rmr)
        .expect("a bind on its way keeps no RMR");
    pair.expect_request(B, 1, DtoStatus::Success);
    let done = pair.expect_bind(B, rmr, 2, DtoStatus::RmrOperationFailed);
    assert_eq!(done.syndrome.0, 0x06, "memory window bind error");
    pair.expect_request(B, 3, DtoStatus::ErrFlushed);
    pair.expect_connection(B, ConnectionEventKind::Broken);
    // The peer has seen no error on the wire.
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    assert_eq!(pair.state(B), EpState::Disconnected);
    pair.sides[B]
        .ia
        .lmr_free(near.lmr.lmr)
        .expect("nothing is bound to it");
    assert_eq!(pair.fabric.report(B).driver_bugs, Vec::<String>::new());
}

/// A window cannot be bound on a second endpoint while a bind on the first endpoint is outstanding, because the device
/// orders only requests of the same queue pair. If binds on two queue pairs were outstanding, the device might execute
/// the older bind last. It might also execute the older bind and then flush it with earlier requests: then the window
/// would have a context whose bind was reported as failed.
///
/// Clauses: BIND-13, BIND-17.
#[test]
fn a_window_is_bound_on_one_endpoint_at_a_time() {
    let mut pair = Pair::binding();
    let (near, far) = (pair.buffer(B, 64), pair.filled(A, 5, 64));
    let (first, (a, second)) = (pair.sides[B].ep, (pair.another_ep(A), pair.another_ep(B)));
    pair.connect_endpoints(a, second);
    let (rmr, other) = (pair.rmr(B), pair.rmr(B));
    pair.set_delay(500);
    pair.post_read(B, &[near.all()], 1, &far.all_remote(), NONE)
        .expect("the read is posted");
    let fence = CompletionFlags::BARRIER_FENCE;
    let bind = |pair: &mut Pair, rmr, ep, flags| {
        let ia = &mut pair.sides[B].ia;
        ia.rmr_bind(rmr, &near.all(), BOTH_WAYS, ep, RmrCookie(2), flags)
    };
    bind(&mut pair, rmr, first, fence).expect("it waits for the read");
    let refused = bind(&mut pair, rmr, second, NONE).expect_err("where would it end up?");
    assert_eq!(refused.return_type(), ReturnType::InsufficientResources);
    bind(&mut pair, rmr, first, NONE).expect("behind the other one");
    bind(&mut pair, other, second, NONE).expect("another window");
    for _ in 0..4 {
        let request = pair.sides[B].request;
        let (event, _) = pair.sides[B]
            .ia
            .evd_wait(request, Timeout::INFINITE, 1)
            .expect("a completion");
        let succeeded = matches!(
            event,
            Event::Dto(DtoCompletion { status, .. }) | Event::RmrBind(RmrBindCompletion { status, .. })
                if status == DtoStatus::Success
        );
        assert!(succeeded, "{event:?}");
    }
    bind(&mut pair, rmr, second, NONE).expect("the others are done");
    pair.assert_no_complaints();
}

/// Clauses: BIND-14, BIND-21.
#[test]
fn remote_rights_need_the_local_ones_of_the_lmr() {
    let (read, write) = (MemPrivFlags::REMOTE_READ, MemPrivFlags::REMOTE_WRITE);
    let cases = [
        (MemPrivFlags::LOCAL_READ, write, Subtype::PrivilegesWrite),
        (MemPrivFlags::LOCAL_WRITE, read, Subtype::PrivilegesRead),
        (read | write, read, Subtype::PrivilegesRead),
        (MemPrivFlags::empty(), write, Subtype::PrivilegesWrite),
    ];
    let mut pair = Pair::binding();
    let (rmr, pz) = (pair.rmr(B), pair.sides[B].pz);
    for (rights, asked, subtype) in cases {
        let memory = pair.buffer_in(B, 64, pz, rights);
        let bind = pair.post_bind(B, rmr, &memory.all(), asked, 1, NONE);
        let error = refused(bind, ReturnType::PrivilegesViolation);
        assert_eq!(error.subtype(), subtype, "{rights:?} {asked:?}");
        pair.bind(B, rmr, &memory.all(), MemPrivFlags::empty());
    }
    let memory = pair.buffer_in(B, 64, pz, MemPrivFlags::LOCAL_READ);
    let context = pair.bind(B, rmr, &memory.all(), read);
    memory.write(0, b"no remote right of the LMR is needed");
    let target = window(&memory, context, 0, 36);
    pair.expect_readable(&target, b"no remote right of the LMR is needed");
}

/// Clauses: BIND-16.
#[test]
fn a_bind_is_legal_in_connected_and_disconnected_only() {
    for state in [
        EpState::Unconnected,
        EpState::ActiveConnectionPending,
        EpState::CompletionPending,
        EpState::DisconnectPending,
    ] {
        let mut pair = Pair::unconnected_binding(|_| {});
        let side = usize::from(state == EpState::CompletionPending);
        let ep = pair.sides[side].ep;
        if matches!(
            state,
            EpState::ActiveConnectionPending | EpState::CompletionPending
        ) {
            pair.start_usual();
        }
        if state == EpState::CompletionPending {
            let cr = pair.request(B);
            let accepted = pair.sides[B].ia.cr_accept(cr, Some(ep), b"");
            accepted.expect("accepted");
        }
        if state == EpState::DisconnectPending {
            pair.connect();
            pair.cut();
            pair.post_send(A, EMPTY, 0, NONE).expect("posted");
            let ended = pair.sides[A].ia.ep_disconnect(ep, CloseFlags::Graceful);
            ended.expect("CONNECTED");
        }
        assert_eq!(pair.state(side), state);
        let (memory, rmr) = (pair.buffer(side, 64), pair.rmr(side));
        for triplet in [memory.all(), NOTHING] {
            let bind = pair.post_bind(side, rmr, &triplet, BOTH_WAYS, 1, NONE);
            let error = refused(bind, ReturnType::InvalidState);
            assert_eq!(error.subtype(), state.subtype(), "{state:?}");
        }
        let unbound = pair.sides[side].ia.rmr_query(rmr).expect("the RMR");
        assert_eq!(unbound.binding, None, "a refused bind changes nothing");
    }
}

/// Clauses: BIND-16, BIND-R1.
#[test]
fn a_bind_in_disconnected_is_flushed_and_leaves_the_rmr_unbound() {
    let mut pair = Pair::binding();
    let (old, new) = (pair.filled(B, 5, 64), pair.buffer(B, 64));
    let rmr = pair.rmr(B);
    let context = pair.bind(B, rmr, &old.all(), BOTH_WAYS);
    pair.disconnect();
    for cookie in 1..=5 {
        pair.post_bind(B, rmr, &new.all(), BOTH_WAYS, cookie, NONE)
            .expect("legal in DISCONNECTED");
        pair.expect_bind(B, rmr, cookie, DtoStatus::ErrFlushed);
        let param = pair.sides[B].ia.rmr_query(rmr).expect("the RMR");
        assert_eq!(param.binding, None);
    }
    pair.reconnect();
    pair.expect_no_access(Rdma::Read, &window(&old, context, 0, 64));
    for buffer in [old, new] {
        let freed = pair.sides[B].ia.lmr_free(buffer.lmr.lmr);
        freed.expect("nothing is bound to it");
    }
    pair.reconnect();
    let memory = pair.filled(B, 6, 64);
    let context = pair.bind(B, rmr, &memory.all(), BOTH_WAYS);
    pair.expect_readable(&window(&memory, context, 0, 64), &pattern(6, 64));
    pair.assert_no_complaints();
}

/// Clauses: BIND-17.
#[test]
fn binds_and_other_requests_share_the_queue() {
    let mut pair = Pair::binding_with(|attr| attr.max_request_dtos = 5);
    let (near, far) = (pair.buffer(B, 64), pair.buffer(A, 64));
    let rmr = pair.rmr(B);
    for round in 0..50 {
        pair.set_delay(500);
        let remote = far.all_remote();
        pair.post_read(B, &[near.all()], 1, &remote, NONE)
            .expect("there is room");
        for _ in 0..round % 4 {
            pair.post_write(B, &[near.all()], 1, &remote, NONE)
                .expect("there is room");
        }
        let fence = CompletionFlags::BARRIER_FENCE;
        for _ in round % 4..4 {
            pair.post_bind(B, rmr, &near.all(), BOTH_WAYS, 1, fence)
                .expect("there is room");
        }
        let known = pair.sides[B].ia.rmr_query(rmr).expect("the RMR");
        let bind = pair.post_bind(B, rmr, &near.part(0, 8), BOTH_WAYS, 2, fence);
        refused(bind, ReturnType::InsufficientResources);
        let send = pair.post_send(B, EMPTY, 2, NONE);
        refused(send, ReturnType::InsufficientResources);
        assert_eq!(pair.sides[B].ia.rmr_query(rmr), Ok(known));
        pair.set_delay(0);
        for _ in 0..5 {
            let event = pair.wait_event(B, pair.sides[B].request);
            let success = (1, DtoStatus::Success);
            let ended = matches!(event, Event::Dto(done) if (done.cookie.0, done.status) == success)
                || matches!(event, Event::RmrBind(done) if (done.cookie.0, done.status) == success);
            assert!(ended, "a completion, not {event:?}");
        }
    }
    pair.assert_no_complaints();
}

/// Clauses: BIND-18.
#[test]
fn a_range_outside_its_lmr_cannot_be_bound() {
    let mut pair = Pair::binding();
    let (memory, rmr) = (pair.buffer(B, 4_096), pair.rmr(B));
    let start = memory.lmr.registered_address;
    for (virtual_address, segment_length) in [
        (start - 1, 64),
        (start + 4_096, 1),
        (start, 4_097),
        (start + 64, u64::MAX),
        (u64::MAX, 2),
        (0, 64),
    ] {
        let triplet = LmrTriplet {
            virtual_address,
            segment_length,
            ..memory.all()
        };
        let bind = pair.post_bind(B, rmr, &triplet, BOTH_WAYS, 1, NONE);
        let error = refused(bind, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg2, "{triplet:x?}");
    }
    let freed = pair.buffer(B, 64);
    let gone = freed.all();
    pair.sides[B].ia.lmr_free(freed.lmr.lmr).expect("freed");
    for lmr_context in [gone.lmr_context, 0, u32::MAX] {
        let triplet = LmrTriplet {
            lmr_context,
            ..gone
        };
        let bind = pair.post_bind(B, rmr, &triplet, BOTH_WAYS, 1, NONE);
        refused(bind, ReturnType::InvalidParameter);
    }
    pair.expect_idle(B);
    pair.bind(B, rmr, &memory.part(4_095, 1), BOTH_WAYS);
    pair.bind(B, rmr, &memory.all(), BOTH_WAYS);
}

/// A bind refuses freed RMRs, objects of another adapter, and endpoints whose request EVD is null or takes no binds.
///
/// Clauses: BIND-19, BIND-R4.
#[test]
fn handles_of_what_is_gone_or_elsewhere_cannot_be_bound() {
    let mut pair = Pair::binding();
    let memory = pair.buffer(B, 64);
    let (rmr, freed, foreign) = (pair.rmr(B), pair.rmr(B), pair.rmr(A));
    pair.sides[B].ia.rmr_free(freed).expect("freed");
    for rmr in [freed, foreign] {
        let bind = pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 1, NONE);
        let error = refused(bind, ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandleRmr);
    }
    let (triplet, elsewhere) = (memory.all(), pair.sides[A].ep);
    let ia = &mut pair.sides[B].ia;
    let bind = ia.rmr_bind(rmr, &triplet, BOTH_WAYS, elsewhere, RmrCookie(1), NONE);
    let error = refused(bind, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleEp);
    let deaf = [None, Some(ia.evd_create(8, EvdFlags::DTO).expect("an EVD"))];
    for request in deaf {
        let (pz, recv) = (pair.sides[B].pz, pair.sides[B].recv);
        let ia = &mut pair.sides[B].ia;
        let ep = ia.ep_create(
            Some(pz),
            EpEvds {
                recv: Some(recv),
                request,
                connect: None,
            },
            None,
        );
        let ep = ep.expect("an endpoint");
        let bind = ia.rmr_bind(rmr, &triplet, BOTH_WAYS, ep, RmrCookie(1), NONE);
        let error = refused(bind, ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandleEvdRequest);
    }
}

/// Clauses: BIND-21.
#[test]
fn rmr_lmr_and_endpoint_are_in_one_zone() {
    let mut pair = Pair::binding();
    let (memory, rmr) = (pair.buffer(B, 64), pair.rmr(B));
    let ia = &mut pair.sides[B].ia;
    let elsewhere = ia.pz_create().expect("a PZ");
    let foreign = ia.rmr_create(elsewhere).expect("an RMR");
    let bind = pair.post_bind(B, foreign, &memory.all(), BOTH_WAYS, 1, NONE);
    refused(bind, ReturnType::ProtectionViolation);
    let bind = pair.post_bind(B, foreign, &NOTHING, BOTH_WAYS, 1, NONE);
    refused(bind, ReturnType::ProtectionViolation);
    let memory = pair.buffer_in(B, 64, elsewhere, MemPrivFlags::all());
    for rmr in [rmr, foreign] {
        let bind = pair.post_bind(B, rmr, &memory.all(), BOTH_WAYS, 1, NONE);
        refused(bind, ReturnType::ProtectionViolation);
    }
    pair.expect_idle(B);
}

/// A window that is bound to other memory releases the LMR that it was bound to before.
///
/// Clauses: BIND-R1.
#[test]
fn a_window_that_moves_lets_go_of_what_it_was_bound_to() {
    let mut pair = Pair::binding();
    let (first, second) = (pair.buffer(B, 64), pair.filled(B, 6, 64));
    let rmr = pair.rmr(B);
    pair.bind(B, rmr, &first.all(), BOTH_WAYS);
    let in_use = pair.sides[B].ia.lmr_free(first.lmr.lmr);
    let error = refused(in_use, ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateLmrInUse);
    let context = pair
        .post_bind(B, rmr, &second.all(), BOTH_WAYS, 1, NONE)
        .expect("the bind is posted");
    refused(
        pair.sides[B].ia.lmr_free(second.lmr.lmr),
        ReturnType::InvalidState,
    );
    // Until the device has executed the bind, the first context may still be valid.
    pair.expect_bind(B, rmr, 1, DtoStatus::Success);
    pair.sides[B]
        .ia
        .lmr_free(first.lmr.lmr)
        .expect("the window has moved");
    pair.expect_readable(&window(&second, context, 0, 64), &pattern(6, 64));
    pair.assert_no_complaints();
}

/// Clauses: BIND-8.
#[test]
fn a_window_serves_every_endpoint_of_its_zone_and_outlives_connections() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 64);
    let rmr = pair.rmr(B);
    let context = pair.bind(B, rmr, &memory.all(), BOTH_WAYS);
    pair.disconnect();
    pair.reconnect();
    pair.expect_readable(&window(&memory, context, 0, 64), &pattern(5, 64));
    let (a, b) = (pair.another_ep(A), pair.another_ep(B));
    pair.connect_endpoints(a, b);
    let local = pair.buffer(A, 64);
    let target = window(&memory, context, 0, 64);
    let read = pair.sides[A]
        .ia
        .ep_post_rdma_read(a, &[local.all()], DtoCookie(1), &target, NONE);
    read.expect("the read is posted");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    assert_eq!(local.read(0, 64), pattern(5, 64));
}

/// Clauses: BIND-20, RMRC-3.
#[test]
fn a_device_without_windows_has_no_rmrs() {
    let config = PairConfig {
        profile: |mut profile| {
            profile.general.max.set_imaicl(false);
            profile.general.current.set_imaicl(false);
            profile
        },
        ..PairConfig::default()
    };
    let mut pair = Pair::unconnected(&config);
    let pz = pair.sides[A].pz;
    assert_eq!(pair.sides[A].ia.query().ia.max_rmrs, 0);
    let rmr = pair.sides[A].ia.rmr_create(pz);
    refused(rmr, ReturnType::ModelNotSupported);
    let flags = EvdFlags::DEFAULT;
    let ia = &mut pair.sides[A].ia;
    let evd = ia.evd_create(16, flags).expect("an EVD");
    ia.ep_create(Some(pz), EpEvds::all(evd), None)
        .expect("endpoints are what they were");
}

/// An RMR is created unbound. A query returns the triplet, the rights and the context of its binding.
///
/// Clauses: RMRC-1, RMRC-2, RMRC-4, RMRQ-1, RMRQ-2.
#[test]
fn an_rmr_is_born_unbound_and_tells_what_it_is_bound_to() {
    let mut pair = Pair::binding();
    let (memory, pz) = (pair.buffer(B, 64), pair.sides[B].pz);
    let rmr = pair.rmr(B);
    let param = pair.sides[B].ia.rmr_query(rmr).expect("the RMR");
    assert_eq!((param.pz, param.binding), (pz, None));
    let triplet = memory.part(8, 16);
    let context = pair.bind(B, rmr, &triplet, MemPrivFlags::REMOTE_READ);
    let param = pair.sides[B].ia.rmr_query(rmr).expect("the RMR");
    let binding = param.binding.expect("bound");
    assert_eq!(
        (binding.lmr_triplet, binding.privileges, binding.rmr_context),
        (triplet, MemPrivFlags::REMOTE_READ, context)
    );
    let ia = &mut pair.sides[B].ia;
    let elsewhere = ia.pz_create().expect("a PZ");
    ia.pz_free(elsewhere).expect("freed");
    let error = refused(ia.rmr_create(elsewhere), ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandlePz);
    let foreign = pair.rmr(A);
    let error = refused(
        pair.sides[B].ia.rmr_query(foreign),
        ReturnType::InvalidHandle,
    );
    assert_eq!(error.subtype(), Subtype::HandleRmr);
}

/// Clauses: RMRF-1, RMRF-2, RMRF-3, RMRF-4.
#[test]
fn freeing_an_rmr_unbinds_it_and_shuts_peers_out() {
    let mut pair = Pair::binding();
    let memory = pair.filled(B, 5, 64);
    let (rmr, unbound) = (pair.rmr(B), pair.rmr(B));
    let context = pair.bind(B, rmr, &memory.all(), BOTH_WAYS);
    for rmr in [rmr, unbound] {
        let ia = &mut pair.sides[B].ia;
        ia.rmr_free(rmr).expect("bound or not");
        for gone in [ia.rmr_free(rmr), ia.rmr_query(rmr).map(drop)] {
            let error = refused(gone, ReturnType::InvalidHandle);
            assert_eq!(error.subtype(), Subtype::HandleRmr);
        }
    }
    pair.sides[B]
        .ia
        .lmr_free(memory.lmr.lmr)
        .expect("nothing is bound to it");
    pair.expect_no_access(Rdma::Read, &window(&memory, context, 0, 64));
    pair.assert_no_complaints();
}

/// Clauses: RMRF-1, PZF-1.
#[test]
fn a_zone_with_an_rmr_in_it_stays() {
    let pair = Pair::unconnected(&PairConfig::default());
    let [mut side, _] = pair.sides;
    let pz = side.ia.pz_create().expect("a PZ");
    let rmr = side.ia.rmr_create(pz).expect("an RMR");
    let error = refused(side.ia.pz_free(pz), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StatePzInUse);
    side.ia.rmr_free(rmr).expect("freed");
    side.ia.pz_free(pz).expect("nothing is in it");
}
