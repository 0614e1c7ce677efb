//! Trace of the actions and events of adapters, as readable lines.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines of a trace. Clones share the lines, so the caller of a simulation can read them after a panic.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<String>>);

impl Trace {
    /// Adds a line with the time in nanoseconds, the side and a text.
    pub fn line(&self, now: u64, side: usize, text: fmt::Arguments<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String does not fail.
        let _ = writeln!(lines, "{now} side {side}: {text}");
    }

    /// Returns all lines so far.
    pub fn text(&self) -> String {
        let lines = self.0.lock();
        lines.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
