//! Receive queues of a queue pair: posting, completing and invalid entries.

use hw_mlx::completion::Status;
use hw_mlx::qp::{Outcome, RecvQueue, RecvSizes};
use hw_mlx::ring::RingMemory;
use rdma_types::Detail;
use rdma_types::{DataSegment, QueueFull};

use super::double::Bench;

fn segment(bytes: u32) -> DataSegment {
    DataSegment {
        lmr_context: 0x11,
        address: 0x2000,
        bytes,
    }
}

fn queue(max_recvs: u32, max_segments: u32) -> (Bench, RingMemory, RecvQueue) {
    let bench = Bench::new();
    let sizes = RecvSizes::new(max_recvs, max_segments).unwrap();
    let memory = bench.memory(sizes.bytes());
    let queue = RecvQueue::new(sizes, &memory.ring, &memory.record, 7);
    (bench, memory, queue)
}

fn received(bytes: u32) -> Outcome {
    Outcome::Received {
        bytes,
        solicited: false,
        detail: Detail::None,
    }
}

#[test]
fn a_receive_is_its_segments_and_a_terminator() {
    let (bench, memory, mut queue) = queue(4, 4);
    memory.ring.fill(0, 4096, 0xa5);
    queue
        .post([segment(0x100), segment(0x200)].into_iter(), 1, false)
        .unwrap();
    queue
        .post(
            [segment(1), segment(2), segment(3), segment(4)].into_iter(),
            2,
            false,
        )
        .unwrap();
    queue.post(std::iter::empty(), 3, false).unwrap();
    let data = |bytes: u8, hi: u8| [0, 0, hi, bytes, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0x20, 0];
    let terminator = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ring = bench.device.read(memory.ring.iova().0, 192);
    assert_eq!(ring[..48], [data(0, 1), data(0, 2), terminator].concat());
    assert_eq!(ring[48..64], [0xa5; 16], "nothing behind the terminator");
    assert_eq!(
        ring[64..128],
        [data(1, 0), data(2, 0), data(3, 0), data(4, 0)].concat(),
        "a full entry needs none"
    );
    assert_eq!(ring[128..144], terminator, "no buffer at all");
    assert_eq!(memory.record.load_be32(0), 3);
    assert_eq!(
        memory.record.load_be32(4),
        0,
        "the send counter is not ours"
    );
    assert_eq!(bench.device.take_writes(), [], "receives have no register");
}

#[test]
fn exactly_max_recvs_fit_and_complete_in_order_past_the_wrap() {
    let (_bench, memory, mut queue) = queue(3, 1);
    let mut posted = 0_u64;
    for n in 0..70_000_u64 {
        while queue
            .post(std::iter::once(segment(64)), posted, posted % 2 == 1)
            .is_ok()
        {
            posted += 1;
            assert_eq!(
                memory.record.load_be32(0),
                u32::try_from(posted & 0xffff).unwrap()
            );
        }
        assert_eq!(queue.outstanding(), 3);
        let completion = queue
            .complete(u16::try_from(n & 0xffff).unwrap(), received(64))
            .unwrap();
        assert_eq!(
            (
                completion.cookie,
                completion.unsignalled,
                completion.transferred
            ),
            (n, n % 2 == 1, 64)
        );
        assert!(!completion.request);
    }
    assert_eq!(
        queue
            .post(std::iter::once(segment(64)), 0, false)
            .and_then(|()| queue.post(std::iter::once(segment(64)), 0, false)),
        Err(QueueFull)
    );
    assert_eq!(queue.unmatched_entries(), 0);
}

#[test]
fn a_count_beyond_the_buffer_is_not_believed() {
    let (_bench, _memory, mut queue) = queue(2, 2);
    queue
        .post([segment(10), segment(20)].into_iter(), 1, false)
        .unwrap();
    queue
        .post([segment(10), segment(20)].into_iter(), 2, false)
        .unwrap();
    assert_eq!(queue.complete(0, received(30)).unwrap().transferred, 30);
    let completion = queue.complete(1, received(31)).unwrap();
    assert_eq!(
        (completion.status, completion.transferred),
        (Status::LocalLength, 0)
    );
}

