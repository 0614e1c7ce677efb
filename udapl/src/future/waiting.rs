//! Tasks that wait for the same event.

use std::task::Waker;

use slotmap::SlotMap;

slotmap::new_key_type! {
    /// Key of a waiting future.
    pub(super) struct Place;
}

/// A waker that was removed from the table, and is to be woken or dropped after the borrow of the table.
pub(super) enum RemovedWaker {
    Woken(Waker),
    Dropped(Waker),
}

/// Wakers of the futures that wait for one event, each under its own key. A dropped future removes its waker.
#[derive(Default)]
pub(super) struct Waiting(SlotMap<Place, Waker>);

impl Waiting {
    /// Registers a future's waker, or replaces it under its key.
    pub(super) fn register(
        &mut self,
        place: &mut Option<Place>,
        waker: &Waker,
        removed: &mut Vec<RemovedWaker>,
    ) {
        match place.and_then(|place| self.0.get_mut(place)) {
            None => *place = Some(self.0.insert(waker.clone())),
            Some(old) if old.will_wake(waker) => {}
            Some(old) => {
                let before = std::mem::replace(old, waker.clone());
                removed.push(RemovedWaker::Dropped(before));
            }
        }
    }

    /// Removes a future's waker.
    pub(super) fn unregister(&mut self, place: Option<Place>, removed: &mut Vec<RemovedWaker>) {
        let waker = place.and_then(|place| self.0.remove(place));
        removed.extend(waker.map(RemovedWaker::Dropped));
    }

    /// Wakes all. A future whose condition still does not hold registers again.
    pub(super) fn wake(&mut self, removed: &mut Vec<RemovedWaker>) {
        removed.extend(self.0.drain().map(|(_, waker)| RemovedWaker::Woken(waker)));
    }
}
