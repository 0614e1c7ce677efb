//! Reload: the steps from the current settings to the wanted ones.
//!
//! Removals come first, so that names, numbers and identifiers are free for additions. If a step is refused, the
//! refusal is reported and the other steps are still made. So a wrong path of one disk does not keep hosts from the
//! other disks.

use super::settings::{Settings, SubsystemSettings};
use super::state::{Daemon, DaemonError};
use crate::nvme::Nqn;

/// Outcome of a reload.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Steps that succeeded.
    pub done: Vec<String>,
    /// Steps that were refused, each with the reason.
    pub refused: Vec<(String, DaemonError)>,
    /// Changed settings that take effect only after a restart.
    pub needs_restart: Vec<String>,
}

impl Reloaded {
    fn took(&mut self, what: String, result: Result<(), DaemonError>) -> bool {
        match result {
            Ok(()) => {
                self.done.push(what);
                true
            }
            Err(error) => {
                self.refused.push((what, error));
                false
            }
        }
    }
}

impl Daemon {
    /// Makes the steps from the current settings to the wanted ones.
    pub fn reload(&mut self, wanted: &Settings) -> Reloaded {
        let before = self.settings().clone();
        let mut told = Reloaded::default();
        for (what, differs) in [
            ("the control socket", before.control != wanted.control),
            (
                "the address of the metrics",
                before.metrics != wanted.metrics,
            ),
        ] {
            if differs {
                told.needs_restart.push(what.to_owned());
            }
        }
        self.set_log(wanted.log.clone());
        self.set_strict(wanted.strict);
        self.take_away(&before, wanted, &mut told);
        for (name, subsystem) in &wanted.subsystems {
            match before.subsystems.get(name) {
                None => {
                    let added = self.add_subsystem(name, subsystem);
                    told.took(format!("subsystem {name} added"), added);
                }
                Some(there) => self.change(name, there, subsystem, &mut told),
            }
        }
        for (at, port) in &wanted.referrals {
            if before.referrals.get(at) != Some(port) {
                let added = self.add_referral(*at, *port);
                told.took(format!("referral to {at} added"), added);
            }
        }
        for (id, port) in &wanted.ports {
            let there = self.settings().ports.get(id).cloned();
            let Some(there) = there else {
                let added = self.add_port(*id, port);
                told.took(format!("port {id} added"), added);
                continue;
            };
            for group in 1..=crate::model::GROUPS {
                let (is, is_to_be) = (there.access.get(&group), port.access.get(&group));
                if is != is_to_be {
                    let access = is_to_be.copied().unwrap_or_default();
                    let set = self.set_access(*id, group, access);
                    told.took(format!("port {id}: access to group {group}"), set);
                }
            }
        }
        told
    }

    fn take_away(&mut self, before: &Settings, wanted: &Settings, told: &mut Reloaded) {
        for (id, port) in &before.ports {
            // A change of anything but the access needs new workers, so the port is removed and added again.
            let mut as_wanted = wanted.ports.get(id).cloned();
            if let Some(wanted) = &mut as_wanted {
                wanted.access.clone_from(&port.access);
            }
            if as_wanted.as_ref() != Some(port) {
                let removed = self.remove_port(*id);
                told.took(format!("port {id} removed"), removed);
            }
        }
        for (name, subsystem) in &before.subsystems {
            let Some(wanted) = wanted.subsystems.get(name) else {
                let removed = self.remove_subsystem(name);
                told.took(format!("subsystem {name} removed"), removed);
                continue;
            };
            for (nsid, namespace) in &subsystem.namespaces {
                let is_to_be = wanted.namespaces.get(nsid);
                if is_to_be == Some(namespace) {
                    // The settings are equal, so the namespace keeps its open file, even if its path was replaced.
                    if let Err(error) = self.check_path(name, *nsid) {
                        told.refused
                            .push((format!("namespace {nsid} of {name} stays as it is"), error));
                    }
                    continue;
                }
                // If the new disk cannot be opened, the old one stays.
                if let Some(is_to_be) = is_to_be
                    && let Err(error) = self.try_disk(name, *nsid, is_to_be, namespace)
                {
                    told.refused
                        .push((format!("namespace {nsid} of {name} stays as it is"), error));
                    continue;
                }
                let removed = self.remove_namespace(name, *nsid);
                told.took(format!("namespace {nsid} of {name} removed"), removed);
            }
        }
        for (at, port) in &before.referrals {
            if wanted.referrals.get(at) != Some(port) {
                let removed = self.remove_referral(*at);
                told.took(format!("referral to {at} removed"), removed);
            }
        }
    }

    fn change(
        &mut self,
        name: &Nqn,
        there: &SubsystemSettings,
        wanted: &SubsystemSettings,
        told: &mut Reloaded,
    ) {
        for (what, differs) in [
            ("serial", there.serial != wanted.serial),
            ("model", there.model != wanted.model),
            ("any_host", there.any_host != wanted.any_host),
        ] {
            if differs {
                told.needs_restart
                    .push(format!("{what} of subsystem {name}"));
            }
        }
        for host in there.hosts.keys() {
            if !wanted.hosts.contains_key(host) {
                let forbidden = self.forbid_host(name, host);
                told.took(format!("host {host} of {name} removed"), forbidden);
            }
        }
        for (host, settings) in &wanted.hosts {
            if there.hosts.get(host) != Some(settings) {
                let allowed = self.allow_host(name, host, settings);
                told.took(format!("host {host} of {name} added"), allowed);
            }
        }
        for (nsid, namespace) in &wanted.namespaces {
            let subsystem = self.settings().subsystems.get(name);
            if subsystem.is_some_and(|of| of.namespaces.contains_key(nsid)) {
                continue;
            }
            let added = self.add_namespace(name, *nsid, namespace);
            if told.took(format!("namespace {nsid} of {name} added"), added) {
                continue;
            }
            if let Some(before) = there.namespaces.get(nsid) {
                let back = self.add_namespace(name, *nsid, before);
                told.took(format!("namespace {nsid} of {name} as it was"), back);
            }
        }
    }
}
