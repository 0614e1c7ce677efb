//! What a program that listens hears of an adapter: spans, and lines that peers cause.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use udapl::fabric::Fabric;
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, EpState, OpenOptions, Qos,
};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig};

/// What was written.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

/// One listens at a time: when one leaves, the process reckons anew which levels anybody hears.
static ALONE: Mutex<()> = Mutex::new(());

/// Every span was there once before anybody listens: one that another test's thread meets for the first time while a
/// listener comes may be taken for one that nobody hears (tracing-core 0.1.36 reckons that first, and then enters it
/// into the list that a new listener has reckoned anew).
static MET: Once = Once::new();

impl Heard {
    fn listen(&self) -> (tracing::subscriber::DefaultGuard, MutexGuard<'static, ()>) {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        MET.call_once(|| drop(Pair::connected()));
        let listener = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(self.clone())
            .finish();
        (tracing::subscriber::set_default(listener), alone)
    }

    /// Lines in which all of these words are.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).expect("text");
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has).map(str::to_owned).collect()
    }

    /// Spans of this name that are over, and have all of these words among their fields.
    fn spans(&self, name: &str, words: &[&str]) -> Vec<String> {
        let mut lines = self.lines(words);
        // A line names its span last, after those that it is in.
        lines.retain(|line| {
            let chain = line.split(" close time.busy=").next().unwrap_or_default();
            let at = chain.rfind(&format!("{name}{{"));
            line != chain && at.is_some_and(|at| !chain[at..].contains("}:command{"))
        });
        lines
    }
}

impl io::Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Heard {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
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
    let heard = Heard::default();
    let listening = heard.listen();
    let pair = Pair::connected();
    let ia = udapl::ia_open("sim:spans", &OpenOptions::default()).expect("opens");
    udapl::ia_close(ia, CloseFlags::Abrupt).expect("closes");
    drop(listening);
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
    let heard = Heard::default();
    let mut pair = Pair::unconnected(&PairConfig::default());
    let listening = heard.listen();
    pair.refuse_next(A, mlx_prm::Opcode::ALLOC_PD);
    assert!(pair.sides[A].ia.pz_create().is_err());
    drop(listening);
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
    let heard = Heard::default();
    let mut pair = Pair::unconnected(&PairConfig::default());
    let listening = heard.listen();
    let (nobody, began) = (ConnQual(CONN_QUAL.0 + 1), pair.now());
    let mut refused = 0;
    while refused < 100 {
        connect(&mut pair, Fabric::ipv4(B), nobody);
        pair.expect_connection(A, Kind::NonPeerRejected);
        let ep = pair.sides[A].ep;
        pair.sides[A].ia.ep_reset(ep).expect("reset");
        assert_eq!(pair.state(A), EpState::Unconnected);
        refused += 1;
    }
    assert!(pair.now().since(began).as_secs() < 10);
    let lines = heard.lines(&["connection refused"]);
    assert_eq!(lines.len(), 8, "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("unlogged=0")));

    pair.run_for(10_000);
    connect(&mut pair, Fabric::ipv4(B), nobody);
    pair.expect_connection(A, Kind::NonPeerRejected);
    drop(listening);
    let lines = heard.lines(&["connection refused"]);
    assert!(lines[8].contains("unlogged=92"), "{lines:#?}");
}
