//! The Ethernet port: sent frames, received frames, and the effects of the device's refusals.

use std::sync::Arc;
use std::time::Duration;

use driver::{Device, Function};
use hw_mlx::error::CmdError;
use hw_mlx::ethernet::{BROADCAST, Ethernet, SEND_BYTES};
use hw_mlx::uar::Doorbells;
use hw_mlx::{Hca, HcaConfig, MlxError};
use hw_sim::{Fault, LinkFaults, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::{CmdStatus, ModifyNicVportContextIn, ModifyRqIn, ModifySqIn, Opcode, QuerySqIn};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOLICITED: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];

struct Station {
    sim: Sim,
    function: Arc<SimFunction>,
    hca: Hca,
    ethernet: Ethernet,
}

fn function() -> (Sim, Arc<SimFunction>, Hca) {
    function_of(Profile::named("sim:a", OURS).ethernet())
}

fn function_of(profile: Profile) -> (Sim, Arc<SimFunction>, Hca) {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(profile);
    sim.connect_outside(&function, LinkFaults::NONE);
    let driver =
        Function::in_process(Arc::clone(&function) as Arc<dyn Device>).expect("a function");
    let hca = Hca::open(driver, HcaConfig::new()).expect("bring-up");
    (sim, function, hca)
}

impl Station {
    fn new() -> Self {
        Self::on(function())
    }

    fn on((sim, function, mut hca): (Sim, Arc<SimFunction>, Hca)) -> Self {
        assert_eq!(Ethernet::why_not(&mut hca).expect("an answer"), None);
        let doorbells = Doorbells::new(hca.uar().clone());
        let mut ethernet = Ethernet::create(&mut hca, &doorbells).expect("an Ethernet port");
        ethernet
            .hear(&mut hca, &[BROADCAST, SOLICITED])
            .expect("groups");
        ethernet.take_in(|frame| panic!("{frame:x?} from nowhere"));
        Self {
            sim,
            function,
            hca,
            ethernet,
        }
    }

    fn arrived(&mut self) -> Vec<Vec<u8>> {
        self.sim.run_until_idle();
        let mut frames = Vec::new();
        self.ethernet.take_in(|frame| frames.push(frame.to_vec()));
        frames
    }

    /// Moves the receive queue to the error state, as the device does after an error.
    fn break_port(&mut self) {
        let (_, rqn) = self.ethernet.numbers();
        let mut input = ModifyRqIn::new();
        input.set_rqn(rqn).set_rq_state(1).ctx_mut().set_state(3);
        self.hca.exec(&input).expect("in error");
        assert_eq!(self.arrived(), [[0; 0]; 0]);
    }

    fn close(mut self) {
        self.ethernet.destroy(&mut self.hca).expect("destroyed");
        let report = self.hca.close().expect("teardown");
        assert_eq!(report.objects_left, []);
        let report = self.sim.report(&self.function);
        assert!(report.is_clean(), "{report:#?}");
    }
}

