//! `datctl perf`: latency and bandwidth of Send, RDMA Write and RDMA Read.
//!
//! Latency is measured with one operation at a time. For Send it is half the time until the echo arrives. For Write and
//! Read it is the time from the post to the completion, which for a Write includes the acknowledgement. Bandwidth is
//! measured with `--depth` operations outstanding on each of `--endpoints` queue pairs and one doorbell for `--batch`
//! operations, and counts payload bytes; with `--both` the other end continuously does the same towards us. For each
//! operation and mode there is one connection, or one for each endpoint, and all sizes use it. After each size of Write
//! and Read the bytes are compared with the expected ones.
//!
//! With `--perftest` the passive end is a program of perftest, and only one row is measured: [`perftest`].
//!
//! Ctrl-C ends a measurement early; the figures until then are shown, marked as not complete.
//!
//! Times are by the machine's clock. On a simulated function they show the speed of the simulator, not of a card.

pub(crate) mod amount;
pub(crate) mod latency;
mod measure;
mod perftest;
mod plot;

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use self::amount::{Amount, size, some_time, warm_up};
use self::latency::Latency;
use self::measure::Bandwidth;
use self::perftest::{Other, Program};
use crate::adapter::is_simulated;
use crate::dialer::Dialer;
use crate::ends::{Ends, Target, connect_by};
use crate::hello::{Hello, Reverse, Role};
use crate::report::{Output, Report, Usage, table};
use crate::value::within;
use simnic::signals::Stop;

/// Name of the schema of the JSON output, docs/schemas/perf-1.json. Its number changes if a field is removed or changes
/// its meaning.
const SCHEMA: &str = "datctl-perf-1";
/// Default limit on the payload bytes of a measurement. It does not reduce the number of operations below
/// `Plan::depth`.
const BYTES_PER_ROW: u64 = 64 << 20;
/// Default number of operations of a measurement.
const COUNT: u64 = 1000;
/// Default message sizes in bytes.
const SIZES: [u64; 4] = [64, 4096, 65_536, 1 << 20];
/// The default number of warm-up operations is the number of operations, divided by this number.
const WARM_UP_PART: u64 = 10;

/// `perf`
#[derive(clap::Args)]
pub(crate) struct Perf {
    #[command(flatten)]
    ends: Ends,
    #[command(flatten)]
    plan: Plan,
    /// The passive end is this program of perftest, started with -R and with the sizes and counts of this command: -s
    /// is --bytes, -n --count, -q --endpoints, -p --qualifier. The defaults are then those of perftest.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["peer", "listen", "operation", "measure", "both"])]
    perftest: Option<Program>,
    /// Show the latencies of each row as a histogram.
    #[arg(long)]
    histogram: bool,
    /// Write the histograms to this file as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the histograms into this file, as an SVG picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Options that specify what is measured.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub(crate) struct Plan {
    /// The operations to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "send,write,read"
    )]
    operation: Vec<Operation>,
    /// The quantities to measure: latency, bandwidth, or both.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "latency,bandwidth"
    )]
    measure: Vec<Measure>,
    /// Bytes of a message, a list such as 64,4k,1M,1G; k, M and G are 2^10, 2^20 and 2^30 [default: 64,4K,64K,1M].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size, allow_negative_numbers = true)]
    bytes: Vec<u64>,
    /// Operations outstanding at a time on an endpoint, for bandwidth.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = within(1..=u32::MAX))]
    depth: u32,
    /// Endpoints (queue pairs) in use at a time, for bandwidth.
    #[arg(long, value_name = "N", visible_alias = "queue-pairs", default_value_t = 1, value_parser = within(1..=1024_u16))]
    endpoints: u16,
    /// Operations posted with one doorbell, for bandwidth; at most the depth.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=u32::MAX))]
    batch: u32,
    /// The other end does the same operations towards us at the same time, for bandwidth.
    #[arg(long)]
    both: bool,
    /// Put the data into the work queue entry itself; only with --operation send, and for short messages.
    #[arg(long, conflicts_with = "batch")]
    inline: bool,
    /// Operations of a measurement [default: 1000, or fewer if they are large].
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX))]
    count: Option<u64>,
    /// Time that a measurement takes, such as 500ms or 10s, instead of a number of operations.
    #[arg(long, value_name = "TIME", conflicts_with = "count", value_parser = some_time)]
    duration: Option<Duration>,
    /// Operations before each measurement that are not measured, a number or a time [default: a tenth of --count or
    /// --duration].
    #[arg(long, value_name = "N|TIME", value_parser = warm_up)]
    warm_up: Option<Amount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    Latency,
    Bandwidth,
}

