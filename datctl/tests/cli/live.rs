//! `datctl resource`, `stat`, `top`, `monitor`, `recorder`, `metrics`: the commands inspect this test's process from
//! outside. Also `datctl explain`, and `datctl sim ctl` with a `datctl sim serve`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Output;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DtoCookie, EpEvds, EpHandle, EvdFlags,
    EvdHandle, Event, Ia, OpenOptions, PspFlags, Qos, Timeout,
};

use crate::served::{Process, datctl, json};

const QUALIFIER: ConnQual = ConnQual(0x1_0000_4401);
const LONG: Timeout = Timeout::from_micros(300_000_000);

/// Two instances of one adapter with a control socket, connected with each other.
struct Watched {
    socket: PathBuf,
    ias: [Ia; 2],
    eps: [EpHandle; 2],
    evds: [EvdHandle; 2],
    _directory: TempDir,
}

/// Waits for the next event of an EVD, while both instances make progress.
fn event(ias: &mut [Ia; 2], side: usize, evd: EvdHandle) -> Event {
    loop {
        ias.iter_mut().for_each(Ia::progress);
        if let Some(event) = ias[side].evd_dequeue(evd).expect("an EVD") {
            return event;
        }
    }
}

impl Watched {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("{pid}.sock");
        let options = OpenOptions::default().control(&socket);
        let socket = directory
            .path()
            .join(format!("{}.sock", std::process::id()));
        let one = udapl::ia_open(name, &options).expect("an adapter");
        let other = udapl::Adapter::of(&one).instance(udapl::adapter::IaConfig::default());
        let mut ias = [one, other.expect("an instance")];
        let evds = [0, 1].map(|side: usize| {
            let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
            ias[side].evd_create(64, flags).expect("an EVD")
        });
        let eps = [0, 1].map(|side: usize| {
            let pz = ias[side].pz_create().expect("a PZ");
            let made = ias[side].ep_create(Some(pz), EpEvds::all(evds[side]), None);
            made.expect("an endpoint")
        });
        let listens = ias[1].psp_create(QUALIFIER, evds[1], PspFlags::CONSUMER);
        listens.expect("a service point");
        let mut watched = Self {
            socket,
            ias,
            eps,
            evds,
            _directory: directory,
        };
        watched.connect();
        watched
    }

    fn connect(&mut self) {
        let Self { ias, eps, evds, .. } = self;
        let address = ias[1].query().ia.ia_address;
        let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        let asked = ias[0].ep_connect(eps[0], address, QUALIFIER, LONG, b"", best, none);
        asked.expect("it starts");
        let Event::ConnectionRequest(request) = event(ias, 1, evds[1]) else {
            panic!("no request");
        };
        let accepted = ias[1].cr_accept(request.cr, Some(eps[1]), b"");
        accepted.expect("accepted");
        for side in [0, 1] {
            let told = event(ias, side, evds[side]);
            assert!(matches!(told, Event::Connection(_)), "{told:?}");
        }
    }

    /// Sends an empty message, and waits for both completions.
    fn send(&mut self) {
        let Self { ias, eps, evds, .. } = self;
        let (cookie, none) = (DtoCookie(1), CompletionFlags::empty());
        let nothing: [udapl::memory::LmrTriplet; 0] = [];
        let posted = ias[1].ep_post_recv(eps[1], &nothing, cookie, none);
        posted.expect("a receive");
        let posted = ias[0].ep_post_send(eps[0], &nothing, cookie, none);
        posted.expect("a Send");
        for side in [0, 1] {
            event(ias, side, evds[side]);
        }
    }

    /// Runs a command in another thread, while the instances make progress.
    fn while_running<T: Send>(&mut self, command: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let running = scope.spawn(command);
            while !running.is_finished() {
                self.ias.iter_mut().for_each(Ia::progress);
            }
            running.join().expect("it ends")
        })
    }

    fn run(&mut self, arguments: &[&str]) -> Output {
        let socket = self.socket.display().to_string();
        self.while_running(|| {
            let [command, rest @ ..] = arguments else {
                panic!("no command");
            };
            datctl(&[&[*command, &socket], rest].concat())
        })
    }

    fn json(&mut self, command: &str) -> Value {
        let output = self.run(&[command, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

#[test]
fn the_objects_of_a_process_are_seen_with_their_peers() {
    let mut watched = Watched::new("sim:live-resource");
    watched.send();
    let shown = watched.json("resource");
    assert_eq!(shown["adapter"], "sim:live-resource");
    let instances = shown["instances"].as_array().expect("instances");
    assert_eq!(
        (instances.len(), &shown["silent"]),
        (2, &Value::Array(vec![]))
    );
    let [one, other] = instances.as_slice() else {
        panic!("{shown}");
    };
    let ep = &one["endpoints"][0];
    assert_eq!(
        (&ep["state"], &ep["counters"]["requests"]),
        (&"Connected".into(), &1.into())
    );
    assert_eq!(ep["peer"], watched.ias[1].query().ia.ia_address.to_string());
    assert_eq!(other["listeners"][0], QUALIFIER.0);
    assert_eq!(other["endpoints"][0]["counters"]["recvs"], 1);
    let human = String::from_utf8(watched.run(&["resource"]).stdout).expect("text");
    assert!(
        human.contains("Connected") && human.contains("listens at 0x100004401"),
        "{human}"
    );
}

#[test]
fn an_instance_whose_thread_makes_no_call_is_silent_and_holds_up_nobody() {
    let watched = Watched::new("sim:live-silent");
    let socket = watched.socket.display().to_string();
    let (code, stat) = json(&["stat", &socket]);
    assert_eq!(code, Some(0), "{stat}");
    assert_eq!(stat["silent"].as_array().map(Vec::len), Some(2), "{stat}");
    // Counters that need no instance are reported all the same.
    assert_eq!(stat["groups"]["connections"]["established"], 2);
}

#[test]
fn what_a_process_counts_is_read_from_outside() {
    let mut watched = Watched::new("sim:live-stat");
    (0..5).for_each(|_| watched.send());
    let stat = watched.json("stat");
    assert_eq!(stat["instances"][0]["counters"]["requests"], 5);
    assert_eq!(stat["instances"][1]["counters"]["recvs"], 5);
    assert!(stat["groups"]["commands"]["create_qp_answered"].as_u64() >= Some(2));
    let human = String::from_utf8(watched.run(&["stat", "--all"]).stdout).expect("text");
    assert!(human.contains("create_qp_answered"), "{human}");
    let human = String::from_utf8(watched.run(&["stat"]).stdout).expect("text");
    assert!(!human.contains("create_qp_answered"), "{human}");
    let commands = human.lines().find(|line| line.contains("commands"));
    let words: Vec<&str> = commands.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words[..2], ["commands", "answered"], "{human}");
    assert!(human.ends_with(" more with --all\n"), "{human}");
}

#[test]
fn top_shows_rates_screen_by_screen() {
    let mut watched = Watched::new("sim:live-top");
    watched.send();
    let output = watched.run(&["top", "--count", "2", "--interval", "0.05", "--json"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let screens: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(screens.len(), 2, "{text}");
    assert_eq!(screens[1]["endpoints"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        screens[1]["endpoints"][0]["requests"], 0.0,
        "nothing was posted"
    );
    assert_eq!(screens[1]["endpoints"][0]["completion"], Value::Null);
    let human = watched.run(&["top", "--count", "1", "--interval", "0.05"]);
    let human = String::from_utf8(human.stdout).expect("text");
    assert!(
        human.contains("no packet lost, repeated or refused"),
        "{human}"
    );
}

/// Sends messages while a command runs. Returns the output of the command.
fn with_traffic(watched: &mut Watched, arguments: &[&str]) -> String {
    let socket = watched.socket.display().to_string();
    let [command, rest @ ..] = arguments else {
        panic!("no command");
    };
    let arguments = [&[*command, &socket], rest].concat();
    let output = thread::scope(|scope| {
        let running = scope.spawn(|| datctl(&arguments));
        while !running.is_finished() {
            watched.send();
            watched.ias.iter_mut().for_each(Ia::progress);
        }
        running.join().expect("it ends")
    });
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn how_long_requests_take_is_measured_while_somebody_looks() {
    let mut watched = Watched::new("sim:live-latency");
    let text = with_traffic(
        &mut watched,
        &["top", "--count", "2", "--interval", "0.2", "--json"],
    );
    let last = text.lines().last().expect("a screen");
    let screen: Value = serde_json::from_str(last).expect("JSON");
    let endpoints = screen["endpoints"].as_array().expect("endpoints");
    let sends = endpoints.iter().find(|one| !one["completion"].is_null());
    let took = &sends.expect("one that is timed")["completion"];
    assert!(took["samples"].as_u64() > Some(0), "{screen}");
    assert!(took["p50"].as_u64() <= took["p99"].as_u64(), "{screen}");
    let stat = watched.json("stat");
    let kept = &stat["instances"][0]["latency"]["completion"];
    assert!(kept["count"].as_u64() >= took["samples"].as_u64(), "{stat}");
    let once = watched.run(&["metrics"]);
    let once = String::from_utf8(once.stdout).expect("text");
    let name = "# TYPE udapl_instance_completion_latency_seconds histogram\n";
    assert!(once.contains(name), "{once}");
    // No client requests measurements any more.
    (0..10).for_each(|_| watched.send());
    let later = watched.json("stat");
    assert_eq!(&later["instances"][0]["latency"]["completion"], kept);
}

#[test]
fn monitor_tells_of_connections_and_why_they_end() {
    let mut watched = Watched::new("sim:live-monitor");
    let socket = watched.socket.display().to_string();
    let mut monitor = watched.while_running(|| {
        let monitor = Process::start(&["monitor", &socket, "--count", "2"]);
        // The loop waits until the socket answers.
        while json(&["stat", &socket]).0 != Some(0) {}
        monitor
    });
    // Connections are ended and made until the monitor reports them, because its subscription cannot be seen from here.
    let heard = thread::scope(|scope| {
        let hearing = scope.spawn(|| [monitor.line(), monitor.line()]);
        while !hearing.is_finished() {
            let ep = watched.eps[0];
            let ended = watched.ias[0].ep_disconnect(ep, CloseFlags::Abrupt);
            ended.expect("it ends");
            for side in [0, 1] {
                event(&mut watched.ias, side, watched.evds[side]);
                let reset = watched.ias[side].ep_reset(watched.eps[side]);
                reset.expect("it is over");
            }
            watched.connect();
        }
        hearing.join().expect("two lines")
    });
    for line in &heard {
        assert!(
            line.contains(" connection ") && line.contains(" ep 0 "),
            "{line}"
        );
        let ends = line.contains("Disconnected");
        assert_eq!(ends, line.contains("has disconnected"), "{line}");
    }
}

#[test]
fn what_instances_did_last_is_told_where_they_record() {
    let mut watched = Watched::new("sim:live-recorder");
    watched.ias[0].recorder_start();
    watched.send();
    let told = watched.json("recorder");
    let [one, other] = told["instances"].as_array().expect("instances").as_slice() else {
        panic!("{told}");
    };
    assert_eq!(
        (&one["records"], &other["records"]),
        (&true.into(), &false.into())
    );
    let events = one["events"].as_array().expect("events");
    let has = |what: &str| {
        events
            .iter()
            .any(|event| event.as_str().is_some_and(|event| event.contains(what)))
    };
    assert!(
        has("Send posted") && has("request done, DAT_DTO_SUCCESS"),
        "{told}"
    );
    let last = watched.run(&["recorder", "--events", "1"]);
    let last = String::from_utf8(last.stdout).expect("text");
    assert!(
        last.contains("1 event, 1 before;") && last.contains("does not record"),
        "{last}"
    );
}

#[test]
fn what_was_recorded_is_written_to_a_file_that_decode_reads() {
    let mut watched = Watched::new("sim:live-recorder-file");
    watched.ias.iter_mut().for_each(Ia::recorder_start);
    let ended = watched.ias[0].ep_disconnect(watched.eps[0], CloseFlags::Abrupt);
    ended.expect("it ends");
    for side in [0, 1] {
        event(&mut watched.ias, side, watched.evds[side]);
        let reset = watched.ias[side].ep_reset(watched.eps[side]);
        reset.expect("it is over");
    }
    watched.connect();
    watched.send();
    let path = watched.socket.with_file_name("kept.pcapng");
    let file = path.display().to_string();
    let written = watched.run(&["recorder", "--pcapng", &file]);
    assert!(written.status.success(), "{written:?}");
    let told = String::from_utf8(written.stdout).expect("text");
    assert!(
        told.contains("the function: ") && told.contains("datagram sent: REQ of queue pair"),
        "{told}"
    );
    let again = watched.run(&["recorder", "--pcapng", &file]);
    assert_eq!(again.status.code(), Some(1), "a file is not written over");

    let (code, listed) = json(&["decode", &file]);
    assert_eq!(code, Some(0), "{listed}");
    // For each end the file has two connections: the one that had ended, and the next one.
    let connections = listed["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 4, "{listed}");
    let qpn = connections[1]["queue_pair"].to_string();
    let (code, one) = json(&["decode", &file, "--qp", &qpn]);
    assert_eq!(code, Some(0), "{one}");
    // The file has both ends, so `decode` finds the peer's end without `--peer`.
    assert_eq!(one["both"], true, "{one}");
    let steps = one["steps"].as_array().expect("steps");
    let has = |side: &str, kind: &str| {
        let mut steps = steps.iter();
        steps.any(|step| step["side"] == side && step["kind"] == kind)
    };
    for (side, kind) in [
        ("here", "sent"),
        ("here", "done"),
        ("peer", "received"),
        ("peer", "done_receive"),
    ] {
        assert!(has(side, kind), "{side} {kind}: {one}");
    }
    let nowhere = datctl(&["decode", &file, "--connection", "5"]);
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn a_file_that_no_recorder_wrote_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("other");
    for bytes in [
        &b""[..],
        b"not a capture",
        &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0],
    ] {
        std::fs::write(&file, bytes).expect("a file");
        let output = datctl(&["decode", &file.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn metrics_are_text_for_prometheus_once_or_by_http() {
    let mut watched = Watched::new("sim:live-metrics");
    watched.send();
    let once = watched.run(&["metrics"]);
    let once = String::from_utf8(once.stdout).expect("text");
    control::metrics::check(&once).expect("OpenMetrics");
    let requests = "udapl_instance_requests_total{adapter=\"sim:live-metrics\",ia=\"";
    assert!(once.contains(requests), "{once}");
    let socket = watched.socket.display().to_string();
    let scraped = watched.while_running(|| {
        let mut server = Process::start(&["metrics", &socket, "--listen", "127.0.0.1:0"]);
        let url = server.line();
        let address = url
            .trim_start_matches("http://")
            .trim_end_matches("/metrics");
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").expect("it reads");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it answers");
            answer
        };
        let endless = {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let _ = stream.write_all(&[b'x'; 20_000]);
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        [ask("/metrics"), ask("/"), endless]
    });
    assert!(
        scraped[0].starts_with("HTTP/1.1 200 OK\r\n"),
        "{}",
        scraped[0]
    );
    assert!(scraped[0].contains(requests));
    assert!(scraped[1].starts_with("HTTP/1.1 404 "), "{}", scraped[1]);
    assert!(!scraped[2].contains("200"), "{}", scraped[2]);
}

/// Returns the words that are names of our metrics: those that begin with `udapl_`.
fn metrics_in(text: &str) -> Vec<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let mut all: Vec<&str> = words.filter(|word| word.starts_with("udapl_")).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The dashboard and the alert rules use only metrics that exist. With a metric that does not exist they would show
/// nothing, without an error.
#[test]
fn the_dashboard_and_the_rules_name_metrics_that_are_there() {
    let mut watched = Watched::new("sim:live-names");
    let _screens = with_traffic(&mut watched, &["top", "--count", "2", "--interval", "0.1"]);
    let text = watched.run(&["metrics"]);
    let text = String::from_utf8(text.stdout).expect("text");
    // Metrics with a label for status or reason appear only when they first count.
    const LATER: [&str; 5] = [
        "udapl_instance_requests_ended_total",
        "udapl_instance_recvs_ended_total",
        "udapl_connections_refused_by_us_total",
        "udapl_connections_refused_by_peers_total",
        // In virtual time a process need not sleep while it is measured. Another test checks the text of this metric.
        "udapl_instance_wakeup_latency_seconds_bucket",
    ];
    let there = |name: &str| {
        let is_sample = |line: &str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('{'))
        };
        text.lines().any(is_sample) || LATER.contains(&name)
    };
    let dashboard = include_str!("../../../docs/grafana.json");
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    assert!(dashboard["title"].is_string() && dashboard["schemaVersion"].is_u64());
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut expressions = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(
            panel["title"].is_string() && panel["gridPos"].is_object(),
            "{panel}"
        );
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            expressions.push(target["expr"].as_str().expect("an expression").to_owned());
        }
    }
    let rules = include_str!("../../../docs/alerts.yml");
    let rules = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr:"));
    expressions.extend(rules.map(str::to_owned));
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in &expressions {
        let names = metrics_in(expression);
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(there(name), "{name} of {expression} is not among\n{text}");
        }
    }
}

#[test]
fn a_socket_that_nobody_serves_is_said_and_so_is_one_of_something_else() {
    for path in ["/nonexistent/a.sock", "/dev/null"] {
        let output = datctl(&["stat", path]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(said.starts_with(&format!("datctl: {path}: ")), "{said}");
    }
}

/// A subject that reports the methods of nvmeofd.
struct Target(
    #[expect(dead_code, reason = "serving ends when the last Notifier is dropped")]
    control::Notifier,
);

impl control::Subject for Target {
    fn call(&mut self, _: &str, _: &Value) -> Result<Value, control::rpc::Refusal> {
        Ok(serde_json::json!({
            "schema": control::schema::SCHEMA, "library": "", "adapter": "nvmeofd", "process": 1,
            "methods": ["version", "status", "stat", "subsystem.add"],
        }))
    }

    fn notices(&mut self) -> Vec<Value> {
        Vec::new()
    }
}

#[test]
fn every_command_says_whose_socket_it_is_if_it_is_no_adapters() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control");
    let _served = control::serve(&path, control::Access::default(), Target).expect("it listens");
    let socket = path.display().to_string();
    for command in ["stat", "top", "metrics", "monitor", "resource", "recorder"] {
        let output = datctl(&[command, &socket]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = String::from_utf8(output.stderr).expect("text");
        let wanted = format!(
            "datctl: {socket}: this is the control socket of nvmeofd: `nvmeofd ctl {socket} status`\n"
        );
        assert_eq!(said, wanted, "{command}");
    }
    let mut watched = Watched::new("sim:live-side");
    let socket = watched.socket.display().to_string();
    let steered = watched.while_running(|| datctl(&["sim", "ctl", &socket, "time"]));
    let said = String::from_utf8(steered.stderr).expect("text");
    let wanted =
        format!("{socket}: this is the control socket of an adapter: `datctl stat {socket}`");
    assert!(said.contains(&wanted), "{said}");
}

/// On a terminal of 80 columns top shows the columns that fit. `q` and Ctrl-C end it and restore the terminal.
#[test]
fn top_on_a_terminal_is_ended_by_a_key_and_gives_the_terminal_back() {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use nix::pty::{Winsize, openpty};
    use nix::sys::termios::tcgetattr;

    let mut watched = Watched::new("sim:live-terminal");
    let socket = watched.socket.display().to_string();
    for key in [b"q", b"\x03"] {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let before = tcgetattr(pty.slave.as_fd()).expect("its settings");
        let end = || Stdio::from(pty.slave.try_clone().expect("its other end"));
        // The child has its own session with this controlling terminal, so that Ctrl-C is a signal to it.
        let mut child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_datctl"), "top", &socket])
            .args(["--interval", "3600"])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("datctl runs");
        let mut master = std::fs::File::from(pty.master);
        let (status, screen) = watched.while_running(|| {
            let mut screen = String::new();
            let mut some = [0; 4096];
            // The screen is complete when the sequence that clears the rest of it has arrived.
            while !screen.contains("\x1b[J") {
                let bytes = master.read(&mut some).expect("a screen");
                screen.push_str(&String::from_utf8_lossy(&some[..bytes]));
            }
            master.write_all(key).expect("a key");
            let status = child.wait().expect("it ends");
            while !screen.contains("\x1b[?1049l") {
                let bytes = master.read(&mut some).expect("its end");
                screen.push_str(&String::from_utf8_lossy(&some[..bytes]));
            }
            (status, screen)
        });
        assert_eq!(status.code(), Some(0), "{screen:?}");
        assert!(screen.starts_with("\x1b[?1049h"), "{screen:?}");
        let (_, drawn) = screen.split_once("\x1b[H").expect("a screen");
        let (drawn, _) = drawn.split_once("\x1b[J").expect("its end");
        for line in drawn.split('\n') {
            let line = line.trim_end_matches(['\r']).trim_end_matches("\x1b[K");
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        assert!(drawn.contains("2 endpoints"), "{drawn}");
        let after = tcgetattr(pty.slave.as_fd()).expect("its settings");
        assert_eq!(after, before);
    }
}

#[test]
fn the_socket_goes_with_the_adapter() {
    let watched = Watched::new("sim:live-end");
    let socket = watched.socket.clone();
    assert!(socket.exists());
    let Watched { ias, .. } = watched;
    for ia in ias {
        udapl::ia_close(ia, CloseFlags::Abrupt).expect("closes");
    }
    while socket.exists() {
        thread::yield_now();
    }
    let again = udapl::ia_open(
        &format!("sim:live-end,control={}", socket.display()),
        &OpenOptions::default(),
    );
    again.expect("the path is free again");
}

#[test]
fn explain_says_what_a_number_from_a_log_can_be() {
    let (code, told) = json(&["explain", "0x15"]);
    assert_eq!(code, Some(0), "{told}");
    let meanings = told["meanings"].as_array().expect("meanings");
    assert!(
        meanings
            .iter()
            .any(|one| one["name"] == "0x15, DAT_DTO_ERR_TRANSPORT")
    );
    let (code, told) = json(&["explain", "DAT_DTO_ERR_REMOTE_ACCESS"]);
    assert_eq!(
        (code, &told["meanings"][0]["name"]),
        (Some(0), &"DAT_DTO_ERR_REMOTE_ACCESS (6)".into())
    );
    let (code, told) = json(&["explain", "0x80060026"]);
    assert_eq!(
        (code, &told["meanings"][0]["name"]),
        (Some(0), &"DAT_INVALID_PARAMETER|DAT_INVALID_ARG3".into())
    );
    let (code, _) = json(&["explain", "gremlin"]);
    assert_eq!(code, Some(1));
}

/// Runs `sim ctl`. Returns its JSON if it succeeded, and its error stream.
fn steer(socket: &str, words: &[&str]) -> (Option<Value>, String) {
    let output = datctl(&[&["--json", "sim", "ctl", socket], words].concat());
    let said = String::from_utf8(output.stdout).expect("text");
    let complaint = String::from_utf8(output.stderr).expect("text");
    (
        serde_json::from_str(&said)
            .ok()
            .filter(|_| output.status.success()),
        complaint,
    )
}

#[test]
fn a_world_that_is_served_is_steered() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (a, b, control) = (path("a"), path("b"), path("control"));
    let mut server = Process::start(&[
        "sim", "serve", "--socket", &a, "--socket", &b, "--steer", &control,
    ]);
    let [one, _] = [server.line(), server.line()];
    let ping = || datctl(&["ping", &one, &format!("vfio-user:{b}"), "--count", "3"]);
    assert!(ping().status.success());

    let (counted, _) = steer(&control, &["counters"]);
    let counted = counted.expect("counters");
    let of = |name: &str| counted["functions"][&a][name].as_u64().expect("a number");
    assert!(
        of("commands") > 100 && of("send_doorbells") > 3,
        "{counted}"
    );
    assert_eq!([of("driver_bugs"), of("dma_faults")], [0, 0], "{counted}");

    let (set, _) = steer(&control, &["link", "loss=100%"]);
    let lossy = set.expect("it is set")["at"].as_u64().expect("a time");
    assert!(!ping().status.success(), "nothing passes");
    let (set, _) = steer(&control, &["link", "none"]);
    assert!(set.expect("it is set")["at"].as_u64() > Some(lossy));
    assert!(ping().status.success());

    for (words, complaint) in [
        (["link", "los=1%"], "\"los\" is no fault"),
        (["link", "removal@0s"], "sim.function"),
        (
            ["function", "5:removal"],
            "there is no function 5: 2 are served",
        ),
        (
            ["function", "burning"],
            "\"burning\" happens to no function",
        ),
    ] {
        let (done, said) = steer(&control, &words);
        assert!(
            done.is_none() && said.contains(complaint),
            "{words:?}: {said}"
        );
    }

    let (done, said) = steer(&control, &["function", "removal"]);
    assert!(done.is_some(), "{said}");
    assert!(!ping().status.success(), "it is gone");
    drop(server);
}
