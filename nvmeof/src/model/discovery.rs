//! Discovery: what a host may find at which addresses.

use std::net::SocketAddr;

use zerocopy::IntoBytes;

use super::{Model, ModelError};
use crate::nvme::Nqn;
use crate::nvme::discovery::{Entry, Head, Kind};

/// Another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// The port's number in the log page.
    pub port: u16,
    /// Where it is.
    pub at: SocketAddr,
}

impl Model {
    /// Leads hosts that discover to another discovery service, too.
    ///
    /// # Errors
    /// They are led there already.
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

    /// Leads them there no more.
    ///
    /// # Errors
    /// They were not.
    pub fn remove_referral(&mut self, at: SocketAddr) -> Result<(), ModelError> {
        let before = self.referrals.len();
        self.referrals.retain(|one| one.at != at);
        if self.referrals.len() == before {
            return Err(ModelError::unknown("referral", at));
        }
        self.discovery_changed();
        Ok(())
    }

    /// The log page: what the controller's host may connect to, the service itself first.
    pub(super) fn discovery_page(&self, id: u16) -> Vec<u8> {
        let controller = &self.controllers[&id];
        let mut entries = Vec::new();
        if let Some(own) = self.ports.get(&controller.port()) {
            let name = Nqn::discovery();
            let here = own.addresses.iter();
            entries.extend(here.map(|at| Entry::new(Kind::Current, &name, own.id, *at)));
        }
        for subsystem in self
            .subsystems
            .values()
            .filter(|one| one.allows(controller.host()))
        {
            for port in self.ports.values() {
                let reached = port.addresses.iter();
                entries.extend(
                    reached.map(|at| Entry::new(Kind::Nvm, subsystem.name(), port.id, *at)),
                );
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
