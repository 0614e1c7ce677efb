//! Other settings, and snapshots that no model has written.

use super::super::authenticate::{keyed, negotiation, say};
use super::*;
use crate::model::snapshot::RegistrantSnapshot;

/// Resumes in a model, which must refuse by this text and stay as it was.
fn refused(model: &mut Model, snapshot: &ModelSnapshot, text: &str) {
    let before = model.park(secs(1)).expect("parked");
    let error = model.resume(snapshot, secs(1)).expect_err(text);
    assert!(error.to_string().contains(text), "{error} and not: {text}");
    assert_eq!(model.park(secs(1)), Ok(before), "{text}");
    assert_eq!(model.take_notices(), [], "{text}");
}

/// Returns a model with a controller of each of two hosts, with all kinds of state.
pub(super) fn rich() -> Model {
    let mut model = keyed();
    let id = admin(&mut model, &disks(), HOST);
    say(&mut model, (id, 0), &negotiation(1));
    let other = ready(&mut model, &disks(), OTHER);
    io(&mut model, other, OTHER);
    register(&mut model, other, 7);
    reserve(&mut model, other, 0x11, 1 << 8, [7, 0]);
    for dwords in [[0x0b, 0x900, 0, 0], [0x01, 3, 0, 0], [0x82, 4, 0, 0]] {
        command(
            &mut model,
            other,
            &sqe(0x09, u32::from(dwords[0] == 0x82), dwords),
        );
    }
    wait(&mut model, other);
    wait(&mut model, other);
    let one = model.namespace(&disks(), 1).expect("a namespace");
    model.namespace_changed(&disks(), &one);
    model.next_event(other);
    command(&mut model, other, &sqe(0x06, 0, [0x99, 0, 0, 0]));
    ready(&mut model, &name(DISCOVERY), OTHER);
    model.take_notices();
    model
}

#[test]
fn other_settings_are_refused_by_name_and_nothing_changes() {
    let old = rich();
    let snapshot = old.park(secs(1)).expect("parked");
    type Change = fn(&mut Model);
    let changes: [(Change, &str); 7] = [
        (
            |model| drop(model.remove_namespace(&disks(), 1)),
            "namespace 1 of nqn.2026-11.test:disks: it was there",
        ),
        (
            |model| drop(model.add_namespace(&disks(), disk())),
            "namespace 2 of nqn.2026-11.test:disks: it was not there",
        ),
        (
            |model| drop(model.remove_subsystem(&disks())),
            "subsystem nqn.2026-11.test:disks: it was there",
        ),
        (
            |model| {
                let config = SubsystemConfig {
                    name: name("nqn.2026-11.test:new"),
                    serial: String::new(),
                    model: String::new(),
                    any_host: true,
                    queues: QUEUES,
                };
                drop(model.add_subsystem(config));
            },
            "subsystem nqn.2026-11.test:new: it was not there",
        ),
        (|model| drop(model.remove_port(1)), "port 1: it was there"),
        (
            |model| drop(model.add_port(2, Vec::new())),
            "port 2: it was not there",
        ),
        (
            |model| {
                admin(model, &disks(), OTHER);
            },
            "the model has had 1 connections",
        ),
    ];
    for (change, text) in changes {
        let mut next = like(&old);
        change(&mut next);
        drop(next.take_removed());
        refused(&mut next, &snapshot, text);
    }
}

