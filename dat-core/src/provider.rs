//! The traits that a provider implements.
//!
//! DAT decides *whether* a call is legal and *what* an event means; a provider owns queues, keys and a wire. Nothing
//! is translated twice at the boundary between them: the provider gets a data transfer operation as the DAT request
//! it is, and encodes its work queue entry from that. The traits are used with static dispatch only; `udapl`
//! instantiates them once.
//!
//! Ownership: `dat-core` owns the provider's queue objects ([`Provider::Qp`] inside the endpoint,
//! [`Provider::Cq`] inside the event dispatcher, [`Provider::Srq`] inside the shared receive queue),
//! so that posting and polling touch the object at hand and nothing else. Commands that change the
//! device go through the provider itself.
//!
//! Endings: a call that ends an object succeeds only if the device no longer uses anything of the object. If the
//! device *refuses*, the object stays as it was, and the call may be repeated. If the device does not *answer*, the
//! provider stops it, so that it reaches no memory at all. From then on every such call is carried out on the host
//! alone and succeeds (except if the device could not be stopped). Where a call cannot report a failure, `dat-core`
//! has the device stopped ([`Provider::stop`]). Dropping a provider stops its device.
//!
//! Hot path: [`QueuePair::post_request`], [`QueuePair::post_recv`], [`SharedReceiveQueue::post_recv`],
//! [`CompletionQueue::poll`] and the two `complete` functions. They allocate nothing, lock nothing,
//! call no kernel and wait for nothing.

pub use rdma_types::{
    DataSegment, InlineError, MadAddress, Path, Plain, PostedRecv, QueueFull, QueuePairCounts,
    QueueSizes, ReadyToReceive, ReadyToSend, RequestFlags, RequestOp, WindowTarget,
};

use crate::address::{Address, Echo};
use crate::event::{DtoDetail, NetworkEvent};
use crate::types::{DtoStatus, MemPrivFlags};
use std::net::IpAddr;
use std::sync::Arc;

/// Nanoseconds since an arbitrary origin, from the provider's clock.
pub type Nanos = u64;

/// Wakes an instance that may be asleep, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The longest segment a work queue entry can hold, in bytes (PRM "Data Segment": 31 bits).
pub(crate) const MAX_SEGMENT: u32 = 0x7fff_ffff;
/// [`MAX_SEGMENT`] in the type of DAT's lengths.
pub(crate) const MAX_SEGMENT_BYTES: u64 = MAX_SEGMENT as u64;

/// A finished data transfer operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The cookie given at the post, unchanged.
    pub cookie: u64,
    /// Status of the operation.
    pub status: DtoStatus,
    /// Bytes transferred; meaningless unless `status` is success.
    pub transferred: u64,
    /// True for Send, RDMA Read, RDMA Write and binds; false for receives.
    pub request: bool,
    /// True for a bind of a memory window.
    pub bind: bool,
    /// True for a request that the library posted for itself ([`QueuePair::post_own`]).
    pub own: bool,
    /// The UNSIGNALLED choice made at the post.
    pub unsignalled: bool,
    /// Receives: the peer's Send carried the solicited bit.
    pub solicited: bool,
    /// The device's error codes, or the data that came with a message.
    pub detail: DtoDetail,
}

impl Completion {
    /// Returns the completion of a DTO that was cut off by the end of its connection or of its device.
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

/// A completion queue entry as read from the device: private copy, nothing in it is trusted yet.
pub trait CompletionEntry {
    /// The owner number given when the queue pair was created.
    fn owner(&self) -> u32;
    /// True for the request queue, false for the receive side.
    fn is_request(&self) -> bool;
}

/// Reasons why a dequeue must not go straight to the completion queue: their number, and a flag for the turn of
/// others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obstacles(usize);

impl Obstacles {
    const OTHERS_TURN: usize = 1 << (usize::BITS - 1);

