//! The snapshot of a worker: plain data.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use udapl::connection::PspHandle;
use udapl::memory::{LmrHandle, PzHandle};
use udapl::srq::SrqHandle;
use udapl::{EpHandle, EvdHandle};

use crate::model::{Party, WorkerId};
use crate::serve::admission::Class;
use crate::serve::config::WorkerConfig;
use crate::serve::hold::Arrived;
use crate::serve::queue::{Attached, Queue, State};
use crate::serve::times::Took;
use crate::serve::worker::Worker;

/// A worker that was parked. Queues have numbers: their indices in `queues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    pub(super) id: WorkerId,
    pub(super) config: ConfigSnapshot,
    pub(super) zone: PzHandle,
    pub(super) events: EvdHandle,
    pub(super) srq: SrqHandle,
    /// `None` is refused: a stopping worker is not parked.
    pub(super) psp: Option<PspHandle>,
    /// The region of capsules, responses and pages, and the region of buffers.
    pub(super) regions: [LmrHandle; 2],
    pub(super) queues: Vec<QueueSnapshot>,
    /// Outstanding event requests, those of a controller oldest first.
    pub(super) requests: Vec<RequestSnapshot>,
    /// Capsules that the worker has dequeued and not begun, oldest first.
    pub(super) arrived: Vec<ArrivedSnapshot>,
    pub(super) counters: CountersSnapshot,
    /// Number of commands up to and including the next one that is timed.
    pub(super) untimed: u32,
    /// Latencies, in the order of [`crate::serve::KINDS`].
    pub(super) times: Vec<TimesSnapshot>,
}

/// The configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConfigSnapshot {
    pub port: u16,
    pub service: u16,
    pub ios: u32,
    pub buffers: u32,
    pub transfer_shift: u8,
    pub spin: u32,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueSnapshot {
    pub ep: EpHandle,
    /// Number of the queue and number of entries in the connection's private data, and address of the host.
    pub number: u16,
    pub entries: u16,
    pub source: IpAddr,
    /// True if the connection is established.
    pub is_up: bool,
    pub attached: Option<AttachedSnapshot>,
    /// Number of entries that the queue has reserved; `None` for a guest.
    pub reserved: Option<u32>,
    pub head: u16,
    /// Time since the connection was accepted.
    pub age_ns: u64,
    pub was_heard: bool,
    pub is_disconnecting: bool,
    /// Commands that came before the event that the connection is established.
    pub early: Vec<KeptSnapshot>,
    /// First command of a fused pair, which waits for the second.
    pub first: Option<KeptSnapshot>,
}

/// A queue of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachedSnapshot {
    pub controller: u16,
    pub connection: u64,
    pub entries: u16,
    pub without_head: bool,
    pub host_id: [u8; 16],
    pub must_authenticate: bool,
    /// True if the queue's controller has a subsystem with namespaces.
    pub has_namespaces: bool,
    /// Name of the host for which the queue counts; `None` if it counts for its address.
    pub party: Option<String>,
}

/// A command whose capsule is in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptSnapshot {
    pub slot: u32,
    /// Number of data bytes in the capsule.
    pub in_capsule: u32,
}

/// An outstanding event request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestSnapshot {
    /// Index of the admin queue in `queues`.
    pub queue: u32,
    pub cid: u16,
    pub is_aborted: bool,
}

/// A receive that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ArrivedSnapshot {
    pub slot: u32,
    /// Handle of the endpoint, which may be freed.
    pub ep: EpHandle,
    /// Length of the capsule; `None` if the receive failed.
    pub bytes: Option<u32>,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CountersSnapshot {
    pub commands: u64,
    pub connections: u64,
    pub sleeps: u64,
    pub refused: u64,
    pub refused_hosts: u64,
    pub refused_guests: u64,
    pub displaced_guests: u64,
    pub overdrawn: u64,
}

/// Latencies of commands of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TimesSnapshot {
    pub count: u64,
    pub nanoseconds: u64,
    pub buckets: Vec<u64>,
}

impl WorkerSnapshot {
    /// Returns the worker's number.
    #[must_use]
    pub const fn worker(&self) -> WorkerId {
        self.id
    }

