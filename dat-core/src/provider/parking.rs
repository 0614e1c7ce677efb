//! The part of a provider that outlives its process ([`Ia::park`](crate::Ia::park)).
//!
//! ```text
//!   the old process                                       the new process
//!     can_park_region, of every region
//!     begin_parking: the quiet point
//!       park_cq, park_qp, ...: all objects
//!     finish_parking  --- Snapshot, Handover --->           check
//!                                                           the caller claims the handover
//!                                                           go_on
//!                     --- snapshots of objects --->           resume_pd, resume_region, resume_window, resume_cq,
//!                                                             resume_srq, resume_qp
//!                                                           finish_resuming
//! ```
//!
//! At the quiet point no command is under way, and the provider has handled all reports of the device. The events that
//! it has not returned are in its snapshot. Queues keep their work: what is posted stays posted, and entries of
//! completion queues that were not taken stay in them.
//!
//! The state of the port may change meanwhile. The device reports that by events, which the provider handles after the
//! resumption. Our addresses stay, because only the provider changes them.
//!
//! All instances of a device are parked together, and the resumption returns as many, in the same order. An object is
//! resumed by the instance that had it. Objects of all instances are resumed before the first
//! [`ParkProvider::finish_resuming`].
//!
//! If the parking is cancelled, `cancel_parking` takes the place of `check` and `go_on`, in the same process.
//!
//! [`ParkProvider::check`] changes nothing. [`ParkProvider::go_on`] needs the proof of a claim, because it may read and
//! arm the event queues of the device: no other process can go on with the device then. Objects are resumed without a
//! change in the device, and no queue reports events before [`ParkProvider::finish_resuming`]. Until then the provider
//! sends and receives nothing.
//!
//! A provider does not trust its snapshots: it compares them with the device and with the arguments of the call, and
//! refuses a snapshot that it cannot confirm. It does not panic.

use core::fmt::Debug;

use super::{Nanos, Provider, ProviderError, QueueSizes, Registration};
use crate::types::MemPrivFlags;

/// A provider that another process can resume, with all its objects. The snapshots are plain data.
pub trait ParkProvider: Provider {
    /// Type of a device at its quiet point, with all of its instances. The device is stopped if the value is dropped.
    type Parking;
    /// Type of the snapshot of the device and of its instances.
    type Snapshot: Clone + Debug + PartialEq;
    /// Type of the descriptors, which go with the snapshot and are not plain data.
    type Handover;
    /// Type of the proof that this process has claimed a handover, and may drive the device.
    type Proof;
    /// Type of a device that was checked, and is not claimed. If it is dropped, the device stays parked.
    type Unclaimed<'a>
    where
        Self: 'a;
    /// Type of the snapshot of a protection domain.
    type PdSnapshot: Clone + Debug + PartialEq;
    /// Type of the snapshot of a completion queue.
    type CqSnapshot: Clone + Debug + PartialEq;
    /// Type of the snapshot of a shared receive queue.
    type SrqSnapshot: Clone + Debug + PartialEq;
    /// Type of the snapshot of a queue pair.
    type QpSnapshot: Clone + Debug + PartialEq;
    /// Type of the snapshot of a region and of its memory.
    type RegionSnapshot: Clone + Debug + PartialEq;
    /// Type of the snapshot of a memory window.
    type WindowSnapshot: Clone + Debug + PartialEq;

