//! The traits that a provider implements.
//!
//! This crate decides *whether* a call is legal and *what* an event means; a provider implements queues, keys and the
//! connection to the wire. No data is translated twice at the boundary between them: the provider gets a data transfer
//! operation in the form of the DAT request, and encodes its work queue entry from that. The traits are used with
//! static dispatch only; `udapl` instantiates them once.
//!
//! Ownership: `dat-core` owns the provider's queue objects ([`Provider::Qp`] inside the endpoint, [`Provider::Cq`]
//! inside the event dispatcher, [`Provider::Srq`] inside the shared receive queue). So posting and polling touch only
//! the object concerned. Commands that change the device go through the provider itself.
//!
//! Destruction: a call that destroys an object succeeds only if the device no longer uses any part of the object. If
//! the device *refuses*, the object is unchanged, and the call may be repeated. If the device does not *answer*, the
//! provider stops the device, so that the device reaches no memory at all. From then on every such call works on the
//! host alone and succeeds (except if the device could not be stopped). Where a call cannot report a failure,
//! `dat-core` stops the device ([`Provider::stop`]). Dropping a device's last provider stops the device.
//!
//! Hot path: [`QueuePair::post_request`], [`QueuePair::post_recv`], [`SharedReceiveQueue::post_recv`],
//! [`CompletionQueue::poll`] and the two `complete` functions. They do not allocate, take locks, call the kernel or
//! wait.
//!
//! A provider whose device goes on without its process also implements [`ParkProvider`].

mod parking;

pub use parking::{ParkProvider, QueuesOf, ResumedQp};
pub use rdma_types::{
    DataSegment, InlineError, MadAddress, Path, Plain, PostedRecv, Psn, Qpn, QueueFull,
    QueuePairCounts, QueueSizes, ReadyToReceive, ReadyToSend, RequestFlags, RequestOp,
    WindowTarget,
};

use crate::address::{Address, Echo};
use crate::event::{DtoDetail, NetworkEvent};
use crate::types::{DtoStatus, MemPrivFlags};
use std::net::IpAddr;
use std::sync::Arc;

/// Nanoseconds since an arbitrary origin, from the provider's clock.
pub type Nanos = u64;

/// A function that wakes an instance, which may be asleep. Any thread may call it.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Longest segment that a work queue entry can hold, in bytes (PRM "Data Segment": 31 bits).
pub(crate) const MAX_SEGMENT: u32 = 0x7fff_ffff;
/// Value of [`MAX_SEGMENT`] in the integer type of DAT's lengths.
pub(crate) const MAX_SEGMENT_BYTES: u64 = MAX_SEGMENT as u64;

/// A completed data transfer operation or bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Cookie given at the post, unchanged.
    pub cookie: u64,
    /// Status of the operation.
    pub status: DtoStatus,
    /// Number of bytes transferred; meaningless unless `status` is success.
    pub transferred: u64,
    /// True for a request (Send, RDMA Read, RDMA Write, atomic operation, bind), false for a receive.
    pub request: bool,
    /// True for a bind of a memory window.
    pub bind: bool,
    /// True for a request that the library posted for itself ([`QueuePair::post_own`]).
    pub own: bool,
    /// True if the post chose UNSIGNALLED.
    pub unsignalled: bool,
    /// True for a receive if the peer's Send had the solicited bit set.
    pub solicited: bool,
    /// Error codes of the device, or the data that arrived with a message.
    pub detail: DtoDetail,
}

impl Completion {
    /// Returns the completion of a DTO that was flushed because its connection ended or its device died.
    #[must_use]
    pub const fn flushed(cookie: u64, request: bool, unsignalled: bool) -> Self {
        Self {
            cookie,
            status: DtoStatus::ErrFlushed,
            transferred: 0,
            request,
            bind: false,
            own: false,
            unsignalled,
            solicited: false,
            detail: DtoDetail::None,
        }
    }
}

