//! QP1, neighbours, addresses and the port.

use dat_core::provider::ProviderEvent;
use dat_core::{Echo, NetworkEvent};
use hw_sim::Fault;

use super::*;

fn mad(byte: u8) -> [u8; 256] {
    std::array::from_fn(|n| u8::try_from(n).expect("small").wrapping_add(byte))
}

fn to(provider: &MlxProvider, n: u8) -> MadAddress {
    MadAddress {
        path: provider.route(gid_of(address(n)), None).expect("a path"),
        qpn: Qpn::GSI,
    }
}

/// Opens both functions. Neither knows the other.
fn strangers(world: &World) -> [MlxProvider; 2] {
    [1, 2].map(|n| world.open_in_network(n, false))
}

/// Runs both providers until `find` returns a value.
fn until<T>(
    providers: &mut [MlxProvider; 2],
    mut find: impl FnMut(&mut [MlxProvider; 2]) -> Option<T>,
) -> T {
    let deadline = providers[0].now() + PATIENCE;
    loop {
        providers.iter_mut().for_each(Provider::progress);
        if let Some(found) = find(providers) {
            return found;
        }
        let now = providers[0].now();
        assert!(now < deadline, "not in time");
        providers[0].wait(now + 1_000_000).expect("alive");
    }
}

/// Waits until a provider has a datagram.
fn received(providers: &mut [MlxProvider; 2], n: usize) -> (MadAddress, [u8; 256]) {
    until(providers, |it| it[n].poll_mad())
}

/// Parks the first provider, calls `meanwhile`, and resumes it.
fn handed_over(
    both: [MlxProvider; 2],
    meanwhile: impl FnOnce(&ProviderSnapshot, &mut MlxProvider),
) -> [MlxProvider; 2] {
    let [mut a, b] = resumed(both, meanwhile);
    a.finish_resuming().expect("all is there");
    [a, b]
}

/// Does the same, without the end of the resumption.
fn resumed(
    [a, mut b]: [MlxProvider; 2],
    meanwhile: impl FnOnce(&ProviderSnapshot, &mut MlxProvider),
) -> [MlxProvider; 2] {
    let begun = MlxProvider::begin_parking(vec![a]);
    let parking = begun.map_err(|(_, error)| error).expect("quiet");
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
    meanwhile(&snapshot, &mut b);
    let resumed = resume(&snapshot, descriptors);
    let a = resumed.map_err(|(_, error)| error).expect("resumed");
    [a, b]
}

#[test]
fn datagrams_and_neighbours_go_on() {
    let world = World::new();
    let mut both = strangers(&world);
    let before = world.resets();
    let first = to(&both[0], 2);
    both[0].send_mad(&first, &mad(1)).expect("it waits");
    let (from, bytes) = received(&mut both, 1);
    assert_eq!(bytes, mad(1));
    for round in 0..3 {
        // One datagram was received and not fetched, one comes while the provider is parked.
        both[1].send_mad(&from, &mad(2)).expect("known");
        let now = both[0].now();
        both[0].wait(now + 50_000_000).expect("alive");
        both = handed_over(both, |snapshot, b| {
            let network = snapshot.tables.network.as_ref().expect("a network");
            assert_eq!(network.neighbours.neighbours.len(), 1, "round {round}");
            b.send_mad(&from, &mad(3)).expect("known");
        });
        for byte in [2, 3] {
            assert_eq!(received(&mut both, 0).1, mad(byte), "round {round}");
        }
        assert_eq!(both[0].poll_mad(), None);
        // The neighbour is known, so the datagram is not queued.
        let peer = to(&both[0], 2);
        both[0].send_mad(&peer, &mad(4)).expect("known");
        assert_eq!(received(&mut both, 1).1, mad(4));
        // Each event of QP1 and of the port is followed by others.
        until(&mut both, |it| {
            let is_sent = it[0].echo(address(2), 7).expect("reached");
            is_sent.then_some(())
        });
        let echo = until(&mut both, |it| it[0].take_echo());
        assert_eq!((echo.address, echo.sequence), (address(2), 7));
    }
    assert_eq!(world.resets(), before);
    drop(both);
    world.finish();
}

