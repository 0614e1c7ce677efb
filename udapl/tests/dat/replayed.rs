//! A recorded simulation can be replayed from its file alone, without driver, memory and clock.

use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};

use driver::Device;
use hw_sim::record::{Difference, Record, Replay, ReplayError};
use hw_sim::{Fault, LinkFaults};
use udapl::fabric::{Fabric, SimConfig};

use crate::lossy;
use crate::support::{A, B, Pair, PairConfig};

/// A writer whose bytes the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a pair whose simulation is recorded, and returns the recording.
fn recorded(config: &PairConfig) -> (Pair, Shared) {
    let file = Shared::default();
    let sim = SimConfig {
        seed: config.seed,
        event_log: true,
    };
    let fabric = Fabric::recorded(sim, config.faults, config.profile, file.clone(), "a test");
    let pair = Pair::over(fabric.expect("a world"), config);
    (pair, file)
}

fn replay(bytes: Vec<u8>) -> Replay {
    Replay::open(Cursor::new(bytes)).expect("a recording")
}

/// Replays a whole recording and returns the log.
fn log_of(replay: &mut Replay) -> Result<String, ReplayError> {
    let mut log = String::new();
    while let Some(step) = replay.step()? {
        log += &step.log;
    }
    Ok(log)
}

fn text(log: Vec<u8>) -> String {
    String::from_utf8(log).expect("the log is text")
}

/// Runs sixty DTOs of each side over a faulty wire, and drops the pair. Returns the recording and the whole event log.
fn lossy_run() -> (Vec<u8>, String) {
    let config = lossy::seeded(3, LinkFaults::both(lossy::equal_faults(50_000)));
    let (pair, file) = recorded(&config);
    let sim = pair.fabric.sim.clone();
    lossy::carried_out(pair, config.seed);
    assert!(sim.flush_record(), "it is recorded");
    (file.bytes(), text(sim.event_log()))
}

#[test]
fn a_recorded_run_over_a_bad_wire_gives_the_same_log_from_its_file_alone() {
    let (bytes, log) = lossy_run();
    assert!(log.lines().count() > 1_000, "{} lines", log.lines().count());
    let mut replay = replay(bytes);
    assert_eq!(
        (replay.header().seed, &*replay.header().about),
        (3, "a test")
    );
    let again = log_of(&mut replay).expect("the same world");
    assert!(again == log, "the log is another");
    assert!(!replay.end().is_cut);
    for (name, report) in replay.reports() {
        assert!(report.opcodes.len() > 10, "{name}: {:?}", report.opcodes);
        assert_eq!(report.driver_bugs, [""; 0], "{name}");
    }
}

#[test]
fn a_recording_that_was_cut_is_replayed_up_to_the_cut() {
    let (bytes, log) = lossy_run();
    for part in [2, 3, 5] {
        let cut = bytes[..bytes.len() - bytes.len() / part].to_vec();
        let mut replay = replay(cut);
        let again = log_of(&mut replay).expect("the same world, as far as it goes");
        assert!(replay.end().is_cut);
        assert!(again.len() < log.len(), "one part of {part} is not there");
    }
}

/// If the device has changed since the recording, the replay fails and reports the first differing line, its record,
/// and the lines before it.
#[test]
fn the_first_difference_is_told_with_its_record_and_what_was_before() {
    let (bytes, log) = lossy_run();
    let mut replay = replay(bytes);
    let before = loop {
        let step = replay.step().expect("equal so far").expect("there is more");
        if matches!(step.record, Record::Link { .. }) {
            // The wire of the replay has no faults from here on, unlike the wire of the recording.
            replay.sim().heal();
            break step.number;
        }
    };
    let Err(ReplayError::Different(difference)) = log_of(&mut replay) else {
        panic!("a good wire makes no difference");
    };
    let Difference {
        number,
        expected,
        before: lines,
        ..
    } = &*difference;
    assert!(*number > before, "{difference}");
    assert!(log.contains(&lines[0]), "{difference}");
    assert!(log.contains(expected), "{difference}");
    let said = difference.to_string();
    assert!(said.contains(&format!("record {number} at ")), "{said}");
}

/// The replay of a recorded failure reports the same bugs of the driver.
#[test]
fn a_recorded_failure_says_what_the_driver_did_wrong() {
    let config = PairConfig::default();
    let (mut pair, file) = recorded(&config);
    pair.connect();
    let sim = pair.fabric.sim.clone();
    // One driver writes to a doorbell page that it has not allocated.
    let doorbell = [0, 0, 0, 0, 0x00, 0xab, 0xcd, 0x00];
    pair.fabric.function(B).bar_written(0, 0x4800, &doorbell);
    // The other function is removed while its driver is in use.
    sim.inject(&pair.fabric.function(A), &Fault::SurpriseRemoval);
    drop(pair);
    assert!(sim.flush_record(), "it is recorded");
    let mut replay = replay(file.bytes());
    let again = log_of(&mut replay).expect("the same world");
    assert!(again == text(sim.event_log()), "the log is another");
    let bugs = &replay.reports()[B].1.driver_bugs;
    assert_eq!(*bugs, ["doorbell in UAR page 0x4, which is not allocated"]);
    assert!(replay.reports()[A].1.driver_bugs.is_empty());
}
