//! Four hosts at one target on a simulated switch: the latencies of one host's small reads beside large reads or writes
//! of the three others, with and without limits of these.
//!
//! All of it runs in virtual time, so the numbers are the same on every machine. With `PICTURES=write` in the
//! environment, the test takes more samples, prints the table of docs/nvmeof.md, and draws its picture into
//! `docs/pictures`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvmeof::disk::Source;
use nvmeof::model::{Limit, Model};
use nvmeof::nvme::command::io;
use nvmeof::nvme::{Nqn, Status};
use nvmeof::serve::{Target, Worker, WorkerConfig};
use svg::Document;
use svg::node::element::{Group, Line, Polyline, Rectangle, Text};
use udapl::fabric::LinkFaults;
use udapl::fabric::switched::{Buffer, SwitchConfig, Switched};

use crate::host::{Host, Queue, transfer};
use crate::world::{PORT, configure};

/// Simulated time of a turn, which is the resolution of the latencies.
const STEP: Duration = Duration::from_micros(1);
/// Rate of each port, in bits per second.
const RATE: u64 = 10_000_000_000;
const BULK_HOSTS: usize = 3;
const BULK_DEPTH: usize = 4;
const BULK_BYTES: u32 = 128 << 10;
const SMALL_BYTES: u32 = 4096;
/// Limit of each of the three hosts: together they get a little less than half of the port's rate.
const LIMIT: Limit = Limit {
    ios_per_second: None,
    bytes_per_second: Some(190 << 20),
    burst: Duration::from_millis(1),
};
/// Percentiles that are reported, in tenths of a per cent.
const PERCENTILES: [usize; 4] = [500, 900, 990, 999];
const NAMES: [&str; 4] = ["p50", "p90", "p99", "p99.9"];

/// A host with a constant number of commands under way.
struct Client {
    host: Host,
    queue: Queue,
    opcode: u8,
    bytes: u32,
    /// Time at which each command was sent.
    sent: BTreeMap<u16, Duration>,
    took: Vec<Duration>,
}

impl Client {
    fn send(&mut self, now: Duration) -> Result<()> {
        let mut sqe = transfer(self.opcode, 0, self.bytes >> 9);
        sqe.sgl = self.host.data(0, self.bytes);
        let cid = self.host.send(&mut self.queue, sqe, &[])?;
        self.sent.insert(cid, now);
        Ok(())
    }

    /// Takes the responses, and sends a command for each.
    fn run_once(&mut self, now: Duration) -> Result<()> {
        self.host.ia.progress();
        while let Some(cqe) = self.host.poll(&self.queue)? {
            ensure!(cqe.status() == Status::SUCCESS, "{}", cqe.status());
            let began = self.sent.remove(&cqe.cid.get()).context("a command")?;
            self.took.push(now - began);
            self.send(now)?;
        }
        Ok(())
    }
}

/// Latencies of the small reads and of the large commands, sorted; and the bytes of the large ones per second.
struct Outcome {
    opcode: u8,
    is_limited: bool,
    small: Vec<Duration>,
    large: Vec<Duration>,
    bulk_bytes_per_second: u64,
}

/// Returns the latency that so many tenths of a per cent of the reads do not exceed.
fn percentile(sorted: &[Duration], tenths: usize) -> Duration {
    sorted[(sorted.len() * tenths / 1000).min(sorted.len() - 1)]
}

