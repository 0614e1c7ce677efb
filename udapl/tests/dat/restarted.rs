//! A program that is restarted without reconnecting: its adapter goes from process to process under traffic.
//!
//! This process is the peer, with one function of a card. The other function belongs to a chain of processes, each of
//! which hands it over to the next one, with messages in flight in both directions on all connections. The functions
//! are in this process, behind vfio-user servers, or in the slots of the machine (`DAT_TEST_FUNCTIONS`). The
//! simulator counts the resets of both functions. Here time is real; it is reported and not judged.
//!
//! | Environment variable | Meaning |
//! |---|---|
//! | `RESTARTED_CONNECTIONS` | number of connections of the adapter |
//! | `RESTARTED_HANDOVERS` | number of times that the adapter goes to another process |
//! | `RESTARTED_UNIT` | a unit of systemd, whose processes are the chain and hand over by its store |
//! | `RESTARTED_SAID` | the file with the output of the unit's processes |
//! | `RESTARTED_INSTANCES` | number of instances of the adapter of [`several`] |
//! | `SNAPSHOT_BLESS` | a file, into which the first process of [`several`] writes the snapshot of its adapter |

mod adapters;
mod card;
mod chain;
mod end;
mod figures;
mod several;

use core::time::Duration;
use std::io::{BufRead, BufReader, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use udapl::counters::QueueCounters;
use udapl::{Adapter, CloseFlags, ia_close};

use crate::support::{B, functions};
use card::Card;
use end::{Arrived, End, SLOTS, Waited, message};
use figures::Said;

/// Time limit of each wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of messages of a connection that have no answer yet.
const IN_FLIGHT: u64 = 8;
/// Number of messages of each connection after the last handover.
const AFTERWARDS: u64 = 2 * SLOTS;

/// Course of the chain.
struct Course {
    connections: usize,
    handovers: u32,
    /// Each process also tries what must be refused. This would lengthen the time without the adapter.
    tries_refusals: bool,
}

impl Course {
    fn of_environment() -> Self {
        let number = |name: &str, default: u32| match std::env::var(name) {
            Ok(text) => text.parse().expect(name),
            Err(_) => default,
        };
        let connections = number("RESTARTED_CONNECTIONS", 3);
        Self {
            connections: usize::try_from(connections).expect("small"),
            handovers: number("RESTARTED_HANDOVERS", 11),
            tries_refusals: functions::named().is_none(),
        }
    }

    /// Returns the number of messages that a process answers before it hands over. It is no multiple of the number of
    /// slots.
    const fn messages_each(&self) -> u64 {
        4 * self.connections as u64 + 89
    }
}

/// Program of the processes of the chain.
#[test]
fn a_process_of_the_chain() {
    chain::run();
}

/// Program of the processes of a unit of systemd.
#[test]
fn a_process_of_the_unit() {
    chain::run_in_unit();
}

/// A process of the chain, and its output.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    said: Vec<Said>,
}

impl Process {
    fn start(folder: &Path, adapter: &str, number: u32) -> Self {
        Self::of(&mut chain::process(folder, adapter, number))
    }

    fn of(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a process");
        let output = child.stdout.take().expect("its output");
        Self {
            child,
            output: BufReader::new(output),
            said: Vec::new(),
        }
    }

    /// Reads its output until the next process can be started.
    fn listens(&mut self) {
        for line in self.output.by_ref().lines().map_while(Result::ok) {
            let said = Said::parse(&line);
            self.said.extend(said);
            if said == Some(Said::Listens) {
                return;
            }
        }
        panic!("a process of the chain has ended: {:?}", self.child.wait());
    }

    /// Waits for its end while `next` runs, which takes its adapter over. If `next` ends first, this is a panic.
    fn ended_before(self, next: &mut Self) -> Vec<Said> {
        let outputs = [&self, &*next].map(|it| it.output.get_ref().as_fd());
        // A process closes its output when it ends.
        let mut ends = outputs.map(|output| PollFd::new(output, PollFlags::empty()));
        let ready = poll(&mut ends, PollTimeout::NONE).expect("outputs of processes");
        assert_ne!(ready, 0);
        let [this, _] = ends;
        if this.any() != Some(true) {
            let status = next.child.wait();
            panic!("the next process has ended before it took the adapter over: {status:?}");
        }
        self.ended()
    }

