//! A program that is restarted without reconnecting: its adapter goes from process to process under traffic.
//!
//! This process has the card: two simulated functions behind vfio-user servers, which count resets. It is also the
//! peer, with the second function. The first function belongs to a chain of processes, each of which hands it over to
//! the next one, with messages in flight in both directions. Here time is real, and is not measured.

use core::time::Duration;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use driver::{Clock, Device, Instant, RealClock, VfioUserServer};
use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use udapl::handover::{self, NotAdopted, Offer, Parked};
use udapl::memory::LmrSlice;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DmaMemory,
    DtoCookie, DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags,
    OpenOptions, PspFlags, Qos, ia_close, ia_open,
};

use crate::support::NONE;

/// Environment variables of the processes of the chain: the folder, and the number of the process in the chain.
const FOLDER: &str = "UDAPL_TEST_RESTARTED";
const NUMBER: &str = "UDAPL_TEST_RESTARTED_NUMBER";
/// Environment variable with the path of a file for a snapshot. `udapl/tests/dat/snapshots/` has one of each form.
const BLESS: &str = "SNAPSHOT_BLESS";
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0078);
/// Time limit of each wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of processes in the chain.
const PROCESSES: u32 = 12;
/// Number of messages that a process answers before it hands over. No multiple of the number of slots.
const MESSAGES_EACH: u64 = 101;
/// Number of messages in all, more than are answered before the last handover.
const MESSAGES: u64 = MESSAGES_EACH * PROCESSES as u64 + 200;
/// Number of messages that have no answer yet.
const IN_FLIGHT: u64 = 8;
const SLOTS: u64 = 16;
const SLOT_BYTES: u64 = 1024;

/// Returns the bytes of a message. The length differs from message to message.
fn message(number: u64) -> Vec<u8> {
    let length = 8 + number * 37 % 900;
    let bytes = number.to_be_bytes().into_iter().cycle().zip(0_u64..length);
    bytes.map(|(byte, at)| byte ^ at.to_be_bytes()[7]).collect()
}

/// An end of the connection: receives in the slots of the first half of the memory, Sends from those of the second.
struct End {
    ia: Ia,
    evd: EvdHandle,
    ep: EpHandle,
    lmr: udapl::memory::LmrHandle,
    memory: DmaMemory,
}

impl End {
    fn open(name: &str) -> Self {
        let mut ia = ia_open(name, &OpenOptions::default()).expect("a function");
        let zone = ia.pz_create().expect("a zone");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = ia.evd_create(256, flags).expect("an EVD");
        let ep = ia.ep_create(Some(zone), EpEvds::all(evd), None);
        let ep = ep.expect("an EP");
        let bytes = usize::try_from(2 * SLOTS * SLOT_BYTES).expect("small");
        let memory = udapl::alloc(&ia, bytes).expect("memory");
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = ia.lmr_create(memory.clone(), zone, rights);
        let lmr = region.expect("a region").lmr;
        let mut end = Self {
            ia,
            evd,
            ep,
            lmr,
            memory,
        };
        (0..SLOTS).for_each(|slot| end.receive(slot));
        end
    }

    fn piece(&self, slot: u64, bytes: u64) -> LmrSlice {
        let piece = self.ia.lmr_slice(self.lmr, slot * SLOT_BYTES, bytes);
        piece.expect("inside")
    }

    fn receive(&mut self, slot: u64) {
        let piece = self.piece(slot, SLOT_BYTES);
        let posted = self
            .ia
            .ep_post_recv(self.ep, &[piece], DtoCookie(slot), NONE);
        posted.expect("room");
    }

    /// Sends bytes from a slot, whose earlier Send has been answered.
    fn send(&mut self, slot: u64, bytes: &[u8]) {
        let at = usize::try_from((SLOTS + slot) * SLOT_BYTES).expect("small");
        self.memory.write_from(at, bytes).expect("inside");
        let piece = self.piece(SLOTS + slot, bytes.len() as u64);
        let cookie = DtoCookie(SLOTS + slot);
        let posted = self
            .ia
            .ep_post_send(self.ep, &[piece], cookie, CompletionFlags::SUPPRESS);
        posted.expect("room");
    }

    /// Waits for the next message, and returns its slot and bytes. `None`: the connection has ended.
    fn next_message(&mut self) -> Option<(u64, Vec<u8>)> {
        loop {
            match self.next() {
                Event::Dto(done) if done.cookie.0 < SLOTS => {
                    if done.status == DtoStatus::ErrFlushed {
                        continue;
                    }
                    assert_eq!(done.status, DtoStatus::Success, "{done:?}");
                    let (slot, length) = (done.cookie.0, done.transferred_length);
                    let at = usize::try_from(slot * SLOT_BYTES).expect("small");
                    let length = usize::try_from(length).expect("a message");
                    return Some((slot, self.memory.read(at, length).expect("inside")));
                }
                Event::Connection(event) if event.kind == Kind::Disconnected => return None,
                other @ (Event::Dto(_)
                | Event::Connection(_)
                | Event::ConnectionRequest(_)
                | Event::RmrBind(_)
                | Event::Async(_)
                | Event::Software(_)) => panic!("{other:?}"),
            }
        }
    }

