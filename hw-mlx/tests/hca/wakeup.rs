//! No wakeup is lost: the protocol between a waiter and the device, in every order that the memory model allows.
//!
//! In the model, one side is the waiter of `Ia::evd_wait` over `MlxProvider::wait`. The other side is a device that
//! writes two completions at any time. They share the same objects as on a real machine: a completion queue and an
//! event queue in memory, the doorbell record, the doorbell registers, and an eventfd. loom runs the model in all
//! interleavings (up to a bound of preemptions) and with all values that relaxed loads may return.
//!
//! | in the model | in the driver |
//! |---|---|
//! | `Waiter::wait` | `evd_wait`: poll, then drain events, arm, poll once more, sleep |
//! | `Waiter::sleep` | `MlxProvider::wait` and `Hca::wait`: drain events, sleep, take the eventfd, drain again |
//! | `Waiter::arm` | `Cq::arm`: record, barrier, register |
//! | `Waiter::drain_events` | `Control::serve`: entries of the event queue, then its arm doorbell |
//! | `Device` | PRM "Completion Queues", "Event Queues": one event per arming, sequence number of requests |
//!
//! A register write is posted: it reaches the device some time later. Therefore an arm request contains the consumer
//! index, and the device *looks back*: if it has already written entries beyond that index, it raises the event
//! immediately. IBTA vol. 1, "Request Completion Notification", guarantees less. Its rule to poll once more is
//! sufficient for a device that *looks ahead* (raises the event only for later entries), if the request has reached
//! the device by then. The tests check both kinds of device. Each control test omits one part of the protocol, and
//! must find a lost wakeup.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Number of completions that the device writes.
const COMPLETIONS: u32 = 2;
/// Maximum number of preemptions of an interleaving. Lost wakeups need one or two.
const PREEMPTIONS: usize = 3;
/// Value of a doorbell register before it was first written.
const SILENT: u32 = u32::MAX;

/// Parts of the protocol that are present. A control test leaves one out.
#[derive(Clone, Copy)]
struct Built {
    /// The waiter polls once more between arming and sleeping.
    second_poll: bool,
    /// The waiter stores the doorbell record before the doorbell register.
    barrier: bool,
    /// The device notices entries that it wrote before the arm request reached it.
    looks_back: bool,
    /// The waiter continues only when the arm request has reached the device.
    heard: bool,
}

/// The protocol of our driver, with a device that has the guarantees of the PRM.
const OURS: Built = Built {
    second_poll: true,
    barrier: true,
    looks_back: true,
    heard: false,
};

/// The eventfd of the MSI-X vector, and the state of the thread that sleeps on it.
#[derive(Default)]
struct Eventfd {
    signalled: bool,
    asleep: bool,
    /// True if the waiter has all completions.
    done: bool,
}

/// State shared by the waiter and the device.
struct Machine {
    /// Number of entries that the device has written to the completion queue. It replaces the owner bits in the model.
    completions: AtomicU32,
    /// Number of entries that the device has written to the event queue.
    events: AtomicU32,
    /// Doorbell record: sequence number and consumer index of the last arm request.
    record: AtomicU32,
    /// Arm register of the completion queue: number of writes to it.
    arm_register: AtomicU32,
    /// Number of the last write to `arm_register` that has reached the device.
    heard: AtomicU32,
    /// Arm register of the event queue: its consumer index.
    event_register: AtomicU32,
    eventfd: Mutex<Eventfd>,
    wake: Condvar,
}

/// Returns an arm request as the record holds it: sequence number and consumer index.
fn request(sequence: u32, consumer: u32) -> u32 {
    sequence << 8 | consumer
}

struct Device {
    machine: Arc<Machine>,
    built: Built,
    completions: u32,
    events: u32,
    armed: bool,
    /// Number of events so far. A request with another sequence number is outdated.
    sequence: u32,
    events_armed: bool,
    heard: u32,
    heard_events: u32,
}

impl Device {
    /// Writes completions and processes doorbell writes at any time, until the waiter has all completions.
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
            // Everything that the waiter stored before it slept has reached the device by now.
            if stuck && !self.hear() {
                panic!("lost wakeup");
            }
            thread::yield_now();
        }
    }

    /// Processes new doorbell writes. Returns true if there was one.
    fn hear(&mut self) -> bool {
        let rung = self.machine.arm_register.load(Relaxed);
        let armed = rung != self.heard;
        if armed {
            self.heard = rung;
            fence(Acquire); // the record is read after the register
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

    /// Writes the event of the completion queue, once per arming.
    fn notify(&mut self) {
        self.armed = false;
        self.sequence += 1;
        self.events += 1;
        self.machine.events.store(self.events, Release);
        if self.events_armed {
            self.interrupt();
        }
    }

    /// Raises the interrupt of the event queue, once per arming.
    fn interrupt(&mut self) {
        self.events_armed = false;
        self.machine.eventfd.lock().unwrap().signalled = true;
        self.machine.wake.notify_one();
    }
}

struct Waiter {
    machine: Arc<Machine>,
    built: Built,
    /// Number of completions taken.
    completions: u32,
    /// Number of events taken, which is also the sequence number of the next arm request.
    events: u32,
    /// True if an event was read since the event queue was armed. It is also true at the start.
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
        // The waiter waits for one completion at a time, like a consumer. The second wait may find it already written.
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
