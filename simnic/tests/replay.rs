//! A recording of a stock kernel's run, replayed without it.
//!
//! `linux.rec` is `mlx5_core` and `mlx5_ib` of Debian's Linux 6.12 on two functions, `ibv_devinfo`, and an
//! `ibv_rc_pingpong` from one port to the other. A change of what the simulator does makes it another run than this,
//! and then `cargo xtask simnic --record` makes the file anew.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use hw_sim::Drive;
use simnic::replay::{self, Record, ReplayError};

fn linux() -> &'static Path {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings/linux.rec").as_ref()
}

const ANEW: &str =
    "if the simulator does something else now, on purpose: cargo xtask simnic --record";

#[test]
fn a_run_of_a_linux_guest_gives_the_same_event_log_without_the_guest() {
    let mut replay = replay::open(linux()).expect("a recording");
    let mut log = String::new();
    loop {
        match replay.step() {
            Ok(Some(step)) => log += &step.log,
            Ok(None) => break,
            Err(error) => panic!("{error}\n{ANEW}"),
        }
    }
    assert!(!replay.end().is_cut);
    for wanted in [
        "f0 cmd INIT_HCA ",
        "f1 cmd INIT_HCA ",
        "f0 packet Opcode { transport: Rc, operation: SendFirst }",
        "f1 packet Opcode { transport: Rc, operation: SendFirst }",
    ] {
        assert!(log.contains(wanted), "{wanted} in {} bytes", log.len());
    }
    for (name, report) in replay.reports() {
        assert_eq!(report.driver_bugs, [""; 0], "{name}");
        assert_eq!(report.dma_faults.len(), 0, "{name}");
    }
}

#[test]
fn a_replay_stops_where_it_is_told_to_and_the_world_is_that_of_the_moment() {
    let mut replay = replay::open(linux()).expect("a recording");
    let last = loop {
        let step = replay
            .step()
            .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
        let step = step.expect("a driver asks for something");
        if step.log.contains("cmd ENABLE_HCA ") {
            break step.number;
        }
    };
    let commands = |replay: &replay::Replay| -> u64 {
        let reports = replay.reports();
        reports
            .iter()
            .map(|(_, report)| report.opcodes.values().sum::<u64>())
            .sum()
    };
    assert_eq!(commands(&replay), 1, "it is the first command of Linux");
    let mut again = replay::open(linux()).expect("a recording");
    again
        .run(Some(last))
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
    assert_eq!(commands(&again), 1);
    assert_eq!(again.end().now, replay.end().now);
}

#[test]
fn a_recording_that_was_packed_by_gzip_is_unpacked_on_the_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = folder.path().join("linux.rec.gz");
    let mut gzip = GzEncoder::new(
        File::create(&packed).expect("a file"),
        Compression::default(),
    );
    gzip.write_all(&std::fs::read(linux()).expect("a recording"))
        .and_then(|()| gzip.finish())
        .expect("written");
    let mut replay = replay::open(&packed).expect("a recording");
    let end = replay
        .run(None)
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
    let mut plain = replay::open(linux()).expect("a recording");
    let other = plain
        .run(None)
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
    assert!(!end.is_cut && end.now == other.now);
}

/// As when the simulator has changed since: the record and the line are named.
#[test]
fn a_world_that_goes_another_way_is_told_from_the_recorded_one() {
    let mut replay = replay::open(linux()).expect("a recording");
    while let Some(step) = replay
        .step()
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"))
    {
        if matches!(step.record, Record::Interrupts { .. }) {
            break;
        }
    }
    // This world hears of register writes, and does nothing.
    replay.sim().set_drive(Drive::Stepped);
    let Err(ReplayError::Different(difference)) = replay.run(None) else {
        panic!("nothing comes of commands, and nothing is missing");
    };
    assert!(
        difference.number > 1 && difference.expected != difference.found,
        "{difference}"
    );
    assert!(!difference.before.is_empty(), "{difference}");
}
