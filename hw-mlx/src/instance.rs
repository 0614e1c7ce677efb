//! Instances: several threads on one function, each with its own copy of frequently used resources.
//!
//! ```text
//!   Shared, behind a lock                     Own, used by one thread at a time
//!   command queue, firmware pages, health     UAR page
//!   event queues for commands and errors      completion event queue, and its vector
//!   inboxes of events, results of bring-up    wakeup descriptor, completion queues with events
//! ```
//!
//! A post, a poll and the arming of a completion queue touch only the instance's own resources. A thread posts a
//! command and takes its answer under the lock, and no instance holds the lock while it sleeps. Any awake instance
//! processes the shared event queues for all instances, and wakes the instance that an event is for.
//!
//! When an instance ends, its UAR page and completion event queue are kept for the next instance. They are destroyed
//! when the function is torn down.

mod listeners;
#[cfg(test)]
mod models;
mod parts;
pub(crate) mod read_only;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{
    Bar, Block, Clock, Descriptor, DmaArena, Function, FunctionError, Instant, Interrupt,
    InterruptSet,
};
use mlx_prm::{AllocUarIn, DeallocUarIn, Eqn, UarIndex, UarPage};

use crate::caps::Caps;
use crate::control::{Commands, Control};
use crate::eq::{self, Eq, Ring};
use crate::error::{CmdError, MlxError};
use crate::event::{AsyncEvent, Completions, Inbox, Meaning, decode};
use crate::gid::GidTable;
use crate::recorder::Recorder;
use crate::report::BringupReport;
use crate::segment::Hardware;
use crate::vport::Port;

pub(crate) use listeners::{Listener, Listeners};
pub(crate) use parts::Parts;

/// log2 of the number of entries of a completion event queue. Each armed completion queue may need one entry. The
/// caller makes at most [`Hca::completion_events`](crate::Hca::completion_events) completion queues.
const LOG_COMPLETION_ENTRIES: u32 = 14;
/// Bytes of a UAR page.
const UAR_BYTES: u64 = 4096;

/// State that the instances of a function share.
pub(crate) struct Shared {
    control: Mutex<Control>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) function: Function,
    pub(crate) arena: DmaArena,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) counter_set: Option<u32>,
    /// Table of our addresses.
    pub(crate) gids: GidTable,
    pub(crate) found: Found,
}

/// Results of bring-up, which do not change.
pub(crate) struct Found {
    pub(crate) caps: Caps,
    pub(crate) port: Port,
    pub(crate) neighbours: Vec<(IpAddr, [u8; 6])>,
    pub(crate) hardware: Hardware,
    pub(crate) report: BringupReport,
}

