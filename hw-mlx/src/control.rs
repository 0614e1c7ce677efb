//! Command execution: one command at a time for the caller, everything at once for the device.
//!
//! A caller that waits for an answer must also handle events: the firmware may hold the command until it gets pages,
//! and asks for them by event. So waiting *is* serving: drain the event queues, hand finished commands to their
//! tickets, answer page requests on the reserved slot, check the device's health, sleep until the next interrupt or
//! the next of these deadlines, and repeat.
//!
//! Before the command event queue exists, and after it is gone, the ownership bits are polled instead. Polling also
//! remains as a fallback: before a command is given up, its entry is checked once more, because an interrupt may have
//! been lost and the answer may be there.
//!
//! Every wait is bounded by the command's time limit on the function's clock.
//!
//! Several instances may wait at once, each in a thread of its own, and none holds the shared lock while it sleeps.
//! An [`Exchange`] is a command on its way; [`Control::advance`] takes it as far as it goes without waiting, and its
//! owner sleeps where there is no progress. An awake instance handles events for all, and wakes the instances whose
//! answers or events it took in ([`Listeners::wake`]).
//!
//! Commands that end the device's use of memory ([`ends_access`]) must be answered. If one is not, the memory that
//! the device still reaches is unknown, and no later event would tell it. Then bus mastering is switched off, and the
//! device is dead. If the device *refuses* such a command, nothing has changed, and the caller goes on from there.
//!
//! When the device dies, bus mastering is switched off first: from that moment its memory is ours again. Commands
//! then fail without being sent, except those that destroy: they succeed, so that the owners of objects can unwind
//! (mlx5_core does the same, `cmd.c` `mlx5_internal_err_ret_value`).

use std::sync::Arc;
use std::time::Duration;

use driver::{Block, Clock, DmaArena, Function, Instant, Interrupt};
use tracing::field;
use zerocopy::FromBytes;

use crate::cmd::{CommandQueue, SlotClass, SubmitError, Ticket};
use crate::eq::{Eq, Ring};
use crate::error::{CmdError, DeadCause, MlxError};
use crate::event::{AsyncEvent, Completions, Meaning, decode};
use crate::health::{Health, Heard, Verdict};
use crate::instance::{Listeners, Parts};
use crate::pages::Pages;
use crate::report::Loss;
use mlx_prm::{Command, InitSegment, NopIn, NopOut, Opcode};

/// First and longest pause between two reads of an ownership bit.
const SHORTEST_PAUSE: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Time that a device whose life is in doubt has to answer a command that does nothing.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// A probe of a device that looks dead.
pub(crate) struct Doubt {
    /// The command; `None` if there was no free slot.
    ticket: Option<Ticket>,
    /// Time at which the device counts as dead.
    until: Instant,
}

/// A sender of commands: a function during bring-up, or an instance of one.
pub(crate) trait Commands {
    /// Sends a whole message and waits for the answer, `out_bytes` of it.
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

    /// Executes a command with `tail`, and also returns `extra_out_bytes` that follow the output's fixed part.
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

/// Waits for a command inside a span of the log, which reports the result.
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

/// A command on its way from input to answer.
pub(crate) struct Exchange<'a> {
    class: SlotClass,
    input: &'a [u8],
    out_bytes: usize,
    begun: Instant,
    /// Deadline of the current wait: for a slot, then for the answer.
    limit: Instant,
    /// Deadline of all commands of the owner together, if they have one limit.
    over_at: Option<Instant>,
    ticket: Option<Ticket>,
    /// The instance that waits for the answer, by number.
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

    /// Makes an exchange for a command that was posted before.
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

    /// Ends the exchange because its owner no longer waits.
    pub(crate) fn leave(&mut self, control: &mut Control) {
        if let Some(ticket) = self.ticket.take() {
            let now = control.now();
            control.queue.abandon(ticket, now);
        }
    }

