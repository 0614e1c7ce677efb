//! The event log: events in order, as lines of text.
//!
//! Two runs with the same seed and the same driver give the same bytes. So the log contains no addresses, because the
//! location of host memory differs from run to run. The log contains everything that influences later events:
//! register writes, commands and their answers, completions, interrupts, packets by header, faults.

use std::fmt::{self, Write};

/// A log to which lines are appended.
#[derive(Debug)]
pub struct EventLog {
    text: String,
    enabled: bool,
    /// Lines not yet taken by [`EventLog::take_lines`]; `None` if they are not collected.
    news: Option<String>,
}

impl EventLog {
    /// Returns a log that keeps lines if `enabled` is set, and otherwise drops them.
    pub fn new(enabled: bool) -> Self {
        Self {
            text: String::new(),
            enabled,
            news: None,
        }
    }

    /// Returns whether lines are kept. If not, the caller need not format a line.
    pub fn enabled(&self) -> bool {
        self.enabled || self.news.is_some()
    }

    /// Adds a line: time in nanoseconds, function number, text.
    pub fn line(&mut self, now: u64, function: usize, text: fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        if self.enabled {
            let _ = writeln!(self.text, "{now} f{function} {text}");
        }
        if let Some(news) = &mut self.news {
            let _ = writeln!(news, "{now} f{function} {text}");
        }
    }

    /// Returns all lines so far.
    pub fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Starts collecting lines for [`EventLog::take_lines`].
    pub fn collect_lines(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Returns whether there are lines that have not been taken.
    pub fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Takes the lines that were added since the last call.
    pub fn take_lines(&mut self) -> String {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
