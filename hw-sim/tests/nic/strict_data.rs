//! Tests of queues between two functions: CQ overruns, arming, error events, and the effects of links and seeds.

use driver::Device;
use hw_sim::{Fault, Faults, FunctionReport, LinkFaults, Profile, Sim, SimConfig};
use mlx_prm::*;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

use crate::bench::{BASE, Bench, Tape, cq_input, list, modest};
use crate::side::Side;

impl Side {
    fn arm_cq(&self, sequence: u32, solicited: bool) {
        let cq = &self.qp.cq;
        let word = sequence << 28 | u32::from(solicited) << 24 | (cq.consumed & 0xff_ffff);
        self.bench.memory.store_be32(cq.record + 4, word);
        let bell = u64::from(word) << 32 | u64::from(cq.number);
        self.bench
            .write64(u64::from(self.resources.uar) << 12 | 0x20, bell);
    }

    fn qp_state(&mut self) -> u32 {
        let mut query = QueryQpIn::new();
        query.set_qpn(self.qp.number);
        let output = self.bench.raw(&query.as_bytes()[..0x10], 0x110).unwrap();
        u32::from(output[0x18]) >> 4
    }

    fn events(&mut self) -> Vec<EventType> {
        let mut types = self.bench.drain_eq(&mut self.resources.eq);
        types.retain(|&kind| kind != EventType::CMD);
        types
    }

    /// Asserts that the CQ has failed: an event with this syndrome, this status, and a queue pair in error.
    fn assert_cq_failed(&mut self, syndrome: u8, status: u32) {
        let eqe = self.bench.next_eqe(&mut self.resources.eq);
        let eqe = eqe.expect("an error event");
        assert_eq!(EventType(eqe.event_type()), EventType::CQ_ERROR);
        let cqn = self.qp.cq.number;
        assert_eq!(eqe.event_data()[..4], cqn.to_be_bytes());
        assert_eq!(eqe.event_data()[11], syndrome);
        assert_eq!(self.qp_state(), QpState::ERR.bits());
        assert_eq!(self.bench.cq_context(cqn).status(), status);
    }
}

/// Creates two sides that are connected by a link.
fn pair_in(sim: &Sim, faults: LinkFaults, log_cq_size: u32) -> (Side, Side) {
    let mut a = Side::new(sim, 0, log_cq_size);
    let mut b = Side::new(sim, 1, log_cq_size);
    sim.connect(&a.bench.function, &b.bench.function, faults);
    Side::connect_pair(&mut a, &mut b);
    (a, b)
}

fn pair() -> (Side, Side) {
    pair_in(&Sim::new(SimConfig::seeded(3)), LinkFaults::NONE, 6)
}

#[test]
fn a_send_crosses_the_link_and_completes_on_both_sides() {
    let (mut a, mut b) = pair();
    a.bench.memory.write_bytes(a.data.0, b"over the wire");
    b.post_receive(64);
    a.post_send(13, false);
    assert_eq!(a.wait_cqe().opcode(), CqeOpcode::REQ);
    let received = b.wait_cqe();
    assert_eq!(
        (received.opcode(), received.byte_cnt()),
        (CqeOpcode::RESP_SEND, 13)
    );
    let mut text = [0; 13];
    b.bench.memory.read_bytes(b.data.0, &mut text);
    assert_eq!(&text, b"over the wire");
    for side in [&a, &b] {
        let report = side.bench.report();
        assert!(
            report.driver_bugs.is_empty() && report.dma_faults.is_empty(),
            "{report:?}"
        );
    }
}

#[test]
fn a_queue_pair_may_talk_to_its_own_function() {
    let mut side = Side::looped(modest(), |_| {});
    side.post_receive(64);
    side.post_send(5, false);
    let mut opcodes = [side.wait_cqe().opcode(), side.wait_cqe().opcode()];
    opcodes.sort();
    assert_eq!(opcodes, [CqeOpcode::REQ, CqeOpcode::RESP_SEND]);
}

#[test]
fn a_cq_that_overflows_raises_its_error_event_and_takes_its_queue_pairs_along() {
    let (mut a, mut b) = pair_in(&Sim::new(SimConfig::seeded(3)), LinkFaults::NONE, 2);
    a.events();
    for _ in 0..6 {
        b.post_receive(64);
        a.post_send(1, false);
        b.poll();
    }
    a.assert_cq_failed(1, 9);
}

