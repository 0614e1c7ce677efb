//! `datctl accept`: the acceptance run of a card.
//!
//! A card is accepted when every operation of a storage daemon has been done on it once and the bytes were compared. A
//! function of the card is brought up repeatedly, and talks with itself, with a second function, and with the kernel's
//! `rdma_cm`. Its link goes down and up; it is reset and removed while it works; its program is killed. It is measured,
//! and works for hours. Each of these is a line of one table. A line opens and closes the functions by itself, so that
//! the next line can run even if this one fails.
//!
//! A line that cannot be run on this function from this machine (a link that belongs to a physical function elsewhere,
//! a reset without being root) is *skipped*, with the reason. A skipped line says nothing about the card; the last line
//! of the table counts them.
//!
//! Everything is kept in one directory, the bundle, for later analysis.
//!
//! A line works on [`Subject`]s, which may be real functions or simulated ones. Tests pass faulty ones.

mod alone;
mod between;
mod bundle;
mod exchange;
mod levers;
mod lines;
mod outside;
mod pair;
#[cfg(test)]
mod profiles;
mod sentences;
mod subject;
mod surroundings;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::env;
use std::error::Error;
use std::io::{Write, stderr};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use driver::pci::Machine;

use self::between::Between;
use self::bundle::Bundle;
pub(crate) use self::bundle::trace_writer;
use self::outside::NOTICE_LIMIT;
use self::subject::Subject;
use self::surroundings::Surroundings;
use self::table::{Acceptance, Row, Verdict};
pub(crate) use self::wire::{Listener as WireListener, bytes};
use crate::adapter::{Adapter, AdapterOptions};
use crate::report::{Output, Usage};
use crate::value::{address, within};
use crate::{doctor, rping};

/// Memory to be registered that the doctor lines assume, in MiB: two regions of some megabytes, and a reserve.
const MEMORY_MIB: u64 = 64;
/// Number of round trips with a peer's `rping`, and length of a text in bytes.
const RPINGS: u32 = 100;
const RPING_BYTES: u32 = 4096;
/// Limit on the length of the soak, in hours: a year.
const MAX_HOURS: f64 = 8766.0;

/// `accept`
#[derive(clap::Args)]
pub(crate) struct Accept {
    /// The function: a PCI address, vfio-user:SOCKET or sim:NAME.
    function: String,
    /// A second function, which the first can reach.
    other: Option<String>,
    /// A machine on which `rping -s -S 4096` of librdmacm runs, by the address it listens on.
    #[arg(long, value_name = "IP", value_parser = address)]
    peer: Option<IpAddr>,
    /// The RDMA-CM port of that rping.
    #[arg(long, value_name = "N", default_value_t = 7174, value_parser = within(1..=u16::MAX))]
    port: u16,
    /// Hours of the soak, which may be a fraction.
    #[arg(long, value_name = "N", default_value = "0", value_parser = hours)]
    hours: Duration,
    /// Run only these lines of the table, separated by commas. Nothing is accepted then.
    #[arg(long, value_name = "LINES", value_delimiter = ',', value_parser = sentences::lines())]
    only: Vec<String>,
    /// The directory that everything is kept in; it must not exist [default: accept-SECONDS, from the current time].
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    options: AdapterOptions,
}

/// Parses a number of hours, such as `0.5`.
fn hours(text: &str) -> Result<Duration, String> {
    let hours = text
        .parse::<f64>()
        .ok()
        .filter(|hours| (0.0..=MAX_HOURS).contains(hours));
    hours
        .map(|hours| Duration::from_secs_f64(hours * 3600.0))
        .ok_or_else(|| format!("{text:?} is no number of hours from 0 to {MAX_HOURS}"))
}

/// Result of a line that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Ok(String),
    Skipped(String),
}

