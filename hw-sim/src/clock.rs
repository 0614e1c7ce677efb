//! Virtual time. It advances while a thread waits, unless another thread holds it or has to run first.
//!
//! A thread that waits advances the simulator, step by step, until one of its interrupts is signalled or its deadline
//! has passed. A step may signal or end the wait of another thread. That thread has to run before time advances again.
//! Time also stands still while a thread holds it ([`Clock::hold_still`]). Otherwise a thread that only waits would
//! advance time by hours before a thread that gives commands runs. So a waiting thread first lets the others take a
//! step. [`PATIENCE`] limits this, because threads may wait for each other by other means than this clock.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use driver::{Clock, Instant, Interrupt, MAX_WAIT};

use crate::record::Record;
use crate::time::nanoseconds;
use crate::world::{World, lock_to_go_on};

/// Interval at which a waiting thread checks whether others have taken a step.
const SLICE: Duration = Duration::from_millis(1);
/// Number of such checks without a step of the others after which the thread advances time itself: 60 s.
const PATIENCE: u32 = 60_000;

thread_local! {
    /// Simulators whose time this thread holds, each with the number of holds.
    static HELD: RefCell<Vec<(usize, u32)>> = const { RefCell::new(Vec::new()) };
}

/// The clock of virtual time.
pub struct SimClock {
    world: Arc<Mutex<World>>,
}

impl SimClock {
    pub(crate) const fn new(world: Arc<Mutex<World>>) -> Self {
        Self { world }
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.world).addr()
    }

    fn is_held(&self) -> bool {
        HELD.with_borrow(|held| held.iter().any(|(world, _)| *world == self.key()))
    }

    fn count(&self, busy: bool) {
        let threads = &mut lock_to_go_on(&self.world).env.threads;
        if busy {
            threads.busy += 1;
        } else {
            threads.busy -= 1;
            threads.changed.notify_all();
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        Instant(lock_to_go_on(&self.world).env.now)
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        let held = self.is_held();
        let mut world = lock_to_go_on(&self.world);
        if held {
            world.env.threads.busy -= 1;
        }
        let latest = world.env.now.saturating_add(nanoseconds(MAX_WAIT));
        let deadline = deadline.0.min(latest);
        let own = world.env.threads.sleeps(interrupts, deadline);
        let mut patience = PATIENCE;
        let mut stood = false;
        let woken = loop {
            let (now, signals) = (world.env.now, world.env.signals);
            let threads = &mut world.env.threads;
            if threads.is_woken(own, signals) {
                break true;
            }
            if now >= deadline && stood {
                break false;
            }
            if patience > 0 && threads.go_first(own, signals, now) {
                stood = true;
                let changed = Arc::clone(&threads.changed);
                let waited = changed.wait_timeout(world, SLICE);
                let timeout;
                (world, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                // A step of another thread restarts the count of checks.
                patience = if timeout.timed_out() {
                    patience - 1
                } else {
                    PATIENCE
                };
                // An eventfd may have been signalled from outside the simulator.
                let sleepers = &mut world.env.threads.sleepers;
                sleepers.iter_mut().for_each(|one| one.seen_signals = None);
                continue;
            }
            let until = if patience > 0 {
                threads.first_deadline().max(now)
            } else {
                deadline
            };
            world.input(|| Record::Waited { until });
            if !world.wait_step(until) && until >= deadline {
                let signals = world.env.signals;
                break world.env.threads.is_woken(own, signals);
            }
        };
        if held {
            world.env.threads.busy += 1;
        }
        world.env.threads.wakes(own);
        woken
    }

    fn hold_still(&self) {
        let first = HELD.with_borrow_mut(|held| {
            if let Some((_, times)) = held.iter_mut().find(|(world, _)| *world == self.key()) {
                *times += 1;
                return false;
            }
            held.push((self.key(), 1));
            true
        });
        if first {
            self.count(true);
        }
    }

    fn go_on(&self) {
        let last = HELD.with_borrow_mut(|held| {
            let Some(at) = held.iter().position(|(world, _)| *world == self.key()) else {
                return false;
            };
            held[at].1 -= 1;
            let last = held[at].1 == 0;
            if last {
                held.swap_remove(at);
            }
            last
        });
        if last {
            self.count(false);
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "time is held by threads of a program"
)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn world() -> [SimClock; 2] {
        let world = Arc::new(Mutex::new(World::new(0, false)));
        [SimClock::new(Arc::clone(&world)), SimClock::new(world)]
    }

    fn seconds(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn time_stands_still_while_another_thread_holds_it() {
        let [one, other] = world();
        one.hold_still();
        one.hold_still();
        let (began, begun) = channel();
        thread::scope(|scope| {
            let ahead = scope.spawn(move || {
                began.send(()).expect("the test listens");
                assert!(!other.wait(&[], seconds(40)));
                other.now()
            });
            begun.recv().expect("the thread runs");
            one.go_on();
            assert_eq!(one.now(), seconds(0));
            // A thread that holds time may wait, and time then advances.
            assert!(!one.wait(&[], seconds(10)));
            assert_eq!(one.now(), seconds(10));
            one.go_on();
            assert_eq!(ahead.join().expect("no panic"), seconds(40));
        });
    }

    #[test]
    fn a_thread_signalled_meanwhile_is_woken_at_once() {
        let [one, other] = world();
        let interrupt = Interrupt::new().expect("an eventfd");
        one.hold_still();
        thread::scope(|scope| {
            let interrupts = [interrupt.clone()];
            let sleeper = scope.spawn(move || (other.wait(&interrupts, seconds(40)), other.now()));
            interrupt.signal();
            assert_eq!(sleeper.join().expect("no panic"), (true, seconds(0)));
        });
        one.go_on();
    }
}
