//! The states of a connection and the transitions between them.
//!
//! They follow the state diagrams of the active and the passive side in IBTA volume 1, 12.9 ("Communication
//! Establishment and Release"). In the diagram, `!` sends and `?` receives; all other labels are calls of the consumer,
//! or time.
//!
//! ```text
//!        active side                                      passive side
//!
//!        connect !REQ                                     ?REQ
//!             |                                             |
//!        +---------+  ?MRA  +-----------------+        +-------------+ time !MRA +---------+
//!        | ReqSent |------->| ReqAcknowledged |        | ReqReceived |---------->| MraSent |--.
//!        +---------+<-------+-----------------+        +-------------+ ?REQ !MRA +---------+<-' ?REQ !MRA
//!         ^ |  |     time !REQ   |                          |                         |
//!         '-'  |?REP             |?REP                      | accept !REP             |
//!   time !REQ  v                 |                          v                         |
//!        +-------------+<--------'                     +---------+ <------------------'
//!        | RepReceived |                           .-->| RepSent |  ?MRA   +-----------------+
//!        +-------------+                time !REP  '---+---------+-------->| RepAcknowledged |
//!              |                                            |    <---------+-----------------+
//!              | ready !RTU                                 | ?RTU     time !REP  | ?RTU
//!              |                                            | or data             | or data
//!              |              +-------------+               |                     |
//!              '------------->| Established |<--------------'---------------------'
//!                             +-------------+
//!                 disconnect !DREQ |   | ?DREQ !DREP
//!                                  v   |
//!                  time !DREQ +----------+             +---------+
//!                      .----->| DreqSent |             | Refused |  <- all that was not established:
//!                      '------+----------+             +---------+     !REJ, and again to a
//!                            ?DREP |  |                     |          later REQ, REP or RTU
//!                  or ?DREQ !DREP  v  v                     |
//!                             +----------+   time           v time
//!                             | TimeWait |----------->  Closed
//!                             +----------+
//! ```
//!
//! A REJ ends every state it may answer, with one exception: after a refusal as stale, the request is repeated a
//! little later, a few times (`docs/decisions/restarted-peer.md`). On the passive side, before the consumer has
//! decided, a REJ leads to `Withdrawn`: the consumer still holds the request, and learns by accepting it that the
//! peer has stopped waiting (`AcceptFailed`).
//!
//! Deliberately absent from the table:
//! - A REP in `TimeWait` is not answered. We refuse only what we gave up on (`Refused`); a REP that comes after an
//!   established connection ended is a late duplicate.
//! - DREQ in `ReqReceived` or `RepReceived`: a peer can only disconnect a connection that it saw established.
//! - A second MRA in `ReqAcknowledged` or `RepAcknowledged`: it could extend the wait for ever.
//! - `disconnect` in `ReqReceived`, `MraSent` or `Withdrawn`: the consumer rejects the request instead.
//! - A request for which there is no room does not go through `Refused`: it is declined, and `Closed` at once.
//!
//! `TimeWait` and `Refused` end by time, whatever the peer does. The connection's communication ID is not used again
//! before that.

/// State of a connection.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum State {
    /// Active: the request was sent.
    ReqSent,
    /// Active: the peer has acknowledged the request with an MRA and needs more time.
    ReqAcknowledged,
    /// Active: the peer has accepted, and the consumer is moving its queue pair to RTS.
    RepReceived,
    /// Passive: the consumer has to decide on the request.
    ReqReceived,
    /// Passive: as `ReqReceived`, and we have sent the peer an MRA.
    MraSent,
    /// Passive: the peer no longer waits; the consumer has not decided yet.
    Withdrawn,
    /// Passive: the consumer has accepted, and the reply was sent.
    RepSent,
    /// Passive: the peer has acknowledged the reply with an MRA and needs more time.
    RepAcknowledged,
    /// Both sides may send.
    Established,
    /// We have sent a DREQ.
    DreqSent,
    /// We have refused. A later REQ, REP or RTU is refused again; a DREQ is answered with a DREP.
    Refused,
    /// The connection is over; late messages are answered or dropped.
    TimeWait,
    /// Only the `ConnId` is left, until the consumer releases it.
    Closed,
}

