//! `datctl perf`: latency and bandwidth of Send, RDMA Write and RDMA Read.
//!
//! Latency is one operation at a time: for Send half the time until the echo is there, for Write and Read the time from
//! the post to the completion, which for a Write includes the acknowledgement. Bandwidth keeps `--depth` operations
//! under way and counts payload bytes. For each operation and mode there is one connection, and all sizes run over it.
//! After each size of Write and Read the bytes are compared with what they should be.
//!
//! Times are the machine's. On a simulated function they tell how fast the simulator is, and nothing of a card.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use udapl::{CompletionFlags, DtoCookie, RmrTriplet};

use crate::dialer::Dialer;
use crate::ends::{Ends, Target, connect_by};
use crate::hello::{Hello, MAX_BYTES, Role};
use crate::listener::{MEMORY_SEED, pattern};
use crate::report::{Output, Report, table};

/// Payload bytes that a measurement moves at most, unless the count is given.
const BYTES_PER_ROW: u64 = 64 << 20;
/// Operations of a measurement, unless given.
const COUNT: u64 = 1000;
/// Cookie of an echo.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const NONE: CompletionFlags = CompletionFlags::empty();

/// `perf`
#[derive(clap::Args)]
pub(crate) struct Perf {
    #[command(flatten)]
    ends: Ends,
    #[command(flatten)]
    plan: Plan,
}

/// What is measured.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Plan {
    /// The operations.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "send,write,read"
    )]
    operation: Vec<Operation>,
    /// What is measured.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "latency,bandwidth"
    )]
    measure: Vec<Measure>,
    /// Bytes of a message, a list; K and M are 2^10 and 2^20.
    #[arg(long, value_delimiter = ',', default_value = "64,4K,64K,1M", value_parser = size)]
    bytes: Vec<u64>,
    /// Operations under way at a time, for bandwidth.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Operations of a measurement [default: 1000, fewer of large ones].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Send,
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    Latency,
    Bandwidth,
}

/// `64`, `4K`, `1M`.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(_) | None => (text, 1),
    };
    let bytes = digits
        .parse()
        .ok()
        .and_then(|count: u64| count.checked_mul(unit));
    bytes
        .filter(|bytes| (1..=MAX_BYTES).contains(bytes))
        .ok_or_else(|| format!("{text:?} is no size from 1 to 1024M"))
}

/// A function that a program plays.
pub(crate) fn is_simulated(name: &str) -> bool {
    name.starts_with("sim:") || name.starts_with("vfio-user:")
}

/// All measurements.
#[derive(Serialize)]
pub(crate) struct Figures {
    adapter: String,
    peer: String,
    depth: u32,
    /// The function is played by a program: no figure says anything of a card.
    simulated: bool,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    operation: Operation,
    bytes: u64,
    messages: u64,
    latency: Option<Latency>,
    bandwidth: Option<Bandwidth>,
}

#[derive(Serialize)]
struct Latency {
    measures: &'static str,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
    mean_us: f64,
}

#[derive(Serialize)]
struct Bandwidth {
    seconds: f64,
    bytes_per_second: f64,
    messages_per_second: f64,
}

pub(crate) fn run(perf: &Perf, output: Output) -> Result<(), Box<dyn Error>> {
    let Some((mut dialer, target)) = connect_by(&perf.ends, output)? else {
        return Ok(());
    };
    let figures = perf.plan.figures(&mut dialer, &target, &perf.ends.name)?;
    dialer.close()?;
    output.show(&figures)?;
    Ok(())
}

impl Plan {
    /// Every operation at every size, so many times each, or as many as usual.
    pub(crate) fn brief(count: Option<u64>) -> Self {
        Self {
            operation: vec![Operation::Send, Operation::Write, Operation::Read],
            measure: vec![Measure::Latency, Measure::Bandwidth],
            bytes: vec![64, 4096, 65_536, 1 << 20],
            depth: 16,
            count,
        }
    }

    /// Measures.
    pub(crate) fn figures(
        &self,
        dialer: &mut Dialer,
        target: &Target,
        name: &str,
    ) -> Result<Figures, Box<dyn Error>> {
        Ok(Figures {
            adapter: name.to_owned(),
            peer: target.address.to_string(),
            depth: self.depth,
            simulated: is_simulated(name),
            rows: self.rows(dialer, target)?,
        })
    }

