//! Controllers: the association of a host with a subsystem, from the Connect of the admin queue to the queue's end.

mod parking;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::event::Events;
use super::kept::Kept;
use super::{Moment, Party, WorkerId};
use crate::nvme::fabrics::Configuration;
use crate::nvme::log::ErrorEntry;
use crate::nvme::{Nqn, Sqe, Status};

/// Number of entries of the error log.
pub(super) const ERRORS: u8 = 128;
/// Time without a command after which a discovery controller without keep-alive ends, and also any controller that is
/// not ready.
const DISCOVERY_PATIENCE: Moment = Moment::from_secs(120);
/// Time after which a subsystem's controller without keep-alive and without a command on any queue ends. Linux' target
/// keeps such a controller until its connection breaks, which never happens if a host dies silently. A host whose disk
/// is idle for longer connects again.
const IDLE_TIMEOUT: Moment = Moment::from_secs(60 * 60);

/// A controller.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    subsystem: Nqn,
    host: Nqn,
    host_id: [u8; 16],
    port: u16,
    worker: WorkerId,
    /// Address of the host, and its party, for quotas.
    source: IpAddr,
    party: Party,
    /// Time of the Connect.
    since: Moment,
    is_discovery: bool,
    pub(super) configuration: Configuration,
    /// Value of the property CSTS.
    pub(super) status: u32,
    keep_alive_ms: u32,
    /// Time of the last sign that the host is alive: a command on any of its queues, or a response that was sent.
    heard: Moment,
    pub(super) events: Events,
    pub(super) kept: Kept,
    /// Connection numbers of the admin queue, and of the I/O queues by queue number.
    connection: u64,
    queues: BTreeMap<u16, u64>,
    /// Number of I/O queues that Set Features grants.
    queues_most: u16,
    /// Namespaces that have changed since the host last read the log page.
    changed: BTreeSet<u32>,
    /// Notices about reservations, and the host's masks of notices, each with the number of the namespace.
    pub(super) reservation_notices: VecDeque<(u32, super::reservation::Notification)>,
    pub(super) reservation_masks: BTreeMap<u32, u32>,
    pub(super) reservation_count: u64,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

/// The values with which a controller is created.
pub(super) struct Beginning {
    pub id: u16,
    pub subsystem: Nqn,
    pub host: Nqn,
    pub host_id: [u8; 16],
    pub port: u16,
    pub worker: WorkerId,
    pub source: IpAddr,
    pub party: Party,
    pub keep_alive_ms: u32,
    pub connection: u64,
    pub now: Moment,
}

impl Controller {
    pub(super) fn new(beginning: Beginning) -> Self {
        Self {
            id: beginning.id,
            is_discovery: beginning.subsystem.is_discovery(),
            subsystem: beginning.subsystem,
            host: beginning.host,
            host_id: beginning.host_id,
            port: beginning.port,
            worker: beginning.worker,
            source: beginning.source,
            party: beginning.party,
            since: beginning.now,
            queues_most: super::QUEUES,
            configuration: Configuration::default(),
            status: 0,
            keep_alive_ms: beginning.keep_alive_ms,
            heard: beginning.now,
            events: Events::default(),
            kept: Kept::default(),
            connection: beginning.connection,
            queues: BTreeMap::new(),
            changed: BTreeSet::new(),
            reservation_notices: VecDeque::new(),
            reservation_masks: BTreeMap::new(),
            reservation_count: 0,
            errors: VecDeque::new(),
            error_count: 0,
        }
    }

    /// Returns the controller's number.
    #[must_use]
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Returns the name of the subsystem.
    #[must_use]
    pub const fn subsystem(&self) -> &Nqn {
        &self.subsystem
    }

    /// Returns the name of the host.
    #[must_use]
    pub const fn host(&self) -> &Nqn {
        &self.host
    }

    /// Returns the identifier of the host.
    #[must_use]
    pub const fn host_id(&self) -> &[u8; 16] {
        &self.host_id
    }

