//! What a provider implements.
//!
//! DAT decides *whether* a call is legal and *what* an event means; a provider owns queues, keys and
//! a wire. The seam between them is cut so that nothing is translated twice: a data transfer
//! operation crosses it as the DAT request it is, and the provider encodes its work queue entry from
//! that. The traits are used with static dispatch only; `udapl` instantiates them once.
//!
//! Ownership: `dat-core` owns the provider's queue objects ([`Provider::Qp`] inside the endpoint,
//! [`Provider::Cq`] inside the event dispatcher, [`Provider::Srq`] inside the shared receive queue),
//! so that posting and polling touch the object at hand and nothing else. Commands that change the
//! device go through the provider itself.
//!
//! Endings: a call that ends an object succeeds only if the device uses nothing of it any more. A device that *refuses*
//! leaves the object as it was, and so does the call: it may be made again. A device that does not *answer* has reached
//! its end: the provider stops it, so that it reaches no memory at all, and from then on every such call is done here
//! and succeeds (but on a device that nothing stops). Where no call could fail, `dat-core` has the device stopped
//! ([`Provider::stop`]). Dropping a provider stops its device.
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
/// [`MAX_SEGMENT`], as wide as DAT's lengths are.
pub(crate) const MAX_SEGMENT_BYTES: u64 = MAX_SEGMENT as u64;

/// A finished data transfer operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The cookie given at the post, unchanged.
    pub cookie: u64,
    /// How it ended.
    pub status: DtoStatus,
    /// Bytes transferred; meaningless unless `status` is success.
    pub transferred: u64,
    /// True for Send, RDMA Read, RDMA Write and binds; false for receives.
    pub request: bool,
    /// A bind of a memory window.
    pub bind: bool,
    /// A request that no consumer asked for ([`QueuePair::post_own`]).
    pub own: bool,
    /// The UNSIGNALLED choice made at the post.
    pub unsignalled: bool,
    /// Receives: the peer's Send carried the solicited bit.
    pub solicited: bool,
    /// The device's own words about a failure, or what came with a message.
    pub detail: DtoDetail,
}

impl Completion {
    /// A DTO that the end of its connection, or of its device, has cut off.
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

/// Why a dequeue must not go straight to the completion queue: so many reasons, and perhaps the turn of others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obstacles(usize);

impl Obstacles {
    const OTHERS_TURN: usize = 1 << (usize::BITS - 1);

    /// There is none.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The reasons besides [`Obstacles::others_turn`].
    pub(crate) const fn count(&mut self, reasons: usize) {
        self.0 = self.0 & Self::OTHERS_TURN | reasons;
    }

    /// The next dequeue looks after the rest of the IA first.
    pub const fn others_turn(&mut self) {
        self.0 |= Self::OTHERS_TURN;
    }

    /// Whether it was the turn of the rest of the IA; now it is not any more.
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
    /// Its entries.
    type Entry: CompletionEntry;
    /// A copy of the next entry, if the device has written one. The entry stays; the next look may find that
    /// an untrusted device has changed it.
    fn peek(&self) -> Option<Self::Entry>;
    /// Gives the entry back that [`CompletionQueue::peek`] has just found. Once in many entries that is an obstacle:
    /// who only takes what is there should now look after all else.
    fn advance(&mut self, obstacles: &mut Obstacles);
    /// Takes the next entries for as long as there is one and `take` takes it, which it does by answering true. True:
    /// there is none left.
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
        // Who drains a queue comes to its end.
        self.advance(&mut Obstacles::default());
        Some(entry)
    }
    /// Asks for one notification at the next entry (or the next solicited one). Entries already
    /// there notify too, so the order is: arm, poll once more, sleep.
    fn arm(&mut self, solicited_only: bool);
    /// Whether what was last asked for is still to come, as far as the events taken in so far tell.
    fn is_armed(&self) -> bool;
    /// When the device wrote the next entry, by its own clock ([`Provider::since`]). `None`: there is none, or it does
    /// not say.
    fn written(&self) -> Option<u64> {
        None
    }
    /// Entries the queue can hold.
    fn capacity(&self) -> u32;
    /// Entries taken since it was made, those that were thrown away among them.
    fn taken(&self) -> u64;
}

/// A reliable connected queue pair.
pub trait QueuePair {
    /// The entries of the completion queues it reports to.
    type Entry: CompletionEntry;
    /// The memory windows it can bind.
    type Window;

    /// Posts a request and rings the doorbell. `segments` is walked once per WQE word written and
    /// must yield the same items each time. Checks only the room: everything else was checked.
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