#[test]
fn another_namespace_by_the_same_number_is_refused() {
    let old = rich();
    let snapshot = old.park(secs(1)).expect("parked");
    let uuid = Uuid::from_bytes(snapshot.subsystems[0].namespaces[0].uuid);
    let config = |uuid, group, bytes, shift| NamespaceConfig {
        nsid: None,
        uuid,
        group,
        hosts: None,
        disk: Disk::open(Source::Null(bytes), shift, false).expect("a disk"),
    };
    for (config, text) in [
        (
            config(Uuid::new_v5_like(), 1, 1 << 20, 9),
            "its identifier is",
        ),
        (config(uuid, 2, 1 << 20, 9), "its group is 2, and was 1"),
        (
            config(uuid, 1, 1 << 20, 12),
            "its block size is 12, and was 9",
        ),
        (
            config(uuid, 1, 1 << 19, 9),
            "its number of blocks is 1024, and was 2048",
        ),
    ] {
        let mut next = like(&old);
        next.remove_namespace(&disks(), 1).expect("a namespace");
        drop(next.take_removed());
        next.add_namespace(&disks(), config).expect("a namespace");
        refused(&mut next, &snapshot, text);
        refused(
            &mut next,
            &snapshot,
            "namespace 1 of nqn.2026-11.test:disks",
        );
    }
    let mut next = like(&old);
    refused(
        &mut next,
        &changed(&snapshot, |all| all.subsystems[0].serial.clear()),
        "serial number",
    );
    // A disk that was open for writing is open for reading only.
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let mut config = config(uuid, 1, 1 << 20, 9);
    config.disk = Disk::open(Source::File(file.path().into()), 9, true).expect("a disk");
    next.remove_namespace(&disks(), 1).expect("a namespace");
    drop(next.take_removed());
    next.add_namespace(&disks(), config).expect("a namespace");
    refused(
        &mut next,
        &snapshot,
        "that it is read-only is true, and was false",
    );
}

#[test]
fn a_host_that_may_not_connect_any_more_is_refused() {
    let mut old = model(false);
    old.allow_host(&disks(), name(HOST)).expect("a subsystem");
    ready(&mut old, &disks(), HOST);
    let snapshot = old.park(secs(1)).expect("parked");
    let mut next = like(&old);
    next.forbid_host(&disks(), &name(HOST)).expect("a host");
    refused(
        &mut next,
        &snapshot,
        "controller 1: nqn.2026-11.test:host may not connect",
    );
}

fn changed(snapshot: &ModelSnapshot, change: impl FnOnce(&mut ModelSnapshot)) -> ModelSnapshot {
    let mut snapshot = snapshot.clone();
    change(&mut snapshot);
    snapshot
}

