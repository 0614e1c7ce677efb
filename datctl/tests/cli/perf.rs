//! `datctl perf` and `cmtime`: measurements, their reports, and their schemas.

use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::served::{Process, Served, datctl, json as run};

/// Collects the violations of a schema of `docs/schemas` by a value. Supports only the keywords of JSON Schema that
/// these schemas use; any other keyword panics, so that none is overlooked.
fn breaches(schema: &Value, root: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let mut wrong = |what: &str| found.push(format!("{at}: {what}: {value}"));
    for (word, says) in schema.as_object().expect("a schema") {
        match word.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "properties" | "items" => {}
            "const" if value != says => wrong("not the constant"),
            "enum" if !says.as_array().expect("values").contains(value) => wrong("none of them"),
            "const" | "enum" => {}
            "type" => {
                let is = match says.as_str().expect("a type") {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_u64(),
                    "number" => value.is_number(),
                    other => panic!("type {other}"),
                };
                if !is {
                    wrong("another type");
                }
            }
            "minimum" if value.as_f64() < says.as_f64() => wrong("less"),
            "maximum" if value.as_f64() > says.as_f64() => wrong("more"),
            "minimum" | "maximum" => {}
            "required" => {
                for name in says.as_array().expect("names") {
                    if value.get(name.as_str().expect("a name")).is_none() {
                        wrong(&format!("no {name}"));
                    }
                }
            }
            "additionalProperties" => {
                for name in value.as_object().into_iter().flat_map(|it| it.keys()) {
                    if schema["properties"].get(name).is_none() {
                        wrong(&format!("{name} is not described"));
                    }
                }
            }
            "anyOf" => {
                let fits = says.as_array().expect("schemas").iter().any(|one| {
                    let mut wrong = Vec::new();
                    breaches(one, root, value, at, &mut wrong);
                    wrong.is_empty()
                });
                if !fits {
                    wrong("fits none");
                }
            }
            "$ref" => {
                let path = says.as_str().expect("a place").trim_start_matches('#');
                let one = root.pointer(path).expect("it is there");
                breaches(one, root, value, at, found);
                return;
            }
            other => panic!("{other} is not known here"),
        }
    }
    for (name, one) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            breaches(one, root, value, &format!("{at}/{name}"), found);
        }
    }
    if let (Some(one), Some(values)) = (schema.get("items"), value.as_array()) {
        for (number, value) in values.iter().enumerate() {
            breaches(one, root, value, &format!("{at}/{number}"), found);
        }
    }
}

/// Checks that the figures match their schema.
fn as_documented(figures: &Value) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas/perf-1.json");
    let text = std::fs::read_to_string(path).expect("the schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let check = |figures: &Value| {
        let mut found = Vec::new();
        breaches(&schema, &schema, figures, "", &mut found);
        found
    };
    assert_eq!(check(figures), Vec::<String>::new());
    let mut other = figures.clone();
    other["schema"] = json!("datctl-perf-2");
    other["rows"][0]["bytes"] = json!(0);
    other["more"] = json!(1);
    assert_eq!(check(&other).len(), 3, "the schema refuses what it should");
}

#[test]
fn the_json_of_perf_is_what_its_schema_says() {
    let few = [
        "perf", "sim:a", "sim:b", "--bytes", "64,4k", "--count", "20",
    ];
    let (code, figures) = run(&few);
    assert_eq!(code, Some(0), "{figures}");
    as_documented(&figures);
    for row in figures["rows"].as_array().expect("rows") {
        let bars = row["latency"]["histogram"].as_array().expect("bars");
        let counted: u64 = bars.iter().filter_map(|bar| bar["count"].as_u64()).sum();
        assert_eq!(counted, 20, "{row}");
        assert_eq!(bars.last().expect("one")["percentile"], json!(100.0));
    }
    let most = [
        &few[..],
        &["--both", "--endpoints", "3", "--depth", "8", "--batch", "4"],
    ]
    .concat();
    let (code, figures) = run(&most);
    assert_eq!(code, Some(0), "{figures}");
    as_documented(&figures);
    for row in figures["rows"].as_array().expect("rows") {
        let bandwidth = &row["bandwidth"];
        assert_eq!(bandwidth["operations"], json!(20), "{row}");
        let back = bandwidth["reverse_bytes_per_second"].as_f64();
        assert!(back.is_some_and(|rate| rate > 0.0), "{row}");
    }
}

#[test]
fn a_measurement_takes_as_long_as_it_was_told_to() {
    let (code, figures) = run(&[
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "write",
        "--bytes",
        "64",
        "--duration",
        "30ms",
        "--warm-up",
        "5ms",
    ]);
    assert_eq!(code, Some(0), "{figures}");
    let bandwidth = &figures["rows"][0]["bandwidth"];
    let seconds = bandwidth["seconds"].as_f64().expect("a time");
    assert!(seconds >= 0.03, "{figures}");
}

