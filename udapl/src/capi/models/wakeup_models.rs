//! Models of wake-ups: the event that a thread waits for ends its sleep. No thread wakes by itself here. So a thread
//! that misses its wake-up sleeps for ever, which loom reports.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::explore;
use super::primitives::{Broken, Fences, Interrupt};
use super::sleepers::Sleepers;
use super::upcalls::Upcalls;

/// A machine without a mistake. The models here use no fences.
const SOUND: (Fences, Broken) = (Fences::Missing, Broken::Nothing);
const WITHOUT_SIGNALS: (Fences, Broken) = (Fences::Missing, Broken::Signal);

fn interrupt() -> Interrupt {
    Interrupt::new().expect("a model's")
}

/// A model of an adapter: events in the device, and events that have arrived from the device or from a thread.
struct World {
    vector: Interrupt,
    device: Mutex<Vec<usize>>,
    /// Number of events for each thread that were taken from the device or posted by a thread. The lock stands for the
    /// gate's lock.
    arrived: Mutex<[u32; 2]>,
    sleepers: Sleepers,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            vector: interrupt(),
            device: Mutex::new(Vec::new()),
            arrived: Mutex::new([0; 2]),
            sleepers: Sleepers::new(),
        })
    }

    /// Takes all events from the device, under the lock. If thread `who` has an event, removes one of them and returns
    /// true.
    fn poll(&self, who: usize) -> bool {
        let mut arrived = self.arrived.lock().expect("the lock");
        for whose in self.device.lock().expect("the device").drain(..) {
            arrived[whose] += 1;
        }
        let there = arrived[who] != 0;
        arrived[who] = arrived[who].saturating_sub(1);
        there
    }

    /// Waits for an event, like `dat_evd_wait` with `Sleeper::until`.
    fn wait(&self, who: usize) {
        let own = interrupt();
        let enlisted = self.sleepers.enlist(own.clone());
        while !self.poll(who) {
            Interrupt::wait(&[&self.vector, &own]);
            let taken = self.vector.take();
            enlisted.take();
            if taken != 0 {
                self.sleepers.taken_by(Some(&enlisted));
            }
        }
    }

    /// Adds an event to the device, and signals the device's interrupt.
    fn event(&self, whose: usize) {
        self.device.lock().expect("the device").push(whose);
        self.vector.signal();
    }

    /// Adds an event from another thread, under the lock, like `dat_evd_post_se`.
    fn post(&self, whose: usize) {
        let mut arrived = self.arrived.lock().expect("the lock");
        arrived[whose] += 1;
        self.sleepers.kick();
    }
}

/// Model: two threads wait for one event of the device each; one of them may take the interrupts of both.
fn two_wait_for_the_device() {
    let world = World::new();
    let waiters = [0, 1].map(|who| {
        let world = Arc::clone(&world);
        thread::spawn(move || world.wait(who))
    });
    world.event(1);
    world.event(0);
    for waiter in waiters {
        waiter.join().expect("the thread");
    }
}

/// Model: a thread waits for a software event.
fn one_waits_for_another_thread() {
    let world = World::new();
    let waiter = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.wait(0))
    };
    world.post(0);
    waiter.join().expect("the thread");
}

/// Model: one thread waits for an event of the device, another one for a software event.
fn one_waits_for_each() {
    let world = World::new();
    let waiters = [0, 1].map(|who| {
        let world = Arc::clone(&world);
        thread::spawn(move || world.wait(who))
    });
    world.event(0);
    world.post(1);
    for waiter in waiters {
        waiter.join().expect("the thread");
    }
}

/// Runs a thread that gets two pieces of work and then the end of the queue, and sleeps by `sleep`. Returns the work
/// that the thread has done.
fn serve(sleep: fn(&Interrupt)) -> Vec<u32> {
    let wake = interrupt();
    let upcalls = Arc::new(Upcalls::new(wake.clone()));
    let (server, pusher) = (Arc::clone(&upcalls), Arc::clone(&upcalls));
    let thread = thread::spawn(move || {
        let mut done = Vec::new();
        let drain = || {
            done.extend(server.take());
            true
        };
        let left = server.serve(drain, || sleep(&wake));
        done.extend(left);
        done
    });
    let other = thread::spawn(move || pusher.push(1));
    upcalls.push(2);
    other.join().expect("the thread");
    upcalls.end();
    let mut done = thread.join().expect("the thread");
    done.sort_unstable();
    done
}

fn work_is_done_once_and_the_end_is_heard_of() {
    let done = serve(|wake| {
        Interrupt::wait(&[wake]);
        let _signals = wake.take();
    });
    assert_eq!(done, [1, 2]);
}

fn a_signal_taken_before_the_sleep_is_lost() {
    serve(|wake| {
        let _signals = wake.take();
        Interrupt::wait(&[wake]);
    });
}

#[test]
fn each_of_two_who_sleep_on_one_interrupt_is_woken() {
    explore("two wait for the device", SOUND, two_wait_for_the_device);
}

#[test]
fn what_another_thread_does_wakes_who_waits_for_it() {
    explore(
        "one waits for a thread",
        SOUND,
        one_waits_for_another_thread,
    );
    explore(
        "one waits for a thread, one for the device",
        SOUND,
        one_waits_for_each,
    );
}

#[test]
fn every_upcall_is_made_once_and_none_after_the_end() {
    explore("upcalls", SOUND, work_is_done_once_and_the_end_is_heard_of);
}

/// Runs a model that ends with a thread that sleeps for ever, and asserts that loom reports this. loom then panics
/// twice, which aborts the process, so the model runs in another process.
fn sleeps_for_ever(test: &str, machine: (Fences, Broken), model: fn()) {
    const THE_OTHER: &str = "DAT_MODEL_TO_BREAK";
    if std::env::var_os(THE_OTHER).is_some() {
        explore("", machine, model);
        return;
    }
    let program = std::env::current_exe().expect("the tests");
    let test = format!("{}::{test}", module_path!().trim_start_matches("udapl::"));
    let ended = std::process::Command::new(program)
        .args([&test, "--exact", "--nocapture"])
        .env(THE_OTHER, "1")
        .output()
        .expect("the tests once more");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("deadlock"),
        "{said}"
    );
}

#[test]
fn the_models_find_a_wakeup_that_is_not_sent() {
    let test = "the_models_find_a_wakeup_that_is_not_sent";
    sleeps_for_ever(test, WITHOUT_SIGNALS, one_waits_for_another_thread);
}

#[test]
fn the_models_find_a_signal_that_is_taken_too_early() {
    let test = "the_models_find_a_signal_that_is_taken_too_early";
    sleeps_for_ever(test, SOUND, a_signal_taken_before_the_sleep_is_lost);
}
