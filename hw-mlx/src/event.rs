//! Decoding of event queue entries (PRM "Event Queue Entry", event types and their payloads).
//!
//! Decoding is separate from the ring (`crate::eq`) and from the reaction to an event (`crate::control`). It is a pure
//! function from the 64 bytes of an entry to a `Meaning`. The object numbers in the result come from the device and
//! may name no object. The owner of such an object checks that the object exists.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

use zerocopy::IntoBytes;

use crate::bounds::MAX_COUNT;
use crate::error::{DeadCause, Mac};
use mlx_prm::{Cqn, Eqe, EventType, Qpn, Rmpn};

/// An asynchronous event: one that the device or the system reports outside of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AsyncEvent {
    /// The port is active.
    PortUp,
    /// The port is down.
    PortDown,
    /// Another change of the port (IB: LID, P_Key, GUID, client reregister).
    PortChange {
        /// Sub-type of the event.
        sub_type: u8,
    },
    /// The first packet reached a queue pair in RTR.
    CommEstablished {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The send queue is drained (state SQD).
    SqDrained {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The device moved the queue pair to the error state.
    QpError {
        /// The queue pair.
        qpn: Qpn,
        /// The device's event type.
        event: EventType,
    },
    /// A queue pair in error has completed the last receive that it took from its shared receive queue.
    SrqLastWqe {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The completion queue lost entries or cannot be written.
    CqError {
        /// The completion queue.
        cqn: Cqn,
        /// 1 overrun, 2 access violation.
        syndrome: u8,
    },
    /// The shared receive queue has fewer buffers than its armed limit.
    SrqLimit {
        /// The shared receive queue.
        rmpn: Rmpn,
    },
    /// The shared receive queue is unusable.
    SrqError {
        /// The shared receive queue.
        rmpn: Rmpn,
    },
    /// The device is gone or unusable. Later commands fail, except those that destroy objects or release the function.
    DeviceDead {
        /// Cause of the failure.
        #[serde(with = "not_parked")]
        cause: DeadCause,
    },
    /// The system requests the function's release, and waits until the function is closed. Until then everything works.
    DeviceRequested,
    /// An event on the network that does not come from the device ([`Hca::push_event`](crate::Hca::push_event)).
    Network(NetworkEvent),
    /// We stop using one of our addresses ([`Hca::retire_address`](crate::Hca::retire_address)).
    AddressRemoved {
        /// Index of its entry in the GID table.
        index: u8,
        /// The address.
        address: IpAddr,
    },
    /// The caller did not fetch events for so long that some were dropped. An event with the port's present state
    /// follows, even if that state has not changed; then `DeviceRequested` and `DeviceDead`, if they apply.
    EventsLost {
        /// Number of events dropped.
        count: u64,
    },
    /// An event that this driver does not use.
    Other {
        /// Event type.
        event: EventType,
        /// Event sub-type.
        sub_type: u8,
    },
}

/// Serialization of the cause of a device's death. A device that is dead is not parked, so no snapshot has one.
mod not_parked {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserializer, Serializer};

    use crate::error::DeadCause;

    const DEAD: &str = "an event of a dead device, which is not parked";

    pub(super) fn serialize<S: Serializer>(_: &DeadCause, _to: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(DEAD))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(_from: D) -> Result<DeadCause, D::Error> {
        Err(D::Error::custom(DEAD))
    }
}

/// An event on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum NetworkEvent {
    /// An address was added to the function ([`Hca::add_address`](crate::Hca::add_address)).
    AddressAdded(IpAddr),
    /// Another station also uses one of our addresses.
    AddressDuplicate {
        /// The address.
        address: IpAddr,
        /// MAC of the other station.
        mac: [u8; 6],
        /// True if we had just added the address; we then give it up. False if we keep and defend it (RFC 5227, 2.4).
        lost: bool,
    },
    /// The MAC of a neighbour has changed.
    NeighbourMoved {
        /// The neighbour.
        address: IpAddr,
        /// Its new MAC.
        mac: [u8; 6],
    },
    /// No station answers for a neighbour's address.
    NeighbourLost(IpAddr),
    /// The Ethernet port was given up, because the device did not answer a command that repairs it.
    PortGivenUp,
}

