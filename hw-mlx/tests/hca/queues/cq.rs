//! Completion queues: polling, arming, cleaning, and invalid entries.

use hw_mlx::cq::{Cq, Cqe};
use hw_mlx::qp::Outcome;
use hw_mlx::ring::RingMemory;
use mlx_prm::Cqe64;
use rdma_types::Detail;

use super::double::Bench;

const CQN: u32 = 0x77;

/// A completion queue, and the device that writes it. The device keeps its own producer index and computes owner bits
/// itself.
struct Fixture {
    bench: Bench,
    memory: RingMemory,
    cq: Cq,
    entries: u32,
    produced: u32,
}

fn cq(entries: u32) -> Fixture {
    let bench = Bench::new();
    let memory = bench.memory(entries as usize * 64);
    Cq::prepare_ring(&memory.ring);
    let cq = Cq::new(CQN, entries, memory.clone(), bench.doorbells.clone());
    Fixture {
        bench,
        memory,
        cq,
        entries,
        produced: 0,
    }
}

impl Fixture {
    /// Writes an entry of `owner` with `counter`, as the device does: the body first, the last byte last.
    fn produce(&mut self, owner: u32, counter: u16) {
        let mut cqe = Cqe64::new();
        cqe.set_srqn_uidx(owner)
            .set_qpn(owner)
            .set_wqe_counter(counter);
        let at = (self.produced % self.entries) as usize * 64;
        let lap = self.produced / self.entries;
        self.memory.ring.write_bytes(at, &cqe.as_array()[..63]);
        self.memory
            .ring
            .store_u8(at + 63, 2 << 4 | u8::try_from(lap % 2).unwrap());
        self.produced += 1;
    }

    fn consumer_index(&self) -> u32 {
        self.memory.record.load_be32(0)
    }

    fn polled(&mut self) -> Vec<(u32, u16)> {
        std::iter::from_fn(|| self.cq.poll())
            .map(|entry| (entry.owner(), entry.wqe_counter()))
            .collect()
    }
}

#[test]
fn a_fresh_ring_has_no_entries() {
    let mut f = cq(8);
    assert!(f.cq.poll().is_none());
    assert_eq!(f.bench.device.read(f.memory.ring.iova().0 + 63, 1), [0xf1]);
}

#[test]
fn polling_after_the_wrap_waits_for_the_flipped_owner_bit() {
    let mut f = cq(4);
    for n in 0..1000_u32 {
        assert!(f.cq.poll().is_none(), "entry {n} before it was written");
        f.produce(5, u16::try_from(n).unwrap());
        let entry = f.cq.poll().expect("a fresh entry");
        assert_eq!((entry.owner(), u32::from(entry.wqe_counter())), (5, n));
        assert_eq!(f.consumer_index(), n + 1);
    }
}

