//! Peers whose MAC is not configured: the MAC is resolved, and datagrams to the peer wait until then.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dat_core::NetworkEvent;
use dat_core::address::Address;
use dat_core::provider::{MadAddress, Provider, ProviderEvent, Qpn};
use dat_core::types::MemPrivFlags;
use dat_mlx::{MlxProvider, NetworkState, Participation, ProviderConfig};
use driver::{Device, DmaMemory, Function};
use hw_mlx::gid::gid_of;
use hw_mlx::qp::context::GSI_Q_KEY;
use hw_sim::wire::{
    BthRepr, DethRepr, EthRepr, Headers, Ipv4Repr, Ipv6Repr, Network, Opcode, Packet, Psn, UdpRepr,
};
use hw_sim::{Fault, LinkFaults, Sim, SimConfig, SimFunction};
use mlx_prm::{ModifyRqIn, Opcode as CommandOpcode};

use super::pair::{Node, Pair, config, profile};

const SECOND: u64 = 1_000_000_000;

/// Creates two functions on one link that have no configured neighbours.
fn unconfigured_pair() -> Pair {
    unconfigured_pair_after(|_, _| {})
}

/// Does the same, and calls `prepare` with the first function before the functions are opened.
fn unconfigured_pair_after(prepare: impl FnOnce(&Sim, &Arc<SimFunction>)) -> Pair {
    let sim = Sim::new(SimConfig::default());
    let functions = [1, 2].map(|n| sim.add_function(profile(n).ethernet()));
    let link = sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
    prepare(&sim, &functions[0]);
    let [a, b] = [1, 2].map(|n: u8| {
        let mut config = config(n);
        config.neighbours.clear();
        let config = ProviderConfig {
            hca: config,
            network: Participation::Required,
        };
        Node::new(Arc::clone(&functions[usize::from(n) - 1]), config)
    });
    Pair { sim, link, a, b }
}

fn address(n: u8) -> [u8; 16] {
    gid_of(format!("10.0.0.{n}").parse().expect("an address"))
}

fn to(node: &Node, gid: [u8; 16]) -> MadAddress {
    MadAddress {
        path: node.provider.route(gid, None).expect("a path"),
        qpn: Qpn::GSI,
    }
}

/// Runs both nodes until `look` returns a value, at most for `patience` ns.
fn until<T>(
    p: &mut Pair,
    patience: u64,
    mut look: impl FnMut(&mut Pair) -> Option<T>,
) -> Option<T> {
    let deadline = p.a.provider.now() + patience;
    loop {
        for node in [&mut p.a, &mut p.b] {
            node.provider.progress();
        }
        if let Some(found) = look(p) {
            return Some(found);
        }
        let now = p.a.provider.now();
        if now >= deadline {
            return None;
        }
        let timers = [&p.a, &p.b].map(|node| node.provider.next_timeout());
        let next = timers.into_iter().flatten().min().unwrap_or(deadline);
        p.a.provider
            .wait(next.clamp(now, deadline))
            .expect("a live device");
    }
}

/// Returns A's next event that is not a network event.
fn event(p: &mut Pair) -> Option<ProviderEvent> {
    loop {
        let event = p.a.provider.next_event()?;
        if !matches!(event, ProviderEvent::Network(_)) {
            return Some(event);
        }
    }
}

#[test]
fn a_datagram_waits_until_its_destination_is_found_and_its_receiver_until_the_sender_is() {
    let mut p = unconfigured_pair();
    let address = to(&p.a, address(2));
    let mad = [7; 256];
    p.a.provider.send_mad(&address, &mad).expect("it waits");
    let (from, received) = until(&mut p, SECOND, |p| p.b.provider.poll_mad()).expect("it arrives");
    assert_eq!(received, mad);
    p.b.provider
        .send_mad(&from, &[8; 256])
        .expect("it is known");
    let (_, received) = until(&mut p, SECOND, |p| p.a.provider.poll_mad()).expect("the answer");
    assert_eq!(received, [8; 256]);
    p.finish_bare();
}

/// An address that no host has is requested three times, one second apart, and is then reported as unreachable (RFC
/// 4861, 7.2.2: MAX_MULTICAST_SOLICIT requests, RETRANS_TIMER apart; ARP requests follow the same rule).
#[test]
fn an_address_nobody_has_is_asked_for_three_times_and_then_said_to_be_unreachable() {
    let mut p = unconfigured_pair();
    let nobody = to(&p.a, address(99));
    p.a.provider.send_mad(&nobody, &[7; 256]).expect("it waits");
    let started = p.a.provider.now();
    let lost = ProviderEvent::Unreachable { gid: address(99) };
    assert_eq!(until(&mut p, 10 * SECOND, event), Some(lost));
    let waited = p.a.provider.now() - started;
    assert!((3 * SECOND..4 * SECOND).contains(&waited), "{waited} ns");
    // For a while after a failed resolution, no new request is sent.
    p.a.provider
        .send_mad(&nobody, &[7; 256])
        .expect("it is dropped");
    assert_eq!(event(&mut p), Some(lost));
    p.finish_bare();
}

