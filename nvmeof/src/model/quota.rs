//! Quotas of controllers: how many of a pool a party may have.

use std::net::IpAddr;

use super::{Controller, Model, ModelResumeError, NotConnected, Party, is_fair};
use crate::nvme::{Nqn, Status};

/// Maximum number of controllers of subsystems, if they have authenticated or need not authenticate. Discovery
/// controllers, and controllers that have yet to authenticate, have their own pools.
const CONTROLLERS: u32 = 1024;
/// Maximum number of discovery controllers, and of controllers that have not authenticated. A new controller beyond the
/// maximum ends the oldest controller of the address that has the most controllers of that pool.
pub(super) const GUEST_CONTROLLERS: usize = 256;
/// Maximum number of such controllers of one address. A new controller beyond the maximum ends the oldest of them.
pub(super) const GUEST_CONTROLLERS_OF_SOURCE: usize = 32;
/// Number of controllers that a party gets whenever there are free ones: two paths to each of eight subsystems.
const FIRST_CONTROLLERS: u32 = 16;

/// Kind of controllers that has its own pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Discovery,
    NotAuthenticated,
    Hosts,
}

impl Model {
    /// Returns the party that the controllers of a host at a subsystem are counted for.
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

    /// Ensures that one more controller may be added, by ending another one if necessary.
    ///
    /// # Errors
    /// Controller Busy: the party has reached its quota, or no controller is left. The host may try again.
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
                tracing::warn!(%host, %source, own, left, unlogged, "no controller: the host has reached its quota, or none is left");
            }
            return Err(NotConnected {
                // DNR is not set, so that the host tries again.
                status: Status::CONTROLLER_BUSY,
                result: 0,
            });
        }
        if must_authenticate {
            self.displace(Pool::NotAuthenticated, source);
        }
        Ok(())
    }

    /// Checks whether a party gets one more controller of the pool of hosts.
    ///
    /// # Errors
    /// The number of controllers that the party has, and the number that is left.
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

    /// Returns whether a controller that has authenticated may move to the pool of hosts. Other controllers may have
    /// filled that pool since its Connect.
    pub(super) fn has_place_after_authentication(&mut self, id: u16) -> bool {
        let Some(one) = self.controllers.get(&id) else {
            return false;
        };
        let Err((own, left)) = self.has_part(one.party()) else {
            return true;
        };
        let (host, source) = (one.host().clone(), one.source());
        if let Some(unlogged) = self.lines.take(source, "busy", self.latest) {
            tracing::warn!(controller = id, %host, %source, own, left, unlogged, "authenticated, but gets no controller: the host has reached its quota, or none is left");
        }
        false
    }

    /// Checks that resumed controllers fit into their pools. Sums are not in a snapshot, so they are counted.
    pub(super) fn check_pools(&self) -> Result<(), ModelResumeError> {
        let mut counts = std::collections::BTreeMap::<Pool, u64>::new();
        let mut guests = std::collections::BTreeMap::<(Pool, IpAddr), u64>::new();
        for one in self.controllers.values() {
            let pool = self.pool(one);
            *counts.entry(pool).or_default() += 1;
            if pool != Pool::Hosts {
                *guests.entry((pool, one.source())).or_default() += 1;
            }
        }
        for (pool, count) in counts {
            // CAST: widening.
            let most = match pool {
                Pool::Hosts => u64::from(CONTROLLERS),
                Pool::Discovery | Pool::NotAuthenticated => GUEST_CONTROLLERS as u64,
            };
            let of = format!("controllers ({pool:?})");
            ModelResumeError::check_range(of, [("count", count, most)])?;
        }
        for ((pool, source), count) in guests {
            // CAST: widening.
            let most = GUEST_CONTROLLERS_OF_SOURCE as u64;
            let of = format!("controllers of {source} ({pool:?})");
            ModelResumeError::check_range(of, [("count", count, most)])?;
        }
        Ok(())
    }

    /// Ends a controller of a pool if one more would exceed a maximum: the oldest one of the address that has the most,
    /// or of the new controller's own address. Age counts from the Connect. No command makes a controller younger, so a
    /// host cannot stay longer by reading a property now and then.
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

    /// Returns the number of controllers that were ended in favour of new ones.
    #[must_use]
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }
}
