//! Tests options and adapter names that take the path of a socket, with a path at which a file exists, and with a
//! socket that a killed process left behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::served::{Process, datctl};
use crate::tree::names;

const MAC: &str = "02:00:00:00:00:07";
/// Contents of an unrelated file, which must not change.
const PRECIOUS: &str = "precious";

/// Returns commands that use `path` as a socket or as the end of a wire. They create the other sockets that they need
/// in `other`.
fn commands(path: &Path, other: &Path) -> [Vec<String>; 4] {
    let (path, other) = (path.display(), other.display());
    let serve = ["sim", "serve", "--socket"].map(str::to_owned);
    let served = |rest: &[String]| [&serve[..], rest].concat();
    [
        served(&[path.to_string()]),
        served(&[
            format!("{other}/served"),
            "--link".into(),
            format!("unix:{path}"),
        ]),
        served(&[
            format!("{other}/served"),
            "--link".into(),
            format!("dgram:{path},{other}/there"),
        ]),
        ["info", &format!("sim:a,link=unix:{path},mac={MAC}")]
            .map(str::to_owned)
            .to_vec(),
    ]
}

fn text(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Checks that all commands refuse the path and say why, that the directory is unchanged, and that the other directory
/// stays empty.
fn refused(directory: &TempDir, name: &str, why: &str) {
    let other = tempfile::tempdir().expect("a directory");
    let before = names(directory.path());
    let path = directory.path().join(name);
    for command in commands(&path, other.path()) {
        let output = datctl(&text(&command));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{command:?}: {said}");
        assert!(
            said.contains(&path.display().to_string()) && said.contains(why),
            "{command:?}: {said}"
        );
        assert_eq!(names(directory.path()), before, "{command:?}");
        assert_eq!(names(other.path()), [""; 0], "{command:?}");
    }
}

#[test]
fn a_path_that_is_no_socket_stays_what_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), PRECIOUS).expect("written");
    symlink(at("file"), at("link")).expect("a link");
    fs::create_dir(at("directory")).expect("made");
    refused(&directory, "file", "a regular file, not a socket");
    refused(&directory, "link", "a symbolic link, not a socket");
    refused(&directory, "directory", "a directory, not a socket");
    assert_eq!(fs::read_to_string(at("file")).expect("there"), PRECIOUS);
}

#[test]
fn what_lies_where_the_lock_would_be_is_not_written_through_a_link() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), PRECIOUS).expect("written");
    symlink(at("file"), at("linked.lock")).expect("a link");
    fs::write(at("kept.lock"), PRECIOUS).expect("written");
    refused(&directory, "linked", "a symbolic link");
    refused(&directory, "kept", "a file of 8 bytes");
    for name in ["file", "kept.lock"] {
        assert_eq!(fs::read_to_string(at(name)).expect("there"), PRECIOUS);
    }
}

#[test]
fn the_socket_of_a_living_process_stays_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let _server = UnixListener::bind(at("server")).expect("bound");
    let _peer = UnixDatagram::bind(at("peer")).expect("bound");
    refused(&directory, "server", "another process has open");
    refused(&directory, "peer", "another process has open");
}

#[test]
fn a_socket_left_by_the_dead_is_replaced_and_who_is_asked_to_end_leaves_none() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let [socket, wire, datagrams, program] = commands(&path, directory.path());
        for command in [socket, wire, datagrams] {
            drop(UnixListener::bind(&path).expect("bound"));
            let mut server = Process::start(&text(&command));
            assert!(server.line().starts_with("vfio-user:"), "{command:?}");
            let there = names(directory.path());
            assert!(there.contains(&"socket".to_owned()), "{there:?}");
            assert!(!there.contains(&"socket.lock".to_owned()), "{there:?}");
            server.signal(signal);
            assert_eq!(server.status(), Some(0), "{command:?}");
            assert_eq!(names(directory.path()), [""; 0], "{command:?}");
        }
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(datctl(&text(&program)).status.success());
        assert_eq!(names(directory.path()), [""; 0]);
    }
}

#[test]
fn a_server_that_cannot_start_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (first, wire) = (at("first"), format!("unix:{}", at("wire")));
    let start = ["sim", "serve", "--socket", &first];
    for wrong in [
        &["--socket", "/nowhere/second"][..],
        &["--link", &wire, "--pcap", "/nowhere/capture"],
        &["--link", &wire, "--faults", "3:removal@1s"],
        &["--link", "unix:/nowhere/wire"],
    ] {
        let output = datctl(&[&start, wrong].concat());
        assert!(!output.status.success(), "{wrong:?}");
        assert_eq!(names(directory.path()), [""; 0], "{wrong:?}");
    }
}

/// A server continues if its capture and report cannot be written.
#[test]
fn a_full_disk_ends_a_capture_and_a_report_and_no_function() {
    let directory = tempfile::tempdir().expect("a directory");
    let reports = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket").display().to_string();
    let report = reports.path().join("report").display().to_string();
    let full = ["--pcap", "/dev/full", "--report", &report];
    let mut server = Process::start(&[&["sim", "serve", "--socket", &socket], &full[..]].concat());
    let name = server.line();
    assert!(name.starts_with("vfio-user:"), "{name}");
    drop(reports);
    for _ in 0..3 {
        let output = datctl(&["info", &name]);
        assert!(output.status.success(), "{output:?}");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.status(), Some(0));
}