/// Returns a frame from another station to `to`, with 60 bytes after the Ethernet header.
fn frame(to: [u8; 6], ethertype: u16, protocol: Option<u8>, tag: Option<u16>) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(THEIRS);
    if let Some(tag) = tag {
        frame.extend(0x8100_u16.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    let at = frame.len();
    frame.resize(at + 60, 0);
    match ethertype {
        0x0800 => {
            frame[at] = 0x45;
            frame[at + 3] = 60;
            frame[at + 8] = 64;
            frame[at + 9] = protocol.expect("a protocol");
        }
        0x86dd => {
            frame[at] = 0x60;
            frame[at + 5] = 20;
            frame[at + 6] = protocol.expect("a protocol");
            frame[at + 7] = 255;
        }
        _ => {}
    }
    frame
}

/// The send queue has the vport's inline mode if the device lets the vport decide (`wqe_inline_mode` 1), otherwise 0.
/// In each mode a frame with all headers is sent.
#[test]
fn the_send_queue_has_the_vports_inline_mode_where_the_vport_decides() {
    for (by_device, of_vport, expected) in [
        (0, 3, 0),
        (1, 0, 0),
        (1, 1, 1),
        (1, 2, 2),
        (1, 3, 3),
        (2, 3, 0),
    ] {
        let mut profile = Profile::named("sim:a", OURS).ethernet();
        profile.eth_offloads.set(|caps| {
            caps.set_wqe_inline_mode(by_device);
        });
        let (sim, function, mut hca) = function_of(profile);
        let mut modify = ModifyNicVportContextIn::new();
        modify.field_select_mut().set_min_inline(true);
        modify
            .nic_vport_context_mut()
            .set_min_wqe_inline_mode(of_vport);
        hca.exec(&modify).expect("the vport's mode");
        let mut station = Station::on((sim, function, hca));
        let mut query = QuerySqIn::new();
        query.set_sqn(station.ethernet.numbers().0);
        let answer = station.hca.exec(&query).expect("the queue's context");
        let mode = answer.sq_context().min_wqe_inline_mode();
        assert_eq!(mode, expected, "{by_device}, vport {of_vport}");
        let sent = frame(THEIRS, 0x86dd, Some(58), Some(100));
        station.ethernet.send(&sent).expect("room");
        assert_eq!(station.arrived(), [[0; 0]; 0]);
        assert_eq!(
            station.ethernet.repair_due(),
            None,
            "{by_device}, vport {of_vport}"
        );
        station.close();
    }
}

#[test]
fn what_a_station_has_to_hear_arrives_as_it_was_sent_tagged_or_not_and_nothing_else_does() {
    let mut station = Station::new();
    for tag in [None, Some(3 << 13 | 100)] {
        let heard = [
            frame(BROADCAST, 0x0806, None, tag),
            frame(OURS, 0x0806, None, tag),
            frame(OURS, 0x0800, Some(1), tag),
            frame(OURS, 0x86dd, Some(58), tag),
            frame(SOLICITED, 0x86dd, Some(58), tag),
        ];
        let unheard = [
            frame(THEIRS, 0x0806, None, tag),
            frame(BROADCAST, 0x0800, Some(1), tag),
            frame(OURS, 0x0800, Some(6), tag),
            frame(OURS, 0x86dd, Some(6), tag),
            frame([1, 0, 0x5e, 0, 0, 1], 0x0800, Some(1), tag),
            frame(OURS, 0x88b5, None, tag),
        ];
        for frame in heard.iter().chain(&unheard) {
            station.sim.deliver(&station.function, frame);
        }
        assert_eq!(station.arrived(), heard);
    }
    station.close();
}

#[test]
fn frames_leave_as_they_were_given_whatever_part_of_them_is_inline() {
    let mut station = Station::new();
    let sent: Vec<Vec<u8>> = [60, 81, 82, 83, 98, 99, 100, 1000, SEND_BYTES]
        .iter()
        .map(|bytes| {
            let mut frame = frame(THEIRS, 0x88b5, None, None);
            frame.extend((0..2000_u32).map(|at| at.to_be_bytes()[3]));
            frame.truncate(*bytes);
            frame
        })
        .collect();
    for frame in &sent {
        station.ethernet.send(frame).expect("room");
    }
    station.sim.run_until_idle();
    assert_eq!(Vec::from(station.sim.take_frames(&station.function)), sent);
    assert!(station.ethernet.send(&[0; SEND_BYTES + 1]).is_err());
    station.close();
}

#[test]
fn more_frames_than_there_are_slots_go_both_ways() {
    let mut station = Station::new();
    let arp = frame(BROADCAST, 0x0806, None, None);
    for round in 0..300 {
        station.ethernet.send(&arp).expect("room");
        station.sim.deliver(&station.function, &arp);
        assert_eq!(station.arrived(), [arp.as_slice()], "round {round}");
        assert_eq!(station.sim.take_frames(&station.function).len(), 1);
    }
    station.close();
}

#[test]
fn a_stranger_that_sends_more_than_there_are_buffers_costs_frames_and_nothing_else() {
    let mut station = Station::new();
    let arp = frame(BROADCAST, 0x0806, None, None);
    for _ in 0..10_000 {
        station.sim.deliver(&station.function, &arp);
    }
    assert_eq!(station.arrived().len(), 64);
    station.sim.deliver(&station.function, &arp);
    assert_eq!(station.arrived(), [arp]);
    station.close();
}

/// If the device refuses any one of the commands that create the port, the objects created before it are destroyed
/// again, and the function still works.
#[test]
fn a_port_that_the_device_refuses_half_way_leaves_nothing_behind() {
    for spared in 0.. {
        let (sim, function, mut hca) = function();
        let fault = Fault::CommandFailure {
            opcode: None,
            status: CmdStatus::BAD_RESOURCE.0,
            syndrome: 0x1234,
            count: 1,
        };
        sim.inject(
            &function,
            &Fault::Later {
                commands: spared,
                fault: Box::new(fault),
            },
        );
        let doorbells = Doorbells::new(hca.uar().clone());
        let Err(error) = Ethernet::create(&mut hca, &doorbells) else {
            assert!(spared > 20, "it takes more than {spared} commands");
            return;
        };
        assert!(
            error.to_string().contains("0x00001234"),
            "{spared}: {error}"
        );
        let report = hca.close().expect("teardown");
        assert_eq!(report.objects_left, [], "{spared} commands spared");
    }
}

/// After a queue failed, `repair` makes the port carry frames again. A queue in error reports it by the CQEs of its
/// posted requests.
#[test]
fn queues_that_broke_come_back_and_carry_frames() {
    for which in ["receive", "send"] {
        let mut station = Station::new();
        let arp = frame(BROADCAST, 0x0806, None, None);
        let (sqn, rqn) = station.ethernet.numbers();
        if which == "receive" {
            let mut input = ModifyRqIn::new();
            input.set_rqn(rqn).set_rq_state(1).ctx_mut().set_state(3);
            station.hca.exec(&input).expect("in error");
        } else {
            let mut input = ModifySqIn::new();
            input.set_sqn(sqn).set_sq_state(1).ctx_mut().set_state(3);
            station.hca.exec(&input).expect("in error");
            station.ethernet.send(&arp).expect("room");
        }
        assert_eq!(station.arrived(), [[0; 0]; 0], "{which}");
        station.ethernet.send(&arp).expect_err("broken");
        station.ethernet.repair(&mut station.hca).expect("repaired");
        station.ethernet.send(&arp).expect("room");
        station.sim.deliver(&station.function, &arp);
        assert_eq!(station.arrived(), [arp.as_slice()], "{which}");
        assert_eq!(station.sim.take_frames(&station.function).len(), 1);
        station.close();
    }
}

/// If the device refuses to repair the port, or does not take the command in, the repair is tried again after a pause.
/// Each call would otherwise repeat it. The function is not stopped, because RDMA does not need the port. A port that
/// breaks again soon after its repair is repaired after a pause, too.
#[test]
fn a_refused_repair_of_the_port_is_repeated_after_a_pause_and_stops_nothing() {
    let opcode = Some(Opcode::MODIFY_RQ.0);
    let refused = Fault::CommandFailure {
        opcode,
        status: CmdStatus::BAD_RESOURCE.0,
        syndrome: 0x1234,
        // Each attempt sends three MODIFY_RQ.
        count: 6,
    };
    let undelivered = Fault::CommandDelivery {
        opcode,
        status: 0x06,
        // Each attempt ends with the first one.
        count: 2,
    };
    for fault in [refused, undelivered] {
        let mut station = Station::new();
        station.break_port();
        station.sim.inject(&station.function, &fault);
        for pause in [1, 2].map(Duration::from_secs) {
            let repaired = station.ethernet.repair(&mut station.hca);
            assert!(repaired.is_err(), "{repaired:?}");
            let due = station.hca.now() + pause;
            assert_eq!(station.ethernet.repair_due(), Some(due), "{fault:?}");
            station.ethernet.repair(&mut station.hca).expect("not due");
            assert_eq!(station.ethernet.repair_due(), Some(due), "{fault:?}");
            station.sim.advance(pause);
        }
        station.ethernet.repair(&mut station.hca).expect("repaired");
        assert_eq!(station.ethernet.repair_due(), None, "{fault:?}");
        let due = station.hca.now() + Duration::from_secs(1);
        station.break_port();
        assert_eq!(station.ethernet.repair_due(), Some(due), "{fault:?}");
        station.sim.advance(Duration::from_secs(1));
        station.ethernet.repair(&mut station.hca).expect("repaired");
        assert!(!station.hca.is_dead(), "{fault:?}");
        station.close();
    }
}

/// An attempt to repair the port that is not answered holds up all instances, so it is not repeated.
#[test]
fn a_port_whose_repair_is_not_answered_is_given_up_and_stops_nothing() {
    let mut station = Station::new();
    station.break_port();
    let silent = Fault::CommandSilence {
        opcode: Some(Opcode::MODIFY_RQ.0),
        count: 1,
    };
    station.sim.inject(&station.function, &silent);
    let repaired = station.ethernet.repair(&mut station.hca);
    assert!(repaired.is_err(), "{repaired:?}");
    assert_eq!(station.ethernet.repair_due(), None);
    let begun = station.hca.now();
    station.ethernet.repair(&mut station.hca).expect("given up");
    assert_eq!((station.hca.now(), station.hca.is_dead()), (begun, false));
    station.close();
}

/// A command that waits in vain for a slot holds up all instances as long as one that is not answered.
#[test]
fn a_port_whose_repair_finds_no_command_slot_is_given_up_and_stops_nothing() {
    let mut station = Station::new();
    station.break_port();
    let silent = Fault::CommandSilence {
        opcode: Some(Opcode::QUERY_SQ.0),
        count: u32::MAX,
    };
    station.sim.inject(&station.function, &silent);
    let mut query = QuerySqIn::new();
    query.set_sqn(station.ethernet.numbers().0);
    let mut answers = std::iter::repeat_with(|| station.hca.exec(&query));
    assert!(answers.any(|answer| matches!(answer, Err(CmdError::NoSlot { .. }))));
    let repaired = station.ethernet.repair(&mut station.hca);
    assert!(
        matches!(repaired, Err(MlxError::Cmd(CmdError::NoSlot { .. }))),
        "{repaired:?}"
    );
    assert!(station.ethernet.is_given_up());
    assert!(!station.hca.is_dead());
}
