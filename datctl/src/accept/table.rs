//! The result of an acceptance run: one table.

use driver::pci::Machine;
use serde::Serialize;

use super::bundle::Bundle;
use super::subject::Subject;
use crate::report::{Report, counted, table};

/// The result of a run.
#[derive(Serialize)]
pub(super) struct Acceptance {
    /// True if no line is "not ok"; skipped lines do not count.
    pub(super) ok: bool,
    /// False if only some lines were asked for. Then nothing is accepted.
    whole: bool,
    functions: Vec<String>,
    /// True if a function is simulated, so that the run says nothing about a card.
    simulated: bool,
    /// Version of datctl.
    version: &'static str,
    /// Version of the kernel; `None` if it is unknown.
    kernel: Option<String>,
    bundle: String,
    pub(super) rows: Vec<Row>,
}

/// One line of the table.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) line: &'static str,
    /// Names of the functions that the line tested.
    pub(super) of: String,
    pub(super) verdict: Verdict,
    /// The finding; for a line that is not ok the error; for a skipped line the reason.
    pub(super) found: String,
    /// Sentence that distinguishes the possible causes; only for a line that is not ok.
    pub(super) apart: Option<&'static str>,
    pub(super) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Verdict {
    #[serde(rename = "ok")]
    Ok,
    #[serde(rename = "not ok")]
    NotOk,
    #[serde(rename = "skipped")]
    Skipped,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotOk => "not ok",
            Self::Skipped => "skipped",
        }
    }
}

impl Row {
    /// Returns the line to print while the run goes on.
    pub(super) fn progress(&self) -> String {
        let (line, of, seconds) = (self.line, &self.of, self.seconds);
        format!("{:<8} {line} of {of}, {seconds:.1} s", self.verdict.word())
    }
}

impl Acceptance {
    pub(super) fn new(
        subjects: &[Subject<'_>],
        whole: bool,
        rows: Vec<Row>,
        machine: &Machine,
        bundle: &Bundle,
    ) -> Self {
        let kernel = std::fs::read_to_string(machine.path("/proc/sys/kernel/osrelease")).ok();
        Self {
            ok: rows.iter().all(|row| row.verdict != Verdict::NotOk),
            whole,
            functions: subjects.iter().map(|it| it.name.clone()).collect(),
            simulated: subjects.iter().any(|it| it.simulated),
            version: env!("CARGO_PKG_VERSION"),
            kernel: kernel.map(|text| text.trim().to_owned()),
            bundle: bundle.path().display().to_string(),
            rows,
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }
}

impl Report for Acceptance {
    fn human(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            [
                row.line.to_owned(),
                row.verdict.word().to_owned(),
                format!("{:.1}", row.seconds),
                row.of.clone(),
                row.found.clone(),
            ]
        });
        let mut text = table(["line", "verdict", "s", "of", "found"], rows);
        let apart: Vec<[String; 2]> = self
            .rows
            .iter()
            .filter_map(|row| Some([format!("{}, {}", row.line, row.of), row.apart?.to_owned()]))
            .collect();
        if !apart.is_empty() {
            text.push_str("\n\n");
            text.push_str(&table(["not ok", "causes told apart"], apart));
        }
        let [ok, bad, skipped] =
            [Verdict::Ok, Verdict::NotOk, Verdict::Skipped].map(|it| self.count(it));
        let word = match (self.ok, self.whole) {
            (true, true) => "accepted",
            (true, false) => "nothing accepted, since only some lines ran",
            (false, _) => "not accepted",
        };
        text.push_str(&format!(
            "\n\n{word}: {} ok, {bad} not ok, {skipped} skipped, which say nothing\nkept in {}",
            counted(ok, "line"),
            self.bundle
        ));
        if self.simulated {
            text.push_str("\nsimulated: nothing is said of a card");
        }
        text
    }
}
