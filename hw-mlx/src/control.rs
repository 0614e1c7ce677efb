//! Command execution: a caller executes one command at a time, while the device may execute many.
//!
//! A caller that waits for an answer must also handle events: the firmware may hold the command until it gets pages,
//! and requests them by an event. So a waiting caller drains the event queues, stores the answers of finished
//! commands, answers page requests on the reserved slot, checks the device's health, sleeps until the next interrupt or
//! the next deadline, and repeats.
//!
//! Before the command event queue exists, and after it is destroyed, the ownership bits are polled instead. Polling
//! also remains as a fallback: before a command is abandoned, its entry is checked once more, because the answer may
//! have arrived although its interrupt was lost.
//!
//! Every wait is bounded by the command's time limit on the function's clock.
//!
//! Several instances may wait at once, each in a thread of its own, and none holds the common lock while it sleeps.
//! An [`Exchange`] is a command in progress; [`Control::advance`] executes it as far as possible without waiting, and
//! its owner sleeps if there is no progress. An awake instance handles events for all instances, and wakes those whose
//! answers or events it has read ([`Listeners::wake`]).
//!
//! Commands that end the device's use of memory ([`ends_access`]) must be answered. If one is not, the driver cannot
//! determine which memory the device still accesses, and no later event reports it. Then bus mastering is disabled, and
//! the device counts as dead. If the device *refuses* such a command, nothing has changed, and the caller continues.
//! The same applies to MODIFY_CQ, which moves a completion queue to another ring, if its outcome is unknown. The device
//! may then write either ring, and completions would be lost.
//!
//! When the device dies, bus mastering is disabled first: from then on its memory is ours again. Commands then fail
//! without being sent. Only commands that end the device's use of memory (destroy an object, 2ERR, 2RST) or release the
//! function (MANAGE_PAGES, TEARDOWN_HCA, DISABLE_HCA) succeed, if the device cannot access memory any more. So the
//! owners of the objects can unwind (mlx5_core does the same, `cmd.c` `mlx5_internal_err_ret_value`).

mod objects;

use std::sync::Arc;
use std::time::Duration;

use driver::{Block, Clock, DmaArena, Function, Instant, Interrupt};
use tracing::field;
use zerocopy::FromBytes;

use crate::broken::BrokenQueues;
use crate::cmd::queue::object_of;
use crate::cmd::{CommandQueue, SlotClass, SubmitError, Ticket};
use crate::eq::{Eq, Ring};
use crate::error::{CmdError, DeadCause, MlxError};
use crate::event::{AsyncEvent, Completions, Meaning, decode};
use crate::health::{Health, Heard, Verdict};
use crate::instance::{Listeners, Parts};
use crate::pages::Pages;
use crate::report::Loss;
use mlx_prm::{Command, InitSegment, NopIn, NopOut, Opcode};
pub(crate) use objects::{Known, Objects};

/// Shortest and longest pause between two reads of an ownership bit; the first pause is the shortest.
const SHORTEST_PAUSE: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Time limit for a device that may be dead to answer a NOP command.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);

/// A pending test of a device that may be dead.
pub(crate) struct LivenessProbe {
    /// Ticket of the NOP command; `None` while it cannot be posted, because no slot is free or memory is short.
    ticket: Option<Ticket>,
    /// Number of commands that the device had returned when the test began. If the NOP cannot be posted, the return of
    /// any other command shows that the device is alive.
    returned: u64,
    /// Time at which the device counts as dead if it has not answered.
    until: Instant,
}

/// A sender of commands: a function during bring-up, or an instance of one.
pub(crate) trait Commands {
    /// Sends a whole message and waits for the first `out_bytes` bytes of the answer.
    fn exec_message(
        &mut self,
        class: SlotClass,
        input: &[u8],
        out_bytes: usize,
    ) -> Result<Vec<u8>, CmdError>;

    /// Sends a command and waits for its answer.
    fn exec<C: Command>(&mut self, input: &C) -> Result<C::Out, CmdError> {
        self.exec_with(input, &[])
    }

    /// Executes a command with `tail` (a page list, a register image) after the input's fixed part.
    fn exec_with<C: Command>(&mut self, input: &C, tail: &[u8]) -> Result<C::Out, CmdError> {
        self.exec_reading(input, tail, 0).map(|(output, _)| output)
    }

