//! Size of management datagrams.

/// Bytes of a management datagram (IBTA volume 1, "Management Datagram Format").
pub const MAD_BYTES: usize = 256;
