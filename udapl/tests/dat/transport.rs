//! Network properties of an endpoint's connections, on the simulator: the device's configuration, the address that a
//! request comes from, and how keep-alive detects a dead peer.

use core::time::Duration;
use std::net::IpAddr;

use udapl::connection::EndCause;
use udapl::endpoint::{EpChange, EpState, EpTransport};
use udapl::error::ReturnType;
use udapl::fabric::Fabric;
use udapl::network::{Address, Vlan};
use udapl::{CloseFlags, ConnectFlags, ConnectionEventKind as Kind, OpenOptions, Qos};

use crate::support::wire::packets_to;
use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

fn set(pair: &mut Pair, side: usize, transport: EpTransport) {
    let ep = pair.sides[side].ep;
    let change = EpChange {
        transport: Some(transport),
        ..EpChange::default()
    };
    let changed = pair.sides[side].ia.ep_modify(ep, &change);
    changed.expect("legal");
}

fn connect(pair: &mut Pair, to: IpAddr, qos: Qos) {
    let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
    let started = pair.sides[A]
        .ia
        .ep_connect(ep, to, CONN_QUAL, LONG, b"", qos, none);
    started.expect("it starts");
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.expect_alive();
}

/// Returns DSCP, priority, flow label and hop limit that the driver configured in a side's queue pair.
fn configured_path(pair: &mut Pair, side: usize) -> [u32; 4] {
    let (_, context) = pair.connected_qp(side);
    let path = context.primary_address_path();
    [
        path.dscp(),
        path.eth_prio(),
        path.flow_label(),
        path.hop_limit(),
    ]
}

/// Returns settings that put both sides into VLAN 100, with priority 3 for their frames.
fn tagged() -> PairConfig {
    let options = [A, B].map(|side| {
        let vlan = Some(Vlan {
            id: 100,
            priority: 3,
        });
        OpenOptions::default().interface(Address {
            prefix: Some(8),
            vlan,
            ..Fabric::ipv4(side).into()
        })
    });
    PairConfig {
        options,
        ..PairConfig::default()
    }
}

/// The queue pairs of both ends have the network settings of the endpoint that connects. PRM "Address Path": dscp,
/// eth_prio, flow_label, hop_limit. IBTA volume 1, REQ: traffic class, SL, flow label.
#[test]
fn a_connection_has_the_settings_of_its_endpoint_and_the_peer_does_the_same() {
    let mut pair = Pair::unconnected(&tagged());
    let transport = EpTransport {
        dscp: Some(26),
        priority: Some(5),
        flow_label: Some(0x1_2345),
        hop_limit: Some(9),
        retry_count: Some(4),
        rnr_retry: Some(3),
        ack_timeout: Some(17),
        ..EpTransport::default()
    };
    set(&mut pair, A, transport);
    connect(&mut pair, Fabric::ipv4(B), Qos::BEST_EFFORT);
    assert_eq!(configured_path(&mut pair, A), [26, 5, 0x1_2345, 9]);
    let [dscp, priority, label, _] = configured_path(&mut pair, B);
    assert_eq!([dscp, priority, label], [26, 5, 0x1_2345]);
    for side in [A, B] {
        let (_, context) = pair.connected_qp(side);
        assert_eq!(context.retry_count(), 4);
        assert_eq!(context.rnr_retry(), 3);
        assert_eq!(context.primary_address_path().ack_timeout(), 17);
    }
    pair.assert_no_complaints();
}

#[test]
fn who_accepts_may_have_settings_of_his_own() {
    let mut pair = Pair::unconnected(&tagged());
    let asked = EpTransport {
        dscp: Some(10),
        ..EpTransport::default()
    };
    let own = EpTransport {
        dscp: Some(48),
        priority: Some(6),
        min_rnr_timer: Some(20),
        ..EpTransport::default()
    };
    set(&mut pair, A, asked);
    set(&mut pair, B, own);
    connect(&mut pair, Fabric::ipv4(B), Qos::BEST_EFFORT);
    let [dscp, priority, ..] = configured_path(&mut pair, A);
    assert_eq!([dscp, priority], [10, 3]);
    let [dscp, priority, ..] = configured_path(&mut pair, B);
    assert_eq!([dscp, priority], [48, 6]);
    let (_, context) = pair.connected_qp(B);
    assert_eq!(context.min_rnr_nak(), 20);
    pair.assert_no_complaints();
}

/// Each quality of service sets a DSCP (RFC 4594, table 3; RFC 8622) and a priority (IEEE 802.1Q-2018, table I-2).
#[test]
fn a_quality_of_service_is_a_code_point_and_a_priority() {
    for (qos, dscp, priority) in [
        (Qos::BEST_EFFORT, 0, 3),
        (Qos::HIGH_THROUGHPUT, 10, 2),
        (Qos::LOW_LATENCY, 18, 3),
        (Qos::ECONOMY, 1, 1),
        (Qos::PREMIUM, 46, 5),
    ] {
        let mut pair = Pair::unconnected(&tagged());
        connect(&mut pair, Fabric::ipv4(B), qos);
        let path = configured_path(&mut pair, A);
        assert_eq!(path[..2], [dscp, priority], "{qos:?}");
        pair.assert_no_complaints();
    }
}