impl fmt::Display for NetworkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressAdded(address) => write!(f, "{address} is an address of ours"),
            Self::AddressDuplicate { address, mac, lost } => {
                let whom = if *lost {
                    "somebody else, and not by us"
                } else {
                    "somebody else, too"
                };
                write!(f, "{address} is used by {whom}: {}", Mac(*mac))
            }
            Self::NeighbourMoved { address, mac } => {
                write!(f, "{address} has moved to {}", Mac(*mac))
            }
            Self::NeighbourLost(address) => write!(f, "nobody answers for {address}"),
            Self::PortGivenUp => f.write_str("the Ethernet port was given up"),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortUp => f.write_str("the port is up"),
            Self::PortDown => f.write_str("the port is down"),
            Self::PortChange { sub_type } => {
                write!(f, "the port has changed, sub-type {sub_type:#x}")
            }
            Self::CommEstablished { qpn } => {
                write!(f, "queue pair {qpn}: its first packet is here")
            }
            Self::SqDrained { qpn } => write!(f, "queue pair {qpn}: its send queue is drained"),
            Self::QpError { qpn, event } => {
                write!(
                    f,
                    "queue pair {qpn}: the device has stopped it, event {event:?}"
                )
            }
            Self::SrqLastWqe { qpn } => {
                write!(f, "queue pair {qpn}: its last shared receive is done")
            }
            Self::CqError { cqn, syndrome } => {
                write!(f, "completion queue {cqn}: lost, syndrome {syndrome:#x}")
            }
            Self::SrqLimit { rmpn } => write!(f, "shared receive queue {rmpn}: below its limit"),
            Self::SrqError { rmpn } => write!(f, "shared receive queue {rmpn}: lost"),
            Self::DeviceDead { cause } => write!(f, "the device is dead: {cause}"),
            Self::DeviceRequested => f.write_str("the system wants the function back"),
            Self::Network(event) => event.fmt(f),
            Self::AddressRemoved { address, .. } => {
                write!(f, "{address} is no address of ours any more")
            }
            Self::EventsLost { count } => write!(f, "{count} events were thrown away"),
            Self::Other { event, sub_type } => write!(f, "event {event:?}, sub-type {sub_type:#x}"),
        }
    }
}

/// Function that owns pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FunctionId {
    /// Function number; 0 is the function that this driver opened.
    pub(crate) number: u16,
    /// True for the function of the adapter's own processor (BlueField's Arm side).
    pub(crate) embedded_cpu: bool,
}

/// A page request event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// Function that the pages are for.
    pub(crate) function: FunctionId,
    /// Number of 4 KiB pages: positive if the firmware requests pages, negative if the driver is to take pages back.
    pub(crate) pages: i32,
    /// True if all pages of the function are free without a command that takes them back.
    pub(crate) release_all: bool,
}

/// Meaning of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The firmware has completed commands; bit n stands for command slot n.
    Commands(u32),
    /// The firmware wants pages, or returns some.
    Pages(PageRequest),
    /// A completion queue has entries.
    Completion(Cqn),
    /// An event for [`crate::Hca::next_async`].
    Async(AsyncEvent),
}

// Offsets of the payload fields in the entry (PRM "Event Data").
const CMD_VECTOR: usize = 0x20;
const PAGE_EC_FUNCTION: usize = 0x20;
const PAGE_FUNCTION_ID: usize = 0x22;
const PAGE_COUNT: usize = 0x24;
const CQ_ERR_CQN: usize = 0x20;
const CQ_ERR_SYNDROME: usize = 0x2b;
const QUEUE_KIND: usize = 0x34;
const OBJECT_NUMBER: usize = 0x38;

/// Kind of queue in an event that names one: 0 for a queue pair. The receive queues (1) and send queues (2) of the
/// Ethernet port have numbers of their own (Linux `include/linux/mlx5/device.h` `MLX5_EVENT_QUEUE_TYPE_*`).
const QUEUE_PAIR: u8 = 0;

const PORT_SUB_TYPE_DOWN: u8 = 1;
const PORT_SUB_TYPE_ACTIVE: u8 = 4;
const EC_FUNCTION_EMBEDDED_CPU: u16 = 1 << 15;
const EC_FUNCTION_RELEASE_ALL: u16 = 1 << 14;
const NUMBER_MASK: u32 = 0x00ff_ffff;

