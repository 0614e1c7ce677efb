//! The states of an endpoint and the only function that implements the transitions.
//!
//! ```text
//!                 ReservedByRsp          RequestArrived
//!   UNCONNECTED ----------------> RESERVED ----------> PASSIVE_CONNECTION_PENDING
//!    |  ^  ^ ^ `- Accept ---.        |                       |          |
//!    |  |  | `-- RspFreed --|--------'       (Rejected back) |          | Accept
//!    |  |  `----------------|--------------------------------'          |
//!    |  |                   |    TENTATIVE_CONNECTION_PENDING --Accept--|
//!    |  | Reset             |                                           |
//!    |  |                   `--------------> COMPLETION_PENDING <-------'
//!    |  |                                      |          |
//!    |  '------------ DISCONNECTED <-----------'          | Established
//!    | Connect           ^  ^   ^    AttemptEnded         |
//!    v                   |  |   |                         v
//!   ACTIVE_CONNECTION ---'  |   '-- ConnectionEnded -- CONNECTED
//!     PENDING               |                           ^ |
//!     |                     | ConnectionEnded           | | Drain
//!     |                DISCONNECT_PENDING <-------------|-'
//!     '--- Established ---------------------------------'
//! ```
//!
//! Two edges are not drawn. *Lent* leads from UNCONNECTED to TENTATIVE_CONNECTION_PENDING: the provider has created the
//! endpoint for a request, and no program has seen it before. *Freed* leads from every state to DISCONNECTED: the
//! endpoint is being freed, so its queue pair has stopped. A program sees this state only if the device then refuses to
//! destroy the queue pair; the endpoint can be freed again.
//!
//! Some transitions are restricted on purpose:
//! - DISCONNECTED leads to UNCONNECTED only: the queue pair is in error and must be reset, and a connection has exactly
//!   one terminal event.
//! - RESERVED, PASSIVE and TENTATIVE lead to DISCONNECTED only if the provider frees the endpoint (Freed). No
//!   connection exists that could end; the service point is freed or the request is rejected instead.
//! - Reset of an UNCONNECTED endpoint is legal, changes nothing and keeps the posted receives.
//!
//! (uDAPL 1.2: dat_ep_create, dat_ep_connect, dat_ep_disconnect, dat_ep_reset, dat_cr_accept.)

use core::ops::Deref;

use crate::error::{DatError, DatResult, Subtype};

/// The state of an endpoint (`DAT_EP_STATE`). The four UNCONFIGURED states of the header are not used: an endpoint that
/// lacks a PZ or an EVD has the same states as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::VariantArray))]
#[repr(u8)]
pub enum EpState {
    /// The endpoint has no connection and no attempt.
    Unconnected = 0,
    /// An RSP that waits for its request has reserved the endpoint.
    Reserved = 2,
    /// The RSP's request has arrived and is undecided.
    PassiveConnectionPending = 4,
    /// The endpoint is connecting, and the peer has not answered yet.
    ActiveConnectionPending = 6,
    /// The provider created the endpoint for an undecided request.
    TentativeConnectionPending = 7,
    /// The connection is established.
    Connected = 9,
    /// A graceful disconnect is in progress: the posted requests are being completed.
    DisconnectPending = 10,
    /// The connection, or the attempt, has ended.
    Disconnected = 11,
    /// A connection request was accepted, but the handshake is not complete.
    CompletionPending = 12,
}

/// Events that change an endpoint's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum EpEvent {
    /// `ep_connect` was called.
    Connect,
    /// `rsp_create` reserved this endpoint.
    ReservedByRsp,
    /// `rsp_free` was called before a request arrived.
    RspFreed,
    /// A request arrived at the RSP that reserved the endpoint.
    RequestArrived,
    /// `cr_accept` was called with this endpoint.
    Accept,
    /// The request that holds this endpoint was rejected or handed off.
    RequestRejected,
    /// The connection handshake is complete.
    Established,
    /// The attempt to connect failed, was refused, timed out or was given up.
    AttemptEnded,
    /// A graceful `ep_disconnect` began.
    Drain,
    /// The connection was disconnected by either side, or broke.
    ConnectionEnded,
    /// `ep_reset` was called.
    Reset,
    /// The provider created the endpoint for a request.
    Lent,
    /// `ep_free`, or the closing of the IA, stopped the endpoint's queue pair.
    Freed,
}

/// The current state of an endpoint. All modules can read it; only [`Lifecycle`] can change it.
#[derive(Debug)]
pub(crate) struct CurrentState {
    pub(crate) state: EpState,
}

/// The state of an endpoint, together with its transitions; it begins as UNCONNECTED.
#[derive(Debug)]
pub(crate) struct Lifecycle(CurrentState);

impl Lifecycle {
    pub(crate) const NEW: Self = Self(CurrentState {
        state: EpState::Unconnected,
    });

    /// Makes the lifecycle of a parked endpoint, which begins in the state that the endpoint had.
    pub(super) const fn resume(state: EpState) -> Self {
        Self(CurrentState { state })
    }

