//! Tasks that wait for the same thing.

use std::task::Waker;

use slotmap::SlotMap;

slotmap::new_key_type! {
    /// The place of a future among those who wait.
    pub(super) struct Place;
}

/// What becomes of a waker that leaves.
pub(super) enum Leaving {
    Woken(Waker),
    Dropped(Waker),
}

/// The wakers of futures that wait for the same thing, each at its place: a future that goes takes its waker along.
#[derive(Default)]
pub(super) struct Waiting(SlotMap<Place, Waker>);

impl Waiting {
    /// Has the task of a future woken, which keeps its place.
    pub(super) fn join(
        &mut self,
        place: &mut Option<Place>,
        waker: &Waker,
        leaving: &mut Vec<Leaving>,
    ) {
        match place.and_then(|place| self.0.get_mut(place)) {
            None => *place = Some(self.0.insert(waker.clone())),
            Some(old) if old.will_wake(waker) => {}
            Some(old) => {
                let before = std::mem::replace(old, waker.clone());
                leaving.push(Leaving::Dropped(before));
            }
        }
    }

    /// A future waits no more.
    pub(super) fn leave(&mut self, place: Option<Place>, leaving: &mut Vec<Leaving>) {
        let waker = place.and_then(|place| self.0.remove(place));
        leaving.extend(waker.map(Leaving::Dropped));
    }

    /// It has come: all are woken, and ask anew if they wait on.
    pub(super) fn wake(&mut self, leaving: &mut Vec<Leaving>) {
        leaving.extend(self.0.drain().map(|(_, waker)| Leaving::Woken(waker)));
    }
}
