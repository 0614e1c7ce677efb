//! What futures answer.

use dat_core::{ConnectionEventKind, DatError, DtoCompletion, EndCause};
use driver::DmaError;
use thiserror::Error;

/// Why an operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// DAT refused the call; nothing has happened.
    #[error(transparent)]
    Dat(#[from] DatError),
    /// The transfer was begun and failed.
    #[error("{}", crate::explain(.0))]
    Transfer(DtoCompletion),
    /// The connection has ended, and the transfer with it; why. That the peer has disconnected
    /// ([`EndCause::PeerDisconnected`]) is how a receive learns that no more comes.
    #[error("the connection has ended: {0}")]
    Ended(EndCause),
    /// There is no connection, or it has ended.
    #[error("no connection: {0:?} ({number:#07x})", number = .0.number())]
    Connection(ConnectionEventKind),
    /// As many transfers are in flight as the driver was made for. Nothing was posted.
    #[error("{0} transfers are in flight, and the driver was made for no more")]
    Full(u32),
    /// The endpoint or the listener was dropped.
    #[error("the endpoint or listener was dropped")]
    Dropped,
    /// The driver was closed or dropped.
    #[error("the instance is closed")]
    Closed,
    /// The device is dead, or is wanted back: the driver should be closed.
    #[error("the device is dead or wanted back: the instance should be closed")]
    Dead,
    /// The bytes are not inside the buffer.
    #[error("{bytes} bytes from byte {offset} on: the buffer has {capacity}")]
    Bounds {
        /// The first byte.
        offset: usize,
        /// How many.
        bytes: usize,
        /// What there is.
        capacity: usize,
    },
    /// There is no memory for a pool.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// The runtime does not watch the driver's descriptor.
    #[cfg(feature = "tokio")]
    #[error("the runtime does not watch the adapter's descriptor: {0}")]
    Runtime(std::io::Error),
}