    /// Applies an event to the state. No other function changes the state.
    ///
    /// # Errors
    /// DAT_INVALID_STATE with the state's subtype: the event is not legal in this state, and nothing has changed.
    pub(crate) fn step(&mut self, event: EpEvent) -> DatResult<()> {
        let state = self.0.state;
        self.0.state = state
            .next(event)
            .ok_or_else(|| DatError::state(state.subtype()))?;
        Ok(())
    }
}

impl Deref for Lifecycle {
    type Target = CurrentState;

    #[inline]
    fn deref(&self) -> &CurrentState {
        &self.0
    }
}

impl EpState {
    /// Returns the next state according to the transition table. Returns `None` if the event is not legal in this
    /// state.
    #[must_use]
    pub const fn next(self, event: EpEvent) -> Option<Self> {
        use {EpEvent as E, EpState as S};
        Some(match (self, event) {
            (S::Unconnected, E::Connect) => S::ActiveConnectionPending,
            (S::Unconnected, E::ReservedByRsp) => S::Reserved,
            (S::Reserved, E::RspFreed) => S::Unconnected,
            (S::Reserved, E::RequestArrived) => S::PassiveConnectionPending,
            (S::PassiveConnectionPending, E::RequestRejected) => S::Unconnected,
            (
                S::Unconnected | S::PassiveConnectionPending | S::TentativeConnectionPending,
                E::Accept,
            ) => S::CompletionPending,
            (S::ActiveConnectionPending | S::CompletionPending, E::Established) => S::Connected,
            (S::ActiveConnectionPending | S::CompletionPending, E::AttemptEnded) => S::Disconnected,
            (S::Connected, E::Drain) => S::DisconnectPending,
            (S::Connected | S::DisconnectPending, E::ConnectionEnded) => S::Disconnected,
            (S::Disconnected | S::Unconnected, E::Reset) => S::Unconnected,
            (S::Unconnected, E::Lent) => S::TentativeConnectionPending,
            (_, E::Freed) => S::Disconnected,
            _ => return None,
        })
    }

    /// Returns whether requests may be posted: the queue pair either sends or flushes them.
    pub(crate) const fn takes_requests(self) -> bool {
        matches!(self, Self::Connected | Self::Disconnected)
    }

    /// Returns the name in `dat.h`, without `DAT_EP_STATE_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unconnected => "UNCONNECTED",
            Self::Reserved => "RESERVED",
            Self::PassiveConnectionPending => "PASSIVE_CONNECTION_PENDING",
            Self::ActiveConnectionPending => "ACTIVE_CONNECTION_PENDING",
            Self::TentativeConnectionPending => "TENTATIVE_CONNECTION_PENDING",
            Self::Connected => "CONNECTED",
            Self::DisconnectPending => "DISCONNECT_PENDING",
            Self::Disconnected => "DISCONNECTED",
            Self::CompletionPending => "COMPLETION_PENDING",
        }
    }

    /// Returns the subtype of DAT_INVALID_STATE that names this state.
    #[must_use]
    pub const fn subtype(self) -> Subtype {
        match self {
            Self::Unconnected => Subtype::StateEpUnconnected,
            Self::Reserved => Subtype::StateEpReserved,
            Self::PassiveConnectionPending => Subtype::StateEpPassiveConnectionPending,
            Self::ActiveConnectionPending => Subtype::StateEpActiveConnectionPending,
            Self::TentativeConnectionPending => Subtype::StateEpTentativeConnectionPending,
            Self::Connected => Subtype::StateEpConnected,
            Self::DisconnectPending => Subtype::StateEpDisconnectPending,
            Self::Disconnected => Subtype::StateEpDisconnected,
            Self::CompletionPending => Subtype::StateEpCompletionPending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_table;
    use strum::VariantArray;

    #[test]
    fn every_pair_of_state_and_event_is_as_the_checked_in_table_says() {
        let pairs = EpState::VARIANTS
            .iter()
            .flat_map(|state| EpEvent::VARIANTS.iter().map(move |event| (*state, *event)));
        let rows = pairs.map(|(state, event)| match state.next(event) {
            Some(next) => format!("{state:?} + {event:?} -> {next:?}"),
            None => format!("{state:?} + {event:?} refused"),
        });
        assert_table(rows, include_str!("state.table"));
    }

    #[test]
    fn a_refused_event_leaves_the_state_as_it_is() {
        let mut life = Lifecycle::NEW;
        assert_eq!(life.step(EpEvent::Connect), Ok(()));
        let state = EpState::ActiveConnectionPending;
        assert_eq!(
            life.step(EpEvent::Connect),
            Err(DatError::state(state.subtype()))
        );
        assert_eq!(life.state, state);
        assert_eq!(life.step(EpEvent::Freed), Ok(()));
        assert_eq!(life.state, EpState::Disconnected);
    }

    #[test]
    fn the_numbers_are_those_of_the_header() {
        let numbers: Vec<u8> = EpState::VARIANTS.iter().map(|&state| state as u8).collect();
        assert_eq!(numbers, [0, 2, 4, 6, 7, 9, 10, 11, 12]);
    }
}
