//! Mode of an EVD: its waiter, whether it is waitable, and whether it triggers its CNO.
//!
//! ```text
//!                  Wait                       SetUnwaitable
//!      Nobody ------------> Waiting ---------------------------> Evicted
//!        ^  ^                  | WaitOver                           | WaitOver
//!        |  '------------------'                                    |
//!        '----------------------------------------------------------'
//! ```
//!
//! The two other parts of the mode are independent: SetUnwaitable and ClearUnwaitable change whether the EVD is
//! waitable, Enable and Disable whether it is enabled. While a thread is blocked on the EVD, no other thread may wait
//! or dequeue, the CNO is not triggered, and the EVD can be neither resized nor freed. After an eviction, arriving
//! events trigger the CNO again. But no other thread may wait until the evicted thread has returned, even if the EVD is
//! made waitable meanwhile.
//!
//! No state prevents the IA from being closed: closing the IA ends the EVD in every state.
//!
//! (uDAPL 1.2: dat_evd_wait, dat_evd_dequeue, dat_evd_set_unwaitable, dat_evd_clear_unwaitable, dat_evd_enable,
//! dat_evd_disable, dat_evd_resize, dat_evd_free.)

use core::ops::Deref;

use crate::error::Subtype;
use crate::types::EvdState;

/// The thread that is blocked in `evd_wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Waiter {
    /// No thread is blocked.
    Nobody,
    /// One thread is blocked.
    Waiting,
    /// One thread is blocked and was evicted: it will return DAT_INVALID_STATE as soon as it runs.
    Evicted,
}

/// The mode of an EVD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EvdMode {
    /// Thread that is blocked on the EVD.
    pub waiter: Waiter,
    /// True if `evd_wait` may be called.
    pub waitable: bool,
    /// True if arriving notification events trigger the CNO.
    pub enabled: bool,
}

/// Inputs that change an EVD's mode, or that the mode may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum EvdInput {
    /// `evd_wait` begins.
    Wait,
    /// `evd_wait` ends, with any result.
    WaitOver,
    /// `evd_dequeue` is called.
    Dequeue,
    /// A notification event arrives.
    Notify,
    /// `evd_enable` is called.
    Enable,
    /// `evd_disable` is called.
    Disable,
    /// `evd_set_unwaitable` is called.
    SetUnwaitable,
    /// `evd_clear_unwaitable` is called.
    ClearUnwaitable,
    /// `evd_resize` is called.
    Resize,
    /// `evd_free` is called.
    Free,
}

/// The waiter that a step wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wakes {
    /// No waiter is woken.
    Nobody,
    /// The blocked thread is woken. It then checks whether it was evicted, and its threshold.
    Waiter,
    /// The CNO is triggered, if the EVD has one.
    Cno,
}

/// The current mode of an EVD. All modules can read it; only [`CurrentMode::step`] changes it.
#[derive(Debug)]
pub(crate) struct CurrentMode(EvdMode);

impl CurrentMode {
    pub(crate) const NEW: Self = Self(EvdMode::NEW);

    /// Makes the mode of a parked EVD, on which no thread waits.
    pub(super) const fn resume(waitable: bool, enabled: bool) -> Self {
        Self(EvdMode {
            waiter: Waiter::Nobody,
            waitable,
            enabled,
        })
    }

    /// Applies an input to the mode, and returns the waiter to wake. No other function changes the mode. Only
    /// [`Evd::step`](super::queue::Evd::step) calls this function, because `Evd::step` also counts a waiter among the
    /// EVD's obstacles.
    pub(crate) fn step(&mut self, input: EvdInput) -> Result<Wakes, Subtype> {
        let (next, wakes) = self.0.next(input)?;
        self.0 = next;
        Ok(wakes)
    }
}

impl Deref for CurrentMode {
    type Target = EvdMode;

    #[inline]
    fn deref(&self) -> &EvdMode {
        &self.0
    }
}

impl EvdMode {
    /// Mode of a new EVD.
    pub const NEW: Self = Self {
        waiter: Waiter::Nobody,
        waitable: true,
        enabled: true,
    };

