//! Several instances of a function, which are parked and resumed together.

use hw_mlx::ParkError;

use super::*;

/// Number of instances of each function.
const INSTANCES: usize = 3;

/// Opens a function with several instances, each with objects of its own.
fn nodes(world: &World, n: u8) -> Vec<Node> {
    let first = world.open(n);
    let opened = first.opened();
    let mut all = vec![Node::new(first)];
    while all.len() < INSTANCES {
        let further = opened.instance().expect("no failure").expect("open");
        all.push(Node::new(further));
    }
    all
}

/// Opens two functions whose instances are connected in pairs.
fn connected(world: &World) -> [Vec<Node>; 2] {
    let [mut a, mut b] = [1, 2].map(|n| nodes(world, n));
    for (a, b) in a.iter_mut().zip(&mut b) {
        connect(a, b);
    }
    [a, b]
}

/// Sends messages in both directions on each connection.
fn talk(a: &mut [Node], b: &mut [Node]) {
    for (a, b) in a.iter_mut().zip(b) {
        for slot in 0..2 {
            a.receive(slot);
            b.receive(slot);
        }
        (0..2).for_each(|slot| a.send(slot));
        (0..2).for_each(|slot| b.send(slot));
        assert_eq!(cookies(&b.wait_for(4)), [0, 1, 1000, 1001]);
        assert_eq!(cookies(&a.wait_for(4)), [0, 1, 1000, 1001]);
        a.check(0..2);
        b.check(0..2);
    }
}

/// Reaches the quiet point, and writes all objects of all instances out.
fn written_out(nodes: Vec<Node>) -> (ParkingProvider, Vec<Objects>) {
    let both = nodes.into_iter().map(|node| (node.provider, node.things));
    let (providers, things): (Vec<_>, Vec<_>) = both.unzip();
    let begun = MlxProvider::begin_parking(providers);
    let mut parking = begun.map_err(|(_, error)| error).expect("quiet");
    let objects = things.into_iter().map(|things| things.park(&mut parking));
    let objects = objects.collect();
    (parking, objects)
}

fn finished(parking: ParkingProvider) -> (ProviderSnapshot, Vec<NamedFd>) {
    let finished = MlxProvider::finish_parking(parking);
    finished.map_err(|(_, error)| error).expect("parked")
}

fn resume_all(snapshot: &ProviderSnapshot, descriptors: Vec<NamedFd>) -> Vec<MlxProvider> {
    let checked = MlxProvider::check(snapshot, descriptors);
    let unclaimed = checked.map_err(|(_, error)| error).expect("sound");
    assert_eq!(MlxProvider::instances(&unclaimed), INSTANCES);
    let all = MlxProvider::go_on(unclaimed, &Claimed::by_caller());
    all.map_err(|(_, error)| error).expect("resumed")
}

/// Resumes the objects of all instances, and ends the resumption.
fn again(mut providers: Vec<MlxProvider>, objects: &[Objects]) -> Vec<Node> {
    let both = providers.iter_mut().zip(objects);
    let things: Vec<Things> = both
        .map(|(provider, objects)| objects.try_resume(provider).expect("resumed"))
        .collect();
    let both = providers.into_iter().zip(things);
    let nodes = both.map(|(mut provider, things)| {
        provider.finish_resuming().expect("all is there");
        Node { provider, things }
    });
    nodes.collect()
}

/// Two instances have regions with the same memory. The instances are given in another order each time.
#[test]
fn traffic_of_all_instances_goes_on_after_they_were_parked_together() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    let memory = a[0].things.memory.clone();
    let second = &mut a[1];
    let pd = second.things.pd;
    let region = second.provider.register(pd, &memory, ALL);
    second.things.regions.push(region.expect("a region").region);
    drop(memory);
    let before = world.resets();
    for _ in 0..3 {
        talk(&mut a, &mut b);
        a.rotate_left(1);
        b.rotate_left(1);
        let (parking, objects) = written_out(a);
        let (snapshot, descriptors) = finished(parking);
        assert_eq!(snapshot.tables.instances.len(), INSTANCES);
        a = again(resume_all(&snapshot, descriptors), &objects);
    }
    talk(&mut a, &mut b);
    assert_eq!(world.resets(), before);
    // Later instances are made as before.
    let further = a[0].provider.opened().instance().expect("no failure");
    drop((further.expect("open"), a, b));
    world.finish();
}

