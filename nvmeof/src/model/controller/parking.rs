//! A controller that outlives its process ([`crate::model::parking`]).

use std::collections::{BTreeMap, BTreeSet};

use super::{Controller, ERRORS};
use crate::lines::nanos;
use crate::model::event::Events;
use crate::model::feature::keep_alive;
use crate::model::kept::Kept;
use crate::model::refusal::{MOST_COUNTED, ModelResumeError as Error};
use crate::model::reserve::{MASKABLE, NOTICES};
use crate::model::snapshot::{ControllerSnapshot, ErrorSnapshot};
use crate::model::{HIGHEST_CONTROLLER, Moment, NAMESPACES, Party, QUEUES};
use crate::nvme::Nqn;
use crate::nvme::fabrics::{Configuration, csts};
use crate::nvme::log::ErrorEntry;

impl Controller {
    /// Writes the controller out at the time `now`.
    pub(in crate::model) fn park(&self, now: Moment) -> ControllerSnapshot {
        let errors = self.errors.iter().map(|one| ErrorSnapshot {
            queue: one.sqid.get(),
            cid: one.cid.get(),
            status: one.status.get(),
            block: one.block.get(),
            nsid: one.nsid.get(),
        });
        let masks = self.reservation_masks.iter();
        ControllerSnapshot {
            id: self.id,
            subsystem: self.subsystem.to_string(),
            host: self.host.to_string(),
            host_id: self.host_id,
            port: self.port,
            worker: self.worker,
            source: self.source,
            is_of_name: matches!(self.party, Party::Host(_)),
            age_ns: nanos(now.saturating_sub(self.since)),
            silent_ns: nanos(now.saturating_sub(self.heard)),
            configuration: self.configuration.0,
            status: self.status,
            keep_alive_ms: self.keep_alive_ms,
            events: self.events.park(),
            features: self.kept.park(),
            connection: self.connection,
            queues: self.queues.iter().map(|(one, of)| (*one, *of)).collect(),
            queues_most: self.queues_most,
            changed: self.changed(),
            reservation_notices: self.reservation_notices.iter().copied().collect(),
            reservation_masks: masks.map(|(nsid, mask)| (*nsid, *mask)).collect(),
            reservation_count: self.reservation_count,
            errors: errors.collect(),
            error_count: self.error_count,
        }
    }

    /// Goes on with a parked controller. `connections` is the number of the last connection. The caller checks the
    /// subsystem and the port.
    pub(in crate::model) fn resume(
        one: &ControllerSnapshot,
        connections: u64,
        now: Moment,
    ) -> Result<Self, Error> {
        let of = format!("controller {}", one.id);
        let name = |what, text: &str| {
            let name = Nqn::of_host(text, false);
            name.map_err(|error| Error::snapshot(&of, format!("{what}: {error}")))
        };
        let (subsystem, host) = (name("subsystem", &one.subsystem)?, name("host", &one.host)?);
        let is_discovery = subsystem.is_discovery();
        check_numbers(&of, one, connections, now)?;
        check_properties(&of, one)?;
        let queues = resume_queues(&of, one, connections)?;
        let (changed, masks) = resume_namespaces(&of, one)?;
        let is_of_io = changed.is_empty() && masks.is_empty() && queues.is_empty();
        if is_discovery && !(is_of_io && one.reservation_notices.is_empty()) {
            let what = "a discovery controller has I/O queues, or notices about namespaces";
            return Err(Error::snapshot(of, what));
        }
        let events = Events::resume(&of, &one.events, is_discovery)?;
        let kept = Kept::resume(&of, &one.features, NAMESPACES)?;
        let entries = one.errors.iter().zip(0..);
        let errors = entries.map(|(entry, before)| {
            // The newest entry has the number of all errors.
            let count = one.error_count - before;
            ErrorEntry::logged(count, entry.queue, entry.cid, entry.status)
                .about(entry.block, entry.nsid)
        });
        let party = if one.is_of_name {
            Party::Host(host.clone())
        } else {
            Party::Source(one.source)
        };
        let resumed = Self {
            id: one.id,
            subsystem,
            host,
            host_id: one.host_id,
            port: one.port,
            worker: one.worker,
            source: one.source,
            party,
            since: now.saturating_sub(Moment::from_nanos(one.age_ns)),
            is_discovery,
            configuration: Configuration(one.configuration),
            status: one.status,
            keep_alive_ms: one.keep_alive_ms,
            heard: now.saturating_sub(Moment::from_nanos(one.silent_ns)),
            events,
            kept,
            connection: one.connection,
            queues,
            queues_most: one.queues_most,
            changed,
            reservation_notices: one.reservation_notices.iter().copied().collect(),
            reservation_masks: masks,
            reservation_count: one.reservation_count,
            errors: errors.collect(),
            error_count: one.error_count,
        };
        // A reset forgets what the host has set, and only a ready controller accepts it.
        let is_reset = resumed.queues.is_empty() && one.features.is_empty();
        if !(resumed.is_ready() || is_reset && resumed.events.is_reset()) {
            let what = "it is not ready, and has I/O queues, event requests or features";
            return Err(Error::snapshot(of, what));
        }
        Ok(resumed)
    }
}

