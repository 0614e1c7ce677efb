//! Providers that are not parked: the refusal names the reason, and the provider goes on.

use driver::DmaPool;
use hw_sim::Fault;
use mlx_prm::{CmdStatus, Opcode, ToErrQpIn};

use super::*;

/// Begins a parking that is refused. Returns the provider and the reason.
fn not_begun(provider: MlxProvider) -> (MlxProvider, String) {
    let (all, error) = MlxProvider::begin_parking(vec![provider]).expect_err("it is in use");
    (only(all), error.to_string())
}

/// Finishes a parking that is refused. Returns the parking and the reason.
fn not_finished(parking: ParkingProvider) -> (ParkingProvider, String) {
    let (parking, error) = MlxProvider::finish_parking(parking).expect_err("it has objects");
    (parking, error.to_string())
}

fn begun(provider: MlxProvider) -> ParkingProvider {
    let begun = MlxProvider::begin_parking(vec![provider]);
    begun.map_err(|(_, error)| error).expect("quiet")
}

#[test]
fn a_provider_with_another_instance_is_not_parked() {
    let world = World::new();
    let mut a = world.open(1);
    let other = a.opened().instance().expect("an instance").expect("open");
    world.sim.inject(&world.functions[0], &Fault::LinkDown);
    let deadline = a.now() + PATIENCE;
    while a.hca().link_is_up() {
        assert!(a.now() < deadline, "the link is up");
        a.hca_mut().process_events();
    }
    let (a, error) = not_begun(a);
    assert!(error.contains("2 instances"), "{error}");
    assert!(a.port_is_up(), "its events are those of before");
    world.sim.inject(&world.functions[0], &Fault::LinkUp);
    drop(other);
    let opened = a.opened();
    let node = Node::new(a).park().resume();
    assert!(opened.instance().expect("no failure").is_none());
    assert!(opened.counters().is_none());
    drop((node, world.open(2)));
    world.finish();
}

#[test]
fn a_resumption_is_finished_before_the_next_parking() {
    let world = World::new();
    let Parked {
        snapshot,
        descriptors,
        objects,
    } = Node::new(world.open(1)).park();
    let resumed = resume(&snapshot, descriptors);
    let provider = resumed.map_err(|(_, error)| error).expect("resumed");
    let (mut provider, error) = not_begun(provider);
    assert!(error.contains("resumption is not finished"), "{error}");
    let error = provider.finish_resuming().expect_err("objects are missing");
    assert!(
        error.to_string().contains("0 protection domains of 1"),
        "{error}"
    );
    let pd = provider.resume_pd(&objects.pd).expect("resumed");
    let resumed = provider.resume_region(pd, ALL, &objects.regions[0]);
    let (registration, memory) = resumed.expect("resumed");
    let error = provider.can_park_region(&registration.region, &memory);
    let error = error.expect_err("the resumption is not finished");
    assert!(
        error.to_string().contains("resumption is not finished"),
        "{error}"
    );
    let error = provider.finish_resuming().expect_err("objects are missing");
    assert!(error.to_string().contains("mkey 2, CQ 1, QP 1"), "{error}");
    let error = provider.resume_pd(&objects.pd).expect_err("it is there");
    assert!(
        error.to_string().contains("has an owner already"),
        "{error}"
    );
    drop((registration, memory, provider, world.open(2)));
    world.finish();
}

#[test]
fn a_dead_provider_is_not_parked() {
    let world = World::new();
    let mut a = world.open(1);
    a.stop("of a test");
    let (a, error) = MlxProvider::begin_parking(vec![a]).expect_err("it is dead");
    assert!(matches!(error, ProviderError::Dead(_)), "{error}");
    drop((a, world.open(2)));
    world.finish();
}

#[test]
fn a_provider_whose_qp1_waits_for_a_repair_is_not_parked() {
    let world = World::new();
    let mut a = world.open(1);
    let refused = Fault::CommandFailure {
        opcode: Some(Opcode::RST2INIT_QP.0),
        status: CmdStatus::BAD_RES_STATE.0,
        syndrome: 0,
        count: 1,
    };
    world.sim.inject(&world.functions[0], &refused);
    let mut command = ToErrQpIn::new();
    command.set_qpn(a.gsi_number().get());
    a.hca_mut().exec(&command).expect("in error");
    let deadline = a.now() + PATIENCE;
    while a.next_timeout().is_none() {
        assert!(a.now() < deadline, "it was not repaired");
        a.progress();
        assert_eq!(a.poll_mad(), None);
    }
    let (mut a, error) = not_begun(a);
    assert!(error.contains("QP1 has failed"), "{error}");
    while let Some(due) = a.next_timeout() {
        assert!(a.now() < deadline, "it was not repaired");
        a.wait(due).expect("alive");
        a.progress();
    }
    let node = Node::new(a).park().resume();
    drop((node, world.open(2)));
    world.finish();
}