/// Inputs of a connection's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Input {
    /// The peer repeated its REQ.
    Req,
    /// An MRA for the message we sent arrived.
    Mra,
    /// A REJ arrived.
    Rej,
    /// A REJ of our request with reason 10 (stale connection) arrived, and the request may be repeated. The peer has
    /// ended the former connection of our queue pair because of our request.
    RejStale,
    /// A REP arrived.
    Rep,
    /// An RTU arrived.
    Rtu,
    /// A DREQ arrived.
    Dreq,
    /// A DREP for our DREQ arrived.
    Drep,
    /// A REQ or REP names the peer's queue pair for a new connection, so the peer no longer knows this connection.
    Superseded,
    /// The consumer accepts.
    Accept,
    /// The consumer rejects.
    Reject,
    /// The request is refused without being remembered, for lack of capacity.
    Decline,
    /// The consumer's queue pair is ready.
    Ready,
    /// Data arrived on the consumer's queue pair.
    Data,
    /// The consumer disconnects.
    Disconnect,
    /// The consumer aborts.
    Abort,
    /// No answer came in time, and a repetition is left.
    Retry,
    /// No answer came in time, and no repetition is left.
    Exhausted,
    /// The timeout that the consumer set has expired.
    Expired,
    /// An MRA is due, because the peer would soon repeat its request.
    MraDue,
    /// The time for which `Refused` or `TimeWait` is kept is over.
    HoldOver,
}

/// Message that a transition sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// No message.
    Nothing,
    /// The REQ, or a repetition.
    Req,
    /// An MRA for the REQ.
    Mra,
    /// The REP, or a repetition.
    Rep,
    /// An RTU.
    Rtu,
    /// The DREQ, or a repetition.
    Dreq,
    /// A DREP.
    Drep,
    /// A REJ with reason 4: we stopped waiting.
    RejTimeout,
    /// A REJ with reason 28: the consumer refuses.
    RejConsumer,
    /// A REJ with the reason that the consumer gave.
    RejGiven,
    /// A REJ with reason 10: the connection is stale.
    RejStale,
    /// A repetition of the REJ that was sent before.
    RejAgain,
}

/// Event that a transition reports to the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// No event.
    Nothing,
    /// The peer has accepted.
    Reply,
    /// The peer is ready.
    Established,
    /// The peer was ready and has disconnected. Its DREQ arrived before its RTU, or the RTU was lost.
    EstablishedAndDisconnected,
    /// The peer has refused.
    Rejected,
    /// No REP and no final REJ has arrived. A REJ with reason 10 (stale connection) is not final: the request is sent
    /// again after it.
    Unreachable,
    /// The consumer's timeout has passed.
    TimedOut,
    /// The accepted connection was not established.
    AcceptFailed,
    /// The peer has ended the connection.
    Disconnected,
    /// Our disconnect is done.
    DisconnectDone,
}

/// A transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The next state.
    pub to: State,
    /// Message to send.
    pub send: Emit,
    /// The event for the consumer.
    pub report: Report,
}

const fn go(to: State, send: Emit, report: Report) -> Step {
    Step { to, send, report }
}

