//! Arming, waiting, and the provider's events.

use std::time::Duration;

use dat_core::NetworkEvent;
use dat_core::provider::{
    CompletionQueue, Provider, ProviderError, ProviderEvent, QueuePair, RequestFlags, RequestOp,
};
use hw_mlx::AsyncEvent;
use hw_sim::{Fault, Faults, LinkFaults};

use super::pair::{REPORTED, SIZES, TERMS, pair, pair_with, ready};

#[test]
fn a_wait_without_a_reason_lasts_until_its_deadline() {
    let mut p = pair();
    let (qa, qb) = p.connected();
    p.a.provider.progress();
    while p.a.provider.next_event().is_some() {}
    let deadline = p.a.provider.now() + 3_000_000_000;
    assert!(!p.a.provider.wait(deadline).unwrap());
    assert!(p.a.provider.now() >= deadline);
    p.finish(qa, qb);
}

/// The first completion after an arm wakes the waiter in each of 20 rounds, because events advance the arm sequence
/// number.
#[test]
fn each_arm_is_good_for_one_wakeup() {
    let mut p = pair_with(
        1,
        LinkFaults::both(Faults {
            delay_ns: 10_000,
            ..Faults::NONE
        }),
    );
    let (mut qa, mut qb) = p.connected();
    p.b.provider.progress();
    while p.b.provider.next_event().is_some() {}
    for round in 0..20 {
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), round, false)
            .unwrap();
        p.b.cq().arm(false);
        assert!(p.b.cq().poll().is_none());
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 64)),
            round,
            REPORTED,
        )
        .unwrap();
        let start = p.b.provider.now();
        while p.b.provider.wait(start + 1_000_000_000).unwrap() && p.b.polled(&mut qb).is_empty() {}
        assert!(
            p.b.provider.now() < start + 1_000_000,
            "round {round}: woken by the deadline only"
        );
        p.a.completions(&mut qa, 1);
    }
    p.finish(qa, qb);
}

#[test]
fn arming_for_solicited_entries_sleeps_through_the_others() {
    let mut p = pair_with(
        2,
        LinkFaults::both(Faults {
            delay_ns: 10_000,
            ..Faults::NONE
        }),
    );
    let (mut qa, mut qb) = p.connected();
    p.b.provider.progress();
    while p.b.provider.next_event().is_some() {}
    for n in 0..2 {
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), n, false)
            .unwrap();
    }
    p.b.cq().arm(true);
    // Each wakeup must have an event (the first packet establishes the connection). The unsolicited Send wakes nobody.
    let mut woken_early = 0;
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 64)),
        1,
        REPORTED,
    )
    .unwrap();
    let start = p.b.provider.now();
    while p.b.provider.wait(start + 1_000_000_000).unwrap() {
        woken_early += u32::from(p.b.provider.next_event().is_none());
    }
    assert_eq!(woken_early, 0);
    assert!(p.b.provider.now() >= start + 1_000_000_000);
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 64)),
        2,
        RequestFlags {
            solicited: true,
            ..REPORTED
        },
    )
    .unwrap();
    let start = p.b.provider.now();
    assert!(p.b.provider.wait(start + 1_000_000_000).unwrap());
    assert!(p.b.provider.now() < start + 1_000_000);
    assert_eq!(p.b.polled(&mut qb).len(), 2);
    p.finish(qa, qb);
}

#[test]
fn the_first_packet_before_rts_is_an_event_of_its_queue_pair() {
    let mut p = pair();
    let mut qa = p.a.create_qp(SIZES, 0xa);
    let mut qb = p.b.create_qp(SIZES, 0xb);
    let (gid_a, gid_b) = (p.a.gid(), p.b.gid());
    // The passive side is in RTR, not in RTS, and has received no packet yet.
    let path = p.b.provider.route(gid_a, None).unwrap();
    let attributes = dat_core::provider::ReadyToReceive {
        path,
        remote_qpn: qa.number(),
        receive_psn: dat_core::provider::Psn::masked(5),
        mtu: 3,
        reads_in: 1,
        min_rnr_timer: 1,
    };
    p.b.provider.ready_to_receive(&mut qb, &attributes).unwrap();
    ready(&mut p.a, &mut qa, gid_b, qb.number(), (5, 6), TERMS);
    qb.post_recv(std::iter::once(p.b.segment(0, 64)), 1, false)
        .unwrap();
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 64)),
        2,
        REPORTED,
    )
    .unwrap();
    p.b.provider.progress();
    assert_eq!(
        p.b.provider.next_event(),
        Some(ProviderEvent::CommunicationEstablished { owner: 0xb })
    );
    assert_eq!(p.b.provider.next_event(), None);
    p.finish(qa, qb);
}

#[test]
fn the_port_going_down_and_up_is_told() {
    let mut p = pair();
    p.a.provider.progress();
    while p.a.provider.next_event().is_some() {}
    p.sim.inject(&p.a.function, &Fault::LinkDown);
    let deadline = p.a.provider.now() + 1_000_000_000;
    assert!(p.a.provider.wait(deadline).unwrap());
    assert_eq!(
        p.a.provider.next_event(),
        Some(ProviderEvent::Network(NetworkEvent::PortDown))
    );
    p.sim.inject(&p.a.function, &Fault::LinkUp);
    assert!(p.a.provider.wait(deadline).unwrap());
    assert_eq!(
        p.a.provider.next_event(),
        Some(ProviderEvent::Network(NetworkEvent::PortUp {
            megabits: Some(100_000),
            mtu: Some(1500),
        }))
    );
    p.finish_bare();
}

