//! Counters as OpenMetrics text (OpenMetrics 1.0.0), and an HTTP server for scrapers.
//!
//! The server has one page, `/metrics`, and answers each other request with an HTTP error. It serves up to `CLIENTS`
//! clients at a time with poll(2); a further client evicts another (`eviction_index`). A client has `PATIENCE` from its
//! acceptance to the end of its answer, however slowly the client sends and reads, and `MAX_HEAD_BYTES` bytes for its
//! request.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::places::{eviction_index, is_logged};

/// Media type (OpenMetrics, "Overall Structure").
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum length of a request's head in bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Maximum number of clients at a time.
pub(crate) const CLIENTS: usize = 16;
/// Time limit for a client, from its acceptance to the end of its answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which no client is accepted after the system lacked the resources to accept one.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A current value.
    Gauge,
}

/// One metric: its kind, its help text, and its samples. A sample has labels and a value.
#[derive(Debug)]
struct Metric {
    kind: Kind,
    help: String,
    samples: Vec<(String, u64)>,
}

/// An OpenMetrics text under construction.
#[derive(Debug, Default)]
pub struct Text {
    metrics: BTreeMap<String, Metric>,
    /// Help text and sample lines of each histogram, by name.
    histograms: BTreeMap<String, (String, String)>,
}

impl Text {
    /// Adds one sample. `help` is a description of the metric for people. `labels` are written as given, so the caller
    /// must escape their values with [`label`].
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &str, number: u64) {
        let metric = self.metrics.entry(name.to_owned());
        let metric = metric.or_insert_with(|| Metric {
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        metric.samples.push((labels.to_owned(), number));
    }

    /// Adds a histogram of measured times in seconds. `buckets` has pairs of a boundary and the number of measurements
    /// below the boundary. The last argument has the number of all measurements and their sum.
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
        let comma = if labels.is_empty() { "" } else { "," };
        for (boundary, below) in buckets {
            let _ = writeln!(
                lines,
                "{name}_bucket{{{labels}{comma}le=\"{boundary}\"}} {below}"
            );
        }
        let _ = writeln!(lines, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let _ = writeln!(lines, "{name}_count{{{labels}}} {count}");
        let _ = writeln!(lines, "{name}_sum{{{labels}}} {sum}");
    }

    /// Returns the whole text, sorted by name; histograms come last.
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

/// Escapes the value of a label, or a help text (OpenMetrics, "Escaping").
#[must_use]
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Checks a text against OpenMetrics 1.0.0. Each sample needs the HELP and TYPE of its metric before it, the samples of
/// a metric must be contiguous, and the text must end with `# EOF`.
///
/// # Errors
/// The first wrong line and the reason.
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
                "HELP" => has[0] = !rest.is_empty(),
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
            if line[name.len()..].starts_with("{,") {
                return wrong("its first label is missing");
            }
        }
    }
    if ended {
        Ok(())
    } else {
        Err("there is no end".to_owned())
    }
}

/// Serves scrapers until `text` returns an error.
///
/// # Errors
/// The error of `text`.
pub fn serve<E>(listener: &TcpListener, text: impl FnMut() -> Result<String, E>) -> Result<(), E> {
    let began = Instant::now();
    let mut scrapers = Scrapers::new(listener, text, || began.elapsed());
    loop {
        scrapers.run_once()?;
    }
}

/// The clients of a listener. `now` is the clock.
pub(crate) struct Scrapers<'a, T, C> {
    listener: &'a TcpListener,
    text: T,
    now: C,
    clients: Vec<Scraper>,
    /// No client is accepted before this time.
    paused_until: Duration,
    /// Number of clients that were removed before they had a complete answer.
    lost: u64,
}

/// A client of the HTTP server.
struct Scraper {
    stream: TcpStream,
    source: IpAddr,
    /// Deadline for the end of its answer, on the clock `now`.
    until: Duration,
    head: Vec<u8>,
    /// Answer for the client, of which `sent` bytes were sent. Empty until the request is complete.
    answer: Vec<u8>,
    sent: usize,
}

impl<'a, E, T: FnMut() -> Result<String, E>, C: Fn() -> Duration> Scrapers<'a, T, C> {
    pub(crate) fn new(listener: &'a TcpListener, text: T, now: C) -> Self {
        if let Err(error) = listener.set_nonblocking(true) {
            tracing::warn!(%error, "a client that disconnects at once may delay the other clients of the metrics");
        }
        Self {
            listener,
            text,
            now,
            clients: Vec::new(),
            paused_until: Duration::ZERO,
            lost: 0,
        }
    }

