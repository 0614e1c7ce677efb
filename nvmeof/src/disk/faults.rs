//! Faults of a disk for tests: operations that fail or are late.
//!
//! A disk of [`Source::Faulty`](super::Source::Faulty) is a memory disk that takes orders. An order makes operations of
//! a kind fail with an errno, or complete late. No other disk takes orders, so no disk with real data fails by order.
//! The control socket passes orders on (`namespace.fault`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use udapl::reactor::FileOperation;

/// Longest delay of an operation. New orders end the delay early.
pub const LONGEST_DELAY: Duration = Duration::from_secs(3600);

/// Errors that can be ordered, with their names. docs/nvmeof.md lists the NVMe status of each.
pub const ERRORS: [(&str, Errno); 8] = [
    ("EIO", Errno::EIO),
    ("ENOSPC", Errno::ENOSPC),
    ("ENODATA", Errno::ENODATA),
    ("EROFS", Errno::EROFS),
    ("EOPNOTSUPP", Errno::EOPNOTSUPP),
    ("ENOMEM", Errno::ENOMEM),
    ("ETIMEDOUT", Errno::ETIMEDOUT),
    ("ENODEV", Errno::ENODEV),
];

/// Kind of operations that orders apply to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// All operations.
    #[default]
    All,
    /// Reads, including those of comparisons and copies.
    Reads,
    /// Operations that change blocks.
    Writes,
    /// Flushes.
    Flushes,
}

/// Kinds of operations, with their names.
pub const KINDS: [(&str, Of); 4] = [
    ("all", Of::All),
    ("reads", Of::Reads),
    ("writes", Of::Writes),
    ("flushes", Of::Flushes),
];

impl Of {
    const fn has(self, operation: &FileOperation<'_>) -> bool {
        matches!(
            (self, operation),
            (Self::All, _)
                | (Self::Reads, FileOperation::Read { .. })
                | (
                    Self::Writes,
                    FileOperation::Write { .. }
                        | FileOperation::Zero { .. }
                        | FileOperation::Deallocate { .. }
                )
                | (Self::Flushes, FileOperation::Sync)
        )
    }
}

/// Orders to a faulty disk: which operations fail or are late, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Kind of operations that are affected.
    pub of: Of,
    /// Error that affected operations return; `None` if they succeed.
    pub error: Option<Errno>,
    /// Delay before affected operations complete, at most [`LONGEST_DELAY`].
    pub delay: Duration,
    /// One in this many operations of the kind is affected, beginning with the first.
    pub every: u64,
    /// Number of operations still to be affected; `None` for no limit.
    pub times: Option<u64>,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            of: Of::All,
            error: None,
            delay: Duration::ZERO,
            every: 1,
            times: None,
        }
    }
}

/// The fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Error that the operation returns; `None` if it succeeds.
    pub error: Option<Errno>,
    /// Delay before the operation completes.
    pub delay: Duration,
}

#[derive(Debug, Default)]
struct State {
    orders: Option<Orders>,
    /// Serial number of the current orders. Every change of the orders increments it.
    generation: u64,
    /// Number of operations of the kind since these orders were given.
    seen: u64,
    /// Number of operations that were affected by these or earlier orders.
    struck: u64,
}

/// Faults of a disk. Any thread may give orders. Workers check the orders before they submit an operation.
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

impl Faults {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the orders; `None` ends them. Operations that earlier orders delay complete at once.
    pub fn order(&self, orders: Option<Orders>) {
        self.with(|state| {
            state.orders = orders;
            state.generation += 1;
            state.seen = 0;
        });
    }

    /// Returns the number of operations that were affected so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.with(|state| state.struck)
    }

    /// Returns the serial number of the current orders.
    pub(crate) fn generation(&self) -> u64 {
        self.with(|state| state.generation)
    }

    /// Returns the fault of an operation, and the serial number of the orders; `None` if the operation is not affected.
    pub(crate) fn strike(&self, operation: &FileOperation<'_>) -> Option<(Fault, u64)> {
        self.with(|state| {
            let orders = state.orders.as_mut()?;
            if !orders.of.has(operation) || orders.times == Some(0) {
                return None;
            }
            let is_due = state.seen.is_multiple_of(orders.every.max(1));
            state.seen += 1;
            if !is_due {
                return None;
            }
            orders.times = orders.times.map(|times| times - 1);
            state.struck += 1;
            let fault = Fault {
                error: orders.error,
                delay: orders.delay.min(LONGEST_DELAY),
            };
            Some((fault, state.generation))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: FileOperation<'_> = FileOperation::Zero {
        offset: 0,
        bytes: 512,
    };

    #[test]
    fn orders_are_for_a_kind_for_one_of_so_many_and_for_so_often() {
        let faults = Faults::default();
        assert_eq!(faults.strike(&ZERO), None, "no orders");
        let error = Some(Errno::EIO);
        faults.order(Some(Orders {
            of: Of::Writes,
            error,
            every: 3,
            times: Some(2),
            ..Orders::default()
        }));
        let struck: Vec<bool> = (0..9)
            .map(|_| {
                assert_eq!(faults.strike(&FileOperation::Sync), None, "no write");
                faults.strike(&ZERO).is_some()
            })
            .collect();
        let wanted = [true, false, false, true, false, false, false, false, false];
        assert_eq!(struck, wanted);
        faults.order(Some(Orders {
            delay: LONGEST_DELAY * 2,
            ..Orders::default()
        }));
        let delay = LONGEST_DELAY;
        let fault = Fault { error: None, delay };
        assert_eq!(faults.strike(&FileOperation::Sync), Some((fault, 2)));
        faults.order(None);
        assert_eq!(faults.strike(&ZERO), None);
        assert_eq!((faults.struck(), faults.generation()), (3, 3));
    }
}
