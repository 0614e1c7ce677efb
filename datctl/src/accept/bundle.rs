//! The directory in which a run is kept for later analysis.
//!
//! | File | Contents |
//! |---|---|
//! | `report.txt`, `report.json` | the table |
//! | `doctor-N`, `info-N`, `perf`, each as `.txt` and `.json` | output of those commands for function N |
//! | `counters-e-switch`, `counters-connections`, likewise | counters of both sides during that line (`between`) |
//! | `kernel.log`, `machine-N-before.txt`, `machine-N-after.txt` | state of the machine (module `surroundings`) |
//! | `record-N.toml` | record of function N (`datctl record`) |
//! | `trace.log` | the commands, in the form of `mlx5_core`'s own debug output, and the driver's messages |
//! | `wire.pcapng` | the frames of the connection manager, as the driver intended them (module `wire`) |
//!
//! All files except the records contain MACs, GUIDs and addresses. The trace ends at [`TRACE_BYTES`], so that a soak of
//! days fits a disk.
//!
//! If the disk is full, the trace and the capture end and the report is lost, but the run continues. The command then
//! prints the table, followed by the files that could not be written.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::Report;

/// Limit on the size of the trace, in bytes.
const TRACE_BYTES: u64 = 256 << 20;

const TRACE_NAME: &str = "trace.log";
const WIRE_NAME: &str = "wire.pcapng";

/// The trace of the run; unset until a run begins.
static TRACE: OnceLock<Mutex<Trace>> = OnceLock::new();

struct Trace {
    file: File,
    left: u64,
    /// The error that ended the trace early, if one did.
    failed: Option<io::Error>,
}

impl Trace {
    fn write(&mut self, bytes: &[u8]) {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let written = if let Some(left) = self.left.checked_sub(length) {
            self.left = left;
            self.file.write_all(bytes)
        } else if std::mem::take(&mut self.left) > 0 {
            writeln!(self.file, "the trace ends here, at {TRACE_BYTES} bytes")
        } else {
            Ok(())
        };
        if let Err(error) = written {
            self.left = 0;
            self.failed = Some(error);
        }
    }
}

/// The directory of a run.
pub(super) struct Bundle {
    path: PathBuf,
}

impl Bundle {
    /// Creates the directory and begins the trace. Refuses an existing directory, which may be another run's.
    pub(super) fn create(path: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                PathBuf::from(format!("accept-{}", now.as_secs()))
            }
        };
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        fs::create_dir(&path).map_err(failed)?;
        let trace = path.join(TRACE_NAME);
        let file = File::create(&trace).map_err(|error| format!("{}: {error}", trace.display()))?;
        // If a process runs a second acceptance, as tests do, the trace continues in the first run's file.
        let _ = TRACE.set(Mutex::new(Trace {
            file,
            left: TRACE_BYTES,
            failed: None,
        }));
        super::wire::begin(&path.join(WIRE_NAME))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a report as text and as JSON.
    pub(super) fn add(&self, name: &str, report: &impl Report) -> Result<(), Box<dyn Error>> {
        self.keep(&format!("{name}.txt"), &(report.human() + "\n"))?;
        let json = serde_json::to_string_pretty(report)?;
        self.keep(&format!("{name}.json"), &(json + "\n"))
    }

    /// Writes a text to the file `name`.
    pub(super) fn keep(&self, name: &str, text: &str) -> Result<(), Box<dyn Error>> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

/// Flushes the capture. If the trace or the capture ended before the run did, returns the name of the file and the
/// error.
pub(super) fn ended() -> Vec<String> {
    let trace = TRACE.get().and_then(|trace| {
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        Some(format!("{TRACE_NAME}: {}", trace.failed.take()?))
    });
    let wire = super::wire::end().map(|error| format!("{WIRE_NAME}: {error}"));
    trace.into_iter().chain(wire).collect()
}

/// Returns a writer that appends to the run's trace. It discards everything until a run begins.
pub(crate) fn trace_writer() -> impl Write {
    TraceWriter
}

struct TraceWriter;

impl Write for TraceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(trace) = TRACE.get() {
            let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
            trace.write(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_ends_with_the_first_line_that_cannot_be_written_and_keeps_why() {
        let full = File::options().write(true).open("/dev/full");
        let mut trace = Trace {
            file: full.expect("Linux has it"),
            left: TRACE_BYTES,
            failed: None,
        };
        trace.write(b"a line");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("trace");
        trace.file = File::create(&path).expect("a file");
        trace.write(b"another");
        assert_eq!(fs::read(&path).expect("readable"), b"");
        let failed = trace.failed.expect("it has failed");
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
    }
}