    /// Posts a request of one segment, which most have ([`QueuePair::post_request`]). A queue that only looks full is
    /// not looked into: what is refused here `post_request` may post. Without `RING` the doorbell is left to the next
    /// request, or to [`QueuePair::ring_last`].
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

    /// Posts a request that no consumer asked for, an RDMA Write of no bytes, which shows that those before it are done
    /// and that the peer answers. Its completion is always reported, as [`Completion::own`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    fn post_own(&mut self) -> Result<(), QueueFull>;

    /// Rings the doorbell for requests that were posted without.
    fn ring_last(&mut self) {}

    /// Posts the bind of a window and rings the doorbell. Requests posted later do not start before the window is
    /// bound. The answer is the window's new remote key; the old one is void once the bind is done. The success of
    /// a bind is always reported, `suppress` or not. Checks only the room, as [`QueuePair::post_request`]; the queue
    /// pair was made with [`QueueSizes::binds`].
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

    /// Posts a Send, of whichever kind `op` is, whose data is copied into the queue: no memory region, and the bytes
    /// are the caller's again on return.
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

    /// Most bytes [`QueuePair::post_send_inline`] takes.
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

    /// Posts a receive of one segment ([`QueuePair::post_recv`]), likewise. Without `TELL` the device is told by the
    /// next receive, or by [`QueuePair::tell_of_recvs`].
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

    /// Tells the device of receives that were posted without.
    fn tell_of_recvs(&mut self) {}

    /// What an entry completes that is the [`Plain`] completion of the oldest DTO. `None`, and nothing has changed,
    /// when it is anything else, another queue pair's too, or the provider does not care to tell: then `complete` is
    /// called.
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// What an entry completes that is the [`Plain`] completion of a request with suppressed ones before it, which are
    /// done too.
    fn complete_behind_suppressed(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// Turns an entry of this queue pair into a completion and frees its slot and those before it.
    /// `None`: nothing to report (a suppressed success, or an entry that matches no post, which is
    /// logged and counted because the device is not trusted).
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;

    /// Takes the oldest outstanding DTO, requests before receives, and says it was flushed. For when
    /// the device is dead and completes nothing any more; entries it had written are taken first.
    fn take_outstanding(&mut self) -> Option<Completion>;

    /// Takes the oldest outstanding DTO of a queue pair that a refusal has left in RESET: the device has forgotten its
    /// work. `None` of any other.
    fn take_lost(&mut self) -> Option<Completion>;

    /// Whether nothing will be heard of the last request outstanding if it succeeds.
    fn ends_silently(&self) -> bool;
    /// The receives posted to this queue pair and not yet complete, oldest first, so that another one can take them
    /// over. `None`: they cannot be told any more.
    fn posted_recvs(&self) -> Option<Vec<PostedRecv>>;
    /// Requests posted and not yet known complete.
    fn requests_outstanding(&self) -> u32;
    /// Receives posted to this queue pair (not to an SRQ) and not yet complete.
    fn recvs_outstanding(&self) -> u32;
    /// What it has counted.
    fn counts(&self) -> QueuePairCounts;
    /// The 24-bit number the peer needs.
    fn number(&self) -> u32;
}

/// A shared receive queue.
pub trait SharedReceiveQueue {
    /// The entries of the completion queues that report its buffers.
    type Entry: CompletionEntry;
    /// Posts a buffer, and tells the device.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` entries are in use.
    fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone;
    /// Posts a buffer. The device is told with the next one of which it is told, or by [`SharedReceiveQueue::tell`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    fn post_recv_untold<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.post_recv(segments, cookie)
    }
    /// Tells the device of all buffers posted.
    fn tell(&mut self) {}
    /// What an entry completes that is the [`Plain`] completion of a buffer ([`QueuePair::complete_plain`]).
    fn complete_plain(&mut self, entry: &Self::Entry) -> Option<Plain> {
        let _any = entry;
        None
    }

    /// What an entry completes that took its buffer from this queue ([`QueuePair::complete`]).
    fn complete(&mut self, entry: &Self::Entry) -> Option<Completion>;
    /// Buffers posted and not yet completed (whether or not an endpoint has taken them).
    fn outstanding(&self) -> u32;
    /// Buffers posted since it was made.
    fn posted(&self) -> u64;
    /// Changes how many buffers may be posted; those that are stay.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: more than there is room for; nothing has changed.
    fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), ProviderError>;
}

