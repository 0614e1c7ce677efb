//! Runs the Rust programs of docs/guide.md and docs/first-steps.md, each assembled from its blocks in order, and the
//! blocks of other pages, each as a program of its own. The guide's program in C is built with the tests of the
//! installed library (`install`).
//!
//! Each program of a page is a process of its own, because a wire connects the first two simulated functions of a
//! process, and blocks of other pages open functions, too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Tests made of the blocks of other pages.
mod snippets {
    include!(concat!(env!("OUT_DIR"), "/snippets.rs"));
}

/// The guide's program.
mod guide {
    include!(concat!(env!("OUT_DIR"), "/guide.rs"));

    pub fn run() {
        main().expect("the program of the guide");
    }
}

/// The program of the first-steps page.
#[expect(
    dead_code,
    reason = "its main function takes the arguments of the process"
)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm,
    reason = "it is written as programs are that have none of our lints"
)]
mod first_steps {
    include!(concat!(env!("OUT_DIR"), "/first-steps.rs"));

    pub fn run_server(name: &str) {
        server(name).expect("the server");
    }

    pub fn run_client(name: &str) {
        let address = "192.0.2.1".parse().expect("an address");
        client(name, address, "hello there").expect("the client");
    }
}

/// Environment variable with the name of the program that this process runs, and the name of its adapter.
const PROGRAM: &str = "GUIDE_PROGRAM";

/// Starts this test program again, as a process that runs one of the page's programs.
fn start(program: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().expect("its path"))
        .args(["--exact", "this_process_is_a_program_if_it_is_told_so"])
        .arg("--nocapture")
        .env(PROGRAM, format!("{program} {name}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

#[test]
fn this_process_is_a_program_if_it_is_told_so() {
    let told = std::env::var(PROGRAM).unwrap_or_default();
    match told.split_once(' ') {
        Some(("guide", _)) => guide::run(),
        Some(("server", name)) => first_steps::run_server(name),
        Some(("client", name)) => first_steps::run_client(name),
        _ => assert_eq!(told, ""),
    }
}

/// Waits until the process prints a line. Returns false if its output ends before.
fn says(output: &mut impl BufRead, expected: &str) -> bool {
    output
        .lines()
        .map_while(Result::ok)
        .any(|line| line == expected)
}

#[test]
fn the_guide_s_program_in_rust_does_what_it_says() {
    let mut program = start("guide", "");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    assert!(says(&mut output, "read back: written from afar"));
    assert!(program.wait().expect("its end").success());
}

/// The first program of the page connects two processes. The test uses the page's names, except for the path of the
/// wire.
#[test]
fn the_first_program_talks_between_two_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let wire = folder.path().join("wire");
    let name = |side: &str, number: u32| {
        format!(
            "sim:{side},link=unix:{},mac=02:00:00:00:00:0{number},address=192.0.2.{number}/24,pcap={}",
            wire.display(),
            folder.path().join(side).display()
        )
    };
    let mut server = start("server", &name("s", 1));
    let mut from_server = BufReader::new(server.stdout.take().expect("a pipe"));
    assert!(says(&mut from_server, "listening at fe80::ff:fe00:1"));
    assert!(says(&mut from_server, "listening at 192.0.2.1"));
    let mut client = start("client", &name("c", 2));
    let mut from_client = BufReader::new(client.stdout.take().expect("a pipe"));
    assert!(says(&mut from_client, "received: you said: hello there"));
    assert!(says(&mut from_server, "received: hello there"));
    assert!(client.wait().expect("its end").success());
    assert!(server.wait().expect("its end").success());
    // Each side's capture has the frames of both sides.
    for side in ["s", "c"] {
        let capture = std::fs::read(folder.path().join(side)).expect("a capture");
        let has = |text: &[u8]| capture.windows(text.len()).any(|part| part == text);
        assert!(
            has(b"hello there") && has(b"you said: hello there"),
            "{side}"
        );
    }
}