impl State {
    /// Returns the transition for an input. `None` means that the state does not allow the input: a call fails, a
    /// message is ignored.
    #[must_use]
    pub const fn next(self, input: Input) -> Option<Step> {
        use {Emit as M, Input as I, Report as T, State as S};
        Some(match (self, input) {
            // Active side.
            (S::ReqSent, I::Mra) => go(S::ReqAcknowledged, M::Nothing, T::Nothing),
            (S::ReqSent | S::ReqAcknowledged, I::Retry) => go(S::ReqSent, M::Req, T::Nothing),
            (S::ReqSent | S::ReqAcknowledged, I::Rep) => go(S::RepReceived, M::Nothing, T::Reply),
            (S::ReqSent | S::ReqAcknowledged, I::RejStale) => {
                go(S::ReqSent, M::Nothing, T::Nothing)
            }
            (S::ReqSent | S::ReqAcknowledged, I::Exhausted) => {
                go(S::Refused, M::RejTimeout, T::Unreachable)
            }
            (S::ReqSent | S::ReqAcknowledged, I::Abort) => {
                go(S::Refused, M::RejTimeout, T::Nothing)
            }
            (S::ReqSent | S::ReqAcknowledged, I::Disconnect) => {
                go(S::Refused, M::RejTimeout, T::DisconnectDone)
            }
            (S::ReqSent | S::ReqAcknowledged | S::RepReceived, I::Rej) => {
                go(S::TimeWait, M::Nothing, T::Rejected)
            }
            (S::ReqSent | S::ReqAcknowledged | S::RepReceived, I::Expired) => {
                go(S::Refused, M::RejTimeout, T::TimedOut)
            }
            (S::RepReceived, I::Rep) => go(S::RepReceived, M::Nothing, T::Nothing),
            (S::RepReceived, I::Ready) => go(S::Established, M::Rtu, T::Nothing),
            (S::RepReceived, I::Reject) => go(S::Refused, M::RejGiven, T::Nothing),
            (S::RepReceived, I::Abort) => go(S::Refused, M::RejConsumer, T::Nothing),
            (S::RepReceived, I::Disconnect) => go(S::Refused, M::RejConsumer, T::DisconnectDone),
            (S::RepReceived, I::Superseded) => go(S::Refused, M::RejStale, T::Rejected),

            // Passive side, before the consumer has decided.
            (S::ReqReceived, I::MraDue) => go(S::MraSent, M::Mra, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Req) => go(S::MraSent, M::Mra, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Accept) => go(S::RepSent, M::Rep, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Reject) => go(S::Refused, M::RejGiven, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Decline) => go(S::Closed, M::RejGiven, T::Nothing),
            (S::Withdrawn, I::Decline) => go(S::Closed, M::Nothing, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Abort) => go(S::Refused, M::RejConsumer, T::Nothing),
            (S::ReqReceived | S::MraSent, I::Rej | I::Superseded) => {
                go(S::Withdrawn, M::Nothing, T::Nothing)
            }
            (S::Withdrawn, I::Req) => go(S::Withdrawn, M::Nothing, T::Nothing),
            (S::Withdrawn, I::Accept) => go(S::TimeWait, M::Nothing, T::AcceptFailed),
            (S::Withdrawn, I::Reject | I::Abort) => go(S::TimeWait, M::Nothing, T::Nothing),

            // Passive side, accepted.
            (S::RepSent, I::Mra) => go(S::RepAcknowledged, M::Nothing, T::Nothing),
            (S::RepSent | S::RepAcknowledged, I::Retry) => go(S::RepSent, M::Rep, T::Nothing),
            // The state does not change, so that a requester that repeats its REQ does not restart our own count of
            // retries.
            (S::RepSent, I::Req) => go(S::RepSent, M::Rep, T::Nothing),
            (S::RepAcknowledged, I::Req) => go(S::RepAcknowledged, M::Rep, T::Nothing),
            (S::RepSent | S::RepAcknowledged, I::Rtu | I::Data) => {
                go(S::Established, M::Nothing, T::Established)
            }
            (S::RepSent | S::RepAcknowledged, I::Dreq) => {
                go(S::TimeWait, M::Drep, T::EstablishedAndDisconnected)
            }
            (S::RepSent | S::RepAcknowledged, I::Rej | I::Superseded) => {
                go(S::TimeWait, M::Nothing, T::AcceptFailed)
            }
            (S::RepSent | S::RepAcknowledged, I::Exhausted) => {
                go(S::Refused, M::RejTimeout, T::AcceptFailed)
            }
            (S::RepSent | S::RepAcknowledged, I::Abort) => {
                go(S::Refused, M::RejConsumer, T::Nothing)
            }
            (S::RepSent | S::RepAcknowledged, I::Disconnect) => {
                go(S::Refused, M::RejConsumer, T::DisconnectDone)
            }

            // Both sides, established or disconnecting.
            (S::Established, I::Rep) => go(S::Established, M::Rtu, T::Nothing),
            (S::Established, I::Req | I::Rtu | I::Data) => {
                go(S::Established, M::Nothing, T::Nothing)
            }
            (S::Established, I::Dreq) => go(S::TimeWait, M::Drep, T::Disconnected),
            (S::Established, I::Rej) => go(S::TimeWait, M::Nothing, T::Disconnected),
            (S::Established, I::Superseded) => go(S::DreqSent, M::Dreq, T::Disconnected),
            (S::Established, I::Disconnect | I::Abort) => go(S::DreqSent, M::Dreq, T::Nothing),
            (S::DreqSent, I::Retry) => go(S::DreqSent, M::Dreq, T::Nothing),
            (S::DreqSent, I::Dreq) => go(S::TimeWait, M::Drep, T::DisconnectDone),
            (S::DreqSent, I::Drep | I::Rej | I::Exhausted) => {
                go(S::TimeWait, M::Nothing, T::DisconnectDone)
            }
            (S::DreqSent, I::Disconnect | I::Abort | I::Superseded) => {
                go(S::DreqSent, M::Nothing, T::Nothing)
            }

            // Both sides, refused or ended.
            (S::Refused, I::Req | I::Rep | I::Rtu) => go(S::Refused, M::RejAgain, T::Nothing),
            (S::Refused, I::Dreq) => go(S::Refused, M::Drep, T::Nothing),
            (S::Refused | S::TimeWait, I::HoldOver) => go(S::Closed, M::Nothing, T::Nothing),
            (S::Refused, I::Abort) => go(S::Refused, M::Nothing, T::Nothing),
            (S::TimeWait, I::Dreq) => go(S::TimeWait, M::Drep, T::Nothing),
            (S::TimeWait, I::Req) => go(S::TimeWait, M::RejStale, T::Nothing),
            (S::TimeWait, I::Abort) => go(S::TimeWait, M::Nothing, T::Nothing),
            (S::Closed, I::Abort) => go(S::Closed, M::Nothing, T::Nothing),
            _ => return None,
        })
    }

