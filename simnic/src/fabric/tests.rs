//! Tests of switches under load: throughput, losses and stalls. They run in virtual time, so the numbers are the same
//! on every machine, and with few frames, so the tests are quick.
//!
//! With `PICTURES=write` in the environment, the tests draw the pictures of `docs/switch.md` into `docs/pictures`.

use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hw_sim::record::Replay;
use hw_sim::switch::{Buffer, Pfc, Red};
use hw_sim::{Sim, SimConfig};

use super::{Outcome, Plan, Topology, draw, jain, run, run_in};

/// Thresholds of ECN marking for 10 Gb/s, at which a frame of 4 KiB takes 3.4 us.
const RED: Red = Red {
    kmin_bytes: 16 << 10,
    kmax_bytes: 128 << 10,
    pmax: 0.2,
};

fn seen(plan: &Plan, picture: &str) -> Outcome {
    let outcome = run(plan).expect("the plan can be carried out");
    println!("{}\n{}", plan.words(), outcome.table(plan));
    if std::env::var("PICTURES").as_deref() == Ok("write") {
        let path = format!(
            "{}/../docs/pictures/{picture}.svg",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::write(path, draw(plan, &outcome)).expect("the folder is there");
    }
    outcome
}

fn gbps(outcome: &Outcome, plan: &Plan) -> f64 {
    outcome.delivered.iter().sum::<u64>() as f64 * 8e-9 / plan.time.as_secs_f64()
}

#[test]
fn three_functions_on_a_switch_reach_each_other_by_learned_addresses() {
    let plan = Plan {
        time: Duration::from_millis(1),
        ..Plan::new(Topology::Round(3))
    };
    let outcome = run(&plan).expect("the plan can be carried out");
    assert!(
        outcome.delivered.iter().all(|&bytes| bytes > 1_000_000),
        "{outcome:?}"
    );
    let (sent, flooded) = (
        outcome.total(|port| port.sent),
        outcome.total(|port| port.flooded),
    );
    // The switch floods the first frame of each function and its multicasts. It forwards all other frames to their
    // destination only.
    assert!(
        flooded > 0 && flooded < 60 && sent > 1_000,
        "{flooded} of {sent}"
    );
    assert_eq!(outcome.lost(), 0);
}

#[test]
fn four_that_send_to_one_lose_frames_and_with_pauses_none() {
    let plan = |pausing: bool| {
        let plan = Plan {
            time: Duration::from_millis(4),
            ..Plan::new(Topology::Incast(4))
        };
        if pausing { plan.pausing() } else { plan }
    };
    let (lossy, lossless) = (plan(false), plan(true));
    let with_losses = seen(&lossy, "switch-incast-lossy");
    let without = seen(&lossless, "switch-incast-pfc");
    assert!(
        with_losses.total(|port| port.dropped_full) > 50,
        "{}",
        with_losses.words()
    );
    assert_eq!(with_losses.total(|port| port.pauses_sent), 0);
    assert_eq!(without.lost(), 0, "{}", without.words());
    assert!(
        without
            .pauses
            .iter()
            .take(4)
            .all(|pauses| pauses.transitions > 1 && pauses.silent_ns > 1_000_000)
    );
    assert_eq!(
        without.pauses[4].received, 0,
        "who receives is asked for nothing"
    );
    // 9.0 Gb/s is the limit because 4,096 of 4,190 bytes are payload and the first messages take time to arrive.
    assert!(
        gbps(&without, &lossless) > 9.0,
        "{}",
        gbps(&without, &lossless)
    );
    assert!(gbps(&with_losses, &lossy) < gbps(&without, &lossless));
}

#[test]
fn two_that_send_to_one_share_it_fairly_when_they_are_told_of_congestion() {
    let plan = Plan {
        time: Duration::from_millis(30),
        stagger: Duration::from_millis(3),
        ..Plan::new(Topology::Incast(2))
    };
    let told = plan.clone().marking(RED);
    let outcome = seen(&told, "switch-dcqcn");
    let late = outcome.rates_from(plan.time / 2);
    assert!(jain(&late) >= 0.9, "{late:?}");
    assert_eq!(outcome.lost(), 0, "{}", outcome.words());
    let (marked, receiver) = (outcome.total(|port| port.marked), outcome.congestion[2]);
    // Some marked frames may still be queued in the switch.
    assert!(receiver.marked_received <= marked && marked - receiver.marked_received < 8);
    assert!(receiver.cnps_sent > 10 && receiver.cnps_sent <= marked);
    let handled: u64 = outcome
        .congestion
        .iter()
        .map(|card| card.cnps_handled)
        .sum();
    // Some notifications may still be on the wire.
    assert!(
        receiver.cnps_sent - handled <= 2,
        "{:?}",
        outcome.congestion
    );
    assert!(
        outcome.congestion[..2]
            .iter()
            .all(|card| card.cnps_handled > 0)
    );
    assert!(late.iter().sum::<f64>() > 7e9, "{late:?}");

    // Without notifications, the senders do not slow down, so all outstanding frames stay in the queue.
    let untold = seen(&plan, "switch-no-ecn");
    assert_eq!(untold.congestion[2].marked_received, 0);
    let waiting = |outcome: &Outcome| {
        let late = &outcome.samples[outcome.samples.len() / 2..];
        late.iter().map(|sample| sample.depths[0]).sum::<usize>() / late.len()
    };
    let (short, long) = (waiting(&outcome), waiting(&untold));
    assert!(short * 2 < long, "{short} and {long} bytes on average");
}

fn ring() -> Plan {
    Plan {
        time: Duration::from_millis(6),
        depth: 16,
        buffer: Buffer::Shared(96 << 10),
        ..Plan::new(Topology::Ring(3))
    }
}

/// Returns the throughput of all flows in the second half of a run, in bits per second.
fn late(outcome: &Outcome, plan: &Plan) -> f64 {
    outcome.rates_from(plan.time / 2).iter().sum()
}

#[test]
fn pauses_in_a_circle_stand_still_and_without_them_frames_are_lost_and_traffic_goes_on() {
    let (pausing, lossy) = (ring().pausing(), ring());
    let stands = seen(&pausing, "switch-deadlock");
    assert_eq!(late(&stands, &pausing), 0.0, "{}", stands.words());
    assert_eq!(stands.lost(), 0);
    let last = stands.samples.last().expect("samples");
    assert!(
        last.depths.iter().all(|&depth| depth > 0),
        "each waits for the next: {last:?}"
    );
    let goes = seen(&lossy, "switch-ring-lossy");
    assert!(late(&goes, &lossy) > 1e9, "{}", goes.words());
    assert!(goes.lost() > 0);
}

#[test]
fn a_watchdog_breaks_the_circle() {
    let mut plan = ring().pausing();
    plan.pfc = plan.pfc.map(|pfc| Pfc {
        watchdog: Some(Duration::from_micros(500)),
        ..pfc
    });
    let outcome = seen(&plan, "switch-watchdog");
    assert!(outcome.total(|port| port.watchdog) > 0);
    assert!(late(&outcome, &plan) > 1e8, "{}", outcome.words());
}

#[test]
fn a_seed_decides_everything() {
    let plan = Plan {
        time: Duration::from_millis(2),
        ..Plan::new(Topology::Incast(3)).marking(RED)
    };
    let once = run(&plan).expect("the plan can be carried out");
    assert_eq!(run(&plan).expect("again"), once);
    let other = Plan { seed: 2, ..plan };
    assert_ne!(
        run(&other).expect("with another seed").samples,
        once.samples
    );
}

/// An output for a recording that the test can read, too.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The recording contains all input of a simulation with switches, and its replay produces the same event log. This
/// holds with ECN marks, pause frames, fixed addresses, and more than one switch.
#[test]
fn a_recorded_world_with_switches_gives_the_same_log_from_its_file_alone() {
    let star = Plan {
        time: Duration::from_micros(400),
        ..Plan::new(Topology::Incast(2)).marking(RED).pausing()
    };
    let circle = Plan {
        time: Duration::from_micros(200),
        ..ring()
    };
    for (plan, wanted) in [(star, "cnp sent"), (circle, "cmd INIT_HCA")] {
        let (sim, file) = (Sim::new(SimConfig::seeded(plan.seed)), Shared::default());
        sim.record(file.clone(), "switches").expect("it is empty");
        let outcome = run_in(&plan, sim.clone()).expect("the plan can be carried out");
        assert!(outcome.delivered.iter().sum::<u64>() > 0);
        assert!(sim.flush_record(), "it is recorded");
        let bytes = file.0.lock().expect("no panic").clone();
        let mut replay = Replay::open(Cursor::new(bytes)).expect("a recording");
        let mut log = String::new();
        while let Some(step) = replay.step().expect("the same world") {
            log += &step.log;
        }
        assert!(log.as_bytes() == sim.event_log(), "another log");
        assert!(log.contains(wanted), "{wanted} in {} bytes", log.len());
    }
}
