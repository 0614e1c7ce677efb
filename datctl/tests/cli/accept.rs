//! `datctl accept`, as a person runs it: on simulated functions of its own process, on those that another process
//! serves, and without any function.
//!
//! `accept/tests.rs` of datctl tests each line on a function with a fault. These tests cover the lines that need
//! processes or a machine.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::served::{Served, datctl, json};
use crate::tree::{PF0, Tree, VF};

/// Runs `datctl accept` with `--json` and a bundle in `directory`. Returns its exit status and the table.
fn accept(directory: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let bundle = directory.join("bundle").display().to_string();
    json(&[&["accept", "--bundle", &bundle], arguments].concat())
}

/// Returns verdict and finding of the line with this name, of which there must be one.
fn line(report: &Value, name: &str) -> (String, String) {
    let rows = report["rows"].as_array().expect("rows");
    let found: Vec<&Value> = rows.iter().filter(|row| row["line"] == name).collect();
    let [row] = found[..] else {
        panic!("{} lines {name} in {report:#}", found.len());
    };
    let text = |field: &str| row[field].as_str().expect("text").to_owned();
    (text("verdict"), text("found"))
}

#[test]
fn two_served_functions_are_accepted_and_the_bundle_has_everything() {
    let served = Served::new(&[]);
    let directory = tempfile::tempdir().expect("a directory");
    let (a, b) = (served.name("a"), served.name("b"));
    let (code, report) = accept(directory.path(), &[&a, &b, "--hours", "0.0001"]);
    assert_eq!(
        (code, &report["ok"]),
        (Some(0), &Value::Bool(true)),
        "{report:#}"
    );
    assert_eq!(report["simulated"], true);
    // The self test is first: what it finds fails every other line.
    let first = &report["rows"][0];
    assert_eq!(
        (&first["line"], &first["verdict"]),
        (&json!("self test"), &json!("ok")),
        "{first}"
    );
    for name in ["e-switch", "DTOs", "connections", "kill", "perf", "soak"] {
        let (verdict, found) = line(&report, name);
        assert_eq!(verdict, "ok", "{name}: {found}");
    }
    let (_, found) = line(&report, "kill");
    assert!(
        found.ends_with("opened again, and messages pass"),
        "{found}"
    );
    // A line that cannot be run is reported as skipped.
    for name in ["kernel peer", "link", "reset", "unbind"] {
        let (verdict, why) = line(&report, name);
        assert_eq!(verdict, "skipped", "{name}");
        assert!(!why.is_empty(), "{name}");
    }
    let bundle = directory.path().join("bundle");
    let mut files: Vec<String> = fs::read_dir(&bundle)
        .expect("the bundle")
        .map(|entry| {
            entry
                .expect("a file")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "counters-connections.json",
            "counters-connections.txt",
            "counters-e-switch.json",
            "counters-e-switch.txt",
            "info-0.json",
            "info-0.txt",
            "info-1.json",
            "info-1.txt",
            "perf.json",
            "perf.txt",
            "record-0.toml",
            "record-1.toml",
            "report.json",
            "report.txt",
            "trace.log",
            "wire.pcapng"
        ]
    );
    let kept = fs::read_to_string(bundle.join("report.json")).expect("the report");
    let kept: Value = serde_json::from_str(&kept).expect("an object");
    assert_eq!(kept, report);
    // The trace has the commands in the form of Linux mlx5 `cmd.c` `dump_command`.
    let trace = fs::read_to_string(bundle.join("trace.log")).expect("the trace");
    assert!(trace.contains("dump command ENABLE_HCA(0x104)"));
    // The capture has a section header, and frames of over a hundred connections, each with five datagrams or more.
    let capture = fs::read(bundle.join("wire.pcapng")).expect("the capture");
    assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(capture.len() > 100 * 5 * 256, "{} bytes", capture.len());
}

