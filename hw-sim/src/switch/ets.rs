//! Traffic classes of a port (IEEE 802.1Qaz, enhanced transmission selection): which priorities share one, and how the
//! classes share the port.
//!
//! Each priority belongs to a class, and each class to a group. The group with the highest number that has a frame
//! sends first; the classes of one group share the port by their percentages, counted in bytes. A class may have a
//! largest rate: after a frame it is silent for as long as the frame takes at that rate. Inferred: inside a class the
//! highest priority goes first.
//!
//! Groups as Linux writes them (`mlx5e_build_tc_group` in drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c): classes
//! of bandwidth shares are in group 0. If one of them has a share of zero, all such are in group 0 and the others in
//! group 1. Strict classes are above, each alone in its group. Vendor-specific classes share group 7.

use serde::{Deserialize, Serialize};

use super::classify::PRIORITIES;

/// A byte counts so much for a class of one percent, and 1 for a class of all.
const PERCENT: u64 = 100;

/// A traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficClass {
    /// 0 to 7; the highest goes first.
    pub group: u8,
    /// Percent of what its group sends, 1 to 100.
    pub share: u8,
    /// Its largest rate.
    pub limit: Option<RateLimit>,
}

/// A largest rate, as register QETCR has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RateLimit {
    /// So many times 100 Mb/s.
    HundredMegabits(u8),
    /// So many times 1 Gb/s.
    Gigabits(u8),
}

impl RateLimit {
    /// Bits each second.
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
    /// The class of each priority.
    pub of_priority: [u8; PRIORITIES],
    /// The classes.
    pub classes: [TrafficClass; PRIORITIES],
}

impl TrafficClasses {
    /// Whether registers can tell of it.
    ///
    /// # Errors
    /// In words: what has no place in them.
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
    /// Each priority has a class and a group of its own: strict priorities.
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

/// Which priority of a port sends next.
#[derive(Debug, Default)]
pub(super) struct Selection {
    classes: TrafficClasses,
    /// What each class has sent, weighted by its share.
    sent: [u64; PRIORITIES],
    /// The clock of each group: `sent` of the class that sent last. A class that comes back begins there.
    clocks: [u64; PRIORITIES],
    /// When a class with a largest rate may send again.
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

    /// Of the priorities that have a frame, the one to send from.
    pub(super) fn next(&self, now: u64, priorities: impl Iterator<Item = usize>) -> Option<usize> {
        priorities
            .filter(|&priority| self.silent_until(priority) <= now)
            .max_by_key(|&priority| {
                let (number, class) = self.class(priority);
                let sent = self.sent[number].max(self.clocks[usize::from(class.group)]);
                (class.group, std::cmp::Reverse(sent), priority)
            })
    }

    /// Until when the class of a priority is silent by its largest rate.
    pub(super) fn silent_until(&self, priority: usize) -> u64 {
        self.silent_until[self.class(priority).0]
    }

    /// A frame of a priority begins: so many bytes on the wire.
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
