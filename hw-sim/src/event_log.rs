//! The event log: what happened, in order, as lines of text.
//!
//! Two runs with the same seed and the same driver give the same bytes. Addresses therefore never
//! appear in it: where the host's memory lies differs from run to run. Everything that decides what
//! happens next does appear: register writes, commands and their answers, completions, interrupts,
//! packets by header, faults.

use std::fmt::{self, Write};

/// An append-only log of lines.
#[derive(Debug)]
pub struct EventLog {
    text: String,
    enabled: bool,
}

impl EventLog {
    /// A log that keeps lines, or one that drops them.
    pub fn new(enabled: bool) -> Self {
        Self {
            text: String::new(),
            enabled,
        }
    }

    /// Whether lines are kept; formatting one that is not is wasted work.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Adds a line: time in nanoseconds, function number, text.
    pub fn line(&mut self, now: u64, function: usize, text: fmt::Arguments<'_>) {
        if self.enabled {
            // Writing to a String does not fail.
            let _ = writeln!(self.text, "{now} f{function} {text}");
        }
    }

    /// Everything so far.
    pub fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
