//! A parked model goes on as if it had not been parked, in a model of the same settings and in no other.

mod authentications;
mod random;
mod refusals;

use super::*;
use crate::model::reservation::Kind;
use crate::nvme::log::Access;

/// Returns a new model with the settings of another one: what a process does at its start.
fn like(of: &Model) -> Model {
    let mut model = Model::new();
    model.set_strict(of.is_strict);
    for (host, keys) in &of.keys {
        model.set_keys(host.clone(), Some(keys.clone()));
    }
    for port in of.ports() {
        let added = model.add_port(port.id, port.addresses.clone());
        added.expect("a port");
    }
    for subsystem in of.subsystems() {
        let name = subsystem.name();
        let added = model.add_subsystem(subsystem.config().clone());
        added.expect("a subsystem");
        for host in subsystem.hosts() {
            model.allow_host(name, host.clone()).expect("a host");
        }
        for namespace in subsystem.namespaces() {
            let config = NamespaceConfig {
                nsid: Some(namespace.nsid()),
                uuid: namespace.uuid(),
                group: namespace.group(),
                hosts: None,
                disk: Disk::open(Source::Null(1 << 20), 9, false).expect("a disk"),
            };
            model.add_namespace(name, config).expect("a namespace");
        }
    }
    model
}

/// Parks a model, and returns the one that goes on, with a clock that shows `to`. The snapshot passes through bytes.
/// The resumed model has the same one.
fn moved(model: &Model, from: Moment, to: Moment) -> Model {
    assert!(model.is_quiet());
    let snapshot = model.park(from).expect("parked");
    let bytes = postcard::to_stdvec(&snapshot).expect("bytes");
    let read: ModelSnapshot = postcard::from_bytes(&bytes).expect("a snapshot");
    assert_eq!(read, snapshot);
    let mut next = like(model);
    next.resume(&read, to).expect("resumed");
    let notices = core::mem::take(&mut next.notices);
    assert_eq!(next.park(to).as_ref(), Ok(&snapshot), "nothing is lost");
    next.notices = notices;
    next
}

/// Connects I/O queue 1 of a controller.
fn io(model: &mut Model, id: u16, host: &str) {
    let made = model.connect(place(1), asked(1), &data(&disks(), host, id), secs(1));
    made.expect("a queue");
}

/// Carries out a reservation command on namespace 1.
fn reserve(model: &mut Model, id: u16, opcode: u8, dword: u32, keys: [u64; 2]) -> Answer {
    match model.reserve(id, 1, &sqe(opcode, 1, [dword, 0, 0, 0]), keys, 0) {
        Outcome::Answered(answer) => answer,
        other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
            panic!("{other:?}")
        }
    }
}

fn register(model: &mut Model, id: u16, key: u64) {
    assert_eq!(reserve(model, id, 0x0d, 0, [0, key]), Answer::done());
}

fn feature(model: &mut Model, id: u16, feature: u32, nsid: u32) -> u64 {
    command(model, id, &sqe(0x0a, nsid, [feature, 0, 0, 0])).result
}

#[test]
fn a_host_has_the_rest_of_its_keep_alive_time_after_any_pause() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    // The last command was at 1 s; the keep-alive time is 5 s.
    for pause in [0, 1, 3600] {
        let mut next = moved(&old, secs(4), secs(4 + pause));
        let due = secs(6 + pause);
        assert_eq!(next.expire(due - Moment::from_millis(1)), Some(due));
        assert!(next.controller(id).is_some());
        assert_eq!(next.expire(due), None);
        assert_eq!(next.take_notices(), [Notice::Over { controller: id }]);
    }
    // A host whose time was over is dead at once.
    let mut next = moved(&old, secs(7), secs(8));
    assert_eq!(next.expire(secs(8)), None);
    assert!(next.controller(id).is_none());
}

#[test]
fn queues_keep_their_connections_and_new_ones_get_further_numbers() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    io(&mut old, id, HOST);
    let mut next = moved(&old, secs(1), secs(1));
    let one = next.controller(id).expect("a controller");
    assert!(one.has_queue(0, 1) && one.has_queue(1, 2));
    assert_eq!(one.queues().collect::<Vec<_>>(), [1]);
    let again = next.connect(place(1), asked(1), &data(&disks(), HOST, id), secs(1));
    let refused = again.expect_err("it is connected").status;
    assert_eq!(refused, Status::SEQUENCE.dnr());
    let made = next.connect(place(0), asked(0), &data(&disks(), OTHER, 0xffff), secs(1));
    let made = made.expect("a controller");
    assert_eq!((made.controller, made.connection), (id + 1, 4));
    next.queue_lost(id, 1, 2);
    assert_eq!(next.controller(id).map(|one| one.queues().count()), Some(0));
    next.queue_lost(id, 0, 1);
    assert!(next.controller(id).is_none());
    assert_eq!(next.take_notices(), [Notice::Over { controller: id }]);
}

