//! A worker's copies of its subsystems' namespaces.
//!
//! A command must not take the model's lock. So a worker keeps its own copy of each list of namespaces, with an open
//! disk each, and compares two counters before it uses one: the list's generation, and the namespace's changes.

use std::sync::Arc;

use crate::disk::Handle;
use crate::model::{Namespace, NamespaceList, Reservations, Tally};
use crate::nvme::command::{io as opcode, writes};

/// A namespace as a worker knows it.
#[derive(Debug)]
pub(crate) struct Local {
    pub namespace: Arc<Namespace>,
    pub handle: Handle,
    pub tally: Arc<Tally>,
    /// The changes that are taken in, and the reservations then; `None` if there has never been one.
    reservations: (u64, Option<Arc<Reservations>>),
    /// Locked blocks, as of the same changes.
    pub locks: Vec<u64>,
}

impl Local {
    /// Takes in the reservations and locks of now.
    #[cold]
    fn refresh(&mut self, changes: u64) {
        self.reservations = (changes, Some(self.namespace.reservations()));
        self.locks = self.namespace.locks();
    }

    /// Returns whether reservations allow a host a command.
    #[inline]
    pub(super) fn allows(&self, host: &[u8; 16], opcode: u8) -> bool {
        let reservations = self.reservations.1.as_ref();
        let is_write = writes(opcode) || opcode == opcode::FLUSH;
        reservations.is_none_or(|one| one.allows(host, is_write))
    }
}

/// The namespace that a command was executed on: its place, and the serial number that tells it from a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    list: u32,
    place: u32,
    pub serial: u64,
}

/// The namespaces of a subsystem as a worker knows them.
#[derive(Debug)]
struct LocalList {
    list: Arc<NamespaceList>,
    /// Queues of the worker that use it.
    users: u32,
    /// The generation that is taken in.
    seen: u64,
    namespaces: Vec<Option<Local>>,
}

/// The lists of a worker.
#[derive(Debug, Default)]
pub(crate) struct LocalLists(Vec<LocalList>);

impl LocalLists {
    /// Returns the number of a list, which one more queue uses. Its disks are opened at first use.
    pub(crate) fn join(&mut self, list: &Arc<NamespaceList>) -> u32 {
        let same = |one: &LocalList| Arc::ptr_eq(&one.list, list);
        let known = self.0.iter().position(same);
        let place = known.or_else(|| self.0.iter().position(|one| one.users == 0));
        let at = place.unwrap_or(self.0.len());
        match self.0.get_mut(at) {
            Some(one) if same(one) => one.users += 1,
            Some(one) => *one = LocalList::new(list),
            None => self.0.push(LocalList::new(list)),
        }
        // There are no more of them than queues.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// A queue does not use a list any more. A list without users keeps no disk open.
    pub(crate) fn leave(&mut self, list: u32) {
        // CAST: widening.
        if let Some(one) = self.0.get_mut(list as usize) {
            one.users -= 1;
            if one.users == 0 {
                one.namespaces.clear();
                one.seen = u64::MAX;
            }
        }
    }

    /// Returns a namespace, as it is now.
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

    /// The note of a command that is executed on a namespace now.
    #[inline]
    pub(crate) fn used(list: u32, nsid: u32, local: &Local) -> Used {
        Used {
            list,
            place: nsid.wrapping_sub(1),
            serial: local.namespace.serial(),
        }
    }

    /// Returns the namespace that a command was executed on, without a look at changes; `None` if it has gone.
    #[inline]
    pub(crate) fn noted(&self, used: Used) -> Option<&Local> {
        // CAST: widening.
        let (list, place) = (used.list as usize, used.place as usize);
        let local = self.0.get(list)?.namespaces.get(place)?.as_ref()?;
        (local.namespace.serial() == used.serial).then_some(local)
    }

    /// Returns all namespaces of a list, as they are now.
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

    /// Takes in the list of now. A namespace that is known already keeps its open disk.
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
                    namespace: Arc::clone(namespace),
                })
            })
            .collect();
    }
}
