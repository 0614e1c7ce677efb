//! uDAPL 1.2 on ConnectX, without verbs and without a kernel RDMA stack.
//!
//! | To | Begin at |
//! |---|---|
//! | open an adapter | [`ia_open`]; [`name`] describes the names, [`OpenOptions`] the other settings |
//! | do anything with it | [`Ia`], which lists all calls by object |
//! | get memory for DMA | [`alloc`], and the other ways in [`memory`] |
//! | connect | [`connection`], [`endpoint`] |
//! | take events, and sleep in an event loop | [`Event`], [`event`], [`wait`] |
//! | use several threads | [`Adapter::instance`] |
//! | read and write files meanwhile | [`reactor`] |
//! | restart the program without reconnecting | [`handover`] |
//! | learn why a call or a transfer failed | [`DatError`], [`error`], [`explain`] |
//! | read counters | [`counters`] |
//! | write `async` code | module `future`, with the feature `async` |
//! | test without a card | names that begin with `sim:`, and [`fabric`]; feature `sim`, which is on by default |
//!
//! The root has the names that nearly every program needs. Each concept has a module with its other names; every name
//! has one path. C programs include `dat/udat.h` and link `libdat`, the C ABI of this crate.
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

pub mod adapter;
mod arena;
mod background;
#[doc(hidden)] // C programs read the manual pages
pub mod capi;
pub mod connection;
#[cfg(feature = "control")]
pub mod control;
pub mod counters;
pub mod endpoint;
pub mod error;
pub mod event;
mod explain;
#[cfg(feature = "sim")]
pub mod fabric;
#[cfg(feature = "async")]
pub mod future;
pub mod handover;
mod ia;
pub mod memory;
pub mod name;
pub mod network;
mod open;
pub mod post;
pub mod reactor;
#[cfg(feature = "control")]
pub mod recorder;
pub mod registry;
pub mod srq;
pub mod wait;
#[cfg(feature = "sim")]
mod wired;

pub use arena::alloc;
#[doc(hidden)] // nvmeof limits its log lines with it
pub use dat_core::log_budget;
pub use dat_core::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DatError, DatResult,
    DtoCookie, DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, MemPrivFlags, PspFlags,
    Qos, Timeout,
};
pub use driver::DmaMemory;
pub use explain::explain;
pub use ia::Ia;
pub use open::{Adapter, OpenOptions, ia_close, ia_open};
