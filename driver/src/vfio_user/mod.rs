//! vfio-user: a PCI function in another process, over a UNIX socket.
//!
//! The protocol is VFIO's ioctls as messages (libvfio-user, `docs/vfio-user.rst`, version 0.1). The client is the
//! driver's side: it reads and writes regions (configuration space, BARs), gives DMA memory and eventfds away as
//! descriptors, resets. The server is the device's side. Neither needs a kernel module, a privilege or a virtual
//! machine, and QEMU can be the client of the same server.
//!
//! ```text
//!   Function::vfio_user(path)                       Server::serve(device, listener)
//!     Bar, Block  --- REGION_WRITE, no reply --->     BAR memory, Device::bar_written
//!                 --- REGION_READ -------------->     BAR memory
//!     DmaArena    --- DMA_MAP with the memfd --->     mmap, Device::dma_map
//!     LentMemory  --- DMA_MAP without one ------>     Device::dma_map_by_message
//!                 <-- DMA_READ, DMA_WRITE -------     on a socket of their own
//!     Interrupt   --- SET_IRQS with eventfds --->     Device::set_interrupts
//! ```
//!
//! A register write is posted, as on the bus: the message asks for no reply, and the socket keeps the order. A
//! read has to wait and so pushes every earlier write before it. A connection that fails is a device
//! that is gone: writes go nowhere, reads give ones, everything else is an error that names the message.
//!
//! A server believes nothing: sizes, offsets, flags and numbers of descriptors are checked before they are used; what
//! is wrong is answered with an errno, and what leaves no way to find the next message ends the connection.
//! Memory is taken only from files that cannot shrink (`F_SEAL_SHRINK`), since a page that disappears under a
//! mapping ends the process; for the same reason not from the hugetlb pool, whose pages may be missing at their first
//! use and can be taken out of the file by whoever has it (`FALLOC_FL_PUNCH_HOLE`). Pages of a memfd are made when they
//! are missing; only a system that counts what it has promised (`vm.overcommit_memory` 2) can refuse that, and should
//! not serve functions to strangers. When a client goes, the device is reset and its memory taken back before the next
//! one is accepted.
//!
//! The crate `vfio_user` (0.1.7) has the same messages and is not used: its client does not look at the error in a
//! reply, and waits without a bound; its server allocates what a client names (`count` up to 4 GiB), subtracts
//! sizes unchecked and ends instead of answering. Its message structs are private, so there is nothing to build on.
//!
//! **Memory without a descriptor** is reached by messages where both sides have a second socket for them, the twin
//! socket ([`twin_client`], [`twin_server`]). On one socket the client would have to sort what comes, and a device that
//! waits for its memory while its client waits for the device would hang with every client that does not; QEMU is one,
//! and has no twin socket. What such a client maps without a descriptor is accepted and not reached.
//!
//! Not here: DMA by message over the one socket, mapped BARs, migration, dirty pages.

mod client;
mod client_memory;
mod error;
mod message;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod twin_client;
mod twin_server;

pub(crate) use client::Client;
pub use error::VfioUserError;
pub use server::Server;
