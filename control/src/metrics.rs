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

/// Samples of one metric: labels and number.
type Samples = Vec<(String, u64)>;

/// A text that is being made.
#[derive(Debug, Default)]
pub struct Text {
    metrics: BTreeMap<String, (Option<Kind>, Samples)>,
    /// The lines of each.
    histograms: BTreeMap<String, String>,
}

impl Text {
    /// One sample. `labels` are as they are written, their values through [`label`].
    pub fn add(&mut self, name: &str, kind: Kind, labels: &str, number: u64) {
        let (of, samples) = self.metrics.entry(name.to_owned()).or_default();
        *of = Some(kind);
        samples.push((labels.to_owned(), number));
    }

    /// A histogram of seconds: how many took less than each boundary, and how many there were and took in all.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let lines = self.histograms.entry(name.to_owned()).or_default();
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
        for (name, (kind, samples)) in &self.metrics {
            let (kind, suffix) = match kind {
                Some(Kind::Gauge) => ("gauge", ""),
                Some(Kind::Counter) | None => ("counter", "_total"),
            };
            let _ = writeln!(text, "# TYPE {name} {kind}");
            for (labels, number) in samples {
                let _ = writeln!(text, "{name}{suffix}{{{labels}}} {number}");
            }
        }
        for (name, lines) in &self.histograms {
            let _ = write!(
                text,
                "# TYPE {name} histogram\n# UNIT {name} seconds\n{lines}"
            );
        }
        text.push_str("# EOF\n");
        text
    }
}

/// A label's value ("Escaping").
#[must_use]
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
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