/// What a registration came to.
#[derive(Debug)]
pub struct Registration<M> {
    /// The provider's record of it.
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
    /// A [watched](Provider::watch_cq) completion queue that was armed has got an entry, and is not armed any more.
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
    /// Something happened to the port, to a neighbour, or, but for the end of one, to our addresses.
    Network(NetworkEvent),
    /// One of our addresses is about to end. It serves a little longer, so that peers can be told.
    AddressRemoved {
        /// Its index, as [`Path::source_gid_index`].
        source_gid_index: u8,
        /// The address.
        address: IpAddr,
    },
    /// Nobody answers for this address: what was to be sent there was not.
    Unreachable {
        /// The address, as [`Path::gid`].
        gid: [u8; 16],
    },
    /// The device is gone or unusable; every later command fails.
    DeviceDead,
    /// Whoever gave us the device wants it back and waits until it is closed. Until then it works.
    DeviceRequested,
}

/// What is said of a port that is down.
pub const PORT_DOWN: &str = "the port is down: nobody is at the other end of its wire, or there is no cable, or the interface of its physical function is down";

/// Why a provider could not do a thing. A text says what, with numbers.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The device or the host has no more of something.
    #[error("out of resources: {0}")]
    Resources(String),
    /// A number is larger than the device can do.
    #[error("not supported by the device: {what}: {asked} asked for, {limit} at most")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// How much, or which number.
        asked: u64,
        /// The largest there may be.
        limit: u64,
    },
    /// The device cannot do this.
    #[error("not supported by the device: {0}")]
    Unsupported(String),
    /// The memory is another device's. The sentence names it, and says what to do.
    #[error("{0}")]
    Foreign(String),
    /// The destination cannot be reached or resolved.
    #[error("{why}: {what}")]
    Unreachable {
        /// Why, for a person.
        why: &'static str,
        /// The same of this case, with names and numbers.
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
    /// Queue pairs.
    pub max_qps: u32,
    /// Requests or receives per queue pair.
    pub max_dtos: u32,
    /// Outstanding RDMA Reads per queue pair as target.
    pub max_reads_in: u32,
    /// Outstanding RDMA Reads per queue pair as originator.
    pub max_reads_out: u32,
    /// Completion queues.
    pub max_cqs: u32,
    /// Entries of a completion queue.
    pub max_cq_entries: u32,
    /// Data segments of a Send or RDMA Write.
    pub max_request_segments: u32,
    /// Data segments of an RDMA Read.
    pub max_read_segments: u32,
    /// Data segments of a receive.
    pub max_recv_segments: u32,
    /// Memory keys.
    pub max_regions: u32,
    /// Bytes of one registration.
    pub max_region_bytes: u64,
    /// Memory windows; 0 when the device has none.
    pub max_windows: u32,
    /// Bytes of one memory window.
    pub max_window_bytes: u64,
    /// Protection domains.
    pub max_pds: u32,
    /// Bytes of one message.
    pub max_message_bytes: u64,
    /// It runs atomic operations of 8 bytes, as originator and as target, with results in the host's order.
    pub atomics: bool,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Buffers of one shared receive queue.
    pub max_srq_recvs: u32,
    /// Path MTU code of the port, 1..=5.
    pub mtu: u8,
    /// The longest that the adapter takes to acknowledge a packet, 4.096 us * 2^n (IBTA "Local CA ACK Delay", PRM
    /// `local_ca_ack_delay`).
    pub ack_delay: u8,
}

/// A provider: one opened function.
pub trait Provider: Sized {
    /// Completion queues and their entries.
    type Cq: CompletionQueue;
    /// Queue pairs.
    type Qp: QueuePair<Entry = <Self::Cq as CompletionQueue>::Entry, Window = Self::Window>;
    /// Shared receive queues.
    type Srq: SharedReceiveQueue<Entry = <Self::Cq as CompletionQueue>::Entry>;
    /// Protection domains.
    type Pd: Copy;
    /// Memory that can be registered.
    type Memory: Clone;
    /// A registered region.
    type Region;
    /// A memory window.
    type Window;

    /// Identity and limits.
    fn limits(&self) -> &Limits;
    /// The clock.
    fn now(&self) -> Nanos;
    /// How long ago it was `written` by the device's own clock, which is read now: once for each wakeup that is
    /// measured, and never for a post. `None`: the clock says nothing that makes sense.
    fn since(&self, written: u64) -> Option<Nanos> {
        let _ = written;
        None
    }
    /// Handles whatever the device reported (interrupts, event queues, health); when there was
    /// nothing, sleeps until there is or `deadline` passes. True: something was handled.
    ///
    /// # Errors
    /// The device is dead.
    fn wait(&mut self, deadline: Nanos) -> Result<bool, ProviderError>;
    /// Takes in what has come, without sleeping.
    fn progress(&mut self);
    /// The next event that is not a completion.
    fn next_event(&mut self) -> Option<ProviderEvent>;

