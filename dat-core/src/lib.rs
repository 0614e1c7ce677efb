//! DAT 1.2 as a model: the objects of uDAPL, their checks, states, events and return codes, and the
//! InfiniBand connection manager, over any device that implements [`provider::Provider`].
//!
//! An [`Ia`] is an opened adapter and owns everything else. Calls are methods with DAT's names;
//! handles are small copies. What a call answers is [`DatError`], with the number DAT gives it.
//!
//! | module | is |
//! |---|---|
//! | [`provider`] | the seam to the device |
//! | `ia`, `progress` | the adapter and its housekeeping |
//! | `pz`, `lmr`, `segment` | memory and what a post checks of it |
//! | `rmr` | windows for peers into it |
//! | `ep` | endpoints: attributes, [states](ep::state), posting, connecting |
//! | `completion`, `evd`, [`event`] | from a completion queue entry to an event |
//! | `asynchronous` | the EVDs that asynchronous events go to |
//! | `arm` | a descriptor for event loops |
//! | `srq` | shared receive queues |
//! | `psp`, `rsp`, `cr` | service points, connection requests |
//! | `cno` | one place to wait for many EVDs |
//! | `context` | what every object has |
//! | `close` | the end of all of it |
//! | [`cm`] | the connection manager, a protocol without I/O |
//!
//! Knows no device, no clock, no socket, no thread.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod adapter;
mod arm;
mod asynchronous;
pub mod attributes;
mod close;
pub mod cm;
mod cno;
mod completion;
mod context;
mod cr;
pub mod ep;
pub mod error;
pub mod evd;
pub mod event;
mod handle;
mod ia;
mod lmr;
#[cfg(test)]
mod mock;
mod progress;
pub mod provider;
mod psp;
mod pz;
mod refusal;
mod rmr;
mod rsp;
pub mod segment;
mod slots;
pub mod srq;
#[cfg(test)]
mod tests;
pub mod types;

pub use adapter::Waker;
pub use arm::{Arm, Armed, Descriptor};
pub use attributes::{IaAttr, NamedAttr, ProviderAttr};
pub use close::CloseRefused;
pub use cno::{Agent, CnoLook, CnoParam, CnoWait};
pub use context::{AnyHandle, HandleType};
pub use cr::CrParam;
pub use ep::attr::EpAttr;
pub use ep::evds::EpEvds;
pub use ep::state::{EpEvent, EpState};
pub use ep::{EpChange, EpParam, EpRecvParam, EpStatus};
pub use error::{DatError, DatResult, ReturnType, Subtype, strerror};
pub use evd::EvdParam;
/// The posts, by their halves.
pub mod post {
    pub use crate::ep::ext::{
        CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
    };
    pub use crate::ep::post::{Post, RdmaRead, RdmaWrite, Recv, Send};
}
pub use ep::batch::{Batch, SrqBatch};
pub use evd::wait::{Look, Run};
pub use evd::waiter::{EvdLook, EvdWait, WaitError};
pub use event::{
    AsyncEvent, ConnectionEvent, ConnectionEventKind, ConnectionRequest, DtoCompletion, DtoDetail,
    Event, RmrBindCompletion, SoftwareEvent,
};
pub use handle::{
    CnoHandle, CrHandle, EpHandle, EvdHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle,
    SrqHandle,
};
pub use ia::{Ia, IaConfig, IaParam, Opened, TransportConfig};
pub use lmr::slice::LmrSlice;
pub use lmr::{LmrCreated, LmrParam, MemType, SharedMemoryId};
pub use psp::PspParam;
pub use rmr::{RmrBinding, RmrParam};
pub use rsp::RspParam;
pub use segment::{LmrTriplet, RmrTriplet, Segment};
pub use srq::state::SrqState;
pub use srq::{SrqAttr, SrqParam};
pub use types::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DtoCookie, DtoStatus, EvdFlags, EvdState,
    MemPrivFlags, PspFlags, Qos, RmrCookie, Timeout,
};