    /// Checks that another process can have a region's memory at the same addresses.
    ///
    /// # Errors
    /// The memory belongs to the program or to this process alone. The text says what to do.
    fn can_park_region(
        &self,
        region: &Self::Region,
        memory: &Self::Memory,
    ) -> Result<(), ProviderError>;
    /// Returns the address of the buffer that a memory lies in, and the number of owners of the buffer: values of type
    /// [`Provider::Memory`](super::Provider::Memory), and regions. `None` if the provider does not count them.
    fn owners(_memory: &Self::Memory) -> Option<(u64, usize)> {
        None
    }
    /// Brings a device to its quiet point. The caller gives all of its instances, in any order.
    ///
    /// # Errors
    /// The instances in their order, which go on, and the reason: the device is dead or does not become quiet, there is
    /// no instance, one is missing or of another device, or the device has objects that cannot be parked.
    fn begin_parking(instances: Vec<Self>) -> Result<Self::Parking, (Vec<Self>, ProviderError)>;
    /// Writes a protection domain out.
    fn park_pd(parking: &mut Self::Parking, pd: Self::Pd) -> Self::PdSnapshot;
    /// Writes a completion queue out.
    fn park_cq(parking: &mut Self::Parking, cq: Self::Cq) -> Self::CqSnapshot;
    /// Writes a shared receive queue out.
    fn park_srq(parking: &mut Self::Parking, srq: Self::Srq) -> Self::SrqSnapshot;
    /// Writes a queue pair out, with its outstanding work.
    fn park_qp(parking: &mut Self::Parking, qp: Self::Qp) -> Self::QpSnapshot;
    /// Writes a region and its memory out. Several regions may have the same memory.
    fn park_region(
        parking: &mut Self::Parking,
        region: Self::Region,
        memory: Self::Memory,
    ) -> Self::RegionSnapshot;
    /// Writes a memory window out, bound or not.
    fn park_window(parking: &mut Self::Parking, window: Self::Window) -> Self::WindowSnapshot;
    /// Ends the parking. All objects were written out before. From then on this process does not use the device.
    ///
    /// # Errors
    /// The parking, which can be finished later or cancelled, and the reason.
    #[expect(clippy::type_complexity, reason = "two results, each with two parts")]
    fn finish_parking(
        parking: Self::Parking,
    ) -> Result<(Self::Snapshot, Self::Handover), (Self::Parking, ProviderError)>;
    /// Goes on with the device in this process. All objects were written out before. The caller then resumes them, as
    /// after [`ParkProvider::go_on`]. The results are other instances of the same device, as many and in the same
    /// order. Wakers and descriptors of the parked ones wake no thread any more, and their handles count as those of a
    /// closed device.
    ///
    /// # Errors
    /// The parking, which can be finished later or cancelled, and the reason. If the device was stopped, both are
    /// refused from then on.
    fn cancel_parking(parking: Self::Parking) -> Result<Vec<Self>, (Self::Parking, ProviderError)>;

