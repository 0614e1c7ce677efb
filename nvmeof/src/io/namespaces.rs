//! A worker's copies of the namespace lists of its subsystems.
//!
//! A command must not take the model's lock. So a worker keeps its own copy of each list of namespaces, with its own
//! handle of each disk. Before it uses a copy, it compares two counters: the list's generation, and the namespace's
//! number of changes.

use std::sync::Arc;

use crate::disk::Handle;
use crate::model::{Limiter, Namespace, NamespaceList, Reservations, Tally};
use crate::nvme::command::{io as opcode, writes};

/// A worker's copy of a namespace.
#[derive(Debug)]
pub(crate) struct Local {
    pub namespace: Arc<Namespace>,
    pub handle: Handle,
    pub tally: Arc<Tally>,
    /// Number of changes that the copy includes, and the reservations then; `None` if that number is 0.
    reservations: (u64, Option<Arc<Reservations>>),
    /// Blocks that were locked at the same number of changes.
    pub locks: Vec<u64>,
    /// Limiter at the same number of changes.
    pub limiter: Option<Arc<Limiter>>,
}

impl Local {
    /// Copies the current reservations, locks and limiter.
    #[cold]
    fn refresh(&mut self, changes: u64) {
        self.reservations = (changes, Some(self.namespace.reservations()));
        self.locks = self.namespace.locks();
        self.limiter = self.namespace.limiter();
    }

    /// Returns whether the reservations allow a command of a host.
    #[inline]
    pub(super) fn allows(&self, host: &[u8; 16], opcode: u8) -> bool {
        let reservations = self.reservations.1.as_ref();
        let is_write = writes(opcode) || opcode == opcode::FLUSH;
        reservations.is_none_or(|one| one.allows(host, is_write))
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
#[derive(Debug, Default)]
pub(crate) struct LocalLists(Vec<LocalList>);

impl LocalLists {
    /// Registers one more queue as user of a list, and returns the list's number. Its disks are opened at first use.
    pub(crate) fn add_user(&mut self, list: &Arc<NamespaceList>) -> u32 {
        let same = |one: &LocalList| Arc::ptr_eq(&one.list, list);
        let known = self.0.iter().position(same);
        let place = known.or_else(|| self.0.iter().position(|one| one.users == 0));
        let at = place.unwrap_or(self.0.len());
        match self.0.get_mut(at) {
            Some(one) if same(one) => one.users += 1,
            Some(one) => *one = LocalList::new(list),
            None => self.0.push(LocalList::new(list)),
        }
        // The cast cannot fail, because there are no more lists than queues.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Removes a queue from the users of a list. A list without users keeps no disk open.
    pub(crate) fn remove_user(&mut self, list: u32) {
        // CAST: widening.
        if let Some(one) = self.0.get_mut(list as usize) {
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
        let list = self.0.get_mut(list as usize)?; // CAST: widening.
        if list.list.generation() != list.seen {
            list.refresh();
        }
        // CAST: widening.
        let place = list.namespaces.get_mut((nsid as usize).wrapping_sub(1));
        let local = place?.as_mut()?;
        let changes = local.namespace.changes();
        if changes != local.reservations.0 {
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
        let local = self.0.get(list)?.namespaces.get(place)?.as_ref()?;
        (local.namespace.serial() == used.serial).then_some(local)
    }

    /// Returns all namespaces of a list, after updating the copies that have changed.
    pub(crate) fn all(&mut self, list: u32) -> impl Iterator<Item = &Local> {
        let list = self.0.get_mut(list as usize); // CAST: widening.
        let list = list.map(|list| {
            if list.list.generation() != list.seen {
                list.refresh();
            }
            for local in list.namespaces.iter_mut().flatten() {
                let changes = local.namespace.changes();
                if changes != local.reservations.0 {
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
    fn refresh(&mut self) {
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
                    reservations: (0, None),
                    locks: Vec::new(),
                    limiter: None,
                    namespace: Arc::clone(namespace),
                })
            })
            .collect();
    }
}
