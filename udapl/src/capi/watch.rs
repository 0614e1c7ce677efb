//! Upcalls: the thread that calls the agents of CNOs.
//!
//! An agent is C's function to be called when its CNO is triggered. The IA notices a trigger in the middle of some call, when
//! nobody may call it; a program's agent will want to. So the trigger is passed on to a thread, which calls the agent when
//! the adapter is free. The same thread sleeps on the function's interrupts and has the IA look, so that an agent is
//! called when something comes and not when the program happens to call. It starts with the first agent of an
//! instance and ends with the instance.

// UNSAFETY: a C program's function is called.
#![expect(unsafe_code, reason = "the agent's function")]

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, HeldSignals, Interrupt, RealClock};

use super::adapter::{Adapter, Open};
use super::records::GivenAgent;
use super::sleep::Taken;
use super::table::{IaName, handle_of};
use super::types::DatHandle;
use super::upcalls::Upcalls;

/// The longest sleep without a look.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An agent that is to be called, with the EVD that it is told of.
pub(super) type Call = (GivenAgent, Option<EvdHandle>);

/// The thread, until it is dropped. Agents that are to be called by then are.
pub(super) struct Watch {
    upcalls: Arc<Upcalls<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread or no eventfd left.
    pub(super) fn start(adapter: &'static Adapter, open: &Open) -> DatResult<Self> {
        let missing = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let wake = Interrupt::new().map_err(|_| missing.because("no eventfd"))?;
        let (ia, name) = (&open.ia, open.instance.name);
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
            .spawn(move || watch(adapter, name, &shared, &interrupts))
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

fn watch(adapter: &'static Adapter, ia: IaName, upcalls: &Upcalls<Call>, interrupts: &[Interrupt]) {
    let clock = RealClock::new();
    let taken = Cell::new(Taken::NOTHING);
    let look = || match look(adapter, ia, taken.get(), upcalls) {
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

/// Has the IA look; the agents that are to be called, with C's handles of the EVDs. There are none if the IA is being closed:
/// who is to be told of the end may not have been named yet.
///
/// # Errors
/// DAT_INTERNAL_ERROR: the adapter is broken.
fn look(
    adapter: &'static Adapter,
    ia: IaName,
    taken: Taken,
    upcalls: &Upcalls<Call>,
) -> DatResult<Vec<(GivenAgent, DatHandle)>> {
    // The place may serve another opening by now, whose EVDs are nothing to these agents.
    let calls = adapter.turn_if_open(ia, |open| {
        taken.share(&open.ia);
        open.ia.progress();
        let calls = upcalls.take().into_iter();
        Ok(calls
            .map(|(agent, evd)| {
                let evd = evd.and_then(|evd| open.known(evd));
                (agent, evd.unwrap_or(core::ptr::null_mut()))
            })
            .collect())
    });
    Ok(calls?.unwrap_or_default())
}

fn call(agent: GivenAgent, evd: DatHandle) {
    // SAFETY: who set the agent promised that it may be called, once, from another thread; a trigger takes it away.
    // The pointer goes back as it came.
    unsafe { (agent.function)(handle_of(agent.instance_data as u64), (agent.told)(evd)) };
}

#[cfg(test)]
mod tests {
    use super::super::call::look_up;
    use super::super::{dat_ia_close, lend};
    use super::*;
    use crate::OpenOptions;

    fn agent() -> GivenAgent {
        extern "C" fn nobody(_data: *mut core::ffi::c_void, _evd: DatHandle) {}
        GivenAgent {
            instance_data: 0,
            function: nobody,
            told: core::convert::identity,
        }
    }

    fn opened(name: &str) -> (DatHandle, &'static Adapter) {
        let ia = crate::ia_open(name, &OpenOptions::default()).expect("an adapter");
        let handle = lend(ia, true).expect("a handle");
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        (handle, adapter)
    }

    /// Two openings, one after the other, that had the same place: the first, with an EVD of it, and the second's handle.
    fn one_after_the_other() -> (&'static Adapter, (IaName, EvdHandle), DatHandle) {
        // Tests beside this one take places, too.
        for round in 0..20 {
            let (before, adapter) = opened(&format!("sim:place-{round}"));
            let of_it = adapter.turn(|open| Ok((open.instance.name, open.ia.async_evd())));
            assert_eq!(dat_ia_close(before, 0), 0);
            let mut others = Vec::new();
            let same = (0..20).find_map(|number| {
                let (handle, place) = opened(&format!("sim:place-{round}-{number}"));
                let same = core::ptr::eq(place, adapter);
                if !same {
                    others.push(handle);
                }
                same.then_some(handle)
            });
            for other in others {
                assert_eq!(dat_ia_close(other, 0), 0);
            }
            if let Some(after) = same {
                return (adapter, of_it.expect("it was open"), after);
            }
        }
        panic!("the place was not used again");
    }

    #[test]
    fn an_agent_is_not_told_of_an_evd_of_the_device_that_has_the_place_afterwards() {
        let (adapter, (first, evd), after) = one_after_the_other();
        let known = adapter.turn(|open| Ok(open.known(evd)));
        assert!(known.expect("open").is_some(), "the EVDs' keys are alike");
        let upcalls = Upcalls::new(Interrupt::new().expect("an eventfd"));
        upcalls.tell((agent(), Some(evd)));
        let told = look(adapter, first, Taken::NOTHING, &upcalls).expect("not broken");
        assert!(told.is_empty(), "its opening is over");
        assert_eq!(upcalls.take().len(), 1, "it will be told of the end");
        assert_eq!(dat_ia_close(after, 0), 0);
    }
}
