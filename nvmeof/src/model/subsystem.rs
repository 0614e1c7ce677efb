//! A subsystem: namespaces, and the hosts that may have them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use super::{ModelError, Namespace, NamespaceConfig};
use crate::nvme::Nqn;

/// Namespaces of a subsystem at most; their numbers are 1 to this.
pub const NAMESPACES: u32 = 1024;

/// What a subsystem is made of.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub name: Nqn,
    /// Serial number: up to 20 characters.
    pub serial: String,
    /// Model: up to 40 characters.
    pub model: String,
    /// Any host may connect.
    pub any_host: bool,
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    config: SubsystemConfig,
    hosts: BTreeSet<Nqn>,
    shelf: Arc<Shelf>,
}

/// The namespaces by number: place 0 is that of namespace 1.
pub type Namespaces = Arc<[Option<Arc<Namespace>>]>;

/// The namespaces of a subsystem, as workers see them: each keeps what it saw, and looks again when the generation is
/// another.
#[derive(Debug, Default)]
pub struct Shelf {
    generation: AtomicU64,
    namespaces: Mutex<Option<Namespaces>>,
}

impl Shelf {
    /// Counts changes. It is looked at for each command, and written only when something changes.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What there is, and its generation.
    #[must_use]
    pub fn look(&self) -> (u64, Namespaces) {
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
            shelf: Arc::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &Nqn {
        &self.config.name
    }

    /// What it was made of.
    #[must_use]
    pub const fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// Hosts that may connect, besides any.
    pub fn hosts(&self) -> impl Iterator<Item = &Nqn> {
        self.hosts.iter()
    }

    /// Whether a host may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        self.config.any_host || self.hosts.contains(host)
    }

    pub(super) fn allow(&mut self, host: Nqn) {
        self.hosts.insert(host);
    }

    pub(super) fn forbid(&mut self, host: &Nqn) -> bool {
        self.hosts.remove(host)
    }

    pub(super) fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.shelf)
    }

    /// Its namespaces, by number.
    pub fn namespaces(&self) -> impl Iterator<Item = Arc<Namespace>> + use<> {
        let (_, namespaces) = self.shelf.look();
        let all: Vec<_> = namespaces.iter().flatten().cloned().collect();
        all.into_iter()
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        let (_, namespaces) = self.shelf.look();
        let at = usize::try_from(nsid.checked_sub(1)?).ok()?;
        namespaces.get(at)?.clone()
    }

    pub(super) fn by_uuid(&self, uuid: Uuid) -> Option<Arc<Namespace>> {
        self.namespaces().find(|namespace| namespace.uuid() == uuid)
    }

    pub(super) fn add(&mut self, config: NamespaceConfig) -> Result<u32, ModelError> {
        let (_, there) = self.shelf.look();
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
        namespaces[at] = Some(Arc::new(Namespace::new(nsid, config)));
        self.shelf.change(namespaces);
        Ok(nsid)
    }

    pub(super) fn remove(&mut self, nsid: u32) -> Result<(), ModelError> {
        let (_, there) = self.shelf.look();
        let mut namespaces = there.to_vec();
        let at = usize::try_from(nsid).unwrap_or(0).checked_sub(1);
        let place = at.and_then(|at| namespaces.get_mut(at));
        let removed = place.and_then(Option::take);
        let removed = removed.ok_or_else(|| ModelError::unknown("namespace", nsid))?;
        self.shelf.change(namespaces);
        // Workers keep the namespace until they look at the shelf again. Others need not wait for that, so a write that
        // is at the disk now may still land after another program has locked it.
        removed.disk().give_up();
        Ok(())
    }
}
