//! A host identifier belongs to one host name of a subsystem at a time.

use super::*;
use crate::auth::Keys;
use crate::nvme::command::io;

const DATA: u64 = 1 << 16;
/// Refusal of a host identifier that another host owns: Connect Invalid Parameters, with the offset of HOSTID.
const TAKEN: (u16, u64) = (0x182 | DNR, DATA);
const KEY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

/// State of the first host when the second host connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// The first host has a controller, and no I/O queue yet.
    Connected,
    /// The first host has an I/O queue.
    HasQueue,
    /// The first host has registered a reservation key, and its controller has ended.
    Registered,
    /// The first host has registered and unregistered, and its controller has ended.
    Unregistered,
    /// The first host's controller has ended; it had never registered.
    Gone,
    /// The first host has a key, and has not authenticated.
    Unauthenticated,
    /// The first host has a key, and has authenticated.
    Authenticated,
}

const ALL: [First; 7] = [
    First::Connected,
    First::HasQueue,
    First::Registered,
    First::Unregistered,
    First::Gone,
    First::Unauthenticated,
    First::Authenticated,
];

fn by(subsystem: &Nqn, host: &str, id: u8, controller: u16) -> ConnectData {
    let (subsystem, host) = (subsystem.field(), name(host).field());
    ConnectData::new([id; 16], controller, subsystem, host)
}

/// Connects a queue; returns the controller's number, or status and result of the refusal.
fn connect(model: &mut Model, queue: u16, data: &ConnectData) -> Result<u16, (u16, u64)> {
    let made = model.connect(place(queue), asked(queue), data, secs(0));
    made.map(|one| one.controller)
        .map_err(|refused| (code(refused.status), refused.result))
}

/// Connects an admin queue and enables the controller; returns the controller's number.
fn enabled(model: &mut Model, host: &str, id: u8) -> Result<u16, (u16, u64)> {
    let made = connect(model, 0, &by(&disks(), host, id, 0xffff))?;
    set(model, made, 0x14, 0x0046_0001);
    Ok(made)
}

fn lock(model: &mut Model, controller: u16, dword: u32, keys: [u64; 2]) {
    let sqe = sqe(io::RESERVATION_REGISTER, 1, [dword, 0, 0, 0]);
    let outcome = model.reserve(controller, 1, &sqe, keys, 0);
    assert_eq!(outcome, Outcome::Answered(Answer::done()));
}

fn after(first: First) -> Model {
    let mut model = model(true);
    if matches!(first, First::Unauthenticated | First::Authenticated) {
        let keys = Keys {
            host: KEY.parse().expect("a key"),
            controller: None,
            hash: None,
            group: None,
        };
        model.set_keys(name(HOST), Some(keys));
    }
    let m = &mut model;
    let id = enabled(m, HOST, 7).expect("the first");
    if !matches!(
        first,
        First::Connected | First::Unauthenticated | First::Authenticated
    ) {
        connect(m, 1, &by(&disks(), HOST, 7, id)).expect("its queue");
    }
    match first {
        First::Connected | First::HasQueue | First::Unauthenticated => {}
        First::Registered => {
            lock(m, id, 0, [0, 5]);
            m.end_controller(id);
        }
        First::Unregistered => {
            lock(m, id, 0, [0, 5]);
            lock(m, id, 1, [5, 0]);
            m.end_controller(id);
        }
        First::Gone => m.end_controller(id),
        First::Authenticated => m.exchanges.clear(),
    }
    model
}

/// An identifier is refused to another host name while the first host owns it. All combinations of host name,
/// identifier and state of the first host are tested.
#[test]
fn an_identifier_is_refused_to_another_name_while_the_first_one_has_it() {
    for first in ALL {
        let has_it = !matches!(
            first,
            First::Unregistered | First::Gone | First::Unauthenticated
        );
        for (host, id, is_refused) in [
            (HOST, 7, false),
            (HOST, 8, false),
            (OTHER, 7, has_it),
            (OTHER, 8, false),
        ] {
            let mut model = after(first);
            let made = connect(&mut model, 0, &by(&disks(), host, id, 0xffff));
            assert_eq!(
                made.is_err(),
                is_refused,
                "{first:?}, {host}, {id}: {made:?}"
            );
            assert!(made.is_ok() || made == Err(TAKEN), "{made:?}");
            // A discovery controller has no reservations, so it neither owns an identifier nor is refused one. An
            // identifier that is owned in one subsystem is free in another.
            let data = by(&name(DISCOVERY), host, id, 0xffff);
            assert!(
                connect(&mut model, 0, &data).is_ok(),
                "{first:?}, discovery"
            );
            let second = name("nqn.2026-11.test:second");
            let config = SubsystemConfig {
                name: second.clone(),
                serial: "S2".to_owned(),
                model: "M1".to_owned(),
                any_host: true,
                queues: QUEUES,
            };
            model.add_subsystem(config).expect("a subsystem");
            let data = by(&second, host, id, 0xffff);
            assert!(
                connect(&mut model, 0, &data).is_ok(),
                "{first:?}, another subsystem"
            );
        }
    }
}

/// An I/O queue is connected only if the controller's number, the host name and the host identifier belong together.
#[test]
fn a_queue_is_connected_to_a_controller_of_its_name_and_identifier_alone() {
    let mut model = model(true);
    let m = &mut model;
    let own = enabled(m, HOST, 7).expect("a controller");
    let theirs = enabled(m, OTHER, 8).expect("a controller");
    for (host, id, controller, wanted) in [
        (HOST, 7, own, None),
        (OTHER, 8, theirs, None),
        (HOST, 7, theirs, Some(16)),
        (OTHER, 8, own, Some(16)),
        (HOST, 8, own, Some(0)),
        (OTHER, 7, theirs, Some(0)),
        (OTHER, 7, own, Some(0)),
        (HOST, 8, theirs, Some(0)),
        (HOST, 7, 99, Some(16)),
        (HOST, 9, own, Some(0)),
    ] {
        let made = connect(m, 1, &by(&disks(), host, id, controller));
        let wanted = wanted.map(|offset| (0x182 | DNR, DATA | offset));
        assert_eq!(made.err(), wanted, "{host}, {id}, {controller}");
    }
}

/// A controller that has not authenticated does not own its host identifier, so another host can connect with it. If
/// the first controller authenticates later, the host whose I/O queue connects first owns the identifier.
#[test]
fn of_two_controllers_of_an_identifier_the_first_with_a_queue_has_it() {
    for order in [[0, 1], [1, 0]] {
        let mut model = after(First::Unauthenticated);
        let m = &mut model;
        let other = enabled(m, OTHER, 7).expect("the first has not authenticated");
        m.exchanges.clear();
        let keyed = m.controllers_that(|one| *one.host() == name(HOST))[0];
        set(m, keyed, 0x14, 0x0046_0001);
        let queues = [(HOST, keyed), (OTHER, other)];
        let [first, second] = order.map(|at| {
            let (host, controller) = queues[at];
            connect(m, 1, &by(&disks(), host, 7, controller))
        });
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(second, Err(TAKEN));
    }
}
