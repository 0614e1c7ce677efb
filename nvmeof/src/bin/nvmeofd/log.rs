//! The log: text lines on the error stream. The journal adds the time.

use std::error::Error;
use std::io::{IsTerminal, stderr};

use nvmeof::daemon::{log_filter, log_filter_of_environment};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{Handle, Layer as Reloadable};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// Level if the configuration sets none.
pub(crate) const USUAL: &str = "info";

/// The running log, whose filter can be changed.
pub(crate) struct Log {
    filter: Handle<EnvFilter, Registry>,
}

/// Returns the value of `RUST_LOG`, which takes precedence over the configuration.
fn environment() -> Option<String> {
    let value = std::env::var_os("RUST_LOG")?;
    Some(value.to_string_lossy().into_owned())
}

impl Log {
    /// Starts logging with the filter of `RUST_LOG`, or otherwise with `level`.
    pub(crate) fn begin(level: Option<&str>) -> Result<Self, Box<dyn Error>> {
        let filter = match environment() {
            Some(value) => {
                log_filter_of_environment(&value).map_err(|error| format!("RUST_LOG: {error}"))?
            }
            None => log_filter(level.unwrap_or(USUAL))?,
        };
        let (reloadable, handle) = Reloadable::new(filter);
        let lines = fmt::layer()
            .with_target(false)
            .with_ansi(stderr().is_terminal())
            .with_writer(stderr);
        let lines = if std::env::var_os("JOURNAL_STREAM").is_some() {
            lines.without_time().boxed()
        } else {
            lines.boxed()
        };
        tracing_subscriber::registry()
            .with(reloadable)
            .with(lines)
            .try_init()?;
        Ok(Self { filter: handle })
    }

    /// Sets the filter; `None` for the default level.
    ///
    /// # Errors
    /// `RUST_LOG` is set and takes precedence, or the text is not a valid filter. The filter is unchanged.
    pub(crate) fn set(&self, level: Option<&str>) -> Result<(), String> {
        if let Some(value) = environment() {
            return Err(format!("RUST_LOG={value} comes before it"));
        }
        let filter = log_filter(level.unwrap_or(USUAL))?;
        let set = self.filter.reload(filter);
        set.map_err(|error| error.to_string())
    }
}
