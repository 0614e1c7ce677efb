//! Reload: the steps from the current settings to the wanted ones.
//!
//! Removals come first, so that names, numbers and identifiers are free for additions. If a step is refused, the
//! refusal is reported and the other steps are still made. So a wrong path of one disk does not keep hosts from the
//! other disks.

use std::collections::BTreeMap;

use super::settings::{NamespaceSettings, Settings, SubsystemSettings};
use super::state::{Daemon, DaemonError, keys_of, keys_of_all};
use crate::auth::Keys;
use crate::disk::OwnLocks;
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

/// Namespaces that stay as they are, by subsystem and NSID, each with the reason why its new disk is refused.
type Staying = BTreeMap<(Nqn, u32), DaemonError>;

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
        let mut told = Reloaded::default();
        self.set_limits(wanted, &mut told);
        self.take_access_away(wanted, &mut told);
        self.set_hosts_of_namespaces(wanted, &mut told);
        let before = self.settings().clone();
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
                    let keys = keys_of_all(wanted, name, subsystem);
                    let added =
                        keys.and_then(|keys| self.add_subsystem_with(name, subsystem, keys));
                    told.took(format!("subsystem {name} added"), added);
                }
                Some(there) => self.change(name, there, subsystem, wanted, &mut told),
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

    /// Sets the limits of namespaces and hosts. The other steps see no difference of limits then, so a namespace or a
    /// host that differs in nothing else stays.
    fn set_limits(&mut self, wanted: &Settings, told: &mut Reloaded) {
        for (name, subsystem) in self.settings().subsystems.clone() {
            for (host, there) in subsystem.hosts {
                let of = wanted.subsystems.get(&name);
                let is_to_be = of.and_then(|of| of.hosts.get(&host));
                if let Some(is_to_be) = is_to_be
                    && is_to_be.limit != there.limit
                {
                    let set = self.limit_host(&name, &host, is_to_be.limit);
                    told.took(format!("limit of host {host} at {name}"), set);
                }
            }
            for (nsid, there) in subsystem.namespaces {
                let of = wanted.subsystems.get(&name);
                let is_to_be = of.and_then(|of| of.namespaces.get(&nsid));
                if let Some(is_to_be) = is_to_be
                    && is_to_be.limit != there.limit
                {
                    let set = self.set_limit(&name, nsid, is_to_be.limit);
                    told.took(format!("limit of namespace {nsid} of {name}"), set);
                }
            }
        }
    }

    /// Ends the access of hosts that are not to have it. A namespace may be shown to more hosts afterwards, none of
    /// which must be one of these.
    fn take_access_away(&mut self, wanted: &Settings, told: &mut Reloaded) {
        for (name, there) in self.settings().subsystems.clone() {
            let Some(of) = wanted.subsystems.get(&name) else {
                continue;
            };
            if there.any_host && !of.any_host {
                let set = self.set_any_host(&name, false);
                told.took(format!("any_host = false of subsystem {name}"), set);
            }
            for host in there.hosts.keys() {
                if !of.hosts.contains_key(host) {
                    let forbidden = self.forbid_host(&name, host);
                    told.took(format!("host {host} of {name} removed"), forbidden);
                }
            }
        }
    }

    /// Sets the hosts that see the namespaces, as [`Self::set_limits`] sets their limits.
    fn set_hosts_of_namespaces(&mut self, wanted: &Settings, told: &mut Reloaded) {
        for (name, subsystem) in self.settings().subsystems.clone() {
            for (nsid, there) in subsystem.namespaces {
                let of = wanted.subsystems.get(&name);
                let is_to_be = of.and_then(|of| of.namespaces.get(&nsid));
                // A namespace that differs in more is removed and added with its new hosts, which must not see the disk
                // that it has until then.
                let only_hosts = |is_to_be: &NamespaceSettings| {
                    let hosts = there.hosts.clone();
                    NamespaceSettings {
                        hosts,
                        ..is_to_be.clone()
                    } == there
                };
                if let Some(is_to_be) = is_to_be.filter(|one| only_hosts(one))
                    && is_to_be.hosts != there.hosts
                {
                    let set = self.set_hosts(&name, nsid, is_to_be.hosts.clone());
                    told.took(format!("hosts of namespace {nsid} of {name}"), set);
                }
            }
        }
    }

    /// Returns the locks that this reload releases and those that it keeps. A file's lock is released if all namespaces
    /// that have locked it are removed or changed. Namespaces in `staying` keep their locks.
    fn own_locks(&self, before: &Settings, wanted: &Settings, staying: &Staying) -> OwnLocks {
        let mut own = OwnLocks::default();
        for (name, subsystem) in &before.subsystems {
            let of = wanted.subsystems.get(name);
            for (nsid, namespace) in &subsystem.namespaces {
                let there = self.target().with(|model| model.namespace(name, *nsid));
                let Ok(there) = there else { continue };
                let goes = of.and_then(|of| of.namespaces.get(nsid)) != Some(namespace)
                    && !staying.contains_key(&(name.clone(), *nsid));
                let files = if goes {
                    &mut own.released
                } else {
                    &mut own.kept
                };
                files.extend(there.disk().locked());
            }
        }
        own.released.retain(|file| !own.kept.contains(file));
        own
    }

    /// Returns the namespaces whose settings change but whose new disk is refused, each with the reason. Such a
    /// namespace keeps its old disk locked, and another namespace may want that disk. So all checks are repeated until
    /// none refuses a further disk.
    fn staying(&self, before: &Settings, wanted: &Settings) -> Staying {
        let mut staying = Staying::new();
        loop {
            let own = self.own_locks(before, wanted, &staying);
            let refused = staying.len();
            for (name, subsystem) in &before.subsystems {
                let Some(wanted) = wanted.subsystems.get(name) else {
                    continue;
                };
                for (nsid, namespace) in &subsystem.namespaces {
                    let key = (name.clone(), *nsid);
                    if let Some(is_to_be) = wanted.namespaces.get(nsid)
                        && is_to_be != namespace
                        && !staying.contains_key(&key)
                        && let Err(error) = self.try_disk(name, *nsid, is_to_be, namespace, &own)
                    {
                        staying.insert(key, error);
                    }
                }
            }
            if staying.len() == refused {
                return staying;
            }
        }
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
        let mut staying = self.staying(before, wanted);
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
                // If the new disk cannot be opened or locked, the old one stays.
                if let Some(error) = staying.remove(&(name.clone(), *nsid)) {
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
        all: &Settings,
        told: &mut Reloaded,
    ) {
        for (what, differs) in [
            ("serial", there.serial != wanted.serial),
            ("model", there.model != wanted.model),
        ] {
            if differs {
                told.needs_restart
                    .push(format!("{what} of subsystem {name}"));
            }
        }
        if there.queues != wanted.queues {
            let set = self.set_queues(name, wanted.queues);
            let what = format!("queues = {} of subsystem {name}", wanted.queues);
            told.took(what, set);
        }
        if !there.any_host && wanted.any_host {
            let set = self.set_any_host(name, true);
            told.took(format!("any_host = true of subsystem {name}"), set);
        }
        for (host, settings) in &wanted.hosts {
            // The keys are compared, too, because the content of a file may have changed. A host has one key for all
            // subsystems: its key is checked against the wanted settings of the other subsystems, not the current ones.
            let keys = keys_of(all, name, host, settings);
            let is_same = |keys: &Option<Keys>| {
                keys.is_none()
                    || self
                        .target()
                        .with(|model| model.keys(host) == keys.as_ref())
            };
            if there.hosts.get(host) == Some(settings) && keys.as_ref().is_ok_and(is_same) {
                continue;
            }
            let allowed = keys.and_then(|keys| self.allow_host_with(name, host, settings, keys));
            let what = if there.hosts.contains_key(host) {
                "changed"
            } else {
                "added"
            };
            told.took(format!("host {host} of {name} {what}"), allowed);
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::settings::HostSettings;
    use super::*;
    use crate::disk::Source;
    use crate::model::Limit;
    use crate::serve::Target;

    const HOST: &str = "nqn.2026-11.test:host";
    const KEYS: [&str; 2] = [
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    ];

    fn name(text: &str) -> Nqn {
        text.parse().expect("a name")
    }

    /// Returns the settings of these subsystems, each of which lists the host with this file of its key.
    fn listed(subsystems: &[&str], key: &str, folder: &tempfile::TempDir) -> Settings {
        let of_host = HostSettings {
            key: Some(folder.path().join(key)),
            ..HostSettings::default()
        };
        let mut settings = Settings::default();
        for subsystem in subsystems {
            let mut of = SubsystemSettings::new(&name(subsystem));
            of.hosts.insert(name(HOST), of_host.clone());
            settings.subsystems.insert(name(subsystem), of);
        }
        settings
    }

    fn has(daemon: &Daemon, key: &str) -> bool {
        let key = key.parse().expect("a key");
        let host = name(HOST);
        let of = |keys: &Keys| keys.host == key;
        daemon
            .target()
            .with(|model| model.keys(&host).is_some_and(of))
    }

    #[test]
    fn a_reload_takes_in_the_new_content_of_a_keys_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |content: &str| fs::write(folder.path().join("a"), content).expect("room");
        write(KEYS[0]);
        let settings = listed(&["nqn.2026-11.test:a"], "a", &folder);
        let mut daemon = Daemon::new(Target::default());
        let added = daemon.reload(&settings);
        assert!(
            added.refused.is_empty() && has(&daemon, KEYS[0]),
            "{added:?}"
        );
        let same = daemon.reload(&settings);
        assert!(same.done.is_empty() && same.refused.is_empty(), "{same:?}");
        write(KEYS[1]);
        let changed = daemon.reload(&settings);
        assert_eq!(changed.done.len(), 1, "{changed:?}");
        assert!(has(&daemon, KEYS[1]));
        // A file without a key leaves the key as it is.
        write("no key");
        let refused = daemon.reload(&settings);
        assert_eq!((refused.done.len(), refused.refused.len()), (0, 1));
        assert!(has(&daemon, KEYS[1]));
    }

    #[test]
    fn a_reload_lets_any_host_in_or_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a"), KEYS[0]).expect("room");
        let of = "nqn.2026-11.test:a";
        let mut settings = listed(&[of], "a", &folder);
        let mut daemon = Daemon::new(Target::default());
        daemon.reload(&settings);
        let other = name("nqn.2026-11.test:other");
        let allows = |daemon: &Daemon| {
            daemon.target().with(|model| {
                let mut all = model.subsystems();
                all.any(|one| one.allows(&other))
            })
        };
        for any_host in [true, false] {
            let subsystem = settings.subsystems.get_mut(&name(of));
            subsystem.expect("a subsystem").any_host = any_host;
            let told = daemon.reload(&settings);
            assert_eq!(
                (told.done.len(), told.needs_restart.len()),
                (1, 0),
                "{told:?}"
            );
            assert_eq!(allows(&daemon), any_host);
            assert_eq!(daemon.settings(), &settings);
        }
    }

    /// A host that the new file keeps out must not see what the new file shows, not even for a moment.
    #[test]
    fn a_reload_ends_the_access_of_hosts_before_it_shows_a_namespace_to_more() {
        let of = name("nqn.2026-11.test:a");
        let mut settings = Settings::default();
        let mut subsystem = SubsystemSettings::new(&of);
        subsystem.any_host = true;
        let other = name("nqn.2026-11.test:other");
        subsystem
            .hosts
            .insert(other.clone(), HostSettings::default());
        let mut namespace = NamespaceSettings::new(&of, 1, Source::Memory(1 << 20));
        namespace.hosts = Some([name(HOST)].into());
        subsystem.namespaces.insert(1, namespace);
        settings.subsystems.insert(of.clone(), subsystem);
        let mut daemon = Daemon::new(Target::default());
        daemon.reload(&settings);
        let subsystem = settings.subsystems.get_mut(&of).expect("a subsystem");
        subsystem.any_host = false;
        subsystem.hosts.remove(&other);
        subsystem.hosts.insert(name(HOST), HostSettings::default());
        subsystem.namespaces.get_mut(&1).expect("it").hosts = None;
        let told = daemon.reload(&settings);
        assert_eq!(
            told.done,
            [
                format!("any_host = false of subsystem {of}"),
                format!("host {other} of {of} removed"),
                format!("hosts of namespace 1 of {of}"),
                format!("host {HOST} of {of} added"),
            ],
            "{told:?}"
        );
        assert_eq!(daemon.settings(), &settings);
    }

    /// Hosts keep the namespace, with its serial number, when only its limit changes.
    #[test]
    fn a_reload_changes_a_limit_and_leaves_the_namespace() {
        let of = name("nqn.2026-11.test:a");
        let mut settings = Settings::default();
        let mut subsystem = SubsystemSettings::new(&of);
        let namespace = NamespaceSettings::new(&of, 1, Source::Memory(1 << 20));
        subsystem.namespaces.insert(1, namespace);
        settings.subsystems.insert(of.clone(), subsystem);
        let mut daemon = Daemon::new(Target::default());
        daemon.reload(&settings);
        let there = |daemon: &Daemon| {
            let namespace = daemon.target().with(|model| model.namespace(&of, 1));
            let namespace = namespace.expect("a namespace");
            (namespace.serial(), namespace.limit())
        };
        let (serial, _) = there(&daemon);
        let limit = Limit {
            ios_per_second: Some(100),
            bytes_per_second: None,
            burst: Limit::USUAL_BURST,
        };
        for limit in [Some(limit), None] {
            let subsystem = settings.subsystems.get_mut(&of).expect("a subsystem");
            subsystem.namespaces.get_mut(&1).expect("it").limit = limit;
            let told = daemon.reload(&settings);
            assert_eq!((told.done.len(), told.refused.len()), (1, 0), "{told:?}");
            assert_eq!(there(&daemon), (serial, limit));
            assert_eq!(daemon.settings(), &settings);
        }
    }

    #[test]
    fn a_host_of_several_subsystems_gets_another_key_at_all_of_them_in_one_reload() {
        let (a, b, c) = (
            "nqn.2026-11.test:a",
            "nqn.2026-11.test:b",
            "nqn.2026-11.test:c",
        );
        let folder = tempfile::tempdir().expect("a folder");
        for (file, key) in ["first", "second"].iter().zip(KEYS) {
            fs::write(folder.path().join(file), key).expect("room");
        }
        let mut daemon = Daemon::new(Target::default());
        daemon.reload(&listed(&[b, c], "first", &folder));
        assert!(has(&daemon, KEYS[0]));
        // One of them is new.
        let wanted = listed(&[a, b, c], "second", &folder);
        let changed = daemon.reload(&wanted);
        assert!(changed.refused.is_empty(), "{changed:?}");
        assert!(has(&daemon, KEYS[1]));
        assert_eq!(daemon.settings(), &wanted);
        // Two keys for one host are refused still.
        let mut two = wanted.clone();
        let first = listed(&[a], "first", &folder);
        two.subsystems.extend(first.subsystems);
        let refused = daemon.reload(&two);
        assert!(!refused.refused.is_empty(), "{refused:?}");
        assert!(has(&daemon, KEYS[1]));
    }
}
