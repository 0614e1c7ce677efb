//! The event log: events in order, as lines of text.
//!
//! Two runs with the same seed and the same driver give the same bytes. The log therefore contains no addresses: the
//! location of host memory differs from run to run. It contains everything that decides the further course: register
//! writes, commands and their answers, completions, interrupts, packets by header, faults.

use std::fmt::{self, Write};

/// An append-only log of lines.
#[derive(Debug)]
pub struct EventLog {
    text: String,
    enabled: bool,
    /// Lines not yet taken by [`EventLog::take_news`]; `None` if they are not gathered.
    news: Option<String>,
}

impl EventLog {
    /// Returns a log that keeps lines, or one that drops them.
    pub fn new(enabled: bool) -> Self {
        Self {
            text: String::new(),
            enabled,
            news: None,
        }
    }

    /// Returns whether lines are kept; if not, formatting one is wasted work.
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

    /// Starts gathering lines for [`EventLog::take_news`].
    pub fn gather_news(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Returns whether there are lines that have not been taken.
    pub fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Takes the lines since the last call.
    pub fn take_news(&mut self) -> String {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
