//! Memory that `ep_post_rdma_read` and `ep_post_rdma_write` refuse: locally by an error of the call, at the peer by a
//! completion and the end of the connection.

use udapl::error::{ReturnType, Subtype};
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::{CompletionFlags, ConnectionEventKind, DtoStatus, MemPrivFlags};

use crate::support::rdma::{BOTH, Rdma, UNTOUCHED};
use crate::support::{A, B, Buffer, NONE, Pair, pattern, refused};

impl Rdma {
    /// Returns the right that the operation's local memory needs.
    fn local_right(self) -> MemPrivFlags {
        match self {
            Self::Read => MemPrivFlags::LOCAL_WRITE,
            Self::Write => MemPrivFlags::LOCAL_READ,
        }
    }

    /// Returns the right that the operation's remote memory needs.
    fn remote_right(self) -> MemPrivFlags {
        match self {
            Self::Read => MemPrivFlags::REMOTE_READ,
            Self::Write => MemPrivFlags::REMOTE_WRITE,
        }
    }

    /// Returns the remote range of an operation: 64 bytes for a read, the whole buffer for a write.
    fn range(self, remote: &Buffer) -> RmrTriplet {
        match self {
            Self::Read => remote.remote(0, 64),
            Self::Write => remote.remote(0, remote.bytes),
        }
    }
}

/// Clauses: READ-27, WRITE-16.
#[test]
fn a_segment_outside_its_lmr_is_the_third_argument() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let (local, remote) = (pair.untouched(A, 4_096), pair.untouched(B, 8_192));
        let start = local.lmr.registered_address;
        let ranges = [
            (start - 1, 64),
            (start - 64, 64),
            (start + 4_096 - 63, 64),
            (start + 4_096, 1),
            (start, 4_097),
            (start + 64, u64::MAX),
            (start, u64::MAX - start + 1),
            (u64::MAX, 64),
            (0, 64),
        ];
        for (virtual_address, segment_length) in ranges {
            let bad = LmrTriplet {
                virtual_address,
                segment_length,
                ..local.all()
            };
            let good = local.part(0, 64);
            for iov in [&[bad][..], &[good, bad], &[bad, good]] {
                let posted = rdma.post(&mut pair, A, iov, 1, &rdma.range(&remote), NONE);
                let error = refused(posted, ReturnType::InvalidParameter);
                assert_eq!(error.subtype(), Subtype::Arg3, "{rdma:?}, {bad:x?}");
            }
        }
        pair.expect_idle(A);
        assert_eq!(local.read(0, 4_096), vec![UNTOUCHED; 4_096]);
        assert_eq!(remote.read(0, 8_192), vec![UNTOUCHED; 8_192]);
        for (at, bytes) in [(0, 1), (4_095, 1), (0, 4_096)] {
            let (part, whole) = (local.part(at, bytes), remote.remote(0, bytes));
            rdma.post(&mut pair, A, &[part], 2, &whole, NONE)
                .expect("up to the last byte");
            pair.expect_request(A, 2, DtoStatus::Success);
        }
    }
}

/// Clauses: READ-29, WRITE-18.
#[test]
fn a_local_lmr_of_another_zone_is_a_protection_violation() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let (good, remote) = (pair.buffer(A, 64), pair.untouched(B, 128));
        let elsewhere = pair.sides[A].ia.pz_create().expect("a PZ");
        let foreign = pair.buffer_in(A, 64, elsewhere, MemPrivFlags::all());
        for iov in [&[foreign.all()][..], &[good.all(), foreign.part(0, 1)]] {
            let posted = rdma.post(&mut pair, A, iov, 1, &rdma.range(&remote), NONE);
            refused(posted, ReturnType::ProtectionViolation);
        }
        pair.expect_idle(A);
        assert_eq!(remote.read(0, 128), vec![UNTOUCHED; 128]);
        let iov = [foreign.part(0, 0), good.all()];
        rdma.post(&mut pair, A, &iov, 2, &rdma.range(&remote), NONE)
            .expect("of an empty segment nothing is looked at");
        pair.expect_request(A, 2, DtoStatus::Success);
    }
}

