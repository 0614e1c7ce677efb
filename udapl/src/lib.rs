//! uDAPL 1.2 on ConnectX, without verbs and without a kernel RDMA stack.
//!
//! | To | Begin at |
//! |---|---|
//! | open an adapter | [`ia_open`]; [`name`] describes the names, [`OpenOptions`] the other settings |
//! | do anything with it | [`Ia`], which lists all calls by object |
//! | get memory for DMA | [`alloc`], [`alloc_aligned`], [`pool`], [`LentMemory`] |
//! | use several threads | [`Adapter::instance`] |
//! | sleep in an event loop | [`Ia::arm`] |
//! | read and write files meanwhile | [`reactor`] |
//! | write `async` code | module `future`, with the feature `async` |
//! | test without a card | names that begin with `sim:`, and [`fabric`]; feature `sim`, which is on by default |
//!
//! A complete program with two sides, in the order of its steps:
//!
//! ```
//! use std::time::Duration;
//! use udapl::{CompletionFlags, ConnQual, ConnectFlags, DtoCookie, EpEvds, Event, EvdFlags, MemPrivFlags, PspFlags, Qos};
//! use udapl::fabric::Fabric;
//!
//! let fabric = Fabric::pair(1);
//! let (mut client, mut server) = (fabric.open(0)?, fabric.open(1)?);
//!
//! const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0001);
//! const PATIENCE: Duration = Duration::from_secs(1);
//!
//! // The server listens.
//! let events = server.evd_create(16, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)?;
//! let zone = server.pz_create()?;
//! server.psp_create(SERVICE, events, PspFlags::CONSUMER)?;
//! let server_ep = server.ep_create(Some(zone), EpEvds::all(events), None)?;
//! let inbox = udapl::alloc(&server, 4096)?;
//! let region = server.lmr_create(inbox.clone(), zone, MemPrivFlags::LOCAL_WRITE)?;
//! let buffer = server.lmr_slice(region.lmr, 0, 4096)?;
//! server.ep_post_recv(server_ep, &[buffer], DtoCookie(7), CompletionFlags::empty())?;
//!
//! // The client connects.
//! let client_events = client.evd_create(16, EvdFlags::CONNECTION | EvdFlags::DTO)?;
//! let client_zone = client.pz_create()?;
//! let ep = client.ep_create(Some(client_zone), EpEvds::all(client_events), None)?;
//! let address = server.query().ia.ia_address;
//! client.ep_connect(ep, address, SERVICE, PATIENCE, b"hello", Qos::BEST_EFFORT, ConnectFlags::empty())?;
//! let (Event::ConnectionRequest(request), _) = server.evd_wait(events, PATIENCE, 1)? else { panic!() };
//! assert_eq!(server.cr_query(request.cr)?.private_data, b"hello");
//! server.cr_accept(request.cr, Some(server_ep), b"welcome")?;
//! client.evd_wait(client_events, PATIENCE, 1)?; // ESTABLISHED
//! server.evd_wait(events, PATIENCE, 1)?; // ESTABLISHED
//!
//! // A message.
//! let outbox = udapl::alloc(&client, 4096)?;
//! outbox.write_from(0, b"a message")?;
//! let region = client.lmr_create(outbox, client_zone, MemPrivFlags::LOCAL_READ)?;
//! let message = client.lmr_slice(region.lmr, 0, 9)?;
//! client.ep_post_send(ep, &[message], DtoCookie(8), CompletionFlags::empty())?;
//! let (Event::Dto(done), _) = server.evd_wait(events, PATIENCE, 1)? else { panic!() };
//! assert_eq!((done.cookie, done.transferred_length), (DtoCookie(7), 9));
//! assert_eq!(inbox.read(0, 9)?, b"a message");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)] // but for `capi`
#![warn(clippy::missing_errors_doc)]

mod background;
pub mod capi;
#[cfg(feature = "control")]
pub mod control;
mod explain;
pub mod ext;
#[cfg(feature = "sim")]
pub mod fabric;
#[cfg(feature = "async")]
pub mod future;
mod ia;
mod memory;
pub mod name;
mod open;
pub mod reactor;
#[cfg(feature = "control")]
pub mod recorder;
pub mod registry;
mod stats;
#[cfg(feature = "sim")]
mod wired;

pub use background::BackgroundThread;
pub use dat_core::cm::{Counters as ConnectionCounters, Refused, RejectReason};
pub use dat_core::log_budget;
pub use dat_core::{
    Address, Agent, AnyHandle, Arm, Armed, AsyncEvent, Batch, CloseFlags, CnoHandle, CnoLook,
    CnoParam, CnoWait, CompletionFlags, ConnQual, ConnectFlags, ConnectionEvent,
    ConnectionEventKind, ConnectionRequest, CrHandle, CrParam, DatError, DatResult, Descriptor,
    DtoCompletion, DtoCookie, DtoDetail, DtoStatus, EVENT_NUMBERS, Echo, EndCause, EpAttr,
    EpChange, EpEvds, EpEvent, EpHandle, EpParam, EpRecvParam, EpState, EpStats, EpStatus,
    EpTransport, EvdFlags, EvdHandle, EvdLook, EvdParam, EvdState, EvdStats, EvdWait, Event,
    EventNumber, Failures, HandleType, IaAttr, IaConfig, IaParam, IaStats, LmrCreated, LmrHandle,
    LmrParam, LmrSlice, LmrTriplet, Look, MemPrivFlags, MemType, NamedAttr, NetworkEvent,
    ProviderAttr, PspFlags, PspHandle, PspParam, PzHandle, Qos, ReturnType, RmrBindCompletion,
    RmrBinding, RmrCookie, RmrHandle, RmrParam, RmrTriplet, RspHandle, RspParam, Run, Segment,
    SharedMemoryId, SoftwareEvent, SrqAttr, SrqBatch, SrqHandle, SrqParam, SrqState, SrqStats,
    Subtype, Timeout, TransportConfig, TransportError, Vlan, WaitError, Waker, post, strerror,
};
pub use dat_mlx::{NetworkCounters, NetworkState, Participation};
pub use driver::{
    Bytes, BytesError, DmaBuffer, DmaError, DmaMemory, DmaPool, LentMemory, PageSize, PciAddress,
    PoolBuilder,
};
pub use explain::explain;
pub use hw_mlx::{
    CloseReport, DeviceCounters, HcaConfig, PortCounters, PriorityTraffic, QueueCounters,
    VportCounters,
};
pub use ia::Ia;
pub use memory::{alloc, alloc_aligned, pool};
#[cfg(feature = "sim")]
pub use open::simulated::{SimAction, simulate};
pub use open::{
    Adapter, HandedIn, NotClosed, OpenError, OpenOptions, Simulated, StillOpen, function_open,
    ia_close, ia_open,
};
pub use stats::{AdapterStats, CommandStats, Counters};
