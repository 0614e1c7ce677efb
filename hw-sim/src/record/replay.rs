//! Replay of a recorded simulation.
//!
//! [`Replay`] builds the simulation that the file describes, and applies its inputs record by record. The file replaces
//! the drivers' memory: a DMA read takes the next record, which must be a read of the same function, address and
//! length; DMA writes are summed, and the sums are compared. After each record the event log must equal the recorded
//! one. The first deviation is a [`Difference`], and the replay ends there.
//!
//! A file is untrusted input. Its use of resources is bounded: cards, BARs, mappings, links, waiting items, and the
//! steps of one record.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{Device, Interrupt, MessageMemory};
use thiserror::Error;

use super::file::{Header, Reader, RecordingError};
use super::recorder::add_write;
use super::{CableEnd, Record};
use crate::card::CardConfig;
use crate::device::{LinkId, Sim, SimConfig, SimFunction};
use crate::fault::Fault;
use crate::pcap::CaptureError;
use crate::report::FunctionReport;
use crate::switch::SwitchConfig;
use crate::switched::{Connector, SubnetSwitchId, SwitchId};
use crate::world::Drive;

/// Maximum number of functions of a simulation, including virtual ones.
const FUNCTIONS: usize = 256;
/// Maximum total size of all BARs in bytes.
const BAR_BYTES: usize = 1 << 30;
/// Maximum number of simultaneous mappings. A server of functions has the same limit for each client.
const MAPPINGS: usize = 1 << 20;
/// Maximum number of simulation steps for one record.
const STEPS: usize = 1 << 21;
/// Maximum number of switches, and of links of any kind.
const SWITCHES: usize = 64;
const CABLES: usize = 512;
/// Maximum total size in bytes of the frames that wait in all switches.
const SWITCH_BYTES: usize = 1 << 30;
/// Maximum number of waiting items: frames that have arrived, register writes, and, in a simulation with switches,
/// frames on cables. A frame that has passed a switch has at most 16 KiB.
const UNDER_WAY: usize = 1 << 16;
/// Maximum total size in bytes of the frames that are on cables, have arrived, or wait to be fetched from outside.
const FRAME_BYTES: usize = 1 << 28;
/// Size in bytes that is assumed for a frame between two counts. Most frames are shorter.
const LONG_FRAME: usize = 16 << 10;
/// Number of steps between two counts of the frames.
const UNCOUNTED: usize = 256;
/// Maximum virtual time in ns, 146 years. At the maximum of a `u64` a delay would not advance the time, so a loop would
/// never end.
const LATEST: u64 = 1 << 62;
/// Number of log lines that are shown before a difference.
const CONTEXT: usize = 8;

/// Reason for which a replay ends early.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The file is damaged or cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A record cannot be applied.
    #[error("record {number}, {record}: {what}")]
    Impossible {
        /// Number of the record in the file, from 1.
        number: u64,
        /// Text of the record.
        record: String,
        /// Reason for which the record cannot be applied.
        what: String,
    },
    /// The results deviate from the recorded ones.
    #[error(transparent)]
    Different(Box<Difference>),
}

/// The first deviation of a replay from the recording.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "record {number} at {now} ns, {record}: recorded {expected:?}, now {found:?}{}",
    list_lines(.before)
)]
pub struct Difference {
    /// Number of the record, from 1, after which the deviation occurred.
    pub number: u64,
    /// Virtual time, in ns.
    pub now: u64,
    /// Text of that record.
    pub record: String,
    /// The event in the recording.
    pub expected: String,
    /// The event in the replay.
    pub found: String,
    /// Last log lines that are equal in both.
    pub before: Vec<String>,
}

fn list_lines(before: &[String]) -> String {
    let lines = before.iter().map(|line| format!("\n    {line}"));
    match before {
        [] => String::new(),
        _ => format!("\n  the log before it:{}", lines.collect::<String>()),
    }
}

/// A record that the replay has applied.
#[derive(Debug)]
pub struct Step {
    /// Number of the record, from 1, among all records of the file.
    pub number: u64,
    /// The record.
    pub record: Record,
    /// Results of the record: lines of the event log.
    pub log: String,
}

/// Position of a replay, at its end or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of records processed: inputs and results.
    pub records: u64,
    /// Virtual time, in nanoseconds.
    pub now: u64,
    /// True if the file ends inside a block.
    pub is_cut: bool,
}