    fn rows(&self, dialer: &mut Dialer, target: &Target) -> Result<Vec<Row>, Box<dyn Error>> {
        let mut rows = Vec::new();
        let mut left = self.operation.len() * self.measure.len();
        for &operation in &self.operation {
            let first = rows.len();
            rows.extend(self.bytes.iter().map(|&bytes| Row {
                operation,
                bytes,
                messages: self.messages(bytes),
                latency: None,
                bandwidth: None,
            }));
            for &measure in &self.measure {
                left -= 1;
                let hello = Hello {
                    role: match (operation, measure) {
                        (Operation::Send, Measure::Latency) => Role::Echo,
                        (Operation::Send, Measure::Bandwidth) => Role::Sink,
                        (Operation::Write | Operation::Read, _) => Role::Memory,
                    },
                    more: u8::try_from(left)?,
                    depth: self.depth,
                    bytes: self.bytes.iter().copied().max().unwrap_or(1),
                };
                dialer.connect(target.address, target.qualifier, &hello, 2)?;
                for row in &mut rows[first..] {
                    row.measure(measure, dialer, self.depth).map_err(|error| {
                        format!("{operation:?} of {} bytes: {error}", row.bytes)
                    })?;
                }
                dialer.hang_up()?;
            }
        }
        Ok(rows)
    }

    /// How many of this size, so that no measurement takes for ever.
    fn messages(&self, bytes: u64) -> u64 {
        let fit = (BYTES_PER_ROW / bytes).max(u64::from(self.depth));
        self.count.unwrap_or_else(|| COUNT.min(fit))
    }
}

impl Row {
    fn measure(
        &mut self,
        measure: Measure,
        dialer: &mut Dialer,
        depth: u32,
    ) -> Result<(), Box<dyn Error>> {
        let bytes = usize::try_from(self.bytes)?;
        let sent = pattern(u32::try_from(self.bytes)?, bytes);
        let (_, region, _) = dialer.session();
        region.memory.write_from(0, &sent)?;
        match measure {
            Measure::Latency => self.latency = Some(self.latency(dialer, bytes)?),
            Measure::Bandwidth => self.bandwidth = Some(self.bandwidth(dialer, bytes, depth)?),
        }
        match self.operation {
            Operation::Send => Ok(()),
            // What was written is read back. Each connection finds the peer's memory as new.
            Operation::Write => {
                post(dialer, Operation::Read, 1, bytes, SEND)?;
                dialer.completed()?;
                check(dialer, 1, &sent)
            }
            Operation::Read => check(dialer, 1, &pattern(MEMORY_SEED, bytes)),
        }
    }

    fn latency(&self, dialer: &mut Dialer, bytes: usize) -> Result<Latency, Box<dyn Error>> {
        let mut times = Vec::new();
        for _ in 0..self.messages {
            dialer.beat()?;
            let (ep, region, _) = dialer.session();
            let (outbox, inbox) = (region.local(0, bytes), region.local(1, bytes));
            match self.operation {
                Operation::Send => {
                    let ia = &mut dialer.adapter.ia;
                    ia.ep_post_recv(ep, &[inbox], DtoCookie(RECEIVE), NONE)?;
                    let start = Instant::now();
                    ia.ep_post_send(ep, &[outbox], DtoCookie(SEND), NONE)?;
                    for _ in [SEND, RECEIVE] {
                        let done = dialer.completed()?;
                        if done.cookie != DtoCookie(RECEIVE) {
                            continue;
                        }
                        times.push(start.elapsed() / 2);
                        if done.transferred_length != self.bytes {
                            let echo = done.transferred_length;
                            return Err(format!("an echo of {echo} bytes").into());
                        }
                    }
                }
                Operation::Write | Operation::Read => {
                    let start = Instant::now();
                    post(dialer, self.operation, 1, bytes, SEND)?;
                    dialer.completed()?;
                    times.push(start.elapsed());
                }
            }
        }
        Ok(Latency::of(self.operation, times))
    }

    fn bandwidth(
        &self,
        dialer: &mut Dialer,
        bytes: usize,
        depth: u32,
    ) -> Result<Bandwidth, Box<dyn Error>> {
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        while done < self.messages {
            dialer.beat()?;
            while posted < self.messages && posted - done < u64::from(depth) {
                post(dialer, self.operation, 1, bytes, SEND)?;
                posted += 1;
            }
            dialer.completed()?;
            dialer.give_turn()?;
            done += 1;
        }
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        // CAST: counts below 2^53 are exact, and these are.
        let rate = |count: u64| count as f64 / seconds;
        Ok(Bandwidth {
            seconds,
            bytes_per_second: rate(self.messages.saturating_mul(self.bytes)),
            messages_per_second: rate(self.messages),
        })
    }
}

