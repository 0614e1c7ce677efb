//! Reads and writes of a host, and signals sent to the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;
use nvmeof::nvme::fabrics::ANY_CONTROLLER;
use serde_json::{Value, json};

use crate::host::{HOST, command, transfer};
use crate::process::{KEY, Place, subsystem};

/// FUA bit of Write: the data must be on the medium before the response.
const FORCED: u32 = 1 << 30;

#[test]
fn a_host_writes_what_is_then_in_the_file_and_reads_it() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.memory.write_from(0, &[0x5a; 8192])?;
    assert_eq!(host.write(&mut queue, 16, 16, 0, 8192)?, Status::SUCCESS);
    assert_eq!(
        host.read(&mut queue, 15, 17, 16384, 17 * 512)?,
        Status::SUCCESS
    );
    assert_eq!(host.memory.read(16384, 512)?, [0; 512]);
    assert_eq!(host.memory.read(16384 + 512, 8192)?, [0x5a; 8192]);
    assert_eq!(place.disk()?[8192..16384], [0x5a; 8192]);
    let status: Value = place.client()?.call("status", Value::Null)?;
    let namespace = &status["subsystems"][0]["namespaces"][0];
    assert_eq!(namespace["written_bytes"], 8192);
    assert_eq!(namespace["bytes"], 4 << 20);
    let there = &status["controllers"][0];
    assert_eq!(
        (&there["queues"], &there["ready"]),
        (&json!([1]), &json!(true))
    );
    assert_eq!(there["host"], crate::host::HOST);
    drop(host);
    process.end()
}

/// Returns the content of block `number`: the number in decimal, repeated.
fn stamp(number: u64) -> Vec<u8> {
    let digits = format!("{number} ").into_bytes();
    digits.into_iter().cycle().take(512).collect()
}

/// After SIGTERM under traffic, the file contains exactly the acknowledged writes: a command that is executed is
/// answered before its connection ends, and a later command is not executed.
#[test]
fn sigterm_under_traffic_answers_what_it_carries_out_and_nothing_else() -> Result<()> {
    /// Number of concurrent writes, and number of acknowledged writes at which the signal is sent.
    const DEPTH: usize = 16;
    const SIGNAL: usize = 200;
    /// Number of blocks of the host's memory, and of a disk that is too long to be filled before the signal.
    const SLOTS: u64 = 2048;
    const BLOCKS: u64 = 2 << 20;
    let place = Place::new()?;
    let disk = fs::File::options()
        .read(true)
        .write(true)
        .open(place.path("disk"))?;
    disk.set_len(BLOCKS * 512)?;
    let mut process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let (mut next, mut under_way, mut acknowledged) = (0, BTreeMap::new(), Vec::new());
    let (mut is_open, mut flushed) = (true, 0);
    loop {
        while is_open && under_way.len() < DEPTH {
            ensure!(next < BLOCKS, "it serves on after SIGTERM");
            let slot = usize::try_from(next % SLOTS)? * 512;
            host.memory.write_from(slot, &stamp(next))?;
            let mut sqe = transfer(io::WRITE, next, 1);
            sqe.sgl = host.data(slot, 512);
            // Once the connection has ended, sends fail. Responses that arrived before can still be polled.
            match host.send(&mut queue, sqe, &[]) {
                Ok(cid) => {
                    under_way.insert(cid, next);
                    next += 1;
                }
                Err(_) => is_open = false,
            }
        }
        // The end of the connection is reported at once, perhaps before responses that have already arrived.
        let answer = match host.response(&mut queue) {
            Ok(answer) => answer,
            Err(error) => {
                is_open = false;
                flushed += usize::from(error.to_string() != "no completion");
                if flushed >= under_way.len() {
                    break;
                }
                continue;
            }
        };
        ensure!(answer.status().is_success(), "{}", answer.status());
        acknowledged.extend(under_way.remove(&answer.cid.get()));
        if acknowledged.len() == SIGNAL {
            process.signal(Signal::SIGTERM)?;
        }
    }
    let status = process.wait()?;
    assert!(status.success(), "{status}");
    assert!(acknowledged.len() >= SIGNAL);
    for number in 0..next {
        let mut there = [0; 512];
        disk.read_exact_at(&mut there, number * 512)?;
        let (is_there, was_told) = (there[..] == stamp(number), acknowledged.contains(&number));
        assert_eq!(is_there, was_told, "block {number} of {next}");
    }
    Ok(())
}

#[test]
fn a_second_signal_ends_it_at_once() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.start()?;
    // Both signals are pending when the daemon continues. The daemon handles one; the other has its default action.
    process.signal(Signal::SIGSTOP)?;
    process.wait_for_stop()?;
    process.signal(Signal::SIGINT)?;
    process.signal(Signal::SIGTERM)?;
    process.signal(Signal::SIGCONT)?;
    let status = process.wait()?;
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
    Ok(())
}