    /// Waits for its end, and returns what it said.
    fn ended(mut self) -> Vec<Said> {
        let rest = self.output.by_ref().lines().map_while(Result::ok);
        self.said.extend(rest.filter_map(|line| Said::parse(&line)));
        let status = self.child.wait().expect("its status");
        assert!(status.success(), "a process of the chain: {status}");
        core::mem::take(&mut self.said)
    }
}

/// A process that the test leaves behind would keep the adapter.
impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a process whose end was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the processes of the chain, one after the other. Returns what they said, and the last one, which is running.
fn start_processes(folder: &Path, adapter: &str, handovers: u32) -> (Vec<Said>, Process) {
    let mut said = Vec::new();
    let mut current = Process::start(folder, adapter, 0);
    for number in 1..=handovers {
        current.listens();
        let mut next = Process::start(folder, adapter, number);
        said.extend(current.ended_before(&mut next));
        current = next;
    }
    (said, current)
}

/// The test does not wait for a process that has the adapter if the one after it has died.
#[test]
#[should_panic(expected = "the next process has ended before it took the adapter over")]
fn a_next_process_that_dies_ends_the_test() {
    let current = Process::of(Command::new("cat").stdin(Stdio::piped()));
    let mut next = Process::of(&mut Command::new("false"));
    current.ended_before(&mut next);
}

/// Starts and restarts a unit of systemd. `answered` has an item for each round of messages that were answered.
fn restart_unit(unit: &str, handovers: u32, answered: &Receiver<()>) {
    let systemctl = |verb: &str| {
        let status = Command::new("systemctl").args([verb, unit]).status();
        let status = status.expect("systemctl");
        assert!(status.success(), "systemctl {verb} {unit}: {status}");
    };
    systemctl("start");
    for _ in 0..handovers {
        while answered.try_recv().is_ok() {}
        answered.recv_timeout(PATIENCE).expect("answers");
        systemctl("restart");
    }
    while answered.try_recv().is_ok() {}
    answered.recv_timeout(PATIENCE).expect("answers");
}

/// Returns what the processes of a unit said.
fn said_in_unit() -> Vec<Said> {
    let path = std::env::var_os("RESTARTED_SAID").expect("set");
    let said = std::fs::read_to_string(path).expect("a file");
    said.lines().filter_map(Said::parse).collect()
}

/// State of the chain, for the peer.
#[derive(Default)]
struct Chain {
    /// The last process has the adapter.
    is_complete: AtomicBool,
    /// The thread that starts the processes has failed.
    has_failed: AtomicBool,
}

impl Chain {
    /// Ends the test if the chain has failed, so that the peer does not wait for messages that never come.
    fn check(&self) {
        assert!(
            !self.has_failed.load(Ordering::Relaxed),
            "the chain has failed"
        );
    }
}

/// Ends the traffic when it is dropped: the chain is complete, or its thread has failed.
struct EndOfTraffic(Arc<Chain>);

impl Drop for EndOfTraffic {
    fn drop(&mut self) {
        let Chain {
            is_complete,
            has_failed,
        } = &*self.0;
        has_failed.store(thread::panicking(), Ordering::Relaxed);
        is_complete.store(true, Ordering::Relaxed);
    }
}

/// Result of the traffic.
struct Traffic {
    messages: u64,
    /// Longest time between two answers.
    pause: Duration,
}