fn check_numbers(
    of: &str,
    one: &ControllerSnapshot,
    connections: u64,
    now: Moment,
) -> Result<(), Error> {
    let notices = one.reservation_notices.iter().map(|(nsid, _)| *nsid);
    let last = notices.clone().max().unwrap_or(1);
    // CAST: lengths of the lists of a snapshot, widening.
    let lengths = [
        one.errors.len() as u64,
        one.reservation_notices.len() as u64,
    ];
    Error::check_range(
        of,
        [
            ("id", one.id.into(), HIGHEST_CONTROLLER.into()),
            ("age_ns", one.age_ns, nanos(now)),
            ("silent_ns", one.silent_ns, one.age_ns),
            ("connection", one.connection, connections),
            ("queues_most", one.queues_most.into(), QUEUES.into()),
            ("reservation_count", one.reservation_count, MOST_COUNTED),
            ("error_count", one.error_count, MOST_COUNTED),
            ("reservation_notices", lengths[1], NOTICES as u64),
            (
                "namespace of reservation_notices",
                last.into(),
                NAMESPACES.into(),
            ),
        ],
    )?;
    let zeros = [
        ("id", u64::from(one.id)),
        ("connection", one.connection),
        ("queues_most", one.queues_most.into()),
        (
            "namespace of reservation_notices",
            notices.min().unwrap_or(1).into(),
        ),
    ];
    if let Some((name, _)) = zeros.iter().find(|(_, number)| *number == 0) {
        return Err(Error::snapshot(of, format!("{name} is 0")));
    }
    let ms = one.keep_alive_ms;
    let what = format!("keep_alive_ms is {ms}, which no host gets");
    Error::check(keep_alive(ms) == ms, of, what)?;
    let logged = one.error_count.min(ERRORS.into());
    let what = format!(
        "errors: {} entries of {} errors",
        lengths[0], one.error_count
    );
    Error::check(lengths[0] == logged, of, what)?;
    for entry in &one.errors {
        Error::check_range(of, [("queue of errors", entry.queue.into(), QUEUES.into())])?;
        // Bit 0 is that of the phase, which the log does not have.
        let what = format!("status of errors is {:#x}", entry.status);
        Error::check(entry.status & 1 == 0 && entry.status != 0, of, what)?;
    }
    Ok(())
}

/// Checks that the value of CSTS is one that the value of CC can lead to.
fn check_properties(of: &str, one: &ControllerSnapshot) -> Result<(), Error> {
    let configuration = Configuration(one.configuration);
    let (ready, failed) = (one.status & csts::RDY != 0, one.status & csts::CFS != 0);
    let is_enabled = configuration.is_enabled();
    let (other, shut) = (
        one.status & !(csts::RDY | csts::CFS | csts::SHST_COMPLETE),
        one.status & csts::SHST_COMPLETE != 0,
    );
    let is_possible = other == 0
        && (ready ^ failed) == is_enabled
        && !(ready && failed)
        && (!shut || configuration.shutdown() != 0);
    let what = format!(
        "status is {:#x} with configuration {:#x}",
        one.status, one.configuration
    );
    Error::check(is_possible, of, what)
}

fn resume_queues(
    of: &str,
    one: &ControllerSnapshot,
    connections: u64,
) -> Result<BTreeMap<u16, u64>, Error> {
    let mut queues = BTreeMap::new();
    for &(queue, connection) in &one.queues {
        Error::check_range(
            of,
            [
                ("queue", queue.into(), QUEUES.into()),
                ("connection of a queue", connection, connections),
            ],
        )?;
        // A queue is connected after the admin queue.
        let is_new = queues.insert(queue, connection).is_none();
        let what = format!("queue {queue} with connection {connection} is impossible, or twice");
        let is_possible = queue != 0 && connection > one.connection && is_new;
        Error::check(is_possible, of, what)?;
    }
    Ok(queues)
}

/// Returns the changed namespaces, and the masks of notices by namespace.
fn resume_namespaces(
    of: &str,
    one: &ControllerSnapshot,
) -> Result<(BTreeSet<u32>, BTreeMap<u32, u32>), Error> {
    let check = |name, nsid: u32, is_new: bool| {
        Error::check_range(of, [(name, nsid.into(), NAMESPACES.into())])?;
        let what = format!("{name}: namespace {nsid} is impossible, or twice");
        Error::check(nsid != 0 && is_new, of, what)
    };
    let mut changed = BTreeSet::new();
    for &nsid in &one.changed {
        check("changed", nsid, changed.insert(nsid))?;
    }
    let mut masks = BTreeMap::new();
    for &(nsid, mask) in &one.reservation_masks {
        check(
            "reservation_masks",
            nsid,
            masks.insert(nsid, mask).is_none(),
        )?;
        let what = format!("a mask of reservation_masks is {mask:#x}");
        Error::check(mask & !MASKABLE == 0, of, what)?;
    }
    Ok((changed, masks))
}