    /// Returns true if there is no obstacle.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Sets the number of reasons besides [`Obstacles::others_turn`].
    pub(crate) const fn count(&mut self, reasons: usize) {
        self.0 = self.0 & Self::OTHERS_TURN | reasons;
    }

    /// Has the next dequeue poll the rest of the IA first.
    pub const fn others_turn(&mut self) {
        self.0 |= Self::OTHERS_TURN;
    }

    /// Returns whether it was the turn of the rest of the IA, and clears the flag.
    pub(crate) const fn is_others_turn(&mut self) -> bool {
        let turn = self.0 & Self::OTHERS_TURN != 0;
        self.0 &= !Self::OTHERS_TURN;
        turn
    }
}

/// The completion queue entry of a provider.
pub(crate) type Entry<P> = <<P as Provider>::Cq as CompletionQueue>::Entry;

/// A completion queue.
pub trait CompletionQueue {
    /// Type of its entries.
    type Entry: CompletionEntry;
    /// Returns a copy of the next entry, if the device has written one. The entry stays in the queue; an untrusted
    /// device may have changed it by the next call.
    fn peek(&self) -> Option<Self::Entry>;
    /// Consumes the entry that [`CompletionQueue::peek`] has just returned. Once in many entries this sets an
    /// obstacle: a caller that only takes available entries should then poll all other sources.
    fn advance(&mut self, obstacles: &mut Obstacles);
    /// Takes entries while there is one and `take` returns true. Returns true if no entry is left.
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
        // A caller that drains a queue reaches its end anyway, so the turn of others needs no obstacle.
        self.advance(&mut Obstacles::default());
        Some(entry)
    }
    /// Asks for one notification at the next entry (or the next solicited one). Entries already
    /// there notify too, so the order is: arm, poll once more, sleep.
    fn arm(&mut self, solicited_only: bool);
    /// Returns whether the last requested notification is still outstanding, as far as the events processed so far
    /// show.
    fn is_armed(&self) -> bool;
    /// Returns when the device wrote the next entry, by the device's clock ([`Provider::since`]). `None`: there is no
    /// entry, or the device reports no time.
    fn written(&self) -> Option<u64> {
        None
    }
    /// Returns the number of entries the queue can hold.
    fn capacity(&self) -> u32;
    /// Returns the number of entries taken since creation, discarded ones included.
    fn taken(&self) -> u64;
}

/// A reliable connected queue pair.
pub trait QueuePair {
    /// Type of the entries of its completion queues.
    type Entry: CompletionEntry;
    /// Type of the memory windows it can bind.
    type Window;

    /// Posts a request and rings the doorbell. `segments` is walked once per WQE word written and must yield the same
    /// items each time. Checks only for room: the caller has checked everything else.
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

    /// Posts a request of one segment, the most frequent case ([`QueuePair::post_request`]). A queue that looks full
    /// is refused at once, even if it only looks so after a bind; `post_request` may succeed then. Without `RING` the
    /// doorbell is left to the next request, or to [`QueuePair::ring_last`].
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

    /// Posts a request of the library's own: an RDMA Write of no bytes, which shows that the requests before it are
    /// done and that the peer answers. Its completion is always reported, as [`Completion::own`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    fn post_own(&mut self) -> Result<(), QueueFull>;

    /// Rings the doorbell for requests that were posted without it.
    fn ring_last(&mut self) {}

    /// Posts the bind of a window and rings the doorbell. Requests posted later do not start before the window is
    /// bound. Returns the window's new remote key; the old one is void once the bind is done. The success of a bind
    /// is always reported, `suppress` or not. Checks only for room, as [`QueuePair::post_request`]. The queue pair
    /// must have been created with [`QueueSizes::binds`].
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
    /// caller may reuse it on return.
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

    /// Posts a receive buffer (no doorbell register: the device reads the doorbell record).
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