/// The MAC of the destination is asked for before the parking, and the answer comes while the provider is parked.
#[test]
fn a_datagram_that_waits_for_a_mac_is_sent_after_the_resumption() {
    let world = World::new();
    let both = strangers(&world);
    let peer = to(&both[0], 2);
    let [mut a, b] = both;
    world.stop_time();
    a.send_mad(&peer, &mad(5)).expect("it waits");
    a.progress();
    let counters = a.opened().counters().expect("open").network;
    let mut both = resumed([a, b], |snapshot, b| {
        let network = snapshot.tables.network.as_ref().expect("a network");
        assert_eq!((network.outgoing.len(), network.incoming.len()), (1, 0));
        assert_eq!(network.outgoing[0].mad, mad(5));
        world.go_on();
        let deadline = b.now() + 100_000_000;
        while b.now() < deadline {
            b.progress();
            b.wait(b.now() + 1_000_000).expect("alive");
        }
    });
    // Nothing is sent before the resumption is finished.
    both[0].progress();
    assert_eq!(both[0].opened().counters().expect("open").network, counters);
    both[0].finish_resuming().expect("all is there");
    let (from, bytes) = received(&mut both, 1);
    assert_eq!(bytes, mad(5));
    assert_eq!(both[1].poll_mad(), None);
    assert_ne!(both[0].opened().counters().expect("open").network, counters);
    both[1].send_mad(&from, &mad(6)).expect("known");
    assert_eq!(received(&mut both, 0).1, mad(6));
    drop(both);
    world.finish();
}

/// Overdue timers, and datagrams that have come, are handled after the end of the resumption.
#[test]
fn a_resumption_that_is_not_finished_neither_sends_nor_receives() {
    let world = World::new();
    let mut both = strangers(&world);
    let peer = to(&both[0], 2);
    both[0].send_mad(&peer, &mad(1)).expect("it waits");
    let (from, _) = received(&mut both, 1);
    let mut both = resumed(both, |_, b| b.send_mad(&from, &mad(2)).expect("known"));
    let a = &mut both[0];
    assert_eq!((a.next_timeout(), a.poll_mad()), (None, None));
    let opened = a.opened();
    assert!(opened.instance().expect("no failure").is_none());
    let other: IpAddr = "10.0.0.7".parse().expect("an address");
    for refused in [
        a.send_mad(&peer, &mad(3)),
        a.add_address(&other.into()),
        a.remove_address(address(1)),
        a.echo(address(2), 1).map(drop),
    ] {
        let error = refused.expect_err("it is not finished").to_string();
        assert!(error.contains("the function was resumed"), "{error}");
    }
    a.finish_resuming().expect("all is there");
    assert!(a.next_timeout().is_some());
    assert_eq!(received(&mut both, 0).1, mad(2));
    let peer = to(&both[0], 2);
    both[0].send_mad(&peer, &mad(4)).expect("known");
    assert_eq!(received(&mut both, 1).1, mad(4));
    drop(opened.instance().expect("no failure").expect("open"));
    drop(both);
    world.finish();
}

#[test]
fn addresses_that_were_added_stay_and_others_can_follow() {
    let world = World::new();
    let mut both = strangers(&world);
    let more: [IpAddr; 3] =
        ["10.0.0.7", "10.0.0.8", "2001:db8::9"].map(|text| text.parse().expect("an address"));
    both[0].add_address(&more[0].into()).expect("room");
    let all = both[0].addresses();
    both = handed_over(both, |_, _| {});
    assert_eq!(both[0].addresses(), all);
    both[0].add_address(&more[1].into()).expect("room");
    both[0].add_address(&more[2].into()).expect("room");
    both[0].remove_address(more[0]).expect("ours");
    both = handed_over(both, |_, _| {});
    assert_eq!(both[0].addresses().len(), all.len() + 1);
    // Peers find the new address.
    let peer = MadAddress {
        path: both[1].route(gid_of(more[1]), None).expect("a path"),
        qpn: Qpn::GSI,
    };
    both[1].send_mad(&peer, &mad(1)).expect("it waits");
    assert_eq!(received(&mut both, 0).1, mad(1));
    let removed = until(&mut both, |it| {
        let event = it[0].next_event()?;
        matches!(event, ProviderEvent::AddressRemoved { .. }).then_some(event)
    });
    assert!(
        matches!(removed, ProviderEvent::AddressRemoved { address, .. } if address == more[0]),
        "{removed:?}"
    );
    drop(both);
    world.finish();
}