/// Source of records, shared by the replay and the memory of the simulated functions.
struct Source {
    reader: Reader<Box<dyn Read + Send>>,
    next: Option<Record>,
    /// Number of records taken from the file.
    number: u64,
    writes: u64,
    sum: crc32fast::Hasher,
    /// First deviation from the recording: the expected and the found event.
    wrong: Option<(String, String)>,
    /// Error while reading the file.
    failed: Option<RecordingError>,
    over: bool,
}

impl Source {
    fn peek(&mut self) -> Option<&Record> {
        if self.next.is_none() && !self.over {
            match self.reader.next() {
                Ok(record) => {
                    self.over = record.is_none();
                    self.next = record;
                }
                Err(error) => {
                    self.over = true;
                    self.failed = Some(error);
                }
            }
        }
        self.next.as_ref()
    }

    fn take(&mut self) -> Option<Record> {
        self.peek()?;
        self.number += 1;
        self.next.take()
    }

    fn differs(&mut self, found: String) {
        if self.wrong.is_none() && !self.over {
            let number = self.number + 1;
            let expected = self.peek().map(ToString::to_string);
            let expected = expected.unwrap_or_else(|| "the end of the file".to_owned());
            self.wrong = Some((format!("{expected} (record {number})"), found));
        }
    }

    fn read(&mut self, of: usize, from: u64, out: &mut [u8]) -> bool {
        let length = out.len();
        let fits = |record: &Record| {
            let Record::Read {
                function,
                iova,
                bytes,
            } = record
            else {
                return false;
            };
            let fits = bytes.as_ref().is_none_or(|bytes| bytes.len() == length);
            (*function, *iova) == (of, from) && fits
        };
        if self.wrong.is_some() || !self.peek().is_some_and(fits) {
            self.differs(format!("f{of} DMA read of {length} bytes at {from:#x}"));
            return false;
        }
        match self.take() {
            Some(Record::Read {
                bytes: Some(bytes), ..
            }) => {
                out.copy_from_slice(&bytes);
                true
            }
            _ => false,
        }
    }

    fn write(&mut self, of: usize, to: u64, data: &[u8]) -> bool {
        let refused = matches!(
            self.peek(),
            Some(Record::NotWritten { function, iova }) if (*function, *iova) == (of, to)
        );
        if refused {
            self.take();
            return false;
        }
        self.writes += 1;
        add_write(&mut self.sum, of, to, data);
        true
    }
}

fn lock(source: &Mutex<Source>) -> MutexGuard<'_, Source> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of a driver that answers from the recording.
struct RecordedMemory {
    source: Arc<Mutex<Source>>,
    function: usize,
}

impl std::fmt::Debug for RecordedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordedMemory of f{}", self.function)
    }
}

