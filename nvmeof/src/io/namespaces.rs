//! A worker's copies of the namespace lists of its subsystems.
//!
//! A command must not take the model's lock. So a worker keeps its own copy of each list of namespaces, with its own
//! handle of each disk. Before it uses a copy, it compares two counters: the list's generation, and the namespace's
//! number of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::disk::Handle;
use crate::model::{Limiter, Limiters, Namespace, NamespaceList, Reservations, Tally};
use crate::nvme::command::{io as opcode, writes};
use crate::nvme::{Nqn, Status};

/// A worker's copy of a namespace.
#[derive(Debug)]
pub(crate) struct Local {
    pub namespace: Arc<Namespace>,
    pub handle: Handle,
    pub tally: Arc<Tally>,
    /// Maximum length of the data of an I/O at this worker, in bytes.
    pub most_bytes: u32,
    /// Number of changes that the copy includes.
    changes: u64,
    /// The rules at that number of changes; `None` if the number is 0.
    pub rules: Option<Rules>,
    /// Blocks that were locked at the same number of changes.
    pub locks: Vec<u64>,
    /// True if the namespace or a host of its subsystem had a limit at the same number of changes.
    pub is_limited: bool,
    limiter: Option<Arc<Limiter>>,
    host_limiters: Option<Arc<Limiters>>,
}

/// A limit that a command passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// That of its host.
    Host,
    /// That of its namespace.
    Namespace,
}

/// A copy of the rules of a namespace about its hosts.
#[derive(Debug)]
pub(crate) struct Rules {
    reservations: Arc<Reservations>,
    /// Hosts that see the namespace; `None` if all do.
    hosts: Option<Arc<BTreeSet<Nqn>>>,
}

impl Rules {
    /// Checks that a command's host sees the namespace.
    pub(super) fn check_visible(&self, host: &Nqn) -> Result<(), Status> {
        let mut hosts = self.hosts.iter();
        if hosts.all(|hosts| hosts.contains(host)) {
            Ok(())
        } else {
            Err(Status::INVALID_NAMESPACE.dnr())
        }
    }

    /// Returns whether the reservations allow a command of a host.
    pub(super) fn allow(&self, host: &[u8; 16], opcode: u8) -> bool {
        let is_write = writes(opcode) || opcode == opcode::FLUSH;
        self.reservations.allows(host, is_write)
    }
}

impl Local {
    /// Copies the current hosts, reservations, locks and limiters.
    #[cold]
    fn refresh(&mut self, changes: u64) {
        self.changes = changes;
        self.rules = Some(Rules {
            reservations: self.namespace.reservations(),
            hosts: self.namespace.hosts(),
        });
        self.locks = self.namespace.locks();
        self.limiter = self.namespace.limiter();
        self.host_limiters = Some(self.namespace.host_limits()).filter(|all| !all.is_empty());
        self.is_limited = self.limiter.is_some() || self.host_limiters.is_some();
    }

    /// Returns the limiter that a command of a host passes at a stage.
    pub(super) fn limiter(&self, stage: Stage, host: &Nqn) -> Option<&Arc<Limiter>> {
        match stage {
            Stage::Host => self.host_limiters.as_ref()?.get(host),
            Stage::Namespace => self.limiter.as_ref(),
        }
    }

    /// Returns whether a command's host sees the namespace.
    pub(super) fn is_visible_to(&self, host: &Nqn) -> bool {
        let mut rules = self.rules.iter();
        rules.all(|rules| rules.check_visible(host).is_ok())
    }
}

/// Identifies the namespace on which a command was first checked: its position, and a serial number that distinguishes
/// it from a later namespace at that position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    list: u32,
    place: u32,
    pub serial: u64,
}

/// A worker's copy of the namespaces of a subsystem.
#[derive(Debug)]
struct LocalList {
    list: Arc<NamespaceList>,
    /// Number of the worker's queues that use the list.
    users: u32,
    /// Generation of the list that the copy includes.
    seen: u64,
    namespaces: Vec<Option<Local>>,
}

/// The copied lists of a worker.
#[derive(Debug)]
pub(crate) struct LocalLists {
    lists: Vec<LocalList>,
    /// Maximum length of the data of an I/O, in bytes.
    most_bytes: u32,
}

impl LocalLists {
    /// Returns no lists, for a worker whose I/Os have at most `most_bytes` bytes.
    pub(crate) const fn new(most_bytes: u32) -> Self {
        Self {
            lists: Vec::new(),
            most_bytes,
        }
    }

