//! Numbers of IAs. Handles contain them, so no two IAs of a process have the same number at the same time. An IA that
//! is resumed keeps its number, which another process has given out.
//!
//! This process gives a number out once. It can adopt an IA whose number an IA of its own has had, because the first IA
//! of each process has number 1. Handles of the IA that was closed can then name objects of the adopted one.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::parking::ResumeError;

/// Numbers of the process.
struct Numbers {
    /// Number to try next; 0 stands for no IA.
    next: u32,
    /// Numbers of the IAs that exist.
    taken: BTreeSet<u32>,
}

/// Largest number of an IA of another process. So many numbers are left that later ones do not wrap.
const MOST_ADOPTED: u32 = u32::MAX >> 1;

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    next: 1,
    taken: BTreeSet::new(),
});

fn numbers() -> MutexGuard<'static, Numbers> {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of an IA. It is free again when the value is dropped.
pub(in crate::ia) struct IaNumber(u32);

impl IaNumber {
    /// Returns a number that no IA of the process has. No earlier IA has had it, unless the numbers have wrapped.
    pub(in crate::ia) fn next() -> Self {
        let mut numbers = numbers();
        loop {
            let number = numbers.next;
            numbers.next = number.wrapping_add(1);
            if number != 0 && numbers.taken.insert(number) {
                return Self(number);
            }
        }
    }

    /// Takes the number of an IA that is resumed. Numbers that are given out later stay the same until
    /// [`IaNumber::begin_use`].
    ///
    /// # Errors
    /// [`ResumeError::Number`]: an IA of the process has the number. [`ResumeError::OutOfRange`]: later numbers could
    /// wrap. [`ResumeError::Snapshot`]: it is 0.
    pub(in crate::ia) fn take(number: u32) -> Result<Self, ResumeError> {
        const TABLE: &str = "the instance";
        if number == 0 {
            return Err(ResumeError::snapshot(TABLE, "its number is 0"));
        }
        let mut numbers = numbers();
        // This process may itself have given out a larger one.
        let most = MOST_ADOPTED.max(numbers.next.saturating_sub(1));
        ResumeError::check_range(TABLE, [("number", number.into(), most.into())])?;
        if !numbers.taken.insert(number) {
            return Err(ResumeError::Number { number });
        }
        Ok(Self(number))
    }

    /// Makes later numbers greater than this one, because an IA with the number exists.
    pub(in crate::ia) fn begin_use(&self) {
        let mut numbers = numbers();
        numbers.next = numbers.next.max(self.0.saturating_add(1));
    }

    pub(in crate::ia) const fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for IaNumber {
    fn drop(&mut self) {
        numbers().taken.remove(&self.0);
    }
}
