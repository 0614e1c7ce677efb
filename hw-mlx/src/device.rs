//! [`Hca`]: an instance of an opened function.
//!
//! A function may have several instances ([`Opened::instance`]), each used by one thread. All use the same control part
//! (commands, events, pages, health) and the same results of bring-up: limits, MAC and addresses. Each has a doorbell
//! page and a completion event queue of its own (module `instance`). Queues, keys and all other objects of the data
//! path are created through an instance by commands. They belong to their creator, which must destroy them before
//! [`Hca::close`]. The last instance that is closed tears the function down. If the last instance is only dropped, bus
//! mastering is disabled first, so that the memory can be freed; the next open resets the function.

mod parking;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use driver::{Block, Descriptor, DmaArena, Function, Held, Instant};

use crate::broken::BrokenQueues;
use crate::caps::Caps;
use crate::cmd::{CommandTally, SlotClass, Ticket};
use crate::control::{Commands, Control, Exchange, in_span, message, typed};
use crate::counters::{self, DeviceCounters};
use crate::error::{CmdError, DeadCause, MlxError, ResumeError};
use crate::event::{AsyncEvent, NetworkEvent};
use crate::gid::{self, GidEntry, Use};
use crate::instance::read_only::ReadOnlySession;
use crate::instance::{self, Listener, Own, Shared};
use crate::pages::PageCounts;
use crate::recorder::Recorder;
use crate::report::BringupReport;
use crate::sensor;
use crate::teardown::{self, CloseError, CloseReport};
use crate::uar::Doorbells;
use crate::vport::qos::{self, PortQos};
use crate::vport::state::{self, VportState};
use crate::vport::{self, Port};
use mlx_prm::{Command, Cqn, Eqn, Opcode, QueryQCounterOut, UarIndex, UarPage};
pub use parking::{
    HcaSnapshot, HcaTables, InstanceSnapshot, NotCancelled, NotParked, ObjectCount, ParkingHca,
    PortSnapshot, UnclaimedHca,
};
use rdma_types::Address;

/// A command in progress, with the type of its answer.
#[must_use = "an answer nobody takes keeps its slot"]
pub struct Pending<C> {
    ticket: Ticket,
    command: PhantomData<fn() -> C>,
}

/// A handle of a function. The function is open as long as it has an instance; the handle does not keep it open.
#[derive(Clone)]
pub struct Opened(Weak<Shared>);

impl Opened {
    /// Creates another instance of the function, for another thread. It has its own wakeup descriptor, doorbell page
    /// and completion event queue. The last two are those of an ended instance, or new ones on the vector with the
    /// fewest instances. Returns `None` if the function is closed.
    ///
    /// # Errors
    /// [`MlxError`]: the device is dead, or the device or the system has run out of a resource. Nothing has changed.
    pub fn instance(&self) -> Result<Option<Hca>, MlxError> {
        let Some(shared) = self.0.upgrade() else {
            return Ok(None);
        };
        let wakeup = shared.function.wakeup()?;
        let mut control = shared.lock();
        if control.closed {
            return Ok(None);
        }
        if let Some(cause) = control.health.dead() {
            return Err(MlxError::Dead(cause));
        }
        let vector = control.least_used_vector();
        let spare = control.spare.pop();
        let vector = spare.as_ref().map_or(vector, |parts| parts.vector);
        let number = control.listeners.add(Listener::new(vector, wakeup));
        if control.requested
            && let Some(inbox) = control.listeners.inbox(number)
        {
            // The system gives this notice once, but it concerns every instance.
            inbox.push(AsyncEvent::DeviceRequested);
        }
        let own = Own::new(&control, number, vector, spare);
        drop(control);
        // From here on, dropping the instance undoes these steps.
        let mut hca = Hca { own, shared };
        if hca.own.lacks_parts() {
            let shared = Arc::clone(&hca.shared);
            let parts = instance::parts_for(&mut hca, &shared, vector)?;
            hca.own.take(parts);
        }
        Ok(Some(hca))
    }