/// BAD_SIZE_OUTS_CQES is the status for entries that do not fit into the new ring. If the queue is in error or cannot
/// be accessed, the command has another status.
#[test]
fn a_resize_is_refused_with_the_status_of_its_reason() {
    let resize = |bench: &mut Bench, cqn: u32, log_size: u32| {
        let (_, ring) = bench.alloc(4096);
        let mut modify = ModifyCqIn::new();
        modify.set_op_mod(1);
        modify.set_cqn(cqn).set_modify_field_select(7);
        modify.cq_context_mut().set_log_cq_size(log_size);
        bench.status_with(&modify, &list(&[ring]))
    };
    let (mut a, mut b) = pair_in(&Sim::new(SimConfig::seeded(3)), LinkFaults::NONE, 2);
    for (sends, log_size, status) in [
        (3, 1, CmdStatus::BAD_SIZE_OUTS_CQES),
        (3, 6, CmdStatus::BAD_RES_STATE),
    ] {
        for _ in 0..sends {
            b.post_receive(64);
            a.post_send(1, false);
            b.poll();
        }
        assert_eq!(resize(&mut a.bench, a.qp.cq.number, log_size), status);
    }
    assert!(a.bench.log().contains("resize of a CQ in error"));
    let nowhere = BASE + u64::try_from(a.bench.memory.len()).unwrap();
    let create = cq_input(a.resources.uar, a.resources.eq.number, 4, nowhere);
    let (_, ring) = a.bench.alloc(4096);
    let cqn = a.bench.exec_with(&create, &list(&[ring])).unwrap().cqn();
    assert_eq!(resize(&mut a.bench, cqn, 6), CmdStatus::BAD_RES_STATE);
}