/// The results of all measurements.
#[derive(Serialize)]
pub(crate) struct Figures {
    schema: &'static str,
    adapter: String,
    peer: String,
    depth: u32,
    endpoints: u16,
    batch: u32,
    inline: bool,
    both: bool,
    /// True if our function is simulated, so that no figure says anything about a card.
    simulated: bool,
    /// True if the peer reports that its function is simulated.
    peer_simulated: bool,
    /// False if the run ended before everything was measured.
    complete: bool,
    /// The peer's program and its version, if the peer is a program of perftest.
    #[serde(skip_serializing_if = "Option::is_none")]
    perftest: Option<Other>,
    rows: Vec<Row>,
    /// True if the table for a person has histograms.
    #[serde(skip)]
    with_histograms: bool,
}

/// Figures of one operation at one size.
#[derive(Serialize)]
struct Row {
    operation: Operation,
    bytes: u64,
    latency: Option<Latency>,
    bandwidth: Option<Bandwidth>,
}

/// Runs the measurements. Returns false if they ended before everything was measured.
pub(crate) fn run(perf: &Perf, output: Output) -> Result<bool, Box<dyn Error>> {
    let plan = perf.plan().map_err(Usage)?;
    let port = perftest::port(perf.ends.qualifier().filter(|_| perf.perftest.is_some()));
    let port = port.map_err(Usage)?;
    let [csv, svg] = [&perf.csv, &perf.svg].map(|path| Drawing::at(path.as_ref()));
    let (csv, svg) = (csv?, svg?);
    // The signals are blocked first, because threads inherit the blocked signals when they start.
    let stop = if perf.ends.is_active() {
        Stop::on_signals()?
    } else {
        Stop::never()
    };
    let Some((mut dialer, target)) = connect_by(&perf.ends, output)? else {
        return Ok(true);
    };
    let name = &perf.ends.name;
    let measured = match perf.perftest {
        None => plan.figures(&mut dialer, &target, name, &stop),
        Some(program) => {
            let mut figures = plan.nothing_yet(&target, name);
            let peer = (target.address, port);
            let measured =
                perftest::measure(&plan, program, &mut dialer, peer, &stop, &mut figures);
            figures.complete = !stop.is_asked();
            measured.map(|()| figures)
        }
    };
    // The connections are ended even after an error, so that a peer does not wait for us.
    let closed = dialer.close();
    let figures = measured?;
    closed?;
    let figures = Figures {
        with_histograms: perf.histogram,
        ..figures
    };
    // The files are written first, because the reader of the output may close it early. The output is printed even if
    // the files cannot be written, because nothing else has the figures.
    let filled = [
        csv.map(|drawing| drawing.fill(&figures.csv())),
        svg.map(|drawing| drawing.fill(&plot::draw(&figures))),
    ];
    output.show(&figures)?;
    filled.into_iter().flatten().collect::<Result<(), _>>()?;
    Ok(figures.complete)
}

/// A file that is opened before the measurement, so that an error is reported at once. It keeps its former contents
/// until there are figures.
struct Drawing<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Drawing<'a> {
    fn at(path: Option<&'a PathBuf>) -> Result<Option<Self>, String> {
        let made = path.map(|path| {
            let mut options = File::options();
            options.create(true).truncate(false).write(true);
            let file = options.open(path);
            let file = file.map_err(|error| Self::failed(path, &error))?;
            Ok(Self { path, file })
        });
        made.transpose()
    }

    fn failed(path: &Path, error: &io::Error) -> String {
        format!("{}: {error}", path.display())
    }

    fn fill(mut self, text: &str) -> Result<(), String> {
        let written = self.file.metadata().and_then(|there| {
            // A pipe or a terminal has no length.
            if there.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())
        });
        written.map_err(|error| Self::failed(self.path, &error))
    }
}

impl Perf {
    /// Returns the plan, or an error for a combination of options that clap cannot check.
    fn plan(&self) -> Result<Plan, String> {
        let plan = match self.perftest {
            Some(program) => perftest::plan(&self.plan, program)?,
            None => self.plan.clone(),
        };
        if plan.inline && plan.operation != [Operation::Send] {
            return Err("--inline is of Sends: with --operation send".to_owned());
        }
        if plan.batch > plan.depth {
            let (batch, depth) = (plan.batch, plan.depth);
            return Err(format!(
                "a batch of {batch} is more than a depth of {depth}"
            ));
        }
        let draws = self.histogram || self.csv.is_some() || self.svg.is_some();
        if draws && !plan.measure.contains(&Measure::Latency) {
            return Err("histograms are of latencies: with --measure latency".to_owned());
        }
        Ok(plan)
    }
}

