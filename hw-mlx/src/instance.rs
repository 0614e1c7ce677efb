//! Instances: several threads on one function, each with what it needs often for itself.
//!
//! ```text
//!   Shared, behind a lock                     Own, one thread's at a time
//!   command queue, firmware pages, health     UAR page
//!   event queues for commands and errors      completion event queue, and its vector
//!   what bring-up found out                   wakeup descriptor, events it has not been told of
//! ```
//!
//! A post, a poll and the arming of a completion queue touch what is the instance's own. A command is posted and its
//! answer is taken under the lock, and nobody holds that while he sleeps. Whoever is awake takes in what the shared
//! event queues say, for all; whose it was is woken.
//!
//! UAR page and completion event queue of an instance that ends are kept for the next one, and go when the function is
//! torn down.

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

/// One event for each armed completion queue, of which the provider has no more than fit.
const LOG_COMPLETION_ENTRIES: u32 = 14;
/// Bytes of a UAR page.
const UAR_BYTES: u64 = 4096;

/// What the instances of a function share.
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

/// What bring-up found out, which does not change.
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
        // Nothing in it is left half-way by a panic but what the device is asked about again.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its parts, when nobody shares them any more.
    pub(crate) fn into_parts(self) -> (Control, GidTable, Found) {
        let control = self.control.into_inner();
        let control = control.unwrap_or_else(PoisonError::into_inner);
        (control, self.gids, self.found)
    }
}

/// A UAR page of its own.
pub(crate) fn alloc_uar(
    commands: &mut impl Commands,
    function: &Function,
) -> Result<(UarIndex, Block<UarPage>), MlxError> {
    let number = commands.exec(&AllocUarIn::new())?.uar();
    let bar: Bar = function.bar(0)?;
    let page = bar.block(u64::from(number) * UAR_BYTES)?;
    Ok((UarIndex::new(number), page))
}

/// Events of armed completion queues that may be waiting at once.
pub(crate) fn completion_events(caps: &Caps) -> u32 {
    eq::events(LOG_COMPLETION_ENTRIES.min(caps.general().log_max_eq_sz()))
}

/// An event queue that could not be made. The device may think that it has this ring.
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

/// What is an instance's own.
pub(crate) struct Own {
    /// Its place among the listeners.
    pub(crate) number: usize,
    /// There until it ends, but for its first moments.
    parts: Option<Parts>,
    /// The vector of its completion event queue.
    vector: usize,
    /// Completion queues of its own that have something to say.
    pub(crate) completions: Completions,
    /// What ends its sleep: the device's vectors and its own wakeup, then what the system has to say of the function.
    pub(crate) interrupts: Vec<Interrupt>,
    /// What ends the sleep of an event loop, once there was one.
    set: Option<InterruptSet>,
    /// How many of them come first, which whoever sleeps takes.
    pub(crate) vectors: usize,
    /// When all its commands together have to be done, if they have one limit.
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
        // PANIC: whoever is given an instance is given one with them, and only `leave` takes them, when it is dropped.
        self.parts.as_ref().expect("an instance that is there")
    }

    /// Whether it is too new to have anything.
    pub(crate) const fn has_none(&self) -> bool {
        self.parts.is_none()
    }

    pub(crate) fn take(&mut self, parts: Parts) {
        self.parts = Some(parts);
    }

    /// The end: nobody is told of anything any more, and what was its own is another's. With the last one the function
    /// is closed.
    pub(crate) fn leave(&mut self, control: &mut Control) {
        control.listeners.leave(self.number);
        control.spare.extend(self.parts.take());
        control.closed |= control.listeners.count() == 0;
    }

    /// Whether it is the only one; then there will be no other.
    pub(crate) fn retire(&self, control: &mut Control) -> bool {
        let alone = control.listeners.count() == 1 && self.listener(control).is_some();
        control.closed |= alone;
        alone
    }

    /// The device's vector at a place in the list of interrupts: that of the shared event queues, then its own.
    pub(crate) fn vector_at(&self, at: usize) -> Option<usize> {
        match at {
            0 => Some(0),
            1 if self.vector != 0 => Some(self.vector),
            _ => None,
        }
    }

    /// What ends its sleep.
    pub(crate) fn interrupts(&self) -> &[Interrupt] {
        &self.interrupts
    }

    /// Brings the list of interrupts up to date.
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
            // Who sleeps on it sleeps as long as timers allow, and looks.
            tracing::error!(%error, "an event loop is not told of all interrupts");
        }
    }

    /// A descriptor for event loops.
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

    /// From here on it takes in events itself, and nobody has to wake it.
    pub(crate) fn set_awake(&self, control: &mut Control) {
        control.listeners.set_awake(self.number);
    }

    /// It has taken in all there was, and may sleep now: here, or its program on its descriptors.
    pub(crate) fn set_idle(&self, control: &mut Control) {
        control.listeners.set_idle(self.number);
    }

    /// It may sleep after a command, unless something came during it.
    pub(crate) fn set_idle_after(&self, control: &mut Control) {
        let news = self.completions.has_news();
        control.listeners.set_idle_after(self.number, news);
    }

    fn inbox<'a>(&self, control: &'a mut Control) -> Option<&'a mut Inbox> {
        control.listeners.inbox(self.number)
    }

    /// Takes in what there is, its own and what is for all. True if there was anything. Up to [`Own::set_idle`] nobody
    /// wakes it.
    pub(crate) fn serve(&mut self, control: &mut Control) -> bool {
        self.set_awake(control);
        let shared = control.serve(Some(self.number));
        self.take_events(control) || shared
    }

    /// Takes in what its completion event queue says. True if there was anything.
    pub(crate) fn take_events(&mut self, control: &mut Control) -> bool {
        let Some(Parts { eq, .. }) = &mut self.parts else {
            return false;
        };
        if control.health.dead().is_some() {
            return false;
        }
        let (mut handled, mut lost) = (false, false);
        // A ring holds no more; a device that writes on while we read waits for the next turn.
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

    /// Whether something came in since this was last asked.
    pub(crate) fn seen(&mut self, control: &mut Control) -> bool {
        let told = self.inbox(control).is_some_and(Inbox::seen);
        let called = self.was_called(control);
        self.completions.seen() || told || called
    }

    /// Whether there was something elsewhere that is worth a look, since this was last asked.
    pub(crate) fn was_called(&self, control: &mut Control) -> bool {
        self.inbox(control).is_some_and(Inbox::was_called)
    }

    /// Sleeps until an interrupt, somebody who wakes it, the deadline, or the next look at the device's health. Others
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
        if !woken {
            self.set_awake(&mut control);
        } else if !self.woken(&mut control) {
            control.hear();
            self.follow_if_changed(&control);
        }
        control.look_after_health(false);
        control
    }

    /// Takes what may have ended its sleep, and passes on what may be another's. False: there was nothing to take.
    pub(crate) fn woken(&mut self, control: &mut Control) -> bool {
        let own = &self.interrupts[..self.vectors];
        let any = control.listeners.woken(self.number, own);
        self.follow_if_changed(control);
        any
    }

    /// What the system says is listened to until it has been said.
    fn follow_if_changed(&mut self, control: &Control) {
        let notices = control.interrupts.len() - control.vectors;
        if self.interrupts.len() - self.vectors != notices {
            self.follow(control);
        }
    }
}

/// The parts of one more instance: spare ones, or new ones.
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
                // The device may have an event queue that rings it: the page stays where it is.
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
