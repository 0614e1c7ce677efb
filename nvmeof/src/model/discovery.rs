//! Discovery: the subsystems that a host may connect to, and their addresses.

use std::net::{IpAddr, SocketAddr};

use zerocopy::IntoBytes;

use super::{Model, ModelError, Port};
use crate::nvme::Nqn;
use crate::nvme::discovery::{Entry, Head, Kind};

/// A referral to another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Number of the port for the log page.
    pub port: u16,
    /// Address of the discovery service.
    pub at: SocketAddr,
}

impl Port {
    /// Returns the addresses for the log page. A link-local address is meaningless without the host's own interface, so
    /// link-local addresses are listed only if there are no others.
    fn log_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let is_local = |at: &SocketAddr| match at.ip() {
            IpAddr::V6(address) => address.is_unicast_link_local(),
            IpAddr::V4(address) => address.is_link_local(),
        };
        let all_are = self.addresses.iter().all(is_local);
        let all = self.addresses.iter().copied();
        all.filter(move |at| all_are || !is_local(at))
    }
}

impl Model {
    /// Adds a referral to another discovery service.
    ///
    /// # Errors
    /// There is a referral to this address already.
    pub fn add_referral(&mut self, port: u16, at: SocketAddr) -> Result<(), ModelError> {
        if self.referrals.iter().any(|one| one.at == at) {
            return Err(ModelError::Exists {
                kind: "referral",
                name: at.to_string(),
            });
        }
        self.referrals.push(Referral { port, at });
        self.discovery_changed();
        Ok(())
    }

    /// Removes a referral.
    ///
    /// # Errors
    /// There is no such referral.
    pub fn remove_referral(&mut self, at: SocketAddr) -> Result<(), ModelError> {
        let before = self.referrals.len();
        self.referrals.retain(|one| one.at != at);
        if self.referrals.len() == before {
            return Err(ModelError::unknown("referral", at));
        }
        self.discovery_changed();
        Ok(())
    }

    /// Returns the discovery log page: first the discovery service itself, then the subsystems that the controller's
    /// host may connect to, then the referrals.
    pub(super) fn discovery_page(&self, id: u16) -> Vec<u8> {
        let controller = &self.controllers[&id];
        let mut entries = Vec::new();
        if let Some(own) = self.ports.get(&controller.port()) {
            let name = Nqn::discovery();
            entries.extend(
                own.log_addresses()
                    .map(|at| Entry::new(Kind::Current, &name, own.id, at)),
            );
        }
        for subsystem in self
            .subsystems
            .values()
            .filter(|one| one.allows(controller.host()))
        {
            for port in self.ports.values() {
                let reached = port.log_addresses();
                entries
                    .extend(reached.map(|at| Entry::new(Kind::Nvm, subsystem.name(), port.id, at)));
            }
        }
        let elsewhere = self.referrals.iter();
        let name = Nqn::discovery();
        entries.extend(elsewhere.map(|one| Entry::new(Kind::Referral, &name, one.port, one.at)));
        let mut page = Head::new(self.generation, entries.len() as u64)
            .as_bytes()
            .to_vec(); // CAST: widening.
        page.extend(entries.iter().flat_map(|entry| entry.as_bytes().to_vec()));
        page
    }
}
