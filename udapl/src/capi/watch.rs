//! Upcalls: the thread that calls the agents of CNOs.
//!
//! An agent is a C function that is called when its CNO is triggered. The IA detects a trigger inside another call. It
//! cannot call the agent there, because the agent may call the library. So the IA queues the trigger for a thread,
//! which calls the agent without holding access to the adapter. The same thread sleeps on the function's interrupts and
//! makes progress, so that an agent is called when an event comes and not only when the program makes a call. The
//! thread starts with the first agent of an instance and ends with the instance.

// UNSAFETY: calls a C program's function.
#![expect(unsafe_code, reason = "the agent's function")]

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, HeldSignals, Interrupt, RealClock};

use super::records::GivenAgent;
use super::sleep::Taken;
use super::table::handle_of;
use super::types::DatHandle;
use super::upcalls::Upcalls;
use crate::Ia;

/// Maximum time that the thread sleeps before it makes progress again.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// An agent to call, with the EVD that is passed to it.
pub(super) type Call = (GivenAgent, Option<EvdHandle>);

/// A closure that makes progress after the given interrupts were taken, and returns the agents to call, with C's
/// handles of the EVDs. An error ends the thread.
pub(super) trait PollAgents:
    Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

impl<F> PollAgents for F where
    F: Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

/// The thread that calls agents. Dropping this value ends the thread, after it has called all queued agents.
pub(super) struct Watch {
    upcalls: Arc<Upcalls<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. `poll` returns the agents to call, with C's handles of the EVDs.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread or no eventfd left.
    pub(super) fn start(ia: &Ia, poll: impl PollAgents) -> DatResult<Self> {
        let missing = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let wake = Interrupt::new().map_err(|_| missing.because("no eventfd"))?;
        // The thread does not sleep on the interrupt for the system's requests, because it polls that often enough.
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().iter().take(hca.vectors()).cloned();
        let interrupts: Vec<Interrupt> = vectors.chain([wake.clone()]).collect();
        let upcalls = Arc::new(Upcalls::new(wake));
        let shared = Arc::clone(&upcalls);
        // Block signals in the new thread, so that the system delivers them to the program's own threads.
        let _held = HeldSignals::hold();
        let thread = std::thread::Builder::new()
            .name("dat-upcalls".into())
            .spawn(move || watch(poll, &shared, &interrupts))
            .map_err(|_| missing.because("no thread"))?;
        Ok(Self {
            upcalls,
            thread: Some(thread),
        })
    }

    /// Returns whether calls are queued that the thread has not taken.
    pub(super) fn is_about_to_call(&self) -> bool {
        !self.upcalls.is_empty()
    }

    pub(super) fn upcalls(&self) -> Arc<Upcalls<Call>> {
        Arc::clone(&self.upcalls)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.upcalls.end();
        if let Some(thread) = self.thread.take()
            // An agent may close its own instance. Then the current thread calls agents, and cannot join itself.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that calls agents has panicked");
        }
    }
}

fn watch(poll: impl PollAgents, upcalls: &Upcalls<Call>, interrupts: &[Interrupt]) {
    let clock = RealClock::new();
    let taken = Cell::new(Taken::NOTHING);
    let poll = || match poll(taken.get(), upcalls) {
        Ok(calls) => {
            calls.into_iter().for_each(|(agent, evd)| call(agent, evd));
            true
        }
        // The adapter is broken, so `end` will never be called.
        Err(_broken) => false,
    };
    let sleep = || {
        // An interrupt that is taken here may have been for other waiting threads. `poll` runs next, under the lock,
        // which wakes them.
        clock.wait(interrupts, clock.now() + PROGRESS_INTERVAL);
        if let Some((wake, vectors)) = interrupts.split_last() {
            let _signals = wake.take();
            taken.set(Taken::by(vectors));
        }
    };
    // The instance is closed: call the remaining agents with a null EVD.
    for (agent, _) in upcalls.serve(poll, sleep) {
        call(agent, core::ptr::null_mut());
    }
}

fn call(agent: GivenAgent, evd: DatHandle) {
    // SAFETY: contract AGENT: the agent may be called once from another thread. The trigger has removed the agent, so
    // this is the only call. Its argument is passed back unchanged.
    unsafe {
        (agent.function)(
            handle_of(agent.instance_data as u64),
            (agent.map_handle)(evd),
        )
    };
}
