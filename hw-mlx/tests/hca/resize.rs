//! Resizing a completion queue on a device that does not do its part.

use std::sync::Arc;

use hw_mlx::cq::Cq;
use hw_mlx::uar::Doorbells;
use hw_mlx::{AsyncEvent, DeadCause, Hca, HcaConfig};
use mlx_prm::Opcode;

use crate::double::{Action, Double};

/// Number of entries of the queue, and the length of its ring in bytes.
const ENTRIES: u32 = 1024;
const RING_BYTES: usize = ENTRIES as usize * 64;

/// Returns an opened double, with a completion queue and the I/O address of its ring.
fn queue() -> (Arc<Double>, Hca, Cq, u64) {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), HcaConfig::new()).expect("bring-up");
    let doorbells = Doorbells::new(hca.uar().clone());
    let cq = Cq::create(&mut hca, &doorbells, ENTRIES).expect("a completion queue");
    let ring = {
        let state = double.state();
        let made = state.seen.last().expect("CREATE_CQ");
        assert_eq!(made.opcode, Opcode::CREATE_CQ.0);
        u64::from_be_bytes(made.input[0x110..0x118].try_into().expect("8 bytes"))
    };
    (double, hca, cq, ring)
}

/// Returns whether the arena lends memory at an I/O address again.
fn is_free(hca: &Hca, iova: u64) -> bool {
    let all: Vec<_> = (0..64)
        .map(|_| hca.arena().alloc(RING_BYTES, RING_BYTES).expect("memory"))
        .collect();
    all.iter().any(|memory| memory.iova().0 == iova)
}

/// The old ring is used again only if the device has written the entry that ends it. Otherwise the device may still
/// write to it.
#[test]
fn a_ring_that_the_device_does_not_end_stays_out_of_use() {
    for ended in [true, false] {
        let (double, mut hca, mut cq, ring) = queue();
        if ended {
            // Opcode 5, in the first lap.
            double.state().write(ring + 63, &[5 << 4]);
        }
        cq.resize(&mut hca, 4 * ENTRIES).expect("resized");
        assert_eq!(is_free(&hca, ring), ended, "ended: {ended}");
    }
}

/// If the device may have moved the queue to the new ring, it is unknown where its completions are. The function is
/// stopped, with its event. A refusal, or a command that was not delivered, changes nothing.
#[test]
fn a_resize_that_may_have_been_done_stops_the_function() {
    for (action, stops) in [
        (Action::Hold, true),
        (Action::Refuse(0x40, 0), false),
        (Action::Deliver(1), false),
    ] {
        let (double, mut hca, mut cq, ring) = queue();
        double.rule(Opcode::MODIFY_CQ.0, action);
        cq.resize(&mut hca, 4 * ENTRIES).expect_err("not resized");
        let cause = stops.then_some(DeadCause::Unended {
            opcode: Opcode::MODIFY_CQ,
        });
        assert_eq!(hca.dead_cause(), cause, "{action:?}");
        let event = hca.next_async();
        let expected = cause.map(|cause| AsyncEvent::DeviceDead { cause });
        assert_eq!(event, expected, "{action:?}");
        assert!(!is_free(&hca, ring), "the queue has its old ring");
    }
}