/// Clauses: READ-30, WRITE-19.
#[test]
fn a_local_lmr_that_is_gone_or_lacks_the_right_is_a_privileges_violation() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let (good, remote) = (pair.buffer(A, 64), pair.filled(B, 3, 64));
        let pz = pair.sides[A].pz;
        let rights = MemPrivFlags::all() - rdma.local_right();
        let powerless = pair.buffer_in(A, 64, pz, rights);
        let range = remote.remote(0, 64);
        let posted = rdma.post(&mut pair, A, &[powerless.all()], 1, &range, NONE);
        let error = refused(posted, ReturnType::PrivilegesViolation);
        let subtype = match rdma {
            Rdma::Read => Subtype::PrivilegesWrite,
            Rdma::Write => Subtype::PrivilegesRead,
        };
        assert_eq!(error.subtype(), subtype);
        let freed = pair.buffer(A, 64);
        pair.sides[A].ia.lmr_free(freed.lmr.lmr).expect("freed");
        let unknown = LmrTriplet {
            lmr_context: 0xffff_ff00,
            ..good.all()
        };
        let stale = LmrTriplet {
            lmr_context: good.lmr.lmr_context ^ 1,
            ..good.all()
        };
        for bad in [freed.all(), unknown, stale] {
            for iov in [&[bad][..], &[good.part(0, 32), bad]] {
                let posted = rdma.post(&mut pair, A, iov, 1, &range, NONE);
                refused(posted, ReturnType::PrivilegesViolation);
            }
        }
        pair.expect_idle(A);
        assert_eq!(remote.read(0, 64), pattern(3, 64));
        let able = pair.buffer_in(A, 64, pz, rdma.local_right());
        able.write(0, &pattern(4, 64));
        rdma.post(&mut pair, A, &[able.all()], 2, &range, NONE)
            .expect("that one right is all it takes");
        pair.expect_request(A, 2, DtoStatus::Success);
        assert_eq!(able.read(0, 64), remote.read(0, 64));
    }
}

/// Clauses: READ-30, WRITE-19.
#[test]
fn a_local_lmr_that_is_freed_under_an_operation_fails_it() {
    for rdma in BOTH {
        let mut pair = Pair::connected();
        let (good, local) = (pair.buffer(A, 64), pair.untouched(A, 64));
        let remote = pair.filled(B, 6, 64);
        let before = remote.read(0, 64);
        pair.set_delay(50);
        // The operation is fenced behind a read, so it has not accessed memory yet.
        pair.post_read(A, &[good.all()], 1, &remote.remote(0, 64), NONE)
            .expect("posted");
        let fence = CompletionFlags::BARRIER_FENCE;
        rdma.post(
            &mut pair,
            A,
            &[local.all()],
            2,
            &remote.remote(0, 64),
            fence,
        )
        .expect("posted");
        pair.sides[A].ia.lmr_free(local.lmr.lmr).expect("freed");
        pair.expect_request(A, 1, DtoStatus::Success);
        pair.expect_request(A, 2, DtoStatus::ErrLocalProtection);
        pair.expect_connection(A, ConnectionEventKind::Broken);
        assert_eq!(local.read(0, 64), vec![UNTOUCHED; 64], "{rdma:?}");
        assert_eq!(remote.read(0, 64), before, "{rdma:?}");
        pair.assert_no_complaints();
    }
}

/// Clauses: READ-R4, WRITE-R3.
#[test]
fn segments_and_bytes_are_limited_by_the_attributes() {
    for rdma in BOTH {
        let mut pair = Pair::shaped(|_, attr| {
            (attr.max_request_iov, attr.max_rdma_size) = (3, 4_096);
        });
        let (local, remote) = (pair.buffer(A, 8_192), pair.buffer(B, 8_192));
        let one = local.part(0, 1);
        let posted = rdma.post(&mut pair, A, &[one; 4], 1, &remote.remote(0, 4), NONE);
        let error = refused(posted, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg2, "{rdma:?}: max_request_iov");
        let long = [local.part(0, 4_096), one];
        let posted = rdma.post(&mut pair, A, &long, 1, &remote.remote(0, 4_097), NONE);
        refused(posted, ReturnType::InvalidParameter);
        pair.expect_idle(A);
        rdma.post(&mut pair, A, &[one; 3], 2, &remote.remote(0, 3), NONE)
            .expect("three segments");
        pair.expect_request(A, 2, DtoStatus::Success);
        // The limit applies to the bytes that are moved, not to the size of the segments or of the remote buffer.
        let (iov, room) = match rdma {
            Rdma::Read => (local.all(), 4_096),
            Rdma::Write => (local.part(0, 4_096), 8_192),
        };
        rdma.post(&mut pair, A, &[iov], 3, &remote.remote(0, room), NONE)
            .expect("as many bytes as may be");
        pair.expect_request(A, 3, DtoStatus::Success);

        // The operation's own limit replaces max_request_iov, whether larger or smaller.
        for (own, other) in [(5, 2), (2, 5)] {
            let mut pair = Pair::shaped(|_, attr| {
                attr.max_request_iov = other;
                match rdma {
                    Rdma::Read => attr.max_rdma_read_iov = own,
                    Rdma::Write => attr.max_rdma_write_iov = own,
                }
            });
            let (local, remote) = (pair.buffer(A, 64), pair.buffer(B, 64));
            let own = own as usize;
            let parts: Vec<LmrTriplet> = (0..=own).map(|at| local.part(at * 10, 2)).collect();
            let whole = remote.remote(0, 2 * (own + 1));
            let posted = rdma.post(&mut pair, A, &parts, 1, &whole, NONE);
            refused(posted, ReturnType::InvalidParameter);
            let range = remote.remote(0, 2 * own);
            rdma.post(&mut pair, A, &parts[..own], 2, &range, NONE)
                .expect("as many segments as may be");
            pair.expect_request(A, 2, DtoStatus::Success);
        }
    }
}