/// A private copy of a completion queue entry that was read from the device. No field of it is trusted yet.
pub trait CompletionEntry {
    /// Returns the owner number that was given when the queue pair was created.
    fn owner(&self) -> u32;
    /// Returns true for an entry of the request queue, false for an entry of the receive queue.
    fn is_request(&self) -> bool;
}

/// Obstacles of an EVD: reasons why a dequeue must not poll the completion queue directly. Holds the number of reasons,
/// and a flag that the rest of the IA must be polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obstacles(usize);

impl Obstacles {
    const POLL_OTHERS: usize = 1 << (usize::BITS - 1);

    /// Returns true if there is no obstacle.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Sets the number of reasons. Does not change the flag of [`Obstacles::set_poll_others`].
    pub(crate) const fn count(&mut self, reasons: usize) {
        self.0 = self.0 & Self::POLL_OTHERS | reasons;
    }

    /// Requires the next dequeue to poll the rest of the IA first.
    pub const fn set_poll_others(&mut self) {
        self.0 |= Self::POLL_OTHERS;
    }

    /// Returns whether the next dequeue must poll the rest of the IA, and clears the flag.
    pub(crate) const fn take_poll_others(&mut self) -> bool {
        let poll_others = self.0 & Self::POLL_OTHERS != 0;
        self.0 &= !Self::POLL_OTHERS;
        poll_others
    }
}

/// Type of a provider's completion queue entries.
pub(crate) type Entry<P> = <<P as Provider>::Cq as CompletionQueue>::Entry;

/// A completion queue.
pub trait CompletionQueue {
    /// Type of the queue's entries.
    type Entry: CompletionEntry;
    /// Returns a copy of the next entry, if the device has written one. The entry stays in the queue; an untrusted
    /// device may change it before the next call.
    fn peek(&self) -> Option<Self::Entry>;
    /// Consumes the entry that [`CompletionQueue::peek`] has just returned. Once in many entries this call sets an
    /// obstacle: a caller that takes only available entries must then poll all other sources.
    fn advance(&mut self, obstacles: &mut Obstacles);
    /// Consumes entries until the queue is empty or `take` returns false. Returns true if the queue is empty. An entry
    /// for which `take` returns false stays in the queue.
    #[inline(always)]
    fn take_while(
        &mut self,
        obstacles: &mut Obstacles,
        mut take: impl FnMut(&Self::Entry) -> bool,
    ) -> bool {
        while let Some(entry) = self.peek() {
            if !take(&entry) {
                return false;
            }
            self.advance(obstacles);
        }
        true
    }
    /// Takes the next entry, if the device has written one.
    fn poll(&mut self) -> Option<Self::Entry> {
        let entry = self.peek()?;
        // A caller that takes entries one by one reaches the end of the queue, so it needs no obstacle to stop it.
        self.advance(&mut Obstacles::default());
        Some(entry)
    }
    /// Requests one notification for the next entry (or the next solicited entry). Entries that are already in the
    /// queue also cause a notification. So a caller arms, polls once more, and then sleeps.
    fn arm(&mut self, solicited_only: bool);
    /// Returns whether the last requested notification is still outstanding, according to the events processed so far.
    fn is_armed(&self) -> bool;
    /// Returns the time at which the device wrote the next entry, by the device's clock ([`Provider::since`]). Returns
    /// `None` if there is no entry, or if the device reports no time.
    fn written(&self) -> Option<u64> {
        None
    }
    /// Returns the number of entries the queue can hold.
    fn capacity(&self) -> u32;
    /// Returns the number of entries taken since creation, including discarded entries.
    fn taken(&self) -> u64;
}

/// A reliable connected queue pair.
pub trait QueuePair {
    /// Type of the entries of the queue pair's completion queues.
    type Entry: CompletionEntry;
    /// Type of the memory windows that the queue pair can bind.
    type Window;