#[test]
fn event_requests_stay_outstanding_and_are_answered_by_events_after_the_pause() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    command(&mut old, id, &sqe(0x09, 0, [0x0b, 0x900, 0, 0]));
    wait(&mut old, id);
    wait(&mut old, id);
    let mut next = moved(&old, secs(1), secs(1));
    assert!(next.take_notices().is_empty() && next.next_event(id).is_none());
    next.set_access(1, 1, Access::NonOptimized).expect("a port");
    let event = Notice::Event {
        worker: 0,
        controller: id,
    };
    assert_eq!(next.take_notices(), [event]);
    assert_eq!(next.next_event(id), Some(Answer::result(0x000c_0302)));
    // The kind is held back, also after another pause, until the host reads the page.
    next.set_access(1, 1, Access::Optimized).expect("a port");
    let mut last = moved(&next, secs(1), secs(1));
    assert_eq!(last.next_event(id), None);
    log(&mut last, id, 0x0c, 32, 0);
    assert_eq!(last.take_notices(), [event]);
    assert_eq!(last.next_event(id), Some(Answer::result(0x000c_0302)));
    assert_eq!(last.next_event(id), None, "both requests are answered");
}

#[test]
fn an_event_that_was_not_fetched_gets_another_notice() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    command(&mut old, id, &sqe(0x09, 0, [0x0b, 0x100, 0, 0]));
    wait(&mut old, id);
    let one = old.namespace(&disks(), 1).expect("a namespace");
    old.namespace_changed(&disks(), &one);
    let told = old.take_notices();
    assert_eq!(told.len(), 1);
    let mut next = moved(&old, secs(1), secs(1));
    assert_eq!(next.take_notices(), told);
    assert_eq!(next.next_event(id), Some(Answer::result(0x0004_0002)));
    let page = log(&mut next, id, 0x04, 4096, 0).data;
    assert_eq!((at(&page, 0, 4), at(&page, 4, 4)), (1, 0));
}

#[test]
fn reservations_of_each_type_stay_and_guard_as_before() {
    for number in 1..=6 {
        let kind = Kind::of(number).expect("a type");
        let mut old = model(true);
        let ids = [HOST, OTHER].map(|host| {
            let id = ready(&mut old, &disks(), host);
            io(&mut old, id, host);
            register(&mut old, id, 5 + u64::from(id));
            id
        });
        let own = 5 + u64::from(ids[0]);
        let acquired = reserve(&mut old, ids[0], 0x11, number << 8, [own, 0]);
        assert_eq!(acquired, Answer::done());
        let mut next = moved(&old, secs(1), secs(2));
        let namespace = next.namespace(&disks(), 1).expect("a namespace");
        let (was, is) = (
            old.namespace(&disks(), 1).expect("a namespace"),
            namespace.reservations(),
        );
        assert_eq!(*is, *was.reservations());
        assert_eq!((is.kind(), is.generation()), (Some(kind), 2));
        assert_ne!(namespace.changes(), 0, "workers look at the reservations");
        assert_eq!(is.owner(&[17; 16]), Some(&name(OTHER)));
        // Another host cannot have the identifier of a registrant.
        next.end_controller(ids[1]);
        let stranger = "nqn.2026-11.test:stranger";
        let theirs = ConnectData::new([17; 16], 0xffff, disks().field(), name(stranger).field());
        assert!(next.connect(place(0), asked(0), &theirs, secs(2)).is_err());
        // The holder's release is reported to the other registrant, if its type is shared.
        let other = ready(&mut next, &disks(), OTHER);
        wait(&mut next, other);
        let mut next = moved(&next, secs(2), secs(2));
        let released = reserve(&mut next, ids[0], 0x15, number << 8, [own, 0]);
        assert_eq!(released, Answer::done());
        let event = (number > 2).then(|| Answer::result(0x0080_0006));
        assert_eq!(next.next_event(other), event, "type {number}");
        next.take_notices();
        let mut last = moved(&next, secs(2), secs(2));
        let page = log(&mut last, other, 0x80, 64, 0).data;
        let (kind, nsid) = if number > 2 { (2, 1) } else { (0, 0) };
        assert_eq!((u32::from(page[8]), at(&page, 12, 4)), (kind, nsid));
    }
}

