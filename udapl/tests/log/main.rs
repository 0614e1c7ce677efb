//! Spans and log lines of an adapter.
//!
//! These tests are a program of their own, because `tracing` caches for the whole process whether a span or an event is
//! enabled, and the first thread that reaches the span or event decides. A thread without a subscriber would disable
//! the span or event for all threads. So one subscriber is installed for the process before any thread opens an adapter
//! ([`Heard::new`]). The subscriber separates the lines by thread.

#[path = "../dat/support/mod.rs"]
#[allow(
    dead_code,
    reason = "shared with the program `dat`, which uses all of it"
)]
mod support;

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::Once;

use tracing_subscriber::fmt::format::FmtSpan;
use udapl::endpoint::EpState;
use udapl::fabric::Fabric;
use udapl::{CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, OpenOptions, Qos};

use support::{A, B, CONN_QUAL, LONG, Pair, PairConfig};

/// Guard that installs the process's subscriber once.
static INSTALLED: Once = Once::new();

thread_local! {
    /// The lines of this thread while its test captures them.
    static LINES: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A writer that appends to the lines of its own thread, if the thread's test captures them.
struct ByThread;

impl io::Write for ByThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = str::from_utf8(bytes).map_err(io::Error::other)?;
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.push_str(text);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that a test has captured on its own thread.
struct Heard(String);

impl Heard {
    /// Installs the subscriber. Every test must call `new` first, because no thread may reach a span before.
    fn new() -> Self {
        INSTALLED.call_once(|| {
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_span_events(FmtSpan::CLOSE)
                .with_ansi(false)
                .with_writer(|| ByThread)
                .finish();
            tracing::subscriber::set_global_default(subscriber).expect("the only one");
        });
        Self(String::new())
    }

    /// Captures lines while `work` runs.
    fn listen<R>(&mut self, work: impl FnOnce() -> R) -> R {
        LINES.set(Some(String::new()));
        let done = work();
        self.0 += &LINES.take().expect("nothing else takes them");
        done
    }

    /// Returns the lines that contain all of these words.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        self.0.lines().filter(has).map(str::to_owned).collect()
    }

    /// Returns the closed spans of this name whose lines contain all of these words. A line also has the fields of the
    /// enclosing spans.
    fn spans(&self, name: &str, words: &[&str]) -> Vec<String> {
        let mut lines = self.lines(words);
        // A line names its own span last, behind the enclosing spans.
        lines.retain(|line| {
            let chain = line.split(" close time.busy=").next().unwrap_or_default();
            let at = chain.rfind(&format!("{name}{{"));
            line != chain && at.is_some_and(|at| !chain[at..].contains("}:command{"))
        });
        lines
    }
}

fn connect(pair: &mut Pair, to: IpAddr, port: ConnQual) {
    let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
    let started = pair.sides[A]
        .ia
        .ep_connect(ep, to, port, LONG, b"", Qos::BEST_EFFORT, none);
    started.expect("it starts");
}

#[test]
fn spans_say_what_was_opened_connected_and_closed_and_what_came_of_each_command() {
    let mut heard = Heard::new();
    let pair = heard.listen(|| {
        let pair = Pair::connected();
        let ia = udapl::ia_open("sim:spans", &OpenOptions::default()).expect("opens");
        udapl::ia_close(ia, CloseFlags::Abrupt).expect("closes");
        pair
    });
    drop(pair);

    assert_eq!(heard.spans("open", &["function="]).len(), 3);
    let init = heard.spans("command", &["INIT_HCA", "status=\"OK\""]);
    assert_eq!(init.len(), 3, "{init:#?}");
    for (name, port) in [("connect", CONN_QUAL.0), ("accept", CONN_QUAL.0)] {
        let spans = heard.spans(name, &["instance="]);
        let [span] = spans.as_slice() else {
            panic!("one span {name}, not {spans:#?}");
        };
        assert!(span.contains("outcome=Connected"), "{span}");
        assert!(
            name == "accept" || span.contains(&format!("port={port}")),
            "{span}"
        );
    }
    let closed = heard.spans("close", &["close{function="]);
    assert_eq!(closed.len(), 1, "{closed:#?}");
}

#[test]
fn a_command_that_the_firmware_refuses_is_a_span_with_its_status() {
    let mut heard = Heard::new();
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.refuse_next(A, mlx_prm::Opcode::ALLOC_PD);
    assert!(heard.listen(|| pair.sides[A].ia.pz_create().is_err()));
    let refused = heard.spans("command", &["instance=0", "ALLOC_PD"]);
    let [line] = refused.as_slice() else {
        panic!("one span, not {refused:#?}");
    };
    assert!(
        !line.contains("status=\"OK\"") && line.contains("status="),
        "{line}"
    );
}

#[test]
fn a_peer_that_refuses_a_hundred_times_is_eight_lines_in_ten_seconds() {
    let mut heard = Heard::new();
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (unused, began) = (ConnQual(CONN_QUAL.0 + 1), pair.now());
    heard.listen(|| {
        for _ in 0..100 {
            connect(&mut pair, Fabric::ipv4(B), unused);
            pair.expect_connection(A, Kind::NonPeerRejected);
            let ep = pair.sides[A].ep;
            pair.sides[A].ia.ep_reset(ep).expect("reset");
            assert_eq!(pair.state(A), EpState::Unconnected);
        }
    });
    assert!(pair.now().since(began).as_secs() < 10);
    let lines = heard.lines(&["connection refused"]);
    assert_eq!(lines.len(), 8, "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("unlogged=0")));

    heard.listen(|| {
        pair.run_for(10_000);
        connect(&mut pair, Fabric::ipv4(B), unused);
        pair.expect_connection(A, Kind::NonPeerRejected);
    });
    let lines = heard.lines(&["connection refused"]);
    assert!(lines[8].contains("unlogged=92"), "{lines:#?}");
}
