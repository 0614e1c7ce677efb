//! Upcalls: the thread that calls the agents of CNOs.
//!
//! An agent is C's function to be called when its CNO is triggered. The IA notices a trigger in the middle of some
//! call, when nobody may call it; a program's agent will want to. So the trigger is passed on to a thread, which calls
//! the agent when the adapter is free. The same thread sleeps on the function's interrupts and has the IA look, so that
//! an agent is called when something comes and not when the program happens to call. It starts with the first agent of
//! an instance and ends with the instance.

// UNSAFETY: a C program's function is called.
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

/// The longest sleep without a look.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An agent that is to be called, with the EVD that it is told of.
pub(super) type Call = (GivenAgent, Option<EvdHandle>);

/// Has the IA look, after these interrupts have been taken: the agents that are to be called, with C's handles of the
/// EVDs. An error ends the thread.
pub(super) trait Look:
    Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

impl<F> Look for F where
    F: Fn(Taken, &Upcalls<Call>) -> DatResult<Vec<(GivenAgent, DatHandle)>> + Send + 'static
{
}

/// The thread, until it is dropped. Agents that are to be called by then are.
pub(super) struct Watch {
    upcalls: Arc<Upcalls<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. To `look` says which agents are to be called, with C's handles of the EVDs.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread or no eventfd left.
    pub(super) fn start(ia: &Ia, look: impl Look) -> DatResult<Self> {
        let missing = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let wake = Interrupt::new().map_err(|_| missing.because("no eventfd"))?;
        // What the system has to say of the function is looked at often enough.
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().iter().take(hca.vectors()).cloned();
        let interrupts: Vec<Interrupt> = vectors.chain([wake.clone()]).collect();
        let upcalls = Arc::new(Upcalls::new(wake));
        let shared = Arc::clone(&upcalls);
        // The program's signals are for its own threads.
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
            // An agent may close the instance it was called for.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of upcalls has panicked");
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
        // Nobody will say when it is over.
        Err(_broken) => false,
    };
    let sleep = || {
        // The turn has woken who sleeps in a wait: an interrupt taken here was theirs too.
        clock.wait(interrupts, clock.now() + LOOK_EVERY);
        if let Some((wake, vectors)) = interrupts.split_last() {
            let _told = wake.take();
            taken.set(Taken::by(vectors));
        }
    };
    // The instance has gone: everybody is told with no EVD.
    for (agent, _) in upcalls.serve(look, sleep) {
        call(agent, core::ptr::null_mut());
    }
}

fn call(agent: GivenAgent, evd: DatHandle) {
    // SAFETY: who set the agent promised that it may be called, once, from another thread; a trigger takes it away.
    // The pointer goes back as it came.
    unsafe { (agent.function)(handle_of(agent.instance_data as u64), (agent.told)(evd)) };
}
