//! Log pages, and the asynchronous events that announce them.

use super::*;

const NAMESPACE: u64 = 0x0004_0002;
const ACCESS: u64 = 0x000c_0302;

fn event(model: &mut Model, id: u16) -> Option<u64> {
    model.next_event(id).map(|answer| answer.result)
}

#[test]
fn pages_have_their_lengths_and_are_read_from_any_dword_on() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    for page in [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x0c, 0x12] {
        let whole = log(m, id, page, 512, 0);
        assert_eq!(
            (whole.status, whole.data.len()),
            (Status::SUCCESS, 512),
            "{page:#x}"
        );
        let part = log(m, id, page, 8, 16);
        assert_eq!(part.data, whole.data[16..24], "{page:#x}");
        assert_eq!(
            code(log(m, id, page, 4, 2).status),
            0x002 | DNR,
            "{page:#x} from half a dword"
        );
        assert_eq!(
            code(log(m, id, page, 4, 1 << 20).status),
            0x002 | DNR,
            "{page:#x} from behind its end"
        );
    }
    let supported = log(m, id, 0, 1024, 0).data;
    let listed: Vec<usize> = (0..256)
        .filter(|page| supported[page * 4] & 1 == 1)
        .collect();
    for page in 0..=0xff {
        let is_there = log(m, id, page, 4, 0).status.is_success();
        assert_eq!(is_there, listed.contains(&(page as usize)), "{page:#x}");
    }
    assert_eq!(code(log(m, id, 0x70, 16, 0).status), 0x109 | DNR);
    // The host asks for more bytes than its buffer has.
    let short = m.command(id, 0, &sqe(0x02, 0, [2 | 127 << 16, 0, 0, 0]), 64, secs(1));
    assert_eq!(short, Outcome::Answered(Status::SGL_LENGTH.dnr().into()));
}

#[test]
fn an_error_is_logged_newest_first_with_its_command_and_status() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let mut bad = sqe(0xc1, 0x55, [0x11, 0x22, 0, 0]);
    bad.cid = 0x1234.into();
    command(&mut model, id, &bad);
    command(&mut model, id, &sqe(0xc2, 0, [0; 4]));
    let page = log(&mut model, id, 1, 128, 0).data;
    assert_eq!((at(&page, 0, 8), at(&page, 64, 8)), (2, 1));
    assert_eq!(
        (at(&page, 64 + 10, 2), at(&page, 64 + 12, 2)),
        (0x1234, 0x8002)
    );
    for _ in 0..300 {
        command(&mut model, id, &bad);
    }
    let page = log(&mut model, id, 1, 128 * 64, 0).data;
    assert_eq!((at(&page, 0, 8), at(&page, 127 * 64, 8)), (302, 175));
}

#[test]
fn changed_namespaces_are_told_once_and_kept_if_the_host_says_so() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    m.add_namespace(&disks(), disk()).expect("a namespace");
    assert_eq!(event(m, id), None, "not asked for");
    command(m, id, &sqe(0x09, 0, [0x0b, 0x900, 0, 0]));
    wait(m, id);
    m.remove_namespace(&disks(), 1).expect("it is there");
    assert_eq!(
        m.take_notices(),
        [Notice::Event {
            worker: 0,
            controller: id
        }]
    );
    assert_eq!((event(m, id), event(m, id)), (Some(NAMESPACE), None));
    let retain = 1 << 15;
    let numbers = |page: &Answer| {
        [
            at(&page.data, 0, 4),
            at(&page.data, 4, 4),
            at(&page.data, 8, 4),
        ]
    };
    assert_eq!(numbers(&log(m, id, 4 | retain, 4096, 0)), [1, 2, 0]);
    // A namespace changes again, and the host sends an event request before it reads the page. The read clears the
    // first event, so the second is then reported.
    m.remove_namespace(&disks(), 2).expect("it is there");
    wait(m, id);
    assert_eq!(
        (m.take_notices(), event(m, id)),
        (vec![], None),
        "held back"
    );
    assert_eq!(code(log(m, id, 4, 4096, 2).status), 0x002 | DNR);
    assert_eq!(
        numbers(&log(m, id, 4, 4096, 0)),
        [1, 2, 0],
        "what was refused has read nothing"
    );
    assert_eq!(
        m.take_notices(),
        [Notice::Event {
            worker: 0,
            controller: id
        }]
    );
    assert_eq!(event(m, id), Some(NAMESPACE));
    assert_eq!(numbers(&log(m, id, 4, 4096, 0)), [0; 3]);
}

#[test]
fn access_is_told_by_group_and_a_change_of_it_is_an_event() {
    let mut model = model(true);
    model.add_port(2, Vec::new()).expect("a port");
    let two = NamespaceConfig { group: 2, ..disk() };
    model.add_namespace(&disks(), two).expect("a namespace");
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    command(m, id, &sqe(0x09, 0, [0x0b, 0x900, 0, 0]));
    wait(m, id);
    m.set_access(2, 2, crate::nvme::log::Access::Inaccessible)
        .expect("a port");
    assert_eq!(event(m, id), None, "another port");
    m.set_access(1, 2, crate::nvme::log::Access::Inaccessible)
        .expect("a port");
    assert_eq!(event(m, id), Some(ACCESS));
    let page = log(m, id, 0x0c, 88, 0).data;
    assert_eq!((at(&page, 0, 8), at(&page, 8, 2)), (1, 2));
    let group = |from| {
        [
            at(&page, from, 4),
            at(&page, from + 4, 4),
            at(&page, from + 16, 1),
            at(&page, from + 32, 4),
        ]
    };
    assert_eq!((group(16), group(52)), ([1, 1, 1, 1], [2, 1, 3, 2]));
    // Groups without their namespaces (RGO).
    let page = log(m, id, 0x0c | 1 << 8, 80, 0).data;
    assert_eq!(
        (at(&page, 16 + 4, 4), at(&page, 48, 4), at(&page, 52, 4)),
        (0, 2, 0)
    );
    assert!(
        m.set_access(3, 1, crate::nvme::log::Access::Change)
            .is_err()
    );
    assert!(
        m.set_access(1, 17, crate::nvme::log::Access::Change)
            .is_err()
    );
    let port = m.ports().next().expect("a port").access.clone();
    assert_eq!(
        (port.check(1), port.check(2)),
        (Ok(()), Err(Status::ANA_INACCESSIBLE))
    );
    assert_eq!(port.check(0), Err(Status::ANA_INACCESSIBLE));
}
