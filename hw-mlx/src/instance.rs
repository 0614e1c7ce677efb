//! Instances: several threads on one function, each with its own copy of frequently used resources.
//!
//! ```text
//!   Shared, behind a lock                     Own, one thread's at a time
//!   command queue, firmware pages, health     UAR page
//!   event queues for commands and errors      completion event queue, and its vector
//!   what bring-up found out                   wakeup descriptor, events it has not been told of
//! ```
//!
//! A post, a poll and the arming of a completion queue touch only the instance's own resources. A command is posted
//! and its answer is taken under the lock, and no instance holds the lock while it sleeps. Any awake instance
//! processes the shared event queues for all; the instance that owns the event is woken.
//!
//! UAR page and completion event queue of an ended instance are kept for the next one, and are destroyed when the
//! function is torn down.

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
use crate::event::{Completions, Inbox, Meaning, decode};
use crate::gid::GidTable;
use crate::recorder::Recorder;
use crate::report::BringupReport;
use crate::segment::Hardware;
use crate::vport::Port;

pub(crate) use listeners::{Listener, Listeners};
pub(crate) use parts::Parts;

/// log2 of the event queue's entries: one event for each armed completion queue. The caller makes no more of
/// them than [`Hca::completion_events`](crate::Hca::completion_events).
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
    /// Our addresses.
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
        // A panic leaves nothing half done in it except state that is read from the device again.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its parts, when it is no longer shared.
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
    let number = commands.exec(&AllocUarIn::new())?.uar();
    let bar: Bar = function.bar(0)?;
    let page = bar.block(u64::from(number) * UAR_BYTES)?;
    Ok((UarIndex::new(number), page))
}

/// Returns how many events of armed completion queues may be waiting at once.
pub(crate) fn completion_events(caps: &Caps) -> u32 {
    eq::events(LOG_COMPLETION_ENTRIES.min(caps.general().log_max_eq_sz()))
}

/// An event queue that could not be created. The device may still use its ring.
pub(crate) struct NoEq {
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
) -> Result<Eq, Box<NoEq>> {
    let ring = Ring::new(arena, wanted).map_err(|error| {
        Box::new(NoEq {
            error: error.into(),
            orphaned: None,
        })
    })?;
    let (input, pas) = ring.create_command(events, vector, uar.0);
    match commands.exec_with(&input, &pas) {
        Ok(output) => {
            let eqn = Eqn::new(output.eq_number());
            let mut eq = Eq::new(eqn, ring, uar.1.clone(), vector);
            eq.arm();
            Ok(eq)
        }
        Err(error) => Err(Box::new(NoEq {
            orphaned: error.outcome_unknown().then_some(ring),
            error: error.into(),
        })),
    }
}