/// Waits for the next event of the port.
fn port_event(both: &mut [MlxProvider; 2]) -> NetworkEvent {
    until(both, |it| {
        let ProviderEvent::Network(event) = it[0].next_event()? else {
            return None;
        };
        let is_of_port = matches!(event, NetworkEvent::PortDown | NetworkEvent::PortUp { .. });
        is_of_port.then_some(event)
    })
}

#[test]
fn a_port_that_goes_down_and_comes_up_meanwhile_is_reported() {
    let world = World::new();
    let mut both = strangers(&world);
    both = handed_over(both, |snapshot, _| {
        assert_eq!(snapshot.tables.instances[0].down, None);
        world.sim.inject(&world.functions[0], &Fault::LinkDown);
    });
    assert_eq!(port_event(&mut both), NetworkEvent::PortDown);
    assert!(!both[0].port_is_up());
    both = handed_over(both, |snapshot, _| {
        let down = snapshot.tables.instances[0].down.expect("it is down");
        assert!(!down.trains);
    });
    assert!(!both[0].port_is_up());
    let route = both[0].route(gid_of(address(2)), None);
    assert!(
        matches!(route, Err(ProviderError::Unreachable { .. })),
        "{route:?}"
    );
    both = handed_over(both, |_, _| {
        world.sim.inject(&world.functions[0], &Fault::LinkUp);
    });
    let up = port_event(&mut both);
    assert!(matches!(up, NetworkEvent::PortUp { .. }), "{up:?}");
    assert!(both[0].port_is_up());
    let peer = to(&both[0], 2);
    both[0].send_mad(&peer, &mad(1)).expect("it waits");
    assert_eq!(received(&mut both, 1).1, mad(1));
    drop(both);
    world.finish();
}

/// An instance that ends takes the event of the port along. The next instance knows the port's state.
#[test]
fn an_instance_is_parked_whose_port_changed_for_one_that_has_ended() {
    let world = World::new();
    let mut a = world.open_in_network(1, false);
    world.sim.inject(&world.functions[0], &Fault::LinkDown);
    let deadline = a.now() + PATIENCE;
    while a.hca().link_is_up() {
        assert!(a.now() < deadline, "the link is up");
        a.hca_mut().process_events();
    }
    let b = a.opened().instance().expect("no failure").expect("open");
    drop(a);
    let mut both = handed_over([b, world.open_in_network(2, false)], |snapshot, _| {
        let network = snapshot.tables.network.as_ref().expect("a network");
        assert!(!network.neighbours.up);
        world.sim.inject(&world.functions[0], &Fault::LinkUp);
    });
    let up = port_event(&mut both);
    assert!(matches!(up, NetworkEvent::PortUp { .. }), "{up:?}");
    drop(both);
    world.finish();
}