    /// Returns the function's counters, for a thread that has no instance. Returns `None` if the function is closed, or
    /// if its last instance is about to close it ([`Hca::retire`]).
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer, or there is no memory to ask it.
    pub fn counters(&self) -> Result<Option<DeviceCounters>, CmdError> {
        let Some(mut session) = ReadOnlySession::of(&self.0) else {
            return Ok(None);
        };
        let (caps, set) = (session.caps.clone(), session.counter_set);
        let counters = counters::read(&mut session, &caps, set);
        // The function may have been closed meanwhile. An error then only means that it is closed.
        if self.is_closed() {
            return Ok(None);
        }
        counters.map(Some)
    }

    fn is_closed(&self) -> bool {
        self.0.upgrade().is_none_or(|shared| shared.lock().closed)
    }

    /// Returns the function's flight recorder; `None` if the function is closed. The recorder is there until the close,
    /// also after [`Hca::retire`].
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        Some(Arc::clone(&self.0.upgrade()?.recorder))
    }

    /// Returns the outcomes of commands since the function was opened, by kind, and the number of pages given to and
    /// returned by its firmware. Returns `None` if the function is closed. The numbers are there until the close, also
    /// after [`Hca::retire`], because they need no command.
    #[must_use]
    pub fn commands(&self) -> Option<(BTreeMap<Opcode, CommandTally>, PageCounts)> {
        let shared = self.0.upgrade()?;
        let control = shared.lock();
        Some((control.queue.tallies().clone(), control.pages.counts()))
    }
}

/// An instance of an opened function.
pub struct Hca {
    own: Own,
    shared: Arc<Shared>,
}

impl Hca {
    pub(crate) fn new(shared: Shared, own: Own) -> Self {
        Self {
            own,
            shared: Arc::new(shared),
        }
    }

    /// Makes the instances of one function.
    fn all(shared: Shared, instances: Vec<Own>) -> Vec<Self> {
        let shared = Arc::new(shared);
        let with = |own| Self {
            own,
            shared: Arc::clone(&shared),
        };
        instances.into_iter().map(with).collect()
    }

