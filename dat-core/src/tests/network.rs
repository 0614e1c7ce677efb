//! Changes of the port, of addresses and of neighbours: the events, and the connections that end.

use super::*;
use crate::address::Address;
use crate::event::NetworkEvent;
use crate::object::ep::cause::EndCause;
use crate::provider::ProviderEvent;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ConnectionEventKind as Kind;

const UP: NetworkEvent = NetworkEvent::PortUp {
    megabits: Some(100_000),
    mtu: Some(1500),
};

fn heard(side: &mut Side) -> Vec<NetworkEvent> {
    let evd = side.ia.async_evd();
    let network = |event| {
        let Event::Async(AsyncEvent::Network(event)) = event else {
            panic!("{event:?}");
        };
        event
    };
    side.events(evd).into_iter().map(network).collect()
}

fn cause(side: &Side) -> Option<EndCause> {
    side.ia.ep_end_cause(side.ep).expect("an endpoint")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_connection_whose_address_is_removed_is_broken_and_says_why_and_its_peer_hears_of_it() {
    let (net, mut a, mut b) = connected();
    assert_eq!(cause(&a), None, "nothing has ended");
    let address = ip("2001:db8::1");
    let removed = |source_gid_index| ProviderEvent::AddressRemoved {
        source_gid_index,
        address,
    };
    net.report(0, removed(7));
    progress_both(&mut a, &mut b);
    assert_eq!(a.state(), EpState::Connected, "it leaves from another one");
    net.report(0, removed(0));
    progress_both(&mut a, &mut b);
    assert_eq!(a.connection_events(), [Kind::Broken]);
    assert_eq!(cause(&a), Some(EndCause::AddressRemoved));
    assert_eq!(heard(&mut a), [NetworkEvent::AddressRemoved(address); 2]);
    assert_eq!(b.connection_events(), [Kind::Disconnected]);
    assert_eq!(cause(&b), Some(EndCause::PeerDisconnected));
    a.ia.ep_reset(a.ep).expect("it is over");
    assert_eq!(cause(&a), None, "it begins again");
}

#[test]
fn network_events_leave_half_of_the_asynchronous_evd_to_errors() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let room = a.ia.evd_query(a.ia.async_evd()).expect("an EVD").qlen as usize;
    for _ in 0..2 * room {
        net.report(0, ProviderEvent::Network(UP));
    }
    a.ia.progress();
    net.kill(0);
    a.ia.progress();
    let evd = a.ia.async_evd();
    let events = a.events(evd);
    assert_eq!(events.len(), room / 2 + 1);
    assert_eq!(events[0], Event::Async(AsyncEvent::Network(UP)));
    assert_eq!(events[room / 2], Event::Async(AsyncEvent::IaCatastrophic));
}

/// Other hosts can cause events about neighbours without limit. So these events leave space for those about the port.
#[test]
fn events_about_neighbours_leave_room_to_those_about_the_port() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let room = a.ia.evd_query(a.ia.async_evd()).expect("an EVD").qlen as usize;
    let (address, mac) = (ip("192.0.2.7"), [2, 0, 0, 0, 0, 1]);
    let moved = NetworkEvent::NeighbourMoved { address, mac };
    for _ in 0..room {
        net.report(0, ProviderEvent::Network(moved));
        net.report(
            0,
            ProviderEvent::Network(NetworkEvent::NeighbourLost(address)),
        );
    }
    net.report(0, ProviderEvent::Network(NetworkEvent::PortDown));
    a.ia.progress();
    let events = heard(&mut a);
    assert_eq!(events.len(), room / 4 + 1);
    assert_eq!(events.last(), Some(&NetworkEvent::PortDown));
}

/// Counts the log lines of a thread.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicU64>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn events_that_others_cause_have_a_budget_of_log_lines() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let lost = NetworkEvent::NeighbourLost(ip("192.0.2.7"));
    let lines = Lines::default();
    let mut lines_of = |event| {
        let before = lines.0.load(Ordering::Relaxed);
        (0..100).for_each(|_| net.report(0, ProviderEvent::Network(event)));
        tracing::subscriber::with_default(lines.clone(), || a.ia.progress());
        lines.0.load(Ordering::Relaxed) - before
    };
    assert_eq!(lines_of(lost), u64::from(crate::log_budget::LINES));
    assert_eq!(lines_of(NetworkEvent::PortDown), 100);
}

