//! Objects and their work: in flight, not polled, or done while the provider is parked.

use dat_core::provider::{ProviderEvent, ResumedQp, WindowTarget};
use hw_mlx::ParkError;

use super::*;

/// Opens both functions, with a connection.
fn connected(world: &World) -> [Node; 2] {
    let mut a = Node::new(world.open(1));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    [a, b]
}

/// Some messages are done and not polled, some are posted and not sent, and some arrive while the provider is parked.
#[test]
fn work_in_flight_completes_exactly_once() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    let before = world.resets();
    for round in 0..3 {
        for slot in 0..SLOTS {
            a.receive(slot);
            b.receive(slot);
        }
        // These are done, and stay in A's queue.
        (0..2).for_each(|slot| a.send(slot));
        (0..2).for_each(|slot| b.send(slot));
        assert_eq!(cookies(&b.wait_for(4)), [0, 1, 1000, 1001]);
        world.stop_time();
        (2..5).for_each(|slot| a.send(slot));
        (2..6).for_each(|slot| b.send(slot));
        let parked = a.park();
        let counts = parked.objects.qp.send.requests.len();
        assert!(counts >= 3, "round {round}: {counts}");
        world.go_on();
        assert_eq!(
            cookies(&b.wait_for(7)),
            [2, 3, 4, 5, 1002, 1003, 1004],
            "round {round}"
        );
        a = parked.resume();
        let state = a.provider.qp_state(&a.things.qp).expect("answered");
        assert_eq!(state, ResumedQp::ReadyToSend);
        let expected = [0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004, 1005];
        assert_eq!(cookies(&a.wait_for(11)), expected, "round {round}");
        a.check(0..6);
        b.check(0..5);
        // The receives that are left.
        (6..8).for_each(|slot| b.send(slot));
        (5..8).for_each(|slot| a.send(slot));
        assert_eq!(cookies(&a.wait_for(5)), [5, 6, 7, 1006, 1007]);
        assert_eq!(cookies(&b.wait_for(5)), [6, 7, 1005, 1006, 1007]);
        assert_eq!(a.things.qp.0.unmatched_entries(), 0);
    }
    let counts = a.things.qp.counts();
    assert_eq!((counts.requests, counts.recvs), (24, 24));
    assert_eq!(world.resets(), before);
    drop((a, b));
    world.finish();
}

#[test]
fn a_shared_receive_queue_is_parked_with_its_buffers_and_its_limit() {
    let world = World::new();
    let mut a = Node::with_srq(world.open(1));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    (0..6).for_each(|slot| a.receive(slot));
    let srq = a.things.srq.as_ref().expect("an SRQ");
    a.provider.arm_srq_limit(srq, 4).expect("armed");
    (0..2).for_each(|slot| b.send(slot));
    assert_eq!(cookies(&a.wait_for(2)), [1000, 1001]);
    assert_eq!(a.provider.next_event(), None);
    world.stop_time();
    (2..5).for_each(|slot| b.send(slot));
    let parked = a.park();
    world.go_on();
    assert_eq!(cookies(&b.wait_for(5)), [0, 1, 2, 3, 4]);
    a = parked.resume();
    assert_eq!(cookies(&a.wait_for(3)), [1002, 1003, 1004]);
    let limit = ProviderEvent::SrqLimit { owner: SRQ_OWNER };
    assert_eq!(a.provider.next_event(), Some(limit));
    assert_eq!(a.provider.next_event(), None);
    a.check(0..5);
    (6..8).for_each(|slot| a.receive(slot));
    (5..8).for_each(|slot| b.send(slot));
    assert_eq!(cookies(&a.wait_for(3)), [1005, 1006, 1007]);
    assert_eq!(a.things.srq.as_ref().expect("an SRQ").outstanding(), 0);
    drop((a, b));
    world.finish();
}

/// Writes into the window of the other node.
fn write_through(node: &mut Node, key: u32, address: u64) -> DtoStatus {
    node.write(0, &pattern(5));
    let op = RequestOp::RdmaWrite {
        address,
        rmr_context: key,
    };
    let segment = core::iter::once(node.segment(0));
    node.things
        .qp
        .post_request(op, segment, 1, REPORTED)
        .expect("room");
    node.wait_for(1)[0].status
}