    /// Posts a request and rings the doorbell. A provider may iterate `segments` several times, by clones, which must
    /// yield the same items. Checks only for free space in the queue: the caller has checked everything else.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding or the ring is full; nothing was written.
    fn post_request<I>(
        &mut self,
        op: RequestOp,
        segments: I,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone;

    /// Posts a request of one segment, the most frequent case ([`QueuePair::post_request`]). Refuses a queue that
    /// appears full without a closer check. After a bind, a queue may appear full although it is not; `post_request`
    /// may then succeed. Without `RING` the next request, or [`QueuePair::ring_last`], rings the doorbell.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    #[inline(always)]
    fn post_one<const RING: bool>(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull> {
        self.post_request(op, core::iter::once(segment), cookie, flags)
    }

    /// Posts a request for the library itself: an RDMA Write of zero bytes. Its completion shows that the requests
    /// before it are done and that the peer answers. The completion is always reported, as [`Completion::own`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    fn post_own(&mut self) -> Result<(), QueueFull>;

    /// Rings the doorbell for requests that were posted without it.
    fn ring_last(&mut self) {}

    /// Posts the bind of a window and rings the doorbell. Requests that are posted later do not start before the window
    /// is bound. Returns the window's new remote key; the old key is void once the bind is done. The success of a bind
    /// is always reported, even with `suppress`. As [`QueuePair::post_request`], checks only for free space in the
    /// queue. The queue pair must have been created with [`QueueSizes::binds`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written, and the window keeps its key.
    fn post_bind(
        &mut self,
        window: &mut Self::Window,
        target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull>;

    /// Posts a Send of the kind `op` whose data is copied into the queue. The data needs no memory region, and the
    /// caller may reuse its memory when the call returns.
    ///
    /// # Errors
    /// [`InlineError`]; nothing was written.
    fn post_send_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError>;

    /// Returns the maximum number of bytes that [`QueuePair::post_send_inline`] takes.
    fn send_inline_limit(&self) -> usize;

    /// Posts a receive buffer and updates the doorbell record. Receives have no doorbell register: the device reads the
    /// record.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` are outstanding.
    fn post_recv<I>(
        &mut self,
        segments: I,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone;

    /// Posts a receive of one segment ([`QueuePair::post_recv`]). Without `PUBLISH` the next receive, or
    /// [`QueuePair::publish_recvs`], updates the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    #[inline(always)]
    fn post_one_recv<const PUBLISH: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        self.post_recv(core::iter::once(segment), cookie, unsignalled)
    }

    /// Writes the doorbell record for receives that were posted without it.
    fn publish_recvs(&mut self) {}

    /// Completes the oldest DTO if `entry` is its [`Plain`] completion. Otherwise returns `None` and changes nothing:
    /// for any other entry, for an entry of another queue pair, or if the provider does not implement this function.
    /// The caller then calls `complete`.
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Completes a request if `entry` is its [`Plain`] completion and all older outstanding requests are suppressed.
    /// Completes those requests, too.
    fn complete_behind_suppressed(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Converts an entry of this queue pair to a completion, and frees its slot and the slots before it. Returns `None`
    /// if there is nothing to report: for a suppressed success, or for an entry that matches no post. An entry that
    /// matches no post is logged and counted, because the device is not trusted.
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;

    /// Removes the oldest outstanding request, or the oldest receive if there is no request, and returns it as flushed.
    /// Used when the device is dead and completes nothing any more. The caller must first poll the entries that the
    /// device has already written.
    fn take_outstanding(&mut self) -> Option<Completion>;

    /// Removes and returns the oldest outstanding DTO of a queue pair that was left in RESET, by a refused command or
    /// by [`Provider::rewind_qp`] that returned `false`. In RESET the device has forgotten its work. Returns `None` for
    /// any other queue pair.
    fn take_lost(&mut self) -> Option<Completion>;

    /// Returns true if the last outstanding request will produce no completion when it succeeds.
    fn ends_silently(&self) -> bool;
    /// Returns the receives that are posted to this queue pair and not complete, oldest first, so that they can be
    /// posted to another queue pair. Returns `None` if they can no longer be read.
    fn posted_recvs(&self) -> Option<Vec<PostedRecv>>;
    /// Returns the number of requests that are posted and not known to be complete.
    fn requests_outstanding(&self) -> u32;
    /// Returns the number of receives that are posted to this queue pair (not to an SRQ) and not complete.
    fn recvs_outstanding(&self) -> u32;
    /// Returns the counters of the queue pair.
    fn counts(&self) -> QueuePairCounts;
    /// Returns the queue pair number, which the peer needs.
    fn number(&self) -> Qpn;
}

/// A shared receive queue.
pub trait SharedReceiveQueue {
    /// Type of the entries of the completion queues that report the buffers of this queue.
    type Entry: CompletionEntry;
    /// Posts a buffer and updates the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` buffers are outstanding.
    fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone;
    /// Posts a buffer. A later `post_recv`, or [`SharedReceiveQueue::publish`], updates the doorbell record.
    ///
    /// # Errors
    /// As `post_recv`.
    #[inline(always)]
    fn post_recv_unpublished<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.post_recv(segments, cookie)
    }
    /// Updates the doorbell record for all buffers posted so far.
    fn publish(&mut self) {}
    /// Completes a buffer if `entry` is its [`Plain`] completion ([`QueuePair::complete_plain`]).
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Converts an entry whose buffer came from this queue to a completion ([`QueuePair::complete`]).
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;
    /// Returns the number of buffers that are posted and not completed (whether or not an endpoint has taken them).
    fn outstanding(&self) -> u32;
    /// Returns the number of buffers posted since creation.
    fn posted(&self) -> u64;
    /// Changes the number of buffers that may be outstanding. Buffers that are already posted stay.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: the queue cannot hold so many buffers; nothing has changed.
    fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), ProviderError>;
}

/// Result of a memory registration.
#[derive(Debug)]
pub struct Registration<M> {
    /// Region object of the provider.
    pub region: M,
    /// Local key, used in local triplets.
    pub lmr_context: u32,
    /// Remote key; 0 if no remote access was requested.
    pub rmr_context: u32,
    /// Virtual address of the first byte registered.
    pub address: u64,
    /// Number of bytes registered.
    pub bytes: u64,
}

/// An event of the device, of the system or of the network that is not a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ProviderEvent {
    /// The first packet has arrived at a queue pair in RTR.
    CommunicationEstablished {
        /// Owner number given at creation of the queue pair.
        owner: u32,
    },
    /// The device moved the queue pair to the error state by itself.
    QpError {
        /// Owner number given at creation of the queue pair.
        owner: u32,
        /// Event type of the device (PRM "Event Types"), for the log and the end cause.
        event: u8,
    },
    /// The last SRQ buffer that a queue pair held has been completed.
    SrqLastBuffer {
        /// Owner number given at creation of the queue pair.
        owner: u32,
    },
    /// A [watched](Provider::watch_cq) completion queue that was armed has received an entry and is no longer armed.
    CqEntries {
        /// Owner number given at creation of the completion queue.
        owner: u32,
    },
    /// A completion queue lost an entry, or the device could not write to it. The queue is unusable.
    CqError {
        /// Owner number given at creation of the completion queue.
        owner: u32,
    },
    /// Fewer buffers than the armed limit are on the SRQ.
    SrqLimit {
        /// Owner number given at creation of the SRQ.
        owner: u32,
    },
    /// The device can take no more buffers from the SRQ, because of an error.
    SrqError {
        /// Owner number given at creation of the SRQ.
        owner: u32,
    },
    /// An event of the port, of a neighbour, or of our addresses (except the removal of an address).
    Network(NetworkEvent),
    /// One of our addresses is about to be removed. It still works for a short time, so that peers can be notified.
    AddressRemoved {
        /// Index of the address, as in [`Path::source_gid_index`].
        source_gid_index: u8,
        /// Address that is being removed.
        address: IpAddr,
    },
    /// No station answers for this address, so datagrams to it were not sent.
    Unreachable {
        /// Address of the station, as in [`Path::gid`].
        gid: [u8; 16],
    },
    /// The device is gone or unusable; every later command fails.
    DeviceDead,
    /// The system requests the device's release, and waits until the device is closed. Until then the device works.
    DeviceRequested,
}

/// Text of the error for a port that is down.
pub const PORT_DOWN: &str = "the port is down: nobody is at the other end of its wire, or there is no cable, or the interface of its physical function is down";

/// A reason why a provider could not do something. The text gives the reason, with numbers.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The device or the host has run out of a resource.
    #[error("out of resources: {0}")]
    Resources(String),
    /// A requested number exceeds what the device supports.
    #[error("not supported by the device: {what}: {asked} asked for, {limit} at most")]
    Limit {
        /// Name of the resource or parameter.
        what: &'static str,
        /// Number that was requested.
        asked: u64,
        /// Largest number that the device supports.
        limit: u64,
    },
    /// The device does not support the operation.
    #[error("not supported by the device: {0}")]
    Unsupported(String),
    /// The memory belongs to another device. The text names that device and says what to do.
    #[error("{0}")]
    Foreign(String),
    /// The destination cannot be reached or resolved.
    #[error("{why}: {what}")]
    Unreachable {
        /// Short reason, without names and numbers.
        why: &'static str,
        /// Detailed reason, with names and numbers.
        what: String,
    },
    /// The device refused a command, or failed to carry it out.
    #[error("device: {0}")]
    Device(String),
    /// The device is dead.
    #[error("the device is dead: {0}")]
    Dead(String),
}