#[test]
fn instances_that_are_not_all_of_one_function_are_refused_and_go_on() {
    let world = World::new();
    let [mut a, mut b] = connected(&world);
    let both = a.drain(..).map(|node| (node.provider, node.things));
    let (mut providers, mut things): (Vec<_>, Vec<_>) = both.unzip();
    let missing = providers.pop().expect("an instance");
    let refused = |providers| {
        let (all, error) = MlxProvider::begin_parking(providers).expect_err("refused");
        (all, error.to_string())
    };
    let (count, given) = (INSTANCES, INSTANCES - 1);
    let wanted = ParkError::Instances { count, given }.to_string();
    let (mut providers, text) = refused(providers);
    assert!(text.contains(&wanted), "{text}");
    providers.push(missing);
    let Node {
        provider: stranger,
        things: its,
    } = b.pop().expect("an instance");
    providers.push(stranger);
    let (mut providers, text) = refused(providers);
    let names = [&providers[0], &providers[INSTANCES]].map(|one| one.hca().name().to_owned());
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    let provider = providers.pop().expect("the other function's");
    b.push(Node {
        provider,
        things: its,
    });
    let (none, text) = refused(Vec::new());
    assert!(
        none.is_empty() && text.contains(&ParkError::NoInstance.to_string()),
        "{text}"
    );
    let both = providers.into_iter().zip(things.drain(..));
    let mut a: Vec<Node> = both
        .map(|(provider, things)| Node { provider, things })
        .collect();
    talk(&mut a, &mut b);
    drop((a, b));
    world.finish();
}

/// A buffer of the program keeps the function from being parked.
#[test]
fn instances_go_on_after_their_parking_was_cancelled() {
    let world = World::new();
    let [a, mut b] = connected(&world);
    let before = world.resets();
    let buffer = a[1].provider.arena().alloc(100, 64).expect("memory");
    let (parking, objects) = written_out(a);
    let (parking, error) = MlxProvider::finish_parking(parking).expect_err("in use");
    let expected = ParkError::MemoryInUse { count: 1 }.to_string();
    assert!(error.to_string().contains(&expected), "{error}");
    drop(buffer);
    let cancelled = MlxProvider::cancel_parking(parking);
    let providers = cancelled.map_err(|(_, error)| error).expect("cancelled");
    let mut a = again(providers, &objects);
    talk(&mut a, &mut b);
    assert_eq!(world.resets(), before);
    drop((a, b));
    world.finish();
}

/// An object belongs to the instance that had it, and is resumed once in all.
#[test]
fn an_object_of_another_instance_is_refused() {
    let world = World::new();
    let (parking, objects) = written_out(nodes(&world, 1));
    let (snapshot, descriptors) = finished(parking);
    let mut providers = resume_all(&snapshot, descriptors);
    let refused = providers[0].resume_cq(CQ_OWNER, &objects[1].cq).map(drop);
    refused.expect_err("its doorbell page is the other one's");
    let pd = providers[0].resume_pd(&objects[0].pd).expect("resumed");
    let refused = providers[1].resume_pd(&pd).expect_err("it has an owner");
    assert!(
        refused.to_string().contains("has an owner already"),
        "{refused}"
    );
    // Objects of other instances are missing.
    let refused = providers[0]
        .finish_resuming()
        .expect_err("objects are missing");
    assert!(refused.to_string().contains("were resumed"), "{refused}");
    drop((providers, world.open(2)));
    world.finish();
}

#[test]
fn tables_of_instances_that_contradict_the_function_are_refused_before_the_claim() {
    type Change = fn(&mut ProviderSnapshot);
    let changes: [(&str, Change); 5] = [
        ("2 instances, 3 instances of the function", |it| {
            it.tables.instances.pop();
        }),
        ("3 instances, 2 instances of the function", |it| {
            it.hca.tables.instances.pop();
        }),
        ("at most 60 in all", |it| {
            it.tables.instances = vec![it.tables.instances[0].clone(); 61];
            it.hca.tables.instances = vec![it.hca.tables.instances[0].clone(); 61];
        }),
        ("at most 0 regions", |it| {
            it.tables.instances[2].max_regions = 0
        }),
        ("is there twice", |it| {
            it.hca.tables.instances[1].own = it.hca.tables.instances[2].own;
        }),
    ];
    let world = World::new();
    let before = world.resets();
    let (parking, objects) = written_out(nodes(&world, 1));
    let (snapshot, mut descriptors) = finished(parking);
    for (expected, change) in changes {
        let mut changed = snapshot.clone();
        change(&mut changed);
        let refused = MlxProvider::check(&changed, descriptors).map(drop);
        let error;
        (descriptors, error) = refused.expect_err(expected);
        assert!(
            error.to_string().contains(expected),
            "{error}, and not {expected}"
        );
    }
    let a = again(resume_all(&snapshot, descriptors), &objects);
    assert_eq!(world.resets()[1], before[1]);
    drop((a, world.open(2)));
    world.finish();
}
