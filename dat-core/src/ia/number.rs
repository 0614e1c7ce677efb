//! Numbers of IAs. Handles contain them, so no two IAs of a process have the same number at the same time. An IA that
//! is resumed keeps its number, which another process has given out.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of the process.
struct Numbers {
    /// Number to try next; 0 stands for no IA.
    next: u32,
    /// Numbers of the IAs that exist.
    taken: BTreeSet<u32>,
}

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

    /// Takes the number of an IA that is resumed. Later numbers are greater, until they wrap. Returns `None` if an IA
    /// of the process has the number, or if it is 0.
    pub(in crate::ia) fn take(number: u32) -> Option<Self> {
        let mut numbers = numbers();
        if number == 0 || !numbers.taken.insert(number) {
            return None;
        }
        if numbers.next <= number {
            numbers.next = number.wrapping_add(1);
        }
        Some(Self(number))
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