/// Identity and limits of the device. The IA attributes are filled from them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Name with which the adapter was opened.
    pub adapter_name: String,
    /// Vendor name.
    pub vendor_name: String,
    /// Hardware version (device id, revision).
    pub hardware_version: (u32, u32),
    /// Firmware version (major, minor, sub-minor).
    pub firmware_version: (u32, u32, u32),
    /// GID of this adapter at index 0.
    pub gid: [u8; 16],
    /// Maximum number of queue pairs.
    pub max_qps: u32,
    /// Maximum number of outstanding requests, and of receives, per queue pair.
    pub max_dtos: u32,
    /// Maximum number of outstanding RDMA Reads per queue pair as responder.
    pub max_reads_in: u32,
    /// Maximum number of outstanding RDMA Reads per queue pair as requester.
    pub max_reads_out: u32,
    /// Maximum number of completion queues.
    pub max_cqs: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cq_entries: u32,
    /// Maximum number of data segments of a Send or RDMA Write.
    pub max_request_segments: u32,
    /// Maximum number of data segments of an RDMA Read.
    pub max_read_segments: u32,
    /// Maximum number of data segments of a receive.
    pub max_recv_segments: u32,
    /// Maximum number of regions of a program's own memory: the number of memory keys, or of free DMA mappings if that
    /// is smaller.
    pub max_regions: u32,
    /// Maximum length of one registration, in bytes.
    pub max_region_bytes: u64,
    /// Maximum number of memory windows; 0 if the device has none.
    pub max_windows: u32,
    /// Maximum length of one memory window, in bytes.
    pub max_window_bytes: u64,
    /// Maximum number of protection domains.
    pub max_pds: u32,
    /// Maximum length of one message, in bytes.
    pub max_message_bytes: u64,
    /// True if the device supports atomic operations of 8 bytes, as requester and as responder, with results in the
    /// host's byte order.
    pub atomics: bool,
    /// Maximum number of shared receive queues.
    pub max_srqs: u32,
    /// Maximum number of buffers of one shared receive queue.
    pub max_srq_recvs: u32,
    /// Path MTU code of the port, 1..=5.
    pub mtu: u8,
    /// Maximum time that the adapter takes to acknowledge a packet, as a code n for 4.096 us * 2^n (IBTA "Local CA
    /// ACK Delay", PRM `local_ca_ack_delay`).
    pub ack_delay: u8,
}