    /// Executes a command with `tail`. Also returns the `extra_out_bytes` bytes that follow the output's fixed part.
    fn exec_reading<C: Command>(
        &mut self,
        input: &C,
        tail: &[u8],
        extra_out_bytes: usize,
    ) -> Result<(C::Out, Vec<u8>), CmdError> {
        let fixed = size_of::<C::Out>();
        let answer = self.exec_message(
            SlotClass::Ordinary,
            &message(input, tail),
            fixed + extra_out_bytes,
        )?;
        let (output, rest) = typed::<C>(&answer)?;
        Ok((output, rest.to_vec()))
    }
}

/// Runs `wait`, which waits for a command, inside a tracing span that records the result.
pub(crate) fn in_span<T>(
    function: &str,
    instance: Option<usize>,
    opcode: Opcode,
    wait: impl FnOnce() -> Result<T, CmdError>,
) -> Result<T, CmdError> {
    let span = tracing::debug_span!(
        "command",
        function,
        instance,
        ?opcode,
        status = field::Empty
    );
    let entered = span.enter();
    let answer = wait();
    match &answer {
        Ok(_) => span.record("status", "OK"),
        Err(error) => span.record("status", field::display(error)),
    };
    drop(entered);
    answer
}

/// A command in progress, from its input to its answer.
pub(crate) struct Exchange<'a> {
    class: SlotClass,
    input: &'a [u8],
    out_bytes: usize,
    begun: Instant,
    /// Deadline of the current wait: first for a slot, then for the answer.
    limit: Instant,
    /// Common deadline of all commands of the owner, if they have one.
    over_at: Option<Instant>,
    ticket: Option<Ticket>,
    /// Number of the instance that waits for the answer; `None` for a caller without an instance.
    owner: Option<usize>,
    pause: Duration,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(class: SlotClass, input: &'a [u8], out_bytes: usize) -> Self {
        Self {
            class,
            input,
            out_bytes,
            begun: Instant(0),
            limit: Instant(0),
            over_at: None,
            ticket: None,
            owner: None,
            pause: SHORTEST_PAUSE,
        }
    }

    /// Makes an exchange for a command that was already posted.
    pub(crate) fn posted(ticket: Ticket, out_bytes: usize) -> Self {
        Self {
            ticket: Some(ticket),
            ..Self::new(SlotClass::Ordinary, &[], out_bytes)
        }
    }

    /// Sets the instance that owns the exchange.
    pub(crate) const fn by(self, owner: usize) -> Self {
        Self {
            owner: Some(owner),
            ..self
        }
    }

    pub(crate) fn opcode(&self) -> Opcode {
        self.ticket
            .map_or_else(|| opcode_of(self.input), |ticket| ticket.opcode())
    }

    /// Returns the third word of the command ([`object_of`]).
    pub(crate) fn object(&self) -> u32 {
        self.ticket
            .map_or_else(|| object_of(self.input), |ticket| ticket.object())
    }

    /// Gives the command up, because its owner no longer waits.
    pub(crate) fn abandon(&mut self, control: &mut Control) {
        if let Some(ticket) = self.ticket.take() {
            let now = control.now();
            control.queue.abandon(ticket, now);
            control.wake_for_slot();
        }
    }

    /// Returns the time until which the owner may sleep if there is no progress.
    pub(crate) const fn until(&self) -> Instant {
        self.limit
    }
}

