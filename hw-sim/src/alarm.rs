//! An alarm wakes the thread that sleeps until the simulator's next event is due. If the action of another thread
//! makes an event due earlier, the simulator rings the alarm.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes one waiting thread.
#[derive(Debug, Default)]
pub struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    /// Returns an alarm that has not been rung.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Wakes the waiting thread. If no thread waits, the next wait ends at once.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits until the alarm is rung, at most `limit` of the machine's time.
    pub fn wait(&self, limit: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, limit, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// An alarm that the simulator rings if an event becomes due before a virtual time.
#[derive(Debug)]
pub(crate) struct Watch {
    alarm: Arc<Alarm>,
    /// Virtual time in ns at which the sleeping thread wakes by itself. Only an earlier event rings the alarm.
    until: u64,
}

impl Watch {
    pub(crate) const fn new(alarm: Arc<Alarm>, until: u64) -> Self {
        Self { alarm, until }
    }

    /// Reports that an event is due at `due`. Rings the alarm if that is before `until`, but only once.
    pub(crate) fn due(&mut self, due: u64) {
        if due < self.until {
            self.until = 0;
            self.alarm.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::profile::Profile;
    use crate::{LinkFaults, Sim, SimConfig};

    #[test]
    fn an_alarm_rung_before_wakes_once() {
        let alarm = Alarm::new();
        alarm.ring();
        alarm.ring();
        alarm.wait(Duration::MAX);
        alarm.wait(Duration::ZERO);
        assert!(!*alarm.rung.lock().expect("nobody panics"));
    }

    #[test]
    fn a_world_rings_if_something_is_due_before_the_next_wake() {
        let sim = Sim::new(SimConfig::default());
        let [one, other] = ["a", "b"].map(|name| {
            let mac = [2, 0, 0, 0, 0, name.as_bytes()[0]];
            sim.add_function(Profile::named(name, mac))
        });
        sim.connect(&one, &other, LinkFaults::default());
        let alarm = Alarm::new();
        // A link that comes back up trains for a tenth of a second.
        let (long, short) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(sim.watch(&alarm, short), short);
        for (limit, rings) in [(short, false), (long, true)] {
            sim.inject(&one, &Fault::LinkDown);
            sim.advance(long);
            assert_eq!(sim.watch(&alarm, limit), limit);
            sim.inject(&one, &Fault::LinkUp);
            assert_eq!(*alarm.rung.lock().expect("nobody panics"), rings);
        }
        assert_eq!(sim.watch(&alarm, long), Duration::from_millis(100));
    }
}
