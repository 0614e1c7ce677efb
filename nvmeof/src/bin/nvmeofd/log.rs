//! What is logged: to the error stream, in lines for people; the journal adds the time itself.

use std::error::Error;
use std::io::{IsTerminal, stderr};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{Handle, Layer as Reloadable};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// The log, and what of it is told.
pub(crate) struct Log {
    filter: Handle<EnvFilter, Registry>,
}

/// `RUST_LOG` comes before what the configuration says.
fn filter(level: Option<&str>) -> Result<EnvFilter, Box<dyn Error>> {
    if std::env::var_os("RUST_LOG").is_some() {
        return EnvFilter::try_from_default_env()
            .map_err(|error| format!("RUST_LOG: {error}").into());
    }
    let level = level.unwrap_or("info");
    EnvFilter::try_new(level).map_err(|error| format!("log = {level:?}: {error}").into())
}

impl Log {
    /// Begins.
    pub(crate) fn begin(level: Option<&str>) -> Result<Self, Box<dyn Error>> {
        let (reloadable, handle) = Reloadable::new(filter(level)?);
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

    /// From now on this is told.
    pub(crate) fn set(&self, level: Option<&str>) {
        let set = filter(level).map(|filter| self.filter.reload(filter));
        if let Err(error) = set {
            tracing::error!(%error, "what is logged stays as it is");
        }
    }
}