    fn next(&mut self) -> Event {
        let event = self.ia.evd_wait(self.evd, PATIENCE, 1);
        event.expect("an event before the patience is over").0
    }

    fn established(&mut self) {
        let Event::Connection(event) = self.next() else {
            panic!("no connection event");
        };
        assert_eq!(event.kind, Kind::Established);
    }

    /// A program that still has memory cannot park. It goes on as if it had not asked.
    fn cannot_park_with_its_memory(self) -> Self {
        let Self {
            ia,
            evd,
            ep,
            lmr,
            memory,
        } = self;
        let refused = handover::park(ia, b"").expect_err("the region's memory is in use");
        let why = refused.to_string();
        assert!(
            why.contains(&format!("has the memory of {lmr:?} (clones: 1)")),
            "{why}"
        );
        drop(memory);
        let ia = refused.into_ia().expect("unchanged");
        let other = udapl::alloc(&ia, 64).expect("memory");
        let refused = handover::park(ia, b"").expect_err("memory of no region is in use");
        let why = refused.to_string();
        assert!(why.contains("memory are in use"), "{why}");
        let ia = refused.into_ia().expect("it goes on");
        drop(other);
        Self {
            memory: ia.lmr_memory(lmr).expect("a region"),
            ia,
            evd,
            ep,
            lmr,
        }
    }

    /// Parks the end. The handles are the program's own bytes.
    fn park(self) -> Parked {
        let Self {
            ia,
            evd,
            ep,
            lmr,
            memory,
        } = self;
        drop(memory);
        let words = [evd.to_raw(), ep.to_raw(), lmr.to_raw()].map(|(key, ia)| [key, ia.into()]);
        let words: Vec<u8> = words
            .concat()
            .iter()
            .flat_map(|it| it.to_be_bytes())
            .collect();
        handover::park(ia, &words).expect("it can be parked")
    }

    fn of(resumed: handover::Resumed) -> Self {
        let handover::Resumed { ia, words } = resumed;
        let numbers: Vec<u64> = words
            .chunks_exact(8)
            .map(|it| u64::from_be_bytes(it.try_into().expect("8 bytes")))
            .collect();
        let raw = |at: usize| (numbers[at], u32::try_from(numbers[at + 1]).expect("an IA"));
        let ((evd, number), (ep, _), (lmr, _)) = (raw(0), raw(2), raw(4));
        let lmr = udapl::memory::LmrHandle::from_raw(lmr, number);
        Self {
            evd: EvdHandle::from_raw(evd, number),
            ep: EpHandle::from_raw(ep, number),
            memory: ia.lmr_memory(lmr).expect("a region"),
            lmr,
            ia,
        }
    }
}

fn deadline() -> Instant {
    RealClock::new().now() + PATIENCE
}

/// Starts process `number` of the chain.
fn start(folder: &Path, number: u32) -> Command {
    let mut next = Command::new(std::env::current_exe().expect("this program"));
    next.args([
        "--exact",
        "restarted::a_process_of_the_chain",
        "--nocapture",
    ])
    .env(FOLDER, folder)
    .env(NUMBER, number.to_string())
    .stdout(Stdio::null());
    next
}