    /// Posts a receive of one segment ([`QueuePair::post_recv`]). Without `TELL` the doorbell record is left to the
    /// next receive, or to [`QueuePair::tell_of_recvs`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    #[inline(always)]
    fn post_one_recv<const TELL: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        self.post_recv(core::iter::once(segment), cookie, unsignalled)
    }

    /// Writes the doorbell record for receives that were posted without it.
    fn tell_of_recvs(&mut self) {}

    /// Completes the oldest DTO if `entry` is its [`Plain`] completion. Otherwise returns `None` and changes nothing:
    /// for any other entry, for one of another queue pair, or if the provider does not implement this. The caller
    /// then calls `complete`.
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Completes a request if `entry` is its [`Plain`] completion and the requests before it are suppressed; those
    /// are completed too.
    fn complete_behind_suppressed(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Turns an entry of this queue pair into a completion and frees its slot and those before it.
    /// `None`: nothing to report (a suppressed success, or an entry that matches no post, which is
    /// logged and counted because the device is not trusted).
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;

    /// Removes the oldest outstanding DTO, requests before receives, and returns it as flushed. For a dead device,
    /// which completes nothing any more; the caller takes the entries it had written first.
    fn take_outstanding(&mut self) -> Option<Completion>;

    /// Removes the oldest outstanding DTO of a queue pair that a refused command has left in RESET, where the device
    /// has forgotten its work. `None` for any other queue pair.
    fn take_lost(&mut self) -> Option<Completion>;

    /// Returns true if the last outstanding request produces no completion when it succeeds.
    fn ends_silently(&self) -> bool;
    /// Returns the receives posted to this queue pair and not yet complete, oldest first, so that another queue pair
    /// can take them over. `None`: they can no longer be read.
    fn posted_recvs(&self) -> Option<Vec<PostedRecv>>;
    /// Returns the number of requests posted and not yet known complete.
    fn requests_outstanding(&self) -> u32;
    /// Returns the number of receives posted to this queue pair (not to an SRQ) and not yet complete.
    fn recvs_outstanding(&self) -> u32;
    /// Returns its counters.
    fn counts(&self) -> QueuePairCounts;
    /// Returns the 24-bit queue pair number, which the peer needs.
    fn number(&self) -> u32;
}

/// A shared receive queue.
pub trait SharedReceiveQueue {
    /// Type of the entries of the completion queues that report its buffers.
    type Entry: CompletionEntry;
    /// Posts a buffer and updates the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` entries are in use.
    fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone;
    /// Posts a buffer. The doorbell record is updated with a later `post_recv`, or by [`SharedReceiveQueue::tell`].
    ///
    /// # Errors
    /// As `post_recv`.
    #[inline(always)]
    fn post_recv_untold<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.post_recv(segments, cookie)
    }
    /// Updates the doorbell record for all buffers posted.
    fn tell(&mut self) {}
    /// Completes a buffer if `entry` is its [`Plain`] completion ([`QueuePair::complete_plain`]).
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Turns an entry whose buffer came from this queue into a completion ([`QueuePair::complete`]).
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;
    /// Returns the number of buffers posted and not yet completed (whether or not an endpoint has taken them).
    fn outstanding(&self) -> u32;
    /// Returns the number of buffers posted since creation.
    fn posted(&self) -> u64;
    /// Changes how many buffers may be posted; those already posted stay.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: more than there is room for; nothing has changed.
    fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), ProviderError>;
}

/// Result of a registration.
#[derive(Debug)]
pub struct Registration<M> {
    /// The provider's record of the region.
    pub region: M,
    /// Local key, used in local triplets.
    pub lmr_context: u32,
    /// Remote key; 0 when no remote access was asked.
    pub rmr_context: u32,
    /// First byte registered (virtual address).
    pub address: u64,
    /// Bytes registered.
    pub bytes: u64,
}