#[test]
fn a_window_stays_bound_and_is_bound_anew() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    let at = SLOTS * SLOT_BYTES;
    let target = WindowTarget {
        lmr_context: a.things.key,
        address: a.things.memory.address() + u64::from(at),
        bytes: SLOT_BYTES.into(),
        access: MemPrivFlags::REMOTE_WRITE,
    };
    let bind = |a: &mut Node| {
        let Things { qp, window, .. } = &mut a.things;
        let window = window.as_mut().expect("a window");
        qp.post_bind(window, &target, 2, REPORTED).expect("room")
    };
    let first = bind(&mut a);
    assert_eq!(cookies(&a.wait_for(1)), [2]);
    a = a.park().resume();
    assert_eq!(
        write_through(&mut b, first, target.address),
        DtoStatus::Success
    );
    assert_eq!(a.read(SLOTS), pattern(5));

    // The bind is not done when the provider is parked.
    world.stop_time();
    let second = bind(&mut a);
    let parked = a.park();
    assert_ne!(first, second);
    let Parked {
        snapshot,
        descriptors,
        objects,
    } = parked;
    let resumed = resume(&snapshot, {
        world.go_on();
        descriptors
    });
    let mut provider = resumed.map_err(|(_, error)| error).expect("resumed");
    let things = objects.try_resume(&mut provider).expect("resumed");
    provider.finish_resuming().expect("all is there");
    a = Node { provider, things };
    assert_eq!(cookies(&a.wait_for(1)), [2]);
    assert_eq!(
        write_through(&mut b, second, target.address),
        DtoStatus::Success
    );
    assert_ne!(
        write_through(&mut b, first, target.address),
        DtoStatus::Success
    );
    drop((a, b));
    world.finish();
}

/// The event comes before the parking, while the provider is parked, or afterwards; and the caller asks for events
/// before the queue is known again. In each case the queue has its event once, and can be armed again.
#[test]
fn the_event_of_an_armed_queue_is_counted_once() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    a.provider.watch_cq(&a.things.cq);
    for round in 0..6 {
        for (case, name) in ["before", "meanwhile", "afterwards"]
            .into_iter()
            .enumerate()
        {
            let text = format!("round {round}, {name}");
            a.receive(0);
            a.things.cq.arm(false);
            assert!(a.completions().is_empty());
            if case == 0 {
                b.send(0);
                assert_eq!(cookies(&b.wait_for(1)), [0]);
            }
            if case == 1 {
                world.stop_time();
                b.send(0);
            }
            let Parked {
                snapshot,
                descriptors,
                objects,
            } = a.park();
            if case == 1 {
                world.go_on();
                assert_eq!(cookies(&b.wait_for(1)), [0]);
            }
            let resumed = resume(&snapshot, descriptors);
            let mut provider = resumed.map_err(|(_, error)| error).expect("resumed");
            provider.progress();
            let now = provider.now();
            provider.wait(now).expect("alive");
            let things = objects.try_resume(&mut provider).expect("resumed");
            provider.watch_cq(&things.cq);
            provider.finish_resuming().expect("all is there");
            a = Node { provider, things };
            if case == 2 {
                assert!(a.things.cq.is_armed(), "{text}");
                b.send(0);
                assert_eq!(cookies(&b.wait_for(1)), [0]);
            }
            a.wait_for_event(&text);
            let event = ProviderEvent::CqEntries { owner: CQ_OWNER };
            assert_eq!(a.provider.next_event(), Some(event), "{text}");
            assert_eq!(a.provider.next_event(), None, "{text}");
            assert_eq!(cookies(&a.completions()), [1000], "{text}");
            // The queue can be armed, and has an event.
            a.receive(1);
            a.things.cq.arm(false);
            assert!(a.things.cq.is_armed(), "{text}");
            b.send(1);
            a.wait_for_event(&text);
            assert_eq!(cookies(&a.completions()), [1001], "{text}");
            assert_eq!(cookies(&b.wait_for(1)), [1]);
            while a.provider.next_event().is_some() {}
        }
    }
    drop((a, b));
    world.finish();
}

/// Data that does not change between two parkings is the same in both snapshots.
#[test]
fn a_provider_that_is_parked_again_has_the_same_snapshot() {
    let world = World::new();
    let mut a = Node::with_srq(world.open_in_network(1, true));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    (0..4).for_each(|slot| a.receive(slot));
    (0..2).for_each(|slot| b.send(slot));
    assert_eq!(cookies(&b.wait_for(2)), [0, 1]);
    let first = a.park();
    let (tables, objects) = (first.snapshot.tables.clone(), first.objects.clone());
    let second = first.resume().park();
    assert_eq!(second.objects, objects);
    let mut again = second.snapshot.tables.clone();
    assert_eq!(again.instances_made, tables.instances_made + 1);
    again.instances_made = tables.instances_made;
    let [network, before] = [&mut again.network, &mut tables.network.clone()]
        .map(|network| network.take().expect("a network"));
    assert_eq!(again.gsi, tables.gsi);
    assert_eq!(network.ethernet.objects, before.ethernet.objects);
    assert_eq!(network.neighbours.addresses, before.neighbours.addresses);
    assert_eq!(network.refresh_at, before.refresh_at);
    again.network = tables.network.clone();
    assert_eq!(again, tables);
    drop((second.resume(), b));
    world.finish();
}

