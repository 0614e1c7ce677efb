//! Upcalls: the thread that calls the agents of CNOs.
//!
//! An agent is C's function to be called when its CNO is triggered. The IA notices a trigger in the middle of some call, when
//! nobody may call it; a program's agent will want to. So the trigger is passed on to a thread, which calls the agent when
//! the adapter is free. The same thread sleeps on the function's interrupts and has the IA look, so that an agent is
//! called when something comes and not when the program happens to call. It starts with the first agent of an
//! instance and ends with the instance.

// UNSAFETY: a C program's function is called.
#![expect(unsafe_code, reason = "the agent's function")]

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, HeldSignals, Interrupt, RealClock};

use super::adapter::Adapter;
use super::records::GivenAgent;
use super::table::handle_of;
use super::types::DatHandle;
use crate::Ia;

/// The longest sleep without a look.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the thread and the IA's calls share.
pub(super) struct Upcalls {
    waiting: Mutex<Vec<(GivenAgent, Option<EvdHandle>)>>,
    wake: Interrupt,
    over: AtomicBool,
}

impl Upcalls {
    /// An agent is to be called.
    pub(super) fn tell(&self, agent: GivenAgent, evd: Option<EvdHandle>) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((agent, evd));
        self.wake.signal();
    }

    fn take(&self) -> Vec<(GivenAgent, Option<EvdHandle>)> {
        core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread, until it is dropped. Agents that are to be called by then are.
pub(super) struct Watch {
    upcalls: Arc<Upcalls>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread or no eventfd left.
    pub(super) fn start(adapter: &'static Adapter, ia: &Ia) -> DatResult<Self> {
        let missing = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let wake = Interrupt::new().map_err(|_| missing.because("no eventfd"))?;
        // What the system has to say of the function is looked at often enough.
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().iter().take(hca.vectors()).cloned();
        let interrupts: Vec<Interrupt> = vectors.chain([wake.clone()]).collect();
        let upcalls = Arc::new(Upcalls {
            waiting: Mutex::new(Vec::new()),
            wake,
            over: AtomicBool::new(false),
        });
        let shared = Arc::clone(&upcalls);
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        let thread = std::thread::Builder::new()
            .name("dat-upcalls".into())
            .spawn(move || watch(adapter, &shared, &interrupts))
            .map_err(|_| missing.because("no thread"))?;
        Ok(Self {
            upcalls,
            thread: Some(thread),
        })
    }

    pub(super) fn upcalls(&self) -> Arc<Upcalls> {
        Arc::clone(&self.upcalls)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.upcalls.over.store(true, Ordering::SeqCst);
        self.upcalls.wake.signal();
        if let Some(thread) = self.thread.take()
            // An agent may close the instance it was called for.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of upcalls has panicked");
        }
    }
}

fn watch(adapter: &'static Adapter, upcalls: &Upcalls, interrupts: &[Interrupt]) {
    let clock = RealClock::new();
    while !upcalls.over.load(Ordering::SeqCst) {
        let calls = adapter.turn(|open| {
            open.ia.progress();
            let calls = upcalls.take().into_iter();
            Ok(calls
                .map(|(agent, evd)| {
                    let evd = evd.and_then(|evd| open.known(evd));
                    let evd = evd.unwrap_or(core::ptr::null_mut());
                    (agent, evd)
                })
                .collect::<Vec<_>>())
        });
        match calls {
            Ok(calls) => calls.into_iter().for_each(|(agent, evd)| call(agent, evd)),
            // Nobody will say when it is over.
            Err(error) if error.return_type() == ReturnType::InternalError => return,
            // It is being closed: who is to be told of the end may not have been named yet.
            Err(_gone) => {}
        }
        // The turn has woken who sleeps in a wait: an interrupt taken here was theirs too.
        clock.wait(interrupts, clock.now() + LOOK_EVERY);
        for interrupt in interrupts {
            let _signals = interrupt.take();
        }
    }
    // The instance has gone: everybody is told with no EVD.
    let calls = upcalls.take().into_iter();
    calls.for_each(|(agent, _)| call(agent, core::ptr::null_mut()));
}

fn call(agent: GivenAgent, evd: DatHandle) {
    // SAFETY: who set the agent promised that it may be called, once, from another thread; a trigger takes it away.
    // The pointer goes back as it came.
    unsafe { (agent.function)(handle_of(agent.instance_data as u64), (agent.told)(evd)) };
}