/// Something that happened outside of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderEvent {
    /// The first packet reached a queue pair in RTR. `owner` as given at creation.
    CommunicationEstablished {
        /// Owner of the queue pair.
        owner: u32,
    },
    /// The queue pair went to the error state by itself.
    QpError {
        /// Owner of the queue pair.
        owner: u32,
        /// The device's event type, for the log.
        event: u8,
    },
    /// The last buffer an SRQ-fed queue pair held has been completed.
    SrqLastBuffer {
        /// Owner of the queue pair.
        owner: u32,
    },
    /// A [watched](Provider::watch_cq) completion queue that was armed has received an entry and is no longer armed.
    CqEntries {
        /// Owner number given at creation of the completion queue.
        owner: u32,
    },
    /// A completion queue lost an entry or could not be written; it is unusable.
    CqError {
        /// Owner number given at creation of the completion queue.
        owner: u32,
    },
    /// Fewer buffers than the armed limit are on the SRQ.
    SrqLimit {
        /// Owner number given at creation of the SRQ.
        owner: u32,
    },
    /// The device can take no more buffers from the SRQ.
    SrqError {
        /// Owner number given at creation of the SRQ.
        owner: u32,
    },
    /// An event of the port, of a neighbour, or of our addresses (except the removal of an address).
    Network(NetworkEvent),
    /// One of our addresses is about to be removed. It still works for a short time, so that peers can be told.
    AddressRemoved {
        /// Its index, as [`Path::source_gid_index`].
        source_gid_index: u8,
        /// The address.
        address: IpAddr,
    },
    /// No station answers for this address: datagrams to it were not sent.
    Unreachable {
        /// The address, as [`Path::gid`].
        gid: [u8; 16],
    },
    /// The device is gone or unusable; every later command fails.
    DeviceDead,
    /// The system wants the device back and waits until it is closed. Until then the device works.
    DeviceRequested,
}

/// Text of the error for a port that is down.
pub const PORT_DOWN: &str = "the port is down: nobody is at the other end of its wire, or there is no cable, or the interface of its physical function is down";

/// Why a provider could not do something. The text names it, with numbers.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The device or the host has run out of a resource.
    #[error("out of resources: {0}")]
    Resources(String),
    /// A number exceeds what the device supports.
    #[error("not supported by the device: {what}: {asked} asked for, {limit} at most")]
    Limit {
        /// The resource or parameter.
        what: &'static str,
        /// The number asked for.
        asked: u64,
        /// The largest possible number.
        limit: u64,
    },
    /// The device cannot do this.
    #[error("not supported by the device: {0}")]
    Unsupported(String),
    /// The memory belongs to another device. The sentence names the device and says what to do.
    #[error("{0}")]
    Foreign(String),
    /// The destination cannot be reached or resolved.
    #[error("{why}: {what}")]
    Unreachable {
        /// Short reason, for a person.
        why: &'static str,
        /// Reason for this case, with names and numbers.
        what: String,
    },
    /// The device refused or failed a command.
    #[error("device: {0}")]
    Device(String),
    /// The device is gone.
    #[error("the device is dead: {0}")]
    Dead(String),
}