    /// Returns a handle of the function, from which any thread can create another instance.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.shared))
    }

    /// Ends the next [`Hca::wait`] of this instance at once.
    pub fn call_again(&self) {
        self.shared.lock().listeners.call(self.own.number);
    }

    /// Returns a function that ends the current or the next [`Hca::wait`] of this instance, from any thread.
    #[must_use]
    pub fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let (shared, number) = (Arc::downgrade(&self.shared), self.own.number);
        Arc::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.lock().listeners.call(number);
            }
        })
    }

    /// Returns the number of instances of the function, this one included.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.shared.lock().listeners.count()
    }

    /// Returns whether this is the only instance. If so, no other instance can be made afterwards.
    pub fn retire(&mut self) -> bool {
        self.own.retire(&mut self.shared.lock())
    }

    /// Returns whether the link is up, as far as the device has reported.
    pub fn link_is_up(&self) -> bool {
        self.shared.lock().link_up
    }

    /// Ends the instance. The last one destroys the objects of bring-up, takes all pages back and stops the function.
    /// The report of any other instance has the number of instances left, and no pages.
    ///
    /// # Errors
    /// [`CloseError`] if a step failed. The other steps were done all the same. The device no longer uses the memory,
    /// or the memory is leaked because the device could not be stopped.
    pub fn close(self) -> Result<CloseReport, CloseError> {
        let (mut shared, over_at) = (Arc::clone(&self.shared), self.own.over_at);
        let instances_left = {
            let mut this = self;
            let mut control = shared.lock();
            this.own.end(&mut control);
            control.listeners.count()
        };
        if instances_left > 0 {
            return Ok(CloseReport {
                instances_left,
                commands: shared.lock().queue.posted(),
                ..CloseReport::default()
            });
        }
        shared.lock().over_at = over_at;
        loop {
            // Another thread that checks whether the function is open may hold a reference for a moment.
            shared = match Arc::try_unwrap(shared) {
                Ok(shared) => return teardown::close(shared),
                Err(shared) => shared,
            };
            core::hint::spin_loop();
        }
    }

    /// Stops the device even if it does not answer: disables bus mastering at once, and resets the function on close.
    /// The device counts as dead from then on, and an [`AsyncEvent::DeviceDead`] is reported.
    pub fn stop(&mut self, why: &'static str) {
        self.shared.lock().stop(DeadCause::Stopped { why });
    }

    /// Enables or disables a common time limit: while enabled, all commands of this instance together have the time
    /// limit of one command. When it expires, the device is stopped.
    pub fn one_limit(&mut self, on: bool) {
        let at = self.shared.lock().one_limit_from_now();
        self.own.over_at = on.then(|| self.own.over_at.unwrap_or(at));
    }

    /// Returns the state of port and vport.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn vport_state(&mut self) -> Result<VportState, CmdError> {
        let shared = Arc::clone(&self.shared);
        state::read_state(self, &shared.found.caps)
    }

    /// Returns the port's settings for priorities and congestion, as far as this function may read them.
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer.
    pub fn port_qos(&mut self) -> Result<PortQos, CmdError> {
        let shared = Arc::clone(&self.shared);
        qos::read_qos(self, &shared.found.caps)
    }

    /// Sends a command and waits for its answer, handling events meanwhile.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn exec<C: Command>(&mut self, input: &C) -> Result<C::Out, CmdError> {
        Commands::exec(self, input)
    }

    /// Executes a command ([`Hca::exec`]) with `tail` (a page list and the like) after the input's fixed part.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn exec_with<C: Command>(&mut self, input: &C, tail: &[u8]) -> Result<C::Out, CmdError> {
        Commands::exec_with(self, input, tail)
    }

    /// Executes a command with `tail`. Also returns the `extra_out_bytes` bytes after the output's fixed part.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn exec_reading<C: Command>(
        &mut self,
        input: &C,
        tail: &[u8],
        extra_out_bytes: usize,
    ) -> Result<(C::Out, Vec<u8>), CmdError> {
        Commands::exec_reading(self, input, tail, extra_out_bytes)
    }

    /// Sends a command without waiting for its answer. Waits only until a command slot is free. Several commands may be
    /// in progress; they finish in any order.
    ///
    /// # Errors
    /// [`CmdError`]; the command was not sent.
    pub fn submit<C: Command>(&mut self, input: &C, tail: &[u8]) -> Result<Pending<C>, CmdError> {
        let message = message(input, tail);
        let mut exchange =
            Exchange::new(SlotClass::Ordinary, &message, size_of::<C::Out>()).by(self.own.number);
        let ticket = self.go_on(&mut exchange, Control::post)?;
        Ok(Pending {
            ticket,
            command: PhantomData,
        })
    }

    /// Handles events and returns the answer to a command sent with [`Hca::submit`], if it has arrived. Does not wait.
    ///
    /// # Errors
    /// `Err` gives `pending` back: there is no answer yet. The inner result is an error if the command failed.
    pub fn try_answer<C: Command>(
        &mut self,
        pending: Pending<C>,
    ) -> Result<Result<C::Out, CmdError>, Pending<C>> {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        own.serve(&mut control);
        own.set_idle_after(&mut control);
        match control.answer(pending.ticket, size_of::<C::Out>()) {
            Some(answer) => Ok(answer.and_then(|answer| Ok(typed::<C>(&answer)?.0))),
            None => Err(pending),
        }
    }

    /// Waits for the answer to a command sent with [`Hca::submit`].
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn answer<C: Command>(&mut self, pending: Pending<C>) -> Result<C::Out, CmdError> {
        let mut exchange =
            Exchange::posted(pending.ticket, size_of::<C::Out>()).by(self.own.number);
        let answer = self.wait_for(&mut exchange)?;
        Ok(typed::<C>(&answer)?.0)
    }

    /// Drains the event queues: finished commands, page requests, completion events, errors. Does not read the device's
    /// interrupts. Makes system calls only to wake other instances, and to clear this instance's wakeup. Returns true
    /// if there is work that the device's events do not name, such as datagrams, or work from another instance.
    pub fn process_events(&mut self) -> bool {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        own.serve(&mut control);
        let called = own.was_called(&mut control);
        own.seen(&mut control);
        own.set_idle(&mut control);
        called
    }

    /// Does the work of [`Hca::woken`] for a caller that has no mutable access to the instance and has itself taken
    /// the interrupt with index `at` of the instance's list. The caller drains the events next.
    pub fn interrupt_taken(&self, at: usize) {
        let mut control = self.shared.lock();
        self.own.set_awake(&mut control);
        if let Some(vector) = self.own.vector_at(at) {
            control.listeners.wake_sharers(vector);
        }
    }

    /// Sets a second interrupt for this instance, for a thread that handles events of instances that no other thread is
    /// using. It is signalled with the wakeup when the instance has unhandled events or other work. An interrupt of a
    /// shared completion vector signals only the wakeup.
    pub fn attended_by(&self, attendant: driver::Interrupt) {
        let mut control = self.shared.lock();
        control.listeners.attended_by(self.own.number, attendant);
    }

    /// Returns the next event of the instance that is not a completion.
    pub fn next_async(&mut self) -> Option<AsyncEvent> {
        self.shared.lock().next_event(self.own.number)
    }

    /// Returns a completion queue of this instance that an event has named since the queue was last returned. Numbers
    /// of queues are reused, so the creator of a queue first discards events of an earlier queue with the same number.
    pub fn next_completion(&mut self) -> Option<Cqn> {
        self.own.completions.next()
    }

    /// Returns a completion queue that all instances use and that an event has named since it was last returned.
    pub fn next_shared_completion(&mut self) -> Option<Cqn> {
        self.shared.lock().completions.next()
    }

    /// Returns whether an event has named a completion queue that the caller has not fetched. Handles the events first.
    pub(crate) fn has_completion(&mut self, cqn: u32, is_shared: bool) -> bool {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        own.serve(&mut control);
        own.set_idle_after(&mut control);
        if is_shared {
            control.completions.has(cqn)
        } else {
            own.completions.has(cqn)
        }
    }

    /// Discards events of a completion queue that has just been created, because they belong to an earlier queue with
    /// the same number.
    pub fn forget_completion(&mut self, cqn: Cqn) {
        self.own.completions.forget(cqn);
    }

    /// Handles events. If there are none, sleeps until there are or `deadline` passes. Returns true if events were
    /// handled by this call, or before it while the instance waited for a command.
    ///
    /// # Errors
    /// The device is dead. [`AsyncEvent::DeviceDead`] is queued as well.
    pub fn wait(&mut self, deadline: Instant) -> Result<bool, MlxError> {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        let outcome = loop {
            let handled = own.serve(&mut control);
            if let Some(cause) = control.health.dead() {
                break Err(MlxError::Dead(cause));
            }
            if own.seen(&mut control) || handled {
                break Ok(true);
            }
            if control.now() >= deadline {
                break Ok(false);
            }
            control = own.sleep(shared, control, deadline);
        };
        own.set_idle(&mut control);
        outcome
    }

    /// Sleeps until an interrupt of this instance is signalled, or `deadline` passes. Returns whether one is signalled.
    /// The interrupt stays signalled, and its events are not handled.
    pub(crate) fn is_interrupted(&self, deadline: Instant) -> bool {
        self.shared.clock.wait(self.own.interrupts(), deadline)
    }

    /// Waits for the answer to a command.
    fn wait_for(&mut self, exchange: &mut Exchange<'_>) -> Result<Vec<u8>, CmdError> {
        let shared = Arc::clone(&self.shared);
        let (name, instance) = (shared.function.name(), self.own.number);
        in_span(name, Some(instance), exchange.opcode(), || {
            self.go_on(exchange, Control::advance)
        })
    }

    /// Executes a command by calls of `step`, sleeping when there is no progress.
    fn go_on<T>(
        &mut self,
        exchange: &mut Exchange<'_>,
        step: fn(&mut Control, &mut Exchange<'_>) -> Option<Result<T, CmdError>>,
    ) -> Result<T, CmdError> {
        let Self { own, shared } = self;
        let _held = Held::new(&shared.clock);
        let mut control = shared.lock();
        own.set_awake(&mut control);
        control.begin(exchange, own.over_at);
        let answer = loop {
            // Completion events are handled meanwhile.
            own.take_events(&mut control);
            if let Some(answer) = step(&mut control, exchange) {
                break answer;
            }
            control = own.sleep(shared, control, exchange.until());
        };
        own.set_idle_after(&mut control);
        answer
    }

    /// Checks the device's health if that is due. Needed by callers that never call [`Hca::wait`].
    pub fn check_health(&mut self) {
        self.shared.lock().update_health(false);
    }

    /// Returns whether the device is dead. Commands then fail, except those that end its use of memory (destroy, 2ERR,
    /// 2RST) or release the function.
    pub fn is_dead(&self) -> bool {
        self.shared.lock().health.dead().is_some()
    }

    /// Returns the cause of the device's death; `None` if it is not dead.
    pub fn dead_cause(&self) -> Option<DeadCause> {
        self.shared.lock().health.dead()
    }

    /// Returns the current time on the function's clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Returns the nanoseconds since the device's own clock was at `ticks`, a time stamp of a completion. Returns
    /// `None` if the distance is implausible, because one of the two times is then invalid.
    pub fn since(&self, ticks: u64) -> Option<u64> {
        /// Longest plausible distance: one minute.
        const LONGEST_NS: u64 = 60_000_000_000;
        let khz = u64::from(self.caps().limits().clock_khz);
        let now = crate::segment::ticks(&self.shared.lock().registers)?;
        // If `ticks` is later than `now`, the difference wraps to almost the whole range, and is rejected below.
        let passed = u128::from(now.wrapping_sub(ticks)) * 1_000_000;
        let nanoseconds = u64::try_from(passed.checked_div(khz.into())?).ok()?;
        (nanoseconds <= LONGEST_NS).then_some(nanoseconds)
    }

    /// Returns the interrupts for an event loop of the caller: first those that announce work for
    /// [`Hca::process_events`], then the system's notices about the function. [`Hca::woken`] resets the first
    /// [`Hca::vectors`] of them. If none of these was signalled, [`Hca::woken`] takes a notice and reports it as an
    /// event.
    pub fn interrupts(&self) -> &[driver::Interrupt] {
        &self.own.interrupts
    }

    /// Resets the interrupts that may have ended a sleep on [`Hca::interrupts`], for an event loop of the caller. Wakes
    /// the other instances that use the same vector, because the interrupt may be for them. The caller calls
    /// [`Hca::process_events`] next. Returns true if a vector or the instance's wakeup was signalled.
    pub fn woken(&mut self) -> bool {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        let any = own.woken(&mut control);
        own.set_idle(&mut control);
        any
    }

    /// Returns a descriptor that is readable while one of [`Hca::interrupts`] is signalled.
    ///
    /// # Errors
    /// [`MlxError`]: the system has no descriptors left.
    pub fn descriptor(&mut self) -> Result<Descriptor, MlxError> {
        Ok(self.own.descriptor(&self.shared.function)?)
    }

    /// Returns the number of [`Hca::interrupts`] before the system's notices: the device's vectors and the instance's
    /// wakeup. The thread that sleeps on them resets them, by [`Hca::woken`] if there may be several instances.
    pub fn vectors(&self) -> usize {
        self.own.vectors
    }

    /// Returns the DMA memory of the function.
    pub fn arena(&self) -> &DmaArena {
        &self.shared.arena
    }

    /// Returns the function.
    pub fn function(&self) -> &Function {
        &self.shared.function
    }

    /// Returns the device's capabilities.
    pub fn caps(&self) -> &Caps {
        &self.shared.found.caps
    }

    /// Returns the doorbell page of this instance.
    pub fn uar(&self) -> &Block<UarPage> {
        &self.own.parts().uar
    }

    /// Returns the number of the doorbell page, which contexts of queues contain.
    pub fn uar_index(&self) -> UarIndex {
        self.own.parts().uar_index
    }

    /// Returns the number of the event queue for completion queues of this instance.
    pub fn comp_eqn(&self) -> Eqn {
        self.own.parts().eq.eqn()
    }

    /// Returns the maximum number of this instance's completion queues that may be armed at once. Each may have an
    /// event pending, and more events could overrun the instance's event queue.
    pub fn completion_events(&self) -> u32 {
        instance::completion_events(self.caps())
    }

    /// Returns the number of the event queue for completion queues that belong to no instance.
    pub(crate) fn shared_eqn(&self) -> Eqn {
        let control = self.shared.lock();
        // PANIC: bring-up creates this event queue last, and the list is emptied only when the function is torn down.
        control.eqs.last().expect("event queues").eqn()
    }

    /// Counts an object that was resumed, by the command that creates its kind and its number.
    ///
    /// # Errors
    /// The object was resumed or created before, or the resumption is finished.
    pub(crate) fn count_resumed(&self, creates: Opcode, number: u32) -> Result<(), ResumeError> {
        if self.shared.lock().count_resumed(creates, number) {
            return Ok(());
        }
        Err(ResumeError::snapshot(
            "an object",
            format!("{creates:?}: number {number:#x} is there already, or the resumption is over"),
        ))
    }

    /// Returns the doorbells of a page, while a resumption is unfinished. `table` names the object that has the page.
    ///
    /// # Errors
    /// The page is neither that of an instance of the function, nor that of one that has ended.
    pub(crate) fn doorbells_at(
        &self,
        table: &'static str,
        page: u32,
    ) -> Result<Doorbells, ResumeError> {
        let is_known = {
            let control = self.shared.lock();
            let known = control.resumed.as_ref();
            known.is_some_and(|known| known.has(Opcode::ALLOC_UAR, page))
        };
        let Some(index) = UarIndex::checked(page).filter(|_| is_known) else {
            let what = format!("doorbell page {page:#x}, which no instance has had");
            return Err(ResumeError::snapshot(table, what));
        };
        let uar = instance::uar_page(&self.shared.function, index)?;
        Ok(Doorbells::new(uar))
    }

    /// Returns the list of the function's slot queues that have failed.
    pub(crate) fn broken_queues(&self) -> BrokenQueues {
        self.shared.lock().broken.clone()
    }

    /// Returns our present addresses, by index, without removed ones.
    pub fn gids(&self) -> Arc<[GidEntry]> {
        self.shared.gids.living()
    }

    /// Adds an address, which must have passed [`Address::check`]. Returns its entry in the device.
    ///
    /// # Errors
    /// [`MlxError::Address`]: the table already has the address. [`MlxError::TooManyGids`]: the table is full. Or the
    /// device refused. Nothing has changed.
    pub fn add_address(&mut self, address: &Address) -> Result<GidEntry, MlxError> {
        let shared = Arc::clone(&self.shared);
        let _alone = shared.gids.change();
        let entry = shared.gids.plan(self.mac(), address)?;
        gid::write_entry(self, &entry, shared.found.caps.port_number())?;
        shared.gids.publish(entry);
        shared
            .lock()
            .push_event(AsyncEvent::Network(NetworkEvent::AddressAdded(
                entry.address.address,
            )));
        Ok(entry)
    }

    /// Removes an address from use: no new path uses it, and every instance gets [`AsyncEvent::AddressRemoved`]. The
    /// device keeps the address until [`Hca::clear_retired`] clears its entry.
    ///
    /// # Errors
    /// [`MlxError::Address`]: it is not one of ours, or it is derived from the MAC and cannot be removed.
    pub fn retire_address(&mut self, address: IpAddr) -> Result<GidEntry, MlxError> {
        let entry = self.shared.gids.retire(address, self.now())?;
        self.shared.lock().push_event(AsyncEvent::AddressRemoved {
            index: entry.index,
            address,
        });
        Ok(entry)
    }

    /// Clears the entry of a removed address that is no longer used, or that was removed five seconds ago. Returns the
    /// entry, even if the device refuses to clear it; `None` if there is no such entry, and before
    /// [`Hca::finish_resuming`], because queue pairs that use the entry may not be resumed yet.
    pub fn clear_retired(&mut self) -> Option<GidEntry> {
        let shared = Arc::clone(&self.shared);
        if shared.lock().resumed.is_some() {
            return None;
        }
        let _alone = shared.gids.change();
        let entry = shared.gids.retired(self.now())?;
        let cleared = gid::clear_entry(self, entry.index, shared.found.caps.port_number());
        if let Err(error) = &cleared {
            tracing::warn!(address = %entry.address.address, index = entry.index, %error, "an address stays in the device's table");
        }
        shared.gids.cleared(entry.index, cleared.is_ok());
        Some(entry)
    }

    /// Returns the latest time for the next call of [`Hca::clear_retired`]; `None` if no removed address waits to be
    /// cleared, and before [`Hca::finish_resuming`].
    pub fn retired_at(&self) -> Option<Instant> {
        if self.shared.lock().resumed.is_some() {
            return None;
        }
        self.shared.gids.due()
    }

    /// Keeps an address of ours in the device's table until the result is dropped. A removed address is kept for at
    /// most five seconds.
    ///
    /// # Errors
    /// [`MlxError::NoSuchGid`]: there is no address in use at this index.
    pub(crate) fn hold_gid(&self, index: u8) -> Result<Use, MlxError> {
        self.shared
            .gids
            .hold(index)
            .ok_or(MlxError::NoSuchGid { index })
    }

    /// Keeps an address of ours in the device's table for a queue pair that had it before the function was parked.
    pub(crate) fn hold_gid_again(&self, index: u8) -> Use {
        self.shared.gids.hold_again(index)
    }

    /// Reports an event that does not come from the device to every instance.
    pub fn push_event(&self, event: AsyncEvent) {
        self.shared.lock().push_event(event);
    }

    /// Returns the VLAN priority of frames sent from our address with this index; 0 without an address or a VLAN.
    pub fn priority(&self, gid_index: u8) -> u8 {
        self.gid_at(gid_index).map_or(0, |entry| entry.priority())
    }

    /// Returns the number of the function's counter set, if the device has counter sets.
    pub(crate) fn counter_set(&self) -> Option<u32> {
        self.shared.counter_set
    }

    /// Returns the port's speed in Mb/s; `None` if the function may not read the port, or if the speed of the port's
    /// mode is not known.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn port_megabits(&mut self) -> Result<Option<u32>, CmdError> {
        vport::megabits(self)
    }

    /// Returns the temperature of the card's chip in thousandths of a degree Celsius; `None` for a function that may
    /// not read it, such as a virtual one.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn millidegrees(&mut self) -> Result<Option<i32>, CmdError> {
        sensor::millidegrees(self)
    }

    /// Returns error counters of our queue pairs: packets out of sequence, retries, missing buffers. `None` if the
    /// device has none.
    ///
    /// # Errors
    /// [`CmdError`]: the command failed.
    pub fn queue_counters(&mut self) -> Result<Option<QueryQCounterOut>, CmdError> {
        let Some(set) = self.shared.counter_set else {
            return Ok(None);
        };
        counters::query_set(self, set).map(Some)
    }

    /// Returns the device's counters ([`DeviceCounters`]).
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer, or there is no memory to ask it.
    pub fn counters(&mut self) -> Result<DeviceCounters, CmdError> {
        let shared = Arc::clone(&self.shared);
        counters::read(self, &shared.found.caps, shared.counter_set)
    }

    /// Returns the function's flight recorder, to start it or to read it.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.shared.recorder
    }

    /// Returns the outcomes of commands since the function was opened, by kind.
    pub fn command_tallies(&self) -> BTreeMap<Opcode, CommandTally> {
        self.shared.lock().queue.tallies().clone()
    }

    /// Returns our MAC.
    pub fn mac(&self) -> [u8; 6] {
        self.port().mac
    }

    /// Returns the port as bring-up configured it.
    pub fn port(&self) -> &Port {
        &self.shared.found.port
    }

    /// Returns the MAC for a GID, if it is known without a request to the network.
    ///
    /// # Errors
    /// [`MlxError::Unresolved`]: the MAC is not known.
    pub fn resolve(&self, gid: [u8; 16]) -> Result<[u8; 6], MlxError> {
        gid::resolve(gid, &self.gids(), &self.shared.found.neighbours)
    }

    /// Returns the peers whose MAC was configured.
    pub fn neighbours(&self) -> &[(IpAddr, [u8; 6])] {
        &self.shared.found.neighbours
    }

    /// Returns the entry of our present address with this GID; `None` if no present address of ours has it.
    pub fn own(&self, gid: [u8; 16]) -> Option<GidEntry> {
        self.gids().iter().find(|entry| entry.gid == gid).copied()
    }

    /// Returns the entry of our address with this GID, including removed ones that are still used.
    pub fn known(&self, gid: [u8; 16]) -> Option<GidEntry> {
        self.shared.gids.of(gid)
    }

    /// Returns the entry of our address with this index, including removed ones that are still used.
    pub fn gid_at(&self, index: u8) -> Option<GidEntry> {
        self.shared.gids.at(index)
    }

    /// Returns our address from which packets to `gid` are sent: an address of the same IP version and scope, on the
    /// same link or with a gateway. `None` if there is no such address.
    pub fn source_gid(&self, gid: [u8; 16]) -> Option<GidEntry> {
        gid::source(gid, &self.gids()).copied()
    }

    /// Returns the function's name.
    pub fn name(&self) -> &str {
        self.shared.function.name()
    }

    /// Returns the PCI device id.
    pub fn device_id(&self) -> u16 {
        self.shared.found.hardware.device_id
    }

    /// Returns PCI device id and revision.
    pub fn hardware_version(&self) -> (u32, u32) {
        (
            u32::from(self.shared.found.hardware.device_id),
            u32::from(self.shared.found.hardware.revision),
        )
    }

    /// Returns whether the function's PCI configuration enabled relaxed ordering at bring-up.
    pub(crate) fn pci_relaxed_ordering(&self) -> bool {
        self.shared.found.hardware.relaxed_ordering
    }

    /// Returns the firmware version: major, minor, sub-minor.
    pub fn firmware_version(&self) -> (u32, u32, u32) {
        let (major, minor, sub_minor) = self.shared.found.hardware.firmware;
        (u32::from(major), u32::from(minor), u32::from(sub_minor))
    }

    /// Returns the path MTU code of the port, 1..=5 for 256..=4096 bytes.
    pub fn mtu(&self) -> u8 {
        self.port().path_mtu
    }

    /// Returns the report of bring-up.
    pub fn bringup_report(&self) -> &BringupReport {
        &self.shared.found.report
    }

    /// Returns the number of pages given to the firmware so far, and the number that it returned.
    pub fn page_counts(&self) -> PageCounts {
        self.shared.lock().pages.counts()
    }

    /// Returns the number of quarantined command slots: their commands were given up, but the device still has them.
    pub fn slots_quarantined(&self) -> usize {
        self.shared.lock().queue.quarantined()
    }
}

impl Commands for Hca {
    fn exec_message(
        &mut self,
        class: SlotClass,
        input: &[u8],
        out_bytes: usize,
    ) -> Result<Vec<u8>, CmdError> {
        let mut exchange = Exchange::new(class, input, out_bytes).by(self.own.number);
        self.wait_for(&mut exchange)
    }
}

impl Drop for Hca {
    /// Ends the instance, unless [`Hca::close`] has. Its doorbell page and event queue are kept for the next instance.
    fn drop(&mut self) {
        self.own.end(&mut self.shared.lock());
    }
}

impl std::fmt::Debug for Hca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let control = self.shared.lock();
        f.debug_struct("Hca")
            .field("function", &control.function.name())
            .field("instance", &self.own.number)
            .field("queue", &control.queue)
            .field("eqs", &control.eqs)
            .field("dead", &control.health.dead())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