#[test]
fn an_ia_without_network_events_gets_none() {
    let net = Net::default();
    let config = IaConfig {
        network_events: false,
        ..IaConfig::default()
    };
    let mut a = Side::with(&net, config, |_| {});
    net.report(0, ProviderEvent::Network(NetworkEvent::PortDown));
    a.ia.progress();
    assert_eq!(heard(&mut a), []);
}

#[test]
fn addresses_come_and_go_and_refusals_change_nothing() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let first = a.ia.addresses();
    let refused = |subtype| Err(DatError::new(ReturnType::InvalidAddress, subtype));
    let address = ip("192.0.2.7");
    for malformed in [
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "127.0.0.1",
        "ff02::1",
        "::",
    ] {
        let answer = a.ia.address_add(ip(malformed).into());
        assert_eq!(answer, refused(Subtype::AddressMalformed), "{malformed}");
    }
    let too_long = Address {
        prefix: Some(33),
        ..address.into()
    };
    let answer = a.ia.address_add(too_long);
    assert_eq!(answer, refused(Subtype::AddressMalformed));
    assert_eq!(a.ia.addresses(), first);
    // An IPv4-mapped IPv6 address is treated as the IPv4 address.
    a.ia.address_add(ip("::ffff:192.0.2.7").into())
        .expect("room");
    assert_eq!(a.ia.addresses()[1..], [address.into()]);
    let answer = a.ia.address_add(address.into());
    assert_eq!(answer, refused(Subtype::AddressUnsupported), "it is there");
    a.ia.address_remove(address).expect("it is there");
    assert_eq!(
        heard(&mut a),
        [
            NetworkEvent::AddressAdded(address),
            NetworkEvent::AddressRemoved(address)
        ]
    );
    let answer = a.ia.address_remove(address);
    assert_eq!(answer, refused(Subtype::AddressUnsupported), "it is not");
    assert_eq!(a.ia.addresses(), first);
}

#[test]
fn each_end_has_its_cause() {
    let (_, mut a, mut b) = connected();
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("ends");
    progress_both(&mut a, &mut b);
    assert_eq!(cause(&a), Some(EndCause::Disconnected));
    assert_eq!(cause(&b), Some(EndCause::PeerDisconnected));

    let (net, mut a, _b) = connected();
    let qpn = a.qpn();
    net.fail_next(qpn, DtoStatus::ErrRemoteAccess);
    a.send(1, NO_FLAGS).expect("posts");
    assert_eq!(a.completions(a.request), [(1, DtoStatus::ErrRemoteAccess)]);
    let failed = matches!(
        cause(&a),
        Some(EndCause::Dto {
            status: DtoStatus::ErrRemoteAccess,
            ..
        })
    );
    assert!(failed, "{:?}", cause(&a));

    let (net, mut a, mut b) = connected();
    net.kill(0);
    progress_both(&mut a, &mut b);
    assert_eq!(cause(&a), Some(EndCause::AdapterDead));

    let (net, mut a, mut b) = connected();
    net.report(0, ProviderEvent::DeviceRequested);
    progress_both(&mut a, &mut b);
    assert_eq!(cause(&a), Some(EndCause::AdapterWanted));
}

/// The library's network event numbers differ from DAT's numbers in this range: DAT 1.2 has 0x08001 to 0x08005, and DAT
/// 2.0 has 0x08101 and 0x08102.
#[test]
fn network_event_numbers_are_not_dats() {
    let address = ip("192.0.2.7");
    let mac = [2, 0, 0, 0, 0, 1];
    let events = [
        NetworkEvent::PortDown,
        UP,
        NetworkEvent::AddressAdded(address),
        NetworkEvent::AddressRemoved(address),
        NetworkEvent::AddressDuplicate {
            address,
            mac,
            lost: true,
        },
        NetworkEvent::NeighbourMoved { address, mac },
        NetworkEvent::NeighbourLost(address),
        NetworkEvent::NotJoined,
    ];
    let numbers = events.map(|event| Event::Async(AsyncEvent::Network(event)).number());
    assert_eq!(numbers.to_vec(), (0x8020..0x8028).collect::<Vec<u32>>());
}
