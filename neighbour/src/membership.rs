//! The groups of which we are a member, and the reports of them to routers and switches (RFC 3810).
//!
//! There is one `Membership` for each VLAN that has something to report. A change is reported at once, and once more
//! within a second (6.1). The answer to a query reports all groups, after a random delay. For a query about one group,
//! 6.2 requires only that group in the answer; reporting more groups is allowed. The group of all nodes is never
//! reported (6).

mod parking;

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::config::{ROBUSTNESS, UNSOLICITED_REPORT_INTERVAL};
use crate::draw::Draw;
use crate::wire::mld::Record;

#[derive(Debug)]
struct Change {
    group: Ipv6Addr,
    record: Record,
    left: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Membership {
    changes: Vec<Change>,
    change_due: Option<Duration>,
    answer_due: Option<Duration>,
}

impl Membership {
    /// Records that a group was joined or left. A later change of the group replaces an earlier one.
    pub(crate) fn change(&mut self, group: Ipv6Addr, record: Record, now: Duration) {
        self.changes.retain(|change| change.group != group);
        self.changes.push(Change {
            group,
            record,
            left: ROBUSTNESS,
        });
        self.change_due = Some(now);
    }

    /// Schedules the answer to a query. If an answer is already scheduled, the earlier of the two times applies, and
    /// that answer is for both queries (RFC 3810, 6.2).
    pub(crate) fn query(&mut self, within: Duration, now: Duration, draw: &mut Draw) {
        let due = now + draw.up_to(within);
        self.answer_due = Some(self.answer_due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Drops all pending reports, because the link is down.
    pub(crate) fn link_down(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        [self.change_due, self.answer_due]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the records to report at `now`.
    pub(crate) fn due_records(
        &mut self,
        groups: impl Iterator<Item = Ipv6Addr>,
        now: Duration,
        draw: &mut Draw,
    ) -> Vec<(Ipv6Addr, Record)> {
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= now);
        let mut records = Vec::new();
        if is_due(self.change_due) {
            for change in &mut self.changes {
                change.left -= 1;
                records.push((change.group, change.record));
            }
            self.changes.retain(|change| change.left > 0);
            let more = !self.changes.is_empty();
            self.change_due = more.then(|| now + draw.up_to(UNSOLICITED_REPORT_INTERVAL));
        }
        if is_due(self.answer_due) {
            self.answer_due = None;
            for group in groups {
                if records.iter().all(|&(said, _)| said != group) {
                    records.push((group, Record::Listening));
                }
            }
        }
        records
    }
}
