//! Send queues: WQE bytes, doorbells, completions and wrapping.

use hw_mlx::completion::Status;
use hw_mlx::cq::Tail;
use hw_mlx::qp::{SendQueue, SendSizes};
use hw_mlx::ring::RingMemory;
use hw_mlx::wqe::AddressVector;
use rdma_types::{DataSegment, InlineError, Qpn, QueueFull, RequestFlags, RequestOp};

use super::double::Bench;

const QPN: u32 = 0x12_3456;
const REPORTED: RequestFlags = RequestFlags {
    suppress: false,
    solicited: false,
    fence: false,
    unsignalled: false,
};
const SUPPRESSED: RequestFlags = RequestFlags {
    suppress: true,
    ..REPORTED
};
const WRITE: RequestOp = RequestOp::RdmaWrite {
    address: 0x1112_1314_1516_1718,
    rmr_context: 0x2122_2324,
};

fn segment(n: u32) -> DataSegment {
    DataSegment {
        lmr_context: 0xa000_0000 + n,
        address: 0xb000_0000_0000_0000 + u64::from(n),
        bytes: 0x100 + n,
    }
}

fn segments(count: u32) -> impl Iterator<Item = DataSegment> + Clone {
    (0..count).map(segment)
}

struct Fixture {
    bench: Bench,
    memory: RingMemory,
    queue: SendQueue,
    ring_bytes: usize,
}

/// Returns a queue whose ring starts 256 bytes into its buffer.
fn queue(max_requests: u32, max_segments: u32) -> Fixture {
    const BASE: usize = 256;
    let bench = Bench::new();
    let sizes = SendSizes::new(max_requests, max_segments, 1).unwrap();
    let memory = bench.memory(BASE + sizes.bytes());
    let queue = SendQueue::new(
        sizes,
        &memory.ring,
        BASE,
        &memory.record,
        &bench.doorbells,
        QPN,
    );
    Fixture {
        bench,
        memory,
        queue,
        ring_bytes: sizes.bytes(),
    }
}

impl Fixture {
    fn ring_iova(&self) -> u64 {
        self.memory.ring.iova().0 + 256
    }

    fn ring(&self) -> Vec<u8> {
        self.bench.device.read(self.ring_iova(), self.ring_bytes)
    }

