//! Cost of messages, counted for tests, by thread. A budget is a number of operations and not a time, which depends
//! on the machine's load.

use std::cell::Cell;

use super::Group;

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Modular exponentiations.
    pub(crate) powers: u32,
    /// Hashed bytes, except keys.
    pub(crate) hashed: usize,
}

thread_local! {
    static SPENT: Cell<Spent> = const { Cell::new(Spent { powers: 0, hashed: 0 }) };
}

/// Returns the counts of this thread so far.
pub(crate) fn spent() -> Spent {
    SPENT.get()
}

/// Returns the result of a function and its cost.
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