/// A provider: one opened PCI function.
pub trait Provider: Sized {
    /// Type of completion queues. It also determines the type of their entries.
    type Cq: CompletionQueue;
    /// Type of queue pairs.
    type Qp: QueuePair<Entry = <Self::Cq as CompletionQueue>::Entry, Window = Self::Window>;
    /// Type of shared receive queues.
    type Srq: SharedReceiveQueue<Entry = <Self::Cq as CompletionQueue>::Entry>;
    /// Type of protection domains.
    type Pd: Copy;
    /// Type of memory that can be registered.
    type Memory: Clone;
    /// Type of a registered region.
    type Region;
    /// Type of a memory window.
    type Window;

    /// Returns the identity and the limits of the device.
    fn limits(&self) -> &Limits;
    /// Returns the time of the provider's clock.
    fn now(&self) -> Nanos;
    /// Returns the time that has passed since `written`, a time of the device's clock. The call reads the device's
    /// clock. It is made once for each measured wakeup, never for a post. Returns `None` if the clock gives no
    /// plausible time.
    fn since(&self, written: u64) -> Option<Nanos> {
        let _ = written;
        None
    }
    /// Handles all reports of the device (interrupts, event queues, health). If there are none, sleeps until there are
    /// some or `deadline` passes. Returns true if something was handled.
    ///
    /// # Errors
    /// The device is dead.
    fn wait(&mut self, deadline: Nanos) -> Result<bool, ProviderError>;
    /// Handles all pending reports without sleeping.
    fn progress(&mut self);
    /// Returns the next event that is not a completion.
    fn next_event(&mut self) -> Option<ProviderEvent>;