/// Sends messages on all connections and checks their answers, until a while after the chain is complete.
fn talk(peer: &mut End, course: &Course, chain: &Chain, answered: &Sender<()>) -> Traffic {
    for connection in 0..course.connections {
        for number in 0..IN_FLIGHT {
            peer.send(connection, &message(connection, number));
        }
    }
    let mut traffic = Traffic {
        messages: 0,
        pause: Duration::ZERO,
    };
    // Number of messages of each connection, once it is known.
    let mut target = None;
    let mut finished = 0;
    let mut last = Instant::now();
    while finished < course.connections {
        if target.is_none() && chain.is_complete.load(Ordering::Relaxed) {
            let sent = peer.connections.iter().map(|it| it.sent);
            target = sent.max().map(|most| most + AFTERWARDS);
        }
        let Waited::Arrived(Arrived {
            connection,
            number,
            bytes,
        }) = peer.next_message_unless(|| chain.check())
        else {
            panic!("no answer");
        };
        let wanted = message(connection, number);
        assert_eq!(bytes, wanted, "answer {number} of {connection}");
        traffic.pause = traffic.pause.max(last.elapsed());
        last = Instant::now();
        peer.receive(connection);
        let Some(target) = target else {
            let next = peer.connections[connection].sent;
            peer.send(connection, &message(connection, next));
            traffic.messages += 1;
            if traffic.messages.is_multiple_of(course.messages_each()) {
                // The receiver is gone when the chain is complete.
                let _ = answered.send(());
            }
            continue;
        };
        traffic.messages += 1;
        let sent = peer.connections[connection].sent;
        if sent < target {
            peer.send(connection, &message(connection, sent));
        } else if peer.connections[connection].received == target {
            finished += 1;
        }
    }
    traffic
}

/// Returns the counters of the queues that show repetitions and errors: all but those of requests that succeed.
fn repetitions(end: &End) -> Vec<(&'static str, u64)> {
    let stats = Adapter::of(&end.ia).stats().expect("open");
    let queue: QueueCounters = stats.device.queue.expect("counters of queues");
    let named = queue.named();
    named.filter(|(name, _)| !name.starts_with("rx_")).collect()
}

/// Every message is answered once, in order and with its bytes, and every DTO completes once and in order. The function
/// is reset when it is opened, and not while it goes from process to process. The peer repeats nothing.
#[test]
fn an_adapter_goes_from_process_to_process_under_traffic_and_its_peer_notices_nothing() {
    let course = Course::of_environment();
    let folder = tempfile::tempdir().expect("a folder");
    let card = Card::new(folder.path());
    let [adapter, peers] = card.adapters.clone();
    let mut peer = End::open(&peers, B, course.connections);
    peer.listen();
    let chain = Arc::new(Chain::default());
    let (answered, rounds) = channel();
    let (over, path) = (EndOfTraffic(Arc::clone(&chain)), folder.path().to_owned());
    let (unit, handovers) = (std::env::var("RESTARTED_UNIT").ok(), course.handovers);
    let starter = thread::spawn(move || {
        let _over = over;
        let Some(unit) = unit else {
            return Some(start_processes(&path, &adapter, handovers));
        };
        restart_unit(&unit, handovers, &rounds);
        None
    });
    peer.accept(|| chain.check());
    let before = (card.resets(), repetitions(&peer));
    assert_ne!(before.0, 0, "resets of a function that was opened");
    let traffic = talk(&mut peer, &course, &chain, &answered);
    let after = (card.resets(), repetitions(&peer));
    assert_eq!(after, before, "resets, and what the peer has repeated");
    let started = starter.join().expect("a complete chain");
    peer.disconnect();
    assert!(matches!(peer.next_message(PATIENCE), Waited::Over));
    let said = match started {
        Some((mut said, last)) => {
            said.extend(last.ended());
            said
        }
        None => said_in_unit(),
    };
    ia_close(peer.ia, CloseFlags::Abrupt).expect("closed");
    card.end();
    let (connections, messages) = (course.connections, traffic.messages);
    println!(
        "figure: {handovers} handovers of {connections} connections, {messages} messages and as many answers"
    );
    println!("figure: resets: {} before, {} after", before.0, after.0);
    let counters = after.1.len();
    println!("figure: the peer's {counters} counters of repetitions and errors are unchanged");
    let pause = traffic.pause.as_secs_f64() * 1e3;
    println!("figure: longest time between two answers: {pause:.1} ms");
    for line in figures::table(&said, handovers as usize).lines() {
        println!("figure: {line}");
    }
}
