//! `simnic replay FILE`: repeats a recorded simulation without a machine.
//!
//! The input in a file of `simnic run --record FILE` or `simnic serve --record FILE` is executed again, and the event
//! log is compared with the recorded one, byte for byte ([`hw_sim::record`]). A test starts with [`open`].

mod coverage;

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use hw_sim::FunctionReport;
pub use hw_sim::record::{Difference, End, Header, Record, Replay, ReplayError, Step};

use self::coverage::Coverage;
use crate::simulated::duration;

/// Options of a replay.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The recording.
    file: PathBuf,
    /// Stops after this record, by its number.
    #[arg(long, value_name = "RECORD")]
    until: Option<u64>,
    /// Write every frame to this file, as pcapng.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print the event log: commands, doorbells, completions, interrupts, packets.
    #[arg(long)]
    log: bool,
    /// Print the commands, registers and packets, with their counts and the counts of refusals.
    #[arg(long)]
    coverage: bool,
    /// With --coverage: begin a new part at this virtual time, like 12.5s, as `simnic ctl SOCKET time` prints it. May
    /// be repeated.
    #[arg(long, value_name = "TIME", requires = "coverage", value_parser = duration)]
    part: Vec<Duration>,
    /// Print every record, with its number, before its effects.
    #[arg(long)]
    records: bool,
}

/// Opens a recording. A file whose name ends in `.gz` is decompressed.
///
/// ```no_run
/// let mut replay = simnic::replay::open("failure.rec".as_ref())?;
/// let end = replay.run(None)?;
/// for (name, report) in replay.reports() {
///     assert!(report.driver_bugs.is_empty(), "{name} at {} ns: {:?}", end.now, report.driver_bugs);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The file cannot be read, or is not a recording.
pub fn open(path: &Path) -> Result<Replay, Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = BufReader::new(File::open(path).map_err(|error| failed(&error))?);
    let replay = match path.extension().is_some_and(|ending| ending == "gz") {
        true => Replay::open(MultiGzDecoder::new(file)),
        false => Replay::open(file),
    };
    Ok(replay.map_err(|error| failed(&error))?)
}

/// Replays a recording, prints the requested lists, and then prints the reports of the functions.
///
/// # Errors
/// The file cannot be opened or is damaged, the simulation differs from the recorded one, or the output or the capture
/// cannot be written.
pub fn run(options: &Options, mut to: impl Write) -> Result<(), Box<dyn Error>> {
    let mut replay = open(&options.file)?;
    let header = replay.header();
    writeln!(
        to,
        "recorded: {} (simulator {}, seed {})",
        header.about.lines().next().unwrap_or_default(),
        header.simulator,
        header.seed
    )?;
    let mut capture = options.pcap.as_deref();
    let mut coverage = options
        .coverage
        .then(|| Coverage::new(options.part.clone()));
    let mut failures = Failures::default();
    let ended = loop {
        let Some((number, makes)) = replay.next() else {
            // There is no next record. If the file is damaged, this step fails with the reason.
            break replay.step().map(drop);
        };
        if options.until.is_some_and(|last| number > last) {
            break Ok(());
        }
        // The capture starts after the records that create cards and links, because it covers only the links that exist
        // when it starts.
        if let Some(path) = capture.take_if(|_| !makes) {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            replay.pcap(BufWriter::new(file))?;
        }
        if let Some(coverage) = &mut coverage {
            coverage.before(&replay);
        }
        match replay.step() {
            Ok(Some(step)) => {
                if options.records {
                    writeln!(to, "[{}] {}", step.number, step.record)?;
                }
                if let Some(coverage) = &mut coverage {
                    coverage.after(&step);
                }
                failures.after(&step);
                if options.log {
                    to.write_all(step.log.as_bytes())?;
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if options.pcap.is_some() {
        replay.sim().flush_pcap()?;
    }
    if let Some(coverage) = coverage {
        to.write_all(coverage.finished(&replay).as_bytes())?;
    }
    to.write_all(summary(&replay)?.as_bytes())?;
    to.write_all(failures.text().as_bytes())?;
    to.flush()?;
    Ok(ended?)
}

/// Completions with an error, by which a program notices a failure: their number, and the first of them with the
/// numbers of their records.
#[derive(Default)]
struct Failures {
    first: Vec<String>,
    many: usize,
}

impl Failures {
    /// Maximum number of completions that are shown. The first error puts its queue pair into the error state, so most
    /// of the later completions only report flushed requests.
    const SHOWN: usize = 8;

    fn after(&mut self, step: &Step) {
        for line in step.log.lines().filter(|line| is_failure(line)) {
            self.many += 1;
            if self.many <= Self::SHOWN {
                self.first
                    .push(format!("  record {}: {line}\n", step.number));
            }
        }
    }

    fn text(&self) -> String {
        match self.many {
            0 => String::new(),
            many => format!(
                "completions with an error: {many}{}\n{}",
                if many > Self::SHOWN {
                    ", the first ones"
                } else {
                    ""
                },
                self.first.concat()
            ),
        }
    }
}

/// Returns whether a line of the log is a completion with a nonzero syndrome.
fn is_failure(line: &str) -> bool {
    let syndrome = line.split_once(" synd=0x").map(|(_, rest)| rest);
    line.contains(" cqe ") && syndrome.is_some_and(|rest| !rest.starts_with("00"))
}

/// Describes the end of a replay, and the reports of its functions.
fn summary(replay: &Replay) -> Result<String, std::fmt::Error> {
    let End {
        records,
        now,
        is_cut,
    } = replay.end();
    let mut text = format!("{records} records, {now} ns");
    text += match is_cut {
        true => "; the file is cut there\n",
        false => "\n",
    };
    for (name, report) in replay.reports() {
        let FunctionReport {
            opcodes,
            refused,
            driver_bugs,
            dma_faults,
            ..
        } = &report;
        let commands: u64 = opcodes.values().sum();
        writeln!(
            text,
            "{name}: {commands} commands, {} refused, {} DMA faults, {} driver bugs",
            refused.len(),
            dma_faults.len(),
            driver_bugs.len()
        )?;
        for bug in driver_bugs {
            writeln!(text, "  driver bug: {bug}")?;
        }
        for fault in dma_faults {
            writeln!(text, "  {}: {}", fault.who, fault.fault)?;
        }
        for refused in refused {
            writeln!(
                text,
                "  refused {:#06x}: {}",
                refused.opcode, refused.reason
            )?;
        }
    }
    Ok(text)
}
