//! Listeners: the instances as seen by the thread that processes events for all of them. Each has an inbox of events
//! and a state that says whether it must be woken for them.
//!
//! ```text
//!             set_idle                 wake: its wakeup is signalled
//!      Awake ----------> Idle --------------------------------------> Woken
//!       ^                  |                                             |
//!       '- set_awake, woken '----------------- set_awake, woken ---------'
//! ```
//!
//! The lock of the shared state guards all of it. An `Awake` instance processes events itself, and checks its inbox
//! before it becomes idle, in one step under that lock; so no other instance wakes it. An idle one is woken by the
//! instance that took in something that may be meant for it. A signal that comes between becoming idle and falling
//! asleep ends the sleep at once.
//!
//! Several instances may share the vector of their completion event queues. The one that takes the interrupt cannot
//! know whose event it was, and wakes the others by their wakeups. The others do not pass it on.
//!
//! `models` runs this file in every interleaving.

use super::Interrupt;
use crate::event::{AsyncEvent, Inbox};

/// An instance.
pub(crate) struct Listener {
    inbox: Inbox,
    /// Interrupt that ends its sleep.
    wakeup: Interrupt,
    /// The vector of its completion event queue.
    vector: usize,
    activity: Activity,
    /// Interrupt that is also signalled, for a thread that attends an instance that is not being called
    /// ([`Listeners::attended_by`]), and whether it was signalled since the instance was last awake.
    attendant: Option<Interrupt>,
    told: bool,
    /// Slots of the commands that it waits for: bit n is slot n.
    slots: u32,
}

/// State of an instance: whether it must be woken for events that others take in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// It is processing events itself.
    Awake,
    /// It has processed everything, and may sleep.
    Idle,
    /// It has been woken, and has not noticed yet.
    Woken,
}

impl Listener {
    pub(crate) fn new(vector: usize, wakeup: Interrupt) -> Self {
        Self {
            inbox: Inbox::default(),
            wakeup,
            vector,
            activity: Activity::Idle,
            attendant: None,
            told: false,
            slots: 0,
        }
    }

    /// Returns the interrupt that ends its sleep.
    pub(crate) const fn wakeup(&self) -> &Interrupt {
        &self.wakeup
    }

    /// Wakes it if it may be asleep, because there is something for it.
    fn wake(&mut self) {
        if self.activity != Activity::Awake
            && !core::mem::replace(&mut self.told, true)
            && let Some(attendant) = &self.attendant
        {
            attendant.signal();
        }
        self.wake_sleeper();
    }

    /// Wakes it if it may be asleep, because its completion event queue may have an entry. The attendant is not
    /// signalled.
    fn wake_sleeper(&mut self) {
        if self.activity == Activity::Idle {
            self.activity = Activity::Woken;
            self.wakeup.signal();
        }
    }
}

/// Instances by number; an ended one leaves its place empty.
#[derive(Default)]
pub(crate) struct Listeners(Vec<Option<Listener>>);

impl Listeners {
    /// Makes the list with the first instance, whose number is 0.
    pub(crate) fn first(listener: Listener) -> Self {
        Self(vec![Some(listener)])
    }

    /// Adds an instance; returns its number.
    pub(crate) fn join(&mut self, listener: Listener) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or(self.0.len());
        if free.is_none() {
            self.0.push(None);
        }
        self.0[number] = Some(listener);
        number
    }

    /// Removes an instance. It may have been the only one called for shared work, so all others are called.
    pub(crate) fn leave(&mut self, number: usize) {
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

    /// Returns the number of instances whose completion event queues are on a vector.
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

    /// Passes an event to every instance. The instance that made the object knows its number.
    pub(crate) fn tell(&mut self, event: AsyncEvent) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.push(event);
        }
    }

    /// Tells every instance that there is work that is kept elsewhere.
    pub(crate) fn call_all(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.call();
        }
    }

    /// Notes that an event for any of them was lost.
    pub(crate) fn lose(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.lose();
        }
    }

    /// Tells an instance that there is work for it that did not come from the device.
    pub(crate) fn call(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.inbox.call();
            listener.wake();
        }
    }

    /// Notes that an instance waits for the answer in a slot.
    pub(crate) fn waits_for(&mut self, number: usize, slot: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.slots |= 1 << slot;
        }
    }

    /// Wakes the instances that wait for one of these commands, bit n for slot n.
    pub(crate) fn answered(&mut self, done: u32) {
        for listener in self.0.iter_mut().flatten() {
            if listener.slots & done != 0 {
                listener.slots &= !done;
                listener.wake();
            }
        }
    }

    /// Wakes the instances that sleep: an event taken in may be meant for them.
    pub(crate) fn wake(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.wake();
        }
    }

    /// Wakes the other instances whose event queues share a vector, after its interrupt was taken.
    pub(crate) fn wake_sharers(&mut self, vector: usize) {
        for listener in self.0.iter_mut().flatten() {
            if listener.vector == vector {
                listener.wake_sleeper();
            }
        }
    }

    /// Sets the interrupt of a thread that attends an instance while it is not being called.
    pub(crate) fn attended_by(&mut self, number: usize, attendant: Interrupt) {
        if let Some(listener) = self.get_mut(number) {
            listener.attendant = Some(attendant);
        }
    }

    /// Marks an instance as awake: it processes events itself and need not be woken.
    pub(crate) fn set_awake(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.told = false;
            if core::mem::replace(&mut listener.activity, Activity::Awake) == Activity::Woken {
                let _signalled = listener.wakeup.take();
            }
        }
    }

    /// Marks an instance as idle: it has processed everything, and may sleep here, or its program on its descriptors.
    pub(crate) fn set_idle(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.activity = Activity::Idle;
        }
    }

    /// Marks an instance as idle after a command. Events that came meanwhile, in its inbox or in its own event queue
    /// (`news`), are still to be processed, and the wait for the answer has taken their signal.
    pub(crate) fn set_idle_after(&mut self, number: usize, news: bool) {
        self.set_idle(number);
        if let Some(listener) = self.get_mut(number)
            && (news || listener.inbox.has_news())
        {
            listener.wake();
        }
    }

    /// Takes the interrupts that ended an instance's sleep: vectors, that of its completion event queue behind the
    /// others, and its wakeup last. Returns false if none was signalled.
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
            listener.activity = Activity::Awake;
            listener.told = false;
            listener.vector
        });
        // The interrupt may have been meant for another instance's event queue.
        if let Some(vector) = vector.filter(|_| own) {
            self.wake_sharers(vector);
        }
        any
    }
}