/// The device's limits and identity, from which the IA attributes are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Name of the adapter, as opened.
    pub adapter_name: String,
    /// Vendor name.
    pub vendor_name: String,
    /// Hardware version (device id, revision).
    pub hardware_version: (u32, u32),
    /// Firmware version (major, minor, sub-minor).
    pub firmware_version: (u32, u32, u32),
    /// Our GID at index 0.
    pub gid: [u8; 16],
    /// Number of queue pairs.
    pub max_qps: u32,
    /// Requests or receives per queue pair.
    pub max_dtos: u32,
    /// Outstanding RDMA Reads per queue pair as target.
    pub max_reads_in: u32,
    /// Outstanding RDMA Reads per queue pair as originator.
    pub max_reads_out: u32,
    /// Number of completion queues.
    pub max_cqs: u32,
    /// Entries of a completion queue.
    pub max_cq_entries: u32,
    /// Data segments of a Send or RDMA Write.
    pub max_request_segments: u32,
    /// Data segments of an RDMA Read.
    pub max_read_segments: u32,
    /// Data segments of a receive.
    pub max_recv_segments: u32,
    /// Number of memory keys.
    pub max_regions: u32,
    /// Bytes of one registration.
    pub max_region_bytes: u64,
    /// Number of memory windows; 0 when the device has none.
    pub max_windows: u32,
    /// Bytes of one memory window.
    pub max_window_bytes: u64,
    /// Number of protection domains.
    pub max_pds: u32,
    /// Bytes of one message.
    pub max_message_bytes: u64,
    /// True if it supports atomic operations of 8 bytes, as originator and as target, with results in the host's byte
    /// order.
    pub atomics: bool,
    /// Number of shared receive queues.
    pub max_srqs: u32,
    /// Buffers of one shared receive queue.
    pub max_srq_recvs: u32,
    /// Path MTU code of the port, 1..=5.
    pub mtu: u8,
    /// Maximum time that the adapter takes to acknowledge a packet, as a code n for 4.096 us * 2^n (IBTA "Local CA
    /// ACK Delay", PRM `local_ca_ack_delay`).
    pub ack_delay: u8,
}

/// A provider: one opened function.
pub trait Provider: Sized {
    /// Type of completion queues, and through it of their entries.
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

    /// Returns the identity and the limits.
    fn limits(&self) -> &Limits;
    /// Returns the time of the provider's clock.
    fn now(&self) -> Nanos;
    /// Returns the time since `written`, a time of the device's clock. The call reads that clock: once for each
    /// wakeup that is measured, never for a post. `None`: the clock gives no plausible time.
    fn since(&self, written: u64) -> Option<Nanos> {
        let _ = written;
        None
    }
    /// Handles all reports of the device (interrupts, event queues, health); if there were none, sleeps until there
    /// are or `deadline` passes. Returns true if something was handled.
    ///
    /// # Errors
    /// The device is dead.
    fn wait(&mut self, deadline: Nanos) -> Result<bool, ProviderError>;
    /// Handles all pending reports without sleeping.
    fn progress(&mut self);
    /// Returns the next event that is not a completion.
    fn next_event(&mut self) -> Option<ProviderEvent>;

