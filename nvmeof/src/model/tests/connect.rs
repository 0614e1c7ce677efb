//! Connect: the requests that are refused, the status, and the parameter that the result names.

use super::*;

/// Sends a Connect with this change, which must be refused, and returns its status and result.
fn refused(
    model: &mut Model,
    at: Place,
    change: impl FnOnce(&mut Connect, &mut ConnectData),
) -> (u16, u64) {
    let mut connect = asked(at.queue);
    let mut data = data(&disks(), HOST, if at.queue == 0 { 0xffff } else { 1 });
    change(&mut connect, &mut data);
    let refused = model
        .connect(at, connect, &data, secs(0))
        .expect_err("refused");
    (code(refused.status), refused.result)
}

const DATA: u64 = 1 << 16;

#[test]
fn each_refusal_of_an_admin_queue_has_its_status_and_names_its_parameter() {
    let mut model = model(false);
    model.allow_host(&disks(), name(HOST)).expect("a host");
    let m = &mut model;
    let parameter = 0x182 | DNR;
    assert_eq!(refused(m, place(0), |c, _| c.format = 1), (0x180 | DNR, 0));
    assert_eq!(refused(m, place(0), |c, _| c.queue = 1), (parameter, 42));
    for size in [0, 32, 0xffff] {
        assert_eq!(
            refused(m, place(0), |c, _| c.size = size),
            (parameter, 44),
            "{size}"
        );
    }
    // More entries than the RDMA connection request named.
    let short = Place {
        entries: 16,
        ..place(0)
    };
    assert_eq!(refused(m, short, |c, _| c.size = 16), (parameter, 44));
    for id in [0, 1, 0xfffe] {
        assert_eq!(
            refused(m, place(0), |_, d| d.controller = id.into()),
            (parameter, DATA | 16)
        );
    }
    let unknown = name("nqn.2026-11.test:unknown").field();
    for field in [unknown, [0; 256], [0xff; 256]] {
        assert_eq!(
            refused(m, place(0), |_, d| d.subsystem = field),
            (parameter, DATA | 256)
        );
    }
    assert_eq!(
        refused(m, place(0), |_, d| d.host = [b'n'; 256]),
        (parameter, DATA | 512)
    );
    let other = name(OTHER).field();
    assert_eq!(
        refused(m, place(0), |_, d| d.host = other),
        (0x184 | DNR, DATA | 512)
    );
    assert_eq!(m.controllers().count(), 0, "nothing has changed");
}

#[test]
fn each_refusal_of_an_io_queue_has_its_status_and_names_its_parameter() {
    let mut model = model(true);
    let m = &mut model;
    let parameter = 0x182 | DNR;
    assert_eq!(
        refused(m, place(1), |_, _| ()),
        (parameter, DATA | 16),
        "no controller"
    );
    let id = admin(m, &disks(), HOST);
    assert_eq!(
        (id, refused(m, place(1), |_, _| ())),
        (1, (0x00c | DNR, 0)),
        "not enabled"
    );
    set(m, id, 0x14, 0x0046_0001);
    let other = name(OTHER).field();
    assert_eq!(
        refused(m, place(1), |_, d| d.host = other),
        (parameter, DATA | 16)
    );
    assert_eq!(
        refused(m, place(1), |_, d| d.host_id = [8; 16]),
        (parameter, DATA)
    );
    assert_eq!(refused(m, place(129), |_, _| ()), (parameter, 42));
    assert_eq!(refused(m, place(1), |c, _| c.size = 128), (parameter, 44));
    let data = data(&disks(), HOST, id);
    let made = m.connect(place(1), asked(1), &data, secs(0));
    let connection = made.expect("a queue").connection;
    assert_eq!(refused(m, place(1), |_, _| ()), (0x00c | DNR, 0), "in use");
    m.queue_lost(id, 1, connection);
    assert!(
        m.connect(place(1), asked(1), &data, secs(0)).is_ok(),
        "free again"
    );
    // A second Connect on a connected queue is refused with Command Sequence Error.
    assert_eq!(
        code(command(m, id, &sqe(0x7f, 1, [0; 4])).status),
        0x00c | DNR
    );
    // A discovery controller has no I/O queues.
    let id = ready(m, &name(DISCOVERY), HOST);
    let data = super::data(&name(DISCOVERY), HOST, id);
    let refused = m
        .connect(place(1), asked(1), &data, secs(0))
        .expect_err("refused");
    assert_eq!((code(refused.status), refused.result), (parameter, 42));
}