impl MessageMemory for RecordedMemory {
    fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()> {
        match lock(&self.source).read(self.function, iova, out) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write(&self, iova: u64, data: &[u8]) -> io::Result<()> {
        match lock(&self.source).write(self.function, iova, data) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// A simulation that is rebuilt from a recording.
pub struct Replay {
    source: Arc<Mutex<Source>>,
    header: Header,
    sim: Sim,
    functions: Vec<Arc<SimFunction>>,
    links: Vec<LinkId>,
    switches: Vec<SwitchId>,
    subnet_switches: Vec<SubnetSwitchId>,
    switch_bytes: usize,
    bar_bytes: usize,
    mappings: usize,
    /// Upper bound in bytes for the frames added since the last count.
    uncounted_bytes: usize,
    interrupt: Option<Interrupt>,
    before: VecDeque<String>,
    is_compared: bool,
}

impl Replay {
    /// Opens a recording.
    ///
    /// # Errors
    /// [`ReplayError::Recording`]: the file is no recording, or its version is not supported.
    pub fn open(file: impl Read + Send + 'static) -> Result<Self, ReplayError> {
        let reader = Reader::new(Box::new(file) as Box<dyn Read + Send>)?;
        let header = reader.header().clone();
        let sim = Sim::new(SimConfig {
            seed: header.seed,
            event_log: false,
        });
        sim.collect_lines();
        let source = Arc::new(Mutex::new(Source {
            reader,
            next: None,
            number: 0,
            writes: 0,
            sum: crc32fast::Hasher::new(),
            wrong: None,
            failed: None,
            over: false,
        }));
        Ok(Self {
            source,
            header,
            sim,
            functions: Vec::new(),
            links: Vec::new(),
            switches: Vec::new(),
            subnet_switches: Vec::new(),
            switch_bytes: 0,
            bar_bytes: 0,
            mappings: 0,
            uncounted_bytes: 0,
            interrupt: None,
            before: VecDeque::new(),
            is_compared: true,
        })
    }

    /// Disables the comparison of results. A simulation that deviates then continues, but memory does not answer reads
    /// that were not recorded.
    #[must_use]
    pub fn without_comparison(mut self) -> Self {
        self.is_compared = false;
        self
    }

    /// Returns the file's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the simulation.
    #[must_use]
    pub const fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Returns the functions' reports, in the order of their numbers, each with its name.
    #[must_use]
    pub fn reports(&self) -> Vec<(String, FunctionReport)> {
        let report =
            |function: &Arc<SimFunction>| (function.name().to_owned(), self.sim.report(function));
        self.functions.iter().map(report).collect()
    }

    /// Captures frames from now on, as [`Sim::pcap`] does.
    ///
    /// # Errors
    /// The writer failed.
    pub fn pcap(&self, writer: impl Write + Send + 'static) -> Result<(), CaptureError> {
        self.sim.pcap(writer)
    }

    /// Returns the number of the next record, from 1, and whether the record sets up the simulation (cards, links,
    /// switches and their settings). Returns `None` at the end of the file.
    #[must_use]
    pub fn next(&self) -> Option<(u64, bool)> {
        let mut source = lock(&self.source);
        let number = source.number + 1;
        let record = source.peek()?;
        let makes = matches!(
            record,
            Record::Card { .. }
                | Record::Link { .. }
                | Record::LinkOutside { .. }
                | Record::Posted(_)
                | Record::Administered { .. }
                | Record::Switch(_)
                | Record::Cable { .. }
                | Record::FixedAddress { .. }
                | Record::Qos { .. }
                | Record::SubnetManager
                | Record::SubnetSwitch { .. }
                | Record::SubnetCable { .. }
        );
        Some((number, makes))
    }

    /// Applies the next record. Returns `None` at the end of the file.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn step(&mut self) -> Result<Option<Step>, ReplayError> {
        let (record, number) = {
            let mut source = lock(&self.source);
            let record = source.take();
            if let Some(error) = source.failed.take() {
                return Err(error.into());
            }
            (record, source.number)
        };
        let Some(record) = record else {
            return Ok(None);
        };
        let impossible = |what: String| ReplayError::Impossible {
            number,
            record: record.to_string(),
            what,
        };
        if !record.is_input() {
            return Err(impossible("a result without an input before it".to_owned()));
        }
        self.carry_out(&record)
            .and_then(|()| self.bounded())
            .map_err(impossible)?;
        let log = self.sim.take_lines();
        self.compare(number, &record, &log)?;
        for line in log.lines() {
            if self.before.len() == CONTEXT {
                self.before.pop_front();
            }
            self.before.push_back(line.to_owned());
        }
        Ok(Some(Step {
            number,
            record,
            log,
        }))
    }

    /// Applies the remaining records up to and including `last`, or all of them.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn run(&mut self, last: Option<u64>) -> Result<End, ReplayError> {
        while let Some((number, _)) = self.next()
            && last.is_none_or(|last| number <= last)
            && self.step()?.is_some()
        {}
        // A damaged file reports its error on the next read.
        if last.is_none() {
            self.step()?;
        }
        Ok(self.end())
    }

    /// Returns the current position.
    #[must_use]
    pub fn end(&self) -> End {
        let source = lock(&self.source);
        End {
            records: source.number,
            now: self.sim.clock().now().0,
            is_cut: source.reader.is_cut(),
        }
    }

    /// Compares the results of a record with the recorded results.
    fn compare(&self, number: u64, record: &Record, log: &str) -> Result<(), ReplayError> {
        let mut source = lock(&self.source);
        let mut wrong = source.wrong.take();
        if !self.is_compared {
            (source.writes, source.sum) = (0, crc32fast::Hasher::new());
            while source.peek().is_some_and(|next| !next.is_input()) {
                source.take();
            }
            return source
                .failed
                .take()
                .map_or(Ok(()), |error| Err(error.into()));
        }
        if wrong.is_some() {
            // Skip the accesses that were not made, because the difference in the log explains more.
            while matches!(
                source.peek(),
                Some(Record::Read { .. } | Record::NotWritten { .. })
            ) {
                source.take();
            }
        }
        let found = (source.writes, std::mem::take(&mut source.sum).finalize());
        source.writes = 0;
        let expected = match source.peek() {
            Some(&Record::Wrote { writes, sum }) => {
                source.take();
                (writes, sum)
            }
            _ => (0, 0),
        };
        let mut recorded = String::new();
        let mut is_told = false;
        while let Some(Record::Log(_)) = source.peek() {
            if let Some(Record::Log(text)) = source.take() {
                // Collect no more than one text beyond the length of the replayed log; that suffices to find a
                // difference.
                if recorded.len() <= log.len() {
                    recorded += &text;
                }
                is_told = true;
            }
        }
        if source.peek().is_none() && !is_told {
            // In a truncated file the results of the last record are missing.
            return match source.failed.take() {
                Some(error) => Err(error.into()),
                None => Ok(()),
            };
        }
        if recorded != log {
            wrong = Some(first_difference(&recorded, log));
        } else if wrong.is_none() && found != expected {
            let of = |(writes, sum)| Record::Wrote { writes, sum }.to_string();
            wrong = Some((of(expected), of(found)));
        } else if wrong.is_none()
            && let Some(next) = source.peek()
            && !next.is_input()
        {
            wrong = Some((next.to_string(), "nothing".to_owned()));
        }
        let Some((expected, found)) = wrong else {
            return Ok(());
        };
        let shared = log.lines().zip(recorded.lines());
        let equal = shared.take_while(|(one, other)| one == other);
        let mut before: Vec<String> = self.before.iter().cloned().collect();
        before.extend(equal.map(|(line, _)| line.to_owned()));
        before.drain(..before.len().saturating_sub(CONTEXT));
        Err(ReplayError::Different(Box::new(Difference {
            number,
            now: self.sim.clock().now().0,
            record: record.to_string(),
            expected,
            found,
            before,
        })))
    }

    fn function(&self, number: usize) -> Result<&Arc<SimFunction>, String> {
        let there = self.functions.len();
        let function = self.functions.get(number);
        function.ok_or_else(|| format!("there is no function {number}, only {there}"))
    }

    fn link(&self, number: usize) -> Result<LinkId, String> {
        let there = self.links.len();
        let link = self.links.get(number).copied();
        link.ok_or_else(|| format!("there is no link {number}, only {there}"))
    }

    /// Returns the switch with the number that a record names.
    fn switch(&self, number: usize) -> Result<SwitchId, String> {
        let there = self.switches.len();
        let switch = self.switches.get(number).copied();
        switch.ok_or_else(|| format!("there is no switch {number}, only {there}"))
    }

    fn connector(&self, end: CableEnd) -> Result<Connector<'_>, String> {
        Ok(match end {
            CableEnd::Function(number) => Connector::Function(self.function(number)?),
            CableEnd::Port { switch, port } => Connector::Port(self.switch(switch)?, port),
        })
    }

