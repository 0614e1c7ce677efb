//! `datctl top`: a live screen of each endpoint's operations, their latencies, and the errors on the network.
//!
//! On a terminal the screen is redrawn ([`super::terminal`]), with as many columns and lines as fit
//! ([`super::columns`]); `q` and Ctrl-C end it. Otherwise the output is plain text, with all columns.
//!
//! While the command runs, the process measures the time of some requests and of wakeups. Each screen shows the times
//! since the last screen.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, IsTerminal, Write, stdout};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::schema::{Counters, Endpoint, Histogram, Latency, Resource, Stat};
use control::{Client, ClientError};
use serde::Serialize;
use serde_json::{Value, json};

use super::columns::{Column, lines, wrapped};
use super::terminal::{Terminal, Woken};
use super::{Target, ask, measure};
use crate::report::{Output, Report, counted};
use crate::value::within;

/// Limit on the endpoints that are read from each instance.
const OBJECTS: u64 = 4096;
/// Counters of the device's queue pairs that report errors on the wire.
const ERROR_COUNTERS: [&str; 6] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
    "duplicate_request",
];
/// Default number of endpoints that are shown if the output is no terminal.
const ENDPOINTS: usize = 20;
/// Time limit for reading from a socket that is readable.
const AT_ONCE: Duration = Duration::from_millis(1);

/// `top`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Seconds between two screens.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Number of screens after which it ends. Without it, it ends with the inspected process, or by q or Ctrl-C.
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX))]
    count: Option<u64>,
    /// Endpoints on a screen, the busiest first [default: as many as a terminal has lines for, otherwise 20].
    #[arg(long, value_name = "N", value_parser = within(1..=usize::MAX))]
    endpoints: Option<usize>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| format!("{text:?} is no number of seconds from 0.01 to 3600"))
}

/// The counters at one time.
struct Sample {
    at: Instant,
    stat: Stat,
    resource: Resource,
}

impl Sample {
    fn take(client: &mut Client) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            stat: ask(client, "stat")?,
            resource: client.call("resource", json!({ "objects": OBJECTS }))?,
            at: Instant::now(),
        })
    }
}

/// One screen.
#[derive(Serialize)]
pub(crate) struct Screen {
    adapter: String,
    seconds: f64,
    /// Rates of each endpoint, in operations and bytes per second.
    endpoints: Vec<Rates>,
    /// Increments of the device's error counters since the last screen; those that are not 0.
    troubles: BTreeMap<String, u64>,
    connections: u64,
    /// Latencies of each instance.
    instances: Vec<OfInstance>,
    silent: Vec<u32>,
    #[serde(skip)]
    shown: Option<usize>,
}

/// Latencies that an instance measured between two screens.
#[derive(Serialize)]
struct OfInstance {
    instance: u32,
    /// Wakeups of a sleeping wait, per second.
    wakeups: f64,
    completion: Option<Quantiles>,
    wakeup: Option<Quantiles>,
}

/// Number of samples, and their median and 99th percentile in nanoseconds.
#[derive(Serialize)]
struct Quantiles {
    samples: u64,
    p50: u64,
    p99: u64,
}

impl Quantiles {
    fn between(before: Option<&Histogram>, now: Option<&Histogram>) -> Option<Self> {
        let since = now?.since(before.unwrap_or(&Histogram::default()));
        Some(Self {
            samples: since.count,
            p50: since.quantile(500)?,
            p99: since.quantile(990)?,
        })
    }

    /// Returns the quantiles of the completion latency and of the wakeup latency since `before`.
    fn of(before: Option<&Latency>, now: &Latency) -> [Option<Self>; 2] {
        let before =
            |which: fn(&Latency) -> &Option<Histogram>| before.and_then(|all| which(all).as_ref());
        [
            Self::between(before(|all| &all.completion), now.completion.as_ref()),
            Self::between(before(|all| &all.wakeup), now.wakeup.as_ref()),
        ]
    }
}

