//! Traffic classes of a port (IEEE 802.1Qaz, enhanced transmission selection): they decide which priority sends next.
//!
//! Each priority belongs to a class, and each class to a group. The highest-numbered group that has a frame sends
//! first. The classes of one group divide the bandwidth by their percentages, counted in bytes. A class may have a rate
//! limit: after each frame, the class waits for the time that the frame takes at that rate. Inferred: inside a class
//! the highest priority goes first.
//!
//! Groups as Linux writes them (`mlx5e_build_tc_group` in drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c): ETS
//! classes, which have a bandwidth share, are in group 0. If some ETS classes have a share of zero, those are in group
//! 0 and the other ETS classes are in group 1. Strict classes are above, each alone in its group. Vendor-specific
//! classes are in group 7.

use serde::{Deserialize, Serialize};

use super::classify::PRIORITIES;

/// Weight of one byte for a class with a share of one percent. For a share of 100 percent the weight is 1.
const PERCENT: u64 = 100;

/// A traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficClass {
    /// Group of the class, 0 to 7. The highest group sends first.
    pub group: u8,
    /// Share of the class in the bandwidth of its group, in percent, 1 to 100.
    pub share: u8,
    /// Rate limit of the class, if any.
    pub limit: Option<RateLimit>,
}

/// A rate limit, in the units of register QETCR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RateLimit {
    /// Limit in units of 100 Mb/s.
    HundredMegabits(u8),
    /// Limit in units of 1 Gb/s.
    Gigabits(u8),
}

impl RateLimit {
    /// Returns the limit in bits per second.
    fn bps(self) -> u64 {
        match self {
            Self::HundredMegabits(value) => u64::from(value) * 100_000_000,
            Self::Gigabits(value) => u64::from(value) * 1_000_000_000,
        }
    }
}

/// The traffic classes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficClasses {
    /// Class of each priority.
    pub of_priority: [u8; PRIORITIES],
    /// Settings of each class.
    pub classes: [TrafficClass; PRIORITIES],
}

impl TrafficClasses {
    /// Checks that the registers can represent these settings.
    ///
    /// # Errors
    /// A description of the first setting that they cannot represent.
    pub(crate) fn check(&self) -> Result<(), String> {
        let priorities = 0..u8::try_from(PRIORITIES).unwrap_or(u8::MAX);
        if let Some(class) = self.of_priority.iter().find(|at| !priorities.contains(*at)) {
            return Err(format!("there is no traffic class {class}"));
        }
        self.classes.iter().try_for_each(|class| {
            if !priorities.contains(&class.group) {
                return Err(format!("there is no group {}", class.group));
            }
            if !(1..=100).contains(&class.share) {
                return Err(format!("a share of {} percent", class.share));
            }
            if class.limit.is_some_and(|limit| limit.bps() == 0) {
                return Err("a largest rate of nothing".to_owned());
            }
            Ok(())
        })
    }
}

impl Default for TrafficClasses {
    /// Returns strict priorities: each priority has its own class and its own group.
    fn default() -> Self {
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7];
        Self {
            of_priority: numbers,
            classes: numbers.map(|group| TrafficClass {
                group,
                share: 100,
                limit: None,
            }),
        }
    }
}

/// Scheduler that selects the priority that a port sends from next.
#[derive(Debug, Default)]
pub(super) struct Selection {
    classes: TrafficClasses,
    /// Bytes that each class has sent, weighted by the inverse of its share.
    sent: [u64; PRIORITIES],
    /// Virtual time of each group: the `sent` count with which the last sender of the group began. A class that becomes
    /// active again starts from this value.
    clocks: [u64; PRIORITIES],
    /// Time in ns until which each class waits because of its rate limit.
    silent_until: [u64; PRIORITIES],
}

impl Selection {
    pub(super) fn set(&mut self, classes: &TrafficClasses) {
        if self.classes != *classes {
            *self = Self {
                classes: *classes,
                ..Self::default()
            };
        }
    }

    fn class(&self, priority: usize) -> (usize, TrafficClass) {
        let number = usize::from(self.classes.of_priority[priority]);
        (number, self.classes.classes[number])
    }

    /// Returns the priority to send from next. `priorities` are those that have a frame and are not paused.
    pub(super) fn next(&self, now: u64, priorities: impl Iterator<Item = usize>) -> Option<usize> {
        priorities
            .filter(|&priority| self.silent_until(priority) <= now)
            .max_by_key(|&priority| {
                let (number, class) = self.class(priority);
                let sent = self.sent[number].max(self.clocks[usize::from(class.group)]);
                (class.group, std::cmp::Reverse(sent), priority)
            })
    }

    /// Returns the time in ns until which a priority's class waits because of its rate limit.
    pub(super) fn silent_until(&self, priority: usize) -> u64 {
        self.silent_until[self.class(priority).0]
    }

    /// Accounts for a frame of a priority that begins to be sent. `bytes` is its length on the wire.
    pub(super) fn sent(&mut self, now: u64, priority: usize, bytes: u64) {
        let (number, class) = self.class(priority);
        let clock = &mut self.clocks[usize::from(class.group)];
        let before = self.sent[number].max(*clock);
        *clock = before;
        self.sent[number] = before + bytes * PERCENT / u64::from(class.share.max(1));
        if let Some(limit) = class.limit {
            let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(limit.bps().max(1));
            let until = now.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
            self.silent_until[number] = until;
        }
    }
}
