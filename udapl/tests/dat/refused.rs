//! Errors of `ep_post_send` and `ep_post_recv`, and their codes. A refused call has no effect.
//!
//! `send.rs` and `recv_states.rs` test states. Some errors of the C interface cannot be expressed in Rust: a slice has
//! no negative length and is never null, and there is no null handle.

use udapl::adapter::IaConfig;
use udapl::error::{ReturnType, Subtype};
use udapl::memory::{LmrTriplet, Segment};
use udapl::{CompletionFlags, DatResult, DtoCookie, DtoStatus, EpEvds, EpHandle, MemPrivFlags};

use crate::support::windows::BOTH_WAYS;
use crate::support::{self, A, B, Buffer, NONE, Pair, PairConfig, attributes, refused};

const EMPTY: &[LmrTriplet] = &[];
const READ: MemPrivFlags = MemPrivFlags::LOCAL_READ;
const WRITE: MemPrivFlags = MemPrivFlags::LOCAL_WRITE;

/// One of the two calls, on side A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Send,
    Recv,
}

impl Call {
    fn post_on<S: Segment>(
        self,
        pair: &mut Pair,
        ep: EpHandle,
        iov: &[S],
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self {
            Self::Send => pair.sides[A]
                .ia
                .ep_post_send(ep, iov, DtoCookie(666), flags),
            Self::Recv => pair.sides[A]
                .ia
                .ep_post_recv(ep, iov, DtoCookie(666), flags),
        }
    }

    fn post<S: Segment>(self, pair: &mut Pair, iov: &[S], flags: CompletionFlags) -> DatResult<()> {
        self.post_on(pair, pair.sides[A].ep, iov, flags)
    }

    #[track_caller]
    fn refused<S: Segment>(self, pair: &mut Pair, iov: &[S], with: ReturnType, subtype: Subtype) {
        let error = refused(self.post(pair, iov, NONE), with);
        assert_eq!(error.subtype(), subtype, "{self:?}: {error}");
    }
}

const CALLS: [Call; 2] = [Call::Send, Call::Recv];