#[test]
fn memory_that_is_not_of_the_arena_is_refused_by_name() {
    let world = World::new();
    let mut a = world.open(1);
    let pd = a.alloc_pd().expect("a PD");
    let pool = DmaPool::builder(a.hca().function()).build(1 << 20);
    let pool = pool.expect("memory");
    let memory = pool.memory(4096).expect("memory");
    let region = a.register(pd, &memory, ALL).expect("a region").region;
    let error = a.can_park_region(&region, &memory).expect_err("a pool's");
    let text = error.to_string();
    assert!(text.contains("use memory of that arena instead"), "{text}");
    let arenas = DmaMemory::from(a.arena().alloc(64, 64).expect("memory"));
    let error = a.can_park_region(&region, &arenas).expect_err("others");
    let text = error.to_string();
    assert!(text.contains("is not that of the memory"), "{text}");
    // A part of a part of a buffer is found by its whole buffer.
    let part = a.arena().alloc(8192, 64).expect("memory").part(64, 4096);
    let part = DmaMemory::Arena {
        buffer: part,
        offset: 100,
        bytes: 1000,
    };
    let second = a.register(pd, &part, ALL).expect("a region");
    let address = second.address;
    a.can_park_region(&second.region, &part)
        .expect("the arena's");
    let mut region = region;
    a.deregister(&mut region).expect("deregistered");
    drop((region, memory, pool, arenas));
    let mut parking = begun(a);
    let parked = MlxProvider::park_region(&mut parking, second.region, part);
    MlxProvider::park_pd(&mut parking, pd);
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
    let resumed = resume(&snapshot, descriptors);
    let mut a = resumed.map_err(|(_, error)| error).expect("resumed");
    a.resume_pd(&pd).expect("resumed");
    let (registration, memory) = a.resume_region(pd, ALL, &parked).expect("resumed");
    a.finish_resuming().expect("all is there");
    assert_eq!((registration.address, registration.bytes), (address, 1000));
    assert_eq!((memory.address(), memory.len()), (address, 1000));
    drop((registration, memory, a, world.open(2)));
    world.finish();
}

/// An object that was not written out would be missing only in the next process.
#[test]
fn a_parking_without_all_objects_is_not_finished() {
    let world = World::new();
    let Node { provider, things } = Node::new(world.open(1));
    let mut parking = begun(provider);
    let (again, error) = not_finished(parking);
    assert!(
        error.ends_with(
            "1 of 2 protection domains, 1 of 2 completion queues, 1 of 2 queue pairs, 1 of 4 keys"
        ),
        "{error}"
    );
    parking = again;
    let objects = things.park(&mut parking);
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
    let resumed = resume(&snapshot, descriptors);
    let node = objects.resume(resumed.map_err(|(_, error)| error).expect("resumed"));
    drop((node, world.open(2)));
    world.finish();
}

/// QP1 is compared after the function was taken over, so a refusal stops the device. The parking says so from then on.
#[test]
fn a_cancellation_that_stops_the_device_leaves_a_dead_parking() {
    let world = World::new();
    let (parking, _objects) = Node::new(world.open(1)).written_out();
    let before = world.resets()[0];
    let refused = Fault::CommandFailure {
        opcode: Some(Opcode::QUERY_QP.0),
        status: CmdStatus::BAD_RES_STATE.0,
        syndrome: 0,
        count: 2,
    };
    world.sim.inject(&world.functions[0], &refused);
    let (parking, error) = MlxProvider::cancel_parking(parking).expect_err("refused");
    assert!(error.to_string().contains("QUERY_QP"), "{error}");
    assert!(world.resets()[0] > before);
    let (parking, error) = MlxProvider::cancel_parking(parking).expect_err("stopped");
    assert!(matches!(error, ProviderError::Dead(_)), "{error}");
    let (parking, error) = MlxProvider::finish_parking(parking).expect_err("stopped");
    assert!(matches!(error, ProviderError::Dead(_)), "{error}");
    drop((parking, world.open(2)));
    world.finish();
}

#[test]
fn a_parking_that_is_dropped_stops_the_device() {
    let world = World::new();
    let (parking, _objects) = Node::new(world.open(1)).written_out();
    let before = world.resets()[0];
    drop(parking);
    assert!(world.resets()[0] > before);
    drop(world.open(2));
    world.finish();
}