#[test]
fn several_connections_in_two_processes_both_ways() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("perf");
    let (code, figures) = run(&[
        "perf",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "40",
        "--bytes",
        "64,5000",
        "--endpoints",
        "4",
        "--both",
        "--warm-up",
        "0",
    ]);
    assert_eq!(code, Some(0), "{figures}");
    as_documented(&figures);
    assert_eq!(figures["peer_simulated"], json!(true));
    assert_eq!(listener.line(), "answered 80 messages");
    assert_eq!(listener.status(), Some(0));
}

#[test]
fn short_sends_go_into_the_queue_itself_and_long_ones_are_told_how_long_they_may_be() {
    let sends = [
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "send",
        "--inline",
        "--count",
        "5",
    ];
    let (code, figures) = run(&[&sends[..], &["--bytes", "8"]].concat());
    assert_eq!(code, Some(0), "{figures}");
    assert_eq!(figures["inline"], json!(true));
    let (code, figures) = run(&[&sends[..], &["--bytes", "64K"]].concat());
    assert_eq!(code, Some(1));
    let error = figures["error"].as_str().expect("an error");
    assert!(error.contains("--inline: at most "), "{error}");
}

#[test]
fn histograms_are_shown_written_and_drawn() {
    let folder = tempfile::tempdir().expect("a directory");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (csv, svg) = (place("h.csv"), place("h.svg"));
    let output = datctl(&[
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "write,read",
        "--measure",
        "latency",
        "--bytes",
        "64",
        "--count",
        "50",
        "--histogram",
        "--csv",
        &csv,
        "--svg",
        &svg,
    ]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains("\nwrite of 64 B\n  up to ") && text.contains("100.00% #"),
        "{text}"
    );
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).expect("a file");
    let lines = read(&csv);
    let mut lines = lines.lines();
    assert_eq!(
        lines.next(),
        Some("operation,bytes,up_to_us,count,percentile")
    );
    let counted: u64 = lines
        .map(|line| line.split(',').nth(3).expect("a count"))
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(counted, 100);
    let drawn = read(&svg);
    for part in [
        "<svg",
        "write of 64 B",
        "read of 64 B",
        "99.99 %",
        "logarithmic axis",
        "nothing of a card",
    ] {
        assert!(drawn.contains(part), "{part}");
    }
}

/// The files are complete even if the reader closes the output early.
#[test]
fn files_are_written_before_anything_is_printed() {
    let folder = tempfile::tempdir().expect("a directory");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (csv, svg) = (place("h.csv"), place("h.svg"));
    let short = [
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "write",
        "--measure",
        "latency",
    ];
    let files = [
        "--bytes", "64", "--count", "50", "--csv", &csv, "--svg", &svg,
    ];
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // The pipe is closed before datctl first writes to it.
    drop(reader);
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_datctl"))
        .args(short)
        .args(files)
        .stdout(writer)
        .status()
        .expect("datctl runs");
    assert!(status.success(), "{status}");
    let read = |path: &str| std::fs::read_to_string(path).expect("a file");
    assert!(read(&csv).lines().count() > 1, "{}", read(&csv));
    assert!(read(&svg).ends_with("</svg>\n"), "{}", read(&svg));
}

#[test]
fn ctrl_c_shows_what_was_measured_until_then() {
    let mut process = Process::start(&[
        "--json",
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "write",
        "--measure",
        "latency",
        "--bytes",
        "64",
        "--duration",
        "1000s",
        "--warm-up",
        "0",
        "--histogram",
    ]);
    // datctl blocks the signals before it starts the thread `signals`. Before that, Ctrl-C would end the process
    // without figures.
    process.wait_for_thread("signals");
    process.signal(Signal::SIGINT);
    let figures: Value = serde_json::from_str(&process.line()).expect("an object");
    assert_eq!(process.status(), Some(1));
    assert_eq!(figures["complete"], json!(false));
    assert_eq!(
        figures["rows"].as_array().map(Vec::len),
        Some(usize::from(figures["rows"] != json!([])))
    );
}

#[test]
fn connections_are_made_and_ended_step_by_step() {
    for at_once in ["1", "5"] {
        let (code, times) = run(&[
            "cmtime",
            "sim:a",
            "sim:b",
            "--count",
            "12",
            "--at-once",
            at_once,
        ]);
        assert_eq!(code, Some(0), "{times}");
        assert_eq!(
            (&times["connections"], &times["complete"]),
            (&json!(12), &json!(true))
        );
        let steps = times["steps"].as_array().expect("steps");
        let names: Vec<&str> = steps.iter().filter_map(|it| it["step"].as_str()).collect();
        assert_eq!(names, ["create", "connect", "disconnect", "free"]);
        for step in steps {
            for figure in [
                "total_ms",
                "per_second",
                "min_us",
                "median_us",
                "p99_us",
                "max_us",
            ] {
                assert!(step[figure].as_f64().is_some_and(|it| it > 0.0), "{step}");
            }
        }
    }
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("cmtime");
    let output = datctl(&[
        "cmtime",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "6",
        "--at-once",
        "3",
    ]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("6 connections, 3 at once") && text.contains("nothing of a card"),
        "{text}"
    );
    assert_eq!(listener.line(), "answered 0 messages");
    assert_eq!(listener.status(), Some(0));
}
