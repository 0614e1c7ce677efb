//! Management datagrams: how long one is.

/// Bytes of a management datagram (IBTA volume 1, "Management Datagram Format").
pub const MAD_BYTES: usize = 256;