/// Decodes an entry.
pub(crate) fn decode(eqe: &Eqe) -> Meaning {
    let bytes = eqe.as_bytes();
    let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let be32 =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let number = |at: usize| be32(at) & NUMBER_MASK;
    let event = EventType(bytes[0x01]);
    let sub_type = bytes[0x03];
    let qpn = Qpn::new(number(OBJECT_NUMBER));
    let rmpn = Rmpn::new(number(OBJECT_NUMBER));
    Meaning::Async(match event {
        EventType::CMD => return Meaning::Commands(be32(CMD_VECTOR)),
        EventType::PAGE_REQUEST => {
            let ec_function = be16(PAGE_EC_FUNCTION);
            return Meaning::Pages(PageRequest {
                function: FunctionId {
                    number: be16(PAGE_FUNCTION_ID),
                    embedded_cpu: ec_function & EC_FUNCTION_EMBEDDED_CPU != 0,
                },
                pages: be32(PAGE_COUNT).cast_signed(),
                release_all: ec_function & EC_FUNCTION_RELEASE_ALL != 0,
            });
        }
        EventType::COMP => return Meaning::Completion(Cqn::new(number(OBJECT_NUMBER))),
        EventType::PORT_CHANGE => match sub_type {
            PORT_SUB_TYPE_ACTIVE => AsyncEvent::PortUp,
            PORT_SUB_TYPE_DOWN => AsyncEvent::PortDown,
            _ => AsyncEvent::PortChange { sub_type },
        },
        EventType::COMM_EST
        | EventType::SQ_DRAINED
        | EventType::SRQ_LAST_WQE
        | EventType::WQ_CATAS_ERROR
        | EventType::WQ_INVAL_REQ_ERROR
        | EventType::WQ_ACCESS_ERROR
        | EventType::PATH_MIG_FAILED
            if bytes[QUEUE_KIND] != QUEUE_PAIR =>
        {
            AsyncEvent::Other { event, sub_type }
        }
        EventType::COMM_EST => AsyncEvent::CommEstablished { qpn },
        EventType::SQ_DRAINED => AsyncEvent::SqDrained { qpn },
        EventType::SRQ_LAST_WQE => AsyncEvent::SrqLastWqe { qpn },
        EventType::CQ_ERROR => AsyncEvent::CqError {
            cqn: Cqn::new(number(CQ_ERR_CQN)),
            syndrome: bytes[CQ_ERR_SYNDROME],
        },
        EventType::WQ_CATAS_ERROR
        | EventType::WQ_INVAL_REQ_ERROR
        | EventType::WQ_ACCESS_ERROR
        | EventType::PATH_MIG_FAILED => AsyncEvent::QpError { qpn, event },
        EventType::SRQ_CATAS_ERROR => AsyncEvent::SrqError { rmpn },
        EventType::SRQ_RQ_LIMIT => AsyncEvent::SrqLimit { rmpn },
        other => AsyncEvent::Other {
            event: other,
            sub_type,
        },
    })
}

/// Mask of the async event types that the driver subscribes to; bit n is event type n. It is mlx5_core's set (`eq.c`
/// `gather_async_events_mask`) without the types that need a capability we do not use.
pub(crate) const ASYNC_EVENTS: u64 = mask(&[
    EventType::PATH_MIG,
    EventType::COMM_EST,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATAS_ERROR,
    EventType::PATH_MIG_FAILED,
    EventType::PORT_CHANGE,
    EventType::WQ_INVAL_REQ_ERROR,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATAS_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_RQ_LIMIT,
]);
/// Mask of command completions, for the control event queue.
pub(crate) const COMMAND_EVENTS: u64 = mask(&[EventType::CMD]);
/// Mask of page requests, for devices whose firmware sends them (`page_request_disable` is 0).
pub(crate) const PAGE_EVENTS: u64 = mask(&[EventType::PAGE_REQUEST]);

const fn mask(types: &[EventType]) -> u64 {
    let mut mask = 0;
    let mut at = 0;
    while at < types.len() {
        mask |= 1 << types[at].0;
        at += 1;
    }
    mask
}

/// Queue of one instance's events that the caller has not fetched yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    events: VecDeque<AsyncEvent>,
    lost: u64,
    /// True if an event came in since the last call of `seen`.
    unseen: bool,
    /// True if there is work for the instance outside of this queue, for example datagrams of QP1.
    called: bool,
}

impl Inbox {
    /// Maximum number of queued events, which bounds the memory for events that are never fetched.
    const LIMIT: usize = 1 << 16;

