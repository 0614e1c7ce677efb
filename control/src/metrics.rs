//! Counters as OpenMetrics text (OpenMetrics 1.0.0), and a server for whoever scrapes them.
//!
//! The server answers `GET /metrics` and nothing else, one client at a time, with bounds on what it reads and on how
//! long.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// "Overall Structure".
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 8 * 1024;
/// How long a client may take to ask and to read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// A number of now.
    Gauge,
}

/// One metric: what it is, what it counts, and its samples, labels and number each.
#[derive(Debug)]
struct Metric {
    kind: Kind,
    help: String,
    samples: Vec<(String, u64)>,
}

/// A text that is being made.
#[derive(Debug, Default)]
pub struct Text {
    metrics: BTreeMap<String, Metric>,
    /// What each counts, and its lines.
    histograms: BTreeMap<String, (String, String)>,
}

impl Text {
    /// One sample; `help` says for people what is counted. `labels` are as they are written, their values through
    /// [`label`].
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &str, number: u64) {
        let metric = self.metrics.entry(name.to_owned());
        let metric = metric.or_insert_with(|| Metric {
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        metric.samples.push((labels.to_owned(), number));
    }

    /// A histogram of seconds: how many took less than each boundary, and how many there were and took in all.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &str,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let histogram = self.histograms.entry(name.to_owned());
        let (_, lines) = histogram.or_insert_with(|| (help.to_owned(), String::new()));
        for (boundary, below) in buckets {
            let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{boundary}\"}} {below}");
        }
        let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(lines, "{name}_count{{{labels}}} {count}");
        let _ = writeln!(lines, "{name}_sum{{{labels}}} {sum}");
    }

    /// All of it, in the order of the names; histograms at the end.
    #[must_use]
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (name, metric) in &self.metrics {
            let (kind, suffix) = match metric.kind {
                Kind::Gauge => ("gauge", ""),
                Kind::Counter => ("counter", "_total"),
            };
            let help = label(&metric.help);
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, number) in &metric.samples {
                let _ = writeln!(text, "{name}{suffix}{{{labels}}} {number}");
            }
        }
        for (name, (help, lines)) in &self.histograms {
            let help = label(help);
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} histogram\n# UNIT {name} seconds\n{lines}"
            );
        }
        text.push_str("# EOF\n");
        text
    }
}

/// A label's value, or a help's text ("Escaping").
#[must_use]
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What of a text is not as OpenMetrics 1.0.0 and a person want it: a sample without HELP and TYPE of its metric before
/// it, a metric whose samples are not together, or no end.
///
/// # Errors
/// The first such line, and what is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    let mut described: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    let (mut current, mut ended) = ("", false);
    for line in text.lines() {
        let wrong = |what: &str| Err(format!("{line}: {what}"));
        if ended {
            return wrong("it comes after the end");
        }
        if line == "# EOF" {
            ended = true;
        } else if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (Some(kind), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
            else {
                return wrong("it has no kind, name and text");
            };
            if name != current && described.contains_key(name) {
                return wrong("the metric was described before");
            }
            current = name;
            let has = described.entry(name).or_default();
            match kind {
                "HELP" => has[0] = rest.contains(' '),
                "TYPE" => has[1] = true,
                "UNIT" => {}
                _ => return wrong("it is neither HELP, TYPE nor UNIT"),
            }
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            if described.get(current) != Some(&[true, true]) {
                return wrong("its metric has no HELP and TYPE before it");
            }
            let is_of_it = ["", "_total", "_bucket", "_count", "_sum"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(current));
            if !is_of_it {
                return wrong("it is no sample of the metric above it");
            }
        }
    }
    if ended {
        Ok(())
    } else {
        Err("there is no end".to_owned())
    }
}

/// Answers whoever asks, for as long as there is a text.
///
/// # Errors
/// Why there is none any more.
pub fn serve<E>(
    listener: &TcpListener,
    mut text: impl FnMut() -> Result<String, E>,
) -> Result<(), E> {
    for stream in listener.incoming() {
        let asked = stream.and_then(|stream| Ok((head(&stream)?, stream)));
        let sent = match asked {
            Ok((Some(path), stream)) if path == "/metrics" => answer(&stream, "200 OK", &text()?),
            Ok((Some(_), stream)) => answer(&stream, "404 Not Found", "there is /metrics\n"),
            Ok((None, stream)) => answer(&stream, "400 Bad Request", "GET /metrics\n"),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "a scraper");
        }
    }
    Ok(())
}

/// The path that is asked for by GET. `None`: something else.
fn head(mut stream: &TcpStream) -> io::Result<Option<String>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut some = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut some)?;
        head.extend_from_slice(&some[..read]);
        if read == 0 || head.len() > LONGEST_HEAD {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next(), words.next());
    Ok(path.filter(|_| method == Some("GET")).map(str::to_owned))
}

fn answer(mut stream: &TcpStream, status: &str, body: &str) -> io::Result<()> {
    let bytes = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_made_is_well_formed_and_one_without_help_or_end_is_not() {
        let mut text = Text::default();
        text.add("a_b", Kind::Counter, "What it counts.", "x=\"1\"", 3);
        text.add("a_b", Kind::Counter, "What it counts.", "x=\"2\"", 4);
        text.add("a_c", Kind::Gauge, "A \"word\" on\nit.", "x=\"1\"", 5);
        text.histogram(
            "a_d",
            "How long it takes.",
            "x=\"1\"",
            [(0.5, 1)],
            (1, 0.25),
        );
        let text = text.finish();
        assert_eq!(check(&text), Ok(()));
        assert!(
            text.contains("# HELP a_b What it counts.\n# TYPE a_b counter\na_b_total{x=\"1\"} 3\n")
        );
        assert!(
            text.contains("# HELP a_c A \\\"word\\\" on\\nit.\n"),
            "{text}"
        );
        for (from, to, wrong) in [
            (
                "# HELP a_b What it counts.\n",
                "",
                "no HELP and TYPE before it",
            ),
            ("# TYPE a_c gauge\n", "", "no HELP and TYPE before it"),
            ("a_c{x", "a_e{x", "no sample of the metric above it"),
            ("# EOF\n", "", "there is no end"),
            ("# EOF\n", "# EOF\na_b_total 1\n", "after the end"),
            (
                "# EOF\n",
                "# HELP a_b What it counts.\n# EOF\n",
                "described before",
            ),
        ] {
            let said = check(&text.replacen(from, to, 1)).expect_err(wrong);
            assert!(said.contains(wrong), "{said}");
        }
    }
}
