//! Tests of data passed between threads, with the real primitives, for runs under Miri and ThreadSanitizer. `models`
//! tries every order of events.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dat_core::PzHandle;
use driver::Interrupt;

use super::adapter::{Adapter, find_owned};
use super::gate::Gate;
use super::table::{self, IaName, Reserved, Withdrawn, handle_of};
use super::upcalls::Upcalls;

/// Number of iterations; fewer under Miri, which is slow.
const OFTEN: u64 = if cfg!(miri) { 8 } else { 2_000 };

/// Returns an object key computed from its handle. The generation in a key is odd.
const fn key(handle: u64) -> u64 {
    handle | 1 << 32
}

#[test]
fn a_handle_names_one_object_or_none_while_others_come_and_go_in_its_place() {
    let adapter = Adapter::idle(false);
    let owner = IaName::fresh();
    // `newest` is the newest handle; `over` becomes true at the end of the test.
    let (newest, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=OFTEN {
                let reserved = Reserved::<PzHandle>::new().expect("a place");
                let handle = reserved.handle();
                reserved.fill(adapter, owner, PzHandle::from_raw(key(handle), 1));
                newest.store(handle, Ordering::Relaxed);
                if number % 2 == 0 {
                    thread::yield_now();
                }
                table::free_handle::<Adapter>(handle, owner);
            }
            over.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    let handle = newest.load(Ordering::Relaxed);
                    if let Some((place, its, object)) = find_owned::<PzHandle>(handle_of(handle)) {
                        assert!(core::ptr::eq(place, adapter));
                        assert_eq!((its, object.to_raw()), (owner, (key(handle), 1)));
                    }
                    thread::yield_now();
                }
            });
        }
    });
    let last = newest.into_inner();
    assert!(last != 0 && find_owned::<PzHandle>(handle_of(last)).is_none());
}

/// The lists of a resumed instance come from another process, and may name handles of others.
#[test]
fn an_instance_frees_and_withdraws_no_handle_of_another_instance() {
    let (adapter, owner, other) = (Adapter::idle(false), IaName::fresh(), IaName::fresh());
    let reserved = Reserved::<PzHandle>::new().expect("a place");
    let handle = reserved.handle();
    reserved.fill(adapter, owner, PzHandle::from_raw(key(handle), 1));
    let is_there = || find_owned::<PzHandle>(handle_of(handle)).is_some();
    table::free_handle::<Adapter>(handle, other);
    let withdrawn = Withdrawn::withdraw::<Adapter>([handle].into_iter(), other);
    assert!(is_there() && !withdrawn.contains(handle));
    let withdrawn = Withdrawn::withdraw::<Adapter>([handle].into_iter(), owner);
    assert!(!is_there() && withdrawn.contains(handle));
}

#[test]
fn a_thread_with_the_lock_sees_the_changes_of_earlier_holders() {
    let gate = Gate::new();
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..OFTEN {
                    let _guard = gate.lock().expect("a closed lane needs no fence");
                    // The read and the write are separate, so that a thread that ran at the same time would lose a
                    // count.
                    let before = passed.load(Ordering::Relaxed);
                    passed.store(before + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 3 * OFTEN);
}

#[test]
fn upcalls_queued_by_several_threads_are_made_once() {
    let wake = Interrupt::new().expect("an eventfd");
    let upcalls = Upcalls::new(wake.clone());
    let mut made = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut made = Vec::new();
            let drain = || {
                made.extend(upcalls.take());
                true
            };
            let sleep = || {
                while wake.take() == 0 {
                    thread::yield_now();
                }
            };
            let left = upcalls.serve(drain, sleep);
            made.extend(left);
            made
        });
        let pushers = [0, 1].map(|which| {
            let upcalls = &upcalls;
            scope.spawn(move || (0..OFTEN).for_each(|number| upcalls.push(2 * number + which)))
        });
        for pusher in pushers {
            pusher.join().expect("the thread");
        }
        upcalls.end();
        server.join().expect("the thread")
    });
    made.sort_unstable();
    assert!(made.into_iter().eq(0..2 * OFTEN));
}