/// In the snapshot, controller 0 of the list has not authenticated, 1 is ready with an I/O queue, 2 is a discovery
/// controller.
#[test]
fn each_impossible_value_is_refused_by_its_name() {
    type Change = fn(&mut ModelSnapshot);
    let changes: &[(Change, &str)] = &[
        (
            |s| s.last_controller = 0xfff0,
            "last_controller is 65520, at most 65519",
        ),
        (|s| s.connections = u64::MAX, "connections is"),
        (|s| s.generation = u64::MAX, "generation is"),
        (|s| s.displaced = u64::MAX, "displaced is"),
        (|s| s.ports[0].changes = u64::MAX, "port 1: changes is"),
        (|s| s.ports[0].access.truncate(3), "access to 3 groups"),
        (
            |s| s.ports.push(s.ports[0].clone()),
            "port 1: it is there twice",
        ),
        (
            |s| s.subsystems.push(s.subsystems[0].clone()),
            "disks: it is there twice",
        ),
        (|s| s.subsystems[0].name.clear(), "a subsystem: name"),
        (
            |s| s.subsystems[0].namespaces[0].reads = u64::MAX,
            "reads is",
        ),
        (|s| s.controllers[1].id = 0, "controller 0: id is 0"),
        (|s| s.controllers[1].id = 0xfff0, "id is 65520"),
        (|s| s.controllers[1].id = 1, "is there twice"),
        (
            |s| s.controllers[1].host = "a\n".into(),
            "controller 2: host: ",
        ),
        (
            |s| s.controllers[1].subsystem = "nqn.2026-11.test:no".into(),
            "there is no subsystem",
        ),
        (
            |s| s.controllers[1].port = 7,
            "controller 2: there is no port 7",
        ),
        (
            |s| s.controllers[1].age_ns = 2_000_000_000,
            "age_ns is 2000000000, at most 1000000000",
        ),
        (|s| s.controllers[1].silent_ns = u64::MAX, "silent_ns is"),
        (
            |s| s.controllers[1].status = 0,
            "status is 0x0 with configuration 0x460001",
        ),
        (|s| s.controllers[1].status = 3, "status is 0x3"),
        (|s| s.controllers[1].status = 9, "status is 0x9"),
        (|s| s.controllers[1].status = 0x101, "status is 0x101"),
        (|s| s.controllers[1].keep_alive_ms = 1, "keep_alive_ms is 1"),
        (
            |s| s.controllers[1].events.requests = 5,
            "requests is 5, at most 4",
        ),
        (
            |s| s.controllers[1].events.wanted = 0x200,
            "wanted is 0x200, of 0x9ff",
        ),
        (
            |s| s.controllers[2].events.wanted = 0x100,
            "wanted is 0x100, of 0x80000000",
        ),
        (
            |s| s.controllers[1].events.waiting = vec![super::event::Kind::Access; 2],
            "waiting: event Access",
        ),
        (
            |s| s.controllers[1].events.reported = vec![super::event::Kind::Discovery],
            "reported: event Discovery",
        ),
        (
            |s| s.controllers[1].features.push((0x0c, 0, 0)),
            "feature 0xc",
        ),
        (
            |s| s.controllers[1].features.push((0x05, 0, 0)),
            "feature 0x5 of namespace 0",
        ),
        (
            |s| s.controllers[1].features[0].2 = 0x18,
            "feature 0x1 of namespace 0 is 0x18",
        ),
        (|s| s.controllers[1].connection = 0, "connection is 0"),
        (|s| s.controllers[1].connection = 99, "connection is 99"),
        (
            |s| s.controllers[1].connection = 1,
            "connection 1 is there twice",
        ),
        (
            |s| s.controllers[1].queues[0].0 = 129,
            "queue is 129, at most 128",
        ),
        (
            |s| s.controllers[1].queues[0].0 = 0,
            "queue 0 with connection 3",
        ),
        (
            |s| s.controllers[1].queues[0].1 = 1,
            "queue 1 with connection 1",
        ),
        (
            |s| s.controllers[1].queues.push((1, 4)),
            "queue 1 with connection 4",
        ),
        (|s| s.controllers[1].queues_most = 0, "queues_most is 0"),
        (|s| s.controllers[1].queues_most = 129, "queues_most is 129"),
        (
            |s| s.controllers[1].changed = vec![1025],
            "changed is 1025, at most 1024",
        ),
        (
            |s| s.controllers[1].changed = vec![0],
            "changed: namespace 0",
        ),
        (
            |s| s.controllers[1].changed = vec![1, 1],
            "changed: namespace 1",
        ),
        (
            |s| s.controllers[1].reservation_masks[0].1 = 1,
            "reservation_masks is 0x1",
        ),
        (
            |s| s.controllers[1].reservation_masks[0].0 = 0,
            "reservation_masks: namespace 0",
        ),
        (
            |s| {
                let notice = (1, crate::model::reservation::Notification::Released);
                s.controllers[1].reservation_notices = vec![notice; 65];
            },
            "reservation_notices is 65, at most 64",
        ),
        (
            |s| s.controllers[1].reservation_count = u64::MAX,
            "reservation_count is",
        ),
        (
            |s| s.controllers[1].error_count = 0,
            "errors: 1 entries of 0 errors",
        ),
        (
            |s| s.controllers[1].error_count = u64::MAX,
            "error_count is",
        ),
        (
            |s| s.controllers[1].errors[0].queue = 129,
            "queue of errors is 129",
        ),
        (
            |s| s.controllers[1].errors[0].status = 1,
            "status of errors is 0x1",
        ),
        (
            |s| s.controllers[2].queues = vec![(1, 4)],
            "queue 1 with connection 4",
        ),
        (
            |s| s.controllers[2].changed = vec![1],
            "a discovery controller has",
        ),
        (
            |s| s.controllers[0].events.requests = 1,
            "controller 1: it is not ready",
        ),
        (
            |s| s.controllers[0].features = vec![(1, 0, 0)],
            "controller 1: it is not ready",
        ),
        (
            |s| s.authentications[0].controller = 9,
            "controller 9: there is no such queue",
        ),
        (|s| s.authentications[0].queue = 1, "there is no such queue"),
        (
            |s| s.authentications[0].controller = 2,
            "its controller is ready",
        ),
        (|s| s.authentications[0].is_over = true, "it is over"),
        (|s| s.authentications[0].left_ns = u64::MAX, "left_ns is"),
        (
            |s| s.authentications.push(s.authentications[0].clone()),
            "it is there twice",
        ),
    ];
    let old = rich();
    let snapshot = old.park(secs(1)).expect("parked");
    let mut next = like(&old);
    for (change, text) in changes {
        refused(&mut next, &changed(&snapshot, change), text);
    }
    next.resume(&snapshot, secs(1)).expect("resumed");
}