impl Shared {
    pub(crate) fn new(control: Control, gids: GidTable, found: Found) -> Self {
        Self {
            clock: Arc::clone(&control.clock),
            function: control.function.clone(),
            arena: control.arena.clone(),
            recorder: Arc::clone(control.queue.recorder()),
            counter_set: control.counter_set,
            control: Mutex::new(control),
            gids,
            found,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Control> {
        // A panic under this lock leaves no inconsistent state, except state that is read from the device again.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parts of the state once no instance shares it any more.
    pub(crate) fn into_parts(self) -> (Control, GidTable, Found) {
        let control = self.control.into_inner();
        let control = control.unwrap_or_else(PoisonError::into_inner);
        (control, self.gids, self.found)
    }
}

/// Allocates a UAR page.
pub(crate) fn alloc_uar(
    commands: &mut impl Commands,
    function: &Function,
) -> Result<(UarIndex, Block<UarPage>), MlxError> {
    let number = UarIndex::new(commands.exec(&AllocUarIn::new())?.uar());
    Ok((number, uar_page(function, number)?))
}

/// Returns the registers of a UAR page.
pub(crate) fn uar_page(function: &Function, number: UarIndex) -> Result<Block<UarPage>, MlxError> {
    let bar: Bar = function.bar(0)?;
    Ok(bar.block(u64::from(number.get()) * UAR_BYTES)?)
}

/// Returns the number of completion events that may wait at once: one for each armed completion queue.
pub(crate) fn completion_events(caps: &Caps) -> u32 {
    eq::events(LOG_COMPLETION_ENTRIES.min(caps.general().log_max_eq_sz()))
}

/// Failure to create an event queue. `orphaned` is the ring if the device may still use it.
pub(crate) struct EqError {
    pub(crate) error: MlxError,
    pub(crate) orphaned: Option<Ring>,
}

/// Creates an event queue and arms it.
pub(crate) fn create_eq(
    commands: &mut impl Commands,
    arena: &DmaArena,
    wanted: u32,
    events: u64,
    vector: usize,
    uar: (UarIndex, &Block<UarPage>),
) -> Result<Eq, Box<EqError>> {
    let ring = Ring::new(arena, wanted).map_err(|error| {
        Box::new(EqError {
            error: error.into(),
            orphaned: None,
        })
    })?;
    let (input, pas) = ring.create_command(events, vector, uar.0);
    match commands.exec_with(&input, &pas) {
        Ok(output) => {
            let eqn = Eqn::new(output.eq_number());
            let mut eq = Eq::new(eqn, ring, (uar.0, uar.1.clone()), vector);
            eq.arm();
            Ok(eq)
        }
        Err(error) => Err(Box::new(EqError {
            orphaned: error.outcome_unknown().then_some(ring),
            error: error.into(),
        })),
    }
}

/// State of one instance.
pub(crate) struct Own {
    /// Index of this instance in the list of listeners.
    pub(crate) number: usize,
    /// UAR page and event queue: `Some` from shortly after creation until the instance ends.
    parts: Option<Parts>,
    /// Interrupt vector of the instance's completion event queue.
    vector: usize,
    /// Completion queues of this instance that had events which the caller has not fetched.
    pub(crate) completions: Completions,
    /// Interrupts that end the instance's sleep: first the device's vectors and the instance's own wakeup, then the
    /// system's notices about the function.
    pub(crate) interrupts: Vec<Interrupt>,
    /// Descriptor for event loops; `None` until a caller has requested it.
    set: Option<InterruptSet>,
    /// Number of interrupts at the start of the list that a woken instance clears: the vectors and the wakeup.
    pub(crate) vectors: usize,
    /// Common deadline of all commands of this instance, if the caller has set one.
    pub(crate) over_at: Option<Instant>,
    /// True once the instance has ended. Another instance may then have its number.
    left: bool,
}

impl Own {
    pub(crate) fn new(
        control: &Control,
        number: usize,
        vector: usize,
        parts: Option<Parts>,
    ) -> Self {
        let mut own = Self {
            number,
            parts,
            vector,
            completions: Completions::default(),
            interrupts: Vec::new(),
            set: None,
            vectors: 0,
            over_at: None,
            left: false,
        };
        own.follow(control);
        own
    }

    pub(crate) fn parts(&self) -> &Parts {
        // PANIC: an instance is handed out only with its parts, and only `end` takes them, when the instance is
        // dropped.
        self.parts.as_ref().expect("an instance that is there")
    }

    /// Returns true if the instance has no UAR page and event queue yet.
    pub(crate) const fn lacks_parts(&self) -> bool {
        self.parts.is_none()
    }

    pub(crate) fn take(&mut self, parts: Parts) {
        self.parts = Some(parts);
    }

    /// Ends the instance: it gets no more events, and its parts are kept for another instance. The last instance also
    /// marks the function as closed, so that no other instance can be made. A second call does nothing.
    pub(crate) fn end(&mut self, control: &mut Control) {
        if core::mem::replace(&mut self.left, true) {
            return;
        }
        control.listeners.remove(self.number);
        control.spare.extend(self.parts.take());
        control.closed |= control.listeners.count() == 0;
    }

    /// Returns whether this is the only instance. If so, marks the function as closed, so that no other can be made.
    pub(crate) fn retire(&self, control: &mut Control) -> bool {
        let alone = control.listeners.count() == 1 && self.listener(control).is_some();
        control.closed |= alone;
        alone
    }

    /// Returns the device's vector at position `at` of the interrupt list. Position 0 is vector 0 of the shared event
    /// queues. Position 1 is the instance's own vector, unless that is vector 0 too.
    pub(crate) fn vector_at(&self, at: usize) -> Option<usize> {
        match at {
            0 => Some(0),
            1 if self.vector != 0 => Some(self.vector),
            _ => None,
        }
    }

    /// Returns the interrupts that end the instance's sleep.
    pub(crate) fn interrupts(&self) -> &[Interrupt] {
        &self.interrupts
    }

    /// Builds the list of interrupts again, and updates the descriptor for event loops.
    fn follow(&mut self, control: &Control) {
        let (vectors, notices) = control.interrupts.split_at(control.vectors);
        let own = (0..2).filter_map(|at| vectors.get(self.vector_at(at)?));
        let own: Vec<Interrupt> = own.cloned().collect();
        self.interrupts = own;
        self.interrupts
            .extend(self.listener(control).map(|own| own.wakeup().clone()));
        self.vectors = self.interrupts.len();
        self.interrupts.extend(notices.iter().cloned());
        if let Some(set) = &mut self.set
            && let Err(error) = set.watch(&self.interrupts)
        {
            // The event loop on this descriptor still runs at its next timer, and then processes the events.
            tracing::error!(%error, "an event loop is not told of all interrupts");
        }
    }

    /// Returns a descriptor for event loops, which becomes readable when an interrupt of the instance is signalled.
    pub(crate) fn descriptor(&mut self, function: &Function) -> Result<Descriptor, FunctionError> {
        if let Some(set) = &self.set {
            return Ok(set.descriptor());
        }
        let set = function.interrupt_set(&self.interrupts)?;
        Ok(self.set.insert(set).descriptor())
    }

    fn listener<'a>(&self, control: &'a Control) -> Option<&'a Listener> {
        control.listeners.get(self.number)
    }

    /// Marks the instance as awake: it processes events itself and need not be woken.
    pub(crate) fn set_awake(&self, control: &mut Control) {
        control.listeners.set_awake(self.number);
    }

    /// Marks the instance as idle: it has processed all events. Its thread may now sleep in `Own::sleep`, or its
    /// program on the instance's descriptors.
    pub(crate) fn set_idle(&self, control: &mut Control) {
        control.listeners.set_idle(self.number);
    }

    /// Marks the instance as idle after a command. If events came in during the command, signals the instance's wakeup.
    pub(crate) fn set_idle_after(&self, control: &mut Control) {
        let news = self.completions.has_news();
        control.listeners.set_idle_after(self.number, news);
    }

    /// Returns the events in the instance's inbox, and the number of dropped ones.
    pub(crate) fn inbox_contents(&self, control: &Control) -> (Vec<AsyncEvent>, u64) {
        self.listener(control)
            .map(Listener::contents)
            .unwrap_or_default()
    }

    fn inbox<'a>(&self, control: &'a mut Control) -> Option<&'a mut Inbox> {
        control.listeners.inbox(self.number)
    }

    /// Processes all pending events, the instance's own and the shared ones. Returns true if there were any. Other
    /// instances do not wake this one until [`Own::set_idle`].
    pub(crate) fn serve(&mut self, control: &mut Control) -> bool {
        self.set_awake(control);
        let shared = control.serve(Some(self.number));
        self.take_events(control) || shared
    }

    /// Processes the instance's completion event queue. Returns true if it had entries.
    pub(crate) fn take_events(&mut self, control: &mut Control) -> bool {
        let Some(Parts { eq, .. }) = &mut self.parts else {
            return false;
        };
        if control.health.dead().is_some() {
            return false;
        }
        let (mut handled, mut lost) = (false, false);
        // One pass takes at most the ring's capacity. The next call takes entries that the device writes meanwhile.
        for _ in 0..eq.entries() {
            let Some(eqe) = eq.poll() else { break };
            handled = true;
            if let Meaning::Completion(cqn) = decode(&eqe) {
                lost |= !self.completions.note(cqn);
            } else {
                tracing::warn!(?eqe, eqn = ?eq.eqn(), "an event that is none of a completion queue's");
            }
        }
        eq.arm();
        if lost && let Some(inbox) = self.inbox(control) {
            inbox.lose();
        }
        handled
    }

    /// Returns whether an event, a completion event or other work came in since the last call.
    pub(crate) fn seen(&mut self, control: &mut Control) -> bool {
        let had_event = self.inbox(control).is_some_and(Inbox::seen);
        let called = self.was_called(control);
        self.completions.seen() || had_event || called
    }

    /// Returns whether work outside of the inbox was announced since the last call.
    pub(crate) fn was_called(&self, control: &mut Control) -> bool {
        self.inbox(control).is_some_and(Inbox::was_called)
    }

    /// Sleeps until an interrupt, a wakeup by another thread, the deadline, or the next health check. Does not hold the
    /// lock meanwhile, so other instances continue.
    pub(crate) fn sleep<'a>(
        &mut self,
        shared: &'a Shared,
        mut control: MutexGuard<'a, Control>,
        deadline: Instant,
    ) -> MutexGuard<'a, Control> {
        let until = deadline.min(control.health.next_poll());
        self.follow_if_changed(&control);
        self.set_idle(&mut control);
        drop(control);
        let woken = shared.clock.wait(&self.interrupts, until);
        let mut control = shared.lock();
        if woken {
            self.woken(&mut control);
        } else {
            self.set_awake(&mut control);
        }
        control.update_health(false);
        control
    }

    /// Clears the interrupts that may have ended the sleep, and wakes instances that share the same vector. If no
    /// interrupt was signalled, processes the system's notices. Returns whether an interrupt was signalled.
    pub(crate) fn woken(&mut self, control: &mut Control) -> bool {
        let own = &self.interrupts[..self.vectors];
        let any = control.listeners.woken(self.number, own);
        if !any {
            // A notice of the system ended the sleep. Until its eventfd is cleared, it ends every later sleep at once.
            control.hear();
        }
        self.follow_if_changed(control);
        any
    }

    /// Builds this instance's list of interrupts again if a notice of the system has been removed from the function's
    /// list. A notice is removed there once it was handled.
    fn follow_if_changed(&mut self, control: &Control) {
        let notices = control.interrupts.len() - control.vectors;
        if self.interrupts.len() - self.vectors != notices {
            self.follow(control);
        }
    }
}

