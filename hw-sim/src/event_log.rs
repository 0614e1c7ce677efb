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
    /// Lines that whoever gathers news has not taken yet; none if nobody does.
    news: Option<String>,
}

impl EventLog {
    /// A log that keeps lines, or one that drops them.
    pub fn new(enabled: bool) -> Self {
        Self {
            text: String::new(),
            enabled,
            news: None,
        }
    }

    /// Whether lines are wanted; formatting one that is not is wasted work.
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

    /// Everything so far.
    pub fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// From now on lines are there to be taken.
    pub fn gather_news(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Whether there are lines that have not been taken.
    pub fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Lines since this was last asked.
    pub fn take_news(&mut self) -> String {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
