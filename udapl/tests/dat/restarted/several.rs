//! An adapter with several instances, each with a connection and a listener of its own and a listener that they share:
//! it is parked and resumed in its process, and goes on in another one, under traffic.

use core::time::Duration;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use driver::{Clock, Instant, RealClock};
use udapl::adapter::IaConfig;
use udapl::connection::PspHandle;
use udapl::fabric::Fabric;
use udapl::handover::{self, NotAdopted, Resumed, ResumedAll};
use udapl::{Adapter, CloseFlags, ConnQual, EvdFlags, Ia, PspFlags, Timeout, ia_close};

use super::card::Card;
use super::end::{End, Waited};
use super::{Chain, Course, EndOfTraffic, PATIENCE, repetitions, talk};
use crate::support::{A, B};

/// Environment variables of the processes: the folder of their socket, and the name of the adapter; without the name, a
/// process takes the adapter over.
const FOLDER: &str = "SEVERAL_FOLDER";
const ADAPTER: &str = "SEVERAL_ADAPTER";
/// Environment variable with the number of instances.
const INSTANCES: &str = "RESTARTED_INSTANCES";
/// Environment variable with the path of a file for a snapshot. `udapl/tests/dat/snapshots/` has that of the current
/// form, with two instances.
const BLESS: &str = "SNAPSHOT_BLESS";
/// Number of messages that a process answers before the next step.
const MESSAGES: u64 = 101;
const SHARED: ConnQual = ConnQual::service_id(0x1_0000_0178);
/// Interval at which an instance without messages lets the next one look.
const INTERVAL: Duration = Duration::from_millis(1);

fn instances() -> usize {
    let given = std::env::var(INSTANCES);
    given.map_or(3, |text| text.parse().expect("a number"))
}

fn deadline() -> Instant {
    RealClock::new().now() + PATIENCE
}

fn process(folder: &Path) -> Command {
    let mut process = Command::new(std::env::current_exe().expect("this program"));
    process
        .args([
            "--exact",
            "restarted::several::a_process_with_several_instances",
            "--nocapture",
        ])
        .env(FOLDER, folder);
    process
}

/// Program of the processes. Without the environment variable `FOLDER`, it does nothing.
#[test]
fn a_process_with_several_instances() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let path = folder.join("next");
    match std::env::var(ADAPTER) {
        Ok(adapter) => hand_over(&adapter, &path),
        Err(_) => take_over(&path),
    }
}

/// Opens the adapter, parks and resumes it, and hands it over.
fn hand_over(adapter: &str, path: &Path) {
    let mut ends = vec![End::open(adapter, A, 1)];
    let opened = Adapter::of(&ends[0].ia);
    let further = || opened.instance(IaConfig::default()).expect("an instance");
    // An instance that ends before the parking leaves a gap.
    let gone = further();
    while ends.len() < instances() {
        ends.push(End::on(further(), 1));
    }
    ia_close(gone, CloseFlags::Abrupt).expect("closed");
    for end in &mut ends {
        end.connect(Fabric::ipv4(B));
    }
    let points: Vec<[PspHandle; 2]> = ends.iter_mut().map(|end| listen(&mut end.ia)).collect();
    serve(&mut ends, Some(MESSAGES));
    ends = refused_without_one(ends);
    ends = refused_while_one_has_memory(ends);
    serve(&mut ends, Some(MESSAGES));
    // The same process.
    let (ias, words) = taken(ends);
    let parked = handover::park_all(ias, &words).expect("it can be parked");
    if let Some(path) = std::env::var_os(BLESS) {
        std::fs::write(path, &parked.snapshot).expect("a file");
    }
    ends = again(handover::resume_all(parked).expect("resumed"));
    for (end, points) in ends.iter_mut().zip(&points) {
        for point in points {
            end.ia.psp_query(*point).expect("it listens");
        }
    }
    serve(&mut ends, Some(MESSAGES));
    let (listener, _taken) = driver::listen_privately(path).expect("a path");
    let folder = path.parent().expect("a folder");
    let mut next = process(folder)
        .env_remove(ADAPTER)
        .spawn()
        .expect("a process");
    let (socket, _) = listener.accept().expect("the next process");
    let receiver = handover::await_receiver(OwnedFd::from(socket), deadline());
    let receiver = receiver.expect("it is ready");
    let (ias, words) = taken(ends);
    let parked = handover::park_all(ias, &words).expect("it can be parked");
    let sent = receiver.send(&parked.snapshot, parked.descriptors, deadline());
    assert!(sent.expect("given").unacknowledged.is_none());
    let status = next.wait().expect("its status");
    assert!(status.success(), "the next process: {status}");
}

/// Listens at a qualifier of the instance's own, and at that of all instances.
fn listen(ia: &mut Ia) -> [PspHandle; 2] {
    let evd = ia.evd_create(8, EvdFlags::CR).expect("an EVD");
    let (_, number) = evd.to_raw();
    let own = ConnQual::service_id(SHARED.0 + 1 + u64::from(number));
    let point = ia.psp_create(own, evd, PspFlags::CONSUMER);
    let shared = ia.psp_create_shared(SHARED, evd, PspFlags::CONSUMER);
    [point.expect("it listens"), shared.expect("they share it")]
}

