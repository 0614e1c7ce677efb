//! Userspace driver framework: everything a driver for a PCI function needs from the machine.
//!
//! A [`Function`] is a PCI function: real, simulated, or implemented by another process. It gives access to
//! configuration space, [`Bar`]s with typed register [`Block`]s, [`Interrupt`]s as eventfds, and an I/O address space
//! into which memory is mapped. [`DmaArena`] allocates memory that the device can reach. [`barrier`] has the memory
//! barriers between that memory and a register. [`Clock`] provides time and sleeping. [`Reactor`] is the io_uring that
//! sleeping and disk I/O have in common.
//!
//! A function can also be in another process: [`Function::vfio_user`] connects to one as a client, and
//! [`VfioUserServer`] serves any [`Device`] to such clients.
//!
//! A function can outlive its process: [`Function::park`] makes a snapshot and descriptors of it, [`handover`] brings
//! them to another process, and [`Function::resume`] makes the function of them again.
//!
//! This crate knows no particular device. It holds the unsafe code for mappings, register cells, barriers and the ring,
//! so that a driver above it needs none. A module that needs unsafe code says so in an `UNSAFETY` line at its top,
//! keeps its fields private and stays small, so that a reader can check its argument as a whole.
//!
//! No Rust reference points into memory that the device may write. [`SharedMemory`] and [`DmaBuffer`] copy objects in
//! and out. A word that must not be seen half-written is read or written in one access.
#![warn(clippy::missing_errors_doc)]

mod accepting;
mod backend;
mod bar;
pub mod barrier;
mod bytes;
mod clock;
mod connecting;
mod copy;
mod cyclic;
mod descriptors;
mod device;
mod dma;
mod dma_ring;
mod dma_window;
#[cfg(test)]
mod double;
mod driving_lock;
mod error;
mod event_signaller;
mod extents;
mod fdinfo;
mod file;
mod frame_datagrams;
mod frame_ring;
mod frame_socket;
mod fronted;
mod function;
mod guard;
mod handed_in;
pub mod handover;
mod interrupt;
mod interrupt_set;
mod iova;
mod lent;
mod lent_ranges;
mod mac;
mod mapping;
mod memory;
mod page;
mod parked_models;
pub mod pci;
mod placement;
mod reactor;
mod readable;
mod real_clock;
mod register;
mod rights;
mod ring;
mod ring_probe;
mod service_manager;
mod signals;
mod snapshot;
mod socket_path;
mod space;
mod span;
mod vfio;
mod vfio_user;

pub use bar::{Bar, Block, Register, RegisterBlock};
pub use bytes::{Bytes, BytesError};
pub use clock::{Clock, Held, Instant, MAX_WAIT, Woken};
pub use connecting::connect_within;
pub use cyclic::Cyclic;
pub use device::{Device, MessageMemory};
pub use dma::{DmaArena, DmaBuffer, DmaMemory, DmaPool, MappedBuffer, PoolBuilder, WeakArena};
pub use dma_ring::{DmaBlock, DmaQueue, DmaRing, DmaWord};
pub use error::{
    ArenaError, BarError, ClaimError, DmaError, FunctionError, IovaError, MemoryError, ParkError,
    ReactorError, ResumeError,
};
pub use file::{File, Geometry};
pub use frame_datagrams::FrameDatagrams;
pub use frame_socket::{Arrived, FrameEnd, FrameListener, FrameSocket, Taken};
pub use fronted::{Front, Fronted};
pub use function::{Function, UnclaimedFunction};
pub use handed_in::{HandedInError, handed_in, names_handed_in};
pub use interrupt::{Interrupt, Notices};
pub use interrupt_set::{Descriptor, InterruptSet};
pub use iova::{Iova, IovaAllocator};
pub use lent::LentMemory;
pub use mac::mac_of;
pub use memory::SharedMemory;
pub use page::PageSize;
pub use reactor::{Completion, FileOperation, Reactor, Token, Wake, poll_entry};
pub use real_clock::RealClock;
pub use register::{Be32, Be64, Le32, Readable, RegisterValue, Ro, Rw, Wo, Writable};
pub use rights::{caller_variable, has_gained_rights};
pub use ring_probe::RingProbe;
pub use service_manager::{ServiceManager, ServiceManagerError};
pub use signals::HeldSignals;
pub use snapshot::{
    ArenaSnapshot, BackendSnapshot, ChunkSnapshot, DescriptorSnapshot, FunctionSnapshot,
    LeaseSnapshot, MappingSnapshot, MemorySnapshot, ModelSnapshot, NamedFd, PciIdentity,
    PoolSnapshot, SpaceSnapshot, UnclaimedMemory, VfioSnapshot, VfioUserSnapshot,
};
pub use socket_path::{SocketPathError, TakenPath, listen_at, listen_privately};
pub use space::DmaSpace;
pub use vfio::{PciAddress, VfioError, VfioFds};
pub use vfio_user::{Server as VfioUserServer, VfioUserError};
