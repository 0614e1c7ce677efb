//! [`Hca`]: an opened function.
//!
//! It is one of possibly several instances of the function ([`Opened::instance`]), each used by one thread. They
//! share the control side (commands, events, pages, health) and the results of bring-up: limits, MAC and addresses.
//! Each has a doorbell page and a completion event queue of its own (module `instance`). Queues, keys and everything
//! else of the data path are built on it by commands and belong to their creator; they must be destroyed before
//! [`Hca::close`]. The last instance takes the function down. If it is merely dropped, bus mastering goes off first,
//! so that its memory can be freed; the next open resets the function.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use driver::{Block, Descriptor, DmaArena, Function, Held, Instant};

use crate::caps::Caps;
use crate::cmd::{CommandTally, SlotClass, Ticket};
use crate::control::{Commands, Control, Exchange, in_span, message, typed};
use crate::counters::{self, DeviceCounters};
use crate::error::{CmdError, DeadCause, MlxError};
use crate::event::{AsyncEvent, NetworkEvent};
use crate::gid::{self, GidEntry, Use};
use crate::instance::read_only::ReadOnlySession;
use crate::instance::{self, Listener, Own, Shared};
use crate::pages::PageCounts;
use crate::recorder::Recorder;
use crate::report::BringupReport;
use crate::sensor;
use crate::teardown::{self, CloseError, CloseReport};
use crate::vport::look::{self, VportState};
use crate::vport::qos::{self, PortQos};
use crate::vport::{self, Port};
use mlx_prm::{Command, Cqn, Eqn, Opcode, QueryQCounterOut, UarIndex, UarPage};
use rdma_types::Address;

/// A command on its way, and the type of its answer.
#[must_use = "an answer nobody takes keeps its slot"]
pub struct Pending<C> {
    ticket: Ticket,
    command: PhantomData<fn() -> C>,
}

/// A handle of a function, which is open as long as there is an instance of it.
#[derive(Clone)]
pub struct Opened(Weak<Shared>);

