//! What the physical function's driver has a port do with priorities and congestion.
//!
//! It is set from outside of the world: the simulator carries out none of it, since its wires have no queues that fill.
//! The registers and commands that tell of it say it as it was set.

use mlx_prm::TrustState;

/// Settings of a port. At power-on there is neither pause nor priority, and the device answers congestion in each
/// priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQos {
    /// Pause frames of the whole port are sent; and obeyed (register PFCC).
    pub pause: (bool, bool),
    /// Priorities that are paused, a bit each, as they are sent; and obeyed.
    pub paused_priorities: (u8, u8),
    /// By what the port goes (register QPTS).
    pub trust: TrustState,
    /// The priority of each code point (register QPDPM).
    pub priorities: [u8; 64],
    /// Priorities in which a sender slows down that is told of congestion; and in which it is told (QUERY_CONG_STATUS).
    pub congestion: (u8, u8),
    /// Code point and priority of what tells it (QUERY_CONG_PARAMS).
    pub cnp: (u8, u8),
}

impl Default for PortQos {
    fn default() -> Self {
        Self {
            pause: (false, false),
            paused_priorities: (0, 0),
            trust: TrustState::PCP,
            priorities: [0; 64],
            congestion: (0xff, 0xff),
            // The defaults that NVIDIA's documentation of `ecn/roce_np` has.
            cnp: (48, 6),
        }
    }
}
