//! The files that datctl writes, on a disk that says no.
//!
//! A child becomes datctl (execve(2)), and of its calls those fail that are about the files it was told to write. What
//! must hold:
//! - it ends by itself, without a panic;
//! - its files are as they always are; or what the system has answered is told, and what is left is none that could be
//!   taken for a whole one;
//! - functions that are served go on being served.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use super::calls::Fault;
use super::judge::names;
use super::parts::{heard, served, session};
use super::tracer::{Ended, Run, Wanted};

/// How parts begin that are commands of datctl.
const DATCTL: &str = "datctl ";
pub const RECORD: &str = "datctl record";
pub const ACCEPT: &str = "datctl accept";
pub const SERVE: &str = "datctl sim serve";

/// Longer than a report of what is served takes to be written again.
const REPORTED: Duration = Duration::from_secs(3);

/// Whether a part is a program of its own, of which the files are looked at.
pub fn is_a_program(part: &str) -> bool {
    part.starts_with(DATCTL)
}

/// Where it writes files.
pub fn of(directory: &Path) -> PathBuf {
    directory.join("files")
}

/// Played by a child, which is datctl from here on.
pub fn played(part: &str, directory: &Path) {
    println!("\nready");
    heard();
    println!("\n@pid {}", std::process::id());
    let file = |name: &str| of(directory).join(name).into_os_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_datctl"));
    match part {
        RECORD => command.args(["record", "sim:a"]).arg(file("card.toml")),
        ACCEPT => command
            .args(["accept", "sim:a", "--bundle"])
            .arg(file("bundle")),
        SERVE => {
            command.args(["sim", "serve", "--report"]);
            command.arg(file("report"));
            command.arg("--pcap").arg(file("frames.pcapng"));
            for name in served(directory) {
                let socket = name.strip_prefix("vfio-user:").expect("a socket's name");
                command.arg("--socket").arg(socket);
            }
            &mut command
        }
        other => panic!("datctl has no command for {other}"),
    };
    let _mark = getppid();
    panic!("execve: {}", command.exec());
}

/// Lets it run in an empty directory, has a session with what it serves, asks it to end, and tells what it has left.
pub fn beside(directory: &Path, mut stdin: ChildStdin, stdout: BufReader<ChildStdout>) -> String {
    let files = of(directory);
    // There may be none yet.
    let _left_by_the_last = fs::remove_dir_all(&files);
    fs::create_dir(&files).expect("a directory");
    // A child that has ended already hears nothing.
    let _gone = stdin.write_all(b"go\n");
    let mut said = String::new();
    let (mut pid, mut serving) = (None, 0);
    let mut lines = stdout.lines().map_while(Result::ok);
    for line in &mut lines {
        if let Some(number) = line.strip_prefix("@pid ") {
            pid = number.parse().ok().map(Pid::from_raw);
        } else {
            said += &format!("{line}\n");
        }
        serving += usize::from(line.starts_with("vfio-user:"));
        if serving == 2 {
            break;
        }
    }
    if serving == 2 {
        let outcome = session(&served(directory)).map_or_else(|error| error, |()| "ok".into());
        said += &format!("@session {}\n", outcome.replace('\n', " "));
        let (_never, nothing) = channel::<()>();
        let _time = nothing.recv_timeout(REPORTED);
        // It may have ended.
        let _gone = kill(pid.expect("it says its number first"), Signal::SIGTERM);
        lines.for_each(|line| said += &format!("{line}\n"));
    }
    said
}

/// What a run has left: bytes by name, below the directory.
pub fn left(directory: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut directories = vec![of(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.file_name().expect("a name").to_owned();
                all.insert(name, fs::read(&path).expect("readable"));
            }
        }
    }
    all
}

/// Whether a file is as it is after a run that nobody disturbed, as far as two of those are the same.
fn is_whole(name: &str, bytes: &[u8], usual: &[u8]) -> bool {
    if name.ends_with(".toml") {
        return bytes == usual;
    }
    if name.ends_with(".json") {
        return serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
    }
    if name.ends_with(".pcapng") {
        return bytes.len() > usual.len() / 2 && are_blocks(bytes);
    }
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    bytes.ends_with(b"\n") && lines(bytes) > lines(usual) / 2 && !bytes.contains(&0)
}

/// Blocks of a pcapng file: each says its length at its begin and at its end.
#[expect(clippy::little_endian_bytes, reason = "as `hw_sim::pcap` writes files")]
fn are_blocks(mut bytes: &[u8]) -> bool {
    while let Some(length) = bytes.get(4..8) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        let Some((block, rest)) = bytes.split_at_checked(length).filter(|_| length >= 12) else {
            return false;
        };
        if block[4..8] != block[length - 4..] {
            return false;
        }
        bytes = rest;
    }
    bytes.is_empty()
}

/// Whether a run held; told, or survived.
pub fn told(
    part: &str,
    run: &Run,
    wanted: Wanted,
    left: &BTreeMap<OsString, Vec<u8>>,
    usual: &BTreeMap<OsString, Vec<u8>>,
) -> Result<bool, String> {
    let Ended::Exit(code) = run.ended else {
        return Err(format!("it ended by {:?}", run.ended));
    };
    if run.complained.contains("panicked at") {
        return Err("a panic".into());
    }
    let says = format!("{}{}", run.said, run.complained);
    let is_told = |errno: Errno| names(&says, errno);
    let broken: Vec<_> = usual
        .iter()
        .filter(|(name, usual)| {
            let bytes = left.get(*name);
            !bytes.is_some_and(|bytes| is_whole(&name.to_string_lossy(), bytes, usual))
        })
        .map(|(name, _)| name)
        .collect();
    let besides: Vec<_> = left
        .keys()
        .filter(|name| !usual.contains_key(*name))
        .collect();
    // What cannot be removed stays.
    if !besides.is_empty() && wanted.name != "unlink" {
        return Err(format!("left over: {besides:?}"));
    }
    if part == SERVE && run.said.contains("vfio-user:") && !run.said.contains("@session ok") {
        return Err(format!("a client pays for it: {}", run.said));
    }
    // What was lost is told, even where a later write makes up for it.
    if let Fault::Error(errno) = wanted.fault
        && errno != Errno::EINTR
        && wanted.name.starts_with("write")
        && !is_told(errno)
    {
        return Err(format!("not told: {says}"));
    }
    if part == ACCEPT && wanted.name.starts_with("write") && !run.said.contains("kept in") {
        return Err(format!("the table is not shown: {says}"));
    }
    if broken.is_empty() && code == 0 {
        return Ok(false);
    }
    match wanted.fault {
        Fault::Error(errno) if errno != Errno::EINTR => {
            if !is_told(errno) {
                return Err(format!(
                    "code {code}, {broken:?} are not whole: not told: {says}"
                ));
            }
        }
        Fault::Error(_) | Fault::Short | Fault::Done(_) => {
            return Err(format!("code {code}, {broken:?} are not whole: {says}"));
        }
    }
    // Who records has a whole file or none.
    if part == RECORD && (code == 0 || left.keys().any(|name| usual.contains_key(name))) {
        return Err(format!(
            "code {code}, and there is a file that is not whole: {broken:?}"
        ));
    }
    Ok(true)
}
