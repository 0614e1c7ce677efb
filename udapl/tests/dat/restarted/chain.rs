//! The processes that have the adapter, one after the other: each answers messages, and hands over under traffic.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use driver::{Clock, Instant, RealClock};
use udapl::fabric::Fabric;
use udapl::handover::{self, NotAdopted, Offer, Parked, ServiceManager};
use udapl::{CloseFlags, OpenOptions, ia_close, ia_open};

use super::end::{Arrived, End, INTERVAL, Waited, message};
use super::figures::{Adoption, Parking, Said};
use super::{Course, PATIENCE};
use crate::support::{A, B};

/// Environment variables of the processes of the chain: the folder of their sockets, the name of the adapter, and the
/// number of the process in the chain.
const FOLDER: &str = "RESTARTED_FOLDER";
const ADAPTER: &str = "RESTARTED_ADAPTER";
const NUMBER: &str = "RESTARTED_NUMBER";
/// Environment variable of a process of a systemd unit: path of a file. If it is there, the process removes it, hands
/// over, and ends.
const STOP: &str = "RESTARTED_STOP";

fn now() -> Instant {
    RealClock::new().now()
}

fn deadline() -> Instant {
    now() + PATIENCE
}

/// Returns the command of process `number` of the chain.
pub fn process(folder: &Path, adapter: &str, number: u32) -> Command {
    let mut process = Command::new(std::env::current_exe().expect("this program"));
    process
        .args([
            "--exact",
            "restarted::a_process_of_the_chain",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .env(ADAPTER, adapter)
        .env(NUMBER, number.to_string());
    process
}

/// Runs a process of the chain. Without the environment variable `FOLDER`, it does nothing.
pub fn run() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let course = Course::of_environment();
    let number = std::env::var(NUMBER).expect("set");
    let number: u32 = number.parse().expect("a number");
    let mut end = if number == 0 {
        first(&std::env::var(ADAPTER).expect("set"), &course)
    } else {
        take_over(&folder, number, &course)
    };
    if number == course.handovers {
        assert!(answer_until(&mut end, |_| None::<()>).is_none());
        ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
        return;
    }
    let path = folder.join(format!("next{}", number + 1));
    let (listener, _taken) = driver::listen_privately(&path).expect("a path");
    listener.set_nonblocking(true).expect("a socket");
    Said::Listens.say();
    let is_due = |answered| (answered >= course.messages_each()).then(|| accepted(&listener))?;
    let Some(socket) = answer_until(&mut end, is_due) else {
        panic!("process {number}: the connections have ended");
    };
    if course.tries_refusals {
        end = end.cannot_park_with_its_memory();
    }
    let receiver = handover::await_receiver(OwnedFd::from(socket), deadline());
    let receiver = receiver.expect("it is ready");
    let Parked {
        snapshot,
        descriptors,
    } = park(end);
    let sent = receiver.send(&snapshot, descriptors, deadline());
    assert!(sent.expect("given").unacknowledged.is_none());
}

/// Returns the next process, if it has connected.
fn accepted(listener: &UnixListener) -> Option<UnixStream> {
    match listener.accept() {
        Ok((socket, _)) => Some(socket),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            None
        }
    }
}

/// Opens the adapter and connects its endpoints.
fn first(adapter: &str, course: &Course) -> End {
    let mut end = End::open(adapter, A, course.connections);
    end.connect(Fabric::ipv4(B));
    end
}

/// Parks an end. The next process learns when that began.
fn park(end: End) -> Parked {
    let unfinished = end.unfinished();
    let began = now();
    let parked = end.park(&[began.0]);
    let took = now() - began;
    let parking = Parking {
        took,
        bytes: parked.snapshot.len(),
        descriptors: parked.descriptors.len(),
        unfinished,
    };
    Said::Parked(parking).say();
    parked
}

/// Goes on with a parked end.
fn adopt(offer: Offer) -> End {
    let began = now();
    let descriptors = offer.descriptors.len();
    let resumed = handover::adopt(offer).expect("it is resumed");
    let adopted = now();
    let (end, [parking]) = End::of(resumed);
    let adoption = Adoption {
        away: adopted - Instant(parking),
        took: adopted - began,
        descriptors,
    };
    Said::Adopted(adoption).say();
    end
}

fn take_over(folder: &Path, number: u32, course: &Course) -> End {
    let path = folder.join(format!("next{number}"));
    let socket = driver::connect_within(&path, PATIENCE).expect("the process before");
    let offer = handover::receive(OwnedFd::from(socket), deadline()).expect("an offer");
    adopt(if course.tries_refusals {
        refused_while_its_number_is_taken(offer, number)
    } else {
        offer
    })
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

/// Checks and answers messages, until `is_due` returns something for the number of answers. `None`: the connections
/// have ended.
fn answer_until<T>(end: &mut End, mut is_due: impl FnMut(u64) -> Option<T>) -> Option<T> {
    let mut answered = 0;
    let mut last = now();
    loop {
        match end.next_message(INTERVAL) {
            Waited::Arrived(Arrived {
                connection,
                number,
                bytes,
            }) => {
                let wanted = message(connection, number);
                assert_eq!(bytes, wanted, "message {number} of {connection}");
                // The answer of this message goes out before its receive is posted again.
                end.send(connection, &bytes);
                end.receive(connection);
                answered += 1;
                last = now();
            }
            Waited::Over => return None,
            Waited::Nothing => assert!(now() - last < PATIENCE, "no message"),
        }
        if let Some(due) = is_due(answered) {
            return Some(due);
        }
    }
}

/// Runs a process of a systemd unit, which hands over by the descriptor store. Without the environment variable `STOP`,
/// it does nothing.
pub fn run_in_unit() {
    let Some(stop) = std::env::var_os(STOP).map(PathBuf::from) else {
        return;
    };
    let stored = handover::take_stored().expect("valid descriptors");
    let manager = ServiceManager::of_environment().expect("an address");
    let manager = manager.expect("a unit of Type=notify");
    let course = Course::of_environment();
    let mut end = match stored {
        Some(stored) => adopt(stored.open(&manager).expect("whole")),
        None => first(&std::env::var(ADAPTER).expect("set"), &course),
    };
    let ready = manager.notify("READY=1", deadline());
    ready.expect("systemd is there");
    let is_due = |_| std::fs::remove_file(&stop).ok();
    if answer_until(&mut end, is_due).is_none() {
        ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
        return;
    }
    let Parked {
        snapshot,
        descriptors,
    } = park(end);
    let stored = handover::store(&manager, &snapshot, descriptors, deadline());
    assert!(stored.expect("kept").undecided.is_none());
}
