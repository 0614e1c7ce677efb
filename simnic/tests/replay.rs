//! Tests that replay recordings of a stock kernel's runs without the kernel.
//!
//! `linux.rec` records `mlx5_core` and `mlx5_ib` of Debian's Linux 6.12 on two functions, `ibv_devinfo`, and an
//! `ibv_rc_pingpong` from one port to the other. If the simulator's behaviour changes, a replay differs; then
//! `cargo xtask simnic --record` creates the file anew.
//!
//! `late-write.rec` records a failing program: `simnic/examples/late-write.py`, whose client writes with the key of a
//! region that the server has deregistered. A test here follows the manual steps of docs/replay.md.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use hw_sim::Drive;
use simnic::replay::{self, Record, ReplayError};

fn linux() -> &'static Path {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings/linux.rec").as_ref()
}

fn late_write() -> &'static Path {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/recordings/late-write.rec"
    )
    .as_ref()
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
fn a_replay_stops_at_the_given_record_with_the_world_of_that_moment() {
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

/// If the simulator behaves differently than at the recording, the replay fails with the record and the line.
#[test]
fn a_world_that_differs_from_the_recorded_one_is_detected() {
    let mut replay = replay::open(linux()).expect("a recording");
    while let Some(step) = replay
        .step()
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"))
    {
        if matches!(step.record, Record::Interrupts { .. }) {
            break;
        }
    }
    // From here on the simulation receives register writes but executes nothing.
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

/// A replay's output ends with the completions that had an error, each with its record.
#[test]
fn a_replay_ends_with_the_completions_that_had_an_error_and_their_records() {
    let program = env!("CARGO_BIN_EXE_simnic");
    let replayed = Command::new(program)
        .arg("replay")
        .arg(late_write())
        .output();
    let replayed = replayed.expect("the program is built");
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert!(replayed.status.success(), "{said}\n{ANEW}");
    let told: Vec<&str> = said.lines().rev().take(2).collect();
    let [failed, head] = &told[..] else {
        panic!("{said}");
    };
    assert_eq!(*head, "completions with an error: 1");
    assert!(
        failed.starts_with("  record ")
            && failed.contains(" f0 cqe ")
            && failed.contains(" synd=0x13 "),
        "{failed}"
    );
}

/// Returns the value after a name in a line of the log, up to the next blank.
fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let rest = line.split_once(name).map_or("", |(_, rest)| rest);
    rest.split(' ').next().unwrap_or_default()
}

/// Returns the rkey of an RDMA Write packet with this PSN (IBTA: base and RDMA extended transport header), in a frame
/// of RoCE v2 over IPv4 without a tag.
fn key_of_write(frame: &[u8], psn: u32) -> Option<u32> {
    const BTH: usize = 14 + 20 + 8;
    const RETH: usize = BTH + 12;
    // RC, RDMA Write First or Only.
    let is_write = matches!(frame.get(BTH), Some(0x06 | 0x0a));
    let word = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    (is_write && word(BTH + 8)? & 0xff_ffff == psn)
        .then(|| word(RETH + 8))
        .flatten()
}

/// A recording shows the cause of a "remote access error" for which the program has no other information: the queue
/// pair, the packet and the key, and that the other side's driver revoked the key before the packet arrived.
#[test]
fn a_failure_in_a_recorded_program_is_traced_to_the_key_that_was_taken_back() {
    let mut replay = replay::open(late_write()).expect("a recording");
    replay.sim().overhear(16);
    let mut log = Vec::new();
    let (failed, frames) = loop {
        let step = replay
            .step()
            .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
        let step = step.expect("a completion with an error");
        log.extend(step.log.lines().map(str::to_owned));
        // 0x13 is the device's code for a remote access error (Linux include/linux/mlx5/cq.h).
        if let Some(line) = step.log.lines().find(|line| line.contains(" synd=0x13 ")) {
            let frames = (0..).map_while(|at| replay.sim().overheard(at));
            break (line.to_owned(), frames.collect::<Vec<_>>());
        }
    };
    assert!(failed.contains(" f0 cqe "), "the client has it: {failed}");
    // The server's card received three writes, and refused the last one.
    let writes: Vec<&String> = log
        .iter()
        .filter(|line| line.contains(" f1 packet ") && line.contains("operation: WriteFirst"))
        .collect();
    let [.., refused] = &writes[..] else {
        panic!("nothing was written");
    };
    assert_eq!(writes.len(), 3);
    let psn = u32::from_str_radix(value(refused, "psn=0x"), 16).expect("a number");
    let key = frames.iter().find_map(|frame| key_of_write(frame, psn));
    let key = key.expect("the packet is among the last");
    // The low eight bits of a key are chosen by its owner, so the log of the UMR has them cleared.
    let taken = format!(" f1 umr key={:#010x} ok", key & !0xff);
    let at = |wanted: &str| log.iter().rposition(|line| line.contains(wanted));
    let (given, taken, came) = (
        log.iter().position(|line| line.contains(&taken)),
        at(&taken),
        at(refused),
    );
    assert!(
        given.is_some() && given < taken && taken < came,
        "{given:?}, {taken:?}, {came:?}"
    );
    // Neither driver broke a rule, and neither device refused a command.
    replay
        .run(None)
        .unwrap_or_else(|error| panic!("{error}\n{ANEW}"));
    for (name, report) in replay.reports() {
        assert_eq!(report.driver_bugs, [""; 0], "{name}");
        assert_eq!(report.refused.len(), 0, "{name}");
    }
}