#[test]
fn features_logs_access_and_protection_stay() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    for (nsid, dwords) in [
        (0, [0x01, 3, 0, 0]),
        (0, [0x04, 300, 0, 0]),
        (1, [0x05, 9, 0, 0]),
        (0, [0x0b, 0x100, 0, 0]),
        (0, [0x0f, 7000, 0, 0]),
        (1, [0x82, 4, 0, 0]),
        (1, [0x84, 1, 0, 0]),
    ] {
        let answer = command(&mut old, id, &sqe(0x09, nsid, dwords));
        assert_eq!(answer, Answer::done(), "{dwords:?}");
    }
    for _ in 0..130 {
        command(&mut old, id, &sqe(0x06, 0, [0x99, 0, 0, 0]));
    }
    old.limit_queues(id, 3);
    old.set_access(1, 2, Access::Change).expect("a port");
    let tally = old.namespace(&disks(), 1).expect("a namespace").tally();
    Tally::add(&tally.reads, 3);
    Tally::add(&tally.written_bytes, 512_001);
    let mut next = moved(&old, secs(1), secs(9));
    assert_eq!(next.take_notices(), []);
    for (one, nsid) in [
        (0x01, 0),
        (0x04, 0),
        (0x05, 1),
        (0x07, 0),
        (0x0b, 0),
        (0x0f, 0),
        (0x82, 1),
        (0x84, 1),
    ] {
        let was = feature(&mut old, id, one, nsid);
        assert_eq!(feature(&mut next, id, one, nsid), was, "{one:#x}");
    }
    for (page, bytes) in [(0x01, 128 * 64), (0x02, 512), (0x04, 4096), (0x0c, 128)] {
        let was = log(&mut old, id, page, bytes, 0);
        assert_eq!(code(was.status), 0);
        assert_eq!(log(&mut next, id, page, bytes, 0), was, "{page:#x}");
    }
    let access = &next.ports[&1].access;
    assert_eq!(access.state(2), Access::Change);
    let health = log(&mut next, id, 0x02, 512, 0).data;
    assert_eq!((at(&health, 48, 8), at(&health, 64, 8)), (2, 3));
}

#[test]
fn a_controller_that_was_reset_or_shut_down_stays_so() {
    for (value, status) in [
        (0x0046_0000, 0),
        (0x0046_4001, 0b1001),
        (0x0046_8000, 0b1000),
    ] {
        let mut old = model(true);
        let id = ready(&mut old, &disks(), HOST);
        io(&mut old, id, HOST);
        set(&mut old, id, 0x14, value);
        old.take_notices();
        let mut next = moved(&old, secs(1), secs(1));
        assert_eq!(get(&mut next, id, 0x1c, false).result, status);
        assert_eq!(get(&mut next, id, 0x14, false).result, u64::from(value));
        set(&mut next, id, 0x14, 0x0046_0000);
        set(&mut next, id, 0x14, 0x0046_0001);
        assert_eq!(get(&mut next, id, 0x1c, false).result, 1);
    }
    let mut failed = model(true);
    let id = admin(&mut failed, &disks(), HOST);
    set(&mut failed, id, 0x14, 0x0045_0001);
    let mut next = moved(&failed, secs(1), secs(1));
    assert_eq!(get(&mut next, id, 0x1c, false).result, 2);
}

#[test]
fn discovery_goes_on_with_the_number_of_its_changes_and_the_oldest_guest_makes_room() {
    let mut old = model(true);
    let ids: Vec<u16> = (0..32)
        .map(|_| ready(&mut old, &name(DISCOVERY), HOST))
        .collect();
    let page = |model: &mut Model| log(model, ids[1], 0x70, 2048, 0).data;
    let mut next = moved(&old, secs(1), secs(5));
    assert_eq!(page(&mut next), page(&mut old));
    let added = next.add_port(9, Vec::new());
    added.expect("a port");
    assert_eq!(at(&page(&mut next), 0, 8), at(&page(&mut old), 0, 8) + 1);
    ready(&mut next, &name(DISCOVERY), HOST);
    assert!(next.controller(ids[0]).is_none() && next.controller(ids[1]).is_some());
    assert_eq!((next.displaced(), next.controllers().count()), (1, 32));
    assert_eq!(moved(&next, secs(5), secs(5)).displaced(), 1);
}

#[test]
fn a_disk_that_has_grown_goes_on_with_the_size_that_hosts_know() {
    let mut old = model(true);
    let id = ready(&mut old, &disks(), HOST);
    let mut snapshot = old.park(secs(1)).expect("parked");
    snapshot.subsystems[0].namespaces[0].blocks = 1000;
    let mut next = like(&old);
    next.resume(&snapshot, secs(1)).expect("resumed");
    let namespace = next.namespace(&disks(), 1).expect("a namespace");
    assert_eq!(namespace.blocks(), 1000);
    assert!(next.controller(id).is_some());
    assert_eq!(namespace.reread_size().ok(), Some(true));
    assert_eq!(namespace.blocks(), 2048);
}

#[test]
fn what_is_half_done_is_not_parked() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let refused = |model: &Model, error| {
        assert!(!model.is_quiet());
        assert_eq!(model.park(secs(1)), Err(error));
    };
    let namespace = model.namespace(&disks(), 1).expect("a namespace");
    assert!(namespace.lock(7, 0));
    let subsystem = disks().to_string();
    refused(&model, ModelParkError::Locked { subsystem, nsid: 1 });
    namespace.unlock(7);
    assert!(model.is_quiet());
    model.remove_namespace(&disks(), 1).expect("a namespace");
    refused(&model, ModelParkError::Removed { count: 1 });
    drop(model.take_removed());
    model.end_controller(id);
    refused(&model, ModelParkError::Notices { count: 1 });
    model.take_notices();
    assert!(model.is_quiet());
}