#[test]
fn no_object_is_resumed_after_the_end_of_the_resumption() {
    let world = World::new();
    let parked = Node::with_srq(world.open(1)).park();
    let objects = parked.objects.clone();
    let Node {
        mut provider,
        things,
    } = parked.resume();
    let pd = things.pd;
    let queues = QueuesOf {
        request_cq: &things.cq,
        recv_cq: &things.cq,
        srq: things.srq.as_ref(),
    };
    let window = objects.window.as_ref().expect("a window");
    let srq = objects.srq.as_ref().expect("an SRQ");
    for (kind, refused) in [
        ("PD", provider.resume_pd(&pd).map(drop)),
        (
            "region",
            provider
                .resume_region(pd, ALL, &objects.regions[0])
                .map(drop),
        ),
        ("window", provider.resume_window(pd, 0, window).map(drop)),
        ("CQ", provider.resume_cq(CQ_OWNER, &objects.cq).map(drop)),
        (
            "SRQ",
            provider
                .resume_srq(pd, SRQ_RECVS, SRQ_SEGMENTS, SRQ_OWNER, srq)
                .map(drop),
        ),
        (
            "QP",
            provider
                .resume_qp(pd, queues, sizes(true), QP_OWNER, &objects.qp)
                .map(drop),
        ),
    ] {
        let error = refused.expect_err(kind).to_string();
        assert!(
            error.contains("after the end of the resumption"),
            "{kind}: {error}"
        );
    }
    // The refusals have changed nothing.
    let node = Node { provider, things }.park().resume();
    drop((node, world.open(2)));
    world.finish();
}

/// A domain is a number, so the caller can write it out twice, or write out one that is not its own. Such a number does
/// not stand for a domain that is missing.
#[test]
fn a_domain_that_is_written_out_wrongly_does_not_stand_for_another_one() {
    let world = World::new();
    let mut a = world.open(1);
    let domains = [(); 2].map(|()| a.alloc_pd().expect("a PD"));
    let [first, second] = domains;
    let mut parking = begun(a);
    for _ in 0..2 {
        MlxProvider::park_pd(&mut parking, first);
    }
    let (parking, error) = not_finished(parking);
    assert!(error.contains("was written out twice"), "{error}");
    let cancelled = MlxProvider::cancel_parking(parking);
    let mut a = only(cancelled.map_err(|(_, error)| error).expect("cancelled"));
    for pd in domains {
        a.resume_pd(&pd).expect("resumed");
    }
    a.finish_resuming().expect("all is there");

    let mut parking = begun(a);
    for pd in domains {
        MlxProvider::park_pd(&mut parking, pd);
    }
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
    let resumed = resume(&snapshot, descriptors);
    let mut a = resumed.map_err(|(_, error)| error).expect("resumed");
    for pd in domains {
        a.resume_pd(&pd).expect("resumed");
    }
    a.finish_resuming().expect("all is there");
    let mut parking = begun(a);
    for pd in [second, snapshot.tables.gsi.pd] {
        MlxProvider::park_pd(&mut parking, pd);
    }
    let (parking, error) = not_finished(parking);
    assert!(error.contains("is the provider's own"), "{error}");
    drop((parking, world.open(2)));
    world.finish();
}

/// A function in the process cannot be parked. The provider and its objects are as they were.
#[test]
fn a_function_in_the_process_is_refused_before_anything_is_parked() {
    let sim = Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    });
    let function = sim.add_function(Profile::named("inside", mac(1)).ethernet());
    let device = Arc::clone(&function) as Arc<dyn Device>;
    let function = Function::in_process(device).expect("a function");
    let config = ProviderConfig {
        hca: config(1),
        network: Participation::Required,
    };
    let Node { provider, things } =
        Node::new(MlxProvider::open(function, config).expect("bring-up"));
    let opened = provider.opened();
    let (mut provider, error) = not_begun(provider);
    assert!(error.contains("this process"), "{error}");
    let other = opened.instance().expect("no failure").expect("open");
    drop(other);
    let Things {
        pd, mut regions, ..
    } = things;
    let mut region = regions.pop().expect("a region");
    provider.deregister(&mut region).expect("deregistered");
    let again = provider
        .register(pd, &things.memory, ALL)
        .expect("a region");
    provider
        .can_park_region(&again.region, &things.memory)
        .expect("the arena's");
    // Our addresses are announced within a few seconds.
    let deadline = provider.now() + PATIENCE;
    while let Some(due) = provider.next_timeout() {
        assert!(due < deadline, "a timer at {due}");
        provider.wait(due).expect("alive");
        provider.progress();
    }
}