#[derive(Serialize)]
struct Rates {
    instance: u32,
    endpoint: u32,
    state: String,
    peer: Option<String>,
    requests: f64,
    request_bytes: f64,
    recvs: f64,
    received_bytes: f64,
    failed: f64,
    requests_outstanding: u64,
    recvs_outstanding: u64,
    completion: Option<Quantiles>,
    wakeup: Option<Quantiles>,
}

pub(crate) fn run(options: &Options, output: Output) -> Result<(), Box<dyn Error>> {
    let mut client = options.target.connect()?;
    measure(&mut client)?;
    if !output.json && stdout().is_terminal() {
        return live(options, &mut client);
    }
    let mut before = Sample::take(&mut client)?;
    let mut screens = 0;
    while options.count.is_none_or(|count| screens < count) {
        // Without a subscription the only notice that arrives is the end of the process.
        let pause = Duration::from_secs_f64(options.interval);
        let _none: Option<Value> = match client.notice(Some(pause)) {
            Err(ClientError::Over(_)) => return Ok(()),
            told => told?,
        };
        let now = Sample::take(&mut client)?;
        let screen = Screen::between(&before, &now, options.endpoints);
        if screens != 0 && !output.json {
            writeln!(stdout())?;
        }
        output.show(&screen)?;
        before = now;
        screens += 1;
    }
    Ok(())
}

/// Shows screens on a terminal. The last screen remains there, unless a person quit.
fn live(options: &Options, client: &mut Client) -> Result<(), Box<dyn Error>> {
    let mut before = Sample::take(client)?;
    let mut screen = Screen::between(&before, &before, options.endpoints);
    let terminal = Terminal::enter()?;
    let mut screens = 0;
    while options.count.is_none_or(|count| screens < count) {
        screen.draw()?;
        let until = Instant::now() + Duration::from_secs_f64(options.interval);
        match wait_for_next(client, &terminal, &screen, until)? {
            WaitEnd::Over => break,
            WaitEnd::Quit => return Ok(()),
            WaitEnd::Time => {}
        }
        let now = Sample::take(client)?;
        screen = Screen::between(&before, &now, options.endpoints);
        before = now;
        screens += 1;
    }
    drop(terminal);
    let (width, _) = Terminal::size();
    writeln!(stdout(), "{}", screen.text(Some(width), None).join("\n"))?;
    Ok(())
}

/// Reasons why the wait for the next screen ended.
enum WaitEnd {
    Time,
    /// A person quit.
    Quit,
    /// The process has ended.
    Over,
}

/// Waits until the next screen is due, and redraws the current screen if necessary.
fn wait_for_next(
    client: &mut Client,
    terminal: &Terminal,
    screen: &Screen,
    until: Instant,
) -> Result<WaitEnd, Box<dyn Error>> {
    loop {
        match terminal.wait(client.as_fd(), until)? {
            Woken::Quit => return Ok(WaitEnd::Quit),
            Woken::Time => return Ok(WaitEnd::Time),
            Woken::Redraw => screen.draw()?,
            // Without a subscription the only notice that arrives is the end of the process.
            Woken::Other => match client.notice::<Value>(Some(AT_ONCE)) {
                Err(ClientError::Over(_)) => return Ok(WaitEnd::Over),
                told => drop(told?),
            },
        }
    }
}

/// Returns the increase of a counter per second.
fn rate(name: &str, before: Option<&Counters>, now: &Counters, seconds: f64) -> f64 {
    let count = |of: &Counters| of.get(name).copied().unwrap_or(0);
    // CAST: a rate is approximate.
    count(now).saturating_sub(before.map_or(0, count)) as f64 / seconds
}