/// Runs until the host with small reads has this many. `opcode` is that of the large commands.
fn run(opcode: u8, limit: Option<Limit>, samples: usize) -> Result<Outcome> {
    let config = SwitchConfig {
        rate_bps: RATE,
        // Nothing is lost: all data that can be under way fits.
        buffer: Buffer::Shared(16 << 20),
        ..SwitchConfig::default()
    };
    let fabric = Switched::star(7, 2 + BULK_HOSTS, config, LinkFaults::default())?;
    let ia = fabric.open(0)?;
    let address = ia.query().ia.ia_address;
    let target = Target::with_own_clock(Model::new());
    let config = WorkerConfig {
        buffers: 64,
        ..WorkerConfig::default()
    };
    let disk = Source::Null(1 << 30);
    let subsystem = target.with(|model| configure(model, address, &config, disk, 9))?;
    let worker = Rc::new(RefCell::new(Worker::new(&target, ia, config)?));
    let turn = {
        let (worker, target, sim) = (Rc::clone(&worker), target.clone(), fabric.sim.clone());
        move || -> Result<()> {
            worker.borrow_mut().run_once()?;
            sim.advance(STEP);
            target.advance(STEP);
            Ok(())
        }
    };
    let mut clients = Vec::new();
    for number in 0..=BULK_HOSTS {
        let mut host = Host::of(fabric.open(1 + number)?, address, PORT)?;
        host.meanwhile = Some(Box::new(turn.clone()));
        let name: Nqn = format!("nqn.2026-11.test:host{number}").parse()?;
        host.id = [u8::try_from(number + 1)?; 16];
        host.name = name.clone();
        let is_bulk = number != 0;
        if is_bulk && limit.is_some() {
            target.with(|model| {
                model.allow_host(&subsystem, name.clone())?;
                model.limit_host(&subsystem, &name, limit)
            })?;
        }
        let (_admin, controller) = host.controller(&subsystem)?;
        let queue = host.io_queue(&subsystem, controller, 1, 64)?;
        clients.push(Client {
            host,
            queue,
            opcode: if is_bulk { opcode } else { io::READ },
            bytes: if is_bulk { BULK_BYTES } else { SMALL_BYTES },
            sent: BTreeMap::new(),
            took: Vec::new(),
        });
    }
    let began = target.now();
    for (number, client) in clients.iter_mut().enumerate() {
        let depth = if number == 0 { 1 } else { BULK_DEPTH };
        for _ in 0..depth {
            client.send(began)?;
        }
    }
    while clients[0].took.len() < samples {
        turn()?;
        let now = target.now();
        clients.iter_mut().try_for_each(|one| one.run_once(now))?;
    }
    let time = target.now() - began;
    let mut small = clients.swap_remove(0).took;
    let mut large: Vec<Duration> = clients.into_iter().flat_map(|one| one.took).collect();
    small.sort_unstable();
    large.sort_unstable();
    let bytes = large.len() as u64 * u64::from(BULK_BYTES);
    Ok(Outcome {
        opcode,
        is_limited: limit.is_some(),
        small,
        large,
        bulk_bytes_per_second: bytes * 1_000_000 / u64::try_from(time.as_micros())?,
    })
}

impl Outcome {
    /// Returns the names of the large commands and of the limits.
    const fn names(&self) -> (&'static str, &'static str) {
        let commands = if self.opcode == io::READ {
            "reads"
        } else {
            "writes"
        };
        let limits = if self.is_limited {
            "limits"
        } else {
            "no limits"
        };
        (commands, limits)
    }
}

fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "| Commands | Others | Rate | p50 | p90 | p99 | p99.9 |\n|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let (commands, limits) = outcome.names();
        let rate = format!("{} MB/s", outcome.bulk_bytes_per_second / 1_000_000);
        let large = format!("3 x {BULK_DEPTH} {commands} of 128 KiB");
        for (what, others, rate, sorted) in [
            (
                "read of 4 KiB",
                &*format!("{large}, {limits}"),
                "",
                &outcome.small,
            ),
            (&*large, limits, &*rate, &outcome.large),
        ] {
            let all = PERCENTILES.map(|tenths| percentile(sorted, tenths).as_micros());
            let all = all.map(|took| format!("{took} us")).join(" | ");
            let _ = writeln!(out, "| {what} | {others} | {rate} | {all} |");
        }
    }
    out
}

const INK: &str = "#1f2933";
const PALE: &str = "#7b8794";
const GRID: &str = "#e4e7eb";
/// Colours without limits and with limits.
const RUNS: [&str; 2] = ["#b3261e", "#1a5fb4"];

fn text(words: &str, (x, y): (f64, f64), anchor: &str, ink: &str) -> Text {
    let text = Text::new(words).set("x", x).set("y", y);
    text.set("text-anchor", anchor).set("fill", ink)
}

fn line(from: (f64, f64), to: (f64, f64), ink: &str) -> Line {
    let line = Line::new().set("x1", from.0).set("y1", from.1);
    line.set("x2", to.0).set("y2", to.1).set("stroke", ink)
}

