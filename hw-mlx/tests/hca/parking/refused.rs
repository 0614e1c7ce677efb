//! Functions that are not parked: the reason has a name, and nothing has changed, or the parking can be finished.

use hw_mlx::ethernet::Ethernet;
use hw_mlx::gsi::Gsi;
use hw_sim::Fault;
use mlx_prm::{ModifyRqIn, Opcode, ToErrQpIn};

use super::*;

/// Makes an Ethernet port whose receive queue is in error, and reports it.
fn broken_port(hca: &mut Hca) -> (Ethernet, Doorbells) {
    let doorbells = Doorbells::new(hca.uar().clone());
    let mut ethernet = Ethernet::create(hca, &doorbells).expect("a port");
    let mut input = ModifyRqIn::new();
    let (_, rqn) = ethernet.numbers();
    input.set_rqn(rqn).set_rq_state(1).ctx_mut().set_state(3);
    hca.exec(&input).expect("in error");
    let deadline = hca.now() + PATIENCE;
    while ethernet.repair_due().is_none() {
        assert!(hca.now() < deadline, "the port does not break");
        ethernet.take_in(|frame| panic!("{frame:x?} from nowhere"));
    }
    (ethernet, doorbells)
}

/// Checks that the function is not parked, because a queue of its Ethernet port has failed. Returns the instance.
fn refused_with_broken_port(hca: Hca) -> Hca {
    let refused = hca.begin_parking().expect_err("it is broken");
    let is_broken = matches!(
        refused.error,
        ParkError::Broken {
            queue: "an Ethernet queue"
        }
    );
    assert!(is_broken, "{refused}");
    only(refused.instances)
}

/// A port whose queue has failed is not parked before it is repaired, also if a first repair was not delivered and
/// another one is due later.
#[test]
fn a_broken_ethernet_port_is_refused_until_it_is_repaired() {
    let served = Served::with(|profile| profile.ethernet());
    let mut hca = served.open();
    let before = served.resets();
    let (mut ethernet, doorbells) = broken_port(&mut hca);
    hca = refused_with_broken_port(hca);
    let undelivered = Fault::CommandDelivery {
        opcode: Some(Opcode::MODIFY_RQ.0),
        status: 0x06,
        count: 1,
    };
    served.sim.inject(&served.function, &undelivered);
    ethernet.repair(&mut hca).expect_err("not delivered");
    hca = refused_with_broken_port(hca);
    let due = ethernet.repair_due().expect("not given up");
    while hca.now() < due {
        hca.wait(due).expect("alive");
    }
    ethernet.repair(&mut hca).expect("repaired");
    let parking = hca.begin_parking().expect("quiet");
    ethernet.park(&parking).expect("it works");
    drop((doorbells, parking));
    served.finished(before);
}

/// A port that was given up is never repaired, and its name is the reason as long as it exists. The next reason is the
/// command that the device still has.
#[test]
fn a_given_up_ethernet_port_is_refused_by_name() {
    let served = Served::with(|profile| profile.ethernet());
    let mut config = HcaConfig::new();
    config.command_timeout = Duration::from_secs(1);
    let mut hca = served.open_with(config);
    let before = served.resets();
    let (mut ethernet, doorbells) = broken_port(&mut hca);
    let silent = Fault::CommandSilence {
        opcode: Some(Opcode::MODIFY_RQ.0),
        count: 1,
    };
    served.sim.inject(&served.function, &silent);
    ethernet.repair(&mut hca).expect_err("not answered");
    assert!(ethernet.is_given_up());
    hca = refused_with_broken_port(hca);
    drop((ethernet, doorbells));
    let refused = hca.begin_parking().expect_err("a command is out");
    let is_out = matches!(refused.error, ParkError::Commands { quarantined: 1, .. });
    assert!(is_out, "{refused}");
    drop(refused);
    served.finished(before);
}

/// The resumption would refuse such a snapshot, when it is too late.
#[test]
fn a_time_limit_that_no_snapshot_may_have_is_refused_before_anything_is_parked() {
    for limit in [Duration::from_millis(999), Duration::from_secs(3601)] {
        let served = Served::new();
        let mut config = HcaConfig::new();
        config.command_timeout = limit;
        let hca = served.open_with(config);
        let before = served.resets();
        let (hca, error) = not_parked(hca);
        assert!(
            matches!(error, ParkError::TimeLimit { limit: it, .. } if it == limit),
            "{error}"
        );
        hca.close().expect("closed");
        assert_eq!(served.finished(before), 1);
    }
}