    /// Checks that the simulation does not exceed its limits on size and on virtual time.
    fn bounded(&mut self) -> Result<(), String> {
        if self.sim.under_way() > UNDER_WAY {
            return Err(format!(
                "more than {UNDER_WAY} frames on cables, arrived, or register writes that wait"
            ));
        }
        // Counting all frames takes longer than applying a record, so it is done only when an upper bound is reached.
        self.uncounted_bytes += LONG_FRAME;
        if self.uncounted_bytes > FRAME_BYTES / 8 {
            self.uncounted_bytes = 0;
            let bytes = self.sim.frame_bytes();
            if bytes > FRAME_BYTES {
                return Err(format!(
                    "{bytes} bytes of frames that wait or are on cables, {FRAME_BYTES} at most"
                ));
            }
        }
        match self.sim.clock().now().0 {
            ..=LATEST => Ok(()),
            now => Err(format!("{now} ns are too late")),
        }
    }

    fn carry_out(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Card {
                physical,
                virtual_functions,
                rules,
            } => {
                let config = CardConfig::new((**physical).clone(), *virtual_functions);
                self.add_card(&config.with_rules(*rules))?;
            }
            Record::Link {
                ends: (a, b),
                faults,
            } => {
                self.one_more_link()?;
                let [a, b] = [self.function(*a)?, self.function(*b)?];
                self.links.push(self.sim.connect(a, b, *faults));
            }
            Record::LinkOutside { function, faults } => {
                self.one_more_link()?;
                let function = self.function(*function)?;
                self.links.push(self.sim.connect_outside(function, *faults));
            }
            Record::Faults { link, faults } => self.sim.set_faults(self.link(*link)?, *faults),
            Record::Heal => self.sim.heal(),
            Record::Posted(on) => self.sim.set_posted_writes(*on),
            Record::Stepped(on) => {
                let drive = if *on { Drive::Stepped } else { Drive::Inline };
                self.sim.set_drive(drive);
            }
            Record::Seal => self.sim.seal_frames(),
            Record::Inject {
                function,
                later,
                fault,
            } => {
                let fault = match *later {
                    None => fault.clone(),
                    Some(_) if !fault.waits_for_a_command() => {
                        return Err("such a fault cannot come later".to_owned());
                    }
                    Some(commands) => Fault::Later {
                        commands,
                        fault: Box::new(fault.clone()),
                    },
                };
                self.sim.inject(self.function(*function)?, &fault);
            }
            Record::Mend { function } => self.sim.mend(self.function(*function)?),
            Record::Administered { function, settings } => {
                self.function(*function)?.administer(*settings);
            }
            Record::Map {
                function,
                iova,
                bytes,
                writable,
            } => self.map(*function, *iova, *bytes, *writable)?,
            Record::Unmap {
                function,
                iova,
                bytes,
            } => {
                let bytes = usize::try_from(*bytes).map_err(|error| error.to_string())?;
                // An unmap that was refused in the recording is refused again, so the error is ignored.
                let _ = self.function(*function)?.dma_unmap(*iova, bytes);
            }
            Record::Register {
                function,
                offset,
                bytes,
            } => {
                let function = self.function(*function)?;
                let at = usize::try_from(*offset).map_err(|error| error.to_string())?;
                let bar = function.bar(0).ok_or("it has no BAR")?;
                if bytes.is_empty() || bytes.len() > 8 {
                    return Err(format!("{} bytes at once", bytes.len()));
                }
                if bar.contains(at, bytes.len()) {
                    bar.write_bytes(at, bytes);
                }
                function.bar_written(0, *offset, bytes);
            }
            Record::Configuration {
                function,
                offset,
                bytes,
            } => {
                if !matches!(bytes.len(), 1 | 2 | 4) || usize::from(*offset) + bytes.len() > 4096 {
                    return Err("no access to configuration space".to_owned());
                }
                self.function(*function)?.config_write(*offset, bytes);
            }
            Record::Reset { function } => self.function(*function)?.reset(),
            Record::Interrupts { function, vectors } => {
                let function = Arc::clone(self.function(*function)?);
                if *vectors > function.interrupt_count() {
                    return Err(format!("it has {} vectors", function.interrupt_count()));
                }
                let interrupt = match &self.interrupt {
                    Some(interrupt) => interrupt.clone(),
                    None => Interrupt::new().map_err(|error| error.to_string())?,
                };
                function.set_interrupts(vec![interrupt.clone(); *vectors]);
                self.interrupt = Some(interrupt);
            }
            Record::Frame { function, bytes } => {
                self.sim.deliver(self.function(*function)?, bytes);
                self.uncounted_bytes += bytes.len();
            }
            Record::FramesTaken { function } => {
                drop(self.sim.take_frames(self.function(*function)?));
            }
            Record::Time { now } => self.steps(|sim| sim.wait_step(*now))?,
            Record::Waited { until } => {
                self.sim.wait_step(*until);
            }
            Record::Stepping => {
                self.sim.step();
            }
            Record::Idle => self.sim.run_until_idle(),
            Record::Switch(config) => self.add_switch(config)?,
            Record::Cable { ends, faults } => {
                self.one_more_link()?;
                let ends = [self.connector(ends[0])?, self.connector(ends[1])?];
                let link = self.sim.connect_switch(ends, *faults);
                self.links.push(link.map_err(|error| error.to_string())?);
            }
            Record::FixedAddress { switch, mac, port } => {
                if !self.sim.fix_address(self.switch(*switch)?, *mac, *port) {
                    return Err("there is no such port, or no room for the address".to_owned());
                }
            }
            Record::Qos { function, qos } => {
                qos.check()?;
                self.function(*function)?.set_qos((**qos).clone());
            }
            Record::SubnetManager => self.sim.use_external_subnet_manager(),
            Record::SubnetSwitch { ports } => {
                let switch = self.sim.add_subnet_switch(*ports);
                self.subnet_switches
                    .push(switch.map_err(|error| error.to_string())?);
            }
            Record::SubnetCable {
                function,
                switch,
                port,
                faults,
            } => {
                self.one_more_link()?;
                let function = self.function(*function)?;
                let switch = self.subnet_switches.get(*switch).copied();
                let switch = switch.ok_or_else(|| "there is no such switch".to_owned())?;
                let link = self.sim.connect_subnet(function, switch, *port, *faults);
                self.links.push(link.map_err(|error| error.to_string())?);
            }
            // These are results, which `step` refuses before.
            Record::Read { .. }
            | Record::Wrote { .. }
            | Record::NotWritten { .. }
            | Record::Log(_) => {}
        }
        Ok(())
    }

    /// Steps until there is nothing to do. Fails if the number of steps or another limit of the simulation is exceeded.
    fn steps(&mut self, one: impl Fn(&Sim) -> bool) -> Result<(), String> {
        for step in 1..=STEPS {
            if !one(&self.sim) {
                return Ok(());
            }
            if step % UNCOUNTED == 0 {
                self.uncounted_bytes += UNCOUNTED * LONG_FRAME;
                self.bounded()?;
            }
        }
        Err(format!("{STEPS} steps were not enough"))
    }

    /// Checks that the simulation may have another link.
    fn one_more_link(&self) -> Result<(), String> {
        match self.links.len() {
            0..CABLES => Ok(()),
            _ => Err(format!("a world has {CABLES} links at most")),
        }
    }

    fn add_switch(&mut self, config: &SwitchConfig) -> Result<(), String> {
        // `bytes` is valid only after this check.
        config.check().map_err(|error| error.to_string())?;
        self.switch_bytes += config.bytes();
        if self.switches.len() >= SWITCHES || self.switch_bytes > SWITCH_BYTES {
            return Err(format!(
                "a world has {SWITCHES} switches at most, and {SWITCH_BYTES} bytes for frames in them"
            ));
        }
        let switch = self.sim.add_switch(config.clone());
        self.switches
            .push(switch.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn add_card(&mut self, config: &CardConfig) -> Result<(), String> {
        let physical = &config.physical;
        physical.check().map_err(|error| error.to_string())?;
        let virtual_bar = physical.virtual_functions.as_ref();
        let virtual_bar = virtual_bar.map_or(0, |facts| facts.bar_bytes);
        let many = usize::from(config.virtual_functions);
        if many > 0 && physical.virtual_functions.is_none() {
            return Err("its profile describes no virtual functions".to_owned());
        }
        if self.functions.len() + 1 + many > FUNCTIONS {
            return Err(format!("a world has {FUNCTIONS} functions at most"));
        }
        self.bar_bytes += physical.bar_bytes + many * virtual_bar;
        if self.bar_bytes > BAR_BYTES {
            return Err(format!("BARs are {BAR_BYTES} bytes together at most"));
        }
        let card = self.sim.try_add_card(config);
        let card = card.map_err(|error| error.to_string())?;
        self.functions.push(card.physical());
        let rest = (0..many).filter_map(|index| card.virtual_function(index));
        self.functions.extend(rest);
        Ok(())
    }

    fn map(&mut self, of: usize, iova: u64, bytes: u64, writable: bool) -> Result<(), String> {
        let function = Arc::clone(self.function(of)?);
        let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
        self.mappings += 1;
        if self.mappings > MAPPINGS {
            self.mappings = self.sim.mappings();
            if self.mappings >= MAPPINGS {
                return Err(format!("a world has {MAPPINGS} mappings at most"));
            }
        }
        let memory = Arc::new(RecordedMemory {
            source: Arc::clone(&self.source),
            function: of,
        });
        function.dma_map_by_message(iova, memory, bytes, writable)
    }
}

/// Returns the first line in which two logs differ, from the recorded and from the found log.
fn first_difference(recorded: &str, found: &str) -> (String, String) {
    let mut lines = found.lines();
    let mut recorded = recorded.lines();
    let nothing = || "nothing more".to_owned();
    loop {
        match (recorded.next(), lines.next()) {
            (Some(one), Some(other)) if one == other => {}
            (one, other) => {
                let text = |line: Option<&str>| line.map_or_else(nothing, str::to_owned);
                return (text(one), text(other));
            }
        }
    }
}