/// Checks that refused posts are in no queue: A's queues take all the posts they were made for, A sends and receives
/// exactly what is posted now, and there are no other events.
fn assert_untouched(pair: &mut Pair) {
    let (from, to) = (pair.buffer(A, 8), pair.buffer(B, 8));
    let counts = {
        let side = &pair.sides[A];
        side.ia.ep_query(side.ep).expect("parameters").attr
    };
    pair.set_delay(50);
    for at in 0..u64::from(counts.max_recv_dtos) {
        pair.post_recv(A, EMPTY, at, NONE)
            .expect("the receive queue is as it was");
    }
    refused(
        pair.post_recv(A, EMPTY, 99, NONE),
        ReturnType::InsufficientResources,
    );
    for at in 0..u64::from(counts.max_request_dtos) {
        pair.post_recv(B, &[to.all()], at, NONE).expect("posted");
        pair.post_send(A, &[from.all()], at, NONE)
            .expect("the request queue is as it was");
    }
    refused(
        pair.post_send(A, EMPTY, 99, NONE),
        ReturnType::InsufficientResources,
    );
    for at in 0..u64::from(counts.max_request_dtos) {
        let sent = pair.wait_request(A);
        assert_eq!((sent.cookie.0, sent.status), (at, DtoStatus::Success));
        let received = pair.wait_recv(B);
        assert_eq!(
            (
                received.cookie.0,
                received.status,
                received.transferred_length
            ),
            (at, DtoStatus::Success, 8)
        );
    }
    for at in 0..u64::from(counts.max_recv_dtos) {
        pair.post_send(B, EMPTY, 0, NONE).expect("posted");
        let received = pair.wait_recv(A);
        assert_eq!(
            (received.cookie.0, received.status),
            (at, DtoStatus::Success)
        );
        assert_eq!(pair.wait_request(B).status, DtoStatus::Success);
    }
    for side in [A, B] {
        for evd in [
            pair.sides[side].request,
            pair.sides[side].recv,
            pair.sides[side].connect,
        ] {
            pair.expect_nothing(side, evd);
        }
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-1, RECV-1, SEND-R6.
#[test]
fn handles_of_freed_endpoints_and_of_other_adapters_are_invalid() {
    let mut pair = Pair::connected();
    let buffer = pair.buffer(A, 64);
    let foreign = pair.sides[B].ep;
    let side = &mut pair.sides[A];
    let attr = attributes(&side.ia);
    let make = |side: &mut support::Side| {
        side.ia
            .ep_create(
                Some(side.pz),
                EpEvds::NONE.recv(side.recv).request(side.request),
                Some(&attr),
            )
            .expect("an endpoint")
    };
    let freed = make(side);
    side.ia.ep_free(freed).expect("freed");
    // The slot of the freed endpoint is reused: the old handle must not name the new endpoint.
    let reused = make(side);
    assert_ne!(freed, reused);
    for call in CALLS {
        for handle in [foreign, freed] {
            let error = refused(
                call.post_on(&mut pair, handle, &[buffer.all()], NONE),
                ReturnType::InvalidHandle,
            );
            assert_eq!(error.subtype(), Subtype::HandleEp, "{call:?}");
        }
    }
    pair.sides[A].ia.ep_free(reused).expect("freed");
    assert_untouched(&mut pair);
}

/// Clauses: SEND-32, RECV-29, SEND-R6.
#[test]
fn segments_that_leave_their_region_are_invalid_parameters() {
    let mut pair = Pair::connected();
    let (inside, buffer) = (pair.buffer(A, 64), pair.buffer(A, 4096));
    let (start, bytes) = (buffer.lmr.registered_address, buffer.lmr.registered_size);
    let at = |virtual_address, segment_length| LmrTriplet {
        lmr_context: buffer.lmr.lmr_context,
        virtual_address,
        segment_length,
    };
    let outside = [
        ("one byte too long", at(start, bytes + 1)),
        ("its last byte outside", at(start + bytes - 7, 8)),
        ("behind the region", at(start + bytes, 1)),
        ("before the region", at(start - 1, 1)),
        ("its first byte outside", at(start - 1, 2)),
        ("around the region", at(start - 1, bytes + 2)),
        ("wrapping to inside", at(start + 8, u64::MAX)),
        ("wrapping to the start", at(start, u64::MAX)),
        ("from address 0", at(0, 1)),
        ("at the top of memory", at(u64::MAX, 2)),
        ("an offset for an address", at(16, 16)),
    ];
    for call in CALLS {
        for (name, segment) in outside {
            for iov in [
                &[segment][..],
                &[inside.all(), segment],
                &[segment, inside.all()],
            ] {
                let error = refused(
                    call.post(&mut pair, iov, NONE),
                    ReturnType::InvalidParameter,
                );
                assert_eq!(error.subtype(), Subtype::Arg3, "{call:?}: {name}: {error}");
            }
        }
    }
    assert_untouched(&mut pair);
}

/// Clauses: SEND-32, RECV-29.
#[test]
fn segments_up_to_both_ends_of_their_region_are_taken() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 4096), pair.buffer(B, 4096));
    let data = support::pattern(7, 4096);
    from.write(0, &data);
    for (offset, bytes) in [(0, 4096), (0, 1), (4095, 1), (1, 4095), (4096, 0)] {
        to.write(0, &[0; 4096]);
        pair.post_recv(B, &[to.part(offset, bytes)], 1, NONE)
            .expect("inside");
        pair.post_send(A, &[from.part(offset, bytes)], 2, NONE)
            .expect("inside");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
        assert_eq!(pair.wait_recv(B).transferred_length, bytes as u64);
        assert_eq!(to.read(offset, bytes), data[offset..offset + bytes]);
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-33, RECV-30, SEND-R6.
#[test]
fn a_region_of_another_protection_zone_is_a_protection_violation() {
    let mut pair = Pair::connected();
    let zone = pair.sides[A].ia.pz_create().expect("a PZ");
    let (ours, theirs) = (
        pair.buffer(A, 64),
        pair.buffer_in(A, 64, zone, MemPrivFlags::all()),
    );
    let slices = [&ours, &theirs].map(|buffer| slice(&pair, buffer));
    for call in CALLS {
        call.refused(
            &mut pair,
            &[theirs.all()],
            ReturnType::ProtectionViolation,
            Subtype::None,
        );
        call.refused(
            &mut pair,
            &[ours.all(), theirs.part(1, 1)],
            ReturnType::ProtectionViolation,
            Subtype::None,
        );
        call.refused(
            &mut pair,
            &slices[1..],
            ReturnType::ProtectionViolation,
            Subtype::None,
        );
        call.refused(
            &mut pair,
            &slices,
            ReturnType::ProtectionViolation,
            Subtype::None,
        );
    }
    assert_untouched(&mut pair);
}

/// Clauses: SEND-34, RECV-31, SEND-R6.
#[test]
fn a_region_that_does_not_exist_is_a_privileges_violation() {
    let mut pair = Pair::binding();
    let (ours, gone, of_b) = (pair.buffer(A, 64), pair.buffer(A, 64), pair.buffer(B, 64));
    let gone_slice = slice(&pair, &gone);
    pair.sides[A].ia.lmr_free(gone.lmr.lmr).expect("freed");
    let context = ours.lmr.lmr_context;
    let rmr = pair.rmr(A);
    let window = pair.bind(A, rmr, &ours.all(), BOTH_WAYS);
    // Invalid contexts: an RMR's, 0, all ones, two other variants of the key, the next index, and the top bit changed.
    let others = [
        window,
        0,
        u32::MAX,
        context ^ 1,
        context ^ 0x80,
        context.wrapping_add(0x100),
        context ^ 0x8000_0000,
    ];
    for call in CALLS {
        for lmr_context in others {
            let segment = LmrTriplet {
                lmr_context,
                ..ours.all()
            };
            call.refused(
                &mut pair,
                &[segment],
                ReturnType::PrivilegesViolation,
                Subtype::None,
            );
            call.refused(
                &mut pair,
                &[ours.all(), segment],
                ReturnType::PrivilegesViolation,
                Subtype::None,
            );
        }
        call.refused(
            &mut pair,
            &[gone.all()],
            ReturnType::PrivilegesViolation,
            Subtype::None,
        );
        call.refused(
            &mut pair,
            &[gone_slice],
            ReturnType::PrivilegesViolation,
            Subtype::None,
        );
    }
    // A new LMR in the place of the freed LMR does not make the old context valid again.
    let new = pair.buffer(A, 64);
    assert_ne!(new.lmr.lmr_context, gone.lmr.lmr_context);
    for call in CALLS {
        call.refused(
            &mut pair,
            &[gone.all()],
            ReturnType::PrivilegesViolation,
            Subtype::None,
        );
        call.refused(
            &mut pair,
            &[gone_slice],
            ReturnType::PrivilegesViolation,
            Subtype::None,
        );
    }
    // A slice of another adapter's LMR is refused, too. (No LMR of A has the same context here.)
    let foreign = slice_of(&pair, B, &of_b);
    for call in CALLS {
        assert!(call.post(&mut pair, &[foreign], NONE).is_err(), "{call:?}");
    }
    assert_untouched(&mut pair);
}

/// Clauses: SEND-34, RECV-31, SEND-R6.
#[test]
fn sources_need_the_right_of_local_read_and_sinks_that_of_local_write() {
    let mut pair = Pair::connected();
    let zone = pair.sides[A].pz;
    let remote = MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_WRITE;
    let rights = [
        (Call::Send, WRITE, Subtype::PrivilegesRead),
        (
            Call::Send,
            WRITE | MemPrivFlags::REMOTE_READ,
            Subtype::PrivilegesRead,
        ),
        (Call::Send, MemPrivFlags::empty(), Subtype::PrivilegesRead),
        (Call::Recv, READ, Subtype::PrivilegesWrite),
        (
            Call::Recv,
            READ | MemPrivFlags::REMOTE_READ,
            Subtype::PrivilegesWrite,
        ),
        (Call::Recv, MemPrivFlags::empty(), Subtype::PrivilegesWrite),
    ];
    for (call, rights, subtype) in rights {
        let (buffer, allowed) = (pair.buffer_in(A, 64, zone, rights), pair.buffer(A, 64));
        let slices = [&allowed, &buffer].map(|buffer| slice(&pair, buffer));
        call.refused(
            &mut pair,
            &[buffer.all()],
            ReturnType::PrivilegesViolation,
            subtype,
        );
        call.refused(
            &mut pair,
            &[allowed.all(), buffer.all()],
            ReturnType::PrivilegesViolation,
            subtype,
        );
        call.refused(&mut pair, &slices, ReturnType::PrivilegesViolation, subtype);
    }
    assert_untouched(&mut pair);

    // LOCAL_READ is enough for a source, which is never written, and LOCAL_WRITE for a sink, which is never read.
    // Remote rights do not matter.
    for remote in [MemPrivFlags::empty(), remote & MemPrivFlags::REMOTE_READ] {
        let from = pair.buffer_in(A, 64, zone, READ | remote);
        let to = pair.buffer_in(B, 64, pair.sides[B].pz, WRITE | remote);
        from.write(0, &support::pattern(8, 64));
        pair.post_recv(B, &[to.all()], 1, NONE)
            .expect("LOCAL_WRITE is all a sink needs");
        pair.post_send(A, &[from.all()], 2, NONE)
            .expect("LOCAL_READ is all a source needs");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
        assert_eq!(pair.wait_recv(B).status, DtoStatus::Success);
        assert_eq!(to.read(0, 64), support::pattern(8, 64));
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-34.
#[test]
fn the_relaxed_mode_lets_a_region_with_local_write_be_a_source() {
    let mut config = PairConfig::default();
    config.options[A].ia = IaConfig {
        local_write_implies_read: true,
        ..IaConfig::default()
    };
    let mut pair = Pair::connected_with(&config);
    let (zone, to) = (pair.sides[A].pz, pair.buffer(B, 64));
    let from = pair.buffer_in(A, 64, zone, WRITE);
    from.write(0, &support::pattern(9, 64));
    pair.send(&from, &to, 64);
    assert_eq!(to.read(0, 64), support::pattern(9, 64));
    let none = pair.buffer_in(A, 64, zone, MemPrivFlags::empty());
    Call::Send.refused(
        &mut pair,
        &[none.all()],
        ReturnType::PrivilegesViolation,
        Subtype::PrivilegesRead,
    );
    pair.assert_no_complaints();
}

/// Clauses: SEND-R1, RECV-R3, SEND-R6.
#[test]
fn more_segments_than_the_endpoint_has_are_refused_even_if_empty() {
    for limit in [0, 1, 3, 8] {
        let config = PairConfig::with_attr(|attr| {
            (attr.max_request_iov, attr.max_recv_iov) = (limit, limit);
            (attr.max_rdma_read_iov, attr.max_rdma_write_iov) = (0, 0);
            (attr.max_request_dtos, attr.max_recv_dtos) = (4, 4);
        });
        let mut pair = Pair::connected_with(&config);
        let (buffer, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
        let limit = limit as usize;
        for call in CALLS {
            for segments in [limit + 1, limit + 2, 64, 1000] {
                let iov = vec![buffer.part(0, 1); segments];
                call.refused(&mut pair, &iov, ReturnType::InvalidParameter, Subtype::Arg2);
                let iov = vec![buffer.part(0, 0); segments];
                call.refused(&mut pair, &iov, ReturnType::InvalidParameter, Subtype::Arg2);
            }
        }
        // The maximum number of segments is accepted, and works.
        let iov = vec![buffer.part(0, 1); limit];
        let sink: Vec<LmrTriplet> = (0..limit).map(|at| to.part(at, 1)).collect();
        pair.post_recv(B, &sink, 1, NONE)
            .expect("as many as allowed");
        pair.post_send(A, &iov, 2, NONE)
            .expect("as many as allowed");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
        assert_eq!(pair.wait_recv(B).transferred_length, limit as u64);
        if limit != 0 {
            assert_untouched(&mut pair);
        }
    }
}

/// Clauses: SEND-R1, RECV-R2, RECV-8, SEND-R6.
#[test]
fn flags_that_no_such_call_knows_are_refused() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
        attr.recv_completion_flags = CompletionFlags::UNSIGNALLED;
    }));
    let mut bad: Vec<(Call, u32)> = (4..32)
        .flat_map(|bit| CALLS.map(|call| (call, 1 << bit)))
        .collect();
    bad.extend([
        (Call::Send, u32::MAX),
        (Call::Send, 0x1f),
        (Call::Recv, u32::MAX),
    ]);
    // A receive has only one flag.
    bad.extend([0x01, 0x02, 0x08, 0x03, 0x05, 0x06, 0x0c, 0x0f].map(|bits| (Call::Recv, bits)));
    for (call, bits) in bad {
        let flags = CompletionFlags::from_bits_retain(bits);
        let error = refused(
            call.post(&mut pair, EMPTY, flags),
            ReturnType::InvalidParameter,
        );
        assert_eq!(error.subtype(), Subtype::Arg5, "{call:?} {bits:#x}");
    }
    assert_untouched(&mut pair);
    // Every other combination is legal.
    for bits in 0..0x10 {
        pair.post_recv(B, EMPTY, 0, NONE).expect("posted");
        pair.post_send(A, EMPTY, 0, CompletionFlags::from_bits_retain(bits))
            .expect("four flags, any of them");
        assert_eq!(pair.wait_recv(B).status, DtoStatus::Success, "{bits:#x}");
    }
    for flags in [NONE, CompletionFlags::UNSIGNALLED] {
        pair.post_recv(A, EMPTY, 0, flags)
            .expect("none, or UNSIGNALLED");
    }
}