    /// Returns whether the peer's queue pair belongs to a connection in this state. If so, a further connection that
    /// names this queue pair shows that this one is stale.
    #[must_use]
    pub const fn holds_remote_qp(self) -> bool {
        match self {
            Self::ReqSent
            | Self::ReqAcknowledged
            | Self::RepReceived
            | Self::ReqReceived
            | Self::MraSent
            | Self::RepSent
            | Self::RepAcknowledged
            | Self::Established
            | Self::DreqSent => true,
            Self::Withdrawn | Self::Refused | Self::TimeWait | Self::Closed => false,
        }
    }

    /// Returns whether the consumer's timeout for establishing the connection applies in this state.
    #[must_use]
    pub const fn is_connecting(self) -> bool {
        matches!(
            self,
            Self::ReqSent | Self::ReqAcknowledged | Self::RepReceived
        )
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;
    use crate::tests::assert_table;

    #[test]
    fn transition_table_is_the_checked_in_one() {
        let pairs = State::VARIANTS
            .iter()
            .flat_map(|state| Input::VARIANTS.iter().map(move |input| (*state, *input)));
        let rows = pairs.map(|(state, input)| match state.next(input) {
            Some(Step { to, send, report }) => {
                format!("{state:?} {input:?}: {to:?} {send:?} {report:?}")
            }
            None => format!("{state:?} {input:?}: -"),
        });
        assert_table(rows, include_str!("transitions.txt"));
    }

    #[test]
    fn every_state_can_be_aborted_and_then_tells_nothing_more() {
        for &state in State::VARIANTS {
            let step = state
                .next(Input::Abort)
                .unwrap_or_else(|| panic!("{state:?} cannot be aborted"));
            assert_eq!(step.report, Report::Nothing, "{state:?}");
        }
    }

    #[test]
    fn every_refusal_leads_to_a_state_that_can_repeat_it() {
        for &state in State::VARIANTS {
            for &input in Input::VARIANTS {
                let Some(step) = state.next(input) else {
                    continue;
                };
                // A declined request is not remembered: if the REQ is repeated, it is a new request.
                if input == Input::Decline {
                    continue;
                }
                match step.send {
                    Emit::RejTimeout | Emit::RejConsumer | Emit::RejGiven | Emit::RejAgain => {
                        assert_eq!(step.to, State::Refused, "{state:?} {input:?}");
                    }
                    // A connection in `TimeWait` refuses a repeated REQ without changing its state.
                    Emit::RejStale => assert!(matches!(step.to, State::Refused | State::TimeWait)),
                    Emit::Nothing
                    | Emit::Req
                    | Emit::Mra
                    | Emit::Rep
                    | Emit::Rtu
                    | Emit::Dreq
                    | Emit::Drep => {}
                }
            }
        }
    }

    #[test]
    fn nothing_leaves_the_closed_state() {
        for &input in Input::VARIANTS {
            let to = State::Closed.next(input).map(|step| step.to);
            assert!(matches!(to, None | Some(State::Closed)), "{input:?}");
        }
    }
}