    /// Makes a device of what this or another process has parked, and checks all that can be checked without a
    /// command. The device is not changed.
    ///
    /// # Errors
    /// The handover, and the reason.
    fn check(
        snapshot: &Self::Snapshot,
        handover: Self::Handover,
    ) -> Result<Self::Unclaimed<'_>, (Self::Handover, ProviderError)>;
    /// Returns the number of instances of a device that was checked.
    fn instances(unclaimed: &Self::Unclaimed<'_>) -> usize;
    /// Gives the handover of a device that was checked back. The device is as before.
    fn give_back(unclaimed: Self::Unclaimed<'_>) -> Self::Handover;
    /// Returns the time on the clock of a device that was checked.
    fn time_of(unclaimed: &Self::Unclaimed<'_>) -> Nanos;
    /// Goes on with a device that was checked. Returns its instances in the order in which they were parked.
    ///
    /// # Errors
    /// The handover, and the reason. The device goes on then, and the handover can be resumed. `None`: the device is
    /// stopped, because it has confirmed only a part of the snapshot.
    fn go_on(
        unclaimed: Self::Unclaimed<'_>,
        proof: &Self::Proof,
    ) -> Result<Vec<Self>, (Option<Self::Handover>, ProviderError)>;
    /// Makes a protection domain again.
    ///
    /// # Errors
    /// The snapshot is not that of a domain of this device.
    fn resume_pd(&mut self, snapshot: &Self::PdSnapshot) -> Result<Self::Pd, ProviderError>;
    /// Makes a region and its memory again. The region belongs to `pd`, and was registered with `access`.
    ///
    /// # Errors
    /// The snapshot is not that of such a region of this device, or the memory is not there.
    fn resume_region(
        &mut self,
        pd: Self::Pd,
        access: MemPrivFlags,
        snapshot: &Self::RegionSnapshot,
    ) -> Result<(Registration<Self::Region>, Self::Memory), ProviderError>;
    /// Makes a memory window of `pd` again. `outstanding_binds` binds of the window were posted and are not known to be
    /// complete.
    ///
    /// # Errors
    /// The snapshot is not that of such a window of this device.
    fn resume_window(
        &mut self,
        pd: Self::Pd,
        outstanding_binds: u32,
        snapshot: &Self::WindowSnapshot,
    ) -> Result<Self::Window, ProviderError>;
    /// Makes a completion queue again, whose events report `owner`. The queue is not watched: a caller that wants
    /// reports of the events that came meanwhile calls [`Provider::watch_cq`] before [`ParkProvider::finish_resuming`].
    ///
    /// # Errors
    /// The snapshot is not that of such a queue of this device, or its memory is not there.
    fn resume_cq(
        &mut self,
        owner: u32,
        snapshot: &Self::CqSnapshot,
    ) -> Result<Self::Cq, ProviderError>;
    /// Makes a shared receive queue of `pd` again, whose events report `owner`. Its buffers may have `max_segments`
    /// segments, and `max_recvs` of them may be outstanding.
    ///
    /// # Errors
    /// The snapshot is not that of such a queue of this device, or its memory is not there.
    fn resume_srq(
        &mut self,
        pd: Self::Pd,
        max_recvs: u32,
        max_segments: u32,
        owner: u32,
        snapshot: &Self::SrqSnapshot,
    ) -> Result<Self::Srq, ProviderError>;
    /// Makes a queue pair again, and with it its outstanding work. The other arguments are those with which it was
    /// created ([`Provider::create_qp`]): the queue pair has these queues and no other ones, and can hold what `sizes`
    /// says.
    ///
    /// # Errors
    /// The snapshot is not that of such a queue pair of this device, or its memory is not there.
    fn resume_qp(
        &mut self,
        pd: Self::Pd,
        queues: QueuesOf<'_, Self>,
        sizes: QueueSizes,
        owner: u32,
        snapshot: &Self::QpSnapshot,
    ) -> Result<Self::Qp, ProviderError>;
    /// Returns the state of a queue pair in the device, as far as a caller must know it.
    ///
    /// # Errors
    /// The device did not answer.
    fn qp_state(&mut self, qp: &Self::Qp) -> Result<ResumedQp, ProviderError>;
    /// Ends the resumption of this instance, when all objects of all instances were resumed: counts the events that
    /// came meanwhile, and makes the queues report later ones.
    ///
    /// # Errors
    /// The device has objects that were not resumed, or is not as the snapshot says.
    fn finish_resuming(&mut self) -> Result<(), ProviderError>;
}

/// The queues that a queue pair was created with.
pub struct QueuesOf<'a, P: Provider> {
    /// Queue of the completions of requests.
    pub request_cq: &'a P::Cq,
    /// Queue of the completions of receives.
    pub recv_cq: &'a P::Cq,
    /// Shared receive queue; `None` if the queue pair has receives of its own.
    pub srq: Option<&'a P::Srq>,
}

/// State of a queue pair in the device, at the resumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedQp {
    /// RESET or INIT: it neither receives nor sends.
    Init,
    /// RTR: it receives from a peer's queue pair.
    ReadyToReceive,
    /// RTS: it receives from a peer's queue pair, and sends to it.
    ReadyToSend,
    /// ERR, or an error state of its send queue: outstanding and later work is flushed.
    Error,
}
