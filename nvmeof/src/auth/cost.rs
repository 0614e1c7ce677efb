//! What messages cost, counted for tests, by thread: a budget is of numbers and not of times, which a busy machine
//! stretches.

use std::cell::Cell;

use super::Group;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Powers of numbers in a group.
    pub(crate) powers: u32,
    /// Bytes that were hashed, keys apart.
    pub(crate) hashed: usize,
}

thread_local! {
    static SPENT: Cell<Spent> = const { Cell::new(Spent { powers: 0, hashed: 0 }) };
}

/// By this thread until now.
pub(crate) fn spent() -> Spent {
    SPENT.get()
}

/// What an act costs.
pub(crate) fn of<T>(act: impl FnOnce() -> T) -> (T, Spent) {
    let before = spent();
    let done = act();
    let after = spent();
    let cost = Spent {
        powers: after.powers - before.powers,
        hashed: after.hashed - before.hashed,
    };
    (done, cost)
}

pub(super) fn power(group: Group) {
    let mut spent = SPENT.get();
    spent.powers += u32::from(group != Group::Null);
    SPENT.set(spent);
}

pub(super) fn hashed(bytes: usize) {
    let mut spent = SPENT.get();
    spent.hashed += bytes;
    SPENT.set(spent);
}