/// Accepts two functions of the own process. The simulator acts on them as the kernel would on real ones. Lines that
/// need a kernel, another process or hours are skipped.
#[test]
fn functions_of_the_own_process_lose_their_link_and_are_reset_and_wanted_back() {
    let [one, other] = ["sim:a", "sim:b"];
    let directory = tempfile::tempdir().expect("a directory");
    let bundle = directory.path().join("bundle");
    let place = bundle.display().to_string();
    let output = datctl(&["--json", "accept", "--bundle", &place, one, other]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    // Warnings that the run provokes are in its bundle. The error stream has none.
    let said = String::from_utf8(output.stderr).expect("text");
    for line in said.lines() {
        let verdict = line.split("  ").next();
        assert!(matches!(verdict, Some("ok" | "skipped")), "{line}");
    }
    let trace = fs::read_to_string(bundle.join("trace.log")).expect("the trace");
    assert!(
        trace.contains(" ERROR ") || trace.contains(" WARN "),
        "alarms were raised"
    );
    for (name, end) in [
        ("link", "messages pass again"),
        ("reset", "opened again, and messages pass"),
        ("unbind", "opened again, and messages pass"),
    ] {
        let (verdict, found) = line(&report, name);
        assert_eq!(verdict, "ok", "{one}: {name}: {found}");
        assert!(found.ends_with(end), "{one}: {name}: {found}");
    }
    let rows = report["rows"].as_array().expect("rows");
    let skipped = rows.iter().filter(|row| row["verdict"] == "skipped");
    let mut skipped: Vec<&str> = skipped.filter_map(|row| row["line"].as_str()).collect();
    skipped.dedup();
    assert_eq!(skipped, ["doctor", "kernel peer", "kill", "soak"], "{one}");
}

#[test]
fn virtual_functions_of_the_own_process_lose_their_link_and_are_reset_and_wanted_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let lines = ["link", "reset", "unbind"];
    let only = lines.join(",");
    let (code, report) = accept(
        directory.path(),
        &["sim:c/vf0", "sim:c/vf1", "--only", &only],
    );
    assert_eq!(code, Some(0), "{report:#}");
    for name in lines {
        let (verdict, found) = line(&report, name);
        assert_eq!(verdict, "ok", "{name}: {found}");
    }
}

#[test]
fn one_function_and_a_peer_that_speaks_rping_are_accepted_and_lines_for_two_are_skipped() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("rping");
    let directory = tempfile::tempdir().expect("a directory");
    let lines = "kernel peer,e-switch,DTOs,kill,perf,loopback";
    let b = served.name("b");
    let arguments = [&b, "--peer", &address, "--only", lines];
    let (code, report) = accept(directory.path(), &arguments);
    assert_eq!(code, Some(0), "{report:#}");
    let (verdict, found) = line(&report, "kernel peer");
    assert_eq!(verdict, "ok", "{found}");
    assert_eq!(listener.line(), "answered 100 messages");
    for name in ["e-switch", "DTOs", "kill", "perf"] {
        assert_eq!(line(&report, name).0, "skipped", "{name}");
    }
    assert_eq!(line(&report, "loopback").0, "ok");
    // The passive rping has ended, so the line "kernel peer" fails.
    fs::remove_dir_all(directory.path().join("bundle")).expect("it goes");
    let again = [&b, "--peer", &address, "--only", "kernel peer"];
    let (code, report) = accept(directory.path(), &again);
    assert_eq!((code, &report["ok"]), (Some(1), &Value::Bool(false)));
    let (verdict, found) = line(&report, "kernel peer");
    assert_eq!(verdict, "not ok");
    assert!(found.contains("port 7174"), "{found}");
    assert!(found.contains("DAT_CONNECTION_EVENT_TIMED_OUT"), "{found}");
}

/// If no station has the peer's address, the line fails because the neighbour is not found.
#[test]
fn a_peer_whose_neighbour_is_not_found_is_not_ok() {
    let directory = tempfile::tempdir().expect("a directory");
    let function = "sim:a,time=virtual,address=10.0.0.1/24";
    let (code, report) = accept(
        directory.path(),
        &[function, "--peer", "10.0.0.77", "--only", "kernel peer"],
    );
    assert_eq!((code, &report["ok"]), (Some(1), &json!(false)));
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["line"] == "kernel peer");
    let row = row.expect("the line");
    assert_eq!(row["verdict"], "not ok", "{row}");
    let found = row["found"].as_str().expect("text");
    assert!(found.starts_with("10.0.0.77 port 7174: "), "{found}");
    assert!(
        found.contains("DAT_CONNECTION_EVENT_UNREACHABLE"),
        "{found}"
    );
    let apart = row["apart"].as_str().expect("a sentence");
    assert!(
        apart.starts_with("If the neighbour is not found"),
        "{apart}"
    );
}