    /// Registers one more queue as user of a list, and returns the list's number. Its disks are opened at first use.
    pub(crate) fn add_user(&mut self, list: &Arc<NamespaceList>) -> u32 {
        let same = |one: &LocalList| Arc::ptr_eq(&one.list, list);
        let known = self.lists.iter().position(same);
        let place = known.or_else(|| self.lists.iter().position(|one| one.users == 0));
        let at = place.unwrap_or(self.lists.len());
        match self.lists.get_mut(at) {
            Some(one) if same(one) => one.users += 1,
            Some(one) => *one = LocalList::new(list),
            None => self.lists.push(LocalList::new(list)),
        }
        // The cast cannot fail, because there are no more lists than queues.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Removes a queue from the users of a list. A list without users keeps no disk open.
    pub(crate) fn remove_user(&mut self, list: u32) {
        // CAST: widening.
        if let Some(one) = self.lists.get_mut(list as usize) {
            one.users -= 1;
            if one.users == 0 {
                one.namespaces.clear();
                one.seen = u64::MAX;
            }
        }
    }

    /// Returns a namespace, after updating its copy if it has changed.
    #[inline]
    pub(crate) fn namespace(&mut self, list: u32, nsid: u32) -> Option<&Local> {
        let list = self.lists.get_mut(list as usize)?; // CAST: widening.
        if list.list.generation() != list.seen {
            list.refresh(self.most_bytes);
        }
        // CAST: widening.
        let place = list.namespaces.get_mut((nsid as usize).wrapping_sub(1));
        let local = place?.as_mut()?;
        let changes = local.namespace.changes();
        if changes != local.changes {
            local.refresh(changes);
        }
        Some(local)
    }

    /// Returns the identification of a namespace on which a command is checked now.
    #[inline]
    pub(crate) fn used(list: u32, nsid: u32, local: &Local) -> Used {
        Used {
            list,
            place: nsid.wrapping_sub(1),
            serial: local.namespace.serial(),
        }
    }

    /// Returns the namespace on which a command was first checked, without checking for changes; `None` if it was
    /// removed from this copy.
    #[inline]
    pub(crate) fn noted(&self, used: Used) -> Option<&Local> {
        // CAST: widening.
        let (list, place) = (used.list as usize, used.place as usize);
        let local = self.lists.get(list)?.namespaces.get(place)?.as_ref()?;
        (local.namespace.serial() == used.serial).then_some(local)
    }

    /// Returns all namespaces of a list, after updating the copies that have changed.
    pub(crate) fn all(&mut self, list: u32) -> impl Iterator<Item = &Local> {
        let most_bytes = self.most_bytes;
        let list = self.lists.get_mut(list as usize); // CAST: widening.
        let list = list.map(|list| {
            if list.list.generation() != list.seen {
                list.refresh(most_bytes);
            }
            for local in list.namespaces.iter_mut().flatten() {
                let changes = local.namespace.changes();
                if changes != local.changes {
                    local.refresh(changes);
                }
            }
            &*list
        });
        list.into_iter()
            .flat_map(|list| list.namespaces.iter().flatten())
    }
}

impl LocalList {
    fn new(list: &Arc<NamespaceList>) -> Self {
        Self {
            list: Arc::clone(list),
            users: 1,
            seen: u64::MAX,
            namespaces: Vec::new(),
        }
    }

    /// Copies the current list. A namespace that was in the old copy keeps its open disk.
    #[cold]
    fn refresh(&mut self, most_bytes: u32) {
        let (seen, now) = self.list.snapshot();
        self.seen = seen;
        let mut before: Vec<Local> = self.namespaces.drain(..).flatten().collect();
        self.namespaces = now
            .iter()
            .map(|namespace| {
                let namespace = namespace.as_ref()?;
                let known = before.iter().position(|one| Arc::ptr_eq(&one.namespace, namespace));
                if let Some(known) = known {
                    return Some(before.swap_remove(known));
                }
                let handle = namespace.disk().handle();
                let handle = handle.inspect_err(|error| {
                    tracing::error!(nsid = namespace.nsid(), %error, "the disk of a namespace cannot be opened");
                });
                Some(Local {
                    handle: handle.ok()?,
                    tally: namespace.tally(),
                    most_bytes,
                    changes: 0,
                    rules: None,
                    locks: Vec::new(),
                    is_limited: false,
                    limiter: None,
                    host_limiters: None,
                    namespace: Arc::clone(namespace),
                })
            })
            .collect();
    }
}