/// Posts one operation: sends and writes from slot 0, reads into `into`.
fn post(
    dialer: &mut Dialer,
    operation: Operation,
    into: usize,
    bytes: usize,
    cookie: u64,
) -> Result<(), Box<dyn Error>> {
    let (ep, region, remote) = dialer.session();
    let (from, into) = (region.local(0, bytes), region.local(into, bytes));
    let remote = RmrTriplet {
        segment_length: bytes as u64,
        ..remote
    };
    let ia = &mut dialer.adapter.ia;
    Ok(match operation {
        Operation::Send => ia.ep_post_send(ep, &[from], DtoCookie(cookie), NONE),
        Operation::Write => ia.ep_post_rdma_write(ep, &[from], DtoCookie(cookie), &remote, NONE),
        Operation::Read => ia.ep_post_rdma_read(ep, &[into], DtoCookie(cookie), &remote, NONE),
    }?)
}

/// A slot holds these bytes.
fn check(dialer: &Dialer, slot: usize, expected: &[u8]) -> Result<(), Box<dyn Error>> {
    let (_, region, _) = dialer.session();
    let found = region.memory.read(region.offset(slot), expected.len())?;
    match found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} is {:#04x} and not {:#04x}",
            found[at], expected[at]
        )
        .into()),
    }
}

impl Figures {
    /// The shortest latency and the widest bandwidth of each operation.
    pub(crate) fn summary(&self) -> String {
        let of = |operation: Operation| {
            let rows = || {
                self.rows
                    .iter()
                    .filter(move |row| row.operation == operation)
            };
            let latency = rows()
                .filter_map(|row| Some(row.latency.as_ref()?.median_us))
                .fold(f64::INFINITY, f64::min);
            let bandwidth = rows()
                .filter_map(|row| Some(row.bandwidth.as_ref()?.bytes_per_second))
                .fold(0.0, f64::max);
            format!("{operation:?} {latency:.1} us, {:.0} MB/s", bandwidth / 1e6)
        };
        [Operation::Send, Operation::Write, Operation::Read]
            .map(of)
            .join("; ")
    }
}

impl Latency {
    fn of(operation: Operation, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |place: usize| times.get(place).copied().map_or(0.0, micros);
        let last = times.len().saturating_sub(1);
        let sum: Duration = times.iter().sum();
        Self {
            measures: match operation {
                Operation::Send => "half the round trip",
                Operation::Write | Operation::Read => "post to completion",
            },
            min_us: at(0),
            median_us: at(times.len() / 2),
            p99_us: at((times.len() * 99 / 100).min(last)),
            max_us: at(last),
            // CAST: counts below 2^53 are exact.
            mean_us: micros(sum) / (times.len().max(1) as f64),
        }
    }
}

impl Report for Figures {
    fn human(&self) -> String {
        let dash = || "-".to_owned();
        let rows = self.rows.iter().map(|row| {
            let latency = |figure: fn(&Latency) -> f64| {
                row.latency
                    .as_ref()
                    .map_or_else(dash, |latency| format!("{:.2}", figure(latency)))
            };
            let bandwidth = |figure: fn(&Bandwidth) -> f64, unit: f64| {
                row.bandwidth
                    .as_ref()
                    .map_or_else(dash, |it| format!("{:.1}", figure(it) / unit))
            };
            [
                format!("{:?}", row.operation).to_lowercase(),
                row.bytes.to_string(),
                row.messages.to_string(),
                latency(|it| it.min_us),
                latency(|it| it.median_us),
                latency(|it| it.p99_us),
                bandwidth(|it| it.bytes_per_second, 1e6),
                bandwidth(|it| it.messages_per_second, 1e3),
            ]
        });
        let header = [
            "operation",
            "bytes",
            "messages",
            "min us",
            "median us",
            "p99 us",
            "MB/s",
            "k/s",
        ];
        let mut text = table(header, rows);
        text.push_str(&format!(
            "\n\nlatency: send half the round trip, write and read post to completion; bandwidth: {} under way",
            self.depth
        ));
        if self.simulated {
            text.push_str("\nsimulated: how fast the simulator is, and nothing of a card");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(size("64"), Ok(64));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("1024M"), Ok(1 << 30));
        for wrong in ["", "0", "K", "1025M", "1G", "-1", "18446744073709551615M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn latencies_are_sorted_before_they_are_summed_up() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let latency = Latency::of(Operation::Write, times);
        let figures = [
            latency.min_us,
            latency.median_us,
            latency.p99_us,
            latency.max_us,
            latency.mean_us,
        ];
        let expected = [1.0, 101.0, 199.0, 200.0, 100.5];
        for (figure, expected) in figures.into_iter().zip(expected) {
            assert!((figure - expected).abs() < 1e-9, "{figures:?}");
        }
    }
}
