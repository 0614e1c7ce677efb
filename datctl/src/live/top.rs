//! `datctl top`: a screen that lives. What each endpoint does now, how long that takes, and what the network does to
//! it.
//!
//! As long as it runs the process takes the time of some requests and of wakeups; each screen tells of those that were
//! measured since the one before.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use control::schema::{Counters, Endpoint, Histogram, Latency, Resource, Stat};
use control::{Client, ClientError};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Target, ask, measure};
use crate::report::{Output, Report, table};
use crate::value::within;

/// Endpoints of an instance that are looked at.
const OBJECTS: u64 = 4096;
/// Counters of the device that say that something goes wrong on the wire.
const TROUBLES: [&str; 6] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
    "duplicate_request",
];
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// `top`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Seconds between two looks.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Screens, after which it ends. Without it, it ends with the process that is looked at, or by Ctrl-C.
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX))]
    count: Option<u64>,
    /// Endpoints on a screen, the busiest first.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = within(1..=usize::MAX))]
    endpoints: usize,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| format!("{text:?} is no number of seconds from 0.01 to 3600"))
}

/// What was counted at one moment.
struct Look {
    at: Instant,
    stat: Stat,
    resource: Resource,
}

impl Look {
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
    /// Of each endpoint: how much of what a second.
    endpoints: Vec<Rates>,
    /// What the device counted in that time of what goes wrong.
    troubles: BTreeMap<String, u64>,
    connections: u64,
    /// Of each instance: how long things took.
    instances: Vec<OfInstance>,
    silent: Vec<u32>,
    #[serde(skip)]
    shown: usize,
}

/// What an instance measured between two looks.
#[derive(Serialize)]
struct OfInstance {
    instance: u32,
    /// Times a second that a wait which slept ran again.
    wakeups: f64,
    completion: Option<Quantiles>,
    wakeup: Option<Quantiles>,
}

/// Nanoseconds that half of the samples took less than, and 99 of 100.
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

    /// Of completions, and of wakeups.
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
    let mut before = Look::take(&mut client)?;
    let mut screens = 0;
    let live = !output.json && stdout().is_terminal();
    while options.count.is_none_or(|count| screens < count) {
        // Nobody has subscribed, so nothing comes but the end of the process.
        let pause = Duration::from_secs_f64(options.interval);
        let _none: Option<Value> = match client.notice(Some(pause)) {
            Err(ClientError::Over(_)) => return Ok(()),
            told => told?,
        };
        let now = Look::take(&mut client)?;
        let screen = Screen::between(&before, &now, options.endpoints);
        if live {
            write!(stdout(), "{CLEAR}")?;
        } else if screens != 0 && !output.json {
            writeln!(stdout())?;
        }
        output.show(&screen)?;
        before = now;
        screens += 1;
    }
    Ok(())
}

/// How much a second a counter grew by.
fn rate(name: &str, before: Option<&Counters>, now: &Counters, seconds: f64) -> f64 {
    let count = |of: &Counters| of.get(name).copied().unwrap_or(0);
    // CAST: a rate is told roughly.
    count(now).saturating_sub(before.map_or(0, count)) as f64 / seconds
}

impl Screen {
    fn between(before: &Look, now: &Look, shown: usize) -> Self {
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
        let of = |look: &Look, group: &str, name: &str| {
            let group = look.stat.groups.get(group).and_then(Option::as_ref);
            group
                .and_then(|group| group.get(name))
                .copied()
                .unwrap_or(0)
        };
        let troubles = TROUBLES.map(|name| {
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

/// A time in nanoseconds, in microseconds or what else is short.
fn time(nanoseconds: u64) -> String {
    // CAST: told roughly.
    let time = nanoseconds as f64;
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let unit = units.into_iter().find(|(size, _)| time >= *size);
    unit.map_or_else(
        || format!("{time}ns"),
        |(size, name)| format!("{:.3}{name}", time / size),
    )
}

/// Half of them and 99 of 100 took less.
fn times(of: Option<&Quantiles>) -> String {
    of.map_or_else(
        || "-".to_owned(),
        |of| format!("{}/{}", time(of.p50), time(of.p99)),
    )
}

/// A rate, short: 1234567 is `1.23M`.
fn short(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(size, _)| rate >= *size);
    unit.map_or_else(
        || format!("{rate:.0}"),
        |(size, name)| format!("{:.2}{name}", rate / size),
    )
}

impl Report for Screen {
    fn human(&self) -> String {
        let rows = self.endpoints.iter().take(self.shown).map(|one| {
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
        let rates = table(
            [
                "ia",
                "ep",
                "state",
                "peer",
                "requests/s",
                "B/s out",
                "recvs/s",
                "B/s in",
                "failed/s",
                "out",
                "posted",
                "done in p50/p99",
                "woken in p50/p99",
            ],
            rows,
        );
        let troubles = if self.troubles.is_empty() {
            "no packet lost, repeated or refused".to_owned()
        } else {
            let told = self.troubles.iter();
            let told: Vec<String> = told
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            told.join(", ")
        };
        let left_out = self.endpoints.len().saturating_sub(self.shown);
        let mut lines = vec![
            format!(
                "{}: {} endpoints, {} connections; in {:.1} s: {troubles}",
                self.adapter,
                self.endpoints.len(),
                self.connections,
                self.seconds
            ),
            rates,
        ];
        if left_out != 0 {
            lines.push(format!("{left_out} more, less busy"));
        }
        for one in &self.instances {
            let samples = one.completion.as_ref().map_or(0, |of| of.samples);
            lines.push(format!(
                "instance {}: {} wakeups/s, woken in {}; done in {} ({samples} requests timed)",
                one.instance,
                short(one.wakeups),
                times(one.wakeup.as_ref()),
                times(one.completion.as_ref()),
            ));
        }
        for number in &self.silent {
            lines.push(format!(
                "instance {number} is silent: its thread makes no call"
            ));
        }
        lines.join("\n")
    }
}