#[test]
fn success_must_name_the_oldest_receive_and_a_flush_need_not() {
    let (_bench, _memory, mut queue) = queue(4, 1);
    assert_eq!(queue.complete(0, received(1)), None, "nothing was posted");
    for n in 0..3 {
        queue.post(std::iter::once(segment(64)), n, false).unwrap();
    }
    assert_eq!(queue.complete(1, received(1)), None);
    assert!(
        queue
            .complete(
                0,
                Outcome::Received {
                    bytes: 5,
                    solicited: true,
                    detail: Detail::None,
                }
            )
            .unwrap()
            .solicited
    );
    let flush = Outcome::Failed {
        syndrome: (5, 0xf9),
    };
    for cookie in 1..3 {
        let completion = queue.complete(0xffff, flush).unwrap();
        assert_eq!(
            (completion.cookie, completion.status),
            (cookie, Status::Flushed)
        );
    }
    assert_eq!(queue.complete(0, flush), None, "all are done");
    assert_eq!((queue.unmatched_entries(), queue.outstanding()), (3, 0));
}

/// A receive is completed by a counter of 16 bits, and also by one that the device has masked to the ring. Drivers mask
/// the counter themselves (rdma-core `cq.c`; Linux `vfio/pci/mlx5/cmd.c` `mlx5vf_rq_cqe`), so both forms are valid.
#[test]
fn a_counter_is_believed_whole_and_masked_to_the_ring() {
    for mask in [0xffff_u16, 3] {
        let (_bench, _memory, mut queue) = queue(4, 1);
        for n in 0..70_000_u32 {
            queue
                .post(std::iter::once(segment(64)), u64::from(n), false)
                .unwrap();
            let counter = u16::try_from(n & 0xffff).unwrap() & mask;
            let cookie = if n % 2 == 0 {
                queue.complete_plain(counter, 64)
            } else {
                queue
                    .complete(counter, received(64))
                    .map(|done| done.cookie)
            };
            assert_eq!(cookie, Some(u64::from(n)), "mask {mask:#x}");
        }
        assert_eq!(queue.unmatched_entries(), 0);
    }
}

#[test]
fn a_reset_queue_starts_at_zero() {
    let (_bench, memory, mut queue) = queue(4, 1);
    queue.post(std::iter::once(segment(64)), 1, false).unwrap();
    queue.reset();
    assert_eq!((queue.outstanding(), memory.record.load_be32(0)), (0, 0));
    queue.post(std::iter::once(segment(64)), 2, false).unwrap();
    assert_eq!(queue.complete(0, received(0)).unwrap().cookie, 2);
}

#[test]
fn rings_have_at_least_a_cache_line_and_powers_of_two() {
    let sizes = RecvSizes::new(1, 1).unwrap();
    assert_eq!((sizes.entries, sizes.stride), (4, 16));
    let sizes = RecvSizes::new(5, 3).unwrap();
    assert_eq!((sizes.entries, sizes.stride, sizes.max_recvs), (8, 64, 5));
    assert_eq!(RecvSizes::new((1 << 15) + 1, 1), None);
    assert_eq!(RecvSizes::new(1, 1 << 20), None);
}

/// `complete_plain` completes only the oldest receive, and only if the bytes fit. For other entries it changes nothing.
#[test]
fn only_the_oldest_receive_with_bytes_that_fit_is_plain() {
    let (_bench, _memory, mut queue) = queue(4, 1);
    assert_eq!(queue.complete_plain(0, 0), None, "nothing posted");
    for cookie in [7, 8] {
        queue
            .post(std::iter::once(segment(0x100)), cookie, false)
            .unwrap();
    }
    assert_eq!(queue.complete_plain(1, 1), None, "out of order");
    assert_eq!(queue.complete_plain(0, 0x101), None, "more than fits");
    assert_eq!(queue.outstanding(), 2);
    assert_eq!(queue.complete_plain(0, 0x100), Some(7));
    assert_eq!(queue.complete_plain(0, 0), None, "done");
    assert_eq!(queue.complete_plain(1, 0), Some(8));
    assert_eq!((queue.outstanding(), queue.unmatched_entries()), (0, 0));
}
