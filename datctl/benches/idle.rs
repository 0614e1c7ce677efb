//! Cost of waiting: processor time of a consumer that waits for ten seconds while nothing happens.
//!
//! The adapter is served by another process (`datctl sim serve`), so the consumer's process contains only the driver,
//! as on a real machine. The remaining work is a check of the device's health once a second.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use udapl::{CloseFlags, EvdFlags, OpenOptions, Timeout};

const SECONDS: u32 = 10;

/// Returns the processor time of all threads of a process so far, in nanoseconds
/// (`Documentation/scheduler/sched-stats.rst`).
fn processor_time(process: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("procfs");
    tasks
        .map(|task| {
            let file = task.expect("a thread").path().join("schedstat");
            let text = std::fs::read_to_string(file).expect("a thread's times");
            let first = text.split_whitespace().next().expect("a number");
            first.parse::<u64>().expect("a number")
        })
        .sum()
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("nic").display().to_string();
    let mut server = Command::new(env!("CARGO_BIN_EXE_datctl"))
        .args(["sim", "serve", "--socket", &socket])
        .stdout(Stdio::piped())
        .spawn()
        .expect("datctl runs");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("its name");
    let mut ia =
        udapl::ia_open(line.trim_end(), &OpenOptions::default()).expect("the adapter opens");
    let evd = ia
        .evd_create(16, EvdFlags::DTO | EvdFlags::CONNECTION)
        .expect("an EVD");
    let (begun, before) = (Instant::now(), processor_time("self"));
    let nothing = ia.evd_wait(evd, Timeout::from_micros(SECONDS * 1_000_000), 1);
    assert!(nothing.is_err(), "{nothing:?}");
    let (used, passed) = (processor_time("self") - before, begun.elapsed());
    println!(
        "idle wait: {used} ns of processor time in {} ms, {:.4} % of one processor",
        passed.as_millis(),
        100.0 * used as f64 / passed.as_nanos() as f64
    );
    udapl::ia_close(ia, CloseFlags::Abrupt).expect("it closes");
    server.kill().expect("it can be killed");
    server.wait().expect("it ends");
}