/// Returns a frame with a MAD from the address and station with number `from`, for the station and address of number 1.
pub(crate) fn mad_from(network: [u8; 3], from: u8) -> Vec<u8> {
    let [a, b, c] = network;
    let ip = Ipv4Repr {
        src: [a, b, c, from],
        dst: [a, b, c, 1],
        tos: 0,
        ident: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: 0,
    };
    mad_over(from, |udp| Network::Ipv4(ip, udp))
}

/// Returns a frame with a MAD to A's link-local address, from the link-local address with this number.
fn mad_from_link_local(from: u16) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
    let ip = Ipv6Repr {
        src: address(&format!("fe80::1:{from:x}")),
        dst: address("fe80::ff:fe00:1"),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        payload_len: 0,
    };
    mad_over(77, |udp| Network::Ipv6(ip, udp))
}

/// Returns a frame with a MAD from the station with number `from` for the station of number 1, in these packets.
fn mad_over(from: u8, packets: impl FnOnce(UdpRepr) -> Network) -> Vec<u8> {
    Packet {
        link: EthRepr {
            dst: [2, 0, 0, 0, 0, 1],
            src: [2, 0, 0, 0, 0, from],
            vlan: None,
            ethertype: 0,
        }
        .into(),
        network: packets(UdpRepr {
            src_port: 0xc001,
            payload_len: 0,
        }),
        bth: BthRepr::new(Opcode::ud(false), Qpn::GSI, Psn::masked(0)),
        headers: Headers {
            deth: Some(DethRepr {
                qkey: GSI_Q_KEY,
                src_qpn: Qpn::GSI,
            }),
            ..Headers::NONE
        },
        payload: &[9; 256],
    }
    .emit()
}

/// A datagram from an unknown address is dropped if no host answers for this address, because we could not reply.
#[test]
fn a_datagram_from_an_address_that_nobody_has_is_not_passed_on() {
    let mut p = unconfigured_pair();
    let forged = mad_from([10, 0, 0], 77);
    p.sim.deliver(&p.a.function, &forged);
    let passed_on = until(&mut p, 10 * SECOND, |p| {
        assert_eq!(event(p), None);
        p.a.provider.poll_mad()
    });
    assert_eq!(passed_on, None);
    p.finish_bare();
}

/// Unknown senders, more than the neighbour table has places (1,024), neither evict a neighbour of ours nor keep us
/// from finding another one.
#[test]
fn a_crowd_of_unknown_senders_does_not_cut_us_off_from_our_neighbours() {
    let mut p = unconfigured_pair();
    let [b, other] = [address(2), address(99)].map(|gid| to(&p.a, gid));
    p.a.provider.send_mad(&b, &[7; 256]).expect("it waits");
    until(&mut p, SECOND, |p| p.b.provider.poll_mad()).expect("it arrives");
    for from in 1..=1_100 {
        p.sim.deliver(&p.a.function, &mad_from_link_local(from));
        if from % 25 == 0 {
            p.a.provider.progress();
            assert_eq!(p.a.provider.poll_mad(), None);
        }
    }
    p.a.provider.send_mad(&b, &[8; 256]).expect("it is known");
    let arrived = until(&mut p, SECOND / 10, |p| p.b.provider.poll_mad());
    assert_eq!(arrived.expect("it arrives").1, [8; 256]);
    let asked = |p: &Pair| {
        let counters = p.a.provider.opened().counters().expect("it is open");
        counters.network.expect("it is in the network").asked_all
    };
    let before = asked(&p);
    p.a.provider.send_mad(&other, &[7; 256]).expect("it waits");
    assert_eq!((event(&mut p), asked(&p)), (None, before + 1));
    p.finish_bare();
}

/// Breaks A's Ethernet port and lets the device not answer the command that repairs it, so that A gives the port up.
/// Returns A's events.
fn give_up_port(p: &mut Pair) -> Vec<ProviderEvent> {
    let is_broken = (0..1 << 12).any(|rqn| {
        let mut input = ModifyRqIn::new();
        input.set_rqn(rqn).set_rq_state(1).ctx_mut().set_state(3);
        p.a.provider.hca_mut().exec(&input).is_ok()
    });
    assert!(is_broken);
    let silent = Fault::CommandSilence {
        opcode: Some(CommandOpcode::MODIFY_RQ.0),
        count: 1,
    };
    p.sim.inject(&p.a.function, &silent);
    let mut events = Vec::new();
    for _ in 0..10 {
        p.sim.run_until_idle();
        p.a.provider.progress();
        events.extend(std::iter::from_fn(|| p.a.provider.next_event()));
    }
    events
}