    /// Returns until when the owner may sleep if there is no progress.
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
    /// The device's vectors, then the system's notices about the function.
    pub(crate) interrupts: Vec<Interrupt>,
    /// Number of the device's vectors.
    pub(crate) vectors: usize,
    pub(crate) queue: CommandQueue,
    pub(crate) pages: Pages,
    pub(crate) health: Health,
    /// The instances.
    pub(crate) listeners: Listeners,
    /// Completion queues named by events of the shared event queues.
    pub(crate) completions: Completions,
    pub(crate) objects: Objects,
    /// Event queues that all instances share, the one that carries command completions first.
    pub(crate) eqs: Vec<Eq>,
    /// Parts of ended instances, for later ones.
    pub(crate) spare: Vec<Parts>,
    /// Rings that the device may still write although they are no longer read.
    pub(crate) orphaned_rings: Vec<Ring>,
    /// True if answers come by event.
    pub(crate) event_mode: bool,
    /// True if the last instance has ended or is ending: no other can be made.
    pub(crate) closed: bool,
    /// True if the system has said that it wants the function back.
    pub(crate) requested: bool,
    /// True if the link is up, as far as events have told.
    pub(crate) link_up: bool,
    /// True if an instance waits for a command slot.
    pub(crate) wanting: bool,
    /// True if the health counter is expected to move.
    pub(crate) watch_health: bool,
    /// Counter set of our queue pairs, if the device has counter sets.
    pub(crate) counter_set: Option<u32>,
    /// Optional features that the firmware refused during bring-up.
    pub(crate) losses: Vec<Loss>,
    /// A command whose answer shows whether a device in doubt is alive.
    pub(crate) doubt: Option<Doubt>,
    /// True if the function is that of the adapter's own processor, which commands about it have to state.
    pub(crate) embedded_cpu: bool,
    /// Time without a returned page after which the firmware is given up while it holds some.
    pub(crate) reclaim_limit: Duration,
    pub(crate) timeout: Duration,
    /// Deadline of all commands together, if they have one limit ([`Control::one_limit`]).
    pub(crate) over_at: Option<Instant>,
    /// True while the device may reach memory.
    pub(crate) bus_master: bool,
    /// True if we have stopped the device. Its queue pairs still exist, and the function is reset in the end. It is
    /// not reset earlier: doorbells of requests posted until then would reach a function that is just coming up.
    pub(crate) stopped: bool,
}

impl Commands for Control {
    /// Used in bring-up and teardown, when there is no instance.
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
    /// Accepts the refusal of a command that is not essential: records the loss, and returns `None`.
    ///
    /// # Errors
    /// Anything but a refusal.
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