    /// Waits until a client is ready, a connection is waiting, or a deadline has passed. Then serves the ready clients,
    /// removes the late clients, and accepts at most one connection.
    pub(crate) fn run_once(&mut self) -> Result<(), E> {
        let (has_waiting, ready) = self.sleep();
        let now = (self.now)();
        for (at, is_ready) in ready.into_iter().enumerate().rev() {
            let client = &mut self.clients[at];
            let mut ended = if client.until <= now {
                Err(ErrorKind::TimedOut.into())
            } else {
                Ok(false)
            };
            if is_ready && ended.is_ok() {
                ended = client.read();
                if client.answer.is_empty()
                    && let Ok(true) = ended
                {
                    client.answer = response(&client.head, &mut self.text)?;
                }
                if !client.answer.is_empty() {
                    ended = client.write();
                }
            }
            match ended {
                Ok(false) => {}
                Ok(true) => drop(self.clients.swap_remove(at)),
                Err(error) => self.remove(at, &error),
            }
        }
        if has_waiting {
            self.admit(now);
        }
        Ok(())
    }

    /// Returns whether a connection is waiting, and which clients are ready for reading or writing.
    fn sleep(&self) -> (bool, Vec<bool>) {
        let now = (self.now)();
        let is_paused = now < self.paused_until;
        let dues = self.clients.iter().map(|client| client.until);
        let due = dues.chain(is_paused.then_some(self.paused_until)).min();
        // The timeout is rounded up to milliseconds. Otherwise the last millisecond would be a busy loop.
        let left = due.map(|due| due.saturating_sub(now) + Duration::from_micros(999));
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let events = if is_paused {
            PollFlags::empty()
        } else {
            PollFlags::POLLIN
        };
        let mut fds = vec![PollFd::new(self.listener.as_fd(), events)];
        fds.extend(self.clients.iter().map(|client| {
            let wants = if client.answer.is_empty() {
                PollFlags::POLLIN
            } else {
                PollFlags::POLLOUT
            };
            PollFd::new(client.stream.as_fd(), wants)
        }));
        // An error of poll(2) is ignored, since the caller polls again. The error is EINTR or ENOMEM.
        let _ = poll(&mut fds, timeout);
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        (
            !is_paused && is_ready(&fds[0]),
            fds[1..].iter().map(is_ready).collect(),
        )
    }

    fn admit(&mut self, now: Duration) {
        let accepted = self.listener.accept().and_then(|(stream, from)| {
            stream.set_nonblocking(true)?;
            Ok((stream, from.ip()))
        });
        let (stream, source) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                tracing::warn!(%error, "a scraper could not be accepted");
                self.paused_until = now + PAUSE;
                return;
            }
        };
        if self.clients.len() >= CLIENTS {
            let clients = self.clients.iter();
            let clients: Vec<_> = clients.map(|one| (one.source, one.until)).collect();
            if let Some(at) = eviction_index(&clients, &source) {
                self.remove(at, &io::Error::other("evicted for another client"));
            }
        }
        self.clients.push(Scraper {
            stream,
            source,
            until: now + PATIENCE,
            head: Vec::new(),
            answer: Vec::new(),
            sent: 0,
        });
    }

    /// Removes a client that has no complete answer, and counts it. Logs the removal if `is_logged` selects it.
    fn remove(&mut self, at: usize, error: &io::Error) {
        let client = self.clients.swap_remove(at);
        self.lost += 1;
        if is_logged(self.lost) {
            let (from, times) = (client.source, self.lost);
            tracing::warn!(%from, times, %error, "a scraper had no answer");
        }
    }
}

impl Scraper {
    /// Reads the bytes that the client has sent of its request. Returns whether the request is complete or too long.
    fn read(&mut self) -> io::Result<bool> {
        let mut some = [0; 1024];
        while self.answer.is_empty() && !self.is_head_complete() {
            match self.stream.read(&mut some) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.head.extend_from_slice(&some[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn is_head_complete(&self) -> bool {
        self.head.len() > MAX_HEAD_BYTES || self.head.windows(4).any(|end| end == b"\r\n\r\n")
    }

    /// Writes as much of the answer as the client accepts. Returns whether the answer is sent completely.
    fn write(&mut self) -> io::Result<bool> {
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Returns the response to a request's head.
fn response<E>(head: &[u8], text: &mut impl FnMut() -> Result<String, E>) -> Result<Vec<u8>, E> {
    let head = String::from_utf8_lossy(head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let is_whole = head.len() <= MAX_HEAD_BYTES;
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) if is_whole => ("200 OK", text()?),
        (Some("GET"), Some(_)) if is_whole => ("404 Not Found", "there is /metrics\n".to_owned()),
        _ => ("400 Bad Request", "GET /metrics\n".to_owned()),
    };
    let bytes = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{body}"
    );
    Ok(answer.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_without_labels_and_with_a_help_of_one_word_is_well_formed() {
        let mut text = Text::default();
        text.histogram("a_d", "Times.", "", [(0.5, 1)], (1, 0.25));
        let text = text.finish();
        assert_eq!(
            text,
            "# HELP a_d Times.\n# TYPE a_d histogram\n# UNIT a_d seconds\n\
             a_d_bucket{le=\"0.5\"} 1\na_d_bucket{le=\"+Inf\"} 1\na_d_count{} 1\na_d_sum{} 0.25\n# EOF\n"
        );
        assert_eq!(check(&text), Ok(()));
        let said = check(&text.replacen("{le", "{,le", 1)).expect_err("a comma too many");
        assert!(said.contains("first label is missing"), "{said}");
    }

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
