//! Namespaces that only some hosts of a subsystem see: every command and event treats a hidden namespace as one that is
//! not there (Base specification, "Namespace Attachment": a namespace that is not attached is inactive).

use super::*;
use crate::nvme::command::io;

const NONE: u16 = 0x00b | DNR;

/// Returns a model with namespaces 1, that all hosts see, and 2, which only [`OTHER`] sees; and the controllers of both
/// hosts.
fn masked() -> (Model, u16, u16) {
    let mut model = model(true);
    let hidden = NamespaceConfig {
        hosts: Some([name(OTHER)].into()),
        group: 2,
        ..disk()
    };
    assert_eq!(model.add_namespace(&disks(), hidden), Ok(2));
    let (host, other) = (
        ready(&mut model, &disks(), HOST),
        ready(&mut model, &disks(), OTHER),
    );
    (model, host, other)
}

fn identify(model: &mut Model, id: u16, cns: u32, nsid: u32) -> Answer {
    command(model, id, &sqe(0x06, nsid, [cns, 0, 0, 0]))
}

#[test]
fn identify_has_no_namespace_that_the_host_does_not_see() {
    let (mut model, host, other) = masked();
    let m = &mut model;
    for (id, second) in [(host, 0), (other, 2)] {
        let list = identify(m, id, 0x02, 0).data;
        assert_eq!((at(&list, 0, 4), at(&list, 4, 4)), (1, second));
        // The size of an inactive namespace is 0, and its structure is zeros.
        let size = at(&identify(m, id, 0x00, 2).data, 0, 8);
        assert_eq!(size != 0, second != 0);
        let independent = identify(m, id, 0x08, 2).data;
        assert_eq!(independent.iter().any(|byte| *byte != 0), second != 0);
        let descriptors = code(identify(m, id, 0x03, 2).status);
        assert_eq!(descriptors, if second == 0 { NONE } else { 0 });
    }
    // The controllers to which a namespace is attached.
    assert_eq!(code(identify(m, host, 0x12, 2).status), NONE);
    let attached = identify(m, other, 0x12, 2).data;
    assert_eq!(
        (at(&attached, 0, 2), at(&attached, 2, 2)),
        (1, other.into())
    );
    let all = identify(m, other, 0x12, 1).data;
    assert_eq!(at(&all, 0, 2), 2);
}

#[test]
fn log_pages_have_no_namespace_that_the_host_does_not_see() {
    let (mut model, host, other) = masked();
    let m = &mut model;
    // ANA: change count, number of groups; each group has its number and its number of namespaces.
    let groups = |m: &mut Model, id| at(&log(m, id, 0x0c, 64, 0).data, 8, 2);
    assert_eq!((groups(m, host), groups(m, other)), (1, 2));
    let health = |m: &mut Model, id| {
        let asked = sqe(0x02, 2, [0x02 | 127 << 16, 0, 0, 0]);
        code(command(m, id, &asked).status)
    };
    assert_eq!((health(m, host), health(m, other)), (NONE, 0));
}

#[test]
fn features_and_reservations_of_a_hidden_namespace_are_refused() {
    let (mut model, host, other) = masked();
    let m = &mut model;
    // Write protection, and error recovery, of namespace 2.
    for feature in [0x84, 0x05] {
        let get = sqe(0x0a, 2, [feature, 0, 0, 0]);
        let set = sqe(0x09, 2, [feature, 0, 0, 0]);
        for asked in [get, set] {
            assert_eq!(code(command(m, host, &asked).status), NONE);
            assert_eq!(code(command(m, other, &asked).status), 0);
        }
    }
    let register = sqe(io::RESERVATION_REGISTER, 2, [0; 4]);
    let answered = |outcome| match outcome {
        Outcome::Answered(answer) => code(answer.status),
        other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
            panic!("{other:?}")
        }
    };
    assert_eq!(answered(m.reserve(host, 1, &register, [0, 1], 0)), NONE);
    assert_eq!(answered(m.reserve(other, 1, &register, [0, 1], 0)), 0);
}

/// The page of changed namespaces, and whether the controller gets an event.
fn told(model: &mut Model, id: u16) -> (u64, bool) {
    let page = log(model, id, 0x04, 4096, 0).data;
    let notices = model.take_notices();
    let event = |one: &Notice| matches!(one, Notice::Event { controller, .. } if *controller == id);
    (at(&page, 0, 4), notices.iter().any(event))
}

#[test]
fn only_hosts_for_which_a_namespace_appears_or_vanishes_get_an_event() {
    let (mut model, host, other) = masked();
    let m = &mut model;
    for id in [host, other] {
        // Bit 8: namespace attribute notices.
        command(m, id, &sqe(0x09, 0, [0x0b, 1 << 8, 0, 0]));
        wait(m, id);
    }
    let both = Some([name(HOST), name(OTHER)].into());
    m.set_hosts(&disks(), 2, both).expect("a namespace");
    assert_eq!(told(m, host), (2, true));
    assert_eq!(told(m, other), (0, false));
    m.next_event(host).expect("an event");
    // The page is read after the event, so the next event of its kind is not held back.
    log(m, host, 0x04, 4096, 0);
    wait(m, host);
    // Now it vanishes for both.
    let nobody = Some(BTreeSet::new());
    m.set_hosts(&disks(), 2, nobody).expect("a namespace");
    let notices = m.take_notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    for id in [host, other] {
        m.next_event(id).expect("an event");
        assert_eq!(told(m, id).0, 2);
        wait(m, id);
    }
    m.take_notices();
    // Its removal is told to nobody, because nobody saw it.
    m.remove_namespace(&disks(), 2).expect("a namespace");
    assert_eq!(m.take_notices(), []);
    assert_eq!((told(m, host).0, told(m, other).0), (0, 0));
}

#[test]
fn a_namespace_that_is_not_there_has_no_hosts() {
    let (mut model, _, _) = masked();
    assert!(model.set_hosts(&disks(), 3, None).is_err());
    assert!(model.set_hosts(&name(OTHER), 1, None).is_err());
}