#[test]
fn a_broken_qp1_is_refused_until_it_is_repaired_or_gone() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    for repairs in [true, false] {
        let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
        let doorbells = Doorbells::new(hca.uar().clone());
        let mut gsi = Gsi::create(&mut hca, &doorbells, pd).expect("QP1");
        let mut command = ToErrQpIn::new();
        command.set_qpn(gsi.number().get());
        hca.exec(&command).expect("in error");
        let deadline = hca.now() + PATIENCE;
        while gsi.repair_due().is_none() {
            assert!(hca.now() < deadline, "QP1 does not break");
            assert!(gsi.receive().is_none(), "a datagram");
        }
        let refused = hca.begin_parking().expect_err("QP1 is broken");
        let is_broken = matches!(refused.error, ParkError::Broken { queue: "QP1" });
        assert!(is_broken, "{refused}");
        hca = only(refused.instances);
        if repairs {
            gsi.repair(&mut hca).expect("repaired");
        }
        gsi.destroy(&mut hca).expect("destroyed");
    }
    let (snapshot, descriptors) = park(hca);
    let hca = resume(&snapshot, descriptors);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// A clone of the arena is another owner of the memory, so the function can neither be parked nor driven again before
/// the clone is dropped. It is not lost.
#[test]
fn a_clone_of_the_arena_keeps_the_parking_unfinished_until_it_is_dropped() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    for cancels in [true, false] {
        let arena = hca.arena().clone();
        let refused = hca.park().expect_err("a clone");
        let is_clone = matches!(
            refused.error,
            ParkError::Function(driver::ParkError::Clones { .. })
        );
        assert!(is_clone, "{refused}");
        let parking = refused.parking.expect("unfinished");
        let parking = parking.finish().expect_err("a clone").parking;
        let not_cancelled = parking.expect("unfinished").cancel().expect_err("a clone");
        let parking = not_cancelled.parking;
        drop(arena);
        hca = if cancels {
            only(parking.cancel().expect("driven again"))
        } else {
            let (snapshot, descriptors) = parking.finish().expect("parked");
            resume(&snapshot, descriptors)
        };
        hca.finish_resuming().expect("all is there");
        hca.exec(&NopIn::new()).expect("answered");
    }
    assert_eq!(served.resets(), before);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Dropping an unfinished parking stops the function.
#[test]
fn an_unfinished_parking_that_is_dropped_stops_the_function() {
    for cloned in [false, true] {
        let served = Served::new();
        let hca = served.open();
        let before = served.resets();
        let function = cloned.then(|| hca.function().clone());
        let parking = hca.begin_parking().expect("quiet");
        if cloned {
            let refused = parking.finish().expect_err("a clone");
            drop(refused);
        } else {
            drop(parking);
        }
        assert!(served.resets() > before, "cloned: {cloned}");
        drop(function);
        served.finished(before);
    }
}

/// A thread that reads counters has a command in the device most of the time.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the reader's thread is the program's"
)]
fn a_reader_of_counters_does_not_keep_a_function_from_being_parked() {
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (opened, over) = (Mutex::new(hca.opened()), AtomicBool::new(false));
    let read = AtomicU64::new(0);
    let hca = thread::scope(|threads| {
        let mut hca = hca;
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let opened = opened.lock().expect("no panic").clone();
                let counters = opened.counters().expect("alive or closed");
                if counters.is_some() {
                    read.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let deadline = hca.now() + PATIENCE;
        for rounds in 1..=20 {
            while read.load(Ordering::Relaxed) < rounds {
                assert!(hca.now() < deadline, "nothing is read");
                hca.wait(hca.now() + Duration::from_millis(1))
                    .expect("alive");
            }
            let (snapshot, descriptors) = match hca.park() {
                Ok(parked) => parked,
                Err(error) => {
                    over.store(true, Ordering::Relaxed);
                    panic!("round {rounds}: {error}");
                }
            };
            hca = resume(&snapshot, descriptors);
            hca.finish_resuming().expect("all is there");
            *opened.lock().expect("no panic") = hca.opened();
        }
        over.store(true, Ordering::Relaxed);
        hca
    });
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Objects of kinds that this driver never creates are refused too.
#[test]
fn objects_of_xrc_are_refused() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let domain = hca.exec(&mlx_prm::AllocXrcdIn::new()).expect("a domain");
    let (again, error) = not_parked(hca);
    hca = again;
    assert!(error.to_string().contains("XRC domain 1"), "{error}");
    let mut input = mlx_prm::DeallocXrcdIn::new();
    input.set_xrcd(domain.xrcd());
    hca.exec(&input).expect("freed");
    let (snapshot, descriptors) = park(hca);
    resume(&snapshot, descriptors).close().expect("closed");
    assert_eq!(served.finished(before), 1);
}