#[test]
fn a_full_ring_is_read_to_its_end_and_no_further() {
    let mut f = cq(8);
    for lap in 0..5_u16 {
        for n in 0..8 {
            f.produce(1, lap * 8 + n);
        }
        assert_eq!(
            f.polled(),
            (0..8).map(|n| (1, lap * 8 + n)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn the_consumer_index_is_published_in_24_bits() {
    let mut f = cq(1);
    assert_eq!(f.cq.capacity(), 1);
    // In a ring of one entry, the owner bit alternates with each entry. The loop writes only this bit, because it has
    // many rounds.
    f.produce(1, 0);
    f.cq.poll().unwrap();
    for count in 2..=(1_u32 << 24) + 5 {
        let owner = u8::from(count % 2 == 0);
        f.memory.ring.store_u8(63, 2 << 4 | owner);
        f.cq.poll().unwrap();
        if count == 1 << 23 || count == (1 << 24) - 1 {
            assert_eq!(f.consumer_index(), count);
        }
    }
    assert_eq!(f.consumer_index(), 5);
    f.cq.arm(false);
    assert_eq!(f.memory.record.load_be32(4), 5, "sequence 0, any entry");
}

#[test]
fn with_entries_to_spare_the_consumer_index_is_published_by_batches_and_never_later_than_they_last()
{
    for (spare, batch) in [(0, 1), (1, 1), (5, 4), (16, 16), (40, 16)] {
        let mut f = cq(64);
        f.cq = f.cq.with_spare(spare);
        assert_eq!(f.cq.capacity(), 64 - (batch - 1));
        for n in 1..=200 {
            f.produce(1, 0);
            f.cq.poll().unwrap();
            assert_eq!(f.consumer_index(), n / batch * batch, "spare {spare}");
        }
    }
}

#[test]
fn arming_publishes_what_was_consumed() {
    let mut f = cq(64);
    f.cq = f.cq.with_spare(16);
    for n in 1..=20 {
        f.produce(1, 0);
        f.cq.poll().unwrap();
        f.cq.arm(false);
        assert_eq!(f.consumer_index(), n);
    }
}

#[test]
fn laps_and_batches_agree_on_rings_of_any_size() {
    for log in 0..8 {
        let mut f = cq(1 << log);
        f.cq = f.cq.with_spare(1 << log);
        for n in 0..1000_u16 {
            assert!(f.cq.poll().is_none(), "entry {n} of {log}");
            f.produce(1, n);
            assert_eq!(f.cq.poll().unwrap().wqe_counter(), n);
        }
    }
}

#[test]
fn an_entry_is_a_private_copy() {
    let mut f = cq(4);
    f.produce(0x0012_3456, 9);
    let entry = f.cq.poll().unwrap();
    f.memory.ring.fill(0, 64, 0xff);
    assert_eq!(
        (entry.owner(), entry.wqe_counter(), entry.qpn().get()),
        (0x0012_3456, 9, 0x0012_3456)
    );
}

#[test]
fn arming_writes_the_record_before_the_register() {
    let mut f = cq(4);
    f.bench.device.watch(f.memory.record.iova().0 + 4, 4);
    f.produce(1, 0);
    f.cq.poll().unwrap();
    f.cq.arm(false);
    f.cq.sequence().count_event();
    f.cq.arm(true);
    for _ in 0..4 {
        f.cq.sequence().count_event();
    }
    f.cq.arm(false);
    let told = f.bench.device.take_writes();
    let arm = |word: u32| [word.to_be_bytes(), CQN.to_be_bytes()].concat();
    assert_eq!(
        told.iter().map(|told| told.offset).collect::<Vec<_>>(),
        [0x20; 3]
    );
    assert_eq!(told[0].bytes, arm(1), "sequence 0, any entry, index 1");
    assert_eq!(
        told[1].bytes,
        arm(1 << 28 | 1 << 24 | 1),
        "sequence 1, solicited ones"
    );
    assert_eq!(told[2].bytes, arm(1 << 28 | 1), "the sequence has two bits");
    for told in told {
        assert_eq!(told.seen[0], told.bytes[..4], "the record said it first");
    }
}

#[test]
fn cleaning_removes_one_owners_entries_and_keeps_the_order_of_the_others() {
    // The entries start at every position of the ring, so in some cases they wrap at its end.
    for start in 0..9_u16 {
        let mut f = cq(8);
        for n in 0..start {
            f.produce(9, n);
        }
        assert_eq!(f.polled().len(), usize::from(start));
        for n in 0..6 {
            f.produce(u32::from(n % 3), 100 + n);
        }
        assert_eq!(f.cq.clean(|entry| entry.owner() == 1), 2);
        assert_eq!(f.consumer_index(), u32::from(start) + 2);
        assert_eq!(f.polled(), [(0, 100), (2, 102), (0, 103), (2, 105)]);
        // Later entries are polled as usual, over several passes of the ring.
        for n in 0..20 {
            f.produce(3, n);
            assert_eq!(f.polled(), [(3, n)]);
        }
    }
}

#[test]
fn cleaning_an_empty_or_a_full_queue_works() {
    let mut f = cq(4);
    assert_eq!(f.cq.clean(|_| true), 0);
    for n in 0..4 {
        f.produce(1, n);
    }
    assert_eq!(f.cq.clean(|_| true), 4);
    assert_eq!(f.consumer_index(), 4);
    f.produce(2, 9);
    assert_eq!(f.polled(), [(2, 9)]);
    for n in 0..4 {
        f.produce(1, n);
    }
    assert_eq!(f.cq.clean(|_| false), 0);
    assert_eq!(f.polled().len(), 4);
}

/// If the device fills the ring with garbage, a poll returns at most one entry, and cleaning ends after at most one
/// pass of the ring.
#[test]
fn garbage_in_the_ring_cannot_hold_polling_up() {
    let mut f = cq(16);
    for seed in 0..=255_u8 {
        f.memory.ring.fill(0, 16 * 64, seed);
        for _ in 0..40 {
            if let Some(entry) = f.cq.poll() {
                let _ = (
                    entry.owner(),
                    entry.is_request(),
                    entry.receive_outcome(),
                    entry.syndrome(),
                );
            }
        }
        assert!(f.cq.clean(|_| true) <= 16);
    }
}

/// The CQE of a receive contains the immediate data or the invalidated key. Opcodes are 1 to 4 in the last byte, the
/// data is at 0x24, and the length at 0x2c (PRM "CQE"; `handle_responder` in providers/mlx5/cq.c of rdma-core).
#[test]
fn the_entry_of_a_receive_tells_what_came_along() {
    let received = |detail| Outcome::Received {
        bytes: 0x0506,
        solicited: true,
        detail,
    };
    let written = Outcome::Written {
        bytes: 0x0506,
        solicited: true,
        immediate: 0x0102_0304,
    };
    for (opcode, expected) in [
        (1, written),
        (2, received(Detail::None)),
        (3, received(Detail::SendImmediate(0x0102_0304))),
        (4, received(Detail::Invalidated(0x0102_0304))),
    ] {
        let mut bytes = [0; 64];
        bytes[0x24..0x28].copy_from_slice(&[1, 2, 3, 4]);
        bytes[0x2c..0x30].copy_from_slice(&[0, 0, 5, 6]);
        bytes[63] = opcode << 4 | 1 << 1;
        let entry = Cqe::from(Cqe64::from_array(bytes));
        assert_eq!(entry.receive_outcome(), Some(expected), "opcode {opcode}");
        // In the other formats the CQE contains message data. The driver never requests them.
        bytes[63] |= 1 << 2;
        let entry = Cqe::from(Cqe64::from_array(bytes));
        assert_eq!(entry.receive_outcome(), None, "opcode {opcode}");
    }
}
