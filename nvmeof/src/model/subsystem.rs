//! Subsystems: namespaces, and the hosts that may connect to them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use super::limit::{HostLimits, Limit, Limiters};
use super::{ModelError, Namespace, NamespaceConfig};
use crate::nvme::Nqn;

/// Maximum number of namespaces of a subsystem, and the highest namespace identifier.
pub const NAMESPACES: u32 = 1024;

/// Configuration of a subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Name of the subsystem.
    pub name: Nqn,
    /// Serial number: up to 20 characters.
    pub serial: String,
    /// Model: up to 40 characters.
    pub model: String,
    /// True if any host may connect.
    pub any_host: bool,
    /// Maximum number of I/O queues of a controller, 1 to [`QUEUES`](super::QUEUES).
    pub queues: u16,
}

/// A subsystem: its configuration, the listed hosts and the namespaces.
#[derive(Debug)]
pub struct Subsystem {
    config: SubsystemConfig,
    hosts: BTreeSet<Nqn>,
    host_limits: Arc<HostLimits>,
    namespaces: Arc<NamespaceList>,
}

/// The namespaces by number, from 1 on.
pub type Namespaces = Arc<[Option<Arc<Namespace>>]>;

/// List of a subsystem's namespaces, which all workers read. Each worker keeps a copy, and takes a new copy when the
/// generation has changed.
#[derive(Debug, Default)]
pub struct NamespaceList {
    generation: AtomicU64,
    namespaces: Mutex<Option<Namespaces>>,
}

impl NamespaceList {
    /// Returns the number of changes so far. A worker reads this number for each command; only a change writes it.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the generation and the namespaces.
    #[must_use]
    pub fn snapshot(&self) -> (u64, Namespaces) {
        let namespaces = self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let there = namespaces.clone().unwrap_or_else(|| Arc::from([]));
        (self.generation(), there)
    }

    fn change(&self, namespaces: Vec<Option<Arc<Namespace>>>) {
        let mut place = self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(namespaces.into());
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Subsystem {
    pub(super) fn new(config: SubsystemConfig) -> Self {
        Self {
            config,
            hosts: BTreeSet::new(),
            host_limits: Arc::default(),
            namespaces: Arc::default(),
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &Nqn {
        &self.config.name
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// Returns the hosts that are listed by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Nqn> {
        self.hosts.iter()
    }

    /// Returns whether a host may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        self.config.any_host || self.hosts.contains(host)
    }

    pub(super) fn allow(&mut self, host: Nqn) {
        self.hosts.insert(host);
    }

    pub(super) fn forbid(&mut self, host: &Nqn) -> bool {
        let was_listed = self.hosts.remove(host);
        if was_listed {
            self.limit_host(host, None);
        }
        was_listed
    }

    /// Returns the limiters of the hosts that have a limit.
    pub(crate) fn host_limits(&self) -> Arc<Limiters> {
        self.host_limits.all()
    }

    /// Limits the I/Os and bytes per second of a host at all namespaces together; `None` ends the limit.
    pub(super) fn limit_host(&self, host: &Nqn, limit: Option<Limit>) {
        let before = self.host_limits.all();
        if before.get(host).map(|limiter| limiter.limit()) == limit {
            return;
        }
        self.host_limits.set(host, limit);
        for namespace in self.namespaces() {
            namespace.note_host_limit();
        }
    }

    pub(super) const fn set_queues(&mut self, queues: u16) {
        self.config.queues = queues;
    }

    pub(crate) fn list(&self) -> Arc<NamespaceList> {
        Arc::clone(&self.namespaces)
    }

    /// Returns the namespaces in the order of their numbers.
    pub fn namespaces(&self) -> impl Iterator<Item = Arc<Namespace>> + use<> {
        let (_, namespaces) = self.namespaces.snapshot();
        let all: Vec<_> = namespaces.iter().flatten().cloned().collect();
        all.into_iter()
    }

    /// Returns the namespace of this number; `None` if there is none.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        let (_, namespaces) = self.namespaces.snapshot();
        let at = usize::try_from(nsid.checked_sub(1)?).ok()?;
        namespaces.get(at)?.clone()
    }

    /// Returns the namespaces that a host sees, in the order of their numbers.
    pub(super) fn seen_by(&self, host: &Nqn) -> impl Iterator<Item = Arc<Namespace>> {
        self.namespaces().filter(move |one| one.is_visible_to(host))
    }

    /// Returns the namespace of this number; `None` if there is none that the host sees.
    pub(super) fn namespace_of(&self, host: &Nqn, nsid: u32) -> Option<Arc<Namespace>> {
        self.namespace(nsid).filter(|one| one.is_visible_to(host))
    }

    pub(super) fn by_uuid(&self, uuid: Uuid) -> Option<Arc<Namespace>> {
        self.namespaces().find(|namespace| namespace.uuid() == uuid)
    }

    pub(super) const fn set_any_host(&mut self, any_host: bool) {
        self.config.any_host = any_host;
    }

    pub(super) fn add(&mut self, config: NamespaceConfig) -> Result<u32, ModelError> {
        let (_, there) = self.namespaces.snapshot();
        let mut namespaces = there.to_vec();
        let free = namespaces.iter().position(Option::is_none);
        let free = free.unwrap_or(namespaces.len());
        let free = u32::try_from(free).unwrap_or(u32::MAX).saturating_add(1);
        let nsid = config.nsid.unwrap_or(free);
        if !(1..=NAMESPACES).contains(&nsid) {
            return Err(ModelError::Range {
                kind: "namespace",
                number: nsid,
                most: NAMESPACES,
            });
        }
        if !(1..=super::GROUPS).contains(&config.group) {
            return Err(ModelError::Range {
                kind: "group",
                number: config.group,
                most: super::GROUPS,
            });
        }
        // CAST: at most 1024.
        let at = nsid as usize - 1;
        if namespaces.len() <= at {
            namespaces.resize_with(at + 1, || None);
        }
        if namespaces[at].is_some() {
            return Err(ModelError::Exists {
                kind: "namespace",
                name: nsid.to_string(),
            });
        }
        namespaces[at] = Some(Arc::new(Namespace::new(nsid, config, &self.host_limits)));
        self.namespaces.change(namespaces);
        Ok(nsid)
    }

    /// Removes a namespace. Its disk is still locked.
    pub(super) fn remove(&mut self, nsid: u32) -> Result<Arc<Namespace>, ModelError> {
        let (_, there) = self.namespaces.snapshot();
        let mut namespaces = there.to_vec();
        let at = usize::try_from(nsid).unwrap_or(0).checked_sub(1);
        let place = at.and_then(|at| namespaces.get_mut(at));
        let removed = place.and_then(Option::take);
        let removed = removed.ok_or_else(|| ModelError::unknown("namespace", nsid))?;
        self.namespaces.change(namespaces);
        // Workers use the namespace until they next compare the list's generation. The lock of the disk's file is
        // released soon: a write that is at the disk may still complete after another program has locked the file.
        Ok(removed)
    }
}
