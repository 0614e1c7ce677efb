//! The kinds of DTO that move bytes.

/// How bytes cross the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Send into receives of the endpoint.
    Send = 0,
    /// Send over two connections into receives of one shared queue.
    Srq = 1,
    /// RDMA Write by A.
    Write = 2,
    /// RDMA Read by B.
    Read = 3,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Send, Self::Srq, Self::Write, Self::Read];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "Send/Recv",
            Self::Srq => "Send/Recv by SRQ",
            Self::Write => "RDMA Write",
            Self::Read => "RDMA Read",
        }
    }
}