    /// Ends the device's use of all memory for good, even if the device does not answer. The device is dead
    /// afterwards. `why` is for people.
    fn stop(&mut self, why: &'static str);
    /// While on, all commands together have the time limit of one command. When it expires, the device is stopped.
    fn one_limit(&mut self, on: bool);

    /// # Errors
    /// Device refusal.
    fn alloc_pd(&mut self) -> Result<Self::Pd, ProviderError>;
    /// # Errors
    /// Device refusal (objects still use it); nothing has changed.
    fn free_pd(&mut self, pd: Self::Pd) -> Result<(), ProviderError>;
    /// Registers memory.
    ///
    /// # Errors
    /// Device refusal; [`ProviderError::Unsupported`]: a size outside the limits. [`ProviderError::Foreign`]: memory of
    /// another device.
    fn register(
        &mut self,
        pd: Self::Pd,
        memory: &Self::Memory,
        access: MemPrivFlags,
    ) -> Result<Registration<Self::Region>, ProviderError>;
    /// Ends a region; it is void afterwards.
    ///
    /// # Errors
    /// Device refusal; the region is as it was.
    fn deregister(&mut self, region: &mut Self::Region) -> Result<(), ProviderError>;
    /// Marks a region's memory as returned to the consumer although the region is not deregistered yet. Nothing
    /// accesses the memory any more, but posted binds still name it. The consumer may register other memory at the
    /// same addresses.
    fn withdraw(&self, _memory: &Self::Memory) {}
    /// Returns whether other processes may have mapped the same memory.
    fn is_shared(&self, memory: &Self::Memory) -> bool;
    /// Creates a memory window, bound to nothing.
    ///
    /// # Errors
    /// Device refusal, or a device without windows.
    fn create_window(&mut self, pd: Self::Pd) -> Result<Self::Window, ProviderError>;
    /// Unbinds a window without a queue pair; its old remote keys stay void.
    ///
    /// # Errors
    /// Device refusal; the window is as it was.
    fn unbind_window(
        &mut self,
        pd: Self::Pd,
        window: &mut Self::Window,
    ) -> Result<(), ProviderError>;
    /// Ends a window, bound or not; it is void afterwards.
    ///
    /// # Errors
    /// Device refusal; the window is as it was.
    fn destroy_window(&mut self, window: &mut Self::Window) -> Result<(), ProviderError>;
    /// Creates a completion queue of at least `entries`. `owner` comes back in [`ProviderEvent::CqError`].
    ///
    /// # Errors
    /// Device refusal; [`ProviderError::Resources`]: there are already [`Limits::max_cqs`] queues, counting all
    /// users.
    fn create_cq(&mut self, entries: u32, owner: u32) -> Result<Self::Cq, ProviderError>;
    /// Has [`ProviderEvent::CqEntries`] reported from now on when an armed queue receives an entry, so that it need
    /// not be polled.
    fn watch_cq(&mut self, cq: &Self::Cq);
    /// Changes the length of a completion queue to at least `entries`. Its entries stay, entries that the device is
    /// about to write are not lost, and the queue pairs that report to it are not affected.
    ///
    /// # Errors
    /// Device refusal, or the queue holds more entries than would fit; nothing has changed.
    fn resize_cq(&mut self, cq: &mut Self::Cq, entries: u32) -> Result<(), ProviderError>;
    /// Ends a completion queue; it is void afterwards.
    ///
    /// # Errors
    /// Device refusal (queue pairs still use it); the queue is as it was.
    fn destroy_cq(&mut self, cq: &mut Self::Cq) -> Result<(), ProviderError>;
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Device refusal.
    fn create_srq(
        &mut self,
        pd: Self::Pd,
        max_recvs: u32,
        max_segments: u32,
        owner: u32,
    ) -> Result<Self::Srq, ProviderError>;
    /// Arms the limit event, which comes when fewer than `limit` buffers are available.
    ///
    /// # Errors
    /// Device refusal.
    fn arm_srq_limit(&mut self, srq: &Self::Srq, limit: u32) -> Result<(), ProviderError>;
    /// Ends a shared receive queue; it is void afterwards.
    ///
    /// # Errors
    /// Device refusal (queue pairs still use it); the queue is as it was.
    fn destroy_srq(&mut self, srq: &mut Self::Srq) -> Result<(), ProviderError>;
    /// Creates a queue pair in the INIT state: receives may be posted at once. [`CompletionEntry::owner`] and the
    /// events return `owner` (24 bits).
    ///
    /// # Errors
    /// Device refusal, or sizes outside the limits.
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
    /// Device refusal.
    fn ready_to_receive(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToReceive,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair from RTR to RTS.
    ///
    /// # Errors
    /// Device refusal.
    fn ready_to_send(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToSend,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair from any state to ERR: everything outstanding, and everything posted from now on, completes
    /// as flushed through the completion queues. Peers no longer reach memory through it.
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state.
    fn to_error(&mut self, qp: &mut Self::Qp) -> Result<(), ProviderError>;
    /// Moves a queue pair from any state to RESET and on to INIT. Outstanding work is forgotten; its entries are
    /// removed from the completion queues given (the ones it was created with).
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state or is in RESET.
    fn reset_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;
    /// Moves a queue pair that was on its way to RTS back to INIT. The receives posted to it stay posted. Returns
    /// `false` if the device has consumed one of them; the queue pair then stays in RESET ([`QueuePair::take_lost`]).
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state or is in RESET, and the call may be repeated.
    fn rewind_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<bool, ProviderError>;
    /// Ends a queue pair in any state; it is void afterwards. Outstanding work is forgotten, as by
    /// [`Provider::reset_qp`].
    ///
    /// # Errors
    /// Device refusal; the queue pair is as it was, or in RESET ([`QueuePair::take_lost`]).
    fn destroy_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;

    /// Returns our GID at an index, which is the source index of a [`Path`].
    fn gid(&self, index: u8) -> Option<[u8; 16]>;
    /// Orders this CPU's stores to registered memory before the device's later reads.
    fn sync_for_device(&self);
    /// Orders the device's writes to registered memory before this CPU's later loads.
    fn sync_for_cpu(&self);
    /// Returns our addresses.
    fn addresses(&self) -> Vec<Address>;
    /// Adds an address, which has passed [`Address::check`]. All instances get [`NetworkEvent::AddressAdded`].
    ///
    /// # Errors
    /// [`ProviderError::Limit`]: there is no room for another one. [`ProviderError::Unsupported`]: it is already
    /// there. Device refusal. Nothing has changed.
    fn add_address(&mut self, address: &Address) -> Result<(), ProviderError>;
    /// Removes an address. No new path uses it; existing paths have a short time to end
    /// ([`ProviderEvent::AddressRemoved`], in all instances).
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`]: it is not one of ours, or one that cannot be removed; nothing has changed.
    fn remove_address(&mut self, address: IpAddr) -> Result<(), ProviderError>;
    /// Sends an ICMP echo request to a node, from our address that has a route there. An earlier request is no longer
    /// waited for. Returns `false` if the node's MAC is being resolved; nothing was sent then.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], [`ProviderError::Unsupported`].
    fn echo(&mut self, _destination: IpAddr, _sequence: u16) -> Result<bool, ProviderError> {
        Err(ProviderError::Unsupported("echoes".to_owned()))
    }
    /// Returns the answer to the last echo, once.
    fn take_echo(&mut self) -> Option<Echo> {
        None
    }
    /// Returns the path to a GID from one of our addresses: from `source` if given, else from the one with a route
    /// there. An unreachable node shows only when a datagram is sent.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], also for a source that is not one of our addresses, or of another family.
    fn route(&self, gid: [u8; 16], source: Option<IpAddr>) -> Result<Path, ProviderError>;
    /// Returns whether the port is up, as far as is known.
    fn port_is_up(&self) -> bool {
        true
    }
    /// Returns the latest time at which [`Provider::progress`] has work to do even without an event.
    fn next_timeout(&self) -> Option<Nanos> {
        None
    }
    /// Sends one 256-byte management datagram through QP1. A datagram to a station whose MAC is unknown is sent when
    /// the MAC is resolved; if that fails, [`ProviderEvent::Unreachable`] reports it.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: there is no room until an earlier datagram has left, which ends a wait. Device
    /// refusal.
    fn send_mad(&mut self, to: &MadAddress, mad: &[u8; 256]) -> Result<(), ProviderError>;
    /// Waits until all sent datagrams have left, at most until `deadline`.
    fn await_mads(&mut self, deadline: Nanos);
    /// Returns a received management datagram and its sender, whose MAC is known.
    fn poll_mad(&mut self) -> Option<(MadAddress, [u8; 256])>;
    /// Returns whether this is the only instance of the device; if so, no other can be created afterwards.
    fn retire(&mut self) -> bool {
        true
    }
    /// Returns the function with which another instance of the adapter wakes this one: it ends the current or the
    /// next [`Provider::wait`].
    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
    /// Starts the recorder of the device's driver because an instance records: commands, management datagrams and
    /// events of the device, for all instances. Does nothing if the driver has none.
    fn record(&mut self) {}
    /// Returns 64 random bits (for identifiers and first packet sequence numbers); seeded in deterministic runs.
    fn random(&mut self) -> u64;
}