/// Creates a UAR page and a completion event queue for an instance.
pub(crate) fn parts_for(
    commands: &mut impl Commands,
    shared: &Shared,
    vector: usize,
) -> Result<Parts, MlxError> {
    let (uar_index, uar) = alloc_uar(commands, &shared.function)?;
    let wanted = completion_events(&shared.found.caps);
    let made = create_eq(
        commands,
        &shared.arena,
        wanted,
        0,
        vector,
        (uar_index, &uar),
    );
    match made {
        Ok(eq) => Ok(Parts {
            uar_index,
            uar,
            eq,
            vector,
        }),
        Err(failed) => {
            if let Some(ring) = failed.orphaned {
                // The device may have created the event queue, which would use the UAR page. So the page is not freed.
                shared.lock().orphaned_rings.push(ring);
            } else if let Err(second) = free_uar(commands, uar_index) {
                tracing::warn!(%second, "a doorbell page that nobody uses stays");
            }
            Err(failed.error)
        }
    }
}

fn free_uar(commands: &mut impl Commands, uar: UarIndex) -> Result<(), CmdError> {
    let mut input = DeallocUarIn::new();
    input.set_uar(uar.get());
    commands.exec(&input).map(drop)
}

#[cfg(test)]
mod tests {
    use super::listeners::Activity;
    use crate::tables::assert_table;

    #[test]
    fn every_pair_of_activity_and_event_is_as_the_checked_in_table_says() {
        assert_table(Activity::step, include_str!("instance/listeners.table"));
    }
}