/// State of one instance.
pub(crate) struct Own {
    /// Its number among the listeners.
    pub(crate) number: usize,
    /// `Some` from shortly after creation until the instance ends.
    parts: Option<Parts>,
    /// The vector of its completion event queue.
    vector: usize,
    /// Completion queues of this instance that events have named.
    pub(crate) completions: Completions,
    /// Interrupts that end its sleep: the device's vectors and its own wakeup, then the system's notices about the
    /// function.
    pub(crate) interrupts: Vec<Interrupt>,
    /// Descriptor set for event loops, once one was asked for.
    set: Option<InterruptSet>,
    /// Number of interrupts at the start of the list that a sleeper takes.
    pub(crate) vectors: usize,
    /// Deadline of all its commands together, if they have one limit.
    pub(crate) over_at: Option<Instant>,
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
        };
        own.follow(control);
        own
    }

    pub(crate) fn parts(&self) -> &Parts {
        // PANIC: an instance is handed out only with its parts, and only `leave` takes them, when it is dropped.
        self.parts.as_ref().expect("an instance that is there")
    }

    /// Returns true if the instance is too new to have parts.
    pub(crate) const fn has_none(&self) -> bool {
        self.parts.is_none()
    }

    pub(crate) fn take(&mut self, parts: Parts) {
        self.parts = Some(parts);
    }

    /// Ends the instance: it gets no more events, and its parts are kept for another one. The last instance also
    /// closes the function.
    pub(crate) fn leave(&mut self, control: &mut Control) {
        control.listeners.leave(self.number);
        control.spare.extend(self.parts.take());
        control.closed |= control.listeners.count() == 0;
    }

    /// Returns whether it is the only instance; if so, no other can be made afterwards.
    pub(crate) fn retire(&self, control: &mut Control) -> bool {
        let alone = control.listeners.count() == 1 && self.listener(control).is_some();
        control.closed |= alone;
        alone
    }

    /// Returns the device's vector at a place in the list of interrupts: that of the shared event queues, then its
    /// own.
    pub(crate) fn vector_at(&self, at: usize) -> Option<usize> {
        match at {
            0 => Some(0),
            1 if self.vector != 0 => Some(self.vector),
            _ => None,
        }
    }

    /// Returns the interrupts that end its sleep.
    pub(crate) fn interrupts(&self) -> &[Interrupt] {
        &self.interrupts
    }

    /// Updates the list of interrupts.
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
            // An event loop on this descriptor sleeps until its timer, and then checks.
            tracing::error!(%error, "an event loop is not told of all interrupts");
        }
    }

    /// Returns a descriptor for event loops.
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

    /// Marks the instance as idle: it has processed everything, and may sleep here, or its program on its
    /// descriptors.
    pub(crate) fn set_idle(&self, control: &mut Control) {
        control.listeners.set_idle(self.number);
    }

    /// Marks the instance as idle after a command, unless something came during it.
    pub(crate) fn set_idle_after(&self, control: &mut Control) {
        let news = self.completions.has_news();
        control.listeners.set_idle_after(self.number, news);
    }

    fn inbox<'a>(&self, control: &'a mut Control) -> Option<&'a mut Inbox> {
        control.listeners.inbox(self.number)
    }

    /// Processes all pending events, its own and the shared ones. Returns true if there was any. Until
    /// [`Own::set_idle`] other instances do not wake it.
    pub(crate) fn serve(&mut self, control: &mut Control) -> bool {
        self.set_awake(control);
        let shared = control.serve(Some(self.number));
        self.take_events(control) || shared
    }

    /// Processes its completion event queue. Returns true if there was anything.
    pub(crate) fn take_events(&mut self, control: &mut Control) -> bool {
        let Some(Parts { eq, .. }) = &mut self.parts else {
            return false;
        };
        if control.health.dead().is_some() {
            return false;
        }
        let (mut handled, mut lost) = (false, false);
        // A ring holds no more; entries that the device writes meanwhile wait for the next turn.
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

    /// Returns whether something came in since the last call.
    pub(crate) fn seen(&mut self, control: &mut Control) -> bool {
        let told = self.inbox(control).is_some_and(Inbox::seen);
        let called = self.was_called(control);
        self.completions.seen() || told || called
    }

    /// Returns whether there was work kept elsewhere since the last call.
    pub(crate) fn was_called(&self, control: &mut Control) -> bool {
        self.inbox(control).is_some_and(Inbox::was_called)
    }

    /// Sleeps until an interrupt, a wakeup by another thread, the deadline, or the next health check. Other instances
    /// go on meanwhile.
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
        control.look_after_health(false);
        control
    }

    /// Takes the interrupts that may have ended its sleep, and wakes instances that share their vectors. If none was
    /// signalled, takes the system's notices. Returns whether one was signalled.
    pub(crate) fn woken(&mut self, control: &mut Control) -> bool {
        let own = &self.interrupts[..self.vectors];
        let any = control.listeners.woken(self.number, own);
        if !any {
            // A notice of the system ended the sleep, and would end each one until it is taken.
            control.hear();
        }
        self.follow_if_changed(control);
        any
    }

    /// Updates the list of interrupts if the system has given a notice, which it does once.
    fn follow_if_changed(&mut self, control: &Control) {
        let notices = control.interrupts.len() - control.vectors;
        if self.interrupts.len() - self.vectors != notices {
            self.follow(control);
        }
    }
}

/// Returns the parts for another instance: spare ones, or new ones.
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
                // The device may have an event queue that uses the page: the page is not freed.
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