#[test]
fn counters_and_limits_go_on() {
    let world = World::new();
    let a = Node::new(world.open(1));
    let counted = |node: &Node| {
        let counters = node.provider.opened().counters().expect("open");
        (
            counters.registrations,
            counters.regions,
            counters.registered_bytes,
        )
    };
    let (counts, limits) = (counted(&a), a.provider.limits().clone());
    let mut a = a.park().resume();
    assert_eq!(counted(&a), counts);
    assert_eq!(*a.provider.limits(), limits);
    let mut region = a.things.regions.pop().expect("a region");
    a.provider.deregister(&mut region).expect("deregistered");
    let memory = &a.things.memory;
    let another = a
        .provider
        .register(a.things.pd, memory, ALL)
        .expect("a region");
    assert_eq!(counted(&a), (counts.0 + 1, counts.1, counts.2));
    a.things.regions.push(another.region);

    // All can be destroyed, and nothing is left.
    let Node {
        provider: mut a,
        things,
    } = a;
    let Things {
        pd,
        mut cq,
        mut qp,
        window,
        regions,
        memory,
        ..
    } = things;
    a.destroy_qp(&mut qp, &mut cq, None).expect("destroyed");
    a.destroy_window(&mut window.expect("a window"))
        .expect("destroyed");
    for mut region in regions {
        a.deregister(&mut region).expect("deregistered");
    }
    drop(memory);
    a.destroy_cq(&mut cq).expect("destroyed");
    a.free_pd(pd).expect("freed");
    drop((cq, qp));
    assert_eq!(a.close().expect("closed").objects_left, []);
    drop(world.open(2));
    world.finish();
}

/// Another function has lowered the port's MTU. Consumers know the limits of the opening, which are checked by an IA.
#[test]
fn limits_stay_when_the_mtu_of_the_port_was_lowered() {
    let world = World::new();
    let a = Node::new(world.open(1));
    let limits = a.provider.limits().clone();
    let mut parked = a.park();
    parked.snapshot.hca.tables.port.mtu = 1000;
    let a = parked.resume();
    assert_eq!(*a.provider.limits(), limits);
    assert!(a.provider.hca().mtu() < limits.mtu);
    // The lower MTU is in the next snapshot, too.
    let a = a.park().resume();
    assert_eq!(*a.provider.limits(), limits);
    drop((a, world.open(2)));
    world.finish();
}

/// Two processes with one seed would give two connections the same identifiers.
#[test]
fn random_numbers_of_a_configured_seed_do_not_come_again() {
    let world = World::new();
    let mut config = config(1);
    config.seed = Some(3);
    let mut provider = MlxProvider::open(world.function(1), config).expect("bring-up");
    let mut drawn = std::collections::BTreeSet::new();
    let mut keys = Vec::new();
    for _ in 0..3 {
        for _ in 0..100 {
            assert!(drawn.insert(provider.random()));
        }
        let pd = provider.alloc_pd().expect("a PD");
        let memory = DmaMemory::from(provider.arena().alloc(64, 64).expect("memory"));
        for _ in 0..10 {
            let registered = provider.register(pd, &memory, ALL).expect("a region");
            keys.push(registered.lmr_context & 0xff);
            let mut region = registered.region;
            provider.deregister(&mut region).expect("deregistered");
        }
        provider.free_pd(pd).expect("freed");
        drop(memory);
        let begun = MlxProvider::begin_parking(vec![provider]);
        let parking = begun.map_err(|(_, error)| error).expect("quiet");
        let finished = MlxProvider::finish_parking(parking);
        let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
        let resumed = resume(&snapshot, descriptors);
        provider = resumed.map_err(|(_, error)| error).expect("resumed");
        provider.finish_resuming().expect("all is there");
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(
        keys.len(),
        30,
        "no key has the variant of one of the last 64"
    );
    drop((provider, world.open(2)));
    world.finish();
}

/// A buffer of the program keeps the function from being parked. The parking is cancelled, and the provider goes on.
#[test]
fn a_parking_that_cannot_be_finished_is_cancelled() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    let before = world.resets();
    for cancels in [true, false] {
        (0..2).for_each(|slot| a.receive(slot));
        let buffer = a.provider.arena().alloc(100, 64).expect("memory");
        world.stop_time();
        b.send(0);
        let (parking, objects) = a.written_out();
        let finished = MlxProvider::finish_parking(parking);
        let (parking, error) = finished.expect_err("in use");
        let expected = ParkError::MemoryInUse { count: 1 }.to_string();
        assert!(error.to_string().contains(&expected), "{error}");
        drop(buffer);
        world.go_on();
        let provider = if cancels {
            let cancelled = MlxProvider::cancel_parking(parking);
            only(cancelled.map_err(|(_, error)| error).expect("cancelled"))
        } else {
            let finished = MlxProvider::finish_parking(parking);
            let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
            let resumed = resume(&snapshot, descriptors);
            resumed.map_err(|(_, error)| error).expect("resumed")
        };
        a = objects.resume(provider);
        b.send(1);
        assert_eq!(cookies(&a.wait_for(2)), [1000, 1001]);
        assert_eq!(cookies(&b.wait_for(2)), [0, 1]);
        a.check(0..2);
    }
    assert_eq!(world.resets(), before);
    drop((a, b));
    world.finish();
}