#[test]
fn functions_that_are_gone_fail_every_line_that_opens_them_and_the_run_goes_on_to_its_end() {
    let served = Served::new(&["--faults", "0:removal@0s"]);
    let directory = tempfile::tempdir().expect("a directory");
    let (a, b) = (served.name("a"), served.name("b"));
    let (code, report) = accept(directory.path(), &[&a, &b]);
    assert_eq!(code, Some(1));
    for name in ["e-switch", "DTOs", "connections", "kill", "perf"] {
        let (verdict, found) = line(&report, name);
        assert_eq!(verdict, "not ok", "{name}: {found}");
        assert!(!found.is_empty());
    }
    let output = datctl(&["accept", &a, "--bundle", "/nonexistent/bundle"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_function_that_the_doctor_finds_something_at_is_not_accepted() {
    let tree = Tree::good();
    let flags = format!("/sys/bus/pci/devices/{PF0}/net/ens1f0/flags");
    tree.write(&flags, "0x1002\n");
    tree.write(
        "/answers/dmesg ",
        "[    1.000000] vfio-pci 0000:3b:00.2: enabling device\n",
    );
    tree.write(
        "/answers/lspci -D -nn -vvv -s 0000:3b:00.2",
        "the virtual function\n",
    );
    tree.write("/answers/ethtool -i ens1f0", "driver: mlx5_core\n");
    let bundle = tree.root().join("bundle").display().to_string();
    let (code, report) = tree.json(&["accept", VF, "--bundle", &bundle]);
    assert_eq!(code, 1);
    let (verdict, found) = line(&report, "doctor");
    assert_eq!(
        (verdict.as_str(), found.as_str()),
        (
            "not ok",
            "pf interface: ens1f0 is down, and its virtual functions with it"
        )
    );
    let kept = fs::read_to_string(Path::new(&bundle).join("doctor-0.txt")).expect("the diagnosis");
    assert!(kept.contains("ip link set dev ens1f0 up"), "{kept}");
    // Only a line that is not ok has a sentence that distinguishes its possible causes.
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        let told = row["apart"]
            .as_str()
            .is_some_and(|text| text.starts_with("If "));
        let is_told = row["verdict"] == "not ok" && row["line"] == "doctor";
        assert!(told || !is_told, "{row:#}");
        assert!(
            row["verdict"] == "not ok" || row["apart"].is_null(),
            "{row:#}"
        );
    }
    // The bundle has the state of the machine for both functions, and the kernel's log since the run began.
    let machine = fs::read_to_string(Path::new(&bundle).join("machine-0-after.txt"));
    let machine = machine.expect("what the machine says");
    for part in [
        "$ lspci -D -nn -vvv -s 0000:3b:00.2\nthe virtual function\n",
        "$ ethtool -i ens1f0\ndriver: mlx5_core\n",
        "$ devlink dev info pci/0000:3b:00.0\n(not there, refused, or silent for 30 s)\n",
    ] {
        assert!(machine.contains(part), "{part:?} in {machine}");
    }
    let log = fs::read_to_string(Path::new(&bundle).join("kernel.log")).expect("the log");
    assert_eq!(log, "", "nothing was said since");
    // An existing bundle is not overwritten.
    let (code, report) = tree.json(&["accept", VF, "--bundle", &bundle]);
    assert_eq!(code, 1);
    let error = report["error"].as_str().expect("an error");
    assert!(error.contains("File exists"), "{error}");
}

/// Two virtual functions of one card are accepted over the card's e-switch. One of them may send only from its own MAC.
#[test]
fn two_virtual_functions_of_one_card_are_accepted() {
    let served = Served::card(&["--vf", "0:mac=02:00:00:00:00:77,spoofchk"]);
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = (served.name("card.vf0"), served.name("card.vf1"));
    let lines = ["e-switch", "DTOs", "connections", "kill", "perf"];
    let only = format!("port,{}", lines.join(","));
    let (code, report) = accept(directory.path(), &[&one, &other, "--only", &only]);
    assert_eq!(code, Some(0), "{report:#}");
    for name in lines {
        let (verdict, found) = line(&report, name);
        assert_eq!(verdict, "ok", "{name}: {found}");
    }
    let info = directory.path().join("bundle/info-0.txt");
    let info = fs::read_to_string(info).expect("what info says");
    assert!(info.contains("02:00:00:00:00:77"), "{info}");
}

#[test]
fn a_virtual_function_that_its_owner_switched_off_is_found_by_its_port() {
    let served = Served::card(&["--vf", "0:state=disable"]);
    let directory = tempfile::tempdir().expect("a directory");
    let (code, report) = accept(
        directory.path(),
        &[&served.name("card.vf0"), "--only", "port"],
    );
    assert_eq!(code, Some(1), "{report:#}");
    let (verdict, found) = line(&report, "port");
    assert_eq!(verdict, "not ok");
    assert!(found.contains("the vport's owner says: down"), "{found}");
}

#[test]
fn named_lines_run_alone_and_accept_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let bundle = directory.path().join("bundle");
    let place = bundle.display().to_string();
    let output = datctl(&[
        "accept",
        "sim:a",
        "sim:b",
        "--only",
        "record,DTOs",
        "--bundle",
        &place,
    ]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains(
            "nothing accepted, since only some lines ran: 3 lines ok, 0 not ok, 21 skipped"
        ),
        "{text}"
    );
    let report = fs::read_to_string(bundle.join("report.json")).expect("the report");
    let report: Value = serde_json::from_str(&report).expect("an object");
    assert_eq!(report["whole"], false);
    let (verdict, why) = line(&report, "perf");
    assert_eq!(
        (verdict.as_str(), why.as_str()),
        ("skipped", "not named by --only")
    );
    let refused = datctl(&["accept", "sim:a", "--only", "prot"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(said.contains("port") && said.contains("e-switch"), "{said}");
}
