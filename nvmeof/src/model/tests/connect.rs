//! Connect: what is refused, how, and which parameter is named.

use super::*;

/// Status and result of a Connect that is changed like this.
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
    // More than the connection was made for.
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
    assert!(m.connect(place(1), asked(1), &data, secs(0)).is_ok());
    assert_eq!(refused(m, place(1), |_, _| ()), (0x00c | DNR, 0), "in use");
    m.queue_lost(id, 1);
    assert!(
        m.connect(place(1), asked(1), &data, secs(0)).is_ok(),
        "free again"
    );
    // Once connected, Connect is out of sequence.
    assert_eq!(
        code(command(m, id, &sqe(0x7f, 1, [0; 4])).status),
        0x00c | DNR
    );
    // Discovery has none.
    let id = ready(m, &name(DISCOVERY), HOST);
    let data = super::data(&name(DISCOVERY), HOST, id);
    let refused = m
        .connect(place(1), asked(1), &data, secs(0))
        .expect_err("refused");
    assert_eq!((code(refused.status), refused.result), (parameter, 42));
}

#[test]
fn every_controller_has_a_number_of_its_own_until_there_are_too_many() {
    let mut model = model(true);
    let first = admin(&mut model, &disks(), HOST);
    model.queue_lost(first, 0);
    for before in 1..=1024_u16 {
        assert_eq!(
            admin(&mut model, &disks(), HOST),
            before + 1,
            "a number is not given out again at once"
        );
    }
    let data = data(&disks(), HOST, 0xffff);
    let refused = model
        .connect(place(0), asked(0), &data, secs(0))
        .expect_err("refused");
    assert_eq!(code(refused.status), 0x181, "to be tried again");
}
