//! Snapshots that were changed: each number is compared with others, with the device, or with what the caller knows.

use dat_core::provider::ProviderEvent;
use dat_core::{Ia, IaConfig};
use dat_mlx::{DownSnapshot, NetworkSnapshot};
use driver::Instant;
use hw_mlx::ethernet::Object;
use mlx_prm::Opcode;

use super::*;

/// A change of a provider's snapshot.
type Change = fn(&mut ProviderSnapshot);

fn network(snapshot: &mut ProviderSnapshot) -> &mut NetworkSnapshot {
    snapshot.tables.network.as_mut().expect("a network")
}

/// Changes the number of protection domains that the device has.
fn domains(snapshot: &mut ProviderSnapshot, count: i64) {
    let mut all = snapshot.hca.tables.objects.iter_mut();
    let kind = all.find(|it| it.creates == Opcode::ALLOC_PD.0);
    kind.expect("a PD").count = count;
}

fn down(since: Instant) -> Option<DownSnapshot> {
    Some(DownSnapshot {
        since,
        trains: false,
    })
}

/// Such snapshots are refused before the first command. The descriptors come back, and the right snapshot is resumed.
#[test]
fn tables_that_contradict_themselves_are_refused_and_the_device_goes_on() {
    let changes: [(&str, Change); 34] = [
        ("0 instances of the function", |it| {
            it.hca.tables.instances.clear();
        }),
        ("1 instances, 2 instances of the function", |it| {
            let first = it.hca.tables.instances[0].clone();
            it.hca.tables.instances.push(first);
        }),
        ("0 instances made", |it| it.tables.instances_made = 0),
        ("instances made", |it| it.tables.instances_made = u32::MAX),
        ("65 variants", |it| {
            it.tables.instances[0].recent_variants = vec![0; 65]
        }),
        ("regions registered", |it| {
            it.tables.registrations = u64::MAX
        }),
        ("at most 0 regions", |it| {
            it.tables.instances[0].max_regions = 0
        }),
        ("path MTU code 6", |it| it.tables.instances[0].path_mtu = 6),
        ("path MTU code 1", |it| it.tables.instances[0].path_mtu = 1),
        ("reason if not", |it| {
            it.tables.without_network = Some("none".to_owned());
        }),
        ("event QpError", |it| {
            let (owner, event) = (0xff_ffff, 1);
            it.tables.instances[0]
                .events
                .push(ProviderEvent::QpError { owner, event });
        }),
        ("event DeviceDead", |it| {
            it.tables.instances[0]
                .events
                .push(ProviderEvent::DeviceDead);
        }),
        ("port down", |it| {
            it.tables.instances[0].down = down(Instant(u64::MAX))
        }),
        ("the link is up", |it| {
            it.tables.instances[0].down = down(Instant(0))
        }),
        ("the link is up for neighbours", |it| {
            network(it).neighbours.up = false;
        }),
        ("protection domain", |it| {
            let objects = &network(it).ethernet.objects;
            let pd = objects.iter().find_map(|object| {
                if let Object::Pd(pd) = object {
                    Some(*pd)
                } else {
                    None
                }
            });
            it.tables.gsi.pd = pd.expect("a PD");
        }),
        ("257 datagrams to be sent", |it| {
            network(it).outgoing = vec![pending(); 257];
        }),
        ("0 datagrams to be sent, 257 and 0 received", |it| {
            network(it).incoming = vec![arrived(1); 257];
        }),
        ("0 datagrams to be sent, 0 and 257 received", |it| {
            network(it).found = vec![arrived(1); 257];
        }),
        ("a datagram from", |it| {
            let mut pending = pending();
            pending.to.path.flow_label = 1 << 20;
            network(it).outgoing.push(pending);
        }),
        ("a datagram from", |it| {
            let mut pending = pending();
            pending.to.path.priority = 8;
            network(it).outgoing.push(pending);
        }),
        ("a datagram from", |it| {
            let mut pending = pending();
            pending.source = "2001:db8::1".parse().expect("an address");
            network(it).outgoing.push(pending);
        }),
        ("peers are marked at", |it| {
            network(it).refresh_at = Duration::MAX;
        }),
        ("the link trains until", |it| {
            network(it).training_until = Some(Duration::MAX);
        }),
        ("echo request at", |it| network(it).echo_at = Duration::MAX),
        ("the time is", |it| {
            network(it).neighbours.parked = Duration::MAX;
        }),
        ("the function does not have address", |it| {
            let address = &mut network(it).neighbours.addresses[0].address;
            address.prefix = address.prefix.map(|it| it - 1).or(Some(9));
        }),
        ("was not configured", |it| {
            network(it).neighbours.statics[0].1 = mac(9);
        }),
        ("more than once", |it| {
            let statics = &mut network(it).neighbours.statics;
            statics.push(statics[0]);
        }),
        ("the port does not accept frames", |it| {
            network(it).ethernet.groups.pop();
        }),
        ("protection domains", |it| domains(it, i64::MIN)),
        ("protection domains", |it| domains(it, 1)),
        ("MAC", |it| it.hca.tables.port.mac = mac(9)),
        ("the function", |it| {
            it.hca.tables.command_limit = Duration::MAX;
        }),
    ];
    let world = World::new();
    let node = Node::new(world.open_in_network(1, true));
    let before = world.resets();
    let Parked {
        snapshot,
        mut descriptors,
        objects,
    } = node.park();
    for (words, change) in changes {
        let mut wrong = snapshot.clone();
        change(&mut wrong);
        assert_ne!(wrong, snapshot, "{words}");
        let refused = resume(&wrong, descriptors);
        let (back, error) = refused.expect_err(words);
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert_eq!(world.resets(), before, "{words}");
        descriptors = back.expect("the device goes on");
    }
    let right = Parked {
        snapshot,
        descriptors,
        objects,
    };
    drop((right.resume(), world.open(2)));
    world.finish();
}