#[test]
fn a_completion_event_comes_once_per_arming_and_interrupts_the_armed_eq() {
    let (mut a, mut b) = pair();
    b.events();
    b.arm_cq(0, false);
    let _ = b.bench.interrupts[0].take();
    assert!(!b.bench.interrupts[0].is_pending());
    for _ in 0..3 {
        b.post_receive(64);
        a.post_send(1, false);
    }
    assert!(b.bench.interrupts[0].is_pending());
    assert_eq!(b.events(), [EventType::COMP]);
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_message() {
    let (mut a, mut b) = pair();
    b.arm_cq(0, true);
    b.post_receive(64);
    a.post_send(1, false);
    assert!(!b.events().contains(&EventType::COMP));
    b.post_receive(64);
    a.post_send(1, true);
    assert!(b.events().contains(&EventType::COMP));
}

#[test]
fn frames_need_a_carrier_and_come_through_once_it_is_back() {
    let (mut a, mut b) = pair();
    let sim = a.bench.sim.clone();
    b.post_receive(64);
    a.events();
    sim.inject(&a.bench.function, &Fault::LinkDown);
    assert_eq!(a.events(), [EventType::PORT_CHANGE]);
    a.post_send(4, false);
    assert!(a.poll().is_none());
    sim.inject(&a.bench.function, &Fault::LinkUp);
    assert_eq!(a.wait_cqe().opcode(), CqeOpcode::REQ, "retransmitted");
    assert!(a.bench.report().dropped["port down"] > 0);
}

#[test]
fn queue_pairs_that_were_stuck_with_work_go_on_when_they_are_mended() {
    let (mut a, mut b) = pair();
    let sim = a.bench.sim.clone();
    sim.inject(&a.bench.function, &Fault::StuckQueues { spared: 0 });
    b.post_receive(64);
    a.post_send(4, false);
    a.bench.sleep(Duration::from_secs(1));
    assert!(a.poll().is_none(), "nothing is fetched");
    sim.mend(&a.bench.function);
    assert_eq!(a.wait_cqe().opcode(), CqeOpcode::REQ);
    assert_eq!(b.wait_cqe().opcode(), CqeOpcode::RESP_SEND);
}

/// Returns the log and the reports of a run: messages over a link that goes down and up, and that loses frames. If
/// `seal_frames` is true, every frame has an ICRC that is checked.
fn history(seal_frames: bool) -> (String, [FunctionReport; 2]) {
    let sim = Sim::new(SimConfig::seeded(5));
    if seal_frames {
        sim.seal_frames();
    }
    let (mut a, mut b) = (Side::new(&sim, 0, 6), Side::new(&sim, 1, 6));
    let link = sim.connect(&a.bench.function, &b.bench.function, LinkFaults::NONE);
    Side::connect_pair(&mut a, &mut b);
    let functions = [&a, &b].map(|side| Arc::clone(&side.bench.function));
    let pattern: Vec<u8> = (0..=u8::MAX).cycle().take(3001).collect();
    a.bench.memory.write_bytes(a.data.0, &pattern);
    let mut message = |bytes: u32| {
        b.post_receive(4096);
        a.post_send(bytes, false);
        assert_eq!(a.wait_cqe().opcode(), CqeOpcode::REQ);
        assert_eq!(b.wait_cqe().byte_cnt(), bytes);
    };
    // The messages have one packet or several, because a route that is cached for short frames is not valid for longer
    // frames.
    [13, 3001, 13, 1, 1024].into_iter().for_each(&mut message);
    for function in &functions {
        sim.inject(function, &Fault::LinkDown);
        sim.inject(function, &Fault::LinkUp);
        message(1500);
    }
    for faults in [lossy(), LinkFaults::NONE] {
        sim.set_faults(link, faults);
        [1500; 3].into_iter().for_each(&mut message);
    }
    let mut received = vec![0; 3001];
    b.bench.memory.read_bytes(b.data.0, &mut received);
    assert_eq!(received, pattern);
    let reports = [&a, &b].map(|side| side.bench.report());
    (a.bench.log(), reports)
}

#[test]
fn unobserved_packets_have_the_same_log_as_observed_frames() {
    assert_eq!(history(false), history(true));
}

/// The device does not write a CQE into a ring that is not mapped: the CQ is in error from then on (status 0xa), with
/// a CQ error event of syndrome 2, and its queue pair is in error too.
#[test]
fn an_unmapped_completion_ring_is_an_access_violation() {
    let (mut a, mut b) = pair();
    a.events();
    b.post_receive(64);
    let (ring, memory) = (a.qp.cq.at, a.bench.memory.clone());
    let function = Arc::clone(&a.bench.function);
    let map = |from: usize, to: usize| {
        let mapped = function.dma_map(BASE + from as u64, memory.clone(), from, to - from);
        mapped.unwrap();
    };
    function.dma_unmap(BASE, memory.len()).unwrap();
    map(0, ring);
    map(ring + 4096, memory.len());
    a.post_send(4, false);
    let faults = a.bench.report().dma_faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    let fault = faults[0].fault;
    assert_eq!((fault.iova, fault.write), (BASE + ring as u64, true));
    a.assert_cq_failed(2, 0xa);
}

fn lossy() -> LinkFaults {
    LinkFaults::both(Faults {
        loss_ppm: 100_000,
        duplicate_ppm: 50_000,
        delay_ns: 2_000,
        jitter_ns: 500,
        ..Faults::NONE
    })
}

fn lossy_run(seed: u64) -> String {
    let (mut a, mut b) = pair_in(&Sim::new(SimConfig::seeded(seed)), lossy(), 6);
    for _ in 0..12 {
        b.post_receive(2048);
        a.post_send(1500, false);
        assert_eq!(a.wait_cqe().opcode(), CqeOpcode::REQ);
        assert_eq!(b.wait_cqe().byte_cnt(), 1500);
    }
    a.bench.log()
}

#[test]
fn a_seed_replays_byte_for_byte_and_another_seed_differs() {
    let first = lossy_run(11);
    assert_eq!(first, lossy_run(11));
    assert_ne!(first, lossy_run(12));
}

#[test]
fn every_frame_goes_to_the_capture() {
    let (mut a, mut b) = pair();
    let tape = Tape::default();
    a.bench.sim.pcap(tape.clone()).unwrap();
    b.post_receive(64);
    a.post_send(4, false);
    a.wait_cqe();
    a.bench.sim.flush_pcap().unwrap();
    let bytes = tape.bytes();
    assert_eq!(
        bytes[..4],
        [0x0a, 0x0d, 0x0d, 0x0a],
        "a pcapng section header"
    );
    let ports = bytes
        .windows(2)
        .filter(|pair| *pair == 4791_u16.to_be_bytes())
        .count();
    assert!(ports >= 2, "request and acknowledgement");
}

#[test]
fn commands_with_jitter_finish_in_any_order_and_each_answers_its_slot() {
    let mut profile: Profile = modest();
    profile.command_jitter = Duration::from_millis(5);
    let mut bench = Bench::enabled(profile);
    let mut submissions = Vec::new();
    for _ in 0..4 {
        let submission = bench.prepare(NopIn::new().as_bytes(), 16);
        bench.submit(&submission);
        submissions.push(submission.slot);
    }
    let mut order = Vec::new();
    while order.len() < 4 {
        bench.sleep(Duration::from_micros(20));
        for &slot in &submissions {
            if !bench.entry(slot).ownership() && !order.contains(&slot) {
                order.push(slot);
            }
        }
    }
    assert_ne!(order, submissions, "with this seed");
}
