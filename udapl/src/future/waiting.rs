//! Tasks that wait for the same event.

use std::task::Waker;

use slotmap::SlotMap;

slotmap::new_key_type! {
    /// Key of a waiting future.
    pub(super) struct Place;
}

/// A waker that was removed from the table, and is to be woken or dropped after the borrow of the table.
pub(super) enum Leaving {
    Woken(Waker),
    Dropped(Waker),
}

/// Wakers of the futures that wait for one event, each under its own key. A dropped future removes its waker.
#[derive(Default)]
pub(super) struct Waiting(SlotMap<Place, Waker>);

impl Waiting {
    /// Registers a future's waker, or replaces it under its key.
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

    /// Removes a future's waker.
    pub(super) fn leave(&mut self, place: Option<Place>, leaving: &mut Vec<Leaving>) {
        let waker = place.and_then(|place| self.0.remove(place));
        leaving.extend(waker.map(Leaving::Dropped));
    }

    /// Wakes all. A future whose condition still does not hold registers again.
    pub(super) fn wake(&mut self, leaving: &mut Vec<Leaving>) {
        leaving.extend(self.0.drain().map(|(_, waker)| Leaving::Woken(waker)));
    }
}