/// QP1 and the port are compared after the event queues were drained, so a refusal stops the device.
#[test]
fn qp1_and_a_port_that_the_device_does_not_confirm_are_refused() {
    let changes: [(&str, Change); 4] = [
        ("QUERY_QP", |it| it.tables.gsi.qpn += 1),
        ("completion queue", |it| {
            it.tables.gsi.queue.cq.sequence ^= 1;
        }),
        ("doorbell page", |it| network(it).ethernet.uar = 4000),
        ("a completion queue", |it| {
            network(it).ethernet.queue.cq.taken += 1;
        }),
    ];
    for (words, change) in changes {
        let world = World::new();
        let mut parked = Node::new(world.open_in_network(1, true)).park();
        let before = world.resets()[0];
        change(&mut parked.snapshot);
        let resumed = resume(&parked.snapshot, parked.descriptors);
        let (back, error) = resumed.expect_err(words);
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(back.is_none(), "{words}");
        assert!(world.resets()[0] > before, "{words}");
        drop(world.open(2));
        world.finish();
    }
}

/// The device is stopped, so the caller cannot resume the descriptors.
#[test]
fn an_instance_gets_no_descriptors_back_if_its_device_was_stopped() {
    let world = World::new();
    let ia = Ia::open(world.open(1), IaConfig::default()).expect("opens");
    let (mut snapshot, descriptors) = ia.park().expect("parked");
    snapshot.provider.tables.gsi.qpn += 1;
    let refused =
        Ia::resume(&snapshot, descriptors, &Claimed::by_caller()).expect_err("another QP1");
    assert!(refused.handover.is_none(), "{}", refused.error);
    drop(world.open(2));
    world.finish();
}

