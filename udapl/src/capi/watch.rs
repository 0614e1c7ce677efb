//! Upcalls: the thread that calls the agents of CNOs.
//!
//! An agent is a C function to be called when its CNO is triggered. The IA notices a trigger inside another call,
//! where it cannot call the agent, because the agent may call the library. So the trigger is queued for a thread,
//! which calls the agent outside of the adapter. The same thread sleeps on the function's interrupts and makes
//! progress, so that an agent is called when an event comes and not only when the program makes a call. The thread
//! starts with the first agent of an instance and ends with the instance.

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

/// Longest sleep without a look.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An agent to call, with the EVD that it gets as its argument.
pub(super) type Call = (GivenAgent, Option<EvdHandle>);

/// Makes progress, after these interrupts have been taken, and returns the agents to call, with C's handles of the
/// EVDs. An error ends the thread.
pub(super) trait Look:
    Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

impl<F> Look for F where
    F: Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

/// The thread; dropping this ends it, after all queued agents have been called.
pub(super) struct Watch {
    upcalls: Arc<Upcalls<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. `look` returns the agents to call, with C's handles of the EVDs.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread or no eventfd left.
    pub(super) fn start(ia: &Ia, look: impl Look) -> DatResult<Self> {
        let missing = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let wake = Interrupt::new().map_err(|_| missing.because("no eventfd"))?;
        // Without a wait on the system's interrupt: it is polled often enough.
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().iter().take(hca.vectors()).cloned();
        let interrupts: Vec<Interrupt> = vectors.chain([wake.clone()]).collect();
        let upcalls = Arc::new(Upcalls::new(wake));
        let shared = Arc::clone(&upcalls);
        // Signals are delivered to the program's own threads.
        let _held = HeldSignals::hold();
        let thread = std::thread::Builder::new()
            .name("dat-upcalls".into())
            .spawn(move || watch(look, &shared, &interrupts))
            .map_err(|_| missing.because("no thread"))?;
        Ok(Self {
            upcalls,
            thread: Some(thread),
        })
    }

    pub(super) fn upcalls(&self) -> Arc<Upcalls<Call>> {
        Arc::clone(&self.upcalls)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.upcalls.end();
        if let Some(thread) = self.thread.take()
            // An agent may close its own instance.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that calls agents has panicked");
        }
    }
}

fn watch(look: impl Look, upcalls: &Upcalls<Call>, interrupts: &[Interrupt]) {
    let clock = RealClock::new();
    let taken = Cell::new(Taken::NOTHING);
    let look = || match look(taken.get(), upcalls) {
        Ok(calls) => {
            calls.into_iter().for_each(|(agent, evd)| call(agent, evd));
            true
        }
        // `end` will never be called.
        Err(_broken) => false,
    };
    let sleep = || {
        // The turn has woken all waiting threads: an interrupt taken here may have been for them.
        clock.wait(interrupts, clock.now() + LOOK_EVERY);
        if let Some((wake, vectors)) = interrupts.split_last() {
            let _signals = wake.take();
            taken.set(Taken::by(vectors));
        }
    };
    // The instance is closed: call the remaining agents with a null EVD.
    for (agent, _) in upcalls.serve(look, sleep) {
        call(agent, core::ptr::null_mut());
    }
}

fn call(agent: GivenAgent, evd: DatHandle) {
    // SAFETY: contract AGENT: it may be called once from another thread, and the trigger removed it. Its argument is
    // passed back unchanged.
    unsafe {
        (agent.function)(
            handle_of(agent.instance_data as u64),
            (agent.map_handle)(evd),
        )
    };
}