#[test]
fn impossible_reservations_are_refused() {
    let old = rich();
    let snapshot = old.park(secs(1)).expect("parked");
    let mut next = like(&old);
    let mut check = |change: &dyn Fn(&mut super::super::super::snapshot::ReservationsSnapshot),
                     text| {
        let of =
            |all: &mut ModelSnapshot| change(&mut all.subsystems[0].namespaces[0].reservations);
        refused(&mut next, &changed(&snapshot, of), text);
    };
    let registrant = |number: u16, host: &str| RegistrantSnapshot {
        host_id: u128::from(number).to_be_bytes(),
        key: 1,
        name: host.to_owned(),
    };
    check(
        &|all| all.held = Some(([9; 16], Kind::ExclusiveAccess)),
        "is no registrant",
    );
    check(
        &|all| {
            all.registrants.clear();
            all.held = Some(([9; 16], Kind::WriteExclusiveAll));
        },
        "is no registrant",
    );
    check(
        &|all| all.registrants.push(all.registrants[0].clone()),
        "is there twice",
    );
    check(
        &|all| all.registrants[0].name.clear(),
        "name of a registrant",
    );
    check(
        &|all| all.registrants[0].name = HOST.to_owned(),
        "host identifier",
    );
    check(
        &|all| all.registrants = (0..17).map(|number| registrant(number, HOST)).collect(),
        "more than 16 registrants",
    );
    check(
        &|all| {
            let many = (0..257).map(|number| registrant(number, &format!("host{number}")));
            all.registrants = many.collect();
        },
        "registrants is 257, at most 256",
    );
}

#[test]
fn more_controllers_than_a_pool_has_are_refused() {
    let mut old = keyed();
    for (subsystem, host) in [(disks(), HOST), (disks(), OTHER), (name(DISCOVERY), OTHER)] {
        admin(&mut old, &subsystem, host);
    }
    let snapshot = old.park(secs(1)).expect("parked");
    let mut next = like(&old);
    // Number of the controllers, and of the addresses that they have.
    for (of, count, sources, text) in [
        (
            0,
            33,
            1,
            "controllers of 192.0.2.0 (NotAuthenticated): count is 33, at most 32",
        ),
        (
            2,
            33,
            1,
            "controllers of 192.0.2.0 (Discovery): count is 33, at most 32",
        ),
        (
            0,
            257,
            200,
            "controllers (NotAuthenticated): count is 257, at most 256",
        ),
        (
            2,
            257,
            200,
            "controllers (Discovery): count is 257, at most 256",
        ),
        (
            1,
            1025,
            200,
            "controllers (Hosts): count is 1025, at most 1024",
        ),
    ] {
        let many = |count: u16| {
            changed(&snapshot, |all| {
                let (one, pending) = (all.controllers[of].clone(), all.authentications[0].clone());
                (all.controllers, all.authentications) = (Vec::new(), Vec::new());
                all.connections = 2000;
                for id in 1..=count {
                    let mut one = one.clone();
                    (one.id, one.connection) = (id, id.into());
                    let source = u8::try_from(id % sources).expect("few");
                    one.source = IpAddr::from([192, 0, 2, source]);
                    all.controllers.push(one);
                    if of == 0 {
                        let mut pending = pending.clone();
                        pending.controller = id;
                        all.authentications.push(pending);
                    }
                }
            })
        };
        refused(&mut next, &many(count), text);
        let mut full = like(&old);
        full.resume(&many(count - 1), secs(1)).expect(text);
        let moved = moved(&full, secs(1), secs(1));
        assert_eq!(moved.controllers().count(), usize::from(count) - 1);
    }
}