/// A caller that knows another object than the snapshot has is refused, and resumes the object with what is right.
#[test]
fn objects_that_are_not_what_the_caller_knows_are_refused() {
    let world = World::new();
    let mut a = Node::with_srq(world.open(1));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    let other = a.provider.alloc_pd().expect("another PD");
    let (mut parking, objects) = a.written_out();
    MlxProvider::park_pd(&mut parking, other);
    let finished = MlxProvider::finish_parking(parking);
    let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
    let resumed = resume(&snapshot, descriptors);
    let mut provider = resumed.map_err(|(_, error)| error).expect("resumed");
    let refused = |error: ProviderError, words: &str| {
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    let region = objects.regions[0];
    let pd = objects.pd;
    let error = provider.resume_region(pd, ALL, &region).expect_err("no PD");
    refused(error, "was not resumed");
    refused(
        provider.resume_pd(&(1 << 24)).expect_err("no number"),
        "is no number",
    );
    let gsi = snapshot.tables.gsi.pd;
    refused(
        provider.resume_pd(&gsi).expect_err("QP1's"),
        "is that of QP1",
    );
    provider.resume_pd(&pd).expect("resumed");
    provider.resume_pd(&other).expect("resumed");
    let error = provider.resume_pd(&other).expect_err("twice");
    refused(error, "has an owner already");

    type Wrong = (&'static str, fn(&mut RegionSnapshot));
    let changes: [Wrong; 6] = [
        ("bytes at IOVA", |it| it.bytes = 0),
        ("bytes at IOVA", |it| it.bytes = u64::MAX),
        ("bytes at IOVA", |it| it.iova = 0x1000),
        ("key", |it| it.index = 1 << 24),
        ("start_addr", |it| it.iova += 1),
        ("start_addr", |it| it.bytes -= 1),
    ];
    for (words, change) in changes {
        let mut wrong = region;
        change(&mut wrong);
        let error = provider.resume_region(pd, ALL, &wrong).expect_err(words);
        refused(error, words);
    }
    let less = MemPrivFlags::LOCAL_READ;
    let error = provider
        .resume_region(pd, less, &region)
        .expect_err("rights");
    refused(error, "lw, rr, rw and a");
    let things = {
        let window = objects.window.as_ref().expect("a window");
        let error = provider.resume_window(0xff_fffe, 0, window);
        refused(error.expect_err("PD"), "was not resumed");
        let error = provider.resume_window(other, 0, window);
        refused(error.expect_err("PD"), "is of protection domain");
        let srq = objects.srq.as_ref().expect("an SRQ");
        for (recvs, segments) in [
            (SRQ_RECVS + 1, SRQ_SEGMENTS),
            (SRQ_RECVS, 40),
            (u32::MAX, 1),
        ] {
            let error = provider.resume_srq(pd, recvs, segments, SRQ_OWNER, srq);
            refused(error.expect_err("sizes"), "segments");
        }
        let error = provider.resume_srq(other, SRQ_RECVS, SRQ_SEGMENTS, SRQ_OWNER, srq);
        refused(error.expect_err("PD"), "protection domain");
        let cq = provider.create_cq(63, 0).expect("another CQ");
        let ours = QueuesOf {
            request_cq: &cq,
            recv_cq: &cq,
            srq: None,
        };
        let error = provider.resume_qp(pd, ours, sizes(true), QP_OWNER, &objects.qp);
        refused(error.expect_err("another CQ"), "completion queues");
        let mut wrong = objects.qp.clone();
        (wrong.cqn_send, wrong.cqn_receive) = (cq.0.cqn(), cq.0.cqn());
        let ours = || QueuesOf {
            request_cq: &cq,
            recv_cq: &cq,
            srq: None,
        };
        let error = provider.resume_qp(pd, ours(), sizes(true), QP_OWNER + 1, &wrong);
        refused(error.expect_err("another owner"), "owner");
        wrong.owner = 0xff_ffff;
        let error = provider.resume_qp(pd, ours(), sizes(true), 0xff_ffff, &wrong);
        refused(error.expect_err("no owner"), "the largest is 0xfffffe");
        let mut cq = cq;
        provider.destroy_cq(&mut cq).expect("destroyed");
        drop(cq);
        objects.resume_in(pd, &mut provider).expect("resumed")
    };
    provider.finish_resuming().expect("all is there");
    // A refusal keeps nothing, so the provider is parked again.
    provider.free_pd(other).expect("freed");
    a = Node { provider, things }.park().resume();
    a.receive(0);
    b.send(0);
    assert_eq!(cookies(&a.wait_for(1)), [1000]);
    drop((a, b));
    world.finish();
}
