//! `lmr_sync_rdma_read` and `lmr_sync_rdma_write`, clause by clause.
//!
//! The supported platforms are cache-coherent with the device, so consumers need not call these functions. The calls
//! check all their arguments, and order the CPU's accesses. An invalid IA handle cannot be expressed, because the IA is
//! a reference. Instead the tests check that an IA accepts only its own LMRs.

use udapl::error::{ReturnType, Subtype};
use udapl::memory::LmrTriplet;
use udapl::{CompletionFlags, DatError, DtoStatus, MemPrivFlags};

use crate::support::rdma::UNTOUCHED;
use crate::support::{A, B, Buffer, NONE, Pair, pattern, refused};

/// Calls `lmr_sync_rdma_read` and `lmr_sync_rdma_write`, which check their arguments alike.
fn sync_both(pair: &Pair, side: usize, segments: &[LmrTriplet]) -> [Result<(), DatError>; 2] {
    let ia = &pair.sides[side].ia;
    [
        ia.lmr_sync_rdma_read(segments),
        ia.lmr_sync_rdma_write(segments),
    ]
}

/// Creates buffers of one side: five in each of three PZs, each with other rights.
fn mixed(pair: &mut Pair, side: usize) -> Vec<Buffer> {
    let rights = [
        MemPrivFlags::all(),
        MemPrivFlags::LOCAL_READ,
        MemPrivFlags::REMOTE_READ,
        MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_WRITE,
        MemPrivFlags::empty(),
    ];
    let zones = [
        pair.sides[side].pz,
        pair.sides[side].ia.pz_create().expect("a PZ"),
        pair.sides[side].ia.pz_create().expect("a PZ"),
    ];
    let buffers = zones
        .iter()
        .flat_map(|&zone| rights.map(|rights| (zone, rights)));
    buffers
        .map(|(zone, rights)| pair.buffer_in(side, 4_096, zone, rights))
        .collect()
}

/// Clauses: SYNC-3, SYNC-4, SYNC-9, SYNC-19, SYNC-20, SYNC-23, SYNC-24, SYNC-14, SYNC-R1.
#[test]
fn a_read_sees_what_was_stored_before_the_sync() {
    let mut pair = Pair::connected();
    assert!(
        !pair.sides[B].ia.query().provider.lmr_sync_req,
        "caches and device agree without being told"
    );
    let (source, sink) = (pair.untouched(B, 10_000), pair.buffer(A, 10_000));
    for round in 0..20 {
        let data = pattern(round, 10_000);
        source.write(0, &data);
        pair.sides[B]
            .ia
            .lmr_sync_rdma_read(&[source.all()])
            .expect("synchronised");
        // The sync is complete when the call returns: it causes no event and needs no time.
        pair.post_read(A, &[sink.all()], round, &source.remote(0, 10_000), NONE)
            .expect("posted");
        pair.expect_request(A, round, DtoStatus::Success);
        assert!(sink.read(0, 10_000) == data, "round {round}");
    }
}

/// Clauses: SYNCW-1, SYNCW-2, SYNCW-6, SYNCW-15, SYNCW-17, SYNCW-R1.
#[test]
fn loads_after_the_sync_see_what_a_write_placed() {
    let mut pair = Pair::connected();
    assert!(!pair.sides[B].ia.query().provider.lmr_sync_req);
    let (source, target) = (pair.buffer(A, 10_000), pair.untouched(B, 10_000));
    let note = pair.buffer(B, 8);
    for round in 0..20 {
        let data = pattern(round, 10_000);
        source.write(0, &data);
        pair.post_recv(B, &[note.all()], round, NONE)
            .expect("posted");
        pair.post_write(
            A,
            &[source.all()],
            round,
            &target.remote(0, 10_000),
            CompletionFlags::SUPPRESS,
        )
        .expect("posted");
        pair.post_send(A, &[source.part(0, 8)], round, NONE)
            .expect("posted");
        // The Send arrives after the RDMA Write, so its receive completion shows that the data are in place.
        pair.expect_recv(B, round, DtoStatus::Success);
        pair.sides[B]
            .ia
            .lmr_sync_rdma_write(&[target.all()])
            .expect("synchronised");
        assert!(target.read(0, 10_000) == data, "round {round}");
        // The consumer may write to the target. The peer's next RDMA Write overwrites these bytes.
        target.write(0, &[UNTOUCHED; 10_000]);
        pair.sides[B]
            .ia
            .lmr_sync_rdma_write(&[target.all()])
            .expect("synchronised");
        pair.expect_request(A, round, DtoStatus::Success);
    }
}

/// Clauses: SYNC-2, SYNC-10, SYNC-11, SYNC-12, SYNCW-7.
#[test]
fn one_call_may_name_many_ranges_of_many_lmrs_in_many_zones_with_any_rights() {
    let mut pair = Pair::connected();
    let buffers = mixed(&mut pair, B);
    let all: Vec<LmrTriplet> = buffers
        .iter()
        .flat_map(|buffer| {
            [
                buffer.part(0, 1),
                buffer.all(),
                buffer.part(100, 200),
                buffer.part(4_095, 1),
            ]
        })
        .collect();
    assert_eq!(all.len(), 60);
    assert_eq!(sync_both(&pair, B, &all), [Ok(()), Ok(())]);
    // A call may also name overlapping and repeated ranges.
    let twice = [all.as_slice(), all.as_slice()].concat();
    assert_eq!(sync_both(&pair, B, &twice), [Ok(()), Ok(())]);
}

