//! Shared receive queues: linking, posting, completing, and damaged links.

use hw_mlx::completion::Status;
use hw_mlx::cq::Cqe;
use hw_mlx::ring::RingMemory;
use hw_mlx::srq::{Srq, SrqSizes};
use mlx_prm::Cqe64;
use rdma_types::{DataSegment, QueueFull};

use super::double::Bench;

fn segment() -> DataSegment {
    DataSegment {
        lmr_context: 0x11,
        address: 0x2000,
        bytes: 0x40,
    }
}

fn queue(max_recvs: u32, max_segments: u32) -> (Bench, RingMemory, Srq, SrqSizes) {
    let bench = Bench::new();
    let sizes = SrqSizes::new(max_recvs, max_segments).unwrap();
    let memory = bench.memory(sizes.bytes());
    Srq::prepare_ring(sizes, &memory.ring);
    let queue = Srq::new(0x33, 1, sizes, memory.clone());
    (bench, memory, queue, sizes)
}

/// Returns the CQE of a Send of `bytes` bytes that was received in entry `index`.
fn received(index: u16, bytes: u32) -> Cqe {
    let mut cqe = Cqe64::new();
    cqe.set_wqe_counter(index)
        .set_byte_cnt(bytes)
        .set_op_own(2 << 4);
    cqe.into()
}

/// Simulates the device: follows the links from entry `at`, and counts the entries it has taken.
struct SimulatedDevice {
    at: u16,
    taken: u16,
}

impl SimulatedDevice {
    fn take(&mut self, memory: &RingMemory, sizes: SrqSizes) -> Option<u16> {
        let posted = u16::try_from(memory.record.load_be32(0)).unwrap();
        if self.taken == posted {
            return None;
        }
        let index = self.at;
        let mut next = [0; 2];
        memory
            .ring
            .read_bytes(usize::from(index) * sizes.stride as usize + 2, &mut next);
        self.at = u16::from_be_bytes(next);
        self.taken = self.taken.wrapping_add(1);
        Some(index)
    }
}

#[test]
fn a_fresh_ring_links_each_entry_to_the_next() {
    let (bench, memory, _queue, sizes) = queue(6, 3);
    assert_eq!((sizes.entries, sizes.stride), (8, 64));
    for entry in 0..8_u8 {
        let bytes = bench
            .device
            .read(memory.ring.iova().0 + u64::from(entry) * 64, 16);
        assert_eq!(
            bytes,
            [0, 0, 0, (entry + 1) % 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}

#[test]
fn a_posted_entry_keeps_its_link_and_ends_with_a_terminator() {
    let (bench, memory, mut queue, _) = queue(6, 3);
    queue
        .post_recv([segment(), segment()].into_iter(), 1)
        .unwrap();
    let data = [0, 0, 0, 0x40, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0x20, 0];
    let bytes = bench.device.read(memory.ring.iova().0, 64);
    assert_eq!(
        bytes[..16],
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(bytes[16..48], [data, data].concat());
    assert_eq!(
        bytes[48..],
        [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(memory.record.load_be32(0), 1);
    assert_eq!(bench.device.take_writes(), []);
}

/// If a device follows the links and completes entries in any order, each completion returns the buffer that was
/// posted. The test runs until the counter has wrapped.
#[test]
fn entries_finished_in_any_order_are_reused_without_loss() {
    let (_bench, memory, mut queue, sizes) = queue(7, 1);
    let mut device = SimulatedDevice { at: 0, taken: 0 };
    let mut held: Vec<u16> = Vec::new();
    let mut cookie_of = vec![0_u64; sizes.entries as usize];
    let mut order: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
    let mut posted = 0_u64;
    let mut random = 12345_u64;
    for _ in 0..70_000 {
        while queue.post_recv(std::iter::once(segment()), posted).is_ok() {
            order.push_back(posted);
            posted += 1;
        }
        assert_eq!(queue.outstanding(), 7);
        while let Some(index) = device.take(&memory, sizes) {
            assert!(!held.contains(&index), "entry {index} was given twice");
            cookie_of[usize::from(index)] = order.pop_front().unwrap();
            held.push(index);
        }
        assert_eq!(held.len(), 7);
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let index = held.swap_remove((random >> 33) as usize % held.len());
        let completion = queue.complete(&received(index, 0x40)).unwrap();
        assert_eq!(
            (completion.cookie, completion.status),
            (cookie_of[usize::from(index)], Status::Success)
        );
    }
    assert_eq!(queue.unmatched_entries(), 0);
}

#[test]
fn exactly_max_recvs_fit() {
    for max in [1, 2, 3, 7, 8] {
        let (_bench, _memory, mut queue, _) = queue(max, 2);
        for n in 0..max {
            assert_eq!(
                queue.post_recv(std::iter::once(segment()), u64::from(n)),
                Ok(()),
                "{n} of {max}"
            );
        }
        assert_eq!(
            queue.post_recv(std::iter::once(segment()), 99),
            Err(QueueFull)
        );
        assert_eq!(queue.outstanding(), max);
    }
}

#[test]
fn indices_nobody_posted_are_ignored_and_counted() {
    let (_bench, _memory, mut queue, _) = queue(4, 1);
    queue.post_recv(std::iter::once(segment()), 5).unwrap();
    for index in [1, 7, 8, 0xffff] {
        assert_eq!(queue.complete(&received(index, 1)), None);
    }
    assert_eq!(queue.complete(&received(0, 1)).unwrap().cookie, 5);
    assert_eq!(queue.complete(&received(0, 1)), None, "done already");
    let mut request = Cqe64::new();
    request.set_op_own(0);
    assert_eq!(queue.complete(&request.into()), None, "a request's entry");
    assert_eq!((queue.unmatched_entries(), queue.outstanding()), (6, 0));
}

/// The driver does not follow damaged links in DMA memory, because it uses its own copy.
#[test]
fn scribbled_links_are_not_followed() {
    let (_bench, memory, mut queue, _) = queue(3, 1);
    memory.ring.fill(0, 128, 0xff);
    for n in 0..3 {
        queue.post_recv(std::iter::once(segment()), n).unwrap();
    }
    for n in [2, 0, 1] {
        assert_eq!(
            queue.complete(&received(n, 1)).unwrap().cookie,
            u64::from(n)
        );
    }
}
