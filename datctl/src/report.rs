//! What a command has to say: one structure, printed as a table or as JSON.
//!
//! JSON is one object a line and ends with a newline, also for errors, so that a program reads lines. Field names are
//! the contract; the tables are for people and may change.

use std::error::Error;
use std::io::{self, Write, stderr, stdout};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

/// Something that can be shown.
pub(crate) trait Report: Serialize {
    /// For a person, without a newline at the end.
    fn human(&self) -> String;
}

impl Report for simnic::steer::Answer {
    fn human(&self) -> String {
        self.to_string()
    }
}

/// How reports are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Prints a report at once, so that whoever reads a pipe has it.
    pub(crate) fn show(self, report: &impl Report) -> io::Result<()> {
        let text = if self.json {
            serde_json::to_string(report)?
        } else {
            report.human()
        };
        let mut out = stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Says why the command failed: one line for a person, and for a program one object.
    pub(crate) fn fail(self, error: &dyn Error) {
        // When nobody reads the streams any more there is nobody to tell.
        let _ = writeln!(stderr(), "datctl: {error}");
        if self.json {
            let object = serde_json::json!({ "error": error.to_string() });
            let _ = writeln!(stdout(), "{object}");
        }
    }
}

/// A table without lines.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Names and values, one pair a line.
pub(crate) fn pairs(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table.trim_fmt()
}
