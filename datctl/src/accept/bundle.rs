//! The directory that a run is kept in, for whoever is to look at it later.
//!
//! | File | Is |
//! |---|---|
//! | `report.txt`, `report.json` | the table |
//! | `doctor-N`, `info-N`, `perf`, each as `.txt` and `.json` | what those commands say of function N |
//! | `record-N.toml` | what function N says of itself (`datctl record`) |
//! | `trace.log` | the commands, in the form of `mlx5_core`'s own debug output, and what the driver had to say |
//! | `wire.pcapng` | the frames of the connection manager, as the driver meant them (module `wire`) |
//!
//! All but the records holds MACs, GUIDs and addresses. The trace ends at [`TRACE_BYTES`], so that a soak of days fits a disk.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::Report;

/// The longest trace.
const TRACE_BYTES: u64 = 256 << 20;

/// Where traces go once a run has begun.
static TRACE: OnceLock<Mutex<Trace>> = OnceLock::new();

struct Trace {
    file: File,
    left: u64,
}

/// The directory.
pub(super) struct Bundle {
    path: PathBuf,
}

impl Bundle {
    /// Makes it, and lets the trace begin. A directory that is there is not written into: it may be another run's.
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
        let file = File::create(path.join("trace.log")).map_err(failed)?;
        // A second run in one process, as in tests, goes without.
        let _ = TRACE.set(Mutex::new(Trace {
            file,
            left: TRACE_BYTES,
        }));
        super::wire::begin(&path.join("wire.pcapng"))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a report, for a person and for a program.
    pub(super) fn add(&self, name: &str, report: &impl Report) -> Result<(), Box<dyn Error>> {
        let write = |kind: &str, text: String| {
            let path = self.path.join(format!("{name}.{kind}"));
            fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
        };
        write("txt", report.human())?;
        write("json", serde_json::to_string_pretty(report)?)?;
        Ok(())
    }
}

/// What writes traces into the run's bundle, and nowhere before there is one.
pub(crate) fn trace_writer() -> impl Write {
    TraceWriter
}

struct TraceWriter;

impl Write for TraceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(trace) = TRACE.get() else {
            return Ok(bytes.len());
        };
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if let Some(left) = trace.left.checked_sub(length) {
            trace.file.write_all(bytes)?;
            trace.left = left;
        } else if std::mem::take(&mut trace.left) > 0 {
            writeln!(trace.file, "the trace ends here, at {TRACE_BYTES} bytes")?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
