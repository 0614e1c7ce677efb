//! Hosts that may connect, and the discovery log entries that each host gets.

use super::*;

const CHANGED: u64 = 0x0070_f002;

/// Returns the discovery log page: generation, and subsystem type and name of each entry.
fn discovered(model: &mut Model, id: u16) -> (u64, Vec<(u64, String)>) {
    let head = log(model, id, 0x70, 1024, 0).data;
    let count = u32::try_from(at(&head, 8, 8)).expect("few");
    let page = log(model, id, 0x70, 1024 * (count + 1), 0).data;
    let entries = page.chunks(1024).skip(1).map(|entry| {
        assert_eq!(
            (entry[0], entry[1], at(entry, 6, 2)),
            (1, 1, 0xffff),
            "RDMA, IPv4, dynamic"
        );
        assert_eq!(
            (entry[768], entry[770], at(entry, 8, 2)),
            (1, 1, 32),
            "RC, RDMA CM, 32 entries"
        );
        let text = |from: usize, to| {
            String::from_utf8_lossy(&entry[from..to])
                .trim_end_matches('\0')
                .to_owned()
        };
        (
            u64::from(entry[2]),
            format!("{} {}:{}", text(256, 512), text(512, 768), text(32, 64)),
        )
    });
    (at(&head, 0, 8), entries.collect())
}

#[test]
fn discovery_shows_a_host_what_it_may_have_and_says_when_that_changes() {
    let mut model = model(false);
    let allowed = ready(&mut model, &name(DISCOVERY), HOST);
    let other = ready(&mut model, &name(DISCOVERY), OTHER);
    let m = &mut model;
    command(m, allowed, &sqe(0x09, 0, [0x0b, 1 << 31, 0, 0]));
    wait(m, allowed);
    let (before, _) = discovered(m, allowed);
    m.allow_host(&disks(), name(HOST)).expect("a subsystem");
    assert_eq!(
        m.take_notices(),
        [Notice::Event {
            worker: 0,
            controller: allowed
        }]
    );
    assert_eq!(m.next_event(allowed).map(|one| one.result), Some(CHANGED));
    m.add_referral(9, "192.0.2.9:4420".parse().expect("an address"))
        .expect("new");
    let own = (3, format!("{DISCOVERY} 192.0.2.1:4420"));
    let referral = (1, format!("{DISCOVERY} 192.0.2.9:4420"));
    let (after, entries) = discovered(m, allowed);
    assert_eq!(after, before + 2);
    assert_eq!(
        entries,
        [
            own.clone(),
            (2, format!("{} 192.0.2.1:4420", disks())),
            referral.clone()
        ]
    );
    assert_eq!(discovered(m, other).1, [own, referral], "it learns nothing");
    assert_eq!(
        code(command(m, other, &sqe(0x09, 0, [7, 0, 0, 0])).status),
        0x002 | DNR
    );
    assert_eq!(
        code(command(m, other, &sqe(0x09, 0, [0x0b, 0x100, 0, 0])).status),
        0x002 | DNR
    );
    for page in [0x02, 0x04, 0x0c] {
        assert_eq!(code(log(m, other, page, 64, 0).status), 0x109 | DNR);
    }
}

#[test]
fn a_subsystem_that_no_longer_takes_any_host_ends_controllers_of_hosts_that_are_not_listed() {
    let mut model = model(true);
    let m = &mut model;
    m.allow_host(&disks(), name(HOST)).expect("a subsystem");
    let (listed, other) = (ready(m, &disks(), HOST), ready(m, &disks(), OTHER));
    m.set_any_host(&disks(), false).expect("a subsystem");
    assert_eq!(m.take_notices(), [Notice::Over { controller: other }]);
    let left: Vec<u16> = m.controllers().map(Controller::id).collect();
    assert_eq!(left, [listed]);
    m.set_any_host(&disks(), true).expect("a subsystem");
    assert_eq!(m.take_notices(), []);
    assert!(
        m.set_any_host(&name("nqn.2026-11.example:none"), true)
            .is_err()
    );
}

#[test]
fn a_host_that_is_forbidden_and_a_subsystem_that_goes_end_their_controllers() {
    let mut model = model(false);
    let m = &mut model;
    m.allow_host(&disks(), name(HOST)).expect("a subsystem");
    m.allow_host(&disks(), name(OTHER)).expect("a subsystem");
    let (one, two) = (ready(m, &disks(), HOST), ready(m, &disks(), OTHER));
    m.forbid_host(&disks(), &name(HOST)).expect("allowed");
    assert_eq!(m.take_notices(), [Notice::Over { controller: one }]);
    assert!(m.forbid_host(&disks(), &name(HOST)).is_err());
    m.remove_subsystem(&disks()).expect("there");
    assert_eq!(m.take_notices(), [Notice::Over { controller: two }]);
    assert_eq!(m.controllers().count(), 0);
}
