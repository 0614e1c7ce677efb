//! Management datagrams through QP1.

use std::time::Duration;

use dat_core::provider::{MadAddress, Provider, ProviderError, ProviderEvent, Qpn};
use hw_mlx::gid::gid_of;
use hw_sim::{Fault, Faults, LinkFaults};
use mlx_prm::{CmdStatus, Opcode, ToErrQpIn};

use super::pair::{Node, config, pair, pair_with, profile};

fn mad(seed: u8) -> [u8; 256] {
    std::array::from_fn(|n| u8::try_from(n).unwrap().wrapping_mul(3).wrapping_add(seed))
}

fn to(node: &Node, gid: [u8; 16]) -> MadAddress {
    MadAddress {
        path: node.provider.route(gid, None).expect("a path"),
        qpn: Qpn::GSI,
    }
}

fn receive(node: &mut Node) -> (MadAddress, [u8; 256]) {
    let deadline = node.provider.now() + 1_000_000_000;
    loop {
        if let Some(received) = node.provider.poll_mad() {
            return received;
        }
        assert!(
            node.provider.now() < deadline,
            "no datagram within a second"
        );
        node.provider.wait(deadline).expect("a live device");
    }
}

#[test]
fn a_datagram_over_ipv6_names_its_sender_and_can_be_answered() {
    let mut p = pair();
    let address = to(&p.a, p.b.gid());
    p.a.provider.send_mad(&address, &mad(1)).unwrap();
    let (from, received) = receive(&mut p.b);
    assert_eq!(received, mad(1));
    assert_eq!(
        (from.path.gid, from.qpn, from.path.source_gid_index),
        (p.a.gid(), Qpn::GSI, 0)
    );
    p.b.provider.send_mad(&from, &mad(2)).unwrap();
    let (from, received) = receive(&mut p.a);
    assert_eq!((received, from.path.gid), (mad(2), p.b.gid()));
    p.finish_bare();
}

#[test]
fn a_datagram_over_ipv4_comes_with_mapped_addresses() {
    let mut p = pair();
    let address = to(&p.a, gid_of("10.0.0.2".parse().unwrap()));
    assert_eq!(address.path.source_gid_index, 1);
    p.a.provider.send_mad(&address, &mad(3)).unwrap();
    let (from, received) = receive(&mut p.b);
    assert_eq!(received, mad(3));
    assert_eq!(from.path.gid, gid_of("10.0.0.1".parse().unwrap()));
    assert_eq!(from.path.source_gid_index, 1);
    p.b.provider.send_mad(&from, &mad(4)).unwrap();
    assert_eq!(receive(&mut p.a).1, mad(4));
    p.finish_bare();
}

/// Datagrams are sent as ECN-capable (Linux `ah.c` `MLX5_ECN_ENABLED`), so that a congested switch marks them instead
/// of dropping them. A datagram sent from an address in a VLAN carries the VLAN's tag and priority.
#[test]
fn datagrams_may_be_marked_and_are_in_the_vlan_of_their_address() {
    use hw_mlx::Vlan;
    use hw_sim::{Sim, SimConfig};
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<u8>>>);
    impl Write for Capture {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let sim = Sim::new(SimConfig::default());
    let capture = Capture::default();
    let functions = [1, 2].map(|n| sim.add_function(profile(n)));
    sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
    sim.pcap(capture.clone()).expect("a capture");
    let [mut a, mut b] = [1, 2].map(|n: u8| {
        let mut config = config(n);
        let vlan = Vlan {
            id: 100,
            priority: 3,
        };
        config.addresses[0].vlan = Some(vlan);
        Node::new(Arc::clone(&functions[usize::from(n) - 1]), config)
    });
    let peer = gid_of("10.0.0.2".parse().expect("an address"));
    let address = to(&a, peer);
    a.provider.send_mad(&address, &mad(3)).expect("sent");
    let (from, received) = receive(&mut b);
    assert_eq!((received, from.path.traffic_class), (mad(3), 0));
    sim.flush_pcap().expect("a capture");
    let bytes = capture.0.lock().expect("no panic");
    // TPID, priority and VLAN, EtherType IPv4, the first two bytes of the IPv4 header.
    let headers = [0x81, 0x00, 3 << 5, 100, 0x08, 0x00, 0x45, 0x02];
    let found = bytes.windows(8).any(|window| window == headers);
    assert!(found, "{:02x?}", &bytes[..bytes.len().min(400)]);
}

/// 1000 datagrams arrive in order, each after a wait. They are more than the slots, and wrap every ring.
#[test]
fn datagrams_keep_arriving_and_wake_the_waiter_each_time() {
    let mut p = pair_with(
        3,
        LinkFaults::both(Faults {
            delay_ns: 5_000,
            ..Faults::NONE
        }),
    );
    let address = to(&p.a, p.b.gid());
    for n in 0..1000_u32 {
        let seed = u8::try_from(n % 256).unwrap();
        p.a.provider.send_mad(&address, &mad(seed)).unwrap();
        assert_eq!(receive(&mut p.b).1, mad(seed));
    }
    p.finish_bare();
}

#[test]
fn datagrams_that_come_in_a_burst_are_kept_in_order() {
    let mut p = pair();
    let address = to(&p.a, p.b.gid());
    for n in 0..100 {
        p.a.provider.send_mad(&address, &mad(n)).unwrap();
    }
    for n in 0..100 {
        assert_eq!(receive(&mut p.b).1, mad(n));
    }
    assert!(p.b.provider.poll_mad().is_none());
    p.finish_bare();
}

