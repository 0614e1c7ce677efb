//! Instances, as the thread that takes in events for all of them knows them: the events each has been told of, and
//! whether it has to be woken for them.
//!
//! ```text
//!             set_idle                 wake: its wakeup is signalled
//!      Awake ----------> Idle --------------------------------------> Woken
//!       ^                  |                                             |
//!       '- set_awake, woken '----------------- set_awake, woken ---------'
//! ```
//!
//! The lock of what instances share guards all of it. An instance that is `Awake` takes in events itself, and looks at
//! what it was told before it becomes idle, in one step under that lock; so no other instance wakes it. An idle one is
//! woken by the instance that took in something that may be its own. A signal that comes between becoming idle and
//! falling asleep ends the sleep at once.
//!
//! Several instances may share the vector of their completion event queues. The one that takes the interrupt cannot
//! know whose event it was, and wakes the others by their wakeups. Those pass nothing on.
//!
//! `models` runs this file in every order of events.

use super::Interrupt;
use crate::event::{AsyncEvent, Inbox};

/// An instance.
pub(crate) struct Listener {
    inbox: Inbox,
    /// Ends its sleep.
    wakeup: Interrupt,
    /// The vector of its completion event queue.
    vector: usize,
    activity: Activity,
    /// Signalled besides, for somebody who looks after an instance that nobody calls ([`Listeners::attended_by`]), and
    /// whether it has been since the instance last rose.
    attendant: Option<Interrupt>,
    told: bool,
    /// Slots of the commands it waits for: bit n is slot n.
    slots: u32,
}

/// Whether an instance has to be woken for what others take in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// It is taking in events itself.
    Awake,
    /// It has looked at all there was, and may sleep.
    Idle,
    /// It has been woken, and has not noticed.
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

    /// What ends its sleep, whatever it is that came.
    pub(crate) const fn wakeup(&self) -> &Interrupt {
        &self.wakeup
    }

    /// Wakes it, if it may be asleep, because there is something for it.
    fn wake(&mut self) {
        if self.activity != Activity::Awake
            && !core::mem::replace(&mut self.told, true)
            && let Some(attendant) = &self.attendant
        {
            attendant.signal();
        }
        self.wake_sleeper();
    }

    /// Wakes it, if it may be asleep, because its completion event queue may have something. Nobody but a sleeper wants
    /// to know.
    fn wake_sleeper(&mut self) {
        if self.activity == Activity::Idle {
            self.activity = Activity::Woken;
            self.wakeup.signal();
        }
    }
}

/// Instances by number; one that is gone leaves its place.
#[derive(Default)]
pub(crate) struct Listeners(Vec<Option<Listener>>);

impl Listeners {
    /// The first instance, whose number is 0.
    pub(crate) fn first(listener: Listener) -> Self {
        Self(vec![Some(listener)])
    }

    /// One more instance is told of events; its number.
    pub(crate) fn join(&mut self, listener: Listener) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or(self.0.len());
        if free.is_none() {
            self.0.push(None);
        }
        self.0[number] = Some(listener);
        number
    }

    /// An instance is told of nothing any more. It may have been the only one that was called to look at something.
    pub(crate) fn leave(&mut self, number: usize) {
        if let Some(listener) = self.0.get_mut(number) {
            *listener = None;
        }
        self.call_all();
        self.wake();
    }

    /// Instances there are.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Instances whose completion event queues are on a vector.
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

    /// What an instance has been told.
    pub(crate) fn inbox(&mut self, number: usize) -> Option<&mut Inbox> {
        Some(&mut self.get_mut(number)?.inbox)
    }

    /// Tells every instance of an event. Whose object it names is known to the instance that made it.
    pub(crate) fn tell(&mut self, event: AsyncEvent) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.push(event);
        }
    }

    /// Tells every instance that there is something to look at that is kept elsewhere.
    pub(crate) fn call_all(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.call();
        }
    }

    /// Something could not be kept that was meant for any of them.
    pub(crate) fn lose(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.inbox.lose();
        }
    }

    /// An instance has something to look at that did not come from the device.
    pub(crate) fn call(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.inbox.call();
            listener.wake();
        }
    }

    /// An instance waits for the answer in a slot.
    pub(crate) fn waits_for(&mut self, number: usize, slot: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.slots |= 1 << slot;
        }
    }

    /// Commands are done, bit n for slot n: who waits for one of them is woken.
    pub(crate) fn answered(&mut self, done: u32) {
        for listener in self.0.iter_mut().flatten() {
            if listener.slots & done != 0 {
                listener.slots &= !done;
                listener.wake();
            }
        }
    }

    /// Wakes the instances that sleep: what was taken in may be theirs.
    pub(crate) fn wake(&mut self) {
        for listener in self.0.iter_mut().flatten() {
            listener.wake();
        }
    }

    /// Somebody has taken an interrupt of a vector: others whose event queues share it are woken.
    pub(crate) fn wake_sharers(&mut self, vector: usize) {
        for listener in self.0.iter_mut().flatten() {
            if listener.vector == vector {
                listener.wake_sleeper();
            }
        }
    }

    /// Somebody else has an instance look when it is told of something, as long as nobody calls it.
    pub(crate) fn attended_by(&mut self, number: usize, attendant: Interrupt) {
        if let Some(listener) = self.get_mut(number) {
            listener.attendant = Some(attendant);
        }
    }

    /// From here on an instance takes in events itself, and nobody has to wake it.
    pub(crate) fn set_awake(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.told = false;
            if core::mem::replace(&mut listener.activity, Activity::Awake) == Activity::Woken {
                let _signalled = listener.wakeup.take();
            }
        }
    }

    /// An instance has taken in all there was, and may sleep now: here, or its program on its descriptors.
    pub(crate) fn set_idle(&mut self, number: usize) {
        if let Some(listener) = self.get_mut(number) {
            listener.activity = Activity::Idle;
        }
    }

    /// An instance may sleep after a command. What it was told meanwhile, or its own event queue has said (`news`), is
    /// still there to look at, and the signal went with the wait for the answer.
    pub(crate) fn set_idle_after(&mut self, number: usize, news: bool) {
        self.set_idle(number);
        if let Some(listener) = self.get_mut(number)
            && (news || listener.inbox.has_news())
        {
            listener.wake();
        }
    }

    /// An instance's sleep was ended by some of these: vectors, that of its completion event queue behind the others,
    /// and its wakeup last. Takes them. False: it was none of them.
    pub(crate) fn woken(&mut self, number: usize, interrupts: &[Interrupt]) -> bool {
        // PANIC: it has a wakeup itself.
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
        // Another one's event queue may have been meant.
        if let Some(vector) = vector.filter(|_| own) {
            self.wake_sharers(vector);
        }
        any
    }
}
