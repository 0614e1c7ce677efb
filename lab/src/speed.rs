//! `cargo xtask speed`: measures simulated functions and the alternatives to them in one run.
//!
//! ```text
//!   this machine     simulated functions: cargo bench -p udapl --bench simulator
//!                    UCX: ucx_perftest, over tcp, over shared memory
//!                    libfabric: fi_pingpong, over tcp, over shared memory
//!   stock Linux      mlx5 on simulated functions, and software RoCE: ib_write_lat and ib_write_bw, both in one guest
//! ```
//!
//! UCX and libfabric are Debian's packages, unpacked into the target directory and run by their own dynamic loader.
//!
//! The latency of a ping-pong is that of one way, as UCX, libfabric and perftest print it. The compared programs run
//! one after the other: each is a pair of busy processes, and a machine may have only two processors.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use guest::Root;

use crate::{bench, shell};

/// Debian packages that are unpacked.
const PACKAGES: [&str; 2] = ["ucx-utils", "libfabric-bin"];
/// Folder of the unpacked packages below the root.
const FOLDER: &str = "speed";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
/// Number of times that a client tries to reach its server.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);
/// Time limit of each program, in seconds.
const SECONDS: &str = "60";
/// Exit status of `timeout` when the time limit was exceeded.
const TIMED_OUT: i32 = 124;
const PORT: &str = "18600";

/// Tests of UCX and their message sizes in bytes: a ping-pong, and two streams.
const TESTS: [(&str, usize); 3] = [("tag_lat", 64), ("ucp_put_bw", 4096), ("ucp_put_bw", 65536)];

/// Script for the two pairs of devices in the guest: mlx5 ports on a link, and software RoCE in loopback.
const GUEST: &str = r#"
# pair NAME PORT ADDRESS DEVICE-HERE DEVICE-THERE GID
pair() {
    for test in lat bw; do
        case $test in lat) what="-s 64 -n 1000" column=6 ;; bw) what="-s 65536 -n 500" column=4 ;; esac
        port $2 ib_write_$test -F -x $6 -d $5 $what > server 2>&1 &
        until port $2 ss -ltn | grep -q 18515; do sleep 0.1; done
        ib_write_$test -F -x $6 -d $4 $what $3 > client 2>&1 || { cat client server; exit 1; }
        wait
        awk -v name="$1 $test" -v column=$column '$1 == 64 || $1 == 65536 { print name, $column }' client
    done
}
modprobe -a rdma_rxe dummy && ip link add soft type dummy && ip addr add 198.51.100.1/24 dev soft &&
    ip link set soft up && rdma link add rxe0 type rxe netdev soft || exit 1
pair mlx5 2 192.0.2.2 mlx5_0 mlx5_1 3
pair rxe 1 198.51.100.1 rxe0 rxe0 1
"#;

/// A row of the table: microseconds one way for 64 bytes, and bytes per second for messages of 4 KiB and of 64 KiB.
struct Line {
    name: String,
    figures: [Option<f64>; 3],
}

/// Measures and prints the table.
pub fn run() -> Result<()> {
    let simulator = bench::build("simulator")?;
    let target = shell::target_directory()?;
    let folder = target.join("vm/root");
    let announce = |what: &str| eprintln!("speed: {what}, once");
    let root = Root::prepare(&folder, true, &announce)?;
    let others = root.path(FOLDER);
    if !others.join("usr/bin/ucx_perftest").exists() {
        announce("unpacking UCX and libfabric from Debian's packages");
        root.unpack_packages(&PACKAGES, FOLDER)?;
    }
    let mut lines = ours(&simulator)?;
    for transport in ["tcp", "shm"] {
        lines.push(ucx(&others, transport)?);
        lines.push(libfabric(&others, transport)?);
    }
    let yardstick = lines
        .iter()
        .find(|line| line.name == "UCX over tcp")
        .map(|line| line.figures)
        .context("UCX over tcp was measured")?;
    let mut table = Table::new();
    table.set_header([
        "on this machine",
        "64 bytes, one way",
        "of UCX over tcp",
        "4 KiB each",
        "4 KiB",
        "of UCX over tcp",
        "64 KiB",
        "of UCX over tcp",
    ]);
    for Line { name, figures } in &lines {
        let show = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{value:.2} {unit}"))
        };
        let times = |at: usize| {
            let ratio = figures[at].zip(yardstick[at]);
            ratio.map_or_else(String::new, |(own, other)| format!("{:.2} x", own / other))
        };
        let [way, small, large] = *figures;
        table.add_row([
            name.clone(),
            show(way, "us"),
            times(0),
            show(small.map(|rate| 4096.0 / rate * 1e6), "us"),
            show(small.map(|rate| rate / 1e9), "GB/s"),
            times(1),
            show(large.map(|rate| rate / 1e9), "GB/s"),
            times(2),
        ]);
    }
    println!("{table}");
    in_a_guest(&target)
}