    /// Records that the function does without a feature. A repeated refusal is logged once.
    pub(crate) fn lose(&mut self, lost: &'static str, why: String) {
        let loss = Loss { why, lost };
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

    /// Sets the time limits of a command that begins now.
    pub(crate) fn begin(&mut self, exchange: &mut Exchange<'_>, over_at: Option<Instant>) {
        exchange.begun = self.now();
        exchange.over_at = over_at;
        exchange.limit = self.limit(over_at);
        if exchange.ticket.is_none() {
            self.is_over(over_at);
        }
    }

    /// Takes a command as far as it goes without waiting. `None`: no progress; its owner may sleep until
    /// [`Exchange::until`].
    pub(crate) fn advance(
        &mut self,
        exchange: &mut Exchange<'_>,
    ) -> Option<Result<Vec<u8>, CmdError>> {
        let opcode = exchange.opcode();
        let answer = loop {
            let Some(ticket) = exchange.ticket else {
                match self.post(exchange)? {
                    Ok(_) => continue,
                    Err(error @ CmdError::Dead { .. }) => {
                        break self.unwind(opcode, exchange.out_bytes).ok_or(error);
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
                if ends_access(opcode) {
                    tracing::error!(%error, "nobody knows what the device reaches");
                    self.stop(DeadCause::Unended { opcode });
                } else if !self.is_over(exchange.over_at) {
                    return Some(Err(error));
                }
                self.unwind(opcode, exchange.out_bytes).ok_or(error)
            }
            answer => answer,
        })
    }

    /// Posts a command if there is a slot for it; else returns `None`.
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
                    self.wanting = true;
                    return None;
                }
            });
        }
    }

    /// While on, all commands together have the time limit of one. When it expires, the device is stopped.
    pub(crate) fn one_limit(&mut self, on: bool) {
        let at = self.one_limit_from_now();
        self.over_at = on.then(|| self.over_at.unwrap_or(at));
    }

    /// Returns the deadline for commands that together have the time limit of one.
    pub(crate) fn one_limit_from_now(&self) -> Instant {
        self.now() + self.timeout
    }

    /// Stops the device if the time limit of all commands together has expired.
    fn is_over(&mut self, over_at: Option<Instant>) -> bool {
        let over = over_at.is_some_and(|at| self.now() >= at);
        if over {
            self.stop(DeadCause::Stopped {
                why: "what had to be done in the time of one command took longer",
            });
        }
        over
    }

    /// Returns the deadline for the answer of a command that begins now.
    fn limit(&self, over_at: Option<Instant>) -> Instant {
        let one = self.now() + self.timeout;
        over_at.map_or(one, |over| over.min(one))
    }

    /// Returns the answer to a posted command, if it is there. If the device died meanwhile, the answer is that
    /// error.
    pub(crate) fn answer(
        &mut self,
        ticket: Ticket,
        out_bytes: usize,
    ) -> Option<Result<Vec<u8>, CmdError>> {
        let now = self.now();
        if let Some(answer) = self.queue.take(ticket, now) {
            self.slot_is_free();
            if answer.is_ok() {
                self.objects.count(ticket.opcode());
            }
            return Some(answer);
        }
        let cause = self.health.dead()?;
        let opcode = ticket.opcode();
        self.queue.abandon(ticket, now);
        Some(
            self.unwind(opcode, out_bytes)
                .ok_or(CmdError::Dead { opcode, cause }),
        )
    }

    /// Returns the answer of a command whose time is over: it may be there all the same, its interrupt lost.
    fn give_up(&mut self, ticket: Ticket, out_bytes: usize) -> Result<Vec<u8>, CmdError> {
        self.queue.harvest_all();
        self.listeners.answered(u32::MAX);
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

    /// Sleeps once for a command, when there is no instance.
    fn rest(&mut self, exchange: &mut Exchange<'_>) {
        if self.event_mode {
            self.sleep(exchange.limit);
        } else {
            // The caller polls: the sensors that show that no answer will come are read too.
            self.look_after_health(true);
            let until = exchange.limit.min(self.now() + exchange.pause);
            self.clock.wait(&[], until);
            exchange.pause = LONGEST_PAUSE.min(exchange.pause * 2);
        }
        self.look_after_health(false);
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

    /// Acts on the system's notices about the function.
    pub(crate) fn hear(&mut self) {
        match self.health.hear() {
            Some(Heard::Death) => self.mark_dead(),
            Some(Heard::Request) => {
                tracing::warn!(
                    function = self.function.name(),
                    "the system wants the function back"
                );
                // Each notice is given once; an eventfd that is signalled again would only keep waits from sleeping.
                self.interrupts.truncate(self.vectors);
                self.interrupts.extend(self.health.notices().cloned());
                self.requested = true;
                self.tell(AsyncEvent::DeviceRequested);
            }
            None => {}
        }
    }

    /// Polls the device's health if that is due; if `now`, reads the sensors without history in any case.
    pub(crate) fn look_after_health(&mut self, now: bool) {
        let verdict = if now {
            if self.health.check() {
                Verdict::Dead
            } else {
                Verdict::Well
            }
        } else {
            let now = self.clock.now();
            if now >= self.health.next_poll() {
                self.hear(); // for those who never sleep
            }
            if self.event_mode && now >= self.health.next_poll() && self.queue.in_flight() > 0 {
                self.queue.harvest_all(); // should an interrupt have been lost
            }
            self.health.poll(now, self.watch_health)
        };
        match verdict {
            Verdict::Well => self.settle_doubt(),
            Verdict::Doubtful => self.ask_for_a_sign_of_life(),
            Verdict::Dead => self.mark_dead(),
        }
    }

    /// Sends a command that does nothing; [`Control::settle_doubt`] evaluates the result. Does not wait, since the
    /// caller may be waiting for something else.
    fn ask_for_a_sign_of_life(&mut self) {
        if self.doubt.is_some() {
            return self.settle_doubt();
        }
        let now = self.now();
        // Without a free slot, the pending commands' answers are signs of life themselves.
        let ticket = self
            .queue
            .submit(
                SlotClass::Ordinary,
                &message(&NopIn::new(), &[]),
                NopOut::SIZE,
                now,
            )
            .ok();
        self.doubt = Some(Doubt {
            ticket,
            until: now + SIGN_OF_LIFE,
        });
    }

    fn settle_doubt(&mut self) {
        let Some(doubt) = &self.doubt else { return };
        let (ticket, until) = (doubt.ticket, doubt.until);
        let now = self.now();
        if ticket.is_some_and(|ticket| self.queue.take(ticket, now).is_some()) {
            self.slot_is_free();
            self.doubt = None;
            self.health.answered();
        } else if self.now() >= until {
            self.doubt = None;
            if let Some(ticket) = ticket {
                self.queue.abandon(ticket, self.now());
            }
            self.health.unanswered();
            self.mark_dead();
        }
    }

    /// Marks the device as dead and keeps it from reaching memory.
    fn mark_dead(&mut self) {
        let Some(cause) = self.health.dead() else {
            return;
        };
        tracing::error!(function = self.function.name(), %cause, "the device is dead");
        self.stop_dma();
        self.tell(AsyncEvent::DeviceDead { cause });
    }

    /// Ends the device's use of memory, even if it does not answer; it is dead from now on.
    pub(crate) fn stop(&mut self, cause: DeadCause) {
        let died_before = self.health.dead().is_some();
        self.stopped = true;
        self.health.stopped(cause);
        if !died_before {
            tracing::error!(function = self.function.name(), %cause, "the device is stopped");
        }
        self.stop_dma();
        if self.bus_master {
            self.cut_off();
        }
        if !died_before {
            self.tell(AsyncEvent::DeviceDead { cause });
        }
    }

    /// Switches bus mastering off and resets the function: its queue pairs stop answering.
    fn cut_off(&mut self) {
        match self.function.stop() {
            Ok(()) => self.bus_master = false,
            Err(error) => {
                tracing::error!(function = self.function.name(), %error, "cannot be stopped");
            }
        }
    }

    /// Switches bus mastering off. A function that is gone cannot be written to, and cannot reach memory either.
    pub(crate) fn stop_dma(&mut self) {
        match self.function.set_bus_master(false) {
            Ok(()) => self.bus_master = false,
            Err(error) => {
                tracing::error!(function = self.function.name(), %error, "cannot switch bus mastering off")
            }
        }
    }

    /// Drains the event queues (or checks the command entries, where there are none) and answers page requests.
    /// Returns true if there was anything. Wakes the instances concerned. For events of shared queues that is `here`
    /// alone, an instance that handles them next; without one, because a command is waited for, all instances.
    pub(crate) fn serve(&mut self, here: Option<usize>) -> bool {
        if self.health.dead().is_some() {
            return false;
        }
        let (mut handled, mut for_all) = (false, false);
        if self.event_mode {
            for eq in &mut self.eqs {
                // A ring holds no more; entries that the device writes meanwhile wait for the next turn.
                for _ in 0..eq.entries() {
                    let Some(eqe) = eq.poll() else { break };
                    handled = true;
                    match decode(&eqe) {
                        Meaning::Commands(vector) => {
                            self.queue.harvest(vector);
                            self.listeners.answered(vector);
                        }
                        Meaning::Pages(request) => self.pages.request(request),
                        // A shared queue: the first instance to look takes it.
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
                            self.listeners.tell(event);
                            for_all = true;
                        }
                    }
                }
                eq.arm();
            }
        } else {
            self.queue.harvest_all();
        }
        if self.pages.busy() {
            let now = self.clock.now();
            handled |= self.pages.pump(&mut self.queue, now, self.timeout);
        }
        if for_all {
            self.listeners.wake();
        }
        handled
    }

    /// Wakes the instances that wait for a command slot.
    fn slot_is_free(&mut self) {
        if core::mem::take(&mut self.wanting) {
            self.listeners.wake();
        }
    }

    /// Passes an event to every instance, and wakes those that sleep.
    pub(crate) fn tell(&mut self, event: AsyncEvent) {
        self.queue.recorder().event(self.now(), &event);
        self.listeners.tell(event);
        self.listeners.wake();
    }

    /// Returns the next event of an instance. An instance that has lost some gets those it must not miss.
    pub(crate) fn next_event(&mut self, number: usize) -> Option<AsyncEvent> {
        let inbox = self.listeners.inbox(number)?;
        let event = inbox.pop();
        if matches!(event, Some(AsyncEvent::EventsLost { .. })) {
            if self.requested {
                inbox.push(AsyncEvent::DeviceRequested);
            }
            if let Some(cause) = self.health.dead() {
                inbox.push(AsyncEvent::DeviceDead { cause });
            }
        }
        event
    }

    /// Returns the completion vector with the fewest instances.
    pub(crate) fn quietest_vector(&self) -> usize {
        (usize::from(self.vectors > 1)..self.vectors)
            .min_by_key(|vector| self.listeners.on_vector(*vector))
            .unwrap_or(0)
    }

    /// Returns the answer of a command on a dead device. Destroying succeeds, because the object's memory is out of
    /// the device's reach. If it may not be (bus mastering could not be switched off, and the function is still
    /// there), the error stands and the memory is kept.
    fn unwind(&mut self, opcode: Opcode, out_bytes: usize) -> Option<Vec<u8>> {
        let out_of_reach = !self.bus_master || self.health.dead() == Some(DeadCause::Gone);
        let unwinds = out_of_reach && (ends_access(opcode) || STOPS.contains(&opcode));
        unwinds.then(|| {
            self.objects.count(opcode);
            vec![0; out_bytes]
        })
    }
}