/// Hands an end over to the next process of the chain, which this one starts.
fn hand_over(end: End, folder: &Path, number: u32) -> ExitStatus {
    let path = folder.join(format!("next{number}"));
    let (listener, _taken) = driver::listen_privately(&path).expect("a path");
    let mut next = start(folder, number).spawn().expect("a process");
    listener.set_nonblocking(true).expect("a socket");
    let clock = RealClock::new();
    let socket = loop {
        match listener.accept() {
            Ok((socket, _)) => break socket,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let ended = next.try_wait().expect("its status");
        assert!(ended.is_none(), "process {number} of the chain: {ended:?}");
        clock.wait(&[], clock.now() + Duration::from_millis(1));
    };
    let receiver = handover::await_receiver(OwnedFd::from(socket), deadline());
    let receiver = receiver.expect("it is ready");
    let Parked {
        snapshot,
        descriptors,
    } = end.cannot_park_with_its_memory().park();
    if let Some(path) = std::env::var_os(BLESS) {
        std::fs::write(path, &snapshot).expect("a file");
    }
    let sent = receiver.send(&snapshot, descriptors, deadline());
    assert!(sent.expect("given").unacknowledged.is_none());
    // Each process waits for the next one, so a test that waits for the first one waits for all.
    next.wait().expect("its status")
}

/// The first adapter of a process has number 1, as that of the first process of the chain. While the next process has
/// one, it refuses the offer before it claims it, and can adopt it afterwards.
fn refused_while_its_number_is_taken(offer: Offer, number: u32) -> Offer {
    let other = ia_open(&format!("sim:other{number}"), &OpenOptions::default());
    let other = other.expect("a function");
    let refused = handover::adopt(offer).expect_err("the number is taken");
    let why = refused.to_string();
    assert!(why.contains("the parked IA has number 1"), "{why}");
    let NotAdopted::Refused { offer, .. } = refused else {
        panic!("not before the claim: {why}");
    };
    ia_close(other, CloseFlags::Abrupt).expect("closed");
    *offer
}

fn take_over(folder: &Path, number: u32) -> End {
    let socket = UnixStream::connect(folder.join(format!("next{number}")));
    let socket = OwnedFd::from(socket.expect("the process before"));
    let offer = handover::receive(socket, deadline()).expect("an offer");
    let offer = refused_while_its_number_is_taken(offer, number);
    End::of(handover::adopt(offer).expect("it is resumed"))
}

/// Program of the processes of the chain. Without the environment variable `FOLDER`, this test does nothing.
#[test]
fn a_process_of_the_chain() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let number: u32 = std::env::var(NUMBER)
        .expect("set")
        .parse()
        .expect("a number");
    let mut end = if number == 0 {
        let mut end = End::open(&format!("vfio-user:{}", folder.join("0").display()));
        let there = "fe80::ff:fe00:2".parse().expect("an address");
        let none = ConnectFlags::empty();
        let asked = end.ia.ep_connect(
            end.ep,
            there,
            SERVICE,
            PATIENCE,
            b"",
            Qos::BEST_EFFORT,
            none,
        );
        asked.expect("it may ask");
        end.established();
        end
    } else {
        take_over(folder, number)
    };
    let is_last = number + 1 == PROCESSES;
    let mut answered = 0;
    while is_last || answered < MESSAGES_EACH {
        let Some((slot, bytes)) = end.next_message() else {
            assert!(is_last, "process {number}: the connection has ended");
            ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
            return;
        };
        // The answer of this message goes out before its receive is posted again.
        end.send(slot, &bytes);
        end.receive(slot);
        answered += 1;
    }
    let status = hand_over(end, folder, number + 1);
    assert!(
        status.success(),
        "process {} of the chain: {status}",
        number + 1
    );
}

/// The card: two functions on a link, each behind a server, in real time.
fn serve(
    folder: &Path,
    over: &Arc<AtomicBool>,
) -> (Sim, Vec<thread::JoinHandle<()>>, impl Fn() -> u64 + use<>) {
    let sim = Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    });
    sim.set_posted_writes(true);
    let functions = [1, 2].map(|n| {
        let mut profile = Profile::named(&format!("restarted{n}"), [2, 0, 0, 0, 0, n]).ethernet();
        profile.pages.init = profile.pages.init.min(64);
        sim.add_function(profile)
    });
    sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
    let mut threads = Vec::new();
    for (n, function) in functions.iter().enumerate() {
        let (listener, taken) = driver::listen_at(&folder.join(n.to_string())).expect("a path");
        let device = Arc::clone(function) as Arc<dyn Device>;
        threads.push(thread::spawn(move || {
            let _taken = taken;
            let served = VfioUserServer::new(device, listener).serve_next();
            served.expect("a client");
        }));
    }
    let (over, moved) = (Arc::clone(over), sim.clone());
    threads.push(thread::spawn(move || {
        let clock = RealClock::new();
        while !over.load(Ordering::Relaxed) {
            moved.advance(Duration::from_millis(1));
            clock.wait(&[], clock.now() + Duration::from_millis(1));
        }
    }));
    let (asked, function) = (sim.clone(), Arc::clone(&functions[0]));
    (sim, threads, move || asked.report(&function).resets)
}

/// Every message is answered once, in order and with its bytes. The function is reset when it is opened, and not
/// while it goes from process to process.
#[test]
fn an_adapter_goes_from_process_to_process_under_traffic_and_its_peer_notices_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let over = Arc::new(AtomicBool::new(false));
    let (_sim, threads, resets) = serve(folder.path(), &over);
    let mut peer = End::open(&format!("vfio-user:{}", folder.path().join("1").display()));
    let psp = peer.ia.psp_create(SERVICE, peer.evd, PspFlags::CONSUMER);
    psp.expect("a service point");
    let mut chain = start(folder.path(), 0).spawn().expect("a process");
    let Event::ConnectionRequest(request) = peer.next() else {
        panic!("no request");
    };
    let accepted = peer.ia.cr_accept(request.cr, Some(peer.ep), b"");
    accepted.expect("it may be accepted");
    peer.established();
    let before = resets();
    assert_ne!(before, 0, "resets of a function that was opened");
    let mut sent = 0;
    for answer in 0..MESSAGES {
        while sent < MESSAGES.min(answer + IN_FLIGHT) {
            peer.send(sent % SLOTS, &message(sent));
            sent += 1;
        }
        let (slot, bytes) = peer.next_message().expect("connected");
        assert_eq!(bytes, message(answer), "answer {answer}");
        peer.receive(slot);
    }
    assert_eq!(
        resets(),
        before,
        "resets while the function went from process to process"
    );
    let ended = peer.ia.ep_disconnect(peer.ep, CloseFlags::Graceful);
    ended.expect("connected");
    assert!(peer.next_message().is_none());
    assert!(chain.wait().expect("its status").success());
    ia_close(peer.ia, CloseFlags::Abrupt).expect("closed");
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic");
    }
}
