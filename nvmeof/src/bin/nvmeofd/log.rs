//! What is logged: to the error stream, in lines for people; the journal adds the time itself.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// Begins. `RUST_LOG` comes before what the configuration says.
pub(crate) fn begin(level: Option<&str>) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(level.unwrap_or("info")));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    let begun = if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().try_init()
    } else {
        lines.try_init()
    };
    // One that is there already is somebody's choice.
    drop(begun);
}
