//! No wakeup is lost: the protocol between a waiter and the device, in every order the memory model allows.
//!
//! The model has the waiter of `Ia::evd_wait` over `MlxProvider::wait` on one side, and on the other a device that
//! writes two completions whenever it likes. Between them is what is between them on a machine: a completion queue
//! and an event queue in memory, the doorbell record, the doorbell registers, and an eventfd. loom runs it in all
//! interleavings (up to a bound of preemptions) and with all values that relaxed loads may return.
//!
//! | here | there |
//! |---|---|
//! | `Waiter::wait` | `evd_wait`: poll, then drain events, arm, poll once more, sleep |
//! | `Waiter::sleep` | `MlxProvider::wait` and `Hca::wait`: drain events, sleep, take the eventfd, drain again |
//! | `Waiter::arm` | `Cq::arm`: record, barrier, register |
//! | `Waiter::drain_events` | `Control::serve`: entries of the event queue, then its arm doorbell |
//! | `Device` | PRM "Completion Queues", "Event Queues": one event per arming, sequence number of requests |
//!
//! A register write is posted: the device hears of it some time later. That is why a request to arm names the consumer
//! index, and the device *looks back*: entries beyond it that are there already raise the event at once. IBTA vol. 1,
//! "Request Completion Notification", promises less, and its rule of polling once more suits a device that only *looks
//! ahead* if the request has taken effect by then. Both are checked. The controls take something away each, and find
//! the wakeup lost.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Completions the device writes.
const COMPLETIONS: u32 = 2;
/// Preemptions an interleaving has at most; lost wakeups need one or two.
const PREEMPTIONS: usize = 3;
/// Value of a doorbell register before it was first written.
const SILENT: u32 = u32::MAX;

/// Parts of the protocol that are present; a control leaves one out.
#[derive(Clone, Copy)]
struct Built {
    /// The waiter polls once more between arming and sleeping.
    second_poll: bool,
    /// The doorbell record is stored before the doorbell register.
    barrier: bool,
    /// The device notices entries that were there when the request came.
    looks_back: bool,
    /// The waiter goes on only when the device has heard the request.
    heard: bool,
}

/// The driver's choices, against the guarantees of the PRM.
const OURS: Built = Built {
    second_poll: true,
    barrier: true,
    looks_back: true,
    heard: false,
};

/// The eventfd of the MSI-X vector, and its sleeper.
#[derive(Default)]
struct Eventfd {
    signalled: bool,
    asleep: bool,
    /// The waiter has everything it waited for.
    done: bool,
}

/// State shared by both sides.
struct Machine {
    /// Entries the device has written to the completion queue: the owner bits.
    completions: AtomicU32,
    /// Entries the device has written to the event queue.
    events: AtomicU32,
    /// The doorbell record: consumer index and sequence number of the last request.
    record: AtomicU32,
    /// The completion queue's arm register: how often it was written.
    arm_register: AtomicU32,
    /// The last of those writes that the device has heard of.
    heard: AtomicU32,
    /// The event queue's arm register: its consumer index.
    event_register: AtomicU32,
    eventfd: Mutex<Eventfd>,
    wake: Condvar,
}

/// A request as it stands in the record: sequence number, consumer index.
fn request(sequence: u32, consumer: u32) -> u32 {
    sequence << 8 | consumer
}

struct Device {
    machine: Arc<Machine>,
    built: Built,
    completions: u32,
    events: u32,
    armed: bool,
    /// Events so far: a request with another number is an old one.
    sequence: u32,
    events_armed: bool,
    heard: u32,
    heard_events: u32,
}

impl Device {
    /// Writes its completions at any time, and hears doorbells at any time, until the waiter has got everything.
    fn run(mut self) {
        for _ in 0..COMPLETIONS {
            self.hear();
            self.complete();
        }
        loop {
            self.hear();
            let eventfd = self.machine.eventfd.lock().unwrap();
            if eventfd.done {
                return;
            }
            let stuck = eventfd.asleep && !eventfd.signalled;
            drop(eventfd);
            // Whatever the waiter stored before it slept has arrived by now.
            if stuck && !self.hear() {
                panic!("lost wakeup");
            }
            thread::yield_now();
        }
    }

    /// Takes in doorbells. True if there was one.
    fn hear(&mut self) -> bool {
        let rung = self.machine.arm_register.load(Relaxed);
        let armed = rung != self.heard;
        if armed {
            self.heard = rung;
            fence(Acquire); // what the register points at is read after the register
            let word = self.machine.record.load(Relaxed);
            self.arm(word >> 8, word & 0xff);
            self.machine.heard.store(rung, Release);
        }
        let consumer = self.machine.event_register.load(Acquire);
        let told = consumer != self.heard_events;
        if told {
            self.heard_events = consumer;
            self.events_armed = true;
            if self.events != consumer {
                self.interrupt();
            }
        }
        armed || told
    }