/// If the device does not answer the command that repairs the Ethernet port, the port is given up, and the program
/// gets one event. RDMA goes on.
#[test]
fn a_given_up_port_is_reported_once_and_the_function_goes_on() {
    let mut p = unconfigured_pair();
    let peer = to(&p.a, address(2));
    p.a.provider.send_mad(&peer, &[7; 256]).expect("it waits");
    until(&mut p, SECOND, |p| p.b.provider.poll_mad()).expect("it arrives");
    let events = give_up_port(&mut p);
    assert_eq!(events, [ProviderEvent::Network(NetworkEvent::NotJoined)]);
    let state = p.a.provider.network_state();
    assert!(matches!(state, NetworkState::Without(_)), "{state:?}");
    let mut second =
        p.a.provider
            .opened()
            .instance()
            .expect("made")
            .expect("open");
    assert_eq!(
        second.next_event(),
        Some(ProviderEvent::Network(NetworkEvent::NotJoined))
    );
    second.close().expect("closed");
    // No neighbour is probed, so none is found lost.
    p.sim.advance(Duration::from_secs(120));
    p.a.provider.progress();
    assert_eq!(p.a.provider.next_event(), None);
    p.a.provider
        .send_mad(&peer, &[8; 256])
        .expect("it is known");
    let arrived = until(&mut p, SECOND, |p| p.b.provider.poll_mad());
    assert_eq!(arrived.expect("it arrives").1, [8; 256]);
    p.finish_bare();
}

/// A datagram that waits for a MAC when the port is given up ends then, and a later one at once.
#[test]
fn a_datagram_that_waits_ends_when_the_port_is_given_up() {
    let mut p = unconfigured_pair();
    let nobody = to(&p.a, address(99));
    p.a.provider.send_mad(&nobody, &[7; 256]).expect("it waits");
    assert_eq!(event(&mut p), None);
    let ended = ProviderEvent::Unreachable { gid: address(99) };
    let events = give_up_port(&mut p);
    assert!(events.contains(&ended), "{events:?}");
    p.a.provider
        .send_mad(&nobody, &[7; 256])
        .expect("it is dropped");
    assert_eq!(event(&mut p), Some(ended));
    p.finish_bare();
}

/// A datagram that waits for its link to train ends, too, although no neighbour is asked for then.
#[test]
fn a_datagram_that_waits_for_the_link_ends_when_the_port_is_given_up() {
    let mut p = unconfigured_pair_after(|sim, function| sim.inject(function, &Fault::LinkDown));
    let nobody = to(&p.a, address(99));
    p.a.provider.send_mad(&nobody, &[7; 256]).expect("it waits");
    assert_eq!(event(&mut p), None);
    let ended = ProviderEvent::Unreachable { gid: address(99) };
    let events = give_up_port(&mut p);
    assert!(events.contains(&ended), "{events:?}");
    p.finish_bare();
}

/// After a give-up no timer runs, also if addresses are added and removed: a MAC that is known stays known, no
/// neighbour is reported as lost, and no frame is counted as sent.
#[test]
fn known_neighbours_stay_known_after_the_port_was_given_up() {
    let mut p = unconfigured_pair();
    let peer = to(&p.a, address(2));
    p.a.provider.send_mad(&peer, &[7; 256]).expect("it waits");
    until(&mut p, SECOND, |p| p.b.provider.poll_mad()).expect("it arrives");
    give_up_port(&mut p);
    let counters = |p: &Pair| {
        let counters = p.a.provider.opened().counters().expect("it is open");
        counters.network.expect("it is in the network")
    };
    let before = counters(&p);
    let second = Address::from("10.0.0.200".parse::<IpAddr>().expect("an address"));
    for round in 0..8 {
        p.a.provider
            .send_mad(&peer, &[8; 256])
            .expect("it is known");
        p.a.provider.add_address(&second).expect("room");
        p.a.provider
            .remove_address(second.address)
            .expect("it is there");
        p.sim.advance(Duration::from_secs(6));
        p.a.provider.progress();
        let events: Vec<_> = std::iter::from_fn(|| p.a.provider.next_event()).collect();
        let is_lost = |event: &ProviderEvent| {
            matches!(
                event,
                ProviderEvent::Unreachable { .. }
                    | ProviderEvent::Network(NetworkEvent::NeighbourLost(_))
            )
        };
        assert!(!events.iter().any(is_lost), "round {round}: {events:?}");
    }
    let after = counters(&p);
    assert_eq!(after, before);
    p.finish_bare();
}

