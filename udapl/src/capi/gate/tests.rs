//! Tests of the gate with the real scheduler and the real membarrier(2).

// UNSAFETY: calls system calls of the scheduler.
#![expect(unsafe_code, reason = "sched_setscheduler(2)")]

use core::mem::MaybeUninit;
use std::sync::mpsc::channel;
use std::thread;

use nix::sys::resource::{UsageWho, getrusage};

use super::gate::{Gate, LockLost};
use super::primitives::has_heavy_fence;
use super::primitives::refusal::REFUSED;

#[test]
fn without_the_fence_the_lock_is_refused_then_and_later_and_the_lane_is_closed() {
    let gate = Gate::new();
    gate.open();
    if !gate.enter() {
        return; // no membarrier(2), no lane
    }
    REFUSED.set(Some(libc::EPERM));
    assert_eq!(
        gate.lock().map(drop),
        Err(LockLost(libc::EPERM)),
        "a thread is in the lane"
    );
    REFUSED.set(None);
    gate.exit();
    assert_eq!(gate.lock().map(drop), Err(LockLost(libc::EPERM)));
    assert!(!gate.enter());
}

#[test]
fn a_closed_lane_needs_no_fence() {
    let gate = Gate::new();
    REFUSED.set(Some(libc::ENOMEM));
    assert_eq!(gate.lock().map(drop), Ok(()));
    REFUSED.set(None);
    assert_eq!(gate.lock().map(drop), Ok(()));
}

/// Binds this thread to the first processor.
fn pin() {
    // SAFETY: an all-zero set is empty.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the set has a bit for processor 0.
    unsafe { libc::CPU_SET(0, &mut set) };
    // SAFETY: 0 means this thread, and the size is that of `set`.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(answer, 0, "the first processor");
}

/// Gives this thread a real-time priority, so that ordinary threads of its processor run only while it sleeps. Returns
/// false if the process lacks the privilege.
fn run_first() -> bool {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 means this thread, and SCHED_FIFO takes a priority.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

/// Returns the number of times that this thread has gone to sleep.
fn sleeps() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("our own");
    usage.voluntary_context_switches()
}

#[test]
fn who_waits_for_the_lane_lets_a_thread_of_lower_priority_leave_it() {
    let gate = Gate::new();
    gate.open();
    if !has_heavy_fence() {
        return; // no lane
    }
    let (gate, (go, gone)) = (&gate, channel());
    let slept = thread::scope(|scope| {
        let first = scope.spawn(move || {
            pin();
            gone.recv().expect("the test runs");
            if !run_first() {
                println!("SKIPPED: no right to SCHED_FIFO");
                return None;
            }
            let before = sleeps();
            drop(gate.lock().expect("membarrier(2) works"));
            Some(sleeps() - before)
        });
        let in_the_lane = scope.spawn(move || {
            pin();
            assert!(gate.enter(), "no thread wants the lock yet");
            go.send(()).expect("the thread listens");
            while !gate.is_wanted() && !first.is_finished() {
                thread::yield_now();
            }
            gate.exit();
            first.join().expect("the thread")
        });
        in_the_lane.join().expect("the thread")
    });
    // The waiting thread must have slept. If it only yielded, the thread in the lane would run only because of the
    // limit on real-time threads, if the system has one.
    assert_ne!(slept, Some(0));
}
