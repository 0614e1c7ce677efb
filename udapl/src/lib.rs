//! uDAPL 1.2 on ConnectX, without verbs and without a kernel RDMA stack.
//!
//! An [`Ia`] is an opened function. Everything DAT knows is a method of it, under DAT's name, and is described
//! there; memory that peers and the device can reach comes from [`alloc`]. Without a card, [`fabric`]
//! makes simulated functions whose every register behaves like the card's.
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

mod attendant;
pub mod capi;
#[cfg(feature = "control")]
pub mod control;
mod explain;
pub mod ext;
pub mod fabric;
#[cfg(feature = "async")]
pub mod future;
mod memory;
pub mod name;
mod open;
pub mod reactor;
#[cfg(feature = "control")]
pub mod recorder;
pub mod registry;
mod stats;
mod wired;

pub use attendant::Attendant;
pub use dat_core::cm::{Counters as ConnectionCounters, Refused, RejectReason};
pub use dat_core::{
    Address, Agent, AnyHandle, Arm, Armed, AsyncEvent, Batch, CloseFlags, CnoHandle, CnoLook,
    CnoParam, CnoWait, CompletionFlags, ConnQual, ConnectFlags, ConnectionEvent,
    ConnectionEventKind, ConnectionRequest, CrHandle, CrParam, DatError, DatResult, Descriptor,
    DtoCompletion, DtoCookie, DtoDetail, DtoStatus, Echo, EndCause, EpAttr, EpChange, EpEvds,
    EpEvent, EpHandle, EpParam, EpRecvParam, EpState, EpStats, EpStatus, EpTransport, EvdFlags,
    EvdHandle, EvdLook, EvdParam, EvdState, EvdStats, EvdWait, Event, Failures, HandleType, IaAttr,
    IaConfig, IaParam, IaStats, LmrCreated, LmrHandle, LmrParam, LmrSlice, LmrTriplet, Look,
    MemPrivFlags, MemType, NamedAttr, NetworkEvent, ProviderAttr, PspFlags, PspHandle, PspParam,
    PzHandle, Qos, ReturnType, RmrBindCompletion, RmrBinding, RmrCookie, RmrHandle, RmrParam,
    RmrTriplet, RspHandle, RspParam, Run, Segment, SharedMemoryId, SoftwareEvent, SrqAttr,
    SrqBatch, SrqHandle, SrqParam, SrqState, SrqStats, Subtype, Timeout, TransportConfig,
    TransportError, Vlan, WaitError, Waker, post, strerror,
};
pub use driver::{
    Bytes, BytesError, DmaBuffer, DmaError, DmaMemory, DmaPool, LentMemory, PageSize, PoolBuilder,
};
pub use explain::explain;
pub use hw_mlx::provider::NetworkCounters;
pub use hw_mlx::{
    CloseReport, DeviceCounters, HcaConfig, PortCounters, PriorityTraffic, QueueCounters,
    VportCounters,
};
pub use memory::{alloc, pool};
pub use open::{
    Adapter, Deed, NotClosed, OpenError, OpenOptions, Simulated, StillOpen, do_to_simulated,
    function_open, ia_close, ia_open,
};
pub use stats::{AdapterStats, CommandStats, Counters};

/// An interface adapter on a ConnectX function.
pub type Ia = dat_core::Ia<hw_mlx::provider::MlxProvider>;