    /// Makes the queue of an instance of another process. All its events count as not seen yet. Returns `None` if there
    /// are too many.
    pub(crate) fn resume(events: &[AsyncEvent], lost: u64) -> Option<Self> {
        (events.len() <= Self::LIMIT && lost <= MAX_COUNT).then(|| Self {
            events: events.iter().copied().collect(),
            lost,
            unseen: true,
            called: true,
        })
    }

    /// Returns the events in the queue, and the number of dropped ones.
    pub(crate) fn contents(&self) -> (Vec<AsyncEvent>, u64) {
        (self.events.iter().copied().collect(), self.lost)
    }

    pub(crate) fn push(&mut self, event: AsyncEvent) {
        if self.events.len() < Self::LIMIT {
            self.unseen = true;
            self.events.push_back(event);
        } else {
            self.lose();
        }
    }

    /// Counts an event that was dropped.
    pub(crate) const fn lose(&mut self) {
        self.unseen = true;
        self.lost += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        self.events
            .pop_front()
            .or_else(|| match std::mem::take(&mut self.lost) {
                0 => None,
                count => Some(AsyncEvent::EventsLost { count }),
            })
    }

    /// Notes that there is work for the instance outside of this queue.
    pub(crate) const fn call(&mut self) {
        self.called = true;
    }

    /// Returns whether `call` was called since the last call of this function.
    pub(crate) fn was_called(&mut self) -> bool {
        std::mem::take(&mut self.called)
    }

    /// Returns whether the instance has new events, or work outside of this queue.
    pub(crate) const fn has_news(&self) -> bool {
        self.called || self.unseen
    }

    /// Returns whether an event came in since the last call. Events also arrive while a thread waits for a command.
    /// Without this check, a thread that then sleeps until the next event would miss them.
    pub(crate) fn seen(&mut self) -> bool {
        std::mem::take(&mut self.unseen)
    }
}

/// Completion queues with events that were not yet fetched.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    queues: BTreeSet<u32>,
    /// True if a completion queue was added since the last call of `seen`.
    unseen: bool,
}

impl Completions {
    /// Maximum number of completion queues in the set: more than any program makes, fewer than 24-bit CQNs can name.
    const LIMIT: usize = 1 << 20;

    /// Makes the set of an instance of another process. Returns `None` if the numbers are too many, or too large.
    pub(crate) fn resume(numbers: &[u32]) -> Option<Self> {
        let is_number = |number: &u32| Cqn::checked(*number).is_some();
        (numbers.len() <= Self::LIMIT && numbers.iter().all(is_number)).then(|| Self {
            queues: numbers.iter().copied().collect(),
            unseen: true,
        })
    }

