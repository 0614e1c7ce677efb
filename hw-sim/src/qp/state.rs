//! The state machine of a queue pair.
//!
//! ```text
//!   RST --RST2INIT--> INIT --INIT2RTR--> RTR --RTR2RTS--> RTS <--SQERR2RTS-- SQER
//!                     ^  |                                |^                  ^
//!                     '--' INIT2INIT              RTS2RTS '-'    error (UD, UC)|
//!   any --2RST--> RST          any --2ERR, or an error--> ERR
//! ```
//!
//! `SQD_RTS_QP` exists, but no command enters SQD, so `SQD_RTS_QP` never applies. Every transition that is not drawn is
//! refused with BAD_QP_STATE. A command that skips a state would leave a queue pair on the wire without a peer or a
//! PSN.

use mlx_prm::{QpState, Qpc, ServiceType};

/// State of a queue pair (PRM "QP Context", `state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Reset: the queue pair exists but does nothing.
    Reset,
    /// Initialized: software may post receives.
    Init,
    /// Ready to receive: the queue pair answers its peer.
    ReadyToReceive,
    /// Ready to send: the queue pair also sends.
    ReadyToSend,
    /// Send queue error: the send queue of a datagram or UC queue pair has stopped at an error.
    SendQueueError,
    /// Error: every WQE completes with a flush error.
    Error,
}

impl State {
    /// Returns the PRM's number of the state.
    pub const fn code(self) -> QpState {
        match self {
            Self::Reset => QpState::RST,
            Self::Init => QpState::INIT,
            Self::ReadyToReceive => QpState::RTR,
            Self::ReadyToSend => QpState::RTS,
            Self::SendQueueError => QpState::SQER,
            Self::Error => QpState::ERR,
        }
    }

    /// Returns the state after a transition, or `None` if the state does not have the transition.
    pub const fn next(self, transition: Transition) -> Option<Self> {
        use {State as S, Transition as T};
        Some(match (self, transition) {
            (S::Reset, T::RstToInit) | (S::Init, T::InitToInit) => S::Init,
            (S::Init, T::InitToRtr) => S::ReadyToReceive,
            (S::ReadyToReceive, T::RtrToRts)
            | (S::ReadyToSend, T::RtsToRts)
            | (S::SendQueueError, T::SqErrToRts) => S::ReadyToSend,
            (_, T::ToErr) => S::Error,
            (_, T::ToRst) => S::Reset,
            _ => return None,
        })
    }
}

/// A transition command (PRM `RST2INIT_QP` and the others).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// `RST2INIT_QP` 0x502.
    RstToInit,
    /// `INIT2INIT_QP` 0x50e.
    InitToInit,
    /// `INIT2RTR_QP` 0x503.
    InitToRtr,
    /// `RTR2RTS_QP` 0x504.
    RtrToRts,
    /// `RTS2RTS_QP` 0x505.
    RtsToRts,
    /// `SQERR2RTS_QP` 0x506.
    SqErrToRts,
    /// `SQD_RTS_QP` 0x50c.
    SqdToRts,
    /// `2ERR_QP` 0x507.
    ToErr,
    /// `2RST_QP` 0x50a.
    ToRst,
}

/// Service type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Extended reliable connection. One end only sends, and the other end receives into any XRC SRQ of its domain.
    Xrc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// The general services interface, which sends datagrams as QP 1.
    Gsi,
    /// The subnet management interface, which sends datagrams as QP 0, without Q_Keys.
    Smi,
    /// A local queue that only changes memory keys.
    Umr,
}

impl Service {
    /// Returns the service type `st` of a context, if it is supported.
    pub fn of(context: &Qpc) -> Option<Self> {
        Some(match ServiceType::from_bits(context.st()) {
            ServiceType::RC => Self::Rc,
            ServiceType::XRC => Self::Xrc,
            ServiceType::UC => Self::Uc,
            ServiceType::UD => Self::Ud,
            ServiceType::QP0 => Self::Smi,
            ServiceType::QP1 => Self::Gsi,
            ServiceType::REG_UMR => Self::Umr,
            _ => return None,
        })
    }

    /// Returns whether a queue pair of this service has exactly one peer.
    pub const fn is_connected(self) -> bool {
        self.is_reliable() || matches!(self, Self::Uc)
    }

    /// Returns whether packets of this service are acknowledged.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// Returns whether this service sends and receives datagrams.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi | Self::Smi)
    }
}