/// No route is returned over a port that is down, because a connection over it would only time out. A virtual
/// function's port follows its physical function's interface (Linux `en_main.c` `mlx5e_close` writes PAOS).
#[test]
fn nobody_is_reached_over_a_port_that_is_down() {
    let mut p = pair();
    let (own, peer) = (p.a.gid(), p.b.gid());
    let pass = |p: &mut super::pair::Pair, seconds| {
        p.sim.advance(Duration::from_secs(seconds));
        p.a.provider.progress();
        while p.a.provider.next_event().is_some() {}
    };
    p.sim.inject(&p.a.function, &Fault::LinkDown);
    pass(&mut p, 1);
    let error = p.a.provider.route(peer, None).expect_err("it is down");
    assert!(
        matches!(&error, ProviderError::Unreachable { what, .. } if what.contains("is down")),
        "{error:?}"
    );
    p.a.provider.route(own, None).expect("not over the port");
    p.sim.inject(&p.a.function, &Fault::LinkUp);
    pass(&mut p, 1);
    p.a.provider.route(peer, None).expect("it is up");
    p.finish_bare();
}

/// If events were lost and the port is as it was, the program is told nothing about the port.
#[test]
fn a_port_that_has_not_changed_is_not_told_of_after_a_loss_of_events() {
    let mut p = pair();
    for _ in 0..=1 << 16 {
        let event = AsyncEvent::PortChange { sub_type: 0 };
        p.a.provider.hca().push_event(event);
    }
    p.a.provider.progress();
    let told: Vec<_> = std::iter::from_fn(|| p.a.provider.next_event()).collect();
    assert_eq!(told, []);
    p.finish_bare();
}

/// If the event of a port that goes down is lost, the port is still known to be down.
#[test]
fn a_port_whose_event_was_lost_is_down() {
    let mut p = pair();
    let peer = p.b.gid();
    for _ in 0..1 << 16 {
        let event = AsyncEvent::PortChange { sub_type: 0 };
        p.a.provider.hca().push_event(event);
    }
    p.sim.inject(&p.a.function, &Fault::LinkDown);
    p.sim.advance(Duration::from_secs(1));
    p.a.provider.progress();
    let told = std::iter::from_fn(|| p.a.provider.next_event()).last();
    let down = ProviderEvent::Network(NetworkEvent::PortDown);
    assert_eq!(told, Some(down));
    let error = p.a.provider.route(peer, None).expect_err("it is down");
    assert!(
        matches!(&error, ProviderError::Unreachable { what, .. } if what.contains("is down")),
        "{error:?}"
    );
    p.finish_bare();
}

#[test]
fn a_dead_device_is_told_once_and_everything_can_still_be_destroyed() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    p.a.provider.progress();
    while p.a.provider.next_event().is_some() {}
    p.sim.inject(&p.a.function, &Fault::HealthSyndrome(1));
    let deadline = p.a.provider.now() + 10_000_000_000;
    while let Ok(true) = p.a.provider.wait(deadline) {
        if p.a.provider.next_event() == Some(ProviderEvent::DeviceDead) {
            p.a.provider.alloc_pd().unwrap_err();
            // Destroying objects and closing still work.
            let cq = p.a.cq.as_mut().unwrap();
            p.a.provider.destroy_qp(&mut qa, cq, None).unwrap();
            p.b.destroy_qp(qb);
            return;
        }
    }
    // The wait ended with an error. The event is still queued.
    assert_eq!(p.a.provider.next_event(), Some(ProviderEvent::DeviceDead));
    let cq = p.a.cq.as_mut().unwrap();
    p.a.provider.destroy_qp(&mut qa, cq, None).unwrap();
    p.b.destroy_qp(qb);
}

/// A completion queue that overruns reports an event. One entry more than the queue's capacity arrives; it is lost,
/// which breaks the queue.
#[test]
fn an_overrun_completion_queue_is_an_event() {
    let mut p = pair();
    let small = p.b.provider.create_cq(1, 77).unwrap();
    let capacity = small.capacity();
    let mut cq = p.b.cq.replace(small).unwrap();
    let mut qb = p.b.create_qp(SIZES, 0xb);
    std::mem::swap(&mut cq, p.b.cq());
    let small = cq;
    let mut qa = p.a.create_qp(SIZES, 0xa);
    p.connect(&mut qa, &mut qb, TERMS);
    for n in 0..=capacity {
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), u64::from(n), false)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 64)),
            u64::from(n),
            REPORTED,
        )
        .unwrap();
    }
    p.b.provider.progress();
    let events: Vec<_> = std::iter::from_fn(|| p.b.provider.next_event()).collect();
    assert!(
        events.contains(&ProviderEvent::CqError { owner: 77 }),
        "{events:?}"
    );
    let mut small = small;
    p.b.provider.destroy_qp(&mut qb, &mut small, None).unwrap();
    p.b.provider.destroy_cq(&mut small).unwrap();
    p.a.polled(&mut qa);
    p.a.destroy_qp(qa);
    p.finish_bare();
}
