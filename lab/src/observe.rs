//! `cargo xtask observe`: the metrics of a process with traffic, scraped by a real Prometheus.
//!
//! ```text
//!   datctl perf sim:a,control=S sim:b      traffic
//!         ^ S
//!   datctl metrics S --listen  <-- every second -- prometheus, with docs/alerts.yml
//!                                                       ^ asked here: is the target up, do requests have a rate?
//! ```
//!
//! `promtool` checks the rules as well. Both programs are those of Debian's package `prometheus`: installed, or
//! unpacked under the target directory. If the package is not available, a message says so, and nothing is checked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{debian, shell};

/// Time limit until Prometheus can compute a rate, which requires its start and two scrapes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of operations of the process with traffic: more than it completes within the time limit.
const OPERATIONS: &str = "100000000";
/// Prometheus queries, each with its meaning.
const QUERIES: [(&str, &str); 3] = [
    ("up{job=\"udapl\"}", "the target is up"),
    (
        "rate(udapl_instance_requests_total[10s])",
        "requests a second",
    ),
    (
        "rate(udapl_instance_completion_latency_seconds_count[10s])",
        "requests timed a second",
    ),
];

/// A program, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors are ignored, because the program may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Result<Running> {
    let shown = shell::announce(command);
    let child = command.spawn();
    child
        .map(Running)
        .with_context(|| format!("cannot start `{shown}`"))
}

pub fn run() -> Result<()> {
    let programs = match programs() {
        Ok(programs) => programs,
        Err(error) => {
            println!("observe: SKIPPED, there is no prometheus and it cannot be had: {error:#}");
            return Ok(());
        }
    };
    let [prometheus, promtool] = programs;
    let mut rules = Command::new(&promtool);
    rules
        .args(["check", "rules", "docs/alerts.yml"])
        .current_dir(shell::root());
    shell::run(rules)?;

    shell::run(shell::cargo(&[
        "build",
        shell::TESTED,
        "--quiet",
        "--workspace",
        "--bin",
        "datctl",
    ]))?;
    let datctl = shell::target_directory()?.join("debug/datctl");
    let folder = shell::target_directory()?.join("observe");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let socket = folder.join("control");
    let traffic = format!("sim:observed,control={}", socket.display());
    let plan = [
        "--operation",
        "write",
        "--measure",
        "bandwidth",
        "--bytes",
        "4K",
        "--count",
    ];
    let _traffic = start(
        Command::new(&datctl)
            .args(["perf", &traffic, "sim:peer"])
            .args(plan)
            .arg(OPERATIONS)
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )?;
    within("the control socket", || Ok(socket.exists().then_some(())))?;
    let mut exporter = start(
        Command::new(&datctl)
            .arg("metrics")
            .arg(&socket)
            .args(["--listen", "127.0.0.1:0", "--latencies"])
            .stdout(Stdio::piped()),
    )?;
    let out = exporter.0.stdout.take().context("its output")?;
    let mut url = String::new();
    BufReader::new(out).read_line(&mut url)?;
    let target = url.trim().trim_start_matches("http://");
    let target = target.trim_end_matches("/metrics");
    ensure!(!target.is_empty(), "datctl metrics does not listen");

    let config = folder.join("prometheus.yml");
    let alerts = shell::root().join("docs/alerts.yml");
    std::fs::write(&config, configuration(target, &alerts))?;
    let prometheus = start(
        Command::new(&prometheus)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .arg("--log.level=warn"),
    )?;
    let server = within("the port of prometheus", || listens(prometheus.0.id()))?;
    for (query, what) in QUERIES {
        let value = within(what, || {
            Ok(number(&server, query)?.filter(|value| *value > 0.0))
        })?;
        println!("observe: {what}: {value:.1}");
    }
    let rules = ask(&server, "/api/v1/rules")?;
    let groups = rules["data"]["groups"]
        .as_array()
        .context("groups of rules")?;
    let rules: Vec<&Value> = groups
        .iter()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .collect();
    ensure!(!rules.is_empty(), "it has read no rule");
    for rule in &rules {
        ensure!(
            rule["lastError"].as_str().is_none_or(str::is_empty),
            "{rule}"
        );
    }
    println!("observe: {} rules are evaluated", rules.len());
    Ok(())
}

fn configuration(target: &str, alerts: &Path) -> String {
    format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
         scrape_configs:\n  - job_name: udapl\n    static_configs: [{{targets: [\"{target}\"]}}]\n\
         rule_files: [\"{}\"]\n",
        alerts.display()
    )
}

/// Calls `look` until it returns a value, or fails after the time limit.
fn within<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        // An error may mean that the server does not listen yet.
        match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if Instant::now() > until => bail!("{what}: not within {PATIENCE:?}"),
            Err(error) if Instant::now() > until => return Err(error.context(what.to_owned())),
            Ok(None) | Err(_) => park_timeout(Duration::from_millis(200)),
        }
    }
}

/// Returns the TCP address at which a process listens, or `None` if it does not listen yet. Prometheus does not print
/// the port that it uses, so the kernel is asked: the address is the local address of the socket in state 0Ah that is
/// one of the process's descriptors (proc_pid_net(5)).
fn listens(pid: u32) -> Result<Option<String>> {
    let of = PathBuf::from(format!("/proc/{pid}"));
    let mut sockets = Vec::new();
    for descriptor in std::fs::read_dir(of.join("fd"))? {
        // The process may close a descriptor while its descriptors are read.
        sockets.extend(std::fs::read_link(descriptor?.path()));
    }
    let table = std::fs::read_to_string(of.join("net/tcp"))?;
    let found = table.lines().find_map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let own = PathBuf::from(format!("socket:[{}]", cells.get(9)?));
        let (_, port) = cells.get(1)?.split_once(':')?;
        (*cells.get(3)? == "0A" && sockets.contains(&own)).then(|| port.to_owned())
    });
    let port = found.map(|port| u16::from_str_radix(&port, 16));
    let port = port.transpose()?;
    Ok(port.map(|port| format!("127.0.0.1:{port}")))
}

/// Returns the first value in the result of a query, or `None` if the result is empty.
fn number(server: &str, query: &str) -> Result<Option<f64>> {
    let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = ask(server, &format!("/api/v1/query?query={query}"))?;
    let value = &answer["data"]["result"][0]["value"][1];
    value
        .as_str()
        .map(|value| value.parse().with_context(|| value.to_owned()))
        .transpose()
}

/// Sends a request to Prometheus and returns the answer (HTTP API, prometheus.io/docs/prometheus/latest/querying/api).
fn ask(server: &str, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    ensure!(head.contains(" 200 "), "{head}");
    Ok(serde_json::from_str(body)?)
}

/// Returns the paths of `prometheus` and `promtool`.
fn programs() -> Result<[PathBuf; 2]> {
    const NAMES: [&str; 2] = ["prometheus", "promtool"];
    if NAMES.iter().all(|name| shell::exists(name)) {
        return Ok(NAMES.map(PathBuf::from));
    }
    let folder = shell::target_directory()?.join("prometheus");
    let root = folder.join("root");
    let programs = NAMES.map(|name| root.join("usr/bin").join(name));
    if programs.iter().all(|program| program.exists()) {
        return Ok(programs);
    }
    debian::unpack(&folder, &root, &["prometheus"])?;
    for program in &programs {
        ensure!(
            program.exists(),
            "{} is not in the package",
            program.display()
        );
    }
    Ok(programs)
}
