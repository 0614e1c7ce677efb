//! Captures of the frames on a simulated wire in a file (`,pcap=FILE`).

use std::fs;

use udapl::error::OpenError;
use udapl::{CloseFlags, OpenOptions, ia_close, ia_open};

#[test]
fn a_capture_goes_on_with_its_name_and_is_one_wire_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let open = |name: &str| ia_open(name, &OpenOptions::default());
    let captured = format!("sim:captured,time=virtual,pcap={}", file("one"));
    for opening in 0..2 {
        let ia = open(&captured).expect("it opens");
        let begun = fs::read(file("one")).expect("a file");
        // The file is valid from the open on: it begins with a "Section Header Block" of pcapng.
        assert!(begun.starts_with(b"\x0a\x0d\x0d\x0a"), "{opening}");
        ia_close(ia, CloseFlags::Abrupt).expect("it closes");
    }
    // The file is renamed, and the next open creates the file again.
    fs::rename(file("one"), file("taken")).expect("it is moved");
    let again = open(&captured).expect("it opens");
    assert!(fs::read(file("one")).is_ok_and(|begun| !begun.is_empty()));
    ia_close(again, CloseFlags::Abrupt).expect("it closes");
    let refused = |name: String| match open(&name) {
        Err(OpenError::Capture { error, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let another = refused(format!(
        "sim:captured,time=virtual,pcap={}",
        file("another")
    ));
    assert!(another.contains("captured in"), "{another}");
    let wire = file("wire");
    let taken = refused(format!(
        "sim:captured-wire,link=unix:{wire},mac=02:00:00:00:00:01,pcap={}",
        file("one")
    ));
    assert_eq!(taken, "another capture or recording is being written to it");
    let open_already = format!(
        "sim:captured-late,link=unix:{},mac=02:00:00:00:00:02",
        file("late")
    );
    let first = open(&open_already).expect("it opens");
    let late = refused(format!("{open_already},pcap={}", file("late.pcapng")));
    assert!(late.contains("open without a capture"), "{late}");
    ia_close(first, CloseFlags::Abrupt).expect("it closes");
    let nowhere = refused("sim:captured-nowhere,pcap=/dev/null".to_owned());
    assert_eq!(nowhere, "it is not a regular file");
}

#[test]
fn only_a_simulated_function_s_wire_is_captured() {
    let opened = ia_open("0000:00:00.7,pcap=/tmp/wire", &OpenOptions::default());
    let refused = opened.expect_err("a card's is not").to_string();
    assert!(
        refused.contains("pcap are of simulated functions"),
        "{refused}"
    );
}
