//! vfio-user: a PCI function in another process, over a UNIX socket.
//!
//! The protocol consists of VFIO's ioctls as messages (libvfio-user, `docs/vfio-user.rst`, version 0.1). The client is
//! the driver's side: it reads and writes regions (configuration space, BARs), passes DMA memory and eventfds as
//! descriptors, and resets. The server is the device's side. Neither needs a kernel module, a privilege or a virtual
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
//! A register write is posted, as on the bus: the message requests no reply, and the socket keeps the order. A read
//! waits for its reply, so all earlier writes are executed before it. If the connection fails, the device counts as
//! removed: writes are lost, reads return ones, and all other calls return an error that names the message.
//!
//! A server trusts nothing that it receives: sizes, offsets, flags and numbers of descriptors are checked before they
//! are used. A wrong message is answered with an errno. If the start of the next message is unknown, the connection is
//! closed. The server accepts memory only in files that cannot shrink (`F_SEAL_SHRINK`), because a page that disappears
//! under a mapping kills the process. For the same reason it refuses memory of the hugetlb pool, whose pages may be
//! missing at their first use and can be removed from the file by its owner (`FALLOC_FL_PUNCH_HOLE`). Missing pages of
//! a memfd are allocated on use. Only a system that limits its commitments (`vm.overcommit_memory` 2) can refuse that,
//! and should not serve functions to untrusted clients. When a client disconnects, the device is reset and the client's
//! memory is unmapped before the next client is accepted.
//!
//! The crate `vfio_user` (0.1.7) has the same messages and is not used. Its client ignores the error in a reply, and
//! waits without a bound. Its server allocates any size that a client names (`count` up to 4 GiB), subtracts sizes
//! unchecked and exits instead of answering. Its message structs are private, so that it cannot be built on.
//!
//! **Memory without a descriptor** is accessed by messages if both sides have a second socket for them, the twin
//! socket ([`twin_client`], [`twin_server`]). With a single socket, the client would have to distinguish the server's
//! requests from replies. A device that waits for its memory while its client waits for the device would deadlock with
//! every client that does not do this. QEMU is such a client, and has no twin socket. If a client without a twin socket
//! maps memory without a descriptor, the server accepts the mapping, but the device cannot access it.
//!
//! Not implemented: DMA by message over the main socket, mapped BARs, migration, dirty pages.

mod client;
mod client_memory;
mod error;
mod message;
pub(crate) mod name;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod twin_client;
mod twin_server;

pub(crate) use client::{Client, Sockets};
pub use error::VfioUserError;
pub use server::Server;