    /// Ends the device's use of all memory, whatever it says, for good: it is dead then. `why` is for people.
    fn stop(&mut self, why: &'static str);
    /// While on, everything the device is asked has, together, the time that one thing has otherwise. When that is
    /// over, the device is stopped.
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
    /// Ends a region; it is void then.
    ///
    /// # Errors
    /// Device refusal; the region is as it was.
    fn deregister(&mut self, region: &mut Self::Region) -> Result<(), ProviderError>;
    /// The consumer has the memory of a region back, which is not deregistered yet: nobody reaches it, but binds on
    /// their way name it. What the consumer registers at its addresses from now on may be other memory.
    fn withdraw(&self, _memory: &Self::Memory) {}
    /// Whether other processes can have mapped the same memory.
    fn is_shared(&self, memory: &Self::Memory) -> bool;
    /// A memory window, bound to nothing.
    ///
    /// # Errors
    /// Device refusal, or a device without windows.
    fn create_window(&mut self, pd: Self::Pd) -> Result<Self::Window, ProviderError>;
    /// Takes a window from whatever it is bound to, without a queue pair; its old remote keys stay void.
    ///
    /// # Errors
    /// Device refusal; the window is as it was.
    fn unbind_window(
        &mut self,
        pd: Self::Pd,
        window: &mut Self::Window,
    ) -> Result<(), ProviderError>;
    /// Ends a window, bound or not; it is void then.
    ///
    /// # Errors
    /// Device refusal; the window is as it was.
    fn destroy_window(&mut self, window: &mut Self::Window) -> Result<(), ProviderError>;
    /// A completion queue of at least `entries`. `owner` comes back in [`ProviderEvent::CqError`].
    ///
    /// # Errors
    /// Device refusal; [`ProviderError::Resources`]: there are [`Limits::max_cqs`], of whatever purpose.
    fn create_cq(&mut self, entries: u32, owner: u32) -> Result<Self::Cq, ProviderError>;
    /// From now on [`ProviderEvent::CqEntries`] says when an armed queue has got something, so that nobody has to look.
    fn watch_cq(&mut self, cq: &Self::Cq);
    /// Changes the length of a completion queue to at least `entries`. What is in it stays in it, what the
    /// device is about to write is not lost, and the queue pairs that report to it do not notice.
    ///
    /// # Errors
    /// Device refusal, or more is in the queue than would fit; nothing has changed.
    fn resize_cq(&mut self, cq: &mut Self::Cq, entries: u32) -> Result<(), ProviderError>;
    /// Ends a completion queue; it is void then.
    ///
    /// # Errors
    /// Device refusal (queue pairs still use it); the queue is as it was.
    fn destroy_cq(&mut self, cq: &mut Self::Cq) -> Result<(), ProviderError>;
    /// A shared receive queue.
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
    /// Arms the limit event: fewer than `limit` buffers available.
    ///
    /// # Errors
    /// Device refusal.
    fn arm_srq_limit(&mut self, srq: &Self::Srq, limit: u32) -> Result<(), ProviderError>;
    /// Ends a shared receive queue; it is void then.
    ///
    /// # Errors
    /// Device refusal (queue pairs still use it); the queue is as it was.
    fn destroy_srq(&mut self, srq: &mut Self::Srq) -> Result<(), ProviderError>;
    /// A queue pair in the INIT state: receives may be posted at once. `owner` is what
    /// [`CompletionEntry::owner`] and the events will say (24 bits).
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
    /// INIT to RTR.
    ///
    /// # Errors
    /// Device refusal.
    fn ready_to_receive(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToReceive,
    ) -> Result<(), ProviderError>;
    /// RTR to RTS.
    ///
    /// # Errors
    /// Device refusal.
    fn ready_to_send(
        &mut self,
        qp: &mut Self::Qp,
        attributes: &ReadyToSend,
    ) -> Result<(), ProviderError>;
    /// Any state to ERR: everything outstanding, and everything posted from now on, completes as
    /// flushed through the completion queues. No peer reaches memory through it any more.
    ///
    /// # Errors
    /// Device refusal; it is in the state it was in.
    fn to_error(&mut self, qp: &mut Self::Qp) -> Result<(), ProviderError>;
    /// Any state to RESET and on to INIT. Outstanding work is forgotten; its entries are removed
    /// from the completion queues given (the ones it was created with).
    ///
    /// # Errors
    /// Device refusal; it is in the state it was in, or in RESET.
    fn reset_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;
    /// Back to INIT of a queue pair that was on its way to RTS. The receives posted to it stay posted. `false`: the
    /// device has consumed one of them, and the queue pair stays in RESET ([`QueuePair::take_lost`]).
    ///
    /// # Errors
    /// Device refusal; it is in the state it was in, or in RESET, and this may be asked again.
    fn rewind_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<bool, ProviderError>;
    /// Ends a queue pair in any state; it is void then. Outstanding work is forgotten, as by [`Provider::reset_qp`].
    ///
    /// # Errors
    /// Device refusal; it is as it was, or in RESET ([`QueuePair::take_lost`]).
    fn destroy_qp(
        &mut self,
        qp: &mut Self::Qp,
        request_cq: &mut Self::Cq,
        recv_cq: Option<&mut Self::Cq>,
    ) -> Result<(), ProviderError>;

    /// Our GID at an index, which a [`Path`] names as its source.
    fn gid(&self, index: u8) -> Option<[u8; 16]>;
    /// Orders what this CPU has stored in registered memory before what the device will read of it.
    fn sync_for_device(&self);
    /// Orders what the device has written into registered memory before later loads.
    fn sync_for_cpu(&self);
    /// Our addresses.
    fn addresses(&self) -> Vec<Address>;
    /// One more address, which has passed [`Address::check`]. All instances hear of it
    /// ([`NetworkEvent::AddressAdded`]).
    ///
    /// # Errors
    /// [`ProviderError::Limit`]: there is no room for one more. [`ProviderError::Unsupported`]: it is there. Device
    /// refusal. Nothing has changed.
    fn add_address(&mut self, address: &Address) -> Result<(), ProviderError>;
    /// One address less. No path leaves from it any more; those that do have a little time to end
    /// ([`ProviderEvent::AddressRemoved`], in all instances).
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`]: it is none of ours, or one that stays; nothing has changed.
    fn remove_address(&mut self, address: IpAddr) -> Result<(), ProviderError>;
    /// Asks a node for an echo (ICMP), from the address that leads there. That of before is not waited for any more.
    /// `false`: its MAC is being asked for, and nothing was sent.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], [`ProviderError::Unsupported`].
    fn echo(&mut self, _destination: IpAddr, _sequence: u16) -> Result<bool, ProviderError> {
        Err(ProviderError::Unsupported("echoes".to_owned()))
    }
    /// The answer to the last echo, once.
    fn take_echo(&mut self) -> Option<Echo> {
        None
    }
    /// The path to a GID: which of our addresses leads there, unless `source` says which. Whether somebody is there
    /// shows when a datagram is sent.
    ///
    /// # Errors
    /// [`ProviderError::Unreachable`], also of a source that is none of our addresses, or of another family.
    fn route(&self, gid: [u8; 16], source: Option<IpAddr>) -> Result<Path, ProviderError>;
    /// Whether the port is up, as far as is known.
    fn port_is_up(&self) -> bool {
        true
    }
    /// When [`Provider::progress`] has something to do at the latest, though nothing happens.
    fn next_timeout(&self) -> Option<Nanos> {
        None
    }
    /// Sends one 256-byte management datagram through QP1. One to a station that is not known yet leaves when it is
    /// found; if it is not, [`ProviderEvent::Unreachable`] says so.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: there is no room until something sent before has left, which ends a wait. Device
    /// refusal.
    fn send_mad(&mut self, to: &MadAddress, mad: &[u8; 256]) -> Result<(), ProviderError>;
    /// Waits until the datagrams that were sent have left, at most until `deadline`.
    fn await_mads(&mut self, deadline: Nanos);
    /// Takes a received management datagram and who sent it. The way back to him is known.
    fn poll_mad(&mut self) -> Option<(MadAddress, [u8; 256])>;
    /// Whether this is the only instance of the device; then there will be no other.
    fn retire(&mut self) -> bool {
        true
    }
    /// What wakes this instance when another one of its adapter has something for it: it ends a [`Provider::wait`] that
    /// is under way or comes next.
    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
    /// An instance records what it does: from now on the device's driver records what is all instances' (commands,
    /// management datagrams, what happens to the device), if it can.
    fn record(&mut self) {}
    /// 64 random bits (identifiers and first packet sequence numbers); seeded in deterministic runs.
    fn random(&mut self) -> u64;
}
