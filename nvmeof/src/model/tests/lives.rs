//! Properties, Keep Alive, features, and the end of controllers.

use super::*;

const CSTS: u32 = 0x1c;

fn status(model: &mut Model, id: u16) -> u64 {
    get(model, id, CSTS, false).result
}

#[test]
fn properties_are_those_of_the_table_and_no_others() {
    let mut model = model(true);
    let id = admin(&mut model, &disks(), HOST);
    // MQES 127, CQR, TO 15, the NVM command set, CRWMS.
    let cap = 127 | 1 << 16 | 15 << 24 | 1 << 37 | 1 << 59;
    assert_eq!(get(&mut model, id, 0x00, true).result, cap);
    assert_eq!(get(&mut model, id, 0x08, false).result, 0x0002_0000);
    assert_eq!(get(&mut model, id, 0x68, false).result, 15);
    for (offset, is_long) in [
        (0x00, false),
        (0x08, true),
        (0x14, true),
        (0x0c, false),
        (0x20, false),
        (0x1000, false),
    ] {
        let refused = get(&mut model, id, offset, is_long).status;
        assert_eq!(code(refused), 0x002 | DNR, "{offset:#x} {is_long}");
    }
    for offset in [0x00, 0x08, CSTS, 0x20, 0x68] {
        assert_eq!(
            code(set(&mut model, id, offset, 1).status),
            0x002 | DNR,
            "{offset:#x}"
        );
    }
    assert_eq!(
        code(command(&mut model, id, &sqe(0x7f, 4, [2, 0, 0, 0])).status),
        0x002 | DNR
    );
}

/// Values of CC that Linux writes enable, reset and shut down a controller. Unsupported values set CSTS.CFS.
#[test]
fn a_controller_is_enabled_reset_and_shut_down_by_its_configuration() {
    let mut model = model(true);
    let id = admin(&mut model, &disks(), HOST);
    set(&mut model, id, 0x14, 0x0046_0000);
    assert_eq!(status(&mut model, id), 0);
    assert_eq!(
        code(command(&mut model, id, &sqe(0x06, 0, [1, 0, 0, 0])).status),
        0x00c | DNR
    );
    set(&mut model, id, 0x14, 0x0046_0001);
    assert_eq!(status(&mut model, id), 1);
    assert!(model.take_notices().is_empty());
    set(&mut model, id, 0x14, 0x0046_0000);
    assert_eq!(
        (status(&mut model, id), model.take_notices()),
        (
            0,
            vec![Notice::Reset {
                controller: id,
                last: 1
            }]
        )
    );
    set(&mut model, id, 0x14, 0x0046_0001);
    set(&mut model, id, 0x14, 0x0046_4001);
    assert_eq!(
        status(&mut model, id),
        0b1001,
        "ready, and shutdown complete"
    );
    assert_eq!(
        model.take_notices(),
        [Notice::Reset {
            controller: id,
            last: 1
        }]
    );
    assert_eq!(
        code(command(&mut model, id, &sqe(0x18, 0, [0; 4])).status),
        0x00c | DNR
    );
    for wrong in [
        0x0046_0061,
        0x0046_0081,
        0x0046_0801,
        0x0045_0001,
        0x0036_0001,
    ] {
        let id = admin(&mut model, &disks(), HOST);
        set(&mut model, id, 0x14, wrong);
        assert_eq!(status(&mut model, id), 2, "CFS of {wrong:#x}");
    }
}

#[test]
fn a_reset_frees_io_queues_and_event_requests() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let data = data(&disks(), HOST, id);
    model
        .connect(place(1), asked(1), &data, secs(0))
        .expect("a queue");
    assert_eq!(
        code(command(&mut model, id, &sqe(0x09, 0, [7, 0, 0, 0])).status),
        0x00c | DNR,
        "too late"
    );
    for _ in 0..4 {
        wait(&mut model, id);
    }
    assert_eq!(
        code(command(&mut model, id, &sqe(0x0c, 0, [0; 4])).status),
        0x105 | DNR
    );
    set(&mut model, id, 0x14, 0x0046_0000);
    set(&mut model, id, 0x14, 0x0046_0001);
    wait(&mut model, id);
    model
        .connect(place(1), asked(1), &data, secs(0))
        .expect("free again");
}

