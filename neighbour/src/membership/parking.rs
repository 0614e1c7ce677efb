//! Pending reports that are handed over to another process.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use super::{Change, Membership};
use crate::address::solicited_node;
use crate::bounds::{self, Bounds};
use crate::config::{ROBUSTNESS, UNSOLICITED_REPORT_INTERVAL};
use crate::resume_error::ResumeError;
use crate::snapshot::{ChangeSnapshot, MembershipSnapshot};
use crate::wire::mld::{LONGEST_DELAY, Record};

impl Membership {
    /// Describes the pending reports of a VLAN.
    pub(crate) fn park(&self, vlan: Option<u16>) -> MembershipSnapshot {
        let changes = self.changes.iter().map(|change| ChangeSnapshot {
            group: change.group,
            joined: change.record == Record::Joined,
            left: change.left,
        });
        MembershipSnapshot {
            vlan,
            changes: changes.collect(),
            change_due: self.change_due,
            answer_due: self.answer_due,
        }
    }

    /// Makes the pending reports again. `groups` are those of our addresses, in all VLANs.
    ///
    /// # Errors
    /// The VLAN or a group is not valid, the reports are not those that our addresses cause, or a time is too late.
    pub(crate) fn resume(
        snapshot: &MembershipSnapshot,
        groups: &BTreeSet<(Option<u16>, Ipv6Addr)>,
        bounds: &Bounds,
    ) -> Result<Self, ResumeError> {
        let vlan = bounds::vlan(snapshot.vlan)?;
        let item = bounds::in_vlan("reports", vlan);
        let MembershipSnapshot {
            changes,
            change_due,
            answer_due,
            ..
        } = snapshot;
        let (change_due, answer_due) = (*change_due, *answer_due);
        if change_due.is_some() == changes.is_empty()
            || !bounds.up && change_due.or(answer_due).is_some()
        {
            let facts = format!(
                "{} changes, due at {change_due:?}, answer due at {answer_due:?}, link up: {}",
                changes.len(),
                bounds.up
            );
            return Err(ResumeError::contradiction(item, facts));
        }
        if let Some(due) = change_due {
            bounds.timer(&item, "report of changes", due, UNSOLICITED_REPORT_INTERVAL)?;
        }
        if let Some(due) = answer_due {
            bounds.timer(&item, "answer to a query", due, LONGEST_DELAY)?;
        }
        let mut seen = BTreeSet::new();
        let mut resumed = Vec::new();
        for &ChangeSnapshot {
            group,
            joined,
            left,
        } in changes
        {
            let item = bounds::in_vlan(&format!("group {group}"), vlan);
            if !seen.insert(group) {
                return Err(ResumeError::Twice { item });
            }
            let is_ours = groups.contains(&(vlan, group));
            if group != solicited_node(group) || joined != is_ours {
                let facts = format!("joined: {joined}, group of an address of ours: {is_ours}");
                return Err(ResumeError::contradiction(item, facts));
            }
            bounds::number(&item, "reports left", left, [1, ROBUSTNESS])?;
            let record = if joined { Record::Joined } else { Record::Left };
            resumed.push(Change {
                group,
                record,
                left,
            });
        }
        Ok(Self {
            changes: resumed,
            change_due,
            answer_due,
        })
    }
}
