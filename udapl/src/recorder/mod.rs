//! What the flight recorders of an adapter held, all of them together: as text for people, and as a pcapng file.
//!
//! An instance records its posts, completions and endpoints ([`Ia::recorder_start`](dat_core::Ia::recorder_start)), the
//! function its commands, datagrams, frames and events ([`hw_mlx::recorder`]). A [`Dump`] is what some instances held
//! and what their function held, by one clock. [`Dump::of`] takes it from an instance, the control socket from all that
//! answer, and a folder (`,recorder=DIRECTORY`) is written to when a connection breaks or a thread panics.
//!
//! In the file ([`Dump::write_pcapng`]) frames are frames, and everything else is a note in JSON that says what the
//! card was told, or told us ([`control::schema::Entry`]). `datctl decode` reads it, and so does Wireshark.

mod capture;
mod folder;
mod frame;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dat_core::recorder::RecorderDump;
use dat_mlx::InWords;
use hw_mlx::recorder::{Recorder, RecorderDump as FunctionDump};

use crate::Ia;

pub use capture::CaptureError;
pub use dat_core::cm::wire::{CommIds, Mad, Message};
pub(crate) use folder::{keep, kept_by, shared};
pub use frame::datagram_frame;

/// Events of an instance, and of its function, that are written when something breaks.
const WHEN_BROKEN: usize = 4_096;

/// What recorders held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The adapter's name.
    pub adapter: String,
    /// The process.
    pub process: u32,
    /// Why it was taken, in words.
    pub reason: String,
    /// The wall clock at 0 of the function's clock, since 1970. `None` for a simulated function.
    pub origin: Option<Duration>,
    /// What instances held.
    pub instances: Vec<RecorderDump>,
    /// What the function held; `None`: no instance has recorded yet.
    pub function: Option<FunctionDump>,
}

impl Dump {
    /// What an instance and its function hold. `None`: the instance does not record.
    #[must_use]
    pub fn of(ia: &Ia) -> Option<Self> {
        let instance = ia.recorder_dump()?;
        let hca = ia.provider().hca();
        let (name, function) = (hca.name(), hca.recorder().dump());
        Some(Self::new(name, "asked for", vec![instance], function))
    }

    pub(crate) fn new(
        adapter: &str,
        reason: impl Into<String>,
        instances: Vec<RecorderDump>,
        function: Option<FunctionDump>,
    ) -> Self {
        let at = instances.iter().map(|dump| dump.at).max();
        let origin = at.filter(|_| !adapter.starts_with("sim:")).and_then(|at| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
            now.checked_sub(Duration::from_nanos(at))
        });
        Self {
            adapter: adapter.to_owned(),
            process: std::process::id(),
            reason: reason.into(),
            origin,
            instances,
            function,
        }
    }

    /// What an instance held when something broke, with what its function holds.
    fn broken(adapter: &str, reason: String, instance: RecorderDump, function: &Recorder) -> Self {
        let function = function.dump().map(|dump| dump.last(WHEN_BROKEN));
        Self::new(adapter, reason, vec![instance.last(WHEN_BROKEN)], function)
    }

    /// When it was taken, by the clock of the function.
    #[must_use]
    pub fn at(&self) -> u64 {
        let instances = self.instances.iter().map(|dump| dump.at);
        let function = self.function.iter().flat_map(|dump| &dump.records);
        instances
            .chain(function.map(|told| told.at))
            .max()
            .unwrap_or(0)
    }
}

/// A line of what it is, and one for each event: how long before the dump, in milliseconds, whose, and what.
impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, process {}: {}; time in ms before the dump",
            self.adapter, self.process, self.reason
        )?;
        let mut lines = Vec::new();
        for dump in &self.instances {
            let number = dump.instance;
            writeln!(
                f,
                "instance {number}: {} events, {} older ones lost",
                dump.records.len(),
                dump.before
            )?;
            let told = dump.records.iter();
            lines.extend(told.map(|record| (record.at, format!("instance {number}: {record}"))));
        }
        if let Some(dump) = &self.function {
            writeln!(
                f,
                "function: {} events, {} older ones lost",
                dump.records.len(),
                dump.before
            )?;
            let told = dump.records.iter();
            lines.extend(told.map(|told| (told.at, format!("function: {}", InWords(&told.what)))));
        }
        lines.sort_by_key(|(at, _)| *at);
        let end = self.at();
        for (at, line) in lines {
            writeln!(f, "{:>14} {line}", before(end, at))?;
        }
        Ok(())
    }
}

/// How long before the end, in milliseconds.
pub(crate) fn before(end: u64, at: u64) -> String {
    let ago = end.saturating_sub(at);
    format!("-{}.{:06}", ago / 1_000_000, ago % 1_000_000)
}