#[test]
fn a_silent_host_is_dead_after_its_keep_alive_time_and_one_that_speaks_is_not() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    // The last command was at 1 s; the keep-alive time is 5 s.
    assert_eq!(model.expire(Moment::from_millis(5999)), Some(secs(6)));
    let alive = model.command(id, 0, &sqe(0x18, 0, [0; 4]), 0, secs(5));
    assert_eq!(alive, Outcome::Answered(Answer::done()));
    assert_eq!(model.expire(secs(9)), Some(secs(10)));
    assert_eq!(model.expire(secs(10)), None);
    assert_eq!(model.take_notices(), [Notice::Over { controller: id }]);
    assert!(model.controller(id).is_none());
    // A controller without keep-alive time ends after an hour without traffic. A controller that is not enabled ends
    // after 120 s.
    let id = ready(&mut model, &disks(), HOST);
    command(&mut model, id, &sqe(0x09, 0, [0x0f, 0, 0, 0]));
    assert_eq!(
        model.expire(secs(3600)),
        Some(secs(3601)),
        "heard of at 1 s"
    );
    assert!(model.controller(id).is_some());
    model.expire(secs(3601));
    assert!(model.controller(id).is_none());
    let idle = admin(&mut model, &disks(), HOST);
    assert_eq!(model.expire(secs(119)), Some(secs(120)));
    assert_eq!(model.expire(secs(120)), None);
    assert!(model.controller(idle).is_none());
}

#[test]
fn a_silent_discovery_controller_ends_after_its_keep_alive_time_or_120_seconds() {
    let mut model = model(true);
    for (keep_alive_ms, patience) in [(5000, 5), (0, 120)] {
        let data = data(&name(DISCOVERY), HOST, 0xffff);
        let connect = Connect {
            keep_alive_ms,
            ..asked(0)
        };
        let made = model.connect(place(0), connect, &data, secs(0));
        let id = made.expect("a controller").controller;
        set(&mut model, id, 0x14, 0x0046_0001);
        let due = secs(1 + patience);
        assert_eq!(model.expire(secs(patience)), Some(due), "heard of at 1 s");
        assert!(model.controller(id).is_some());
        assert_eq!(model.expire(due), None);
        assert!(model.controller(id).is_none());
    }
}

/// Any command keeps a controller alive (Traffic Based Keep Alive, which CTRATT announces). Linux 6.12 sends no Keep
/// Alive while responses arrive.
#[test]
fn any_command_of_any_queue_keeps_a_controller_alive() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    model.command(id, 0, &sqe(0x06, 0, [1, 0, 0, 0]), 4096, secs(5));
    assert_eq!(model.expire(secs(9)), Some(secs(10)), "an admin command");
    // Property Get. The field that is NSID in other commands has the type of a fabrics command.
    model.command(id, 0, &sqe(0x7f, 4, [0, 0x1c, 0, 0]), 8, secs(9));
    assert_eq!(model.expire(secs(13)), Some(secs(14)), "Property Get");
    let data = data(&disks(), HOST, id);
    model
        .connect(place(1), asked(1), &data, secs(13))
        .expect("an I/O queue");
    assert_eq!(model.expire(secs(17)), Some(secs(18)), "Connect");
    model.hear(id, secs(17));
    model.hear(id, secs(16));
    assert_eq!(model.expire(secs(21)), Some(secs(22)), "what a worker saw");
    assert_eq!(model.expire(secs(22)), None);
    assert!(model.controller(id).is_none());
}

#[test]
fn a_feature_of_a_namespace_that_is_not_there_is_refused() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    for feature in [0x05, 0x82, 0x83, 0x84] {
        for opcode in [0x09, 0x0a] {
            let answer = command(&mut model, id, &sqe(opcode, 77, [feature, 0, 0, 0]));
            assert_eq!(code(answer.status), 0x00b | DNR, "{opcode:#x} {feature:#x}");
        }
    }
}