/// Clauses: SYNC-10, SYNC-11, SYNC-9.
#[test]
fn one_sync_serves_the_reads_of_several_ranges() {
    let mut pair = Pair::connected();
    let sources: Vec<Buffer> = (0..4).map(|_| pair.untouched(B, 5_000)).collect();
    let sink = pair.buffer(A, 20_000);
    for (seed, source) in (0..).zip(&sources) {
        source.write(1_000, &pattern(seed, 3_000));
    }
    let ranges: Vec<LmrTriplet> = sources
        .iter()
        .map(|source| source.part(1_000, 3_000))
        .collect();
    pair.sides[B]
        .ia
        .lmr_sync_rdma_read(&ranges)
        .expect("synchronised");
    for (at, source) in sources.iter().enumerate() {
        let part = sink.part(at * 5_000, 3_000);
        pair.post_read(A, &[part], at as u64, &source.remote(1_000, 3_000), NONE)
            .expect("posted");
    }
    for at in 0..4 {
        pair.expect_request(A, at as u64, DtoStatus::Success);
        assert_eq!(sink.read(at * 5_000, 3_000), pattern(at as u64, 3_000));
    }
}

/// Clauses: SYNC-15, SYNCW-13.
#[test]
fn a_range_outside_its_lmr_is_an_invalid_parameter() {
    let mut pair = Pair::connected();
    let buffer = pair.buffer(B, 4_096);
    let start = buffer.lmr.registered_address;
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
            ..buffer.all()
        };
        for result in sync_both(&pair, B, &[bad]) {
            let error = refused(result, ReturnType::InvalidParameter);
            assert_eq!(error.subtype(), Subtype::Arg2, "{bad:x?}");
        }
    }
    for part in [buffer.all(), buffer.part(0, 1), buffer.part(4_095, 1)] {
        assert_eq!(sync_both(&pair, B, &[part]), [Ok(()), Ok(())]);
    }
}

/// Clauses: SYNC-1, SYNC-16, SYNCW-13.
#[test]
fn an_lmr_that_is_none_of_this_ia_is_an_invalid_parameter() {
    let mut pair = Pair::connected();
    let good = pair.buffer(B, 64);
    let freed = pair.buffer(B, 64);
    pair.sides[B].ia.lmr_free(freed.lmr.lmr).expect("freed");
    // A registers more LMRs than B has, so that A's last LMR has a context that B does not have.
    let foreign = (0..40).map(|_| pair.buffer(A, 64)).last().expect("forty");
    let contexts = [
        freed.lmr.lmr_context,
        good.lmr.lmr_context ^ 1,
        foreign.lmr.lmr_context,
        0,
        u32::MAX,
    ];
    for lmr_context in contexts {
        let bad = LmrTriplet {
            lmr_context,
            ..good.all()
        };
        for result in sync_both(&pair, B, &[bad]) {
            let error = refused(result, ReturnType::InvalidParameter);
            assert_eq!(error.subtype(), Subtype::Arg2, "{lmr_context:#x}");
        }
    }
    assert_eq!(sync_both(&pair, B, &[good.all()]), [Ok(()), Ok(())]);
    assert_eq!(sync_both(&pair, A, &[foreign.all()]), [Ok(()), Ok(())]);
}

/// Clauses: SYNC-R2, SYNCW-R1.
#[test]
fn no_segments_and_empty_segments_are_nothing_to_do() {
    let mut pair = Pair::connected();
    let buffer = pair.buffer(B, 64);
    let garbage = LmrTriplet {
        lmr_context: 0xdead_beef,
        virtual_address: u64::MAX,
        segment_length: 0,
    };
    let outside = LmrTriplet {
        virtual_address: buffer.lmr.registered_address + 1_000,
        ..buffer.part(0, 0)
    };
    let cases: [&[LmrTriplet]; 4] = [
        &[],
        &[garbage; 5],
        &[outside],
        &[garbage, buffer.all(), outside, buffer.part(3, 0)],
    ];
    for segments in cases {
        assert_eq!(
            sync_both(&pair, B, segments),
            [Ok(()), Ok(())],
            "{segments:x?}"
        );
    }
}

/// Clauses: SYNC-R3, SYNC-R2, SYNCW-R1.
#[test]
fn a_bad_segment_fails_the_call_wherever_it_stands() {
    let mut pair = Pair::connected();
    let good = pair.buffer(B, 64);
    let bad = LmrTriplet {
        segment_length: 65,
        ..good.all()
    };
    for at in 0..10 {
        let mut segments = [good.all(); 10];
        segments[at] = bad;
        for result in sync_both(&pair, B, &segments) {
            refused(result, ReturnType::InvalidParameter);
        }
    }
}

/// Clauses: SYNC-20, SYNCW-15, SYNC-R1, SYNCW-R1.
#[test]
fn a_sync_is_done_on_return_and_asks_the_device_for_nothing() {
    let mut pair = Pair::connected();
    let buffer = pair.filled(B, 7, 4_096);
    let before = (pair.now(), pair.fabric.sim.event_log().len());
    for _ in 0..10 {
        assert_eq!(sync_both(&pair, B, &[buffer.all()]), [Ok(()), Ok(())]);
    }
    let after = (pair.now(), pair.fabric.sim.event_log().len());
    assert_eq!(before, after);
    assert_eq!(
        buffer.read(0, 4_096),
        pattern(7, 4_096),
        "the memory is as it was"
    );
    let async_evd = pair.sides[B].ia.async_evd();
    pair.expect_nothing(B, async_evd);
}