#[test]
fn what_was_forced_or_flushed_survives_a_process_that_is_killed() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.memory.write_from(0, &[0x11; 4096])?;
    host.memory.write_from(4096, &[0x22; 4096])?;
    let mut sqe = transfer(io::WRITE, 0, 8);
    sqe.cdw12 = (sqe.cdw12.get() | FORCED).into();
    sqe.sgl = host.data(0, 4096);
    assert_eq!(host.command(&mut queue, sqe)?.status(), Status::SUCCESS);
    assert_eq!(host.write(&mut queue, 8, 8, 4096, 4096)?, Status::SUCCESS);
    let mut flush = command(io::FLUSH);
    flush.nsid = 1.into();
    assert_eq!(host.command(&mut queue, flush)?.status(), Status::SUCCESS);
    process.signal(Signal::SIGKILL)?;
    assert!(!process.wait()?.success());
    let disk = place.disk()?;
    assert_eq!(disk[..4096], [0x11; 4096]);
    assert_eq!(disk[4096..8192], [0x22; 4096]);
    // The control socket and the wire's socket of the killed daemon still exist; the next daemon takes them over.
    drop(host);
    place.start()?.end()
}

#[test]
fn sighup_takes_in_what_is_different_and_says_what_takes_a_restart() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut host = place.host()?;
    let (mut admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let more = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n[[subsystem]]\nnqn = \"nqn.2026-11.test:more\"\n";
    place.configure(&place.subsystem(more))?;
    process.signal(Signal::SIGHUP)?;
    let said = place.wait_for_notice("RELOADING=1")?;
    assert!(said.contains("MONOTONIC_USEC="), "{said}");
    assert!(place.wait_for_notice("READY=1")?.contains("2 subsystems"));
    let mut sqe = transfer(io::READ, 0, 1);
    sqe.nsid = 2.into();
    sqe.sgl = host.data(0, 512);
    assert_eq!(
        host.command(&mut queue, sqe)?.status(),
        Status::SUCCESS,
        "the new namespace, on the old connection"
    );
    // A file with a mistake changes nothing.
    place.configure("[[subsystem]]\nnqn = 7\n")?;
    assert!(process.reload(&place)?.contains("2 subsystems"));
    // If the new disk cannot be opened, the present one stays in use.
    place.configure(&place.subsystem("").replace("/disk", "/no-disk"))?;
    assert!(process.reload(&place)?.contains("1 subsystem,"));
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    let mut sqe = transfer(io::READ, 0, 1);
    sqe.nsid = 2.into();
    sqe.sgl = host.data(0, 512);
    assert_eq!(
        host.command(&mut queue, sqe)?.status(),
        Status::INVALID_NAMESPACE.dnr()
    );
    assert!(
        host.get(&mut admin, nvmeof::nvme::fabrics::property::CSTS)
            .is_ok()
    );
    drop(host);
    process.end()
}

/// Bit ATR of the result of Connect says whether the host must authenticate (Base specification, "Connect Response").
#[test]
fn sighup_takes_a_hosts_key_away_and_gives_it_back() -> Result<()> {
    let place = Place::new()?;
    fs::write(place.path("key"), KEY)?;
    let keyed = format!("key = \"{}\"\n", place.path("key").display());
    let listed = |key: &str| {
        let host = format!("[[subsystem.host]]\nnqn = \"{HOST}\"\n{key}");
        place.configure(&place.subsystem(&host))
    };
    listed(&keyed)?;
    let process = place.start()?;
    let mut host = place.host()?;
    for (key, must_authenticate) in [(keyed.as_str(), 0b10), ("", 0), (keyed.as_str(), 0b10)] {
        listed(key)?;
        process.reload(&place)?;
        let mut queue = host.queue(0, 32)?;
        let connected = host.connect(&mut queue, &subsystem(), ANY_CONTROLLER)?;
        assert_eq!(
            (connected.status(), connected.result.get() >> 16),
            (Status::SUCCESS, must_authenticate),
            "{key:?}"
        );
        host.disconnect(&queue)?;
    }
    drop(host);
    process.end()
}

