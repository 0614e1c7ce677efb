//! Access of ports to groups of namespaces: asymmetric namespace access (ANA).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::refusal::MOST_COUNTED;
use super::snapshot::PortSnapshot;
use super::{Answer, Model, ModelError, ModelResumeError, Port, Status, event};
use crate::nvme::log::{Access, AccessGroup, AccessHead};
use zerocopy::IntoBytes;

/// Number of groups. The numbers of groups start at 1.
pub const GROUPS: u32 = 16;

/// Access of a port to each group. Workers read it for each command. Only the model changes it.
#[derive(Debug)]
pub struct PortAccess {
    states: [AtomicU8; GROUPS as usize],
    changes: AtomicU64,
}

impl Default for PortAccess {
    fn default() -> Self {
        Self {
            states: core::array::from_fn(|_| AtomicU8::new(Access::Optimized as u8)),
            changes: AtomicU64::new(0),
        }
    }
}

impl PortAccess {
    /// Returns the access to a group. A group out of range is inaccessible.
    #[must_use]
    pub fn state(&self, group: u32) -> Access {
        let at = usize::try_from(group.wrapping_sub(1)).unwrap_or(usize::MAX);
        let state = self
            .states
            .get(at)
            .map_or(0, |state| state.load(Ordering::Relaxed));
        [
            Access::Optimized,
            Access::NonOptimized,
            Access::PersistentLoss,
            Access::Change,
        ]
        .into_iter()
        .find(|known| *known as u8 == state)
        .unwrap_or(Access::Inaccessible)
    }

    /// Checks that this port may carry out commands for a group.
    ///
    /// # Errors
    /// The ANA status, which makes the host try its other paths.
    #[inline]
    pub fn check(&self, group: u32) -> Result<(), Status> {
        let state = usize::try_from(group.wrapping_sub(1))
            .ok()
            .and_then(|at| self.states.get(at));
        // The optimized state is the usual one, so it is checked first.
        if state.is_some_and(|state| state.load(Ordering::Relaxed) == Access::Optimized as u8) {
            return Ok(());
        }
        match self.state(group) {
            Access::Optimized | Access::NonOptimized => Ok(()),
            Access::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            Access::PersistentLoss => Err(Status::ANA_LOSS),
            Access::Change => Err(Status::ANA_CHANGE),
        }
    }
}

impl Port {
    /// Writes the port's access out.
    pub(super) fn park(&self) -> PortSnapshot {
        let changes = self.access.changes.load(Ordering::Relaxed);
        PortSnapshot {
            id: self.id,
            access: (1..=GROUPS).map(|group| self.access.state(group)).collect(),
            changes: changes.min(MOST_COUNTED),
        }
    }

    /// Checks that the port can go on with a parked port's access.
    pub(super) fn check(&self, parked: &PortSnapshot) -> Result<(), ModelResumeError> {
        let of = format!("port {}", self.id);
        let changes = ("changes", parked.changes, MOST_COUNTED);
        ModelResumeError::check_range(&of, [changes])?;
        let (is, has) = (parked.access.len(), self.access.states.len());
        let what = format!("access to {is} groups: there are {has}");
        ModelResumeError::check(is == has, of, what)
    }

    /// Goes on with a parked port's access, which was checked.
    pub(super) fn resume(&self, parked: &PortSnapshot) {
        for (state, access) in self.access.states.iter().zip(&parked.access) {
            state.store(*access as u8, Ordering::Relaxed);
        }
        self.access.changes.store(parked.changes, Ordering::Relaxed);
    }
}

impl Model {
    /// Sets the access of a port to a group of namespaces. Hosts that are connected by the port get an event.
    ///
    /// # Errors
    /// There is no such port, or no such group.
    pub fn set_access(&mut self, port: u16, group: u32, access: Access) -> Result<(), ModelError> {
        let at = usize::try_from(group.wrapping_sub(1)).unwrap_or(usize::MAX);
        let range = ModelError::Range {
            kind: "group",
            number: group,
            most: GROUPS,
        };
        let of = self.ports.get(&port);
        let of = of.ok_or_else(|| ModelError::unknown("port", port))?;
        of.access
            .states
            .get(at)
            .ok_or(range)?
            .store(access as u8, Ordering::Relaxed);
        of.access.changes.fetch_add(1, Ordering::Relaxed);
        let here = self.controllers.values().filter(|one| one.port() == port);
        let ids: Vec<u16> = here.map(super::Controller::id).collect();
        for id in ids {
            self.push_event(id, event::Kind::Access);
        }
        Ok(())
    }

    /// Returns the ANA log page: every group with namespaces that the controller's host sees. `only_groups` (RGO)
    /// omits the numbers of the namespaces.
    pub(super) fn access_page(&self, controller: &super::Controller, only_groups: bool) -> Answer {
        let (Some(port), Some(subsystem)) = (
            self.ports.get(&controller.port()),
            self.subsystems.get(controller.subsystem()),
        ) else {
            return Status::INTERNAL.into();
        };
        let changes = port.access.changes.load(Ordering::Relaxed);
        let mut groups = Vec::new();
        let mut count = 0;
        for group in 1..=GROUPS {
            let seen = subsystem.seen_by(controller.host());
            let members = seen.filter(|one| one.group() == group);
            let members: Vec<u32> = members.map(|one| one.nsid()).collect();
            if members.is_empty() {
                continue;
            }
            count += 1;
            let told: &[u32] = if only_groups { &[] } else { &members };
            let member_count = u32::try_from(told.len()).unwrap_or(u32::MAX);
            let head = AccessGroup::new(group, member_count, changes, port.access.state(group));
            groups.extend_from_slice(head.as_bytes());
            for nsid in told {
                groups.extend_from_slice(zerocopy::little_endian::U32::new(*nsid).as_bytes());
            }
        }
        let mut page = AccessHead::new(changes, count).as_bytes().to_vec();
        page.extend(groups);
        Answer::data(page)
    }
}