impl Drop for Control {
    /// The memory about to be freed must not be written any more.
    fn drop(&mut self) {
        if !self.bus_master && !self.stopped {
            return;
        }
        // The function was not torn down: its queue pairs would go on answering their peers.
        self.cut_off();
        if self.bus_master && self.function.lost().is_none() {
            // The device could not be stopped: the arena stays mapped and its memory is never used again.
            tracing::error!(
                function = self.function.name(),
                "the device cannot be stopped; its memory is leaked"
            );
            std::mem::forget(self.arena.clone());
        }
    }
}

/// Commands that give the function back, which are not sent to a dead device.
const STOPS: [Opcode; 3] = [
    Opcode::TEARDOWN_HCA,
    Opcode::DISABLE_HCA,
    Opcode::MANAGE_PAGES,
];

/// Returns whether a command ends the device's use of memory, or of something that leads to memory.
fn ends_access(opcode: Opcode) -> bool {
    Objects::destroys(opcode) || [Opcode::TO_ERR_QP, Opcode::TO_RST_QP].contains(&opcode)
}

/// Number of objects of each kind, counted by the commands that create and destroy them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    alive: [i64; KINDS.len()],
}

/// Kind of object, and the commands that create and destroy it.
const KINDS: [(&str, Opcode, Opcode); 18] = [
    ("mkey", Opcode::CREATE_MKEY, Opcode::DESTROY_MKEY),
    ("EQ", Opcode::CREATE_EQ, Opcode::DESTROY_EQ),
    ("CQ", Opcode::CREATE_CQ, Opcode::DESTROY_CQ),
    ("QP", Opcode::CREATE_QP, Opcode::DESTROY_QP),
    ("XRC SRQ", Opcode::CREATE_XRC_SRQ, Opcode::DESTROY_XRC_SRQ),
    ("RMP", Opcode::CREATE_RMP, Opcode::DESTROY_RMP),
    ("PD", Opcode::ALLOC_PD, Opcode::DEALLOC_PD),
    ("UAR", Opcode::ALLOC_UAR, Opcode::DEALLOC_UAR),
    (
        "transport domain",
        Opcode::ALLOC_TRANSPORT_DOMAIN,
        Opcode::DEALLOC_TRANSPORT_DOMAIN,
    ),
    ("XRC domain", Opcode::ALLOC_XRCD, Opcode::DEALLOC_XRCD),
    (
        "queue counter",
        Opcode::ALLOC_Q_COUNTER,
        Opcode::DEALLOC_Q_COUNTER,
    ),
    (
        "multicast attachment",
        Opcode::ATTACH_TO_MCG,
        Opcode::DETACH_FROM_MCG,
    ),
    ("TIS", Opcode::CREATE_TIS, Opcode::DESTROY_TIS),
    ("TIR", Opcode::CREATE_TIR, Opcode::DESTROY_TIR),
    ("SQ", Opcode::CREATE_SQ, Opcode::DESTROY_SQ),
    ("RQ", Opcode::CREATE_RQ, Opcode::DESTROY_RQ),
    (
        "flow table",
        Opcode::CREATE_FLOW_TABLE,
        Opcode::DESTROY_FLOW_TABLE,
    ),
    (
        "flow group",
        Opcode::CREATE_FLOW_GROUP,
        Opcode::DESTROY_FLOW_GROUP,
    ),
];