/// Runs the benchmark of the simulated functions, whose output has microseconds per operation, and returns its rows.
fn ours(simulator: &Path) -> Result<Vec<Line>> {
    let said = shell::capture(Command::new(simulator))?;
    println!("{said}");
    let each = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name))?;
        let (number, _) = line.get(name.len()..)?.trim_start().split_once(' ')?;
        number.parse::<f64>().ok()
    };
    let rate = |name: &str, bytes: f64| each(name).map(|us| bytes / us * 1e6);
    let one_way = |name: &str| each(name).map(|us| us / 2.0);
    let lines = [
        ("one process", None),
        (
            "two processes",
            one_way("two processes: ping-pong, 64 bytes, polled"),
        ),
    ];
    let mut lines: Vec<Line> = lines
        .into_iter()
        .map(|(name, way)| Line {
            name: format!("simulated, {name}"),
            figures: [
                way,
                rate(&format!("{name}: RDMA Write, 4 KiB, 16 deep"), 4096.0),
                rate(&format!("{name}: RDMA Write, 64 KiB, 16 deep"), 65536.0),
            ],
        })
        .collect();
    for (name, row) in [
        (
            "simulated, two processes, asleep",
            "two processes: ping-pong, 64 bytes, asleep",
        ),
        (
            "bare sockets, asleep",
            "bare sockets: ping-pong, 64 bytes, asleep",
        ),
    ] {
        lines.push(Line {
            name: name.to_owned(),
            figures: [one_way(row), None, None],
        });
    }
    ensure!(
        lines
            .iter()
            .all(|line| line.figures.iter().any(Option::is_some)),
        "the benchmark has other lines than these:\n{said}"
    );
    Ok(lines)
}

/// Returns a command for a program of the packages, with a time limit. The command runs in a terminal, because
/// otherwise `ucx_perftest` asks MPI for its peer.
fn program(others: &Path, name: &str, arguments: &[&str]) -> Command {
    let at = |path: &str| others.join(path).display().to_string();
    let libraries = at(LIBRARIES);
    let line = format!(
        "'{}' --library-path '{libraries}:{libraries}/ucx' '{}' {}",
        at(LOADER),
        at(&format!("usr/bin/{name}")),
        arguments.join(" ")
    );
    let mut command = Command::new("timeout");
    command
        .args([SECONDS, "script", "-qec", &line, "/dev/null"])
        .env("UCX_MODULE_DIR", format!("{libraries}/ucx"))
        .env("UCX_LOG_LEVEL", "error")
        .stdin(Stdio::null());
    command
}

/// A server, which ends when its client ends. If it still runs on drop, it is killed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // `timeout` passes SIGTERM on to the program. If `timeout` itself were killed, the program would continue
            // to run.
            let id = self.0.id().to_string();
            let _gone = Command::new("kill").args(["-s", "TERM", &id]).output();
            let _gone = self.0.wait();
        }
    }
}

/// Runs a server and a client of the same program. Returns the client's output.
fn pair(server: impl Fn() -> Command, client: impl Fn() -> Command) -> Result<String> {
    let mut server = server();
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let shown = format!("{server:?}");
    let mut server = Server(server.spawn().with_context(|| shown.clone())?);
    for _ in 0..TRIES {
        thread::park_timeout(BETWEEN_TRIES);
        let ended = client()
            .stderr(Stdio::null())
            .output()
            .with_context(|| shown.clone())?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        ensure!(
            ended.status.code() != Some(TIMED_OUT) && server.0.try_wait()?.is_none(),
            "its client ends with {}: {shown}",
            ended.status
        );
    }
    anyhow::bail!("no client reaches its server: {shown}")
}

/// Returns the numbers of the last line that consists of five or more numbers and nothing else.
fn numbers(said: &str) -> Option<Vec<f64>> {
    said.lines().rev().find_map(|line| {
        let words: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        words.ok().filter(|words| words.len() > 4)
    })
}