    /// Returns the number of the port by which the host connected.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of the worker that has the admin queue.
    #[must_use]
    pub const fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Returns the address of the host.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        self.source
    }

    /// Returns the party that the controller is counted for.
    #[must_use]
    pub const fn party(&self) -> &Party {
        &self.party
    }

    /// Returns the time of the Connect.
    #[must_use]
    pub const fn since(&self) -> Moment {
        self.since
    }

    /// Returns the number of I/O queues that Set Features grants: the maximum, or fewer if resources run short.
    pub(super) const fn queues_most(&self) -> u16 {
        self.queues_most
    }

    pub(super) fn limit_queues(&mut self, most: u16) {
        self.queues_most = most.clamp(1, super::QUEUES);
    }

    /// Returns whether this is a discovery controller.
    #[must_use]
    pub const fn is_discovery(&self) -> bool {
        self.is_discovery
    }

    /// Returns the keep-alive time in milliseconds; 0 for none.
    #[must_use]
    pub const fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// Returns the numbers of the connected I/O queues.
    pub fn queues(&self) -> impl Iterator<Item = u16> {
        self.queues.keys().copied()
    }

    /// Returns whether the controller accepts commands: it is enabled, and neither shut down nor failed.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        use crate::nvme::fabrics::csts;
        self.status & (csts::RDY | csts::CFS | csts::SHST) == csts::RDY
    }

    /// Returns the time of the last sign that the host is alive.
    #[must_use]
    pub const fn heard(&self) -> Moment {
        self.heard
    }

    /// Records a sign that the host is alive. Workers report late, so a later sign may have been recorded already.
    pub(super) fn hear(&mut self, now: Moment) {
        self.heard = self.heard.max(now);
    }

    pub(super) const fn set_keep_alive(&mut self, ms: u32) {
        self.keep_alive_ms = ms;
    }

    /// Returns the time at which a silent host is considered dead. If the controller is not ready, that is
    /// [`DISCOVERY_PATIENCE`] after the last sign that the host was alive.
    pub(super) fn deadline(&self) -> Moment {
        let patience = match self.keep_alive_ms {
            0 if self.is_discovery || !self.is_ready() => DISCOVERY_PATIENCE,
            0 => IDLE_TIMEOUT,
            // A host sends no keep-alives before it has enabled the controller.
            _ if !self.is_ready() => DISCOVERY_PATIENCE,
            ms => Moment::from_millis(ms.into()),
        };
        self.heard + patience
    }

    pub(super) const fn fail(&mut self) {
        self.status |= crate::nvme::fabrics::csts::CFS;
    }

    /// Ends the I/O queues and event requests, and restores the features' defaults, because the controller is disabled
    /// or shut down.
    pub(super) fn reset(&mut self) {
        self.queues.clear();
        self.events.forget();
        self.kept.forget();
    }

    /// Adds an I/O queue. Returns false if the number is in use.
    pub(super) fn add_queue(&mut self, queue: u16, connection: u64) -> bool {
        match self.queues.entry(queue) {
            Entry::Vacant(free) => {
                free.insert(connection);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Returns whether the queue with this number is that connection.
    pub(crate) fn has_queue(&self, queue: u16, connection: u64) -> bool {
        self.connection_of(queue) == Some(connection)
    }

    /// Returns the number of the connection that is the queue with this number; `None` if there is none.
    pub(super) fn connection_of(&self, queue: u16) -> Option<u64> {
        match queue {
            0 => Some(self.connection),
            _ => self.queues.get(&queue).copied(),
        }
    }

    pub(super) fn lose_queue(&mut self, queue: u16) {
        self.queues.remove(&queue);
    }

    pub(super) fn note_namespace(&mut self, nsid: u32) {
        self.changed.insert(nsid);
    }

    /// Returns the numbers of the namespaces that have changed.
    pub(super) fn changed(&self) -> Vec<u32> {
        self.changed.iter().copied().collect()
    }

    /// Clears the list of changed namespaces, because the host has read it.
    pub(super) fn forget_changed(&mut self) {
        self.changed.clear();
    }

    /// Adds a failed command to the error log.
    pub(super) fn note_error(&mut self, queue: u16, sqe: &Sqe, status: Status) {
        self.error_count += 1;
        if self.errors.len() == usize::from(ERRORS) {
            self.errors.pop_back();
        }
        let entry = ErrorEntry::new(self.error_count, queue, sqe, status);
        self.errors.push_front(entry);
    }

    /// Returns the error log, newest entry first, and the number of errors since the Connect.
    pub(super) fn errors(&self) -> (impl Iterator<Item = &ErrorEntry>, u64) {
        (self.errors.iter(), self.error_count)
    }
}