/// Clauses: SEND-13, RECV-9, SEND-R6.
#[test]
fn unsignalled_is_refused_on_an_endpoint_not_configured_for_it() {
    use CompletionFlags as F;
    let legal_recv = [NONE, F::EVD_THRESHOLD, F::SOLICITED_WAIT, F::UNSIGNALLED];
    for recv in legal_recv {
        for request in [NONE, F::EVD_THRESHOLD, F::UNSIGNALLED] {
            let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
                attr.recv_completion_flags = recv;
                attr.request_completion_flags = request;
                (attr.max_request_dtos, attr.max_recv_dtos) = (4, 4);
            }));
            pair.post_recv(B, EMPTY, 0, NONE).expect("posted");
            for (call, configured) in [(Call::Send, request), (Call::Recv, recv)] {
                let mut tries = vec![F::UNSIGNALLED];
                if call == Call::Send {
                    tries.push(F::UNSIGNALLED | F::SUPPRESS);
                }
                if configured == F::UNSIGNALLED {
                    call.post(&mut pair, EMPTY, F::UNSIGNALLED)
                        .expect("configured for it");
                    continue;
                }
                for flags in tries {
                    let error = refused(
                        call.post(&mut pair, EMPTY, flags),
                        ReturnType::InvalidParameter,
                    );
                    assert_eq!(
                        error.subtype(),
                        Subtype::Arg5,
                        "{call:?} with {recv:?} and {request:?}"
                    );
                }
            }
            if recv != F::UNSIGNALLED && request != F::UNSIGNALLED {
                pair.post_send(A, EMPTY, 0, NONE).expect("posted");
                let _sent = (pair.wait_request(A), pair.wait_recv(B));
                assert_untouched(&mut pair);
            }
        }
    }
}