/// The firmware side of a function: commands, events, pages and health.
pub(crate) struct Control {
    pub(crate) function: Function,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) arena: DmaArena,
    pub(crate) registers: Block<InitSegment>,
    /// Eventfds of the device's vectors, then those of the system's notices about the function.
    pub(crate) interrupts: Vec<Interrupt>,
    /// Number of interrupt vectors that are enabled; their eventfds come first in `interrupts`.
    pub(crate) vectors: usize,
    pub(crate) queue: CommandQueue,
    pub(crate) pages: Pages,
    pub(crate) health: Health,
    /// Instances of the function, with their events.
    pub(crate) listeners: Listeners,
    /// Numbers of completion queues that events of the shared event queues have named.
    pub(crate) completions: Completions,
    pub(crate) objects: Objects,
    /// Objects that this process knows by their numbers, while a resumption is unfinished.
    pub(crate) resumed: Option<Known>,
    /// Event queues that all instances use; the first one carries command completions.
    pub(crate) eqs: Vec<Eq>,
    /// Parts of instances that have ended, for reuse by later ones.
    pub(crate) spare: Vec<Parts>,
    /// Rings that are no longer read but that the device may still write.
    pub(crate) orphaned_rings: Vec<Ring>,
    /// True if the device reports answers by events; otherwise the entries are polled.
    pub(crate) event_mode: bool,
    /// True if the last instance has ended or is ending: no other can be made.
    pub(crate) closed: bool,
    /// True while an instance brings the function to its quiet point: threads without an instance begin no command.
    pub(crate) is_parking: bool,
    /// Number of commands of threads without an instance.
    pub(crate) readers: usize,
    /// Slot queues that have failed.
    pub(crate) broken: BrokenQueues,
    /// True once the system has requested the function back.
    pub(crate) requested: bool,
    /// True if the link is up according to the last event.
    pub(crate) link_up: bool,
    /// True if an instance waits for a command slot.
    pub(crate) slot_wanted: bool,
    /// True if the health counter is expected to advance.
    pub(crate) watch_health: bool,
    /// Number of the counter set of our queue pairs, if the device has counter sets.
    pub(crate) counter_set: Option<u32>,
    /// Features that are lost, because the firmware refused an optional command or did not keep a setting.
    pub(crate) losses: Vec<Loss>,
    /// Pending NOP command whose answer shows whether the device is alive.
    pub(crate) probe: Option<LivenessProbe>,
    /// True if the function is that of the adapter's own processor. Commands about the function must then state this
    /// (`embedded_cpu_function`).
    pub(crate) embedded_cpu: bool,
    /// Time limit for the firmware to return the next page, while it still holds some.
    pub(crate) reclaim_limit: Duration,
    pub(crate) timeout: Duration,
    /// Common deadline of all commands, if they have one ([`Control::one_limit`]).
    pub(crate) over_at: Option<Instant>,
    /// True while the device may access memory.
    pub(crate) bus_master: bool,
    /// True if we have stopped the device. Its queue pairs still exist, and the function is reset on drop. It is not
    /// reset earlier, because doorbells of requests that are posted until then would reach a function that is being
    /// reset.
    pub(crate) stopped: bool,
}

impl Commands for Control {
    /// Executes a command during bring-up and teardown, when there is no instance.
    fn exec_message(
        &mut self,
        class: SlotClass,
        input: &[u8],
        out_bytes: usize,
    ) -> Result<Vec<u8>, CmdError> {
        let name = self.function.name().to_owned();
        in_span(&name, None, opcode_of(input), || {
            let mut exchange = Exchange::new(class, input, out_bytes);
            self.begin(&mut exchange, self.over_at);
            loop {
                if let Some(answer) = self.advance(&mut exchange) {
                    return answer;
                }
                self.rest(&mut exchange);
            }
        })
    }
}