/// QP1 keeps 512 datagrams that the provider has not read. The device drops none, because its entries are processed.
#[test]
fn datagrams_beyond_those_that_qp1_keeps_are_dropped_and_counted() {
    let mut p = pair();
    let address = to(&p.a, p.b.gid());
    for _ in 0..7 {
        for n in 0..100 {
            p.a.provider.send_mad(&address, &mad(n)).unwrap();
        }
        let deadline = p.a.provider.now() + 1_000_000_000;
        p.a.provider.await_mads(deadline);
        p.b.provider.await_mads(deadline);
    }
    let dropped = |node: &Node| {
        let counters = node.provider.opened().counters();
        counters.expect("it is open").mads_dropped
    };
    let mut received = 0;
    while received + dropped(&p.b) < 700 {
        receive(&mut p.b);
        received += 1;
    }
    assert!((512..700).contains(&received), "{received}");
    assert_eq!(dropped(&p.a), 0);
    p.finish_bare();
}

/// If QP1 is in error, its requests and receives are flushed, and the next `progress` repairs it.
#[test]
fn a_broken_qp1_is_repaired() {
    let mut p = pair();
    for round in 0..3 {
        let mut command = ToErrQpIn::new();
        command.set_qpn(p.a.provider.gsi_number().get());
        p.a.provider.hca_mut().exec(&command).unwrap();
        assert_eq!(
            p.a.provider.poll_mad().map(|received| received.1),
            None,
            "flushed receives are no datagrams"
        );
        let address = to(&p.a, p.b.gid());
        let refused = p.a.provider.send_mad(&address, &mad(1));
        assert!(
            matches!(refused, Err(ProviderError::Resources(_))),
            "{refused:?}"
        );
        p.a.provider.progress();
        p.a.provider.send_mad(&address, &mad(round)).unwrap();
        let (from, received) = receive(&mut p.b);
        assert_eq!(received, mad(round));
        p.b.provider.send_mad(&from, &mad(round + 100)).unwrap();
        assert_eq!(receive(&mut p.a).1, mad(round + 100));
        // A queue pair that breaks again at once is repaired after a pause.
        p.sim.advance(Duration::from_secs(1));
    }
    p.finish_bare();
}

fn break_qp1(node: &mut Node) {
    let mut command = ToErrQpIn::new();
    command.set_qpn(node.provider.gsi_number().get());
    node.provider.hca_mut().exec(&command).unwrap();
    assert_eq!(node.provider.poll_mad().map(|received| received.1), None);
}

/// If the device refuses to repair QP1, or does not take the command in, the repair is tried again after a pause. Each
/// call would otherwise repeat it. The function is not stopped, because its connections do not need QP1.
#[test]
fn a_refused_repair_of_qp1_is_repeated_after_a_pause_and_stops_nothing() {
    let (opcode, count) = (Some(Opcode::INIT2RTR_QP.0), 2);
    let refused = Fault::CommandFailure {
        opcode,
        status: CmdStatus::BAD_RESOURCE.0,
        syndrome: 0,
        count,
    };
    let undelivered = Fault::CommandDelivery {
        opcode,
        status: 0x06,
        count,
    };
    for fault in [refused, undelivered] {
        let mut p = pair();
        break_qp1(&mut p.a);
        p.sim.inject(&p.a.function, &fault);
        for seconds in [1, 2] {
            p.a.provider.progress();
            let due = p.a.provider.now() + seconds * 1_000_000_000;
            // A second attempt before `due` would fail and move the time of the next repair.
            p.a.provider.progress();
            assert_eq!(p.a.provider.next_timeout(), Some(due), "{fault:?}");
            p.sim.advance(Duration::from_secs(seconds));
        }
        p.a.provider.progress();
        assert_eq!(p.a.provider.next_timeout(), None, "{fault:?}");
        let events: Vec<_> = std::iter::from_fn(|| p.a.provider.next_event()).collect();
        assert_eq!(events, [], "{fault:?}");
        let address = to(&p.a, p.b.gid());
        p.a.provider.send_mad(&address, &mad(1)).unwrap();
        assert_eq!(receive(&mut p.b).1, mad(1));
        p.finish_bare();
    }
}

/// An attempt to repair QP1 that is not answered holds up all instances, so it is not repeated.
#[test]
fn a_repair_of_qp1_that_is_not_answered_stops_the_function() {
    let mut p = pair();
    break_qp1(&mut p.a);
    let silent = Fault::CommandSilence {
        opcode: Some(Opcode::INIT2RTR_QP.0),
        count: 1,
    };
    p.sim.inject(&p.a.function, &silent);
    p.a.provider.progress();
    p.a.provider.progress();
    assert_eq!(p.a.provider.next_timeout(), None);
    let events: Vec<_> = std::iter::from_fn(|| p.a.provider.next_event()).collect();
    assert_eq!(events, [ProviderEvent::DeviceDead]);
}

#[test]
fn an_address_nobody_knows_cannot_be_resolved() {
    let p = pair();
    let outcome =
        p.a.provider
            .route(gid_of("10.9.9.9".parse().unwrap()), None);
    assert!(
        matches!(outcome, Err(ProviderError::Unreachable { .. })),
        "{outcome:?}"
    );
    p.finish_bare();
}