/// Runs the acceptance. Returns false if a line is not ok.
pub(crate) fn run(
    accept: &Accept,
    machine: &Machine,
    output: Output,
) -> Result<bool, Box<dyn Error>> {
    let options = accept.options.open_options();
    let mut subjects = vec![levers::subject(&accept.function, &options, machine)];
    if let Some(other) = &accept.other {
        if *other == accept.function {
            let what = format!("{other} is named twice: name two functions");
            return Err(Usage(what).into());
        }
        // The options with addresses concern only the first function. The second has the address that follows from its
        // MAC.
        let options = AdapterOptions::default().open_options();
        subjects.push(levers::subject(other, &options, machine));
    }
    let bundle = Bundle::create(accept.bundle.as_deref())?;
    let mut run = Run {
        rows: Vec::new(),
        bundle: &bundle,
        only: &accept.only,
    };
    let surroundings = Surroundings::before(machine, &subjects, &bundle)?;
    run.lines(accept, &subjects, machine);
    let whole = accept.only.is_empty();
    let acceptance = Acceptance::new(&subjects, whole, run.rows, machine, &bundle);
    let report = bundle.add("report", &acceptance);
    output.show(&acceptance)?;
    let mut lost = bundle::ended();
    lost.extend(
        surroundings
            .after(&bundle)
            .err()
            .map(|error| error.to_string()),
    );
    lost.extend(report.err().map(|error| error.to_string()));
    if !lost.is_empty() {
        return Err(format!("not all could be kept: {}", lost.join("; ")).into());
    }
    Ok(acceptance.ok)
}

/// A run in progress, with the lines so far.
struct Run<'a> {
    rows: Vec<Row>,
    bundle: &'a Bundle,
    /// Names of the lines to run; all if empty.
    only: &'a [String],
}

impl Run<'_> {
    /// Runs all lines, first the lines on which the others depend.
    fn lines(&mut self, accept: &Accept, subjects: &[Subject<'_>], machine: &Machine) {
        let all = names(subjects);
        for (number, subject) in subjects.iter().enumerate() {
            self.row("self test", &subject.name, |_| {
                crate::selftest::sentence(subject.function()?).map(Outcome::Ok)
            });
            self.row("doctor", &subject.name, |bundle| {
                self::doctor(subject, machine, number, bundle)
            });
            self.row("record", &subject.name, |bundle| {
                let file = bundle.path().join(format!("record-{number}.toml"));
                lines::record(subject, &file).map(Outcome::Ok)
            });
            self.row("RDMA alone", &subject.name, |_| alone::rdma_alone(subject));
            self.row("bring-up", &subject.name, |_| {
                lines::bring_up(subject).map(Outcome::Ok)
            });
            self.row("port", &subject.name, |bundle| {
                let (found, adapter) = lines::port(subject)?;
                bundle.add(&format!("info-{number}"), &adapter)?;
                Ok(Outcome::Ok(found))
            });
            self.row("loopback", &subject.name, |_| {
                lines::dtos(std::slice::from_ref(subject)).map(Outcome::Ok)
            });
        }
        let two = |line: &dyn Fn() -> Result<Outcome, Box<dyn Error>>| match subjects.len() {
            2 => line(),
            _ => Ok(Outcome::Skipped("takes two functions".to_owned())),
        };
        self.row("e-switch", &all, |bundle| {
            two(&|| {
                let keep = |between: &Between| bundle.add("counters-e-switch", between);
                lines::meet(subjects, keep).map(Outcome::Ok)
            })
        });
        self.row("DTOs", &all, |_| {
            two(&|| lines::dtos(subjects).map(Outcome::Ok))
        });
        self.row("connections", &all, |bundle| {
            let keep = |between: &Between| bundle.add("counters-connections", between);
            lines::churn(subjects, keep).map(Outcome::Ok)
        });
        self.row("kernel peer", &subjects[0].name, |_| {
            kernel_peer(accept, &subjects[0])
        });
        self.row("link", &subjects[0].name, |_| {
            outside::link(subjects, NOTICE_LIMIT)
        });
        self.row("reset", &subjects[0].name, |_| {
            outside::reset(subjects, NOTICE_LIMIT)
        });
        self.row("unbind", &subjects[0].name, |_| {
            outside::unbind(subjects, NOTICE_LIMIT)
        });
        self.row("kill", &all, |_| {
            outside::kill(subjects, &env::current_exe()?)
        });
        self.row("perf", &all, |bundle| {
            let [one, other] = subjects else {
                return Ok(Outcome::Skipped("takes two functions".to_owned()));
            };
            let (found, figures) = lines::perf(one, other)?;
            bundle.add("perf", &figures)?;
            Ok(Outcome::Ok(found))
        });
        self.row("soak", &all, |_| soak(subjects, accept.hours));
    }

    /// Runs one line and reports it at once, since the next may take long.
    fn row(
        &mut self,
        line: &'static str,
        of: &str,
        check: impl FnOnce(&Bundle) -> Result<Outcome, Box<dyn Error>>,
    ) {
        let start = Instant::now();
        let wanted = self.only.is_empty() || self.only.iter().any(|it| it == line);
        let ran = if wanted {
            tracing::info!(line, of, "begins");
            check(self.bundle)
        } else {
            Ok(Outcome::Skipped("not named by --only".to_owned()))
        };
        let (verdict, found) = match ran {
            Ok(Outcome::Ok(found)) => (Verdict::Ok, found),
            Ok(Outcome::Skipped(why)) => (Verdict::Skipped, why),
            Err(error) => (Verdict::NotOk, error.to_string()),
        };
        let row = Row {
            line,
            of: of.to_owned(),
            verdict,
            apart: (verdict == Verdict::NotOk)
                .then(|| sentences::sentence(line))
                .flatten(),
            found,
            seconds: start.elapsed().as_secs_f64(),
        };
        // If standard error is closed, the table still reports the line.
        let _nobody_reads = writeln!(stderr(), "{}", row.progress());
        self.rows.push(row);
    }
}

