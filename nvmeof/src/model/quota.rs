//! Quotas: the share of a party in a pool.

use std::net::IpAddr;

use super::{Controller, Model, NotConnected};
use crate::nvme::{Nqn, Status};

/// Most controllers of subsystems. Discovery controllers, and those that have not authenticated, have pools of their
/// own.
const CONTROLLERS: u32 = 1024;
/// Most controllers of discovery, and most of hosts that have not authenticated. One more ends the oldest of the
/// address that has the most.
pub(super) const GUEST_CONTROLLERS: usize = 256;
/// Most such controllers of one address. One more ends the oldest of them.
pub(super) const GUEST_CONTROLLERS_OF_SOURCE: usize = 32;
/// Controllers of subsystems that a host gets whenever they are free: two paths to eight subsystems.
const FIRST_CONTROLLERS: u32 = 16;

/// The owner of something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Hosts at this address: those that discover, have not authenticated, or connect to a subsystem that is open to
    /// any host. Names cost nothing there.
    Source(IpAddr),
    /// A host that a subsystem lists by its name, or that has a key.
    Host(Nqn),
}

/// Returns whether a party that has `own` pieces gets `asked` more of those that are `left`: afterwards it has no more
/// than it leaves to others, or no more than the `first` ones that each party gets.
#[must_use]
pub fn is_fair(own: u32, asked: u32, left: u32, first: u32) -> bool {
    let after = own.saturating_add(asked);
    asked <= left && (after <= left - asked || after <= first)
}

/// Kinds of controllers that have a pool each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Discovery,
    NotAuthenticated,
    Hosts,
}

impl Model {
    /// The party that the controllers of a host at a subsystem are counted for.
    pub(super) fn party(&self, subsystem: &Nqn, host: &Nqn, source: IpAddr) -> Party {
        let of = self.subsystems.get(subsystem);
        let is_listed = of.is_some_and(|one| one.hosts().any(|listed| listed == host));
        if is_listed || self.keys.contains_key(host) {
            Party::Host(host.clone())
        } else {
            Party::Source(source)
        }
    }

    fn pool(&self, controller: &Controller) -> Pool {
        if controller.is_discovery() {
            Pool::Discovery
        } else if self.is_authenticated(controller.id(), 0) {
            Pool::Hosts
        } else {
            Pool::NotAuthenticated
        }
    }

    /// Makes room for one more controller.
    ///
    /// # Errors
    /// Controller Busy: the party has its share. It may try again.
    pub(super) fn make_room(
        &mut self,
        subsystem: &Nqn,
        host: &Nqn,
        source: IpAddr,
    ) -> Result<(), NotConnected> {
        let must_authenticate = self.keys.contains_key(host);
        if subsystem.is_discovery() {
            self.displace(Pool::Discovery, source);
            return Ok(());
        }
        let party = self.party(subsystem, host, source);
        if let Err((own, left)) = self.has_part(&party) {
            if let Some(unlogged) = self.lines.take(source, "busy", self.latest) {
                tracing::warn!(%host, %source, own, left, unlogged, "no controller: the host has as many as are left, or none is");
            }
            return Err(NotConnected {
                // Without DNR: the host tries again.
                status: Status::CONTROLLER_BUSY,
                result: 0,
            });
        }
        if must_authenticate {
            self.displace(Pool::NotAuthenticated, source);
        }
        Ok(())
    }

    /// Returns whether a party gets one more of the hosts' controllers.
    ///
    /// # Errors
    /// The number it has, and the number that is left.
    fn has_part(&self, party: &Party) -> Result<(), (u32, u32)> {
        let hosts = self.controllers.values();
        let hosts = hosts.filter(|one| self.pool(one) == Pool::Hosts);
        let (mut all, mut own) = (0, 0);
        for one in hosts {
            all += 1;
            own += u32::from(one.party() == party);
        }
        let left = CONTROLLERS.saturating_sub(all);
        if is_fair(own, 1, left, FIRST_CONTROLLERS) {
            Ok(())
        } else {
            Err((own, left))
        }
    }

    /// Returns whether a controller may count among the hosts' after authentication: others may have taken the last
    /// place since its Connect.
    pub(super) fn has_place_after_authentication(&mut self, id: u16) -> bool {
        let Some(one) = self.controllers.get(&id) else {
            return false;
        };
        let Err((own, left)) = self.has_part(one.party()) else {
            return true;
        };
        let (host, source) = (one.host().clone(), one.source());
        if let Some(unlogged) = self.lines.take(source, "busy", self.latest) {
            tracing::warn!(controller = id, %host, %source, own, left, unlogged, "authenticated, and no place: the host has as many controllers as are left, or none is");
        }
        false
    }

    /// Ends a controller of a pool if one more would be too many: the oldest of the address that has the most, or of
    /// the newcomer's own. Age counts from Connect, and no command makes a controller younger: a host that reads a
    /// property now and then keeps its place no longer than others.
    fn displace(&mut self, pool: Pool, newcomer: IpAddr) {
        let mut counts = std::collections::BTreeMap::<IpAddr, usize>::new();
        let there = self.controllers.values();
        let there: Vec<&Controller> = there.filter(|one| self.pool(one) == pool).collect();
        for one in &there {
            *counts.entry(one.source()).or_default() += 1;
        }
        let own = counts.get(&newcomer).copied().unwrap_or(0);
        let most = counts.iter().max_by_key(|(_, count)| **count);
        let source = match most {
            _ if own >= GUEST_CONTROLLERS_OF_SOURCE => newcomer,
            Some((source, _)) if there.len() >= GUEST_CONTROLLERS => *source,
            _ => return,
        };
        let theirs = there.iter().filter(|one| one.source() == source);
        let oldest = theirs.min_by_key(|one| (one.since(), one.id()));
        if let Some(id) = oldest.map(|one| one.id()) {
            self.displaced += 1;
            if let Some(unlogged) = self.lines.take(source, "displaced", self.latest) {
                tracing::info!(controller = id, %source, ?pool, unlogged, "ends for a newcomer");
            }
            self.end_controller(id);
        }
    }

    /// Number of controllers that ended to make room for others.
    #[must_use]
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }
}