/// Linux resets a controller by CC and reconnects the queues while the old connections are still ending. The late end
/// of an old connection does not remove the new queue of the same number.
#[test]
fn the_late_end_of_a_connection_leaves_the_one_that_has_its_number_now() {
    let mut model = model(true);
    let m = &mut model;
    let id = ready(m, &disks(), HOST);
    let data = data(&disks(), HOST, id);
    let old = m.connect(place(1), asked(1), &data, secs(0));
    let old = old.expect("a queue").connection;
    set(m, id, 0x14, 0x0046_0000);
    let reset = Notice::Reset {
        controller: id,
        last: old,
    };
    assert_eq!(m.take_notices(), [reset], "of the old queue alone");
    set(m, id, 0x14, 0x0046_0001);
    let new = m.connect(place(1), asked(1), &data, secs(0));
    let new = new.expect("a queue").connection;
    assert!(new > old);
    m.queue_lost(id, 1, old);
    assert_eq!(refused(m, place(1), |_, _| ()), (0x00c | DNR, 0), "in use");
    m.queue_lost(id, 0, old);
    assert!(m.controller(id).is_some(), "its admin queue is another");
    m.queue_lost(id, 1, new);
    assert!(m.connect(place(1), asked(1), &data, secs(0)).is_ok());
}

#[test]
fn every_controller_has_a_number_of_its_own_until_there_are_too_many() {
    let mut model = model(true);
    let data = super::data(&disks(), HOST, 0xffff);
    let first = model.connect(place(0), asked(0), &data, secs(0));
    let first = first.expect("a controller");
    model.queue_lost(first.controller, 0, first.connection);
    // An address may have as many controllers as it leaves free for others, or sixteen.
    let mut made = 0;
    for host in 0..u8::MAX {
        let from = Place {
            source: IpAddr::from([192, 0, 3, host]),
            ..place(0)
        };
        let data = super::data(&disks(), HOST, 0xffff);
        let before = made;
        let refused = loop {
            match model.connect(from, asked(0), &data, secs(0)) {
                Ok(connected) => {
                    made += 1;
                    assert_eq!(
                        connected.controller,
                        made + 1,
                        "a number is not given out again at once"
                    );
                }
                Err(refused) => break refused,
            }
        };
        assert_eq!(code(refused.status), 0x181, "to be tried again");
        let own = made - before;
        assert!(own <= 1024 - made || own <= 16, "{own} of {made}");
        assert!(host > 6 || own >= 16, "host {host} finds {own}");
    }
    assert_eq!(made, 1024);
}

/// Returns the `Place` of an admin connection from this address.
fn from(source: [u8; 4]) -> Place {
    Place {
        source: IpAddr::from(source),
        ..place(0)
    }
}

/// Discovery needs no permission and no key. However many discovery controllers one address opens, those of other
/// addresses stay, and hosts can still connect.
#[test]
fn discovery_controllers_of_one_address_end_each_other_and_take_no_place_of_others() {
    let mut model = model(true);
    let discovery = name(DISCOVERY);
    let other = data(&discovery, OTHER, 0xffff);
    let place = from([192, 0, 2, 1]);
    let other = model.connect(place, asked(0), &other, secs(0));
    let other = other.expect("a controller").controller;
    let stranger = data(&discovery, HOST, 0xffff);
    let mut made = Vec::new();
    for round in 0..1024 {
        let place = from([192, 0, 2, 9]);
        let connected = model.connect(place, asked(0), &stranger, secs(round));
        made.push(connected.expect("always").controller);
        // Property commands do not protect the oldest controller from being ended.
        for id in &made {
            model.command(*id, 0, &sqe(0x7f, 4, [0, 0x1c, 0, 0]), 8, secs(round));
        }
    }
    let theirs = |model: &Model, id: &u16| model.controller(*id).is_some();
    let there: Vec<bool> = made.iter().map(|id| theirs(&model, id)).collect();
    assert_eq!(there.iter().filter(|one| **one).count(), 32);
    assert!(there[992..].iter().all(|one| *one), "the youngest stay");
    assert!(model.controller(other).is_some());
    assert_eq!(model.displaced(), 992);
    for _ in 0..512 {
        admin(&mut model, &disks(), HOST);
    }
}

