//! Commands of a thread that has no instance: the thread queries the function without keeping it open.
//!
//! Such a thread has no wakeup interrupt, so it polls until its command is answered. Between two polls it holds neither
//! the lock nor the function. Events that it takes in meanwhile wake the instances that own them, as in every wait for
//! a command.
//!
//! While the function is brought to its quiet point to be parked, such a thread begins no command, and the function is
//! not parked before the commands that have begun are over. So a thread that reads counters neither keeps a function
//! from being parked nor has a command in the device afterwards.

use std::sync::{Arc, Weak};
use std::time::Duration;

use driver::Clock;

use super::Shared;
use crate::caps::Caps;
use crate::cmd::SlotClass;
use crate::control::{Commands, Control, Exchange, opcode_of};
use crate::error::{CmdError, DeadCause};

/// Shortest and longest pause between two polls. The pause doubles from one to the other.
const SHORTEST_PAUSE: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A thread that queries the function without an instance.
pub(crate) struct ReadOnlySession {
    shared: Weak<Shared>,
    clock: Arc<dyn Clock>,
    pub(crate) caps: Caps,
    pub(crate) counter_set: Option<u32>,
}

impl ReadOnlySession {
    /// Returns a session on the function; `None` if the function is closed.
    pub(crate) fn of(function: &Weak<Shared>) -> Option<Self> {
        let shared = function.upgrade()?;
        Some(Self {
            shared: Weak::clone(function),
            clock: Arc::clone(&shared.clock),
            caps: shared.found.caps.clone(),
            counter_set: shared.counter_set,
        })
    }
}

impl Commands for ReadOnlySession {
    fn exec_message(
        &mut self,
        class: SlotClass,
        input: &[u8],
        out_bytes: usize,
    ) -> Result<Vec<u8>, CmdError> {
        let mut exchange = Exchange::new(class, input, out_bytes);
        let mut pause = SHORTEST_PAUSE;
        let mut begun = false;
        loop {
            let Some(shared) = self.shared.upgrade() else {
                return Err(closed(input));
            };
            let mut control = shared.lock();
            if control.closed {
                exchange.abandon(&mut control);
                end(&mut control, begun);
                return Err(closed(input));
            }
            let mut until = control.now().saturating_add(pause);
            if begun || !control.is_parking {
                if !begun {
                    control.readers += 1;
                    control.begin(&mut exchange, None);
                    begun = true;
                }
                if let Some(answer) = control.advance(&mut exchange) {
                    end(&mut control, begun);
                    return answer;
                }
                control.update_health(false);
                until = exchange.until().min(until);
            }
            drop(control);
            drop(shared);
            self.clock.wait(&[], until);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}

/// Ends a command that has begun. The instance that waits for the last one, to park the function, is woken.
fn end(control: &mut Control, begun: bool) {
    if begun {
        control.readers -= 1;
        if control.is_parking {
            control.listeners.wake();
        }
    }
}

/// Returns the error for a function that was closed while a command was waiting.
fn closed(input: &[u8]) -> CmdError {
    CmdError::Dead {
        opcode: opcode_of(input),
        cause: DeadCause::Stopped {
            why: "it was closed while it was asked",
        },
    }
}