#[test]
fn features_are_set_and_given_back_and_others_refused() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    let mut feature = |opcode, nsid, dword10: u32, dword11| {
        let answer = command(m, id, &sqe(opcode, nsid, [dword10, dword11, 0, 0]));
        (code(answer.status), answer.result, answer.data)
    };
    let done = |result| (0, result, Vec::new());
    let refused = |status| (status | DNR, 0, Vec::new());
    assert_eq!(feature(0x09, 0, 7, 0x0003_0003), done(0x007f_007f));
    assert_eq!(feature(0x09, 0, 7, 0xffff_0003), refused(0x002));
    // Keep-alive times are rounded up to seconds.
    assert_eq!(feature(0x09, 0, 0x0f, 1001), done(0));
    assert_eq!(feature(0x0a, 0, 0x0f, 0), done(2000));
    assert_eq!(feature(0x0a, 0, 0x10f, 0), done(0), "the default");
    assert_eq!(feature(0x09, 0, 0x0f, u32::MAX), done(0));
    assert_eq!(feature(0x0a, 0, 0x0f, 0), done(4_294_967_000));
    // SPDK enables critical warnings, too (`nvme_ctrlr_configure_aer`).
    assert_eq!(feature(0x09, 0, 0x0b, 0x91f), done(0));
    assert_eq!(feature(0x0a, 0, 0x0b, 0), done(0x91f));
    assert_eq!(feature(0x09, 0, 0x0b, 0x900), done(0));
    assert_eq!(feature(0x0a, 0, 0x0b, 0), done(0x900));
    assert_eq!(
        feature(0x09, 0, 0x0b, 0x200),
        refused(0x002),
        "an event that is not offered"
    );
    assert_eq!(feature(0x0a, 0, 0x81, 1), (0, 0, vec![7; 16]));
    assert_eq!(feature(0x0a, 0, 0x81, 0), refused(0x002), "64 bits");
    assert_eq!(feature(0x09, 0, 0x81, 1), refused(0x00c));
    assert_eq!(feature(0x0a, 0, 0x06, 0), done(1));
    assert_eq!(feature(0x09, 0, 0x06, 0), refused(0x10e));
    assert_eq!(feature(0x09, 1, 0x84, 1), done(0));
    assert_eq!(feature(0x0a, 1, 0x84, 0), done(1));
    assert_eq!(feature(0x09, 1, 0x84, 2), refused(0x002));
    assert_eq!(feature(0x09, 2, 0x84, 1), refused(0x00b));
    assert_eq!(
        feature(0x09, 0, 0x8000_000b, 0),
        refused(0x10d),
        "to be saved"
    );
    assert_eq!(feature(0x0a, 0, 0x30f, 0), done(4), "changeable");
    for unknown in [0x00, 0x03, 0x08, 0x09, 0x0c, 0x0e, 0x16, 0xff] {
        assert_eq!(feature(0x09, 0, unknown, 0), refused(0x002), "{unknown:#x}");
        assert_eq!(feature(0x0a, 0, unknown, 0), refused(0x002), "{unknown:#x}");
    }
}

#[test]
fn opcodes_and_flags_that_are_none_are_refused() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    for opcode in
        (0..=0xff).filter(|one| ![0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f].contains(one))
    {
        assert_eq!(
            code(command(&mut model, id, &sqe(opcode, 0, [0; 4])).status),
            0x001 | DNR,
            "{opcode:#x}"
        );
    }
    for flags in [0x00, 0x41, 0x42, 0x80, 0xc0] {
        let mut odd = sqe(0x18, 0, [0; 4]);
        odd.flags = flags;
        assert_eq!(
            code(command(&mut model, id, &odd).status),
            0x002 | DNR,
            "{flags:#x}"
        );
    }
    // The queue of a command to be aborted is in the low half, the identifier of the command in the high half.
    let mut abort = |queue: u32, cid: u32| {
        let asked = sqe(0x08, 0, [queue | cid << 16, 0, 0, 0]);
        model.command(id, 0, &asked, 0, secs(1))
    };
    assert_eq!(abort(0, 7), Outcome::Abort { queue: 0, cid: 7 });
    let not_aborted = Outcome::Answered(Answer::result(1));
    assert_eq!(abort(1, 7), not_aborted, "there is no such queue");
    let gone = model.command(id + 1, 0, &sqe(0x18, 0, [0; 4]), 0, secs(1));
    assert_eq!(gone, Outcome::Answered(Status::INTERNAL.into()));
}

#[test]
fn a_broken_connection_is_logged_within_the_budget_of_its_address() {
    let mut m = model(true);
    let made = m.connect(place(0), asked(0), &data(&disks(), HOST, 0xffff), secs(0));
    let made = made.expect("a controller");
    let (id, connection) = (made.controller, made.connection);
    let lines = |m: &mut Model, queue, connection| {
        let (_, lines) =
            super::authenticate::costs(|| m.queue_broke(id, queue, connection, &"no answer"));
        lines
    };
    assert_eq!(
        lines(&mut m, 0, connection + 1),
        0,
        "another connection has the queue"
    );
    assert_eq!(lines(&mut m, 1, connection), 0, "there is no such queue");
    for _ in 0..udapl::log_budget::LINES {
        assert_eq!(lines(&mut m, 0, connection), 1);
    }
    assert_eq!(lines(&mut m, 0, connection), 0, "the budget is spent");
}