    /// Permanently ends the device's access to all memory, even if the device does not answer. The device is dead
    /// afterwards. `why` is a text for the log.
    fn stop(&mut self, why: &'static str);
    /// Switches a common time limit on or off. While it is on, all commands together have the time limit of one
    /// command. When the limit expires, the device is stopped.
    fn one_limit(&mut self, on: bool);

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The device refused.
    fn alloc_pd(&mut self) -> Result<Self::Pd, ProviderError>;
    /// Frees a protection domain.
    ///
    /// # Errors
    /// The device refused (objects still use the domain); nothing has changed.
    fn free_pd(&mut self, pd: Self::Pd) -> Result<(), ProviderError>;
    /// Registers memory.
    ///
    /// # Errors
    /// The device refused. [`ProviderError::Unsupported`]: the memory has no bytes. [`ProviderError::Limit`]: it is
    /// longer than a region can be. [`ProviderError::Foreign`]: the memory belongs to another device.
    fn register(
        &mut self,
        pd: Self::Pd,
        memory: &Self::Memory,
        access: MemPrivFlags,
    ) -> Result<Registration<Self::Region>, ProviderError>;
    /// Deregisters a region. The object must not be used afterwards.
    ///
    /// # Errors
    /// The device refused; the region is unchanged.
    fn deregister(&mut self, region: &mut Self::Region) -> Result<(), ProviderError>;
    /// Marks a region's memory as returned to the consumer although the region is not deregistered yet. Nothing
    /// accesses the memory any more, but posted binds still name the region. The consumer may register other memory at
    /// the same addresses.
    fn withdraw(&self, _memory: &Self::Memory) {}
    /// Returns whether other processes may have mapped the same memory.
    fn is_shared(&self, memory: &Self::Memory) -> bool;
    /// Creates an unbound memory window.
    ///
    /// # Errors
    /// The device refused, or it has no memory windows.
    fn create_window(&mut self, pd: Self::Pd) -> Result<Self::Window, ProviderError>;
    /// Unbinds a window by a command, not through a queue pair. The window's old remote keys stay invalid.
    ///
    /// # Errors
    /// The device refused; the window is unchanged.
    fn unbind_window(
        &mut self,
        pd: Self::Pd,
        window: &mut Self::Window,
    ) -> Result<(), ProviderError>;
    /// Destroys a window, bound or not. The object must not be used afterwards.
    ///
    /// # Errors
    /// The device refused; the window is unchanged.
    fn destroy_window(&mut self, window: &mut Self::Window) -> Result<(), ProviderError>;
    /// Creates a completion queue of at least `entries` entries. The events of the queue report `owner`.
    ///
    /// # Errors
    /// The device refused. [`ProviderError::Resources`]: this instance already has [`Limits::max_cqs`] queues.
    fn create_cq(&mut self, entries: u32, owner: u32) -> Result<Self::Cq, ProviderError>;
    /// Watches a completion queue: from now on, [`ProviderEvent::CqEntries`] is reported when the armed queue receives
    /// an entry. So the caller need not poll the queue.
    fn watch_cq(&mut self, cq: &Self::Cq);
    /// Changes the length of a completion queue to at least `entries`. Entries in the queue stay, entries that the
    /// device is about to write are not lost, and the queue pairs that report to the queue are not affected.
    ///
    /// # Errors
    /// The device refused, or the queue holds more entries than would fit; nothing has changed.
    fn resize_cq(&mut self, cq: &mut Self::Cq, entries: u32) -> Result<(), ProviderError>;
    /// Destroys a completion queue. The object must not be used afterwards.
    ///
    /// # Errors
    /// The device refused (queue pairs still use the queue); the queue is unchanged.
    fn destroy_cq(&mut self, cq: &mut Self::Cq) -> Result<(), ProviderError>;
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// The device refused.
    fn create_srq(
        &mut self,
        pd: Self::Pd,
        max_recvs: u32,
        max_segments: u32,
        owner: u32,
    ) -> Result<Self::Srq, ProviderError>;
    /// Arms the limit event, which the device reports when fewer than `limit` buffers are available.
    ///
    /// # Errors
    /// The device refused.
    fn arm_srq_limit(&mut self, srq: &Self::Srq, limit: u32) -> Result<(), ProviderError>;
    /// Destroys a shared receive queue. The object must not be used afterwards.
    ///
    /// # Errors
    /// The device refused (queue pairs still use the queue); the queue is unchanged.
    fn destroy_srq(&mut self, srq: &mut Self::Srq) -> Result<(), ProviderError>;
    /// Creates a queue pair in the INIT state, so receives may be posted at once. [`CompletionEntry::owner`] and the
    /// events report `owner` (24 bits).
    ///
    /// # Errors
    /// The device refused, or the sizes are outside the limits.
    fn create_qp(
        &mut self,
        pd: Self::Pd,
        request_cq: &Self::Cq,
        recv_cq: &Self::Cq,
        srq: Option<&Self::Srq>,
        sizes: QueueSizes,
        owner: u32,
    ) -> Result<Self::Qp, ProviderError>;
    /// Moves a queue pair from INIT to RTR.
    ///
    /// # Errors
    /// The device refused.
    fn ready_to_receive(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToReceive,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair from RTR to RTS.
    ///
    /// # Errors
    /// The device refused.
    fn ready_to_send(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToSend,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair from any state to ERR. All outstanding and all later work completes as flushed, through the
    /// completion queues. Peers can no longer reach memory through the queue pair. The outstanding work of a queue pair
    /// in RESET does not complete: the caller first polls the completion queues, and then takes that work by
    /// [`QueuePair::take_lost`].
    ///
    /// # Errors
    /// The device refused; the queue pair keeps its state.
    fn to_error(&mut self, qp: &mut Self::Qp) -> Result<(), ProviderError>;
    /// Moves a queue pair from any state to RESET and on to INIT. Outstanding work is forgotten, and its entries are
    /// removed from the given completion queues (those with which the queue pair was created).
    ///
    /// # Errors
    /// The device refused; the queue pair keeps its state or is in RESET.
    fn reset_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair that was being connected, but has not reached RTS, back to INIT. The posted receives stay
    /// posted. Returns `false` if the device has consumed one of them; the queue pair then stays in RESET
    /// ([`QueuePair::take_lost`]).
    ///
    /// # Errors
    /// The device refused; the queue pair keeps its state or is in RESET, and the call may be repeated.
    fn rewind_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<bool, ProviderError>;
    /// Destroys a queue pair in any state. The object must not be used afterwards. Outstanding work is forgotten, as by
    /// [`Provider::reset_qp`].
    ///
    /// # Errors
    /// The device refused; the queue pair is unchanged, or in RESET ([`QueuePair::take_lost`]).
    fn destroy_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;

    /// Returns the adapter's GID at an index; `None` if the index is unused. [`Path`] uses the same index for its
    /// source.
    fn gid(&self, index: u8) -> Option<[u8; 16]>;
    /// Orders this CPU's stores to registered memory before the device's later reads.
    fn sync_for_device(&self);
    /// Orders the device's writes to registered memory before this CPU's later loads.
    fn sync_for_cpu(&self);
    /// Returns the adapter's addresses.
    fn addresses(&self) -> Vec<Address>;
    /// Adds an address to the adapter. The caller has checked it with [`Address::check`]. All instances get
    /// [`NetworkEvent::AddressAdded`].
    ///
    /// # Errors
    /// [`ProviderError::Limit`]: the adapter can have no more addresses. [`ProviderError::Unsupported`]: the adapter
    /// already has the address. The device refused. In all cases nothing has changed.
    fn add_address(&mut self, address: &Address) -> Result<(), ProviderError>;
    /// Removes an address. No new path uses it; connections on existing paths have a short time to end
    /// ([`ProviderEvent::AddressRemoved`], in all instances).
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`]: the adapter does not have the address, or the address cannot be removed; nothing
    /// has changed.
    fn remove_address(&mut self, address: IpAddr) -> Result<(), ProviderError>;
    /// Sends an ICMP echo request to a node, from the adapter's address that has a route to it. Replaces an earlier
    /// request, whose answer is then ignored. Returns `false` if the node's MAC is still being resolved; nothing was
    /// sent then.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], [`ProviderError::Unsupported`].
    fn echo(&mut self, _destination: IpAddr, _sequence: u16) -> Result<bool, ProviderError> {
        Err(ProviderError::Unsupported("echoes".to_owned()))
    }
    /// Returns the answer to the last echo request; `None` if it has not arrived, or was returned before.
    fn take_echo(&mut self) -> Option<Echo> {
        None
    }
    /// Returns the path to a GID from `source`, or, if `source` is `None`, from the adapter's address that has a route
    /// to the GID. The call does not check whether the node answers; this shows only when a datagram is sent.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], also if `source` is not one of the adapter's addresses, or is of another family.
    fn route(&self, gid: [u8; 16], source: Option<IpAddr>) -> Result<Path, ProviderError>;
    /// Returns whether the port is up, according to the last known state.
    fn port_is_up(&self) -> bool {
        true
    }
    /// Returns the time by which [`Provider::progress`] must be called even if there is no event; `None` if it need
    /// not.
    fn next_timeout(&self) -> Option<Nanos> {
        None
    }
    /// Sends one 256-byte management datagram through QP1. A datagram to a station whose MAC is unknown is sent when
    /// the MAC has been resolved. If the resolution fails, [`ProviderEvent::Unreachable`] reports it.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: the send queue is full. When an earlier datagram has been sent, a wait ends and
    /// the caller can try again. The device refused.
    fn send_mad(&mut self, to: &MadAddress, mad: &[u8; 256]) -> Result<(), ProviderError>;
    /// Waits until all queued datagrams have been sent, at most until `deadline`.
    fn await_mads(&mut self, deadline: Nanos);
    /// Returns a received management datagram and the address of its sender; `None` if none is ready. The sender's MAC
    /// is known.
    fn poll_mad(&mut self) -> Option<(MadAddress, [u8; 256])>;
    /// Returns whether this is the only instance of the device. If it is, no other instance can be created afterwards.
    fn retire(&mut self) -> bool {
        true
    }
    /// Returns the function with which other instances of the adapter wake this one. The function ends the current or
    /// the next [`Provider::wait`].
    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
    /// Starts the recorder of the device's driver, because an instance has started to record. The driver records
    /// commands, management datagrams and events of the device, for all instances. Does nothing if the driver has no
    /// recorder.
    fn record(&mut self) {}
    /// Returns 64 random bits, for identifiers and first packet sequence numbers. In deterministic runs the bits come
    /// from a seeded generator.
    fn random(&mut self) -> u64;
}
