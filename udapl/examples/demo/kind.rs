//! The kinds of DTO that move bytes.

/// The ways to move bytes across the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Send into the endpoint's receives.
    Send = 0,
    /// Send over two connections into receives of one SRQ.
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
