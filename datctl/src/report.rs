//! The output of a command: one structure, printed as a table or as JSON.
//!
//! Each JSON object is one line and ends with a newline, also for errors, so that a program can read lines. The names
//! of the fields are stable; the tables are for people and may change.
//!
//! On a terminal tables fit its width, and verdicts have colours unless `NO_COLOR` is set (no-color.org). Output to a
//! pipe or a file is plain, and as wide as needed.

use std::error::Error;
use std::io::{self, IsTerminal, Write, stderr, stdout};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

/// The result of a command, which can be printed.
pub(crate) trait Report: Serialize {
    /// Returns the text for a person, without a newline at the end.
    fn human(&self) -> String;

    /// Returns the text for a person, with colours.
    fn coloured(&self) -> String {
        self.human()
    }
}

/// An error in the command line that the parser cannot detect, because it concerns several options. The exit status is
/// 2, as for the parser's own errors.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// Colours of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Green,
    Yellow,
    Red,
}

impl Ink {
    /// Returns the words in this colour (ECMA-48, SGR 31 to 33).
    pub(crate) fn on(self, words: &str) -> String {
        let number = match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
        };
        format!("\x1b[{number}m{words}\x1b[0m")
    }
}

/// Returns true if the output should have colours. `NO_COLOR` is ignored if it is empty.
fn wants_colours(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> bool {
    is_terminal && no_color.is_none_or(str::is_empty) && term.is_some_and(|term| term != "dumb")
}

/// Returns true if a stream of this process should have colours.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    let variable = |name| std::env::var(name).ok();
    wants_colours(
        stream.is_terminal(),
        variable("NO_COLOR").as_deref(),
        variable("TERM").as_deref(),
    )
}

impl Report for simnic::steer::Answer {
    fn human(&self) -> String {
        self.to_string()
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Prints a report and flushes it, so that the reader of a pipe gets it at once.
    pub(crate) fn show(self, report: &impl Report) -> io::Result<()> {
        let text = if self.json {
            serde_json::to_string(report)?
        } else if has_colours(&stdout()) {
            report.coloured()
        } else {
            report.human()
        };
        let mut out = stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Prints the error of a failed command: one line for a person, and with `--json` also one object for a program.
    pub(crate) fn fail(self, error: &dyn Error) {
        // If the streams are closed, the error cannot be reported, so write errors are ignored.
        let who = if has_colours(&stderr()) {
            Ink::Red.on("datctl:")
        } else {
            "datctl:".to_owned()
        };
        let _ = writeln!(stderr(), "{who} {error}");
        if self.json {
            let object = serde_json::json!({ "error": error.to_string() });
            let _ = writeln!(stdout(), "{object}");
        }
    }
}

/// Returns an empty table that fits the width of the terminal; without a terminal its width is not limited.
fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    if let Some((width, _)) = terminal_size::terminal_size_of(stdout()) {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width.0);
    }
    table
}

/// Returns a table without rules between its cells.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = plain();
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Formats a number with its noun, in the plural if needed: `1 endpoint`, `2 endpoints`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Returns a table of names and values, one pair for each row.
pub(crate) fn pairs(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = plain();
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_show_them_and_people_who_want_them() {
        let xterm = Some("xterm");
        assert!(wants_colours(true, None, xterm));
        assert!(
            wants_colours(true, Some(""), xterm),
            "no-color.org: not empty"
        );
        assert!(!wants_colours(true, Some("1"), xterm));
        assert!(!wants_colours(false, None, xterm), "a pipe");
        assert!(!wants_colours(true, None, Some("dumb")));
        assert!(!wants_colours(true, None, None));
    }
}
