//! Errors of futures.

use dat_core::{ConnectionEventKind, DatError, DtoCompletion, EndCause};
use driver::DmaError;
use thiserror::Error;

/// Reasons why an operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// DAT refused the call, which had no effect.
    #[error(transparent)]
    Dat(#[from] DatError),
    /// The transfer was posted and failed.
    #[error("{}", crate::explain(.0))]
    Transfer(DtoCompletion),
    /// The connection has ended for this cause, and the transfer with it. [`EndCause::PeerDisconnected`] is the
    /// normal end of a receive: the peer has disconnected, and no more messages come.
    #[error("the connection has ended: {0}")]
    Ended(EndCause),
    /// The connection was not established, or it has ended. The value is the event that reported this.
    #[error("no connection: {0:?} ({number:#07x})", number = .0.number())]
    Connection(ConnectionEventKind),
    /// The number of transfers in flight has reached the driver's limit. Nothing was posted.
    #[error("{0} transfers are in flight, which is the driver's limit")]
    Full(u32),
    /// The endpoint or the listener was dropped.
    #[error("the endpoint or listener was dropped")]
    Dropped,
    /// The driver was closed or dropped.
    #[error("the instance is closed")]
    Closed,
    /// The device is dead, the system requests the device back, or an EVD of the driver has overflowed. The program
    /// should close the driver.
    #[error("the device is dead or wanted back: the instance should be closed")]
    Dead,
    /// A range of bytes is not inside the buffer.
    #[error("{bytes} bytes from byte {offset} on: the buffer has {capacity}")]
    Bounds {
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        bytes: usize,
        /// Capacity of the buffer in bytes.
        capacity: usize,
    },
    /// Memory for a pool could not be allocated.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// The runtime cannot poll the driver's descriptor.
    #[cfg(feature = "tokio")]
    #[error("the runtime cannot poll the adapter's descriptor: {0}")]
    Runtime(std::io::Error),
}
