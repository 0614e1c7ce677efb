//! The screens of a process with traffic: `docs/pictures`.
//!
//! The process is a `datctl perf` over two functions that another process serves, on the machine's clock; the screens
//! are the output of `datctl` commands. With `PICTURES=write` in the environment the test draws them into
//! `docs/pictures`. Otherwise it checks the existing pictures: for each of their lines, one line of the screen must
//! have the same words. Figures may differ.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::served::{Process, Served, datctl};

/// Largest numbers of columns and lines of a screen.
const COLUMNS: usize = 150;
const LINES: usize = 44;
/// Width of a character and height of a line, in pixels.
const LETTER: f64 = 7.83;
const LINE: usize = 17;

fn picture(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures");
    PathBuf::from(folder).join(format!("{name}.svg"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// Draws a screen: the command with a prompt, and its output.
fn drawn(command: &str, screen: &[&str]) -> String {
    let prompt = format!("$ {command}");
    let lines: Vec<&str> = [prompt.as_str()]
        .into_iter()
        .chain(screen.iter().copied())
        .collect();
    let columns = lines
        .iter()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0);
    // CAST: there are some hundred columns at most.
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let width = columns as f64 * LETTER + 24.0;
    let height = lines.len() * LINE + 24;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" font-family=\"DejaVu Sans Mono, monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1b1f24\"/>\n"
    );
    for (at, line) in lines.iter().enumerate() {
        let (y, colour) = (at * LINE + 24, if at == 0 { "#7ee787" } else { "#e6edf3" });
        let line = escaped(line);
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{y}\" fill=\"{colour}\" xml:space=\"preserve\">{line}</text>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the words of a line, without figures and times.
fn words(line: &str) -> BTreeSet<String> {
    let words = line.split(|letter: char| !letter.is_ascii_alphabetic() && letter != '_');
    // Short words may be units or parts of a number.
    let words = words.filter(|word| word.len() > 3);
    words.map(str::to_owned).collect()
}

/// Returns the lines of a picture except the command.
fn lines_of(svg: &str) -> Vec<String> {
    let texts = svg
        .lines()
        .filter_map(|line| line.split_once("preserve\">"));
    let texts = texts.filter_map(|(_, text)| text.strip_suffix("</text>"));
    texts.skip(1).map(unescaped).collect()
}

/// Compares a screen with its picture, after drawing the picture if `PICTURES=write` is set.
fn show(name: &str, command: &str, output: &str) {
    let screen: Vec<&str> = output.lines().take(LINES).collect();
    let longest = screen.iter().map(|line| line.chars().count()).max();
    assert!(longest <= Some(COLUMNS), "{command} is too wide: {output}");
    if std::env::var_os("PICTURES").is_some_and(|value| value == "write") {
        std::fs::write(picture(name), drawn(command, &screen)).expect("docs/pictures");
    }
    let svg = std::fs::read_to_string(picture(name)).expect("a picture");
    let now: Vec<BTreeSet<String>> = output.lines().map(words).collect();
    // A request may or may not be outstanding at this time, and counters that are 0 are not shown.
    let lines = lines_of(&svg).into_iter();
    for line in lines.filter(|line| !line.contains("_outstanding ")) {
        let then = words(&line);
        assert!(
            now.iter().any(|line| then.is_subset(line)),
            "{command} has no line like {line:?} of {}; PICTURES=write draws it anew:\n{output}",
            picture(name).display()
        );
    }
}

#[test]
fn the_screens_over_a_process_with_traffic_are_those_of_the_pictures() {
    let steer = tempfile::tempdir().expect("a directory");
    let path = |name: &str| steer.path().join(name).display().to_string();
    let (control, steered) = (path("control"), path("steer"));
    let served = Served::new(&["--steer", &steered]);
    let traffic = [
        "perf",
        &format!("{},control={control}", served.name("a")),
        &served.name("b"),
        "--operation",
        "send",
        "--measure",
        "latency",
        "--bytes",
        "64",
        "--count",
        "100000000",
    ];
    let _traffic = Process::start(&traffic);
    let run = |command: &str| {
        let mut words = command.split(' ');
        let arguments: Vec<&str> = words
            .by_ref()
            .map(|word| if word == "SOCKET" { &control } else { word })
            .collect();
        let output = datctl(&arguments);
        let said = String::from_utf8(output.stdout).expect("text");
        let said = said.replace(&served.name("a"), "vfio-user:/run/nic.sock");
        output.status.success().then_some(said)
    };
    // The adapter is open and connected once there is an endpoint that sends.
    let sends = |said: &str| {
        let said: Value = serde_json::from_str(said).expect("JSON");
        let requests = &said["instances"][0]["endpoints"][0]["counters"]["requests"];
        requests.as_u64() > Some(100)
    };
    let until = Instant::now() + Duration::from_secs(300);
    while !run("resource SOCKET --json").is_some_and(|said| sends(&said)) {
        assert!(until > Instant::now(), "it does not connect");
    }
    let top = run("top SOCKET --count 2 --interval 1").expect("it answers");
    let (_, second) = top.split_once("\n\n").expect("two screens");
    show("top", "datctl top /run/target/4711.sock", second);
    let resource = run("resource SOCKET").expect("it answers");
    show(
        "resource",
        "datctl resource /run/target/4711.sock",
        &resource,
    );
    let stat = run("stat SOCKET").expect("it answers");
    show("stat", "datctl stat /run/target/4711.sock", &stat);
    let metrics = run("metrics SOCKET").expect("it answers");
    let own: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("udapl_instance") && !line.contains("_bucket"))
        .collect();
    let command = "datctl metrics /run/target/4711.sock | grep ^udapl_instance | grep -v _bucket";
    show("metrics", command, &own.join("\n"));

    let mut monitor = Process::start(&["monitor", &control]);
    // The monitor has subscribed once it reports something, so the link goes down and up until then. The pauses leave
    // time to resend a lost packet; otherwise the connection breaks.
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for words in ["the port is down", "the port is up"] {
            let line = loop {
                let line = monitor.line();
                if line.is_empty() || line.contains(words) {
                    break line;
                }
            };
            if line.is_empty() || told.send(line).is_err() {
                return;
            }
        }
    });
    let mut heard = Vec::new();
    for _ in 0..20 {
        for event in ["link-down", "link-up"] {
            datctl(&["sim", "ctl", &steered, "function", event]);
        }
        while heard.len() < 2
            && let Ok(line) = hears.recv_timeout(Duration::from_secs(2))
        {
            heard.push(line);
        }
        if heard.len() == 2 {
            break;
        }
    }
    assert_eq!(heard.len(), 2, "{heard:?}");
    show(
        "monitor",
        "datctl monitor /run/target/4711.sock",
        &heard.join("\n"),
    );
}