impl Plan {
    /// Returns a plan of every operation at every default size. `count` is the number of operations of each
    /// measurement; `None` is the default.
    pub(crate) fn brief(count: Option<u64>) -> Self {
        Self {
            operation: vec![Operation::Send, Operation::Write, Operation::Read],
            measure: vec![Measure::Latency, Measure::Bandwidth],
            bytes: Vec::new(),
            depth: 16,
            endpoints: 1,
            batch: 1,
            both: false,
            inline: false,
            count,
            duration: None,
            warm_up: None,
        }
    }

    /// Runs the measurements.
    pub(crate) fn figures(
        &self,
        dialer: &mut Dialer,
        target: &Target,
        name: &str,
        stop: &Stop,
    ) -> Result<Figures, Box<dyn Error>> {
        let mut figures = self.nothing_yet(target, name);
        self.measure_rows(dialer, target, stop, &mut figures)?;
        figures.complete = !stop.is_asked();
        Ok(figures)
    }

    /// Returns figures without rows.
    fn nothing_yet(&self, target: &Target, name: &str) -> Figures {
        Figures {
            schema: SCHEMA,
            adapter: name.to_owned(),
            peer: target.address.to_string(),
            depth: self.depth,
            endpoints: self.endpoints,
            batch: self.batch,
            inline: self.inline,
            both: self.both,
            simulated: is_simulated(name),
            peer_simulated: false,
            complete: true,
            perftest: None,
            rows: Vec::new(),
            with_histograms: false,
        }
    }

    fn measure_rows(
        &self,
        dialer: &mut Dialer,
        target: &Target,
        stop: &Stop,
        figures: &mut Figures,
    ) -> Result<(), Box<dyn Error>> {
        let lanes = |measure| self.lanes(measure);
        let of_one: u32 = self.measure.iter().map(|&it| u32::from(lanes(it))).sum();
        let mut left = of_one * u32::try_from(self.operation.len())?;
        for &operation in &self.operation {
            let first = figures.rows.len();
            figures.rows.extend(self.sizes().iter().map(|&bytes| Row {
                operation,
                bytes,
                latency: None,
                bandwidth: None,
            }));
            for &measure in &self.measure {
                if stop.is_asked() {
                    return Ok(());
                }
                let reverse = (self.both && measure == Measure::Bandwidth).then(|| Reverse {
                    reads: operation == Operation::Read,
                    // The dialer fills in the memory when it connects.
                    memory: udapl::memory::RmrTriplet {
                        rmr_context: 0,
                        target_address: 0,
                        segment_length: 0,
                    },
                });
                for _ in 0..lanes(measure) {
                    left -= 1;
                    let hello = Hello {
                        role: match (operation, measure) {
                            (Operation::Send, Measure::Latency) => Role::Echo,
                            (Operation::Send, Measure::Bandwidth) => Role::Sink,
                            (Operation::Write | Operation::Read, _) => Role::Memory,
                        },
                        more: u16::try_from(left)?,
                        depth: self.depth,
                        bytes: self.longest(),
                        reverse,
                    };
                    let slots = 2 + 2 * usize::from(reverse.is_some());
                    dialer.connect(target.address, target.qualifier, &hello, slots)?;
                }
                figures.peer_simulated |= dialer.lane(0).2.simulated;
                for row in &mut figures.rows[first..] {
                    self.measure_row(row, measure, dialer, stop)
                        .map_err(|error| {
                            format!("{operation:?} of {} bytes: {error}", row.bytes)
                        })?;
                }
                dialer.disconnect_all()?;
            }
        }
        Ok(())
    }

    /// Returns the message sizes in bytes.
    fn sizes(&self) -> &[u64] {
        match &self.bytes[..] {
            [] => &SIZES,
            asked => asked,
        }
    }

    /// Returns the number of connections that are measured at a time.
    const fn lanes(&self, measure: Measure) -> u16 {
        match measure {
            Measure::Latency => 1,
            Measure::Bandwidth => self.endpoints,
        }
    }

    /// Returns the amount of operations at this size. The default is smaller for large messages, so that no measurement
    /// takes too long.
    fn amount(&self, bytes: u64) -> Amount {
        if let Some(time) = self.duration {
            return Amount::Time(time);
        }
        let fit = (BYTES_PER_ROW / bytes).max(u64::from(self.depth));
        Amount::Operations(self.count.unwrap_or_else(|| COUNT.min(fit)))
    }