impl Screen {
    fn between(before: &Sample, now: &Sample, shown: Option<usize>) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-9);
        let mut known: BTreeMap<(u32, u32), &Endpoint> = BTreeMap::new();
        for instance in &before.resource.instances {
            for ep in &instance.endpoints {
                known.insert((instance.instance, ep.endpoint), ep);
            }
        }
        let mut endpoints = Vec::new();
        for instance in &now.resource.instances {
            for ep in &instance.endpoints {
                let then = known.get(&(instance.instance, ep.endpoint));
                let count = |name: &str| ep.counters.get(name).copied().unwrap_or(0);
                let rate =
                    |name: &str| rate(name, then.map(|then| &then.counters), &ep.counters, seconds);
                let [completion, wakeup] =
                    Quantiles::of(then.map(|then| &then.latency), &ep.latency);
                endpoints.push(Rates {
                    instance: instance.instance,
                    endpoint: ep.endpoint,
                    state: ep.state.clone(),
                    peer: ep.peer.clone(),
                    requests: rate("requests"),
                    request_bytes: rate("request_bytes"),
                    recvs: rate("recvs"),
                    received_bytes: rate("received_bytes"),
                    failed: rate("requests_failed") + rate("recvs_failed"),
                    requests_outstanding: count("requests_outstanding"),
                    recvs_outstanding: count("recvs_outstanding"),
                    completion,
                    wakeup,
                });
            }
        }
        let busy = |one: &Rates| one.request_bytes + one.received_bytes + one.requests + one.failed;
        endpoints.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        let of = |sample: &Sample, group: &str, name: &str| {
            let group = sample.stat.groups.get(group).and_then(Option::as_ref);
            group
                .and_then(|group| group.get(name))
                .copied()
                .unwrap_or(0)
        };
        let troubles = ERROR_COUNTERS.map(|name| {
            let count = of(now, "queue", name).saturating_sub(of(before, "queue", name));
            (name.to_owned(), count)
        });
        let instances = now.resource.instances.iter().map(|one| {
            let earlier = before.resource.instances.iter();
            let then = earlier
                .into_iter()
                .find(|then| then.instance == one.instance);
            let [completion, wakeup] = Quantiles::of(then.map(|then| &then.latency), &one.latency);
            let counted = then.map(|then| &then.counters);
            OfInstance {
                instance: one.instance,
                wakeups: rate("wakeups", counted, &one.counters, seconds),
                completion,
                wakeup,
            }
        });
        Self {
            instances: instances.collect(),
            adapter: now.resource.adapter.clone(),
            seconds,
            troubles: troubles
                .into_iter()
                .filter(|(_, count)| *count != 0)
                .collect(),
            connections: of(now, "connections", "established").saturating_sub(of(
                now,
                "connections",
                "ended",
            )),
            silent: now.resource.silent.clone(),
            endpoints,
            shown,
        }
    }
}

/// Formats a number in the unit in which it is below 1000, with at least two digits: 295, 36, 5.2. A number in the
/// first unit has no fraction.
fn in_units(number: f64, units: &[(f64, &str)]) -> String {
    let mut said = String::new();
    for (at, (size, unit)) in units.iter().enumerate() {
        let number = number / size;
        // A number from 9.95 on rounds up to 10, which has two digits without a fraction.
        let is_short = at != 0 && number < 9.95;
        said = if is_short {
            format!("{number:.1}{unit}")
        } else {
            format!("{number:.0}{unit}")
        };
        if number < 999.5 {
            break;
        }
    }
    said
}