    /// Returns the worker's configuration.
    #[must_use]
    pub fn config(&self) -> WorkerConfig {
        self.config.into()
    }

    /// Describes a worker that is quiet.
    pub(super) fn of(worker: &Worker) -> Self {
        let now = worker.target.now();
        let ids = worker.queues.ids();
        let index = |id| ids.iter().position(|one| *one == id);
        let kept = |slot: u32| KeptSnapshot {
            slot,
            in_capsule: worker.commands.ios[slot as usize].in_capsule, // CAST: widening.
        };
        let queue = |queue: &Queue| {
            let age = now.saturating_sub(queue.since).as_nanos();
            QueueSnapshot {
                ep: queue.ep,
                number: queue.place.queue,
                entries: queue.place.entries,
                source: queue.place.source,
                is_up: queue.state() != State::Accepted,
                attached: queue.attached.as_ref().map(AttachedSnapshot::of),
                reserved: match queue.share.class {
                    Class::Guest => None,
                    Class::Host(entries) => Some(entries),
                },
                head: queue.head,
                age_ns: u64::try_from(age).unwrap_or(u64::MAX),
                was_heard: queue.was_heard,
                is_disconnecting: queue.is_disconnecting,
                early: queue.early.iter().copied().map(kept).collect(),
                first: queue.fused.map(kept),
            }
        };
        let held = worker.held.values().flatten();
        let requests = held.filter_map(|one| {
            Some(RequestSnapshot {
                queue: u32::try_from(index(one.queue)?).ok()?,
                cid: one.cid,
                is_aborted: one.is_aborted,
            })
        });
        let arrived = worker.pause.iter().flat_map(|pause| pause.arrived());
        let (over, room) = (&worker.over, &worker.admission.room);
        Self {
            id: worker.id,
            config: worker.config.into(),
            zone: worker.zone,
            events: worker.events,
            srq: worker.srq,
            psp: worker.psp,
            regions: [worker.memory.places.lmr, worker.memory.buffers.lmr],
            queues: worker.queues.all().map(queue).collect(),
            requests: requests.collect(),
            arrived: arrived.map(ArrivedSnapshot::of).collect(),
            counters: CountersSnapshot {
                commands: over.commands,
                connections: over.connections,
                sleeps: over.sleeps,
                refused: over.refused,
                refused_hosts: room.refused_hosts,
                refused_guests: room.refused_guests,
                displaced_guests: room.displaced_guests,
                overdrawn: room.overdrawn,
            },
            untimed: worker.timing.left,
            times: worker
                .member
                .times()
                .read()
                .iter()
                .map(TimesSnapshot::of)
                .collect(),
        }
    }
}

impl AttachedSnapshot {
    fn of(attached: &Attached) -> Self {
        Self {
            controller: attached.controller,
            connection: attached.connection,
            entries: attached.entries,
            without_head: attached.without_head,
            host_id: attached.host_id,
            must_authenticate: attached.must_authenticate,
            has_namespaces: attached.list.is_some(),
            party: match &attached.party {
                Party::Source(_) => None,
                Party::Host(name) => Some(name.to_string()),
            },
        }
    }
}

impl ArrivedSnapshot {
    const fn of(arrived: &Arrived) -> Self {
        Self {
            slot: arrived.at,
            ep: arrived.ep,
            bytes: arrived.bytes,
        }
    }
}

impl TimesSnapshot {
    fn of(took: &Took) -> Self {
        Self {
            count: took.count,
            nanoseconds: took.nanoseconds,
            buckets: took.buckets.to_vec(),
        }
    }
}

impl From<WorkerConfig> for ConfigSnapshot {
    fn from(config: WorkerConfig) -> Self {
        let WorkerConfig {
            port,
            service,
            ios,
            buffers,
            transfer_shift,
            spin,
        } = config;
        Self {
            port,
            service,
            ios,
            buffers,
            transfer_shift,
            spin,
        }
    }
}

impl From<ConfigSnapshot> for WorkerConfig {
    fn from(config: ConfigSnapshot) -> Self {
        let ConfigSnapshot {
            port,
            service,
            ios,
            buffers,
            transfer_shift,
            spin,
        } = config;
        Self {
            port,
            service,
            ios,
            buffers,
            transfer_shift,
            spin,
        }
    }
}