/// Draws the latencies of the small reads by percentile, on a logarithmic scale.
fn draw(outcomes: &[Outcome]) -> Document {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 360.0;
    /// Decades of the scale, in microseconds: 1 us to 10 ms.
    const DECADES: [(f64, &str); 5] = [
        (0.0, "1 us"),
        (1.0, "10 us"),
        (2.0, "100 us"),
        (3.0, "1 ms"),
        (4.0, "10 ms"),
    ];
    let x = |place: usize| 110.0 + 185.0 * place as f64;
    let y = |decade: f64| HEIGHT - 50.0 - decade * 62.0;
    let mut group = Group::new()
        .set("font-family", "DejaVu Sans, Verdana, sans-serif")
        .set("font-size", 12);
    for (decade, name) in DECADES {
        let (left, right) = ((80.0, y(decade)), (WIDTH - 30.0, y(decade)));
        group = group.add(line(left, right, GRID)).add(text(
            name,
            (72.0, y(decade) + 4.0),
            "end",
            PALE,
        ));
    }
    for (place, name) in NAMES.iter().enumerate() {
        group = group.add(text(name, (x(place), HEIGHT - 26.0), "middle", INK));
    }
    let mut at = 90.0;
    for outcome in outcomes {
        let (commands, limits) = outcome.names();
        let ink = RUNS[usize::from(outcome.is_limited)];
        let dash = if outcome.opcode == io::READ {
            "6 4"
        } else {
            "none"
        };
        let took = PERCENTILES.map(|tenths| percentile(&outcome.small, tenths).as_secs_f64() * 1e6);
        let points = took.iter().enumerate().map(|(place, took)| {
            let down = y(took.max(1.0).log10());
            format!("{:.1},{down:.1}", x(place))
        });
        let drawn = Polyline::new()
            .set("points", points.collect::<Vec<_>>().join(" "))
            .set("fill", "none")
            .set("stroke", ink)
            .set("stroke-width", 2)
            .set("stroke-dasharray", dash);
        let key = line((at, 18.0), (at + 24.0, 18.0), ink)
            .set("stroke-dasharray", dash)
            .set("stroke-width", 2);
        let name = format!("{commands}, {limits}");
        group = group
            .add(drawn)
            .add(key)
            .add(text(&name, (at + 30.0, 22.0), "start", INK));
        at += 155.0;
    }
    let back = Rectangle::new()
        .set("width", "100%")
        .set("height", "100%")
        .set("fill", "white");
    Document::new()
        .set("viewBox", (0.0, 0.0, WIDTH, HEIGHT))
        .add(back)
        .add(group)
}

/// Large writes of three hosts fill the switch's queue to the target, and the commands of a fourth host wait there.
/// With limits that leave the port idle half of the time they do not.
///
/// Large reads leave the target's own port, where the card serves the queue pairs in turn. So a small read waits for a
/// turn of the others, and no limit changes the worst case.
#[test]
fn limits_of_other_hosts_keep_the_latency_of_small_reads_low() -> Result<()> {
    let writes = std::env::var("PICTURES").as_deref() == Ok("write");
    let mut outcomes = vec![
        run(io::WRITE, None, if writes { 3000 } else { 100 })?,
        run(io::WRITE, Some(LIMIT), if writes { 10_000 } else { 1500 })?,
    ];
    if writes {
        outcomes.push(run(io::READ, None, 10_000)?);
        outcomes.push(run(io::READ, Some(LIMIT), 10_000)?);
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/pictures/nvme-contention.svg"
        );
        svg::save(path, &draw(&outcomes))?;
    }
    println!("{}", table(&outcomes));
    let [without, with, ..] = &outcomes[..] else {
        anyhow::bail!("two runs");
    };
    let p99 = |outcome: &Outcome| percentile(&outcome.small, 990);
    assert!(
        p99(with) * 3 < p99(without),
        "{:?}, {:?}",
        p99(with),
        p99(without)
    );
    // Without limits the port is full; with limits the three hosts get what these allow, and at most their bursts more.
    assert!(without.bulk_bytes_per_second * 8 > RATE * 8 / 10);
    let allowed = 3 * LIMIT.bytes_per_second.context("a limit")?;
    let share = with.bulk_bytes_per_second * 100 / allowed;
    assert!((85..=115).contains(&share), "{share} %");
    Ok(())
}
