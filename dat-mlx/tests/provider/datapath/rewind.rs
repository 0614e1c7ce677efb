//! Moving a queue pair back from RTR to INIT (`Provider::rewind_qp`): its posted receives stay posted, unless a packet
//! has already consumed one of them.

use dat_core::provider::{Completion, QueuePair, RequestOp};
use dat_core::types::DtoStatus;
use dat_mlx::queues::Qp;

use super::pair::{Pair, REPORTED, SIZES, TERMS, pair, ready, ready_to_receive};

const PSNS: (u32, u32) = (0xff_fff0, 0x12_3456);
/// Cookies of the two receives that B has posted.
const RECEIVES: [u64; 2] = [11, 12];

/// Creates a queue pair of A in RTS, and one of B in RTR with two receives posted.
fn half_connected(p: &mut Pair) -> (Qp, Qp) {
    let mut qa = p.a.create_qp(SIZES, 0xa);
    let mut qb = p.b.create_qp(SIZES, 0xb);
    for cookie in RECEIVES {
        let one = std::iter::once(p.b.segment(0, 64));
        qb.post_recv(one, cookie, false).expect("room");
    }
    let (gid_a, gid_b) = (p.a.gid(), p.b.gid());
    ready_to_receive(&mut p.b, &mut qb, gid_a, qa.number(), PSNS.0, TERMS);
    ready(&mut p.a, &mut qa, gid_b, qb.number(), PSNS, TERMS);
    (qa, qb)
}

/// Sends one message from A, and waits until B's device has received it.
fn send(p: &mut Pair, qa: &mut Qp) {
    let one = std::iter::once(p.a.segment(0, 64));
    qa.post_request(RequestOp::Send, one, 1, REPORTED)
        .expect("room");
    assert_eq!(outcomes(&p.a.completions(qa, 1)), [(1, DtoStatus::Success)]);
}

fn outcomes(done: &[Completion]) -> Vec<(u64, DtoStatus)> {
    done.iter().map(|done| (done.cookie, done.status)).collect()
}

fn lost(qp: &mut Qp) -> Vec<u64> {
    let lost = std::iter::from_fn(|| qp.take_lost());
    lost.map(|lost| lost.cookie).collect()
}

#[test]
fn a_receive_that_was_consumed_and_not_polled_ends_the_rewind() {
    let mut p = pair();
    let (mut qa, mut qb) = half_connected(&mut p);
    send(&mut p, &mut qa);
    assert!(!p.b.rewind_qp(&mut qb), "a message has come");
    // Both receives are accounted for: one has completed, the other is returned as lost.
    assert_eq!(
        outcomes(&p.b.polled(&mut qb)),
        [(RECEIVES[0], DtoStatus::Success)]
    );
    assert_eq!(lost(&mut qb), [RECEIVES[1]]);
    p.finish(qa, qb);
}

#[test]
fn a_receive_that_was_polled_ends_the_rewind() {
    let mut p = pair();
    let (mut qa, mut qb) = half_connected(&mut p);
    send(&mut p, &mut qa);
    assert_eq!(
        outcomes(&p.b.completions(&mut qb, 1)),
        [(RECEIVES[0], DtoStatus::Success)]
    );
    assert!(!p.b.rewind_qp(&mut qb), "a message has come");
    assert_eq!(lost(&mut qb), [RECEIVES[1]]);
    p.finish(qa, qb);
}

#[test]
fn receives_that_nobody_has_sent_for_serve_the_next_connection() {
    let mut p = pair();
    let (mut qa, mut qb) = half_connected(&mut p);
    assert!(p.b.rewind_qp(&mut qb), "nothing has come");
    assert_eq!(lost(&mut qb), []);
    p.a.reset_qp(&mut qa);
    p.connect(&mut qa, &mut qb, TERMS);
    for cookie in RECEIVES {
        send(&mut p, &mut qa);
        assert_eq!(
            outcomes(&p.b.completions(&mut qb, 1)),
            [(cookie, DtoStatus::Success)]
        );
    }
    p.finish(qa, qb);
}