fn names(subjects: &[Subject<'_>]) -> String {
    let names: Vec<&str> = subjects.iter().map(|it| it.name.as_str()).collect();
    names.join(" ")
}

fn doctor(
    subject: &Subject<'_>,
    machine: &Machine,
    number: usize,
    bundle: &Bundle,
) -> Result<Outcome, Box<dyn Error>> {
    let Some(address) = subject.address else {
        return Ok(Outcome::Skipped(
            "no PCI function of this machine".to_owned(),
        ));
    };
    let diagnosis = doctor::run(machine, &[address], MEMORY_MIB)?;
    bundle.add(&format!("doctor-{number}"), &diagnosis)?;
    match diagnosis.summary() {
        Ok(found) => Ok(Outcome::Ok(found)),
        Err(found) => Err(found.into()),
    }
}

fn kernel_peer(accept: &Accept, subject: &Subject<'_>) -> Result<Outcome, Box<dyn Error>> {
    let Some(peer) = accept.peer else {
        // Without -S, rping has a buffer of 64 bytes, and disconnects on longer texts.
        return Ok(Outcome::Skipped(format!(
            "no --peer: start `rping -s -v -S {RPING_BYTES}` of rdma-core on another machine, and name its address"
        )));
    };
    let adapter = Adapter::of(subject.open()?)?;
    let port = u64::from(accept.port);
    let mut trips = rping::trips(
        adapter,
        (peer, port),
        &udapl::endpoint::EpTransport::default(),
        RPINGS,
        RPING_BYTES,
    )
    .map_err(|error| format!("{peer} port {port}: {error}"))?;
    trips.sort_unstable();
    Ok(Outcome::Ok(format!(
        "{RPINGS} texts of {RPING_BYTES} bytes read and written back by {peer}, {:.2} ms in the middle",
        lines::millis(trips[trips.len() / 2])
    )))
}

fn soak(subjects: &[Subject<'_>], time: Duration) -> Result<Outcome, Box<dyn Error>> {
    if time.is_zero() {
        return Ok(Outcome::Skipped("no --hours".to_owned()));
    }
    let start = Instant::now();
    lines::soak(subjects, || start.elapsed() >= time).map(Outcome::Ok)
}
