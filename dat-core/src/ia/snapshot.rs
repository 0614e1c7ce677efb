//! The snapshot of an adapter's instances ([`Ia::park_all`](crate::Ia::park_all)): plain data. This module does not
//! interpret it. What belongs to the adapter is there once, and what belongs to an instance once for each.
//!
//! Objects are named by their handles; all handles have the number of their instance ([`IaTables::number`]). Sums and
//! lists that follow from the objects are not in the snapshot: users of a PZ, streams of an EVD, uses of an LMR,
//! completions of an SRQ that were not dequeued, the schedule of keep-alive checks.

use core::fmt;

use crate::cm::CmSnapshot;
use crate::handle::{
    AnyHandle, CnoHandle, CrHandle, EpHandle, EvdHandle, LmrHandle, PspHandle, PzHandle, RmrHandle,
    RspHandle, SrqHandle,
};
use crate::ia::instance::IaConfig;
use crate::object::snapshot::{
    CnoSnapshot, CrSnapshot, EpSnapshot, EvdSnapshot, LmrSnapshot, PspSnapshot, PzSnapshot,
    RmrSnapshot, RspSnapshot, SrqSnapshot, TableSnapshot,
};
use crate::provider::{Limits, ParkProvider};
use crate::stats::EpStats;

/// The instances of an adapter that were parked together.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(bound(
    serialize = "P::Snapshot: serde::Serialize, IaTables<P>: serde::Serialize",
    deserialize = "P::Snapshot: serde::Deserialize<'de>, IaTables<P>: serde::Deserialize<'de>"
))]
pub struct IaSnapshot<P: ParkProvider> {
    /// The provider, without its objects.
    pub provider: P::Snapshot,
    /// The tables of the adapter.
    pub adapter: AdapterTables,
    /// The tables of the instances, in the order in which the caller gave them: at least one, and at most
    /// [`MAX_INSTANCES`](crate::MAX_INSTANCES).
    pub instances: Vec<IaTables<P>>,
}

/// The tables that the instances of an adapter share.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct AdapterTables {
    /// Identity and limits of the device, as the first instance has them.
    pub limits: Limits,
    /// The connection manager. The owner of each connection is the place of an instance in
    /// [`IaSnapshot::instances`], or none.
    pub cm: CmSnapshot,
}

/// The tables of an instance.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(bound(
    serialize = "P::PdSnapshot: serde::Serialize, P::RegionSnapshot: serde::Serialize, P::CqSnapshot: serde::Serialize, P::SrqSnapshot: serde::Serialize, P::WindowSnapshot: serde::Serialize, P::QpSnapshot: serde::Serialize",
    deserialize = "P::PdSnapshot: serde::Deserialize<'de>, P::RegionSnapshot: serde::Deserialize<'de>, P::CqSnapshot: serde::Deserialize<'de>, P::SrqSnapshot: serde::Deserialize<'de>, P::WindowSnapshot: serde::Deserialize<'de>, P::QpSnapshot: serde::Deserialize<'de>"
))]
pub struct IaTables<P: ParkProvider> {
    /// Number of the instance, which is in all handles; not 0.
    pub number: u32,
    /// Configuration of the instance.
    pub config: IaConfig,
    /// The asynchronous EVD of the instance.
    pub async_evd: EvdHandle,
    /// EVDs that also receive asynchronous events of other instances.
    pub async_evds: Vec<EvdHandle>,
    /// Contexts that the consumer has attached to objects, by the kind of object and the key in its handle.
    pub contexts: Vec<(AnyHandle, u64)>,
    /// Number of times that a sleeping wait woke up.
    pub wakeups: u64,
    /// Sums of the counters of freed endpoints.
    pub ended: EpStats,
    /// Number of completions that freed EVDs took from the device.
    pub ended_completions: u64,
    /// Protection zones.
    pub pzs: TableSnapshot<PzSnapshot<P::PdSnapshot>, PzHandle>,
    /// Local memory regions.
    pub lmrs: TableSnapshot<LmrSnapshot<P::RegionSnapshot>, LmrHandle>,
    /// Consumer notification objects, in order of creation.
    pub cnos: TableSnapshot<CnoSnapshot, CnoHandle>,
    /// Event dispatchers. Here, and here only, the *first* handle of empty slots is used first.
    pub evds: TableSnapshot<EvdSnapshot<P::CqSnapshot>, EvdHandle>,
    /// Shared receive queues.
    pub srqs: TableSnapshot<SrqSnapshot<P::SrqSnapshot>, SrqHandle>,
    /// Remote memory regions.
    pub rmrs: TableSnapshot<RmrSnapshot<P::WindowSnapshot>, RmrHandle>,
    /// Endpoints. As for event dispatchers, the first handle of empty slots is used first.
    pub eps: TableSnapshot<EpSnapshot<P::QpSnapshot, P::CqSnapshot>, EpHandle>,
    /// Public service points.
    pub psps: TableSnapshot<PspSnapshot, PspHandle>,
    /// Reserved service points.
    pub rsps: TableSnapshot<RspSnapshot, RspHandle>,
    /// Connection requests that the consumer has neither accepted nor rejected.
    pub crs: TableSnapshot<CrSnapshot, CrHandle>,
}

/// Implements a trait for a structure whose type parameter is a provider, which need not implement the trait itself.
macro_rules! plain_data {
    ($name:ident { $($field:ident),* }) => {
        impl<P: ParkProvider> Clone for $name<P> {
            fn clone(&self) -> Self {
                let Self { $($field),* } = self;
                Self { $($field: $field.clone()),* }
            }
        }

        impl<P: ParkProvider> PartialEq for $name<P> {
            fn eq(&self, other: &Self) -> bool {
                let Self { $($field),* } = self;
                $(*$field == other.$field)&&*
            }
        }

        impl<P: ParkProvider> fmt::Debug for $name<P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self { $($field),* } = self;
                f.debug_struct(stringify!($name))$(.field(stringify!($field), $field))*.finish()
            }
        }
    };
}

plain_data!(IaSnapshot {
    provider,
    adapter,
    instances
});
plain_data!(IaTables {
    number,
    config,
    async_evd,
    async_evds,
    contexts,
    wakeups,
    ended,
    ended_completions,
    pzs,
    lmrs,
    cnos,
    evds,
    srqs,
    rmrs,
    eps,
    psps,
    rsps,
    crs
});
