//! Model of DAT 1.2: the objects of uDAPL, their checks, states, events and return codes, and the InfiniBand connection
//! manager, over any device that implements [`provider::Provider`].
//!
//! An [`Ia`] is an opened adapter and owns all other objects. Calls are methods with DAT's names; handles are small
//! copyable values. The error of a call is a [`DatError`], with the number that DAT gives it.
//!
//! The crate has three layers, each of which knows only the layers below it:
//!
//! | module | contents |
//! |---|---|
//! | `ia::call` | the parts of DAT calls that concern several objects; completions, housekeeping, closing |
//! | `ia`, `adapter` | the tables that own the objects: of one instance, or shared by the instances of an adapter |
//! | `object` | the objects, one module each: state, and the rules that concern the object alone |
//!
//! `ia::call` has one module for each group of manual pages.
//!
//! The layers use modules without state of their own:
//!
//! | module | contents |
//! |---|---|
//! | [`cm`] | the connection manager, a protocol without I/O |
//! | [`provider`] | the interface to the device |
//! | [`attributes`], [`event`], [`types`], [`error`], [`stats`], [`latency`] | arguments and results |
//! | `handle`, `slots`, `table` | handles of objects, and their look-up |
//!
//! This crate uses no particular device, no clock, no socket and no thread.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod adapter;
pub mod address;
pub mod attributes;
pub mod cm;
pub mod error;
pub mod event;
mod handle;
mod ia;
pub mod latency;
pub mod log_budget;
#[cfg(test)]
mod mock;
mod object;
pub mod provider;
mod refusal;
mod round_robin;
mod slots;
pub mod stats;
mod table;
#[cfg(test)]
mod tests;
pub mod types;

pub use address::{Address, Echo, Vlan};
pub use attributes::{IaAttr, NamedAttr, ProviderAttr};
pub use error::parking::{ParkError, ResumeError};
pub use error::{DatError, DatResult, ReturnType, Subtype, strerror};
pub use event::{
    AsyncEvent, ConnectionEvent, ConnectionEventKind, ConnectionRequest, DtoCompletion, DtoDetail,
    EVENT_NUMBERS, Event, EventNumber, NetworkEvent, RmrBindCompletion, SoftwareEvent,
};
pub use handle::{
    AnyHandle, CnoHandle, CrHandle, EpHandle, EvdHandle, HandleType, LmrHandle, PspHandle,
    PzHandle, RmrHandle, RspHandle, SrqHandle,
};
pub use ia::call::arm::{Arm, Armed, Descriptor};
pub use ia::call::close::CloseRefused;
pub use ia::call::cno::{CnoParam, CnoWait, CnoWaitStatus};
pub use ia::call::cr::CrParam;
pub use ia::call::ep::batch::{Batch, SrqBatch};
pub use ia::call::ep::holding::EpRecvParam;
pub use ia::call::ep::modify::EpChange;
pub use ia::call::ep::{EpParam, EpStatus};
pub use ia::call::evd::EvdParam;
pub use ia::call::evd::wait::{FastPoll, Run};
pub use ia::call::evd::waiter::{EvdWait, EvdWaitStatus, WaitError};
pub use ia::call::lmr::{LmrCreated, LmrParam};
pub use ia::call::psp::PspParam;
pub use ia::call::reserve::Reserve;
pub use ia::call::rmr::{RmrBinding, RmrParam};
pub use ia::call::rsp::RspParam;
pub use ia::call::srq::{SrqAttr, SrqParam};
pub use ia::instance::{Ia, IaConfig, IaParam, Opened, TransportConfig};
pub use ia::parking::{MAX_INSTANCES, NotParked, NotResumed, Parked, UnclaimedIas};
pub use object::cno::Agent;
pub use object::cr::Peer;
pub use object::ep::attr::EpAttr;
pub use object::ep::cause::EndCause;
pub use object::ep::evds::EpEvds;
pub use object::ep::state::{EpEvent, EpState};
pub use object::ep::transport::{EpTransport, TransportError};
pub use object::lmr::segment::{self, LmrTriplet, RmrTriplet, Segment};
pub use object::lmr::slice::LmrSlice;
pub use object::lmr::{MemType, SharedMemoryId};
pub use object::srq::state::SrqState;
pub use object::view::{
    EpView, EvdView, Happened, InstanceView, LatencyView, LmrView, Notice, Wanted, Watcher,
};
pub use provider::Waker;
pub use stats::{EpStats, EvdStats, Failures, IaStats, SrqStats};
pub use types::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DtoCookie, DtoStatus, EvdFlags, EvdState,
    MemPrivFlags, PspFlags, Qos, RmrCookie, Timeout,
};

/// Endpoints: attributes, states, and results of calls.
pub mod ep {
    pub use crate::ia::call::ep::holding::EpRecvParam;
    pub use crate::ia::call::ep::modify::EpChange;
    pub use crate::ia::call::ep::{EpParam, EpStatus};
    pub use crate::object::ep::{
        DRAIN_TIMEOUT, Ends, Watermarks, attr, cause, evds, state, transport,
    };
}

/// Event dispatchers: their mode, and results of calls.
pub mod evd {
    pub use crate::ia::call::evd::EvdParam;
    pub use crate::object::evd::mode;
}

/// Shared receive queues: their states, and arguments and results of calls.
pub mod srq {
    pub use crate::ia::call::srq::{SrqAttr, SrqParam};
    pub use crate::object::srq::state;
}

/// The flight recorder: the last actions of an instance ([`Ia::recorder_dump`]).
pub mod recorder {
    pub use crate::object::recorder::{
        Keeper, Occasion, Posted, RECORDS, Record, Recorded, RecordedEp, RecorderDump,
    };
}

/// Snapshots of parked instances: plain data ([`Ia::park_all`]).
pub mod snapshot {
    pub use crate::ia::snapshot::{AdapterTables, IaSnapshot, IaTables};
    pub use crate::object::snapshot::{
        BindingSnapshot, CnoSnapshot, CrSnapshot, EpSnapshot, EvdSnapshot, LmrSnapshot,
        PendingBindSnapshot, PspSnapshot, PzSnapshot, QueuedSnapshot, RmrSnapshot, RspSnapshot,
        SrqSnapshot, TableSnapshot,
    };
}

/// Post operations. A post takes the fast path if it can, otherwise the ordered path.
pub mod post {
    pub use crate::ia::call::ep::post::Post;
    pub use crate::object::ep::extension::{
        CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
    };
    pub use crate::object::ep::request::{RdmaRead, RdmaWrite, Recv, Send};
}