/// Posts an operation on memory to which B must refuse access. Checks that the operation completes with
/// ERR_REMOTE_ACCESS, that the connection breaks, and that the memory does not change. `target` creates the memory and
/// its triplet.
fn expect_remote_refusal(
    rdma: Rdma,
    what: &str,
    target: impl Fn(&mut Pair) -> (Buffer, RmrTriplet),
) {
    let mut pair = Pair::connected();
    let (local, other) = (pair.filled(A, 5, 8_192), pair.buffer(B, 4_096));
    other.write(0, &pattern(5, 8_192)[..4_096]);
    let (meant, bad) = target(&mut pair);
    let before = meant.read(0, meant.bytes);
    pair.set_delay(20);
    let good = other.remote(0, 4_096);
    let (first, tail) = (local.part(0, 4_096), local.part(4_096, 64));
    rdma.post(&mut pair, A, &[first], 1, &good, NONE)
        .expect("posted");
    rdma.post(&mut pair, A, &[tail], 2, &bad, NONE)
        .unwrap_or_else(|error| panic!("{rdma:?}, {what}: only B can know, not {error}"));
    rdma.post(&mut pair, A, &[first], 3, &good, NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    let done = pair.wait_request(A);
    assert_eq!(
        (done.cookie.0, done.status),
        (2, DtoStatus::ErrRemoteAccess),
        "{rdma:?}, {what}"
    );
    assert_ne!(done.syndrome(), (0, 0), "the device says why");
    pair.expect_request(A, 3, DtoStatus::ErrFlushed);
    pair.expect_broken();
    pair.expect_idle(A);
    assert_eq!(meant.read(0, meant.bytes), before, "{rdma:?}, {what}");
    // The contents of a failed read's segment are undefined. The bytes around the segment must not change.
    let data = pattern(5, 8_192);
    assert!(local.read(0, 4_096) == data[..4_096], "{rdma:?}, {what}");
    assert!(
        local.read(4_160, 4_032) == data[4_160..],
        "{rdma:?}, {what}"
    );
    assert!(other.read(0, 4_096) == data[..4_096], "{rdma:?}, {what}");
    pair.assert_no_complaints();
}

/// Clauses: READ-29, READ-R7, WRITE-18, WRITE-R5.
#[test]
fn a_remote_buffer_in_another_zone_than_the_remote_endpoint_breaks_the_connection() {
    for rdma in BOTH {
        expect_remote_refusal(rdma, "another zone", |pair| {
            let elsewhere = pair.sides[B].ia.pz_create().expect("a PZ");
            let memory = pair.buffer_in(B, 64, elsewhere, MemPrivFlags::all());
            let remote = memory.remote(0, 64);
            (memory, remote)
        });
    }
}

/// Clauses: READ-30, READ-R7, WRITE-19, WRITE-R5.
#[test]
fn a_remote_buffer_without_the_right_breaks_the_connection() {
    for rdma in BOTH {
        expect_remote_refusal(rdma, "no right", |pair| {
            let (pz, rights) = (pair.sides[B].pz, MemPrivFlags::all() - rdma.remote_right());
            let memory = pair.buffer_in(B, 64, pz, rights);
            let remote = memory.remote(0, 64);
            (memory, remote)
        });
    }
}

/// A remote buffer that does not exist, or does not lie inside its region, breaks the connection.
///
/// Clauses: READ-R7, READ-R8, WRITE-R5.
#[test]
fn a_remote_buffer_that_is_not_or_not_there_breaks_the_connection() {
    for rdma in BOTH {
        let moved = |what: &str, change: fn(RmrTriplet) -> RmrTriplet| {
            expect_remote_refusal(rdma, what, |pair| {
                let memory = pair.untouched(B, 4_096);
                let remote = change(memory.remote(0, 64));
                (memory, remote)
            });
        };
        moved("no such context", |good| RmrTriplet {
            rmr_context: 0xffff_ff00,
            ..good
        });
        moved("another variant of the context", |good| RmrTriplet {
            rmr_context: good.rmr_context ^ 1,
            ..good
        });
        moved("one byte behind the end", |good| RmrTriplet {
            target_address: good.target_address + 4_096 - 63,
            ..good
        });
        moved("one byte before the start", |good| RmrTriplet {
            target_address: good.target_address - 1,
            ..good
        });
        moved("around the end of the address space", |good| RmrTriplet {
            target_address: u64::MAX - 8,
            ..good
        });
        expect_remote_refusal(rdma, "freed", |pair| {
            let memory = pair.untouched(B, 64);
            pair.sides[B].ia.lmr_free(memory.lmr.lmr).expect("freed");
            let remote = memory.remote(0, 64);
            (memory, remote)
        });
    }
}