/// A given-up port sends no echo request, also not to a neighbour whose MAC is known.
#[test]
fn an_echo_of_a_given_up_port_fails() {
    let mut p = unconfigured_pair();
    let peer = "10.0.0.2".parse().expect("an address");
    let known = until(&mut p, SECOND, |p| {
        let sent = p.a.provider.echo(peer, 1).expect("a working port");
        sent.then_some(())
    });
    assert_eq!(known, Some(()));
    give_up_port(&mut p);
    let error = p.a.provider.echo(peer, 2).expect_err("given up");
    assert!(
        error.to_string().contains("the Ethernet port was given up"),
        "{error}"
    );
    p.finish_bare();
}

/// Unknown senders, more than their share of the table has places (256), evict each other. The datagram of one that
/// answers is still passed on, although datagrams of others go on arriving.
#[test]
fn unknown_senders_that_are_evicted_do_not_keep_a_neighbour_waiting() {
    let mut p = unconfigured_pair();
    let mut strangers = 1..;
    let mut arrive = |p: &mut Pair, count: usize| {
        for from in strangers.by_ref().take(count) {
            p.sim.deliver(&p.a.function, &mad_from_link_local(from));
            p.a.provider.progress();
            assert_eq!(p.a.provider.poll_mad(), None);
        }
    };
    arrive(&mut p, 300);
    let a = to(&p.b, address(1));
    p.b.provider.send_mad(&a, &[7; 256]).expect("it waits");
    let mut found = None;
    for _ in 0..200 {
        found = until(&mut p, SECOND / 10, |p| p.a.provider.poll_mad());
        if found.is_some() {
            break;
        }
        arrive(&mut p, 1);
    }
    assert_eq!(found.expect("it is passed on").1, [7; 256]);
    p.finish_bare();
}

/// A neighbour that a datagram of ours waits for is reported as lost; an unknown sender is not.
#[test]
fn an_unknown_sender_that_is_not_found_is_no_lost_neighbour() {
    let mut p = unconfigured_pair();
    p.sim.deliver(&p.a.function, &mad_from([10, 0, 0], 77));
    assert_eq!(p.a.provider.poll_mad(), None);
    let nobody = to(&p.a, address(99));
    p.a.provider.send_mad(&nobody, &[7; 256]).expect("it waits");
    let mut lost = Vec::new();
    until(&mut p, 10 * SECOND, |p| -> Option<()> {
        let events = std::iter::from_fn(|| p.a.provider.next_event());
        lost.extend(events.filter_map(|event| {
            if let ProviderEvent::Network(NetworkEvent::NeighbourLost(address)) = event {
                Some(address)
            } else {
                None
            }
        }));
        None
    });
    assert_eq!(lost, ["10.0.0.99".parse::<IpAddr>().expect("an address")]);
    p.finish_bare();
}

/// The device has 16 protection domains, completion queues and keys. QP1 uses one of each, and so does the network.
#[test]
fn as_many_objects_as_are_promised_can_be_had_with_and_without_the_network() {
    for (network, left) in [(Participation::Off, 15), (Participation::Required, 14)] {
        let sim = Sim::new(SimConfig::default());
        let mut small = profile(1).ethernet();
        small.general.set(|caps| {
            caps.set_log_max_pd(4).set_log_max_cq(4).set_log_max_mkey(4);
        });
        let device = sim.add_function(small) as Arc<dyn Device>;
        let function = Function::in_process(device).expect("a function");
        let hca = config(1);
        let config = ProviderConfig { hca, network };
        let mut provider = MlxProvider::open(function, config).expect("a provider");
        let limits = provider.limits().clone();
        let promised = [limits.max_pds, limits.max_cqs, limits.max_regions];
        assert_eq!(promised, [left; 3], "{network:?}");
        let pds: Vec<u32> = (0..left).map(|_| provider.alloc_pd().unwrap()).collect();
        let cqs: Vec<_> = (0..left)
            .map(|_| provider.create_cq(16, 1).unwrap())
            .collect();
        let memory = DmaMemory::Arena {
            buffer: provider.arena().alloc(4096, 4096).unwrap(),
            offset: 0,
            bytes: 4096,
        };
        let all = MemPrivFlags::all();
        let regions: Vec<_> = (0..left)
            .map(|_| provider.register(pds[0], &memory, all).unwrap().region)
            .collect();
        for mut region in regions {
            provider.deregister(&mut region).unwrap();
        }
        for mut cq in cqs {
            provider.destroy_cq(&mut cq).unwrap();
        }
        for pd in pds {
            provider.free_pd(pd).unwrap();
        }
        assert_eq!(provider.close().expect("closed").objects_left, []);
    }
}
