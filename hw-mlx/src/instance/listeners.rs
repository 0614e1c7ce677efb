//! Listeners: the instances, from the view of a thread that processes events for all of them. Each listener has an
//! inbox of events, and a state that determines whether an event must wake the instance.
//!
//! ```text
//!           SetIdle             WakeSleeper               Wake
//!    Awake ---------> Idle ---------------> SleeperWoken -------> BothWoken
//!      ^               | |                       |                  ^ |
//!      |               | '------------------ Wake ------------------' |
//!      |               |                         |                    |
//!      '- SetAwake, SleepEnded (from Idle, SleeperWoken, BothWoken) --'
//! ```
//!
//! In *SleeperWoken* the instance's wakeup has been signalled; in *BothWoken* the wakeup and the attendant's interrupt
//! have been. *SetIdle* leads to Idle from every state. The driver uses it only in Awake. From SleeperWoken it would
//! leave a superfluous signal, which does no harm; a missing signal would.
//!
//! The lock of the shared state guards all of this. An `Awake` instance processes events itself, and checks its inbox
//! before it becomes idle. Both happen under one hold of the lock, so no other instance needs to wake it. When an
//! instance takes in an event that may be for an idle instance, it wakes that instance. A signal between becoming idle
//! and falling asleep ends the sleep at once.
//!
//! Several instances may share the vector of their completion event queues. The instance that takes the interrupt
//! cannot know whose event queue has an entry, so it signals the wakeups of the other instances. Those do not wake
//! further instances.
//!
//! The module `models` runs this file with the threads of two instances and a thread that plays the device, in all
//! interleavings up to a number of preemptions.

use super::Interrupt;
use crate::event::{AsyncEvent, Inbox};

/// An instance as seen by the threads of other instances.
pub(crate) struct Listener {
    inbox: Inbox,
    /// Interrupt that ends the instance's sleep.
    wakeup: Interrupt,
    /// Vector of the instance's completion event queue.
    vector: usize,
    activity: Activity,
    /// Second interrupt that `wake` signals. It wakes the thread that handles the events of the instance while no other
    /// thread calls the instance ([`Listeners::attended_by`]).
    attendant: Option<Interrupt>,
    /// Command slots whose answers the instance waits for: bit n is slot n.
    slots: u32,
}

/// State of an instance. It decides which interrupts another instance signals when it reads an event for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(super) enum Activity {
    /// The instance is processing events itself.
    Awake,
    /// The instance has processed all events, and may sleep.
    Idle,
    /// The instance has been woken, and has not run since.
    SleeperWoken,
    /// The instance and its attendant have been woken, and the instance has not run since.
    BothWoken,
}

/// Event that changes the state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(super) enum Event {
    /// The instance begins to process events.
    SetAwake,
    /// The instance has processed all events.
    SetIdle,
    /// The instance has an event or other work.
    Wake,
    /// The completion event queue of the instance may have an entry. This does not concern the attendant.
    WakeSleeper,
    /// The sleep of the instance has ended, and the signal of its wakeup has been taken.
    SleepEnded,
}

/// Action of a step besides the change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Clear the wakeup's signal, because no thread sleeps on it.
    TakeSignal,
    /// Signal the wakeup.
    SignalSleeper,
    /// Signal the attendant. The wakeup is signalled already.
    SignalAttendant,
    /// Signal the attendant and the wakeup.
    SignalBoth,
}

impl Activity {
    pub(super) const fn step(self, event: Event) -> (Self, Action) {
        match (self, event) {
            (Self::Awake | Self::Idle, Event::SetAwake)
            | (
                Self::Awake | Self::Idle | Self::SleeperWoken | Self::BothWoken,
                Event::SleepEnded,
            ) => (Self::Awake, Action::Nothing),
            (Self::SleeperWoken | Self::BothWoken, Event::SetAwake) => {
                (Self::Awake, Action::TakeSignal)
            }
            (Self::Awake | Self::Idle | Self::SleeperWoken | Self::BothWoken, Event::SetIdle) => {
                (Self::Idle, Action::Nothing)
            }
            (Self::Idle, Event::Wake) => (Self::BothWoken, Action::SignalBoth),
            (Self::SleeperWoken, Event::Wake) => (Self::BothWoken, Action::SignalAttendant),
            (Self::Idle, Event::WakeSleeper) => (Self::SleeperWoken, Action::SignalSleeper),
            (Self::Awake | Self::BothWoken, Event::Wake)
            | (Self::Awake | Self::SleeperWoken | Self::BothWoken, Event::WakeSleeper) => {
                (self, Action::Nothing)
            }
        }
    }
}

impl Listener {
    pub(crate) fn new(vector: usize, wakeup: Interrupt) -> Self {
        Self {
            inbox: Inbox::default(),
            wakeup,
            vector,
            activity: Activity::Idle,
            attendant: None,
            slots: 0,
        }
    }

    /// Sets the inbox of an instance that was resumed.
    pub(crate) fn with_inbox(self, inbox: Inbox) -> Self {
        Self { inbox, ..self }
    }

    /// Returns the events in the inbox, and the number of dropped ones.
    pub(crate) fn contents(&self) -> (Vec<AsyncEvent>, u64) {
        self.inbox.contents()
    }

    /// Returns the interrupt that ends the instance's sleep.
    pub(crate) const fn wakeup(&self) -> &Interrupt {
        &self.wakeup
    }