/// Clauses: SEND-R2, SEND-R6.
#[test]
fn a_message_longer_than_max_message_size_is_refused() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_message_size = 100));
    let (from, to) = (pair.buffer(A, 4096), pair.buffer(B, 4096));
    let refusals: [&[LmrTriplet]; 4] = [
        &[from.part(0, 101)],
        &[from.all()],
        &[from.part(0, 100), from.part(0, 1)],
        &[from.part(0, 51), from.part(0, 0), from.part(51, 50)],
    ];
    for iov in refusals {
        Call::Send.refused(&mut pair, iov, ReturnType::InvalidParameter, Subtype::None);
    }
    assert_untouched(&mut pair);
    for iov in [
        &[from.part(0, 100)][..],
        &[from.part(0, 50), from.part(50, 50)],
    ] {
        pair.post_recv(B, &[to.all()], 1, NONE)
            .expect("a receive may be longer than any message");
        pair.post_send(A, iov, 2, NONE).expect("as long as allowed");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
        assert_eq!(pair.wait_recv(B).transferred_length, 100);
    }
}

/// Clauses: SEND-32, SEND-R6.
#[test]
fn a_refused_send_takes_no_receive_and_leaves_earlier_ones_alone() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(100);
    pair.post_send(A, &[from.part(0, 10)], 1, NONE)
        .expect("posted");
    let bad = LmrTriplet {
        segment_length: 65,
        ..from.all()
    };
    Call::Send.refused(
        &mut pair,
        &[from.all(), bad],
        ReturnType::InvalidParameter,
        Subtype::Arg3,
    );
    pair.post_recv(B, &[to.all()], 2, NONE).expect("posted");
    pair.post_send(A, &[from.part(0, 20)], 2, NONE)
        .expect("posted");
    for (cookie, bytes) in [(1, 10), (2, 20)] {
        let sent = pair.wait_request(A);
        assert_eq!((sent.cookie.0, sent.transferred_length), (cookie, bytes));
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.transferred_length),
            (cookie, bytes)
        );
    }
    assert_untouched(&mut pair);
}

fn slice(pair: &Pair, buffer: &Buffer) -> udapl::memory::LmrSlice {
    slice_of(pair, A, buffer)
}

fn slice_of(pair: &Pair, side: usize, buffer: &Buffer) -> udapl::memory::LmrSlice {
    pair.sides[side]
        .ia
        .lmr_slice(buffer.lmr.lmr, 0, buffer.bytes as u64)
        .expect("a slice")
}
