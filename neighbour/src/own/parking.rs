//! Addresses of ours that are handed over to another process.

use std::time::Duration;

use super::{Claim, Own};
use crate::address::checked;
use crate::bounds::{self, Bounds};
use crate::config::{ANNOUNCE_INTERVAL, ANNOUNCE_JITTER, DUP_ADDR_DETECT_TRANSMITS, PROBE_NUM};
use crate::resume_error::ResumeError;
use crate::snapshot::AddressSnapshot;

/// Longest time from one action for an address to the next: that between two announcements. Those of detection are
/// shorter.
const LONGEST_WAIT: Duration = ANNOUNCE_INTERVAL.saturating_add(ANNOUNCE_JITTER);

impl Own {
    /// Describes the address. The snapshot of a duplicate has no probes that are left, because detection starts again
    /// with all of them.
    pub(crate) fn park(&self) -> AddressSnapshot {
        AddressSnapshot {
            address: self.interface,
            claim: self.claim,
            left: match self.claim {
                Claim::Tentative | Claim::Optimistic => self.probes,
                Claim::Preferred => self.announcements,
                Claim::Duplicate => 0,
            },
            due: self.due,
            defended: self.defended,
        }
    }

    /// Makes the address again.
    ///
    /// # Errors
    /// The address is not valid, or it cannot be in the state.
    pub(crate) fn resume(snapshot: &AddressSnapshot, bounds: &Bounds) -> Result<Self, ResumeError> {
        let AddressSnapshot {
            address,
            claim,
            left,
            due,
            defended,
        } = *snapshot;
        let mut own = Self {
            interface: checked(address)?,
            claim,
            due,
            probes: 0,
            announcements: 0,
            defended,
        };
        let item = format!("address {}", own.address());
        let v4 = own.address().is_ipv4();
        let most = match (claim, v4) {
            (Claim::Tentative, true) => PROBE_NUM,
            (Claim::Tentative | Claim::Optimistic, false) => DUP_ADDR_DETECT_TRANSMITS,
            (Claim::Preferred, _) => own.times(),
            (Claim::Duplicate, _) => 0,
            (Claim::Optimistic, true) => {
                let facts = "an IPv4 address is not Optimistic";
                return Err(ResumeError::contradiction(item, facts));
            }
        };
        bounds::number(&item, "frames left", left, [0, most])?;
        let has_timer = bounds.up
            && match claim {
                Claim::Tentative | Claim::Optimistic => true,
                Claim::Preferred => left > 0,
                Claim::Duplicate => false,
            };
        if due.is_some() != has_timer || defended.is_some() && claim != Claim::Preferred {
            let facts = format!(
                "{claim:?}, {left} frames left, due at {due:?}, defended at {defended:?}, link up: {}",
                bounds.up
            );
            return Err(ResumeError::contradiction(item, facts));
        }
        if let Some(due) = due {
            bounds.timer(&item, "next action", due, LONGEST_WAIT)?;
        }
        if let Some(defended) = defended {
            bounds.past(&item, "defence", defended)?;
        }
        match claim {
            Claim::Tentative | Claim::Optimistic => own.probes = left,
            Claim::Preferred => own.announcements = left,
            Claim::Duplicate => {}
        }
        Ok(own)
    }
}