    /// Takes a step, and carries out its action.
    fn step(&mut self, event: Event) {
        let (activity, action) = self.activity.step(event);
        self.activity = activity;
        match action {
            Action::Nothing => {}
            Action::TakeSignal => {
                let _signalled = self.wakeup.take();
            }
            Action::SignalSleeper => self.wakeup.signal(),
            Action::SignalAttendant => self.signal_attendant(),
            Action::SignalBoth => {
                self.signal_attendant();
                self.wakeup.signal();
            }
        }
    }

    fn signal_attendant(&self) {
        if let Some(attendant) = &self.attendant {
            attendant.signal();
        }
    }
}

/// All instances, indexed by their numbers; `None` for instances that have ended.
#[derive(Default)]
pub(crate) struct Listeners(Vec<Option<Listener>>);

impl Listeners {
    /// Makes the list with the first instance, whose number is 0.
    pub(crate) fn first(listener: Listener) -> Self {
        Self(vec![Some(listener)])
    }

    /// Adds an instance; returns its number.
    pub(crate) fn add(&mut self, listener: Listener) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or(self.0.len());
        if free.is_none() {
            self.0.push(None);
        }
        self.0[number] = Some(listener);
        number
    }

    /// Removes an instance. All other instances are woken to check for work, because the removed instance may have been
    /// the only instance that was called for shared work.
    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(listener) = self.0.get_mut(number) {
            *listener = None;
        }
        self.call_all();
        self.wake();
    }

    /// Returns the number of instances.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Returns the number of instances whose completion event queues use a vector.
    pub(crate) fn on_vector(&self, vector: usize) -> usize {
        let there = self.0.iter().flatten();
        there.filter(|listener| listener.vector == vector).count()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Listener> {
        self.0.get(number)?.as_ref()
    }

    fn get_mut(&mut self, number: usize) -> Option<&mut Listener> {
        self.0.get_mut(number)?.as_mut()
    }

    /// Returns the inbox of an instance.
    pub(crate) fn inbox(&mut self, number: usize) -> Option<&mut Inbox> {
        Some(&mut self.get_mut(number)?.inbox)
    }

    /// Puts an event into the inbox of every instance. Each instance knows which objects are its own.
    pub(crate) fn push_event(&mut self, event: AsyncEvent) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.push(event);
        }
    }

    /// Notes in every inbox that there is work outside of the inboxes.
    pub(crate) fn call_all(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.call();
        }
    }

    /// Counts a lost event in every inbox, because the event may have been for any instance.
    pub(crate) fn lose(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.lose();
        }
    }

    /// Notes that an instance has work that did not come from the device, and wakes the instance.
    pub(crate) fn call(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.inbox.call();
            listener.step(Event::Wake);
        }
    }

    /// Records that an instance waits for the answer in a command slot, and that no other instance does.
    pub(crate) fn waits_for(&mut self, number: usize, slot: usize) {
        for (other, listener) in self.0.iter_mut().enumerate() {
            let Some(listener) = listener else { continue };
            listener.slots &= !(1 << slot);
            listener.slots |= u32::from(other == number) << slot;
        }
    }

    /// Wakes the instances that wait for one of the answered commands; bit n of `done` stands for slot n.
    pub(crate) fn answered(&mut self, done: u32) {
        for listener in self.0.iter_mut().flatten() {
            if listener.slots & done != 0 {
                listener.slots &= !done;
                listener.step(Event::Wake);
            }
        }
    }

    /// Wakes all sleeping instances, because an event that was taken in may be for them.
    pub(crate) fn wake(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.step(Event::Wake);
        }
    }

    /// Wakes the other instances whose completion event queues share a vector, after its interrupt was cleared.
    pub(crate) fn wake_sharers(&mut self, vector: usize) {
        for listener in self.0.iter_mut().flatten() {
            if listener.vector == vector {
                listener.step(Event::WakeSleeper);
            }
        }
    }

    /// Sets the interrupt that wakes the thread that handles an instance's events while no other thread calls the
    /// instance.
    pub(crate) fn attended_by(&mut self, number: usize, attendant: Interrupt) {
        if let Some(listener) = self.get_mut(number) {
            listener.attendant = Some(attendant);
        }
    }

    /// Marks an instance as awake: it processes events itself and need not be woken.
    pub(crate) fn set_awake(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.step(Event::SetAwake);
        }
    }

    /// Marks an instance as idle: it has processed all events, and its thread or its program's event loop may sleep.
    pub(crate) fn set_idle(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.step(Event::SetIdle);
        }
    }

    /// Marks an instance as idle after a command. Events may have come in meanwhile, into its inbox or into its own
    /// event queue (`news`). The wait for the answer has cleared their signal, so the wakeup is signalled again.
    pub(crate) fn set_idle_after(&mut self, number: usize, news: bool) {
        self.set_idle(number);
        if let Some(listener) = self.get_mut(number)
            && (news || listener.inbox.has_news())
        {
            listener.step(Event::Wake);
        }
    }

    /// Clears the interrupts that ended an instance's sleep. In `interrupts`, the vector of the instance's completion
    /// event queue follows the shared vectors, and the wakeup is last. Returns false if none was signalled.
    pub(crate) fn woken(&mut self, number: usize, interrupts: &[Interrupt]) -> bool {
        // PANIC: every list ends with the instance's own wakeup.
        let (wakeup, vectors) = interrupts.split_last().expect("a wakeup");
        let (mut any, mut own) = (false, false);
        for vector in vectors {
            own = vector.take() > 0;
            any |= own;
        }
        any |= wakeup.take() > 0;
        let vector = self.get_mut(number).map(|listener| {
            listener.step(Event::SleepEnded);
            listener.vector
        });
        // The interrupt may have been for the event queue of another instance with the same vector.
        if let Some(vector) = vector.filter(|_| own) {
            self.wake_sharers(vector);
        }
        any
    }
}
