//! The files that datctl writes, on a disk that returns errors.
//!
//! A child becomes datctl (execve(2)), and only its calls on the files that it must write fail. These conditions must
//! hold:
//! - the process ends by itself, without a panic;
//! - its files are complete; or it reports the system's error, and leaves no file that could be taken for a complete
//!   one;
//! - it continues to serve functions, if it serves any.

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

/// Prefix of the names of parts that are commands of datctl.
const DATCTL: &str = "datctl ";
pub const RECORD: &str = "datctl record";
pub const ACCEPT: &str = "datctl accept";
pub const SERVE: &str = "datctl sim serve";

/// Time after which a server has rewritten its report: longer than its interval.
const REPORTED: Duration = Duration::from_secs(3);

/// Returns true if a part is a command of datctl, whose files are tested.
pub fn is_a_program(part: &str) -> bool {
    part.starts_with(DATCTL)
}

/// Returns the directory in which a command of datctl writes files.
pub fn of(directory: &Path) -> PathBuf {
    directory.join("files")
}

/// Runs a part in a child: replaces the child by a command of datctl.
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

/// Makes the child run datctl in an empty directory. If datctl serves functions, runs a session with them and ends
/// datctl. Returns the output of datctl and the result of the session.
pub fn beside(directory: &Path, mut stdin: ChildStdin, stdout: BufReader<ChildStdout>) -> String {
    let files = of(directory);
    // The directory may not exist yet.
    let _left_by_the_last = fs::remove_dir_all(&files);
    fs::create_dir(&files).expect("a directory");
    // The write fails if the child has ended already.
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
        // The signal fails if the child has ended already.
        let _gone = kill(pid.expect("it says its number first"), Signal::SIGTERM);
        lines.for_each(|line| said += &format!("{line}\n"));
    }
    said
}

/// Returns the files that a run left, at any depth: contents by name.
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

/// Returns true if a file is complete. The comparison with the file of an undisturbed run covers only properties that
/// all undisturbed runs share.
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

/// Returns true if the bytes are blocks of a pcapng file, each with its length at its beginning and at its end.
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

/// Checks a run. Returns true if the error was reported, and false if the run succeeded all the same.
pub fn check_run(
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
    // A file remains if its removal failed.
    if !besides.is_empty() && wanted.name != "unlink" {
        return Err(format!("left over: {besides:?}"));
    }
    if part == SERVE && run.said.contains("vfio-user:") && !run.said.contains("@session ok") {
        return Err(format!("a client pays for it: {}", run.said));
    }
    // A failed write must be reported, even if a later write succeeds.
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
    // A recording must be complete or absent.
    if part == RECORD && (code == 0 || left.keys().any(|name| usual.contains_key(name))) {
        return Err(format!(
            "code {code}, and there is a file that is not whole: {broken:?}"
        ));
    }
    Ok(true)
}