/// Formats a time in nanoseconds.
fn time(nanoseconds: u64) -> String {
    let units = [(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")];
    // CAST: the time is rounded when it is shown.
    in_units(nanoseconds as f64, &units)
}

/// Formats the median and the 99th percentile; `-` if there are none.
fn times(of: Option<&Quantiles>) -> String {
    of.map_or_else(
        || "-".to_owned(),
        |of| format!("{}/{}", time(of.p50), time(of.p99)),
    )
}

/// Formats a rate in short form: 1234567 is `1.2M`.
fn short(rate: f64) -> String {
    in_units(
        rate,
        &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")],
    )
}

impl Screen {
    /// Draws the screen on the terminal.
    fn draw(&self) -> io::Result<()> {
        let (width, height) = Terminal::size();
        Terminal::draw(&self.text(Some(width), Some(height)))
    }

    /// Returns the lines of the screen, which fit the width and the height if these are known.
    fn text(&self, width: Option<usize>, height: Option<usize>) -> Vec<String> {
        let troubles = if self.troubles.is_empty() {
            "no packet lost, repeated or refused".to_owned()
        } else {
            let told = self.troubles.iter();
            let told: Vec<String> = told
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            told.join(", ")
        };
        let head = format!(
            "{}: {}, {}; in {:.1} s: {troubles}",
            self.adapter,
            counted(self.endpoints.len(), "endpoint"),
            counted(
                usize::try_from(self.connections).unwrap_or(usize::MAX),
                "connection"
            ),
            self.seconds
        );
        let mut text = wrapped(&head, width);
        let mut last = Vec::new();
        for one in &self.instances {
            let samples = one.completion.as_ref().map_or(0, |of| of.samples);
            let line = format!(
                "instance {}: {} wakeups/s, woken in {}; done in {} ({samples} requests timed)",
                one.instance,
                short(one.wakeups),
                times(one.wakeup.as_ref()),
                times(one.completion.as_ref()),
            );
            last.extend(wrapped(&line, width));
        }
        for number in &self.silent {
            let line = format!("instance {number} is silent: its thread makes no call");
            last.extend(wrapped(&line, width));
        }
        let mut shown = self.shown.unwrap_or(ENDPOINTS);
        if let Some(height) = height {
            last.truncate(height / 3);
            // Two lines are kept for the titles and for the number of endpoints that are left out.
            let fit = height.saturating_sub(text.len() + last.len() + 2);
            shown = self.shown.unwrap_or(usize::MAX).min(fit);
        }
        text.extend(self.table(shown, width));
        let left_out = self.endpoints.len().saturating_sub(shown);
        if left_out != 0 {
            text.push(format!("{left_out} more, less busy"));
        }
        text.extend(last);
        text.truncate(height.unwrap_or(usize::MAX));
        text
    }

    /// Returns the line of titles, and one line for each of the busiest endpoints.
    fn table(&self, shown: usize, width: Option<usize>) -> Vec<String> {
        let number = |title, rank| Column {
            title,
            rank,
            is_number: true,
        };
        let word = |title, rank| Column {
            title,
            rank,
            is_number: false,
        };
        // With several instances an endpoint's number alone is ambiguous.
        let of_instance = if self.instances.len() > 1 { 1 } else { 10 };
        let columns = [
            number("ia", of_instance),
            number("ep", 0),
            word("state", 6),
            word("peer", 2),
            number("req/s", 7),
            number("B/s out", 3),
            number("recv/s", 8),
            number("B/s in", 4),
            number("fail/s", 9),
            number("out", 11),
            number("posted", 13),
            number("done p50/p99", 5),
            number("woken p50/p99", 12),
        ];
        let rows = self.endpoints.iter().take(shown).map(|one| {
            [
                one.instance.to_string(),
                one.endpoint.to_string(),
                one.state.clone(),
                one.peer.clone().unwrap_or_else(|| "-".to_owned()),
                short(one.requests),
                short(one.request_bytes),
                short(one.recvs),
                short(one.received_bytes),
                short(one.failed),
                one.requests_outstanding.to_string(),
                one.recvs_outstanding.to_string(),
                times(one.completion.as_ref()),
                times(one.wakeup.as_ref()),
            ]
        });
        let rows: Vec<_> = rows.collect();
        lines(&columns, &rows, width)
    }
}

impl Report for Screen {
    fn human(&self) -> String {
        self.text(None, None).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(endpoints: u32, instances: u32) -> Screen {
        let took = |p50, p99| {
            Some(Quantiles {
                samples: 1234,
                p50,
                p99,
            })
        };
        let peers = [
            "fe80::5eff:fe10:1",
            "2001:db8:1111:2222:3333:4444:5555:6666",
            "192.0.2.1",
        ];
        let endpoints = (0..endpoints).map(|number| Rates {
            instance: 1 + number % instances,
            endpoint: number,
            state: ["Connected", "Unconnected", "DisconnectPending"][number as usize % 3]
                .to_owned(),
            peer: (number % 5 != 4).then(|| peers[number as usize % 3].to_owned()),
            requests: 123_456.0 * f64::from(number),
            request_bytes: 8.83e9,
            recvs: 0.0,
            received_bytes: 36.15e6,
            failed: 0.0,
            requests_outstanding: 1023,
            recvs_outstanding: 64,
            completion: took(294_912, 5_242_880),
            wakeup: took(999_999, 68_719_476_736),
        });
        let instances = (1..=instances).map(|instance| OfInstance {
            instance,
            wakeups: 1234.5,
            completion: took(294_912, 5_242_880),
            wakeup: None,
        });
        Screen {
            adapter:
                "vfio-user:/run/a/rather/long/path/of/a/socket/that/somebody/has/chosen/nic.sock"
                    .to_owned(),
            seconds: 1.0,
            endpoints: endpoints.collect(),
            troubles: ERROR_COUNTERS.map(|name| (name.to_owned(), 3)).into(),
            connections: 4,
            instances: instances.collect(),
            silent: vec![1],
            shown: None,
        }
    }

    /// Returns the cells of a row, which are separated by two spaces or more.
    fn cells(line: &str) -> Vec<&str> {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_cell_is_broken() {
        for (endpoints, instances) in [(0, 1), (1, 1), (4, 1), (4, 2), (40, 1), (40, 12)] {
            let mut screen = screen(endpoints, instances);
            screen.shown = Some(usize::MAX);
            let all: Vec<String> = screen.text(None, None);
            screen.shown = None;
            let whole: Vec<&str> = all.iter().flat_map(|line| cells(line)).collect();
            for width in 40..=200 {
                for height in [12, 24, 50] {
                    let text = screen.text(Some(width), Some(height));
                    assert!(text.len() <= height, "{} lines of {height}", text.len());
                    for line in &text {
                        assert!(line.chars().count() <= width, "{width}: {line:?}");
                    }
                    let (titles, _) = text
                        .iter()
                        .enumerate()
                        .find(|(_, line)| cells(line).contains(&"ep"))
                        .expect("the titles");
                    let columns = cells(&text[titles]).len();
                    let rows = text
                        .len()
                        .saturating_sub(titles + 1)
                        .min(endpoints as usize);
                    let rows = text[titles + 1..].iter().take(rows);
                    let rows = rows.take_while(|line| {
                        !line.contains("more, less busy") && !line.contains("instance")
                    });
                    for row in rows {
                        let row = cells(row);
                        assert_eq!(row.len(), columns, "{width}: {row:?} of {text:#?}");
                        assert!(row.iter().all(|cell| whole.contains(cell)), "{row:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_terminal_of_80_columns_has_what_matters_most() {
        let titles = |screen: &Screen, width| {
            let text = screen.text(Some(width), Some(24));
            let line = text.iter().find(|line| cells(line).contains(&"ep"));
            cells(line.expect("the titles")).join(" ")
        };
        let mut screen = screen(4, 1);
        for one in &mut screen.endpoints {
            one.peer = Some("fe80::5eff:fe10:1".to_owned());
            one.state = "Connected".to_owned();
        }
        assert_eq!(
            titles(&screen, 80),
            "ep state peer req/s B/s out recv/s B/s in done p50/p99"
        );
        assert_eq!(titles(&screen, 40), "ep peer B/s out B/s in");
        assert_eq!(
            titles(&screen, 200),
            "ia ep state peer req/s B/s out recv/s B/s in fail/s out posted done p50/p99 woken p50/p99"
        );
    }

    #[test]
    fn numbers_have_two_digits_and_the_unit_that_fits() {
        for (nanoseconds, wanted) in [
            (7, "7ns"),
            (999, "999ns"),
            (1_000, "1.0us"),
            (9_949, "9.9us"),
            (9_950, "10us"),
            (294_912, "295us"),
            (999_499, "999us"),
            (999_999, "1.0ms"),
            (5_242_880, "5.2ms"),
            (68_719_476_736, "69s"),
            (5_000_000_000_000, "5000s"),
        ] {
            assert_eq!(time(nanoseconds), wanted);
        }
        for (rate, wanted) in [
            (0.0, "0"),
            (0.4, "0"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (8_830.0, "8.8k"),
            (36.15e6, "36M"),
        ] {
            assert_eq!(short(rate), wanted);
        }
    }
}