#[test]
fn where_all_discovery_places_are_taken_the_address_with_the_most_makes_room() {
    let mut model = model(true);
    let data = data(&name(DISCOVERY), HOST, 0xffff);
    let mut connect = |source: [u8; 4]| {
        let made = model.connect(from(source), asked(0), &data, secs(0));
        made.expect("always").controller
    };
    let own = connect([192, 0, 2, 200]);
    // Eight addresses with 32 controllers each, together with `own`, exceed the limit of 256 by one.
    let many: Vec<u16> = (0..8)
        .flat_map(|host| [host; 32])
        .map(|host| connect([192, 0, 2, host]))
        .collect();
    let newcomer = connect([192, 0, 2, 201]);
    let there = |id: &u16| model.controller(*id).is_some();
    assert!(there(&own) && there(&newcomer));
    assert_eq!(many.iter().filter(|id| there(id)).count(), 254);
}

/// The controllers of a host with a key count for its address until they have authenticated, and then for its name.
#[test]
fn controllers_that_have_not_authenticated_have_a_pool_of_their_own() {
    use crate::auth::Keys;
    let mut model = model(true);
    let keys = Keys {
        host: "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
            .parse()
            .expect("a key"),
        controller: None,
        hash: None,
        group: None,
    };
    model.set_keys(name(OTHER), Some(keys));
    let data = data(&disks(), OTHER, 0xffff);
    for round in 0..500 {
        let place = from([192, 0, 2, 9]);
        assert!(
            model
                .connect(place, asked(0), &data, secs(round))
                .is_ok_and(|one| one.must_authenticate)
        );
    }
    assert_eq!(model.controllers().count(), 32);
    for _ in 0..512 {
        admin(&mut model, &disks(), HOST);
    }
}

/// Set Features 07h grants what the subsystem has, and a queue with a higher number is refused. A change ends the
/// controllers, so that hosts connect again.
#[test]
fn a_host_has_as_many_queues_as_its_subsystem_grants() {
    let mut model = model(true);
    let granted = |model: &mut Model, id| {
        let asked = sqe(0x09, 0, [0x07, 127 | 127 << 16, 0, 0]);
        command(model, id, &asked).result
    };
    let id = ready(&mut model, &disks(), HOST);
    assert_eq!(granted(&mut model, id), 127 | 127 << 16);
    model.set_queues(&disks(), 2).expect("a subsystem");
    assert_eq!(model.take_notices(), [Notice::Over { controller: id }]);
    let id = ready(&mut model, &disks(), HOST);
    assert_eq!(granted(&mut model, id), 1 | 1 << 16);
    // A worker that has room for more does not raise it, and one that has room for fewer lowers it.
    model.limit_queues(id, 64);
    assert_eq!(granted(&mut model, id), 1 | 1 << 16);
    model.limit_queues(id, 1);
    assert_eq!(granted(&mut model, id), 0);
    let of = data(&disks(), HOST, id);
    let connects =
        |model: &mut Model, queue| model.connect(place(queue), asked(queue), &of, secs(1));
    assert!(connects(&mut model, 2).is_ok());
    let refused = connects(&mut model, 3).expect_err("there are two");
    assert_eq!(refused.status, Status::CONNECT_PARAMETER.dnr());
    for queues in [0, 129] {
        assert!(model.set_queues(&disks(), queues).is_err(), "{queues}");
    }
}