    fn arm(&mut self, sequence: u32, consumer: u32) {
        if sequence != self.sequence {
            return;
        }
        self.armed = true;
        if self.built.looks_back && consumer != self.completions {
            self.notify();
        }
    }

    fn complete(&mut self) {
        self.completions += 1;
        self.machine.completions.store(self.completions, Release);
        if self.armed {
            self.notify();
        }
    }

    /// The event of a completion queue, once per arming.
    fn notify(&mut self) {
        self.armed = false;
        self.sequence += 1;
        self.events += 1;
        self.machine.events.store(self.events, Release);
        if self.events_armed {
            self.interrupt();
        }
    }

    /// The interrupt of the event queue, once per arming.
    fn interrupt(&mut self) {
        self.events_armed = false;
        self.machine.eventfd.lock().unwrap().signalled = true;
        self.machine.wake.notify_one();
    }
}

struct Waiter {
    machine: Arc<Machine>,
    built: Built,
    /// Completions taken.
    completions: u32,
    /// Events taken, which is the sequence number of requests too.
    events: u32,
    /// The event queue was read since it was armed.
    fired: bool,
    rung: u32,
}

impl Waiter {
    fn wait(&mut self, threshold: u32) {
        self.drain_events();
        self.poll();
        while self.completions < threshold {
            self.drain_events();
            self.arm();
            if self.built.second_poll {
                self.poll();
                if self.completions >= threshold {
                    return;
                }
            }
            self.sleep();
            if !self.built.second_poll {
                self.poll();
            }
        }
    }

    fn poll(&mut self) {
        self.completions = self.machine.completions.load(Acquire);
    }

    fn arm(&mut self) {
        let word = request(self.events, self.completions);
        self.machine.record.store(word, Relaxed);
        if self.built.barrier {
            fence(Release);
        }
        self.rung += 1;
        self.machine.arm_register.store(self.rung, Relaxed);
        if self.built.heard {
            while self.machine.heard.load(Acquire) != self.rung {
                thread::yield_now();
            }
        }
    }

    fn drain_events(&mut self) -> bool {
        let written = self.machine.events.load(Acquire);
        let any = written != self.events;
        self.events = written;
        self.fired |= any;
        if self.fired {
            self.machine.event_register.store(self.events, Release);
            self.fired = false;
        }
        any
    }

    fn sleep(&mut self) {
        while !self.drain_events() {
            let mut eventfd = self.machine.eventfd.lock().unwrap();
            eventfd.asleep = true;
            while !eventfd.signalled {
                eventfd = self.machine.wake.wait(eventfd).unwrap();
            }
            eventfd.signalled = false;
            eventfd.asleep = false;
        }
    }
}

fn check(built: Built) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.max_branches = 10_000;
    model.check(move || {
        let machine = Arc::new(Machine {
            completions: AtomicU32::new(0),
            events: AtomicU32::new(0),
            record: AtomicU32::new(request(SILENT >> 8, 0)),
            arm_register: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            event_register: AtomicU32::new(SILENT),
            eventfd: Mutex::new(Eventfd::default()),
            wake: Condvar::new(),
        });
        let device = Device {
            machine: Arc::clone(&machine),
            built,
            completions: 0,
            events: 0,
            armed: false,
            sequence: 0,
            events_armed: false,
            heard: 0,
            heard_events: SILENT,
        };
        let device = thread::spawn(move || device.run());
        let mut waiter = Waiter {
            machine: Arc::clone(&machine),
            built,
            completions: 0,
            events: 0,
            fired: true,
            rung: 0,
        };
        // One at a time, as a consumer waits; the second wait finds what the first left behind.
        for threshold in 1..=COMPLETIONS {
            waiter.wait(threshold);
        }
        machine.eventfd.lock().unwrap().done = true;
        device.join().unwrap();
    });
}

#[test]
fn no_wakeup_is_lost() {
    check(OURS);
}

#[test]
fn no_wakeup_is_lost_with_a_device_that_looks_ahead_only_if_it_has_heard_the_request() {
    check(Built {
        looks_back: false,
        heard: true,
        ..OURS
    });
}

#[test]
#[should_panic(expected = "lost wakeup")]
fn without_the_second_poll_what_came_before_the_request_was_heard_is_never_told() {
    check(Built {
        second_poll: false,
        looks_back: false,
        heard: true,
        ..OURS
    });
}

#[test]
#[should_panic(expected = "lost wakeup")]
fn without_the_barrier_the_device_reads_an_old_request_from_the_record() {
    check(Built {
        barrier: false,
        ..OURS
    });
}

#[test]
#[should_panic(expected = "lost wakeup")]
fn a_device_that_looks_ahead_only_cannot_be_armed_by_a_posted_write() {
    check(Built {
        looks_back: false,
        ..OURS
    });
}