impl Objects {
    fn count(&mut self, opcode: Opcode) {
        for (alive, (_, makes, destroys)) in self.alive.iter_mut().zip(KINDS) {
            if opcode == makes {
                *alive += 1;
            } else if opcode == destroys {
                *alive -= 1;
            }
        }
    }

    fn destroys(opcode: Opcode) -> bool {
        KINDS.iter().any(|(_, _, destroys)| *destroys == opcode)
    }

    /// Returns the kinds with more objects than `expected`, and how many more.
    pub(crate) fn left_besides(
        &self,
        expected: &[(&'static str, usize)],
    ) -> Vec<(&'static str, i64)> {
        let expected = |kind| {
            expected
                .iter()
                .find(|(other, _)| *other == kind)
                .map_or(0, |(_, count)| i64::try_from(*count).unwrap_or(i64::MAX))
        };
        self.alive
            .iter()
            .zip(KINDS)
            .map(|(alive, (kind, ..))| (kind, alive - expected(kind)))
            .filter(|(_, left)| *left != 0)
            .collect()
    }
}

/// Returns a command as bytes: the fixed part with its opcode, then the tail.
pub(crate) fn message<C: Command>(input: &C, tail: &[u8]) -> Vec<u8> {
    let mut bytes = input.as_bytes().to_vec();
    bytes[..2].copy_from_slice(&C::OPCODE.0.to_be_bytes());
    bytes.extend_from_slice(tail);
    bytes
}

/// Returns the first two bytes of a message.
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

/// Splits an answer into its fixed part and the rest. The answer has the length we asked for, whatever the device
/// wrote.
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
