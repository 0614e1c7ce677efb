//! Common behaviour of all commands: help, exit status, errors.

use crate::served::{datctl, json};

#[test]
fn every_command_explains_itself() {
    let commands = [
        &[][..],
        &["devices"],
        &["bind"],
        &["unbind"],
        &["doctor"],
        &["info"],
        &["ping"],
        &["perf"],
        &["cmtime"],
        &["record"],
        &["accept"],
        &["sim"],
        &["sim", "serve"],
        &["sim", "profiles"],
        &["resource"],
        &["stat"],
        &["top"],
        &["monitor"],
        &["metrics"],
        &["recorder"],
        &["decode"],
        &["explain"],
        &["man"],
        &["completions"],
    ];
    for command in commands {
        let output = datctl(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("Usage: datctl"), "{text}");
        assert!(text.contains("Examples:\n  datctl "), "{text}");
        assert!(
            !text.contains("machine-root"),
            "what is for tests is hidden: {text}"
        );
    }
    let output = datctl(&["--help"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("Exit status: 0 ok; 1 not ok"), "{text}");
}

#[test]
fn what_cannot_be_meant_is_usage() {
    let wrong = [
        &["frobnicate"][..],
        &[],
        &["info"],
        &["ping", "sim:a"],
        &["ping", "sim:a", "--listen", "--connect", "fe80::1"],
        &["ping", "sim:a", "sim:b", "--listen"],
        &["ping", "sim:a", "sim:b", "--count", "0"],
        &["ping", "sim:a", "sim:b", "--bytes", "0"],
        &["ping", "sim:a", "sim:b", "--qualifier", "0"],
        &["ping", "sim:a", "--listen", "--neighbour", "192.0.2.2"],
        &["perf", "sim:a", "sim:b", "--bytes", "2048M"],
        &["perf", "sim:a", "sim:b", "--operation", "atomic"],
        &["perf", "sim:a", "sim:b", "--endpoints", "0"],
        &["perf", "sim:a", "sim:b", "--count", "1", "--duration", "1s"],
        &["perf", "sim:a", "sim:b", "--warm-up", "soon"],
        &["perf", "sim:a", "sim:b", "--inline", "--batch", "2"],
        &["perf", "sim:a", "sim:b", "--perftest", "ib_write_bw"],
        &[
            "perf",
            "sim:a",
            "--connect",
            "fe80::1",
            "--perftest",
            "ib_atomic_bw",
        ],
        &[
            "perf",
            "sim:a",
            "--connect",
            "fe80::1",
            "--perftest",
            "ib_send_bw",
            "--both",
        ],
        &["cmtime", "sim:a", "sim:b", "--count", "65536"],
        &["doctor", "--memory-mib", "0"],
        &["record", "sim:a"],
        &["accept"],
        &["stat"],
        &["top", "/a.sock", "--interval", "0"],
        &["metrics", "/a.sock", "--listen", "nowhere"],
        &["explain", "1", "--vendor", "256"],
        &["accept", "sim:a", "--hours", "-1"],
        &["accept", "sim:a", "--hours", "inf"],
        &["sim", "serve"],
        &[
            "sim",
            "serve",
            "--socket",
            "/nonexistent/a",
            "--faults",
            "los=1%",
        ],
        &[
            "sim",
            "serve",
            "--socket",
            "/nonexistent/a",
            "--profile",
            "connectx-99",
        ],
    ];
    for arguments in wrong {
        let output = datctl(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// An error that concerns several options is a usage error, too (exit status 2), and with `--json` the output has the
/// reason.
#[test]
fn options_that_do_not_go_together_are_usage_in_one_line() {
    for (arguments, part) in [
        (
            &["perf", "sim:a", "sim:b", "--batch", "17"][..],
            "a batch of 17 is more than a depth of 16",
        ),
        (
            &["perf", "sim:a", "sim:b", "--inline"],
            "--inline is of Sends: with --operation send",
        ),
        (
            &[
                "perf",
                "sim:a",
                "sim:b",
                "--measure",
                "bandwidth",
                "--histogram",
            ],
            "histograms are of latencies",
        ),
        (
            &[
                "perf",
                "sim:a",
                "--connect",
                "fe80::1",
                "--perftest",
                "ib_send_bw",
                "--duration",
                "1s",
            ],
            "both ends count what ib_send_bw measures: --count as its -n",
        ),
        (
            &[
                "perf",
                "sim:a",
                "--connect",
                "fe80::1",
                "--perftest",
                "ib_read_bw",
                "--bytes",
                "64,128",
            ],
            "ib_read_bw measures one size: --bytes is to be its -s",
        ),
        (
            &[
                "perf",
                "sim:a",
                "--connect",
                "fe80::1",
                "--perftest",
                "ib_read_bw",
                "--qualifier",
                "65536",
            ],
            "perftest listens at a port: --qualifier is to be its -p, up to 65535",
        ),
        (&["ping", "sim:a", "sim:a"], "both ends are sim:a"),
        (&["accept", "sim:a", "sim:a"], "sim:a is named twice"),
    ] {
        let output = datctl(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(
            error.starts_with("datctl: ") && error.contains(part),
            "{error}"
        );
        let (code, value) = json(arguments);
        assert_eq!(code, Some(2));
        assert!(value["error"].as_str().is_some_and(|it| it.contains(part)));
    }
}

#[test]
fn what_can_be_done_about_a_peer_of_another_network_is_said_once() {
    let output = datctl(&["ping", "sim:a", "--connect", "1.2.3.4"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).expect("text"),
        "datctl: 1.2.3.4 is not reached from fe80::5eff:fe10:1/64: `,address=IP/PREFIX` behind the adapter's name, or \
         --address IP, gives it an address of the peer's network\n"
    );
}

#[test]
fn the_usage_line_names_arguments_in_the_order_in_which_they_work() {
    for (command, other) in [
        ("ping", "<PEER|--listen|--connect <IP>>"),
        ("perf", "<PEER|--listen|--connect <IP>>"),
        ("cmtime", "<PEER|--listen|--connect <IP>>"),
        ("rping", "<--listen|--connect <IP>>"),
    ] {
        let text = datctl(&[command, "--help"]).stdout;
        let text = String::from_utf8(text).expect("text");
        let usage = format!("Usage: datctl {command} [OPTIONS] <NAME> {other}\n");
        assert!(text.contains(&usage), "{text}");
    }
}

/// The error for an invalid value says which values are valid. The error for a missing option names all that are
/// possible.
#[test]
fn a_value_is_refused_with_what_would_be_one() {
    for (arguments, part) in [
        (&["perf", "sim:a"][..], "<PEER|--listen|--connect <IP>>"),
        (&["rping", "sim:a"], "<--listen|--connect <IP>>"),
        (&["sim", "serve"], "<--socket <PATH>|--card <PATH>>"),
        (
            &["perf", "sim:a", "sim:b", "--bytes", "3Q"],
            "\"3Q\" is no size from 1 to 1G, such as 64, 4k or 1M",
        ),
        (
            &["ping", "sim:a", "sim:b", "--bytes", "-5"],
            "\"-5\" is no size",
        ),
        (
            &["perf", "sim:a", "sim:b", "--count", "x"],
            "\"x\" is no whole number from 1 to",
        ),
        (
            &["perf", "sim:a", "sim:b", "--duration", "0s"],
            "\"0s\" is no time to measure anything in",
        ),
        (
            &["perf", "sim:a", "--connect", "fe80::1%eth0"],
            "has a scope, which an adapter does not need: fe80::1",
        ),
        (
            &["top", "/a", "--interval", "0"],
            "no number of seconds from 0.01",
        ),
        (
            &["metrics", "/a", "--listen", "127.0.0.1"],
            "no address with a port, such as 127.0.0.1:9401",
        ),
    ] {
        let output = datctl(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_fails_says_why_in_one_line_with_the_name_and_the_number() {
    for (arguments, part) in [
        (&["info", "eth0"][..], "no adapter is called \"eth0\""),
        (
            &["info", "sim:a,recorder"],
            "sim:a,recorder: \"recorder\" is not of the form recorder=on|off|FOLDER",
        ),
        (
            &["info", "sim:a,adress=192.0.2.1"],
            "\"adress\" is no option; there are address=IP[/PREFIX]; gateway=IP",
        ),
        (
            &["info", "sim:card/vf"],
            "names are sim:NAME, sim:CARD/pf, sim:CARD/vf0 to sim:CARD/vf7",
        ),
        (
            &["info", "vfio-user:/nonexistent/a"],
            "vfio-user:/nonexistent/a: no server there: `datctl sim serve --socket /nonexistent/a` starts one",
        ),
        (&["info", "ff:1f.7"], "0000:ff:1f.7: no such PCI"),
        (
            &["info", "sim:a,vlan=3"],
            "\"vlan=3\" is not of the form vlan=1..4094, behind address=IP",
        ),
        (
            &["info", "sim:a,mac=03:00:00:00:00:01"],
            "is not of the form mac=MAC of one station",
        ),
        (
            &[
                "info",
                "sim:a,mac=02:00:00:00:00:01,link=unix:/nonexistent/w",
            ],
            "sim:a: link /nonexistent/w: the folder /nonexistent is not there",
        ),
        (
            &["info", "sim:a,profile=/nonexistent/p"],
            "sim:a: profile /nonexistent/p: No such file",
        ),
        (
            &[
                "perf",
                "sim:a",
                "sim:b",
                "--svg",
                "/nonexistent/x",
                "--count",
                "1",
            ],
            "/nonexistent/x: No such file",
        ),
        (
            &["record", "sim:a", "/nonexistent/x"],
            "/nonexistent/x: No such file",
        ),
        (&["decode", "/dev/null"], "/dev/null: not a regular file"),
        (
            &["stat", "/nonexistent/s"],
            "no process has an adapter open with control=",
        ),
        (
            &["perf", "sim:a", "sim:b", "--depth", "100000"],
            "a depth of 100000; the adapter can do",
        ),
        (
            &["sim", "serve", "--socket", "/nonexistent/a"],
            "the folder /nonexistent is not there",
        ),
    ] {
        let output = datctl(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(
            error.starts_with("datctl: ") && error.contains(part),
            "{error}"
        );
        let parts: Vec<&str> = error.splitn(4, ": ").collect();
        let said = parts.get(2).is_none_or(|rest| !rest.contains(parts[1]));
        assert!(said, "a name twice: {error}");
        let (code, value) = json(arguments);
        assert_eq!(code, Some(1));
        assert!(
            value["error"]
                .as_str()
                .is_some_and(|error| error.contains(part)),
            "{value}"
        );
    }
}

#[test]
fn a_fault_of_a_socket_that_is_not_there_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("a").display().to_string();
    let output = datctl(&[
        "sim",
        "serve",
        "--socket",
        &socket,
        "--faults",
        "3:removal@1s",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.contains("there is no socket 3"), "{error}");
}

#[test]
fn every_profile_is_listed_and_can_be_opened_by_its_name() {
    let (_, listed) = json(&["sim", "profiles"]);
    let profiles = listed["profiles"].as_array().expect("a list").clone();
    assert!(profiles.iter().any(|known| known["name"] == "connectx-5"));
    for known in profiles {
        let name = known["name"].as_str().expect("a name");
        let (_, info) = json(&["info", &format!("sim:a,profile={name}")]);
        if known["link"] == "ethernet" {
            assert_eq!(info["firmware"], known["firmware"], "{name}");
        } else {
            let error = info["error"].as_str().expect("it cannot be driven");
            assert!(error.contains("port_type: need 1 (Ethernet)"), "{error}");
        }
    }
}

#[test]
fn there_is_a_manual_page_for_every_command_and_nothing_in_it_is_hidden() {
    let folder = tempfile::tempdir().expect("a directory");
    let pages = folder.path().join("man1");
    let (code, written) = json(&["man", &pages.display().to_string()]);
    assert_eq!(code, Some(0), "{written}");
    let names: Vec<&str> = written["pages"]
        .as_array()
        .expect("pages")
        .iter()
        .map(|page| page.as_str().expect("a name"))
        .collect();
    for name in ["datctl.1", "datctl-perf.1", "datctl-sim-serve.1"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for name in names {
        let page = std::fs::read_to_string(pages.join(name)).expect("the page");
        let title = name.trim_end_matches(".1");
        assert!(page.contains(&format!(".TH {title} 1")), "{name}: {page}");
        assert!(
            !page.contains("machine\\-root"),
            "what is for tests is hidden: {name}"
        );
        // The examples of `sim ctl` are those of `simnic ctl`.
        let has = |program| page.contains(&format!(".SH EXAMPLES\n.nf\n  {program} "));
        assert!(has("datctl") || has("simnic ctl"), "{name}: {page}");
    }
    let printed = datctl(&["man"]).stdout;
    let page = std::fs::read(pages.join("datctl.1")).expect("the page");
    assert_eq!(String::from_utf8(printed), String::from_utf8(page));
}

#[test]
fn every_shell_gets_completions_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = datctl(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = String::from_utf8(output.stdout).expect("text");
        for word in ["perf", "doctor", "neighbour"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(datctl(&["completions", "csh"]).status.code(), Some(2));
}

#[test]
fn every_command_says_which_version_it_is_of() {
    let version = concat!(" ", env!("CARGO_PKG_VERSION"));
    for command in [&[][..], &["perf"], &["sim", "serve"]] {
        let output = datctl(&[command, &["--version"]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.trim_end().ends_with(version), "{text}");
    }
}