    /// Returns the numbers of the completion queues, from the lowest to the highest.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.queues.iter().copied().collect()
    }

    /// Returns whether the set has a completion queue.
    pub(crate) fn has(&self, cqn: u32) -> bool {
        self.queues.contains(&cqn)
    }

    /// Adds a completion queue. Returns false if the set is full.
    #[must_use]
    pub(crate) fn note(&mut self, cqn: Cqn) -> bool {
        if self.queues.len() == Self::LIMIT && !self.queues.contains(&cqn.get()) {
            return false;
        }
        self.unseen = true;
        self.queues.insert(cqn.get());
        true
    }

    /// Removes and returns the completion queue with the lowest number.
    pub(crate) fn next(&mut self) -> Option<Cqn> {
        self.queues.pop_first().map(Cqn::new)
    }

    /// Removes a completion queue from the set.
    pub(crate) fn forget(&mut self, cqn: Cqn) {
        self.queues.remove(&cqn.get());
    }

    /// Returns whether a completion queue was added since the last call of `seen`.
    pub(crate) const fn has_news(&self) -> bool {
        self.unseen
    }

    /// Returns whether a completion queue was added since the last call.
    pub(crate) fn seen(&mut self) -> bool {
        std::mem::take(&mut self.unseen)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    fn eqe(event: EventType, fill: impl FnOnce(&mut [u8; 64])) -> Eqe {
        let mut bytes = [0u8; 64];
        bytes[0x01] = event.0;
        fill(&mut bytes);
        Eqe::read_from_bytes(&bytes).expect("64 bytes")
    }

    #[test]
    fn page_request_carries_sign_function_and_flags() {
        let request = eqe(EventType::PAGE_REQUEST, |bytes| {
            bytes[0x20..0x24].copy_from_slice(&[0x80, 0x00, 0x00, 0x07]);
            bytes[0x24..0x28].copy_from_slice(&(-3i32).to_be_bytes());
        });
        assert_eq!(
            decode(&request),
            Meaning::Pages(PageRequest {
                function: FunctionId {
                    number: 7,
                    embedded_cpu: true
                },
                pages: -3,
                release_all: false
            })
        );
        let release = eqe(EventType::PAGE_REQUEST, |bytes| bytes[0x20] = 0x40);
        assert_eq!(
            decode(&release),
            Meaning::Pages(PageRequest {
                function: FunctionId {
                    number: 0,
                    embedded_cpu: false
                },
                pages: 0,
                release_all: true
            })
        );
    }

    #[test]
    fn cq_error_names_the_queue_and_the_syndrome() {
        let error = eqe(EventType::CQ_ERROR, |bytes| {
            bytes[0x20..0x24].copy_from_slice(&[0xff, 0x01, 0x02, 0x03]);
            bytes[0x2b] = 1;
        });
        assert_eq!(
            decode(&error),
            Meaning::Async(AsyncEvent::CqError {
                cqn: Cqn::new(0x01_0203),
                syndrome: 1
            })
        );
    }

    /// The numbers of Ethernet queues are not those of queue pairs.
    #[test]
    fn an_event_of_an_ethernet_queue_names_no_queue_pair() {
        for event in [
            EventType::COMM_EST,
            EventType::SQ_DRAINED,
            EventType::SRQ_LAST_WQE,
            EventType::WQ_CATAS_ERROR,
            EventType::WQ_INVAL_REQ_ERROR,
            EventType::WQ_ACCESS_ERROR,
            EventType::PATH_MIG_FAILED,
        ] {
            for kind in 0..3 {
                let eqe = eqe(event, |bytes| {
                    bytes[QUEUE_KIND] = kind;
                    bytes[0x3b] = 7;
                });
                let other = AsyncEvent::Other { event, sub_type: 0 };
                let is_other = decode(&eqe) == Meaning::Async(other);
                assert_eq!(is_other, kind != 0, "{event:?} of kind {kind}");
            }
        }
    }

    #[test]
    fn async_mask_is_mlx5_cores() {
        // Types 1, 2, 3, 4, 5, 7, 9 and 0x10 to 0x14 (Linux 6.12 mlx5/core/eq.c).
        assert_eq!(ASYNC_EVENTS, 0x001f_02be);
        assert_eq!(COMMAND_EVENTS | PAGE_EVENTS, 0x0c00);
    }

    #[test]
    fn an_unknown_event_type_is_kept_not_feared() {
        let odd = eqe(EventType(0xee), |bytes| bytes[0x03] = 9);
        assert_eq!(
            decode(&odd),
            Meaning::Async(AsyncEvent::Other {
                event: EventType(0xee),
                sub_type: 9
            })
        );
    }

    #[test]
    fn completions_of_queues_that_nobody_has_take_no_memory_without_end() {
        let mut completions = Completions::default();
        let most = u32::try_from(Completions::LIMIT).expect("24 bits");
        assert!((0..most).all(|cqn| completions.note(Cqn::new(cqn))));
        assert!(!completions.note(Cqn::new(most)), "no room");
        assert!(completions.note(Cqn::new(0)), "it is there already");
        completions.forget(Cqn::new(7));
        assert!(completions.note(Cqn::new(most)));
    }

    #[test]
    fn what_nobody_kept_is_told_of_once() {
        let mut inbox = Inbox::default();
        inbox.lose();
        inbox.lose();
        assert!(inbox.seen());
        assert_eq!(inbox.pop(), Some(AsyncEvent::EventsLost { count: 2 }));
        assert_eq!(inbox.pop(), None);
    }

    #[test]
    fn inbox_counts_what_it_throws_away() {
        let mut inbox = Inbox::default();
        for _ in 0..Inbox::LIMIT + 3 {
            inbox.push(AsyncEvent::PortUp);
        }
        for _ in 0..Inbox::LIMIT {
            assert_eq!(inbox.pop(), Some(AsyncEvent::PortUp));
        }
        assert_eq!(inbox.pop(), Some(AsyncEvent::EventsLost { count: 3 }));
        assert_eq!(inbox.pop(), None);
    }
}