    fn send_counter(&self) -> u32 {
        self.memory.record.load_be32(4)
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|d| u8::try_from(d).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// An RDMA Write has the bytes of the manual. They were computed by hand from PRM "WQE format", in the field order of
/// rdma-core's mlx5dv.h.
#[test]
fn an_rdma_write_has_the_bytes_of_the_manual() {
    let mut f = queue(4, 2);
    f.queue.post(WRITE, segments(1), 7, REPORTED).unwrap();
    let expected = hex("00 0000 08  123456 03  00 0000 08  00000000   \
         1112131415161718 21222324 00000000            \
         00000100 a0000000 b000000000000000");
    assert_eq!(f.ring()[..48], expected);
}

#[test]
fn a_send_has_the_bytes_of_the_manual_with_fence_and_solicited_bits() {
    let mut f = queue(4, 2);
    f.queue
        .post(
            RequestOp::Send,
            segments(2),
            7,
            RequestFlags {
                solicited: true,
                fence: true,
                ..REPORTED
            },
        )
        .unwrap();
    let expected = hex("00 0000 0a  123456 03  00 0000 8a  00000000   \
         00000100 a0000000 b000000000000000            \
         00000101 a0000001 b000000000000001");
    assert_eq!(f.ring()[..48], expected);
}

#[test]
fn an_rdma_read_has_the_bytes_of_the_manual_and_its_own_index() {
    let mut f = queue(4, 2);
    f.queue
        .post(RequestOp::Send, segments(0), 1, REPORTED)
        .unwrap();
    f.queue
        .post(
            RequestOp::RdmaRead {
                address: 0x1000,
                rmr_context: 0x77,
            },
            segments(1),
            2,
            SUPPRESSED,
        )
        .unwrap();
    let ring = f.ring();
    // A Send without data consists of a control segment only.
    assert_eq!(
        ring[..16],
        hex("00 0000 0a  123456 01  00 0000 08  00000000")
    );
    // The next WQE has index 1. `reclaim_every` is a quarter of four requests, that is 1, so the WQE asks for a CQE
    // although the request is suppressed.
    let expected = hex("00 0001 10  123456 03  00 0000 08  00000000   \
         0000000000001000 00000077 00000000            \
         00000100 a0000000 b000000000000000");
    assert_eq!(ring[64..112], expected);
}

/// Requests that DAT does not have are encoded as in the manual (opcodes of PRM "WQE format"). The last word of the
/// control segment is immediate data or a key. An atomic operation has its operands between the remote address and the
/// one local segment, and fills one block (`_set_atomic_seg` in providers/mlx5/qp.c of rdma-core).
#[test]
fn requests_beyond_dat_have_the_bytes_of_the_manual() {
    let (address, rmr_context) = (0x1112_1314_1516_1718, 0x2122_2324);
    let remote = "1112131415161718 21222324 00000000";
    let local = "00000100 a0000000 b000000000000000";
    let cases = [
        (
            RequestOp::SendImmediate(0x0102_0304),
            format!("00 0000 0b  123456 02  00 0000 08  01020304 {local}"),
        ),
        (
            RequestOp::SendInvalidate { rmr_context },
            format!("00 0000 01  123456 02  00 0000 08  21222324 {local}"),
        ),
        (
            RequestOp::RdmaWriteImmediate {
                address,
                rmr_context,
                immediate: 0x0102_0304,
            },
            format!("00 0000 09  123456 03  00 0000 08  01020304 {remote} {local}"),
        ),
        (
            RequestOp::CompareSwap {
                address,
                rmr_context,
                compare: 0x3132_3334_3536_3738,
                swap: 0x4142_4344_4546_4748,
            },
            format!(
                "00 0000 11  123456 04  00 0000 08  00000000 {remote} 4142434445464748 3132333435363738 {local}"
            ),
        ),
        (
            RequestOp::FetchAdd {
                address,
                rmr_context,
                add: 0x4142_4344_4546_4748,
            },
            format!(
                "00 0000 12  123456 04  00 0000 08  00000000 {remote} 4142434445464748 0000000000000000 {local}"
            ),
        ),
    ];
    for (op, expected) in cases {
        let mut f = queue(4, 2);
        f.queue.post(op, segments(1), 7, REPORTED).unwrap();
        let expected = hex(&expected);
        assert_eq!(f.ring()[..expected.len()], expected, "{op:?}");
        assert_eq!(f.send_counter(), 1, "{op:?}: one block");
        // Without segments, the same WQE is written unit by unit, as for lists of segments.
        let mut f = queue(4, 2);
        f.queue.post(op, segments(0), 7, REPORTED).unwrap();
        let (ring, units) = (f.ring(), expected.len() / 16 - 1);
        let mut short = expected[..16 * units].to_vec();
        short[7] = u8::try_from(units).unwrap();
        assert_eq!(ring[..16 * units], short, "{op:?}");
    }
}

#[test]
fn inline_data_follows_its_header_and_is_counted_in_units() {
    let mut f = queue(4, 2);
    f.queue
        .post_inline(RequestOp::Send, b"0123456789abcdef!", 7, REPORTED)
        .unwrap();
    let ring = f.ring();
    assert_eq!(
        ring[..16],
        hex("00 0000 0a  123456 03  00 0000 08  00000000")
    );
    assert_eq!(ring[16..20], hex("80000011"));
    assert_eq!(&ring[20..37], b"0123456789abcdef!");
    let limit = f.queue.inline_limit(RequestOp::Send);
    assert_eq!(limit, 64 - 16 - 4);
    let refused = f.queue.post_inline(RequestOp::Send, &[0; 45], 7, REPORTED);
    assert_eq!(refused, Err(InlineError::TooLong { bytes: 45, limit }));
    assert_eq!(f.queue.post_inline(WRITE, &[0xee; 28], 8, REPORTED), Ok(()));
    assert_eq!(f.queue.outstanding(), 2);
}

#[test]
fn a_datagram_has_its_address_vector_before_its_data() {
    let mut f = queue(4, 3);
    let to = AddressVector {
        priority: 0,
        q_key: 0x8001_0000,
        qpn: Qpn::GSI,
        udp_source_port: 0xc000,
        mac: [1, 2, 3, 4, 5, 6],
        traffic_class: 0,
        hop_limit: 64,
        source_gid_index: 0,
        flow_label: 0,
        gid: [0xfe; 16],
    };
    f.queue.post_datagram(&to, segment(0), 3).unwrap();
    let expected = hex("00 0000 0a  123456 05  00 0000 08  00000000   \
         80010000 00000000  80000001 0000 c000          \
         00000000 01020304  0506 00 40 40000000         \
         fefefefefefefefe fefefefefefefefe              \
         00000100 a0000000 b000000000000000");
    assert_eq!(f.ring()[..80], expected);
    assert_eq!(f.send_counter(), 2, "two blocks");
}

/// When the register is written, the doorbell record and the WQE are already in memory. The register is written once.
#[test]
fn the_register_is_written_once_after_record_and_wqe() {
    let mut f = queue(4, 2);
    f.bench.device.watch(f.ring_iova(), 48);
    f.bench.device.watch(f.memory.record.iova().0 + 4, 4);
    f.queue.post(WRITE, segments(1), 7, REPORTED).unwrap();
    let wqe = f.ring()[..48].to_vec();
    let told = f.bench.device.take_writes();
    assert_eq!(told.len(), 1, "one write of the whole register");
    assert_eq!(told[0].offset, 0x800);
    assert_eq!(
        told[0].bytes,
        wqe[..8],
        "the first eight bytes of the control segment, as in memory"
    );
    assert_eq!(told[0].seen, [wqe, hex("00000001")]);
}

#[test]
fn a_wqe_continues_at_the_start_of_the_ring_between_two_units() {
    // A WQE has at most 6 units, so two blocks. Four requests need a ring of eight blocks.
    let mut f = queue(4, 4);
    for _ in 0..7 {
        f.queue
            .post(RequestOp::Send, segments(0), 0, REPORTED)
            .unwrap();
        let index = u16::try_from(f.send_counter()).unwrap() - 1;
        f.queue.complete(index, None).unwrap();
    }
    f.queue.post(WRITE, segments(4), 9, REPORTED).unwrap();
    let ring = f.ring();
    assert_eq!(ring[7 * 64..][..8], hex("00 0007 08  123456 06"));
    assert_eq!(
        ring[7 * 64 + 48..][..16],
        hex("00000101 a0000001 b000000000000001"),
        "the last unit of the last block"
    );
    assert_eq!(
        ring[..16],
        hex("00000102 a0000002 b000000000000002"),
        "the first unit of the first"
    );
    assert_eq!(ring[16..32], hex("00000103 a0000003 b000000000000003"));
    assert_eq!(f.send_counter(), 9);
    assert_eq!(f.queue.complete(7, None).unwrap().cookie, 9);
}

#[test]
fn inline_data_continues_at_the_start_of_the_ring_too() {
    let mut f = queue(4, 4);
    for _ in 0..7 {
        f.queue
            .post(RequestOp::Send, segments(0), 0, REPORTED)
            .unwrap();
        f.queue
            .complete(u16::try_from(f.send_counter()).unwrap() - 1, None)
            .unwrap();
    }
    let data: Vec<u8> = (0..60).collect();
    f.queue
        .post_inline(RequestOp::Send, &data, 9, REPORTED)
        .unwrap();
    let ring = f.ring();
    let mut stored = ring[7 * 64 + 20..].to_vec();
    stored.extend_from_slice(&ring[..16]);
    assert_eq!(stored, data);
}

#[test]
fn exactly_max_requests_fit_whatever_their_size() {
    for max in [1, 2, 3, 5, 8, 100] {
        let mut f = queue(max, 10);
        for n in 0..max {
            assert_eq!(
                f.queue.post(WRITE, segments(10), u64::from(n), REPORTED),
                Ok(()),
                "{n} of {max}"
            );
        }
        let before = (f.ring(), f.send_counter());
        f.bench.device.take_writes();
        assert_eq!(
            f.queue.post(WRITE, segments(1), 99, REPORTED),
            Err(QueueFull)
        );
        assert_eq!(
            f.queue.post_inline(RequestOp::Send, b"x", 99, REPORTED),
            Err(InlineError::Full)
        );
        assert_eq!((f.ring(), f.send_counter()), before, "nothing was written");
        assert_eq!(f.bench.device.take_writes(), []);
        // One completion frees the slot of one request.
        assert_eq!(f.queue.complete(0, None).unwrap().cookie, 0);
        assert_eq!(f.queue.post(WRITE, segments(10), 99, REPORTED), Ok(()));
        assert_eq!(
            f.queue.post(WRITE, segments(1), 99, REPORTED),
            Err(QueueFull)
        );
    }
}

/// Returns whether the WQE at a block asks for a CQE in every case (bits 3:2 of byte 0x0b are 2).
fn signalled(f: &Fixture, index: u16) -> bool {
    let block = u64::from(index) & (f.ring_bytes as u64 / 64 - 1);
    f.bench.device.read(f.ring_iova() + block * 64 + 0x0b, 1)[0] & 0x0c == 0x08
}

/// A queue with suppressed requests only never stays full, even if the device writes only the CQEs that it was asked
/// for. The test runs until the indices have wrapped.
#[test]
fn a_queue_of_suppressed_requests_never_wedges() {
    for max in [1_u32, 2, 3, 4, 7, 64] {
        let mut f = queue(max, 1);
        let mut device_next = 0_u16;
        let mut producer = 0_u16;
        for n in 0..70_000_u64 {
            if f.queue
                .post(RequestOp::Send, segments(1), n, SUPPRESSED)
                .is_err()
            {
                // The device processes the ring, and writes a CQE for each WQE that asks for one.
                let mut reported = 0;
                while device_next != producer {
                    if signalled(&f, device_next) {
                        assert_eq!(
                            f.queue.complete(device_next, None),
                            None,
                            "a suppressed success is hidden"
                        );
                        reported += 1;
                    }
                    device_next = device_next.wrapping_add(1);
                }
                assert!(reported > 0, "wedged at {n} with {max}");
                f.queue
                    .post(RequestOp::Send, segments(1), n, SUPPRESSED)
                    .unwrap();
            }
            producer = producer.wrapping_add(1);
        }
        assert_eq!(f.queue.unmatched_entries(), 0);
    }
}

#[test]
fn a_completion_finishes_the_suppressed_requests_before_it() {
    let mut f = queue(16, 1);
    for n in 0..3 {
        f.queue
            .post(RequestOp::Send, segments(1), n, SUPPRESSED)
            .unwrap();
    }
    f.queue
        .post(
            WRITE,
            segments(1),
            3,
            RequestFlags {
                unsignalled: true,
                ..REPORTED
            },
        )
        .unwrap();
    f.queue
        .post(RequestOp::Send, segments(1), 4, SUPPRESSED)
        .unwrap();
    assert_eq!(
        (0..5).map(|index| signalled(&f, index)).collect::<Vec<_>>(),
        [false, false, false, true, false]
    );
    let completion = f.queue.complete(3, None).unwrap();
    assert_eq!(
        (completion.cookie, completion.status, completion.transferred),
        (3, Status::Success, 0x100)
    );
    assert!(completion.unsignalled && completion.request && !completion.solicited);
    assert_eq!(f.queue.outstanding(), 1);
}

/// Returns the tail of the CQE that completes the WQE at block `index`.
fn done(index: u16) -> Tail {
    Tail::of_request(QPN, index, false)
}

/// `complete_plain` completes only reported successes of outstanding requests. For other entries it changes nothing.
#[test]
fn only_reported_successes_of_outstanding_requests_are_plain() {
    let mut f = queue(16, 1);
    for (n, flags) in (0..).zip([REPORTED, SUPPRESSED, SUPPRESSED, REPORTED]) {
        f.queue.post(WRITE, segments(1), n, flags).unwrap();
    }
    assert_eq!(f.queue.complete_plain(done(1)), None, "suppressed");
    assert_eq!(f.queue.complete_plain(done(4)), None, "not posted");
    assert_eq!(f.queue.complete_plain(done(16)), None, "another lap");
    assert_eq!(f.queue.outstanding(), 4);
    assert_eq!(f.queue.complete_plain(done(0)), Some((0, 0x100)));
    assert_eq!(f.queue.outstanding(), 3);
    assert_eq!(f.queue.complete_plain(done(0)), None, "done");
    assert_eq!(f.queue.complete_plain(done(3)), None, "over two");
    for (index, why) in [(1, "suppressed"), (4, "not posted"), (0, "done")] {
        let completed = f.queue.complete_behind_suppressed(done(index));
        assert_eq!(completed, None, "{why}");
    }
    assert_eq!(f.queue.outstanding(), 3);
    let completed = f.queue.complete_behind_suppressed(done(3));
    assert_eq!(completed, Some((3, 0x100)));
    assert_eq!(f.queue.outstanding(), 0);
    for index in 0..32 {
        assert_eq!(
            f.queue.complete_plain(done(index)),
            None,
            "nothing outstanding"
        );
    }
    assert_eq!(
        f.queue.unmatched_entries(),
        0,
        "that is for `complete` to say"
    );
    let unsignalled = RequestFlags {
        unsignalled: true,
        ..REPORTED
    };
    f.queue.post(WRITE, segments(1), 9, unsignalled).unwrap();
    assert_eq!(f.queue.complete_plain(done(4)), Some((9, 0x100)));
}

#[test]
fn a_failed_request_is_reported_even_when_suppressed() {
    let mut f = queue(8, 1);
    f.queue
        .post(RequestOp::Send, segments(1), 0, SUPPRESSED)
        .unwrap();
    f.queue
        .post(RequestOp::Send, segments(1), 1, SUPPRESSED)
        .unwrap();
    let completion = f.queue.complete(0, Some((0x15, 0x81))).unwrap();
    assert_eq!(
        (
            completion.cookie,
            completion.status,
            completion.detail.syndrome()
        ),
        (0, Status::TransportRetryExceeded, (0x15, 0x81))
    );
    let completion = f.queue.complete(1, Some((0x05, 0xf9))).unwrap();
    assert_eq!((completion.cookie, completion.status), (1, Status::Flushed));
    assert_eq!(f.queue.outstanding(), 0);
}

#[test]
fn counters_that_name_no_outstanding_request_are_ignored_and_counted() {
    let mut f = queue(8, 4);
    assert_eq!(f.queue.complete(0, None), None, "nothing was posted");
    f.queue.post(WRITE, segments(4), 1, REPORTED).unwrap();
    f.queue.post(WRITE, segments(4), 2, REPORTED).unwrap();
    let hostile = [1, 3, 4, 17, 0x8003, 0xffff];
    for index in hostile {
        assert_eq!(
            f.queue.complete(index, None),
            None,
            "{index:#x}: the middle of a WQE, or none"
        );
    }
    assert_eq!(f.queue.complete(2, None).unwrap().cookie, 2);
    assert_eq!(f.queue.complete(2, None), None, "done already");
    assert_eq!(f.queue.complete(0, None), None, "done by the later one");
    assert_eq!(f.queue.outstanding(), 0);
    assert_eq!(f.queue.unmatched_entries(), 3 + hostile.len() as u64);
}

/// If the device reports a request while an earlier request is outstanding, the earlier one is completed too. A later
/// CQE of the earlier request then completes nothing.
#[test]
fn an_entry_of_a_request_that_was_passed_over_completes_nothing() {
    let entry = |block| Tail::of_request(QPN, block, false);
    for later in [
        |queue: &mut SendQueue, tail| queue.complete_behind_suppressed(tail).map(|done| done.0),
        |queue: &mut SendQueue, _| queue.complete(1, None).map(|done| done.cookie),
    ] {
        let mut f = queue(2, 1);
        f.queue.post(WRITE, segments(1), 1, REPORTED).unwrap();
        f.queue.post(WRITE, segments(1), 2, REPORTED).unwrap();
        assert_eq!(later(&mut f.queue, entry(1)), Some(2));
        for block in [0, 1] {
            assert_eq!(f.queue.complete_plain(entry(block)), None, "{block}");
            assert_eq!(f.queue.complete_behind_suppressed(entry(block)), None);
        }
        assert_eq!(f.queue.outstanding(), 0);
        f.queue.post(WRITE, segments(1), 3, REPORTED).unwrap();
        assert_eq!(f.queue.complete_plain(entry(2)), Some((3, 0x100)));
    }
}

/// A counter that the device has masked to the ring names the right request. Drivers mask it themselves (rdma-core
/// `cq.c`: `wqe_counter & (wqe_cnt - 1)`).
#[test]
fn a_counter_masked_to_the_ring_names_its_request() {
    let mut f = queue(8, 4);
    for n in 0..100_u64 {
        f.queue.post(WRITE, segments(4), n, REPORTED).unwrap();
        let block = u16::try_from(2 * n).unwrap() & 15;
        assert_eq!(f.queue.complete(block, None).unwrap().cookie, n);
    }
    assert_eq!(f.queue.unmatched_entries(), 0);
}

/// A send ring has at least four blocks, as in rdma-core (`mlx5_calc_send_wqe`) and Linux (`calc_send_wqe`).
#[test]
fn a_send_ring_has_at_least_four_blocks() {
    for requests in [0, 1, 2, 3] {
        let sizes = SendSizes::new(requests, 1, 1).unwrap();
        assert_eq!((sizes.max_requests, sizes.ring_blocks), (requests, 4));
    }
}

/// Every completion names the right request after the indices have wrapped at 2^16, with WQEs of different sizes.
#[test]
fn completions_match_after_the_indices_wrap() {
    let mut f = queue(5, 6);
    let mut outstanding = std::collections::VecDeque::new();
    let mut producer = 0_u16;
    let mut wraps = 0;
    for n in 0..120_000_u64 {
        if outstanding.len() == 5 {
            // Requests complete two at a time: the CQE of the newer request completes the older one too.
            outstanding.pop_front();
            let (index, cookie) = outstanding.pop_front().unwrap();
            let completion = f.queue.complete(index, None).unwrap();
            assert_eq!(completion.cookie, cookie, "request {n}");
        }
        let count = u32::try_from(n % 7).unwrap();
        f.queue.post(WRITE, segments(count), n, REPORTED).unwrap();
        outstanding.push_back((producer, n));
        let blocks = u16::try_from((2 + count).div_ceil(4)).unwrap();
        wraps += u32::from(producer.checked_add(blocks).is_none());
        producer = producer.wrapping_add(blocks);
        assert_eq!(f.send_counter(), u32::from(producer));
        assert_eq!(f.queue.outstanding() as usize, outstanding.len());
    }
    assert!(wraps >= 2, "{wraps} wraps");
    assert_eq!(f.queue.unmatched_entries(), 0);
}

#[test]
fn a_reset_queue_starts_at_index_zero_and_believes_no_old_entry() {
    let mut f = queue(4, 1);
    for n in 0..3 {
        f.queue
            .post(RequestOp::Send, segments(1), n, REPORTED)
            .unwrap();
    }
    f.queue.reset();
    assert_eq!((f.queue.outstanding(), f.send_counter()), (0, 0));
    assert_eq!(f.queue.complete(1, None), None);
    f.queue
        .post(RequestOp::Send, segments(1), 10, REPORTED)
        .unwrap();
    assert_eq!(f.ring()[..8], hex("00 0000 0a  123456 02"));
    assert_eq!(f.queue.complete(0, None).unwrap().cookie, 10);
}

/// After a reset, the queue does not use the block numbers of earlier WQEs. They would name the middle of new WQEs.
#[test]
fn a_reset_queue_has_forgotten_where_wqes_started() {
    let mut f = queue(4, 4);
    for n in 0..3 {
        f.queue
            .post(RequestOp::Send, segments(1), n, REPORTED)
            .unwrap();
    }
    f.queue.reset();
    f.queue.post(WRITE, segments(4), 10, REPORTED).unwrap();
    f.queue.post(WRITE, segments(4), 11, REPORTED).unwrap();
    assert_eq!(f.queue.complete(1, None), None);
    assert_eq!(f.queue.complete(2, None).unwrap().cookie, 11);
}

#[test]
fn sizes_the_device_cannot_have_are_refused() {
    assert_eq!(SendSizes::new(1, 62, 0), None, "ds has six bits");
    assert_eq!(SendSizes::new(1 << 15, 3, 0), None, "indices have sixteen");
    assert_eq!(SendSizes::new(u32::MAX, u32::MAX, 0), None);
    let sizes = SendSizes::new(1000, 2, 1).unwrap();
    assert_eq!((sizes.wqe_blocks, sizes.ring_blocks), (1, 1024));
    let sizes = SendSizes::new(1000, 3, 30).unwrap();
    assert_eq!((sizes.wqe_blocks, sizes.ring_blocks), (8, 8192));
}