impl Control {
    /// Converts the refusal of a command that is not essential to `None`, and records the lost feature.
    ///
    /// # Errors
    /// Any error that is not a refusal.
    pub(crate) fn optional<T, E: Into<MlxError>>(
        &mut self,
        lost: &'static str,
        outcome: Result<T, E>,
    ) -> Result<Option<T>, MlxError> {
        match outcome.map_err(Into::into) {
            Err(MlxError::Cmd(error)) if error.status().is_some() => {
                self.lose(lost, error.to_string());
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Records that the function lacks a feature. The same loss is recorded and logged only once.
    pub(crate) fn lose(&mut self, lost: &'static str, why: String) {
        let loss = Loss {
            why,
            lost: lost.to_owned(),
        };
        if self.losses.contains(&loss) {
            return;
        }
        let Loss { why, .. } = &loss;
        tracing::warn!(
            function = self.function.name(),
            lost,
            why,
            "going on without"
        );
        self.losses.push(loss);
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sets the time limits of a command that begins now. If the owner's common deadline has already passed, stops the
    /// device.
    pub(crate) fn begin(&mut self, exchange: &mut Exchange<'_>, over_at: Option<Instant>) {
        exchange.begun = self.now();
        exchange.over_at = over_at;
        exchange.limit = self.limit(over_at);
        if exchange.ticket.is_none() {
            self.is_over(over_at);
        }
    }

    /// Executes a command as far as possible without waiting. Returns `None` if there is no progress; the owner may
    /// then sleep until [`Exchange::until`].
    pub(crate) fn advance(
        &mut self,
        exchange: &mut Exchange<'_>,
    ) -> Option<Result<Vec<u8>, CmdError>> {
        let (opcode, object) = (exchange.opcode(), exchange.object());
        let answer = loop {
            let Some(ticket) = exchange.ticket else {
                match self.post(exchange)? {
                    Ok(_) => continue,
                    Err(error @ CmdError::Dead { .. }) => {
                        let unwound = self.unwind(opcode, object, exchange.out_bytes);
                        break unwound.ok_or(error);
                    }
                    Err(error) => break Err(error),
                }
            };
            self.serve(None);
            if let Some(answer) = self.answer(ticket, exchange.out_bytes) {
                break answer;
            }
            if self.now() >= exchange.limit {
                break self.give_up(ticket, exchange.out_bytes);
            }
            if !self.serve(None) {
                return None;
            }
        };
        Some(match answer {
            Err(error) if self.health.dead().is_none() && !error.is_refusal() => {
                if ends_access(opcode) || moves_ring(opcode) && error.outcome_unknown() {
                    tracing::error!(%error, "it is unknown which memory the device accesses");
                    self.stop(DeadCause::Unended { opcode });
                } else if !self.is_over(exchange.over_at) {
                    return Some(Err(error));
                }
                self.unwind(opcode, object, exchange.out_bytes).ok_or(error)
            }
            answer => answer,
        })
    }

    /// Posts a command. Returns `None` if there is no free slot yet.
    pub(crate) fn post(&mut self, exchange: &mut Exchange<'_>) -> Option<Result<Ticket, CmdError>> {
        let opcode = exchange.opcode();
        loop {
            if let Some(cause) = self.health.dead() {
                return Some(Err(CmdError::Dead { opcode, cause }));
            }
            let now = self.now();
            let submitted =
                self.queue
                    .submit(exchange.class, exchange.input, exchange.out_bytes, now);
            return Some(match submitted {
                Ok(ticket) => {
                    if let Some(owner) = exchange.owner {
                        self.listeners.waits_for(owner, ticket.slot());
                    }
                    exchange.ticket = Some(ticket);
                    exchange.limit = self.limit(exchange.over_at);
                    exchange.pause = SHORTEST_PAUSE;
                    Ok(ticket)
                }
                Err(SubmitError::Memory(error)) => Err(CmdError::Memory { opcode, error }),
                Err(SubmitError::NoSlot) if now >= exchange.limit => Err(CmdError::NoSlot {
                    opcode,
                    waited_ms: milliseconds(now - exchange.begun),
                    quarantined: self.queue.quarantined(),
                }),
                Err(SubmitError::NoSlot) if self.serve(None) => continue,
                Err(SubmitError::NoSlot) => {
                    self.slot_wanted = true;
                    return None;
                }
            });
        }
    }

    /// Enables or disables a common time limit: while enabled, all commands together have the time limit of one
    /// command. When it expires, the device is stopped.
    pub(crate) fn one_limit(&mut self, on: bool) {
        let at = self.one_limit_from_now();
        self.over_at = on.then(|| self.over_at.unwrap_or(at));
    }

    /// Returns the common deadline for commands that together have the time limit of one.
    pub(crate) fn one_limit_from_now(&self) -> Instant {
        self.now() + self.timeout
    }

    /// Stops the device if the common deadline has passed. Returns whether it has.
    fn is_over(&mut self, over_at: Option<Instant>) -> bool {
        let over = over_at.is_some_and(|at| self.now() >= at);
        if over {
            self.stop(DeadCause::Stopped {
                why: "commands with a common deadline took longer than one command may",
            });
        }
        over
    }

    /// Returns the deadline for the answer of a command that is posted now.
    fn limit(&self, over_at: Option<Instant>) -> Instant {
        let one = self.now() + self.timeout;
        over_at.map_or(one, |over| over.min(one))
    }

    /// Returns the answer to a posted command, if it has been read. If the device has died meanwhile, returns the
    /// outcome for a dead device.
    pub(crate) fn answer(
        &mut self,
        ticket: Ticket,
        out_bytes: usize,
    ) -> Option<Result<Vec<u8>, CmdError>> {
        let now = self.now();
        if let Some(answer) = self.queue.take(ticket, now) {
            self.wake_for_slot();
            if let Ok(answer) = &answer {
                self.count_objects(ticket.opcode(), ticket.object(), object_of(answer));
            }
            return Some(answer);
        }
        let cause = self.health.dead()?;
        let opcode = ticket.opcode();
        self.queue.abandon(ticket, now);
        Some(
            self.unwind(opcode, ticket.object(), out_bytes)
                .ok_or(CmdError::Dead { opcode, cause }),
        )
    }

    /// Abandons a command whose time limit has expired. Returns the answer if it has arrived and only its interrupt was
    /// lost.
    fn give_up(&mut self, ticket: Ticket, out_bytes: usize) -> Result<Vec<u8>, CmdError> {
        self.harvest_all();
        if let Some(answer) = self.answer(ticket, out_bytes) {
            tracing::warn!(opcode = ?ticket.opcode(), "answered without an event");
            return answer;
        }
        Err(match self.queue.abandon(ticket, self.now()) {
            Some((opcode, op_mod, waited_ms)) => CmdError::TimedOut {
                opcode,
                op_mod,
                slot: ticket.slot(),
                waited_ms,
            },
            None => CmdError::TimedOut {
                opcode: ticket.opcode(),
                op_mod: 0,
                slot: ticket.slot(),
                waited_ms: 0,
            },
        })
    }

    /// Sleeps once while waiting for a command; used if there is no instance.
    fn rest(&mut self, exchange: &mut Exchange<'_>) {
        if self.event_mode {
            self.sleep(exchange.limit);
        } else {
            // There are no events, so the sensors that show a dead device are read in every iteration.
            self.update_health(true);
            let until = exchange.limit.min(self.now() + exchange.pause);
            self.clock.wait(&[], until);
            exchange.pause = LONGEST_PAUSE.min(exchange.pause * 2);
        }
        self.update_health(false);
    }

    /// Sleeps until an interrupt, the deadline, or the next health check.
    pub(crate) fn sleep(&mut self, deadline: Instant) {
        let until = deadline.min(self.health.next_poll());
        if self.clock.wait(&self.interrupts, until) {
            let mut fired = false;
            for interrupt in &self.interrupts[..self.vectors] {
                fired |= interrupt.take() > 0;
            }
            if !fired {
                self.hear();
            }
        }
    }

    /// Handles the system's notices about the function.
    pub(crate) fn hear(&mut self) {
        match self.health.hear() {
            Some(Heard::Death) => self.mark_dead(),
            Some(Heard::Request) => {
                tracing::warn!(
                    function = self.function.name(),
                    "the system wants the function back"
                );
                // `health.hear` has removed the notice, because an eventfd that is signalled again would only keep
                // waits from sleeping.
                self.interrupts.truncate(self.vectors);
                self.interrupts.extend(self.health.notices().cloned());
                self.requested = true;
                self.push_event(AsyncEvent::DeviceRequested);
            }
            None => {}
        }
    }

    /// Polls the device's health if that is due. If `now` is set, reads only the sensors that need no history, at once.
    pub(crate) fn update_health(&mut self, now: bool) {
        let verdict = if now {
            if self.health.check() {
                Verdict::Dead
            } else {
                Verdict::Well
            }
        } else {
            let now = self.clock.now();
            if now >= self.health.next_poll() {
                self.hear(); // a caller that never sleeps gets the notices here
            }
            if self.event_mode && now >= self.health.next_poll() && self.queue.in_flight() > 0 {
                self.harvest_all(); // an interrupt may have been lost
            }
            self.health.poll(now, self.watch_health)
        };
        match verdict {
            Verdict::Well => self.check_liveness_probe(),
            Verdict::Doubtful => self.send_liveness_probe(),
            Verdict::Dead => self.mark_dead(),
        }
    }

    /// Sends a NOP command, unless one is pending; [`Control::check_liveness_probe`] evaluates the result. Does not
    /// wait, because the caller may be waiting for another command.
    fn send_liveness_probe(&mut self) {
        if self.probe.is_some() {
            return self.check_liveness_probe();
        }
        let now = self.now();
        self.probe = Some(LivenessProbe {
            ticket: self.post_probe(now),
            returned: self.queue.returned(),
            until: now + LIVENESS_TIMEOUT,
        });
    }

    /// Posts the NOP command of a probe. Returns `None` if no slot is free or there is no memory for the command.
    fn post_probe(&mut self, now: Instant) -> Option<Ticket> {
        let nop = message(&NopIn::new(), &[]);
        let class = SlotClass::Ordinary;
        self.queue.submit(class, &nop, NopOut::SIZE, now).ok()
    }

    fn check_liveness_probe(&mut self) {
        let Some(probe) = &self.probe else { return };
        let (ticket, returned, until) = (probe.ticket, probe.returned, probe.until);
        let now = self.now();
        let is_alive = match ticket {
            Some(ticket) => self.queue.take(ticket, now).is_some(),
            None => self.queue.returned() != returned,
        };
        if is_alive {
            self.wake_for_slot();
            self.probe = None;
            self.health.answered();
        } else if ticket.is_none()
            && let Some(ticket) = self.post_probe(now)
        {
            // The device has the whole time for this command.
            self.probe = Some(LivenessProbe {
                ticket: Some(ticket),
                returned,
                until: now + LIVENESS_TIMEOUT,
            });
        } else if now >= until {
            self.probe = None;
            if let Some(ticket) = ticket {
                self.queue.abandon(ticket, now);
            }
            self.health.unanswered();
            self.mark_dead();
        }
    }

    /// Logs and reports the death of the device, and disables its bus mastering.
    fn mark_dead(&mut self) {
        let Some(cause) = self.health.dead() else {
            return;
        };
        tracing::error!(function = self.function.name(), %cause, "the device is dead");
        // `bus_master` is false until a resumption has confirmed the tables. A process that may still refuse the
        // function does not stop its DMA.
        if self.bus_master {
            self.stop_dma();
        }
        self.push_event(AsyncEvent::DeviceDead { cause });
    }

    /// Stops the device, even if it does not answer, so that it no longer accesses memory. It counts as dead from then
    /// on.
    pub(crate) fn stop(&mut self, cause: DeadCause) {
        let died_before = self.health.dead().is_some();
        self.stopped = true;
        self.health.stopped(cause);
        if !died_before {
            tracing::error!(function = self.function.name(), %cause, "the device is stopped");
        }
        self.stop_dma();
        if self.bus_master {
            self.stop_function();
        }
        if !died_before {
            self.push_event(AsyncEvent::DeviceDead { cause });
        }
    }

    /// Disables bus mastering and resets the function, so that its queue pairs stop answering.
    fn stop_function(&mut self) {
        match self.function.stop() {
            Ok(()) => self.bus_master = false,
            Err(error) => {
                tracing::error!(function = self.function.name(), %error, "cannot be stopped");
            }
        }
    }

    /// Disables bus mastering. On a function that has left the bus this fails, but such a function cannot access memory
    /// either.
    pub(crate) fn stop_dma(&mut self) {
        match self.function.set_bus_master(false) {
            Ok(()) => self.bus_master = false,
            Err(error) => {
                tracing::error!(function = self.function.name(), %error, "cannot switch bus mastering off")
            }
        }
    }

    /// Drains the event queues, or checks the command entries if there are no event queues, and answers page requests.
    /// Returns true if it handled an event or a page request. Wakes the instances that must react. Events of shared
    /// completion queues wake no instance if `here` is an instance's number, because this instance handles them next.
    /// If `here` is `None`, because the caller waits for a command, they wake all instances.
    pub(crate) fn serve(&mut self, here: Option<usize>) -> bool {
        if self.health.dead().is_some() {
            return false;
        }
        let (mut handled, mut for_all) = (false, false);
        if self.event_mode {
            for eq in &mut self.eqs {
                // One call handles at most a full ring of entries. The next call handles those written meanwhile.
                for _ in 0..eq.entries() {
                    let Some(eqe) = eq.poll() else { break };
                    handled = true;
                    match decode(&eqe) {
                        Meaning::Commands(vector) => {
                            let done = self.queue.harvest(vector);
                            self.listeners.answered(done);
                        }
                        Meaning::Pages(request) => self.pages.request(request),
                        // The queue is shared, so the first instance that polls handles the event.
                        Meaning::Completion(cqn) => {
                            let kept = self.completions.note(cqn);
                            if let Some(inbox) = here.and_then(|here| self.listeners.inbox(here)) {
                                inbox.call();
                            } else {
                                self.listeners.call_all();
                                for_all = true;
                            }
                            if !kept {
                                self.listeners.lose();
                                for_all = true;
                            }
                        }
                        Meaning::Async(event) => {
                            tracing::debug!(?event, eqn = ?eq.eqn(), "asynchronous event");
                            match event {
                                AsyncEvent::PortUp => self.link_up = true,
                                AsyncEvent::PortDown => self.link_up = false,
                                AsyncEvent::PortChange { .. }
                                | AsyncEvent::CommEstablished { .. }
                                | AsyncEvent::SqDrained { .. }
                                | AsyncEvent::QpError { .. }
                                | AsyncEvent::SrqLastWqe { .. }
                                | AsyncEvent::CqError { .. }
                                | AsyncEvent::SrqLimit { .. }
                                | AsyncEvent::SrqError { .. }
                                | AsyncEvent::DeviceDead { .. }
                                | AsyncEvent::DeviceRequested
                                | AsyncEvent::Network(_)
                                | AsyncEvent::AddressRemoved { .. }
                                | AsyncEvent::EventsLost { .. }
                                | AsyncEvent::Other { .. } => {}
                            }
                            self.queue.recorder().event(self.clock.now(), &event);
                            self.listeners.push_event(event);
                            for_all = true;
                        }
                    }
                }
                eq.arm();
            }
        } else {
            self.harvest_all();
        }
        if self.pages.busy() {
            let now = self.clock.now();
            handled |= self.pages.pump(&mut self.queue, now, self.timeout);
        }
        if for_all {
            self.listeners.wake();
        }
        self.wake_for_slot();
        handled
    }

    /// Reads all answers that have come, and wakes the instances that wait for them, or for a command slot. Used where
    /// there are no events, and where an interrupt may have been lost.
    fn harvest_all(&mut self) {
        let done = self.queue.harvest(u32::MAX);
        self.listeners.answered(done);
        self.wake_for_slot();
    }

    /// Wakes the instances that wait for a command slot, if one is free. Instances wait only for ordinary slots. Only
    /// bring-up and teardown, when there is no instance, wait for the reserved slot.
    fn wake_for_slot(&mut self) {
        if self.slot_wanted && self.queue.has_free_slot() {
            self.slot_wanted = false;
            self.listeners.wake();
        }
    }

    /// Adds an event to the recorder and to the queue of every instance, and wakes the sleeping instances.
    pub(crate) fn push_event(&mut self, event: AsyncEvent) {
        self.queue.recorder().event(self.now(), &event);
        self.listeners.push_event(event);
        self.listeners.wake();
    }

    /// Returns the next event of an instance. After a loss of events, adds again those that an instance must not miss.
    pub(crate) fn next_event(&mut self, number: usize) -> Option<AsyncEvent> {
        let inbox = self.listeners.inbox(number)?;
        let event = inbox.pop();
        if matches!(event, Some(AsyncEvent::EventsLost { .. })) {
            // One of the lost events may have been about the port.
            inbox.push(if self.link_up {
                AsyncEvent::PortUp
            } else {
                AsyncEvent::PortDown
            });
            if self.requested {
                inbox.push(AsyncEvent::DeviceRequested);
            }
            if let Some(cause) = self.health.dead() {
                inbox.push(AsyncEvent::DeviceDead { cause });
            }
        }
        event
    }

    /// Returns the completion vector that the fewest instances use.
    pub(crate) fn least_used_vector(&self) -> usize {
        (usize::from(self.vectors > 1)..self.vectors)
            .min_by_key(|vector| self.listeners.on_vector(*vector))
            .unwrap_or(0)
    }

    /// Returns the answer of a command on a dead device. Commands that end its use of memory or release the function
    /// succeed, because the device can no longer access memory. If the device still may (bus mastering could not be
    /// disabled, and the function is still on the bus), they fail, and the memory is kept.
    fn unwind(&mut self, opcode: Opcode, object: u32, out_bytes: usize) -> Option<Vec<u8>> {
        let out_of_reach = !self.bus_master || self.health.dead() == Some(DeadCause::Gone);
        let unwinds = out_of_reach && (ends_access(opcode) || STOPS.contains(&opcode));
        unwinds.then(|| {
            self.count_objects(opcode, object, 0);
            vec![0; out_bytes]
        })
    }

    /// Counts the effect of a command on the number of objects. `input` and `answer` are the third words of the command
    /// and of its answer.
    fn count_objects(&mut self, opcode: Opcode, input: u32, answer: u32) {
        self.objects.count(opcode);
        if let Some(known) = &mut self.resumed {
            known.note(opcode, input, answer);
        }
    }

    /// Counts an object that was resumed, by the command that creates its kind and its number. Returns false if it was
    /// resumed before, or if no resumption is unfinished.
    #[must_use]
    pub(crate) fn count_resumed(&mut self, creates: Opcode, number: u32) -> bool {
        let known = self.resumed.as_mut();
        known.is_some_and(|known| known.resume(creates, number))
    }
}

impl Drop for Control {
    /// Stops the device, because it must not write to the memory that is freed next.
    fn drop(&mut self) {
        if !self.bus_master && !self.stopped {
            return;
        }
        // The function was not torn down, so its queue pairs would continue to answer their peers.
        self.stop_function();
        if self.bus_master && self.function.lost().is_none() {
            // The device could not be stopped, so the arena stays mapped and its memory is never used again.
            tracing::error!(
                function = self.function.name(),
                "the device cannot be stopped; its memory is leaked"
            );
            std::mem::forget(self.arena.clone());
        }
    }
}

/// Opcodes of the commands that release the function; they succeed on a dead device without being sent.
const STOPS: [Opcode; 3] = [
    Opcode::TEARDOWN_HCA,
    Opcode::DISABLE_HCA,
    Opcode::MANAGE_PAGES,
];

/// Returns whether a command ends the device's use of memory, or of an object that refers to memory.
fn ends_access(opcode: Opcode) -> bool {
    Objects::destroys(opcode) || [Opcode::TO_ERR_QP, Opcode::TO_RST_QP].contains(&opcode)
}

/// Returns whether a command moves a queue to another ring. This driver sends MODIFY_CQ only to resize.
fn moves_ring(opcode: Opcode) -> bool {
    opcode == Opcode::MODIFY_CQ
}

/// Returns a command as bytes: the fixed part with its opcode, then `tail`.
pub(crate) fn message<C: Command>(input: &C, tail: &[u8]) -> Vec<u8> {
    let mut bytes = input.as_bytes().to_vec();
    bytes[..2].copy_from_slice(&C::OPCODE.0.to_be_bytes());
    bytes.extend_from_slice(tail);
    bytes
}

/// Returns the opcode of a message, which is in its first two bytes.
pub(crate) fn opcode_of(input: &[u8]) -> Opcode {
    Opcode(
        input
            .iter()
            .take(2)
            .fold(0, |value, byte| value << 8 | u16::from(*byte)),
    )
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Splits an answer into its fixed part and the rest. The answer has the requested length, regardless of how much the
/// device wrote.
pub(crate) fn typed<C: Command>(answer: &[u8]) -> Result<(C::Out, &[u8]), CmdError> {
    C::Out::read_from_prefix(answer).map_err(|_| CmdError::ShortAnswer {
        opcode: C::OPCODE,
        bytes: answer.len(),
        fixed: size_of::<C::Out>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_short_is_called_that() {
        let Err(error) = typed::<NopIn>(&[0; 7]) else {
            panic!("8 bytes at least");
        };
        assert_eq!(
            error.to_string(),
            "NOP (0x80d): 7 bytes of its answer were asked for, it has 16"
        );
        assert!(error.outcome_unknown() && !error.is_refusal() && error.status().is_none());
    }
}