/// Measures with `ucx_perftest -f`. Its columns are: iterations; percentile, average and overall microseconds; average
/// and overall MiB/s.
fn ucx(others: &Path, transport: &str) -> Result<Line> {
    let mut figures = [None; 3];
    for (figure, (test, bytes)) in figures.iter_mut().zip(TESTS) {
        let bytes = bytes.to_string();
        let mut client = vec!["127.0.0.1", "-p", PORT, "-f", "-n", "20000"];
        client.extend(["-t", test, "-s", &bytes]);
        let with = |arguments: &[&str]| {
            let mut command = program(others, "ucx_perftest", arguments);
            command.env("UCX_TLS", format!("{transport},self"));
            command
        };
        let said = pair(|| with(&["-p", PORT]), || with(&client))?;
        let numbers = numbers(&said).with_context(|| format!("ucx_perftest: {said}"))?;
        let at = |place: usize| numbers.get(place).copied().context("seven figures");
        *figure = Some(match test {
            "tag_lat" => at(3)?,
            _ => at(5)? * f64::from(1 << 20),
        });
    }
    Ok(Line {
        name: format!("UCX over {transport}"),
        figures,
    })
}

/// Measures with `fi_pingpong`. Its columns are: bytes, sent, acknowledged, total, time, MB/s, microseconds one way,
/// million transfers per second.
fn libfabric(others: &Path, transport: &str) -> Result<Line> {
    let arguments = ["-p", transport, "-e", "rdm", "-S", "64", "-I", "20000"];
    let with = |arguments: &[&str]| program(others, "fi_pingpong", arguments);
    let client = [&arguments[..], &["127.0.0.1"]].concat();
    let said = pair(|| with(&arguments), || with(&client))?;
    let us = said.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.len() == 8).then(|| words[6].parse::<f64>().ok())?
    });
    Ok(Line {
        name: format!("libfabric over {transport}"),
        figures: [
            Some(us.with_context(|| format!("fi_pingpong: {said}"))?),
            None,
            None,
        ],
    })
}

/// Measures mlx5 and software RoCE, which is a kernel module, in a guest.
fn in_a_guest(target: &Path) -> Result<()> {
    shell::run(shell::cargo(&[
        "build",
        "--release",
        "--workspace",
        "--bin",
        "simnic",
    ]))?;
    let share = tempfile::tempdir()?;
    let mut command = Command::new(target.join("release/simnic"));
    command
        .args(["run", "--timeout", "300", "--", "sh", "-c", GUEST])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    let said = shell::capture(command)?;
    let figure = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|number| number.trim().parse::<f64>().ok());
        number.with_context(|| format!("no figure of {name}: {said}"))
    };
    let mut table = Table::new();
    table.set_header([
        "in stock Linux",
        "ib_write_lat, 64 bytes",
        "ib_write_bw, 64 KiB",
    ]);
    let [mlx5, rxe] = [("mlx5 lat", "mlx5 bw"), ("rxe lat", "rxe bw")]
        .map(|(lat, bw)| Ok::<_, anyhow::Error>((figure(lat)?, figure(bw)?)));
    let (mlx5, rxe) = (mlx5?, rxe?);
    for (name, (lat, bw)) in [("mlx5, simulated function", mlx5), ("software RoCE", rxe)] {
        table.add_row([
            name.to_owned(),
            format!("{lat:.0} us"),
            format!("{bw:.0} MiB/s"),
        ]);
    }
    let times = |own: f64, other: f64| format!("{:.2} x", own / other);
    table.add_row([
        "mlx5 of software RoCE".to_owned(),
        times(mlx5.0, rxe.0),
        times(mlx5.1, rxe.1),
    ]);
    println!("{table}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of UCX are those of its last line (output of `ucx_perftest -f` of UCX 1.18).
    #[test]
    fn the_figures_of_ucx_are_those_of_its_last_line() {
        let said = "+--------------+--------------+----------+---------+\r\n\
            \x20                      20000      6.346    13.950    13.950      280.02     280.02       71685       71685\r\n";
        let numbers = numbers(said).expect("figures");
        assert_eq!((numbers[3], numbers[5]), (13.950, 280.02));
        assert_eq!(super::numbers("[perftest.c:892 UCX ERROR]"), None);
    }
}