    /// Returns the amount of warm-up operations at this size.
    fn before(&self, bytes: u64) -> Amount {
        self.warm_up.unwrap_or_else(|| match self.amount(bytes) {
            Amount::Operations(count) => Amount::Operations(count / WARM_UP_PART),
            Amount::Time(time) => Amount::Time(time / 10),
        })
    }
}

impl Figures {
    /// Returns the lowest median latency and the highest bandwidth of each operation, as text.
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

    /// Returns the rows that have latencies, each with its title.
    fn latencies(&self) -> impl Iterator<Item = (String, &Row, &Latency)> {
        self.rows.iter().filter_map(|row| {
            let latency = row.latency.as_ref()?;
            let name = format!("{} of {}", row.operation.name(), short_size(row.bytes));
            Some((name, row, latency))
        })
    }

    /// Returns one line of CSV for each bar of each histogram.
    fn csv(&self) -> String {
        let mut text = "operation,bytes,up_to_us,count,percentile\n".to_owned();
        for (_, row, latency) in self.latencies() {
            for bar in latency.bars() {
                let (operation, bytes) = (row.operation.name(), row.bytes);
                let (us, count, below) = (bar.up_to_us, bar.count, bar.percentile);
                // PANIC: writing to memory does not fail.
                writeln!(text, "{operation},{bytes},{us:.3},{count},{below:.4}").expect("a string");
            }
        }
        text
    }

    /// Returns a note if the figures are not those of a card.
    fn disclaimer(&self) -> Option<&'static str> {
        match (self.simulated, self.peer_simulated) {
            (false, false) => None,
            (true, true) => Some("simulated: how fast the simulator is, and nothing of a card"),
            (true, false) => {
                Some("simulated, this end: how fast the simulator is, and nothing of a card")
            }
            (false, true) => {
                Some("simulated, the peer: how fast the simulator is, and nothing of a card")
            }
        }
    }
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// Formats a size, such as `64 B` or `4 KiB`.
fn short_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |shift: &u32| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift);
    let unit = units.iter().find(|(shift, _)| whole(shift));
    unit.map_or_else(
        || format!("{bytes} B"),
        |(shift, name)| format!("{} {name}", bytes >> shift),
    )
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
            let bandwidth = |figure: fn(&Bandwidth) -> Option<f64>, unit: f64| {
                row.bandwidth
                    .as_ref()
                    .and_then(figure)
                    .map_or_else(dash, |figure| format!("{:.1}", figure / unit))
            };
            [
                row.operation.name().to_owned(),
                row.bytes.to_string(),
                latency(|it| it.min_us),
                latency(|it| it.median_us),
                latency(|it| it.p99_us),
                latency(|it| it.p99_99_us),
                latency(|it| it.max_us),
                bandwidth(|it| Some(it.bytes_per_second), 1e6),
                bandwidth(|it| it.reverse_bytes_per_second, 1e6),
                bandwidth(|it| Some(it.operations_per_second), 1e3),
            ]
        });
        let header = [
            "operation",
            "bytes",
            "min us",
            "median us",
            "p99 us",
            "p99.99 us",
            "max us",
            "MB/s",
            "back MB/s",
            "k/s",
        ];
        let mut text = table(header, rows);
        if self.with_histograms {
            for (name, _, latency) in self.latencies() {
                // PANIC: writing to memory does not fail.
                write!(text, "\n\n{name}\n{}", latency.picture()).expect("a string");
            }
        }
        let way = match (self.endpoints, self.batch) {
            (1, 1) => format!("{} under way", self.depth),
            (1, batch) => format!("{} under way, {batch} behind a doorbell", self.depth),
            (endpoints, batch) => format!(
                "{} under way on each of {endpoints} endpoints, {batch} behind a doorbell",
                self.depth
            ),
        };
        // PANIC, both: writing to memory does not fail.
        if let Some(Other { program, version }) = &self.perftest {
            let what = match self.latencies().next() {
                Some((_, _, latency)) => format!("latency: {}", latency.measures()),
                None => format!("bandwidth: {way}"),
            };
            write!(
                text,
                "\n\n{what}; the peer is {program} of perftest {version}"
            )
            .expect("a string");
        } else {
            write!(
                text,
                "\n\nlatency: send half the round trip, write and read post to completion; bandwidth: {way}"
            )
            .expect("a string");
        }
        if let Some(said) = self.disclaimer() {
            text.push('\n');
            text.push_str(said);
        }
        if !self.complete {
            text.push_str("\nnot complete: it was ended before all was measured");
        }
        text
    }
}