/// Takes the adapter over, and serves until all connections have ended.
fn take_over(path: &Path) {
    let socket = driver::connect_within(path, PATIENCE).expect("the process before");
    let offer = handover::receive(OwnedFd::from(socket), deadline()).expect("an offer");
    let refused = handover::adopt(offer).expect_err("there are several");
    let why = refused.to_string();
    assert!(why.contains(&format!("{} instances", instances())), "{why}");
    let NotAdopted::Refused { offer, .. } = refused else {
        panic!("not before the claim: {why}");
    };
    let mut ends = again(handover::adopt_all(*offer).expect("resumed"));
    serve(&mut ends, None);
    for end in ends {
        ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
    }
}

/// Answers messages of all instances: that many, or until all connections have ended.
fn serve(ends: &mut [End], messages: Option<u64>) {
    let (mut answered, mut is_over) = (0, false);
    let until = deadline();
    while !is_over && messages.is_none_or(|most| answered < most) {
        assert!(RealClock::new().now() < until, "{answered} messages");
        is_over = true;
        for end in &mut *ends {
            match end.next_message(INTERVAL) {
                Waited::Arrived(arrived) => {
                    end.send(arrived.connection, &arrived.bytes);
                    end.receive(arrived.connection);
                    answered += 1;
                    is_over = false;
                }
                Waited::Nothing => is_over = false,
                Waited::Over => {}
            }
        }
    }
    assert!(messages.is_none() || !is_over, "the connections have ended");
}

/// Returns the instances, and what [`again`] needs: the words of each, behind their length.
fn taken(ends: Vec<End>) -> (Vec<Ia>, Vec<u8>) {
    let each = ends.into_iter().map(|end| end.taken(&[]));
    let (ias, words): (Vec<Ia>, Vec<Vec<u8>>) = each.unzip();
    let words = words.iter().flat_map(|one| {
        let length = one.len() as u64;
        [&length.to_be_bytes()[..], one].concat()
    });
    (ias, words.collect())
}

/// Returns the ends of instances, in the order in which they were parked.
fn again(resumed: ResumedAll) -> Vec<End> {
    let ResumedAll { ias, words } = resumed;
    let mut rest = &words[..];
    let ends = ias.into_iter().map(|ia| {
        let (length, others) = rest.split_first_chunk().expect("a length");
        let length = usize::try_from(u64::from_be_bytes(*length)).expect("small");
        let (own, others) = others.split_at(length);
        rest = others;
        let words = own.to_vec();
        let (end, []) = End::of(Resumed { ia, words });
        end
    });
    ends.collect()
}

/// An instance that is missing from the list is named, and all go on.
fn refused_without_one(ends: Vec<End>) -> Vec<End> {
    let (mut ias, words) = taken(ends);
    let missing = ias.pop().expect("an instance");
    let (_, number) = missing.async_evd().to_raw();
    let refused = handover::park_all(ias, b"").expect_err("one is missing");
    let why = refused.to_string();
    assert!(why.contains(&format!("give IA {number}, too")), "{why}");
    let mut ias = refused.into_ias();
    ias.push(missing);
    again(ResumedAll { ias, words })
}

/// The last step is refused because the program has memory of the adapter. The parking is cancelled, and all instances
/// go on with their numbers.
fn refused_while_one_has_memory(ends: Vec<End>) -> Vec<End> {
    let (ias, words) = taken(ends);
    let numbers = |ias: &[Ia]| -> Vec<u32> {
        let all = ias.iter().map(|ia| ia.async_evd().to_raw().1);
        all.collect()
    };
    let before = numbers(&ias);
    let memory = udapl::alloc(&ias[1], 64).expect("memory");
    let refused = handover::park_all(ias, b"").expect_err("memory of no region is in use");
    let why = refused.to_string();
    assert!(why.contains("memory are in use"), "{why}");
    let mut ias = refused.into_ias();
    assert_eq!(numbers(&ias), before);
    drop(memory);
    // One that waits goes on, too.
    let evd = ias[1].async_evd();
    assert!(ias[1].evd_wait(evd, Timeout::ZERO, 1).is_err(), "no event");
    again(ResumedAll { ias, words })
}

#[test]
fn an_adapter_with_several_instances_goes_to_another_process_and_its_peer_notices_nothing() {
    if crate::support::functions::named().is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let card = Card::new(folder.path());
    let [adapter, peers] = card.adapters.clone();
    let course = Course {
        connections: instances(),
        handovers: 1,
        tries_refusals: false,
    };
    let mut peer = End::open(&peers, B, course.connections);
    peer.listen();
    let mut first = process(folder.path())
        .env(ADAPTER, &adapter)
        .spawn()
        .expect("a process");
    let chain = Arc::new(Chain::default());
    peer.accept(|| chain.check());
    let before = (card.resets(), repetitions(&peer));
    let (answered, rounds) = channel();
    let over = EndOfTraffic(Arc::clone(&chain));
    // Enough rounds for all steps of both processes.
    let counter = thread::spawn(move || {
        let _over = over;
        (0..12).for_each(|_| rounds.recv_timeout(PATIENCE).expect("answers"));
    });
    let traffic = talk(&mut peer, &course, &chain, &answered);
    counter.join().expect("answers");
    assert_eq!((card.resets(), repetitions(&peer)), before);
    peer.disconnect();
    assert!(matches!(peer.next_message(PATIENCE), Waited::Over));
    let status = first.wait().expect("its status");
    assert!(status.success(), "the first process: {status}");
    ia_close(peer.ia, CloseFlags::Abrupt).expect("closed");
    card.end();
    assert!(traffic.messages > 4 * MESSAGES);
}