#[test]
fn counters_are_scraped_by_http() -> Result<()> {
    let place = Place::new()?;
    place.configure(&format!(
        "[metrics]\naddress = \"127.0.0.1:0\"\n{}",
        place.subsystem("")
    ))?;
    let process = place.start()?;
    let at = process.listens()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    assert_eq!(host.read(&mut queue, 0, 8, 0, 4096)?, Status::SUCCESS);
    let mut stream = TcpStream::connect(at)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let (_, text) = said.split_once("\r\n\r\n").context("an answer")?;
    control::metrics::check(text).map_err(anyhow::Error::msg)?;
    for line in [
        "nvmeof_worker_queue_size{port=\"1\",worker=\"0\"} 2048",
        // Only the type is there: the one command timed so far is the admin queue's first, which is not counted.
        "# TYPE nvmeof_worker_command_latency_seconds histogram",
        "# TYPE nvmeof_worker_queue_depth gauge",
        "nvmeof_namespace_read_bytes_total{subsystem=\"nqn.2026-11.test:disks\",nsid=\"1\"} 4096",
        "nvmeof_namespace_reads_total{subsystem=\"nqn.2026-11.test:disks\",nsid=\"1\"} 1",
        "nvmeof_namespace_size_bytes{subsystem=\"nqn.2026-11.test:disks\",nsid=\"1\"} 4194304",
        "nvmeof_subsystem_controllers{subsystem=\"nqn.2026-11.test:disks\"} 1",
        "nvmeof_worker_connections_total{port=\"1\",worker=\"0\"} 2",
        "nvmeof_worker_serves{port=\"1\",worker=\"0\"} 1",
        "# EOF",
    ] {
        assert!(
            said.lines().any(|one| one == line),
            "{line} is not in\n{said}"
        );
    }
    drop(host);
    process.end()
}

/// A worker's first command is timed, and then one of 64. Latencies are counted by kind for I/O queues only, because
/// commands of admin queues may wait for an event. The status also has the number of pending commands.
#[test]
fn commands_of_io_queues_are_timed_by_kind_and_those_that_are_here_are_counted() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    for _ in 0..128 {
        assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    }
    for _ in 0..192 {
        assert_eq!(host.write(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    }
    let status: Value = place.client()?.call("status", Value::Null)?;
    let worker = &status["ports"][0]["workers"][0];
    let count = |kind: &str| worker["latency"][kind]["count"].as_u64();
    assert_eq!(
        [count("read"), count("write"), count("other")],
        [Some(2), Some(3), Some(0)],
        "{worker}"
    );
    let sum = worker["latency"]["read"]["sum"].as_u64();
    assert!(sum > Some(0), "{worker}");
    // The last response may not have been completed yet.
    assert!(worker["queue_depth"].as_u64() <= Some(1), "{worker}");
    assert_eq!(worker["queue_size"], 2048);
    drop(host);
    process.end()
}

/// SIGHUP applies a changed log filter, and ignores an invalid one.
#[test]
fn sighup_takes_in_another_log() -> Result<()> {
    let place = Place::new()?;
    let again = |log: &str| place.prepend(&format!("log = \"{log}\"\n"));
    again("error")?;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
    command.arg(place.path("nvmeofd.toml"));
    command.stderr(fs::File::create(place.path("log"))?);
    let process = place.start_by(command)?;
    let said = || fs::read_to_string(place.path("log"));
    assert_eq!(said()?, "", "no error has happened");
    let reload = |log: &str| -> Result<()> {
        again(log)?;
        process.reload(&place)?;
        Ok(())
    };
    reload("info")?;
    let after = said()?;
    assert!(
        after.contains("the configuration was read again") && after.contains("steps=1"),
        "{after}"
    );
    reload("lots")?;
    let after = said()?;
    assert!(
        after.contains("nvmeofd.toml:1:7: \"lots\": log is error"),
        "{after}"
    );
    reload("error")?;
    let before = said()?;
    reload("error,nvmeof=error")?;
    assert_eq!(said()?, before, "nothing but errors is told");
    process.end()
}

/// `RUST_LOG` overrides the file's log filter, and the daemon reports on SIGHUP that a changed filter has no effect.
#[test]
fn sighup_tells_that_another_log_has_no_effect_beside_rust_log() -> Result<()> {
    let place = Place::new()?;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
    command.arg(place.path("nvmeofd.toml"));
    command.stderr(fs::File::create(place.path("log"))?);
    let process = place.start_with_log(command, "warn")?;
    place.prepend("log = \"debug\"\n")?;
    process.reload(&place)?;
    let said = fs::read_to_string(place.path("log"))?;
    let wanted =
        "takes a restart, and is as it was: log = \"debug\": RUST_LOG=warn comes before it";
    assert!(said.contains(wanted), "{said}");
    process.end()?;
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_nvmeofd"))
        .arg(place.path("nvmeofd.toml"))
        .env("RUST_LOG", "lots")
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    assert!(
        !output.status.success() && said.contains("nvmeofd: RUST_LOG: \"lots\": log is error"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_daemon_that_cannot_serve_says_why_and_leaves_nothing() -> Result<()> {
    let place = Place::new()?;
    fs::remove_file(place.path("disk"))?;
    let path = place.path("nvmeofd.toml");
    let (content, said) = crate::process::run(&[path.to_str().expect("a text")])?;
    assert!(!content, "{said}");
    assert!(
        said.contains("namespace 1 of nqn.2026-11.test:disks:") && said.contains("disk"),
        "{said}"
    );
    assert!(!place.path("control").exists());
    Ok(())
}
