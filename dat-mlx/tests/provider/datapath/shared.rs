//! Data transfer with shared receive queues.

use dat_core::provider::{
    CompletionEntry, CompletionQueue, Provider, ProviderEvent, QueuePair, RequestOp,
    SharedReceiveQueue,
};
use dat_core::types::DtoStatus;

use super::pair::{REPORTED, SIZES, TERMS, pair};

#[test]
fn two_queue_pairs_are_fed_from_one_queue() {
    let mut p = pair();
    let mut srq = p.b.provider.create_srq(p.b.pd, 5, 2, 9).unwrap();
    let mut senders = [p.a.create_qp(SIZES, 1), p.a.create_qp(SIZES, 2)];
    let mut receivers = [
        p.b.create_qp_with_srq(&srq, 1),
        p.b.create_qp_with_srq(&srq, 2),
    ];
    for (qa, qb) in senders.iter_mut().zip(&mut receivers) {
        p.connect(qa, qb, TERMS);
    }
    let mut posted = 0_u64;
    // Many times more receives than the ring has entries.
    for n in 0..500_usize {
        while srq
            .post_recv(
                [p.b.segment(0, 32), p.b.segment(4096, 32)].into_iter(),
                posted,
            )
            .is_ok()
        {
            posted += 1;
        }
        assert_eq!(srq.outstanding(), 5);
        let data = [u8::try_from(n % 256).unwrap(); 48];
        p.a.buffer.write_bytes(0, &data);
        let which = n % 2;
        let qa = &mut senders[which];
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 48)),
            1,
            REPORTED,
        )
        .unwrap();
        assert_eq!(
            p.a.completions(&mut senders[which], 1)[0].status,
            DtoStatus::Success
        );
        let entry = p.b.cq().poll().unwrap();
        assert_eq!(
            entry.owner() as usize,
            which + 1,
            "the queue pair's owner, not the shared queue's"
        );
        assert!(!entry.is_request());
        let done = srq.complete(&entry).unwrap();
        assert_eq!(
            (done.cookie, done.status, done.transferred),
            (n as u64, DtoStatus::Success, 48)
        );
        assert_eq!(p.b.bytes(4096, 16), data[..16]);
    }
    assert_eq!(srq.0.unmatched_entries(), 0);
    for qa in senders {
        p.a.destroy_qp(qa);
    }
    for qb in receivers {
        p.b.destroy_qp(qb);
    }
    p.b.provider.destroy_srq(&mut srq).unwrap();
    p.finish_bare();
}

#[test]
fn the_limit_event_comes_once_when_buffers_run_low() {
    let mut p = pair();
    let mut srq = p.b.provider.create_srq(p.b.pd, 8, 1, 9).unwrap();
    let mut qa = p.a.create_qp(SIZES, 1);
    let mut qb = p.b.create_qp_with_srq(&srq, 1);
    p.connect(&mut qa, &mut qb, TERMS);
    for n in 0..8 {
        srq.post_recv(std::iter::once(p.b.segment(0, 64)), n)
            .unwrap();
    }
    p.b.provider.arm_srq_limit(&srq, 6).unwrap();
    let mut events = Vec::new();
    for n in 0..5 {
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 64)),
            n,
            REPORTED,
        )
        .unwrap();
        p.b.provider.progress();
        while let Some(event) = p.b.provider.next_event() {
            if event == (ProviderEvent::SrqLimit { owner: 9 }) {
                events.push(n);
            }
        }
    }
    assert_eq!(events, [2], "with the third buffer taken, five are left");
    p.a.polled(&mut qa);
    p.a.destroy_qp(qa);
    p.b.destroy_qp(qb);
    p.b.provider.destroy_srq(&mut srq).unwrap();
    p.finish_bare();
}

/// If a queue pair is destroyed before its completions are polled, the shared receive queue frees the consumed entries.
#[test]
fn buffers_of_a_destroyed_queue_pair_come_back() {
    let mut p = pair();
    let mut srq = p.b.provider.create_srq(p.b.pd, 3, 1, 9).unwrap();
    for round in 0..10 {
        let mut qa = p.a.create_qp(SIZES, 1);
        let mut qb = p.b.create_qp_with_srq(&srq, 1);
        p.connect(&mut qa, &mut qb, TERMS);
        while srq
            .post_recv(std::iter::once(p.b.segment(0, 64)), 0)
            .is_ok()
        {}
        assert_eq!(srq.outstanding(), 3, "round {round}");
        for n in 0..2 {
            qa.post_request(
                RequestOp::Send,
                std::iter::once(p.a.segment(0, 64)),
                n,
                REPORTED,
            )
            .unwrap();
        }
        p.a.completions(&mut qa, 2);
        p.b.destroy_qp(qb);
        assert_eq!(srq.outstanding(), 1, "round {round}");
        p.a.destroy_qp(qa);
    }
    assert_eq!(srq.0.unmatched_entries(), 0);
    p.b.provider.destroy_srq(&mut srq).unwrap();
    p.finish_bare();
}