    /// Returns the next mode and the waiter to wake, according to the transition table.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE error with which the call is refused.
    #[inline]
    pub const fn next(self, input: EvdInput) -> Result<(Self, Wakes), Subtype> {
        use EvdInput as I;
        let mut to = self;
        let mut wakes = Wakes::Nobody;
        match (input, self.waiter) {
            (I::Wait, Waiter::Nobody) if !self.waitable => {
                return Err(Subtype::StateEvdUnwaitable);
            }
            (I::Wait, Waiter::Nobody) => to.waiter = Waiter::Waiting,
            (I::WaitOver, Waiter::Nobody) => return Err(Subtype::StateEvdOpen),
            (I::WaitOver, Waiter::Waiting | Waiter::Evicted) => to.waiter = Waiter::Nobody,
            (I::Dequeue | I::Resize | I::Free, Waiter::Nobody) => {}
            (I::Wait | I::Dequeue | I::Resize | I::Free, Waiter::Waiting | Waiter::Evicted) => {
                return Err(Subtype::StateEvdWaiter);
            }
            (I::Notify, Waiter::Waiting) => wakes = Wakes::Waiter,
            (I::Notify, Waiter::Nobody | Waiter::Evicted) => {
                if self.enabled {
                    wakes = Wakes::Cno;
                }
            }
            (I::Enable, _) => to.enabled = true,
            (I::Disable, _) => to.enabled = false,
            (I::SetUnwaitable, waiter) => {
                to.waitable = false;
                if let Waiter::Waiting = waiter {
                    to.waiter = Waiter::Evicted;
                    wakes = Wakes::Waiter;
                }
            }
            (I::ClearUnwaitable, _) => to.waitable = true,
        }
        Ok((to, wakes))
    }

    /// Returns the part of the `evd_query` state that this mode determines.
    #[must_use]
    pub const fn state(self) -> EvdState {
        let enabled = if self.enabled {
            EvdState::ENABLED
        } else {
            EvdState::DISABLED
        };
        let waitable = if self.waitable {
            EvdState::WAITABLE
        } else {
            EvdState::UNWAITABLE
        };
        enabled.union(waitable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_table;
    use std::collections::BTreeSet;
    use strum::VariantArray;

    fn name(mode: EvdMode) -> String {
        let on = |yes: bool, word: &str| {
            if yes {
                word.into()
            } else {
                format!("not {word}")
            }
        };
        format!(
            "{:?}, {}, {}",
            mode.waiter,
            on(mode.waitable, "waitable"),
            on(mode.enabled, "enabled")
        )
    }

    #[test]
    fn every_pair_of_state_and_input_is_as_the_checked_in_table_says() {
        let mut rows = Vec::new();
        for &waiter in Waiter::VARIANTS {
            for (waitable, enabled) in [(true, true), (true, false), (false, true), (false, false)]
            {
                let mode = EvdMode {
                    waiter,
                    waitable,
                    enabled,
                };
                rows.extend(EvdInput::VARIANTS.iter().map(|&input| {
                    let from = name(mode);
                    match mode.next(input) {
                        Ok((to, wakes)) => {
                            format!("{from} + {input:?} -> {}; wakes {wakes:?}", name(to))
                        }
                        Err(subtype) => format!("{from} + {input:?} refused, {}", subtype.name()),
                    }
                }));
            }
        }
        assert_table(rows, include_str!("mode.table"));
    }

    #[test]
    fn no_state_has_a_waiter_on_an_unwaitable_evd() {
        let mut seen = BTreeSet::new();
        let mut todo = vec![EvdMode::NEW];
        while let Some(mode) = todo.pop() {
            if seen.insert(name(mode)) {
                assert!(mode.waitable || mode.waiter != Waiter::Waiting, "{mode:?}");
                todo.extend(
                    EvdInput::VARIANTS
                        .iter()
                        .filter_map(|&input| mode.next(input).ok())
                        .map(|(to, _)| to),
                );
            }
        }
        assert_eq!(
            seen.len(),
            10,
            "all states but the two ruled out are reached"
        );
    }
}
