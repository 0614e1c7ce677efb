//! Dumps of an adapter's flight recorders: as text for people, and as a pcapng file.
//!
//! An instance records its posts, completions and endpoints ([`Ia::recorder_start`](dat_core::Ia::recorder_start)). The
//! function records its commands, MADs, frames and events ([`hw_mlx::recorder`]). A [`Dump`] has the records of some
//! instances and of their function, by one clock. [`Dump::of`] makes a dump of one instance; the control socket makes
//! one of all instances that answer. With `,recorder=FOLDER` a dump is written to that folder when a connection breaks
//! or a thread panics.
//!
//! In the file ([`Dump::write_pcapng`]) frames are packets. Every other record is a note in JSON
//! ([`control::schema::Entry`]). `datctl decode` and Wireshark read the file.

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
pub use dat_core::provider::Qpn;
pub(crate) use folder::{Shared, keep, shared, with_folder};
pub use frame::datagram_frame;

/// Maximum number of events of the instance, and maximum number of events of its function, in an automatic dump.
const WHEN_BROKEN: usize = 4_096;

/// Records of an adapter's flight recorders.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The adapter's name.
    pub adapter: String,
    /// Process ID.
    pub process: u32,
    /// Reason for the dump, in words.
    pub reason: String,
    /// Wall-clock time, since 1970, at which the function's clock was 0. `None` for a simulated function.
    pub origin: Option<Duration>,
    /// Records of instances.
    pub instances: Vec<RecorderDump>,
    /// Records of the function; `None`: no instance has recorded yet.
    pub function: Option<FunctionDump>,
}

impl Dump {
    /// Takes the records of an instance and of its function. `None`: the instance does not record.
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

    /// Makes the dump of an instance and its function after a failure.
    fn broken(adapter: &str, reason: String, instance: RecorderDump, function: &Recorder) -> Self {
        let function = function.dump().map(|dump| dump.last(WHEN_BROKEN));
        Self::new(adapter, reason, vec![instance.last(WHEN_BROKEN)], function)
    }

    /// Returns the time of the dump in nanoseconds, by the clock of the function.
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

/// Writes a heading, a line for each source with its number of events, and a line for each event: milliseconds before
/// the dump, the source, and the event.
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

/// Formats a time in nanoseconds as milliseconds before the end.
pub(crate) fn before(end: u64, at: u64) -> String {
    let ago = end.saturating_sub(at);
    format!("-{}.{:06}", ago / 1_000_000, ago % 1_000_000)
}