impl Opened {
    /// Creates another instance of the function, for another thread. It has its own doorbell page, completion event
    /// queue and wakeup descriptor, on the vector with the fewest instances. `None`: the function is closed.
    ///
    /// # Errors
    /// [`MlxError`]: the device or the system has run out of a resource; nothing has changed.
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
        let vector = control.quietest_vector();
        let spare = control.spare.pop();
        let vector = spare.as_ref().map_or(vector, |parts| parts.vector);
        let number = control.listeners.join(Listener::new(vector, wakeup));
        if control.requested
            && let Some(inbox) = control.listeners.inbox(number)
        {
            // The system says it once; it holds for all instances.
            inbox.push(AsyncEvent::DeviceRequested);
        }
        let own = Own::new(&control, number, vector, spare);
        drop(control);
        // From here on dropping it undoes these steps.
        let mut hca = Hca { own, shared };
        if hca.own.has_none() {
            let shared = Arc::clone(&hca.shared);
            let parts = instance::parts_for(&mut hca, &shared, vector)?;
            hca.own.take(parts);
        }
        Ok(Some(hca))
    }

    /// Returns the function's counters, for a thread that has no instance of it. `None`: it is closed.
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer.
    pub fn counters(&self) -> Result<Option<DeviceCounters>, CmdError> {
        let Some(mut session) = ReadOnlySession::of(&self.0) else {
            return Ok(None);
        };
        let (caps, set) = (session.caps.clone(), session.counter_set);
        let counters = counters::read(&mut session, &caps, set);
        // A function that was closed meanwhile gives no answer.
        if self.0.strong_count() == 0 {
            return Ok(None);
        }
        counters.map(Some)
    }

    /// Returns its flight recorder. `None`: it is closed.
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        Some(Arc::clone(&self.0.upgrade()?.recorder))
    }

    /// Returns the outcomes of commands since the function was opened, by kind, and the pages given to and returned
    /// by its firmware. `None`: it is closed.
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

    /// Returns a handle of the function, from which any thread can create another instance.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.shared))
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

    /// Returns whether this is the only instance; if so, no other can be made afterwards.
    pub fn retire(&mut self) -> bool {
        self.own.retire(&mut self.shared.lock())
    }

    /// Returns whether the link is up, as far as the device has reported.
    pub fn link_is_up(&self) -> bool {
        self.shared.lock().link_up
    }

    /// Ends the instance. The last one destroys the objects of bring-up, takes all pages back and stops the function.
    /// The report of any other one contains the number of instances left, and no pages.
    ///
    /// # Errors
    /// [`CloseError`] if a step failed; the others were done all the same, and the memory is ours again.
    pub fn close(self) -> Result<CloseReport, CloseError> {
        let (mut shared, over_at) = (Arc::clone(&self.shared), self.own.over_at);
        let instances_left = {
            let mut this = self;
            let mut control = shared.lock();
            this.own.leave(&mut control);
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
            // A thread that checks whether the function is open holds it for a moment, and finds it closed.
            shared = match Arc::try_unwrap(shared) {
                Ok(shared) => return teardown::close(shared),
                Err(shared) => shared,
            };
            core::hint::spin_loop();
        }
    }

    /// Ends the device's use of memory even if it does not answer: bus mastering off, and in the end a reset. It is
    /// dead from now on, with its [`AsyncEvent::DeviceDead`].
    pub fn stop(&mut self, why: &'static str) {
        self.shared.lock().stop(DeadCause::Stopped { why });
    }

    /// While on, all commands of this instance together have the time limit of one. When it expires, the device is
    /// stopped.
    pub fn one_limit(&mut self, on: bool) {
        let at = self.shared.lock().one_limit_from_now();
        self.own.over_at = on.then(|| self.own.over_at.unwrap_or(at));
    }

    /// Returns the state of port and vport.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn vport_state(&mut self) -> Result<VportState, CmdError> {
        let shared = Arc::clone(&self.shared);
        look::look(self, &shared.found.caps)
    }

    /// Returns the port's settings for priorities and congestion, as far as this function may read them.
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer.
    pub fn port_qos(&mut self) -> Result<PortQos, CmdError> {
        let shared = Arc::clone(&self.shared);
        qos::look(self, &shared.found.caps)
    }

    /// Sends a command and waits for its answer, serving events meanwhile.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn exec<C: Command>(&mut self, input: &C) -> Result<C::Out, CmdError> {
        Commands::exec(self, input)
    }

    /// Executes a command ([`Hca::exec`]) with `tail` (a page list and the like) behind the input's fixed part.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn exec_with<C: Command>(&mut self, input: &C, tail: &[u8]) -> Result<C::Out, CmdError> {
        Commands::exec_with(self, input, tail)
    }

    /// Executes a command with `tail`, and returns the `extra_out_bytes` behind the output's fixed part, too.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn exec_reading<C: Command>(
        &mut self,
        input: &C,
        tail: &[u8],
        extra_out_bytes: usize,
    ) -> Result<(C::Out, Vec<u8>), CmdError> {
        Commands::exec_reading(self, input, tail, extra_out_bytes)
    }

    /// Sends a command without waiting for its answer. Several may be on their way; they finish in
    /// any order.
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

    /// Returns the answer to a command sent with [`Hca::submit`], if it has come; handles events, does not wait.
    ///
    /// # Errors
    /// `Err` returns the claim: no answer yet.
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
    /// [`CmdError`].
    pub fn answer<C: Command>(&mut self, pending: Pending<C>) -> Result<C::Out, CmdError> {
        let mut exchange =
            Exchange::posted(pending.ticket, size_of::<C::Out>()).by(self.own.number);
        let answer = self.wait_for(&mut exchange)?;
        Ok(typed::<C>(&answer)?.0)
    }

    /// Drains the event queues: finished commands, page requests, completion events, errors. Does not look at
    /// interrupts and makes no system call. Returns true if there is work that the device's events do not name, such
    /// as datagrams, or work from another instance.
    pub fn process_events(&mut self) -> bool {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        own.serve(&mut control);
        let called = own.was_called(&mut control);
        own.seen(&mut control);
        own.set_idle(&mut control);
        called
    }

    /// Handles a wakeup ([`Hca::woken`]) for a caller that has taken the interrupt at this place of the list without
    /// access to the instance, and drains the events now.
    pub fn interrupt_taken(&self, at: usize) {
        let mut control = self.shared.lock();
        self.own.set_awake(&mut control);
        if let Some(vector) = self.own.vector_at(at) {
            control.listeners.wake_sharers(vector);
        }
    }

    /// Has an interrupt signalled whenever there is something for this instance that is not taken in, in addition to
    /// the wakeup of a sleeper: for a thread that attends instances that are not being called.
    pub fn attended_by(&self, attendant: driver::Interrupt) {
        let mut control = self.shared.lock();
        control.listeners.attended_by(self.own.number, attendant);
    }

    /// Returns the next event that is not a completion.
    pub fn next_async(&mut self) -> Option<AsyncEvent> {
        self.shared.lock().next_event(self.own.number)
    }

    /// Returns a completion queue of this instance that an event has named since the queue was last returned. Numbers
    /// are reused: the creator of a completion queue first takes the events of an earlier one with that number.
    pub fn next_completion(&mut self) -> Option<Cqn> {
        self.own.completions.next()
    }

    /// Returns a completion queue shared by all instances that an event has named since it was last returned.
    pub fn next_shared_completion(&mut self) -> Option<Cqn> {
        self.shared.lock().completions.next()
    }

    /// Forgets events of a completion queue that has just been created: they belong to an earlier one with its
    /// number.
    pub fn forget_completion(&mut self, cqn: Cqn) {
        self.own.completions.forget(cqn);
    }

    /// Handles events; if there are none, sleeps until there are or `deadline` passes. Returns true if something was
    /// handled, here or while a command was waited for.
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

    /// Sleeps until an interrupt of this instance is signalled, or `deadline` passes; returns whether one is. It
    /// stays signalled, and its cause is not taken in.
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

    /// Takes a command on, sleeping where there is no progress.
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
            // Completion events are taken in meanwhile.
            own.take_events(&mut control);
            if let Some(answer) = step(&mut control, exchange) {
                break answer;
            }
            control = own.sleep(shared, control, exchange.until());
        };
        own.set_idle_after(&mut control);
        answer
    }

    /// Checks the device's health if that is due. For callers that never call [`Hca::wait`].
    pub fn check_health(&mut self) {
        self.shared.lock().look_after_health(false);
    }

    /// Returns whether the device is dead: commands fail, except those that destroy.
    pub fn is_dead(&self) -> bool {
        self.shared.lock().health.dead().is_some()
    }

    /// Returns the cause of its death.
    pub fn dead_cause(&self) -> Option<DeadCause> {
        self.shared.lock().health.dead()
    }

    /// Returns the time on the function's clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Returns the nanoseconds since the device's own clock stood at `ticks`, a time stamp of a completion. `None`:
    /// the distance is implausible, so one of the two times is invalid.
    pub fn since(&self, ticks: u64) -> Option<u64> {
        /// Longest plausible distance: a minute.
        const LONGEST_NS: u64 = 60_000_000_000;
        let khz = u64::from(self.caps().limits().clock_khz);
        let now = crate::segment::ticks(&self.shared.lock().registers)?;
        // A time that lies almost a whole lap of the counter behind `now` is ahead of it.
        let passed = u128::from(now.wrapping_sub(ticks)) * 1_000_000;
        let nanoseconds = u64::try_from(passed.checked_div(khz.into())?).ok()?;
        (nanoseconds <= LONGEST_NS).then_some(nanoseconds)
    }

    /// Returns the interrupts for an event loop of the caller: first those that announce work for
    /// [`Hca::process_events`], then the system's notices about the function. [`Hca::woken`] takes all of them; a notice
    /// arrives as an event.
    pub fn interrupts(&self) -> &[driver::Interrupt] {
        &self.own.interrupts
    }

    /// For an event loop of the caller: takes the interrupts that may have ended a sleep on [`Hca::interrupts`], and
    /// wakes other instances that they may have been meant for, since several instances may share a vector.
    /// [`Hca::process_events`] comes next. Returns true if one of a vector was signalled.
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
    /// [`MlxError`]: the system has none left.
    pub fn descriptor(&mut self) -> Result<Descriptor, MlxError> {
        Ok(self.own.descriptor(&self.shared.function)?)
    }

    /// Returns the number of [`Hca::interrupts`] that are the device's own, which come first. A thread that sleeps on
    /// them takes them, with [`Hca::woken`] where there may be several instances.
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

    /// Returns the doorbell page.
    pub fn uar(&self) -> &Block<UarPage> {
        &self.own.parts().uar
    }

    /// Returns the number of the doorbell page, for contexts.
    pub fn uar_index(&self) -> UarIndex {
        self.own.parts().uar_index
    }

    /// Returns the event queue that completion queues report to.
    pub fn comp_eqn(&self) -> Eqn {
        self.own.parts().eq.eqn()
    }

    /// Returns how many completion queues may be armed at once: each may have an event waiting, and more than this
    /// could overrun an event queue.
    pub fn completion_events(&self) -> u32 {
        instance::completion_events(self.caps())
    }

    /// Returns the event queue for completions of queues that belong to no instance.
    pub(crate) fn shared_eqn(&self) -> Eqn {
        let control = self.shared.lock();
        // PANIC: bring-up creates the one for completions last, and all go only when the function is taken down.
        control.eqs.last().expect("event queues").eqn()
    }

    /// Returns our addresses, by index, as of now.
    pub fn gids(&self) -> Arc<[GidEntry]> {
        self.shared.gids.living()
    }

    /// Adds an address, which has passed [`Address::check`]; returns its entry in the device.
    ///
    /// # Errors
    /// [`MlxError::Address`]: it is already there. [`MlxError::TooManyGids`]. Device refusal. Nothing has changed.
    pub fn add_address(&mut self, address: &Address) -> Result<GidEntry, MlxError> {
        let shared = Arc::clone(&self.shared);
        let _alone = shared.gids.change();
        let entry = shared.gids.plan(self.mac(), address)?;
        gid::write_entry(self, &entry, shared.found.caps.port_number())?;
        shared.gids.publish(entry);
        shared
            .lock()
            .tell(AsyncEvent::Network(NetworkEvent::AddressAdded(
                entry.address,
            )));
        Ok(entry)
    }

    /// Retires an address: no new path uses it, and every instance gets [`AsyncEvent::AddressRemoved`]. The device
    /// keeps it until [`Hca::clear_retired`] finds it unused.
    ///
    /// # Errors
    /// [`MlxError::Address`]: it is not one of ours, or it is the one made of the MAC, which stays.
    pub fn retire_address(&mut self, address: IpAddr) -> Result<GidEntry, MlxError> {
        let entry = self.shared.gids.retire(address, self.now())?;
        self.shared.lock().tell(AsyncEvent::AddressRemoved {
            index: entry.index,
            address,
        });
        Ok(entry)
    }

    /// Clears an entry of a removed address, if there is one that is no longer used, and returns it.
    pub fn clear_retired(&mut self) -> Option<GidEntry> {
        let shared = Arc::clone(&self.shared);
        let _alone = shared.gids.change();
        let entry = shared.gids.retired(self.now())?;
        let cleared = gid::clear_entry(self, entry.index, shared.found.caps.port_number());
        if let Err(error) = &cleared {
            tracing::warn!(address = %entry.address, index = entry.index, %error, "an address stays in the device's table");
        }
        shared.gids.cleared(entry.index, cleared.is_ok());
        Some(entry)
    }

    /// Returns the latest time for the next call of [`Hca::clear_retired`].
    pub fn retired_at(&self) -> Option<Instant> {
        self.shared.gids.due()
    }

    /// Keeps an address of ours in the device's table while the result is held.
    ///
    /// # Errors
    /// [`MlxError::NoSuchGid`]: there is no longer an address at this index.
    pub(crate) fn hold_gid(&self, index: u8) -> Result<Use, MlxError> {
        self.shared
            .gids
            .hold(index)
            .ok_or(MlxError::NoSuchGid { index })
    }

    /// Passes an event that does not come from the device to every instance.
    pub fn tell_all(&self, event: AsyncEvent) {
        self.shared.lock().tell(event);
    }

    /// Returns the priority of frames from our address with this index.
    pub fn priority(&self, gid_index: u8) -> u8 {
        self.gid_at(gid_index).map_or(0, |entry| entry.priority())
    }

    /// Returns the function's set of queue counters, if the device has counter sets.
    pub(crate) fn counter_set(&self) -> Option<u32> {
        self.shared.counter_set
    }

    /// Returns the port's speed in Mb/s; `None` for a function that may not see the port, and for a mode without a
    /// known speed.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn port_megabits(&mut self) -> Result<Option<u32>, CmdError> {
        vport::megabits(self)
    }

    /// Returns the temperature of the card's chip in thousandths of a degree Celsius; `None` for a function that may
    /// not read it, such as a virtual one.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn millidegrees(&mut self) -> Result<Option<i32>, CmdError> {
        sensor::millidegrees(self)
    }

    /// Returns error counters of our queue pairs: packets out of sequence, retries, missing buffers. `None` if the
    /// device has none.
    ///
    /// # Errors
    /// [`CmdError`].
    pub fn queue_counters(&mut self) -> Result<Option<QueryQCounterOut>, CmdError> {
        let Some(set) = self.shared.counter_set else {
            return Ok(None);
        };
        counters::query_set(self, set).map(Some)
    }

    /// Returns the device's counters ([`DeviceCounters`]).
    ///
    /// # Errors
    /// [`CmdError`]: the device does not answer.
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

    /// Returns the port as bring-up found it.
    pub fn port(&self) -> &Port {
        &self.shared.found.port
    }

    /// Returns the MAC behind a GID, as far as it is known without asking the network.
    ///
    /// # Errors
    /// [`MlxError::Unresolved`].
    pub fn resolve(&self, gid: [u8; 16]) -> Result<[u8; 6], MlxError> {
        gid::resolve(gid, &self.gids(), &self.shared.found.neighbours)
    }

    /// Returns the peers whose MAC was configured.
    pub fn neighbours(&self) -> &[(IpAddr, [u8; 6])] {
        &self.shared.found.neighbours
    }

    /// Returns the entry of our address with this GID, if it is one of ours.
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

    /// Returns our address to reach `gid` from: same IP version and scope.
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

    /// Returns the numbers of pages given and returned so far.
    pub fn page_counts(&self) -> PageCounts {
        self.shared.lock().pages.counts()
    }

    /// Returns the number of command slots that the device still holds although their commands were given up.
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
    /// Keeps its own parts for the next instance.
    fn drop(&mut self) {
        self.own.leave(&mut self.shared.lock());
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