/// The link is down at the opening, so that nothing changes between two parkings. Each field has its own value.
#[test]
fn all_that_the_network_knows_is_in_the_next_snapshot() {
    let world = World::new();
    world.sim.inject(&world.functions[0], &Fault::LinkDown);
    let a = world.open_in_network(1, false);
    assert!(!a.port_is_up());
    let parked = |a: MlxProvider| {
        let begun = MlxProvider::begin_parking(vec![a]);
        let parking = begun.map_err(|(_, error)| error).expect("quiet");
        let finished = MlxProvider::finish_parking(parking);
        finished.map_err(|(_, error)| error).expect("parked")
    };
    let (mut first, descriptors) = parked(a);
    assert!(first.tables.instances[0].down.expect("it is down").trains);
    let network = first.tables.network.as_mut().expect("a network");
    assert!(!network.neighbours.up);
    assert!(network.training_until.is_some());
    network.outgoing = vec![pending()];
    network.incoming = vec![arrived(1), arrived(2)];
    network.found = vec![arrived(3)];
    network.refreshed = Some((address(1), address(2)));
    network.refresh_at += Duration::from_secs(1);
    network.echo_at -= Duration::from_nanos(1);
    network.echo = Some(Echo {
        address: address(2),
        sequence: 5,
        bytes: 6,
        took: Duration::from_nanos(7),
    });
    let resumed = resume(&first, descriptors);
    let mut a = resumed.map_err(|(_, error)| error).expect("resumed");
    a.finish_resuming().expect("all is there");
    let (mut second, descriptors) = parked(a);
    // These fields belong to the process, or change with time.
    let before = first.tables.network.as_ref().expect("a network");
    let network = second.tables.network.as_mut().expect("a network");
    network.neighbours.parked = before.neighbours.parked;
    network.neighbours.counters = before.neighbours.counters;
    network.neighbours.random_words = before.neighbours.random_words;
    assert_eq!(network, before);
    second.tables.instances_made -= 1;
    assert_eq!(second.tables, first.tables);
    drop((descriptors, world.open(2)));
    world.finish();
}

/// The neighbours of queue pairs are marked as in use, because the queue pairs' packets are not seen. The snapshot has
/// the pair of addresses that was marked last.
#[test]
fn the_peer_of_a_queue_pair_is_marked_as_in_use_as_long_as_the_queue_pair_exists() {
    let world = World::new();
    let mut a = Node::new(world.open_in_network(1, true));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    let due = a.provider.next_timeout();
    let parked = a.park();
    let refresh_at = parked
        .snapshot
        .tables
        .network
        .as_ref()
        .expect("a network")
        .refresh_at;
    assert!(due.is_some_and(|due| u128::from(due) <= refresh_at.as_nanos()));
    let mut parked = marked_at_once(parked);
    for round in 0..2 {
        let mut a = parked.resume();
        a.provider.progress();
        a.receive(0);
        b.send(0);
        assert_eq!(cookies(&a.wait_for(1)), [1000], "round {round}");
        assert_eq!(cookies(&b.wait_for(1)), [0], "round {round}");
        parked = a.park();
        let network = parked.snapshot.tables.network.as_ref().expect("a network");
        assert_eq!(network.refreshed, Some((address(1), address(2))));
        parked = marked_at_once(parked);
    }
    let Node {
        mut provider,
        mut things,
    } = parked.resume();
    provider
        .destroy_qp(&mut things.qp, &mut things.cq, None)
        .expect("destroyed");
    provider.progress();
    let Things {
        pd,
        cq,
        qp,
        window,
        memory,
        regions,
        ..
    } = things;
    drop(qp);
    let begun = MlxProvider::begin_parking(vec![provider]);
    let mut parking = begun.map_err(|(_, error)| error).expect("quiet");
    MlxProvider::park_window(&mut parking, window.expect("a window"));
    for region in regions {
        MlxProvider::park_region(&mut parking, region, memory.clone());
    }
    drop(memory);
    MlxProvider::park_cq(&mut parking, cq);
    MlxProvider::park_pd(&mut parking, pd);
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, _) = finished.map_err(|(_, error)| error).expect("parked");
    let network = snapshot.tables.network.as_ref().expect("a network");
    assert_eq!(network.refreshed, None);
    drop(b);
    world.finish();
}

/// Changes a snapshot: no peer was marked, and the marking is due.
fn marked_at_once(mut parked: Parked) -> Parked {
    let network = parked.snapshot.tables.network.as_mut().expect("a network");
    (network.refreshed, network.refresh_at) = (None, Duration::ZERO);
    parked
}