#[test]
fn a_connection_leaves_from_the_address_that_its_endpoint_names() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let second: IpAddr = "10.0.0.50".parse().expect("an address");
    let added = pair.sides[A].ia.address_add(Address {
        prefix: Some(8),
        ..second.into()
    });
    added.expect("there is room");
    let from = |source: &str| EpTransport {
        source_address: Some(source.parse().expect("an address")),
        ..EpTransport::default()
    };
    let to = Fabric::ipv4(B);
    for nobodys in ["10.0.0.51", "2001:db8::1"] {
        set(&mut pair, A, from(nobodys));
        let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
        let best = Qos::BEST_EFFORT;
        let started = pair.sides[A]
            .ia
            .ep_connect(ep, to, CONN_QUAL, LONG, b"", best, none);
        refused(started, ReturnType::InvalidAddress);
    }
    set(&mut pair, A, from("10.0.0.50"));
    let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
    let started = pair.sides[A]
        .ia
        .ep_connect(ep, to, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none);
    started.expect("it starts");
    let cr = pair.request(B);
    let asked = pair.sides[B].ia.cr_query(cr).expect("a request");
    assert_eq!(asked.remote_ia_address, second);
    // Both sides have a link-local address, too, which comes first.
    assert_eq!(asked.local_ia_address, to);
    let b = pair.sides[B].ep;
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    for side in [A, B] {
        pair.expect_connection(side, Kind::Established);
    }
    let own = |pair: &Pair, side: usize| {
        let side = &pair.sides[side];
        let param = side.ia.ep_query(side.ep).expect("an EP");
        param.local_ia_address
    };
    assert_eq!([A, B].map(|side| own(&pair, side)), [second, to]);
    // The endpoint names the address of its connection until it is reset, even if the adapter has it no more.
    let removed = pair.sides[A].ia.address_remove(second);
    removed.expect("it is there");
    pair.expect_connection(A, Kind::Broken);
    pair.run_for(10_000);
    assert_eq!(own(&pair, A), second);
    pair.sides[A].ia.ep_reset(ep).expect("disconnected");
    assert_ne!(own(&pair, A), second);
}

/// Connects both sides; only A uses keep-alive, with this interval.
fn kept_alive(interval: Duration) -> Pair {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let transport = EpTransport {
        keep_alive: Some(interval),
        ..EpTransport::default()
    };
    set(&mut pair, A, transport);
    connect(&mut pair, Fabric::ipv4(B), Qos::BEST_EFFORT);
    pair
}

#[test]
fn a_peer_that_dies_without_a_word_is_noticed_on_an_idle_connection() {
    let mut pair = kept_alive(Duration::from_secs(1));
    pair.run_for(20_000);
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    let idle = pair.sides[A].ia.ep_stats(a).expect("an endpoint");
    let requests = packets_to(&pair.fabric, B, "WriteOnly");
    assert!((8..=24).contains(&requests.len()), "{}", requests.len());
    pair.cut();
    pair.expect_end(A, Kind::Broken);
    let cause = pair.sides[A].ia.ep_end_cause(a).expect("an endpoint");
    assert!(
        matches!(cause, Some(EndCause::KeepAlive { .. })),
        "{cause:?}"
    );
    let after = pair.sides[A].ia.ep_stats(a).expect("an endpoint");
    assert_eq!(idle.requests, after.requests, "none was the consumer's");
    // B, which has no keep-alive, does not notice that the link is cut.
    assert_eq!(pair.state_of(B, b), EpState::Connected);
}

#[test]
fn a_graceful_disconnect_waits_for_a_trial_and_ends() {
    let mut pair = kept_alive(Duration::from_millis(10));
    pair.run_for(100);
    pair.set_delay(5_000);
    let ep = pair.sides[A].ep;
    // The library's own requests have doorbells, too.
    let posted = |pair: &Pair| pair.sides[A].ia.ep_stats(ep).expect("an EP").doorbells;
    let before = posted(&pair);
    let begun = (0..1_000).any(|_| {
        pair.pump();
        posted(&pair) > before
    });
    assert!(begun, "no trial within 100 ms");
    let disconnected = pair.sides[A].ia.ep_disconnect(ep, CloseFlags::Graceful);
    disconnected.expect("CONNECTED");
    // The peer's answer takes 10 ms.
    pair.run_for(8);
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    pair.expect_end(A, Kind::Disconnected);
    pair.expect_end(B, Kind::Disconnected);
    assert_eq!(posted(&pair), before + 1, "the trial is the last request");
    pair.assert_no_complaints();
}
