//! Checks of the events in a snapshot. The consumer does not check them. Each event must be of a connection that exists
//! and whose state it fits, and its numbers must be those that a received message can have.

use std::collections::BTreeSet;

use super::super::Cm;
use super::super::conn::{Conn, Role, check_address, is_asked_by};
use super::super::event::{CmEvent, PeerReply, PeerRequest};
use super::super::params::Config;
use super::super::state::State;
use super::super::wire::{RejectReason, rej, rep, req};
use crate::error::parking::ResumeError;
use crate::provider::{MadAddress, Qpn};

/// Checks events that the consumer has not polled. A connection has at most one of each kind.
pub(super) fn check_events(cm: &Cm, events: &[CmEvent]) -> Result<(), ResumeError> {
    let mut kinds = BTreeSet::new();
    for event in events {
        let (id, kind) = (event.conn(), kind(event));
        let refused = |what: &str| {
            let what = format!("{kind} of {id:?}: {what}");
            Err(ResumeError::snapshot("the events", what))
        };
        let Some(conn) = cm.conns.get(id).filter(|conn| !conn.released) else {
            return refused("there is no such connection");
        };
        if !kinds.insert((id, kind)) {
            return refused("it is there twice");
        }
        if !fits(event, conn) {
            let (state, role) = (conn.state, conn.role);
            return refused(&format!("it does not fit state {state:?}, {role:?}"));
        }
        match event {
            CmEvent::Request { request, .. } => check_request(&cm.config, conn, request)?,
            CmEvent::Reply { reply, .. } => check_reply(&cm.config, conn, reply)?,
            CmEvent::Rejected {
                by_consumer,
                reason,
                private_data,
                ..
            } => {
                check_bytes("rejection", private_data, rej::PRIVATE_DATA_BYTES)?;
                let is_consumers = *reason == RejectReason::Consumer.code();
                if *by_consumer != is_consumers || !is_consumers && !private_data.is_empty() {
                    return refused(&format!("by the consumer: {by_consumer}, reason {reason}"));
                }
            }
            CmEvent::Established { .. }
            | CmEvent::Unreachable { .. }
            | CmEvent::TimedOut { .. }
            | CmEvent::Disconnected { .. }
            | CmEvent::DisconnectDone { .. }
            | CmEvent::AcceptFailed { .. } => {}
        }
    }
    Ok(())
}

/// Returns the name of an event's kind.
const fn kind(event: &CmEvent) -> &'static str {
    match event {
        CmEvent::Request { .. } => "Request",
        CmEvent::Reply { .. } => "Reply",
        CmEvent::Established { .. } => "Established",
        CmEvent::Rejected { .. } => "Rejected",
        CmEvent::Unreachable { .. } => "Unreachable",
        CmEvent::TimedOut { .. } => "TimedOut",
        CmEvent::Disconnected { .. } => "Disconnected",
        CmEvent::DisconnectDone { .. } => "DisconnectDone",
        CmEvent::AcceptFailed { .. } => "AcceptFailed",
    }
}

/// Returns whether a connection in this state can have the event. The state may have changed after the event.
const fn fits(event: &CmEvent, conn: &Conn) -> bool {
    use State::{Closed, DreqSent, Established, Refused, RepReceived, TimeWait};
    let (is_active, state) = (matches!(conn.role, Role::Active), conn.state);
    match event {
        CmEvent::Request { .. } => !is_active,
        CmEvent::Reply { .. } => {
            is_active
                && matches!(
                    state,
                    RepReceived | Established | DreqSent | Refused | TimeWait | Closed
                )
        }
        CmEvent::Established { .. } => {
            !is_active && matches!(state, Established | DreqSent | TimeWait | Closed)
        }
        CmEvent::Rejected { .. } => is_active && matches!(state, Refused | TimeWait | Closed),
        CmEvent::Unreachable { .. } | CmEvent::TimedOut { .. } => {
            is_active && matches!(state, Refused | Closed)
        }
        CmEvent::AcceptFailed { .. } => !is_active && matches!(state, Refused | TimeWait | Closed),
        CmEvent::Disconnected { .. } => matches!(state, DreqSent | TimeWait | Closed),
        CmEvent::DisconnectDone { .. } => matches!(state, Refused | TimeWait | Closed),
    }
}

fn check_bytes(table: &'static str, data: &[u8], limit: usize) -> Result<(), ResumeError> {
    ResumeError::check_range(table, [("private_data", data.len() as u64, limit as u64)])
}

fn check_request(config: &Config, conn: &Conn, request: &PeerRequest) -> Result<(), ResumeError> {
    const TABLE: &str = "request";
    let address = MadAddress {
        path: request.path,
        qpn: Qpn::GSI,
    };
    check_address(TABLE, &address)?;
    check_bytes(TABLE, &request.private_data, req::PRIVATE_DATA_BYTES)?;
    ResumeError::check_range(
        TABLE,
        [
            ("mtu", request.mtu.into(), config.max_mtu.into()),
            (
                "ack_timeout",
                request.ack_timeout.into(),
                config.max_ack_timeout.into(),
            ),
            ("retry_count", request.retry_count.into(), 7),
            ("rnr_retry", request.rnr_retry.into(), 7),
        ],
    )?;
    let is_the_connections = Some(request.listen) == conn.listen
        && request.service_id == conn.service_id
        && is_asked_by(
            (conn.remote_qpn, &conn.peer.path),
            request.remote_qpn,
            request.remote_gid,
            &request.path,
        );
    if request.mtu == 0 || request.ack_timeout == 0 || !is_the_connections {
        let what = format!("it is not the one of its connection: {request:?}");
        return Err(ResumeError::snapshot(TABLE, what));
    }
    Ok(())
}

fn check_reply(config: &Config, conn: &Conn, reply: &PeerReply) -> Result<(), ResumeError> {
    const TABLE: &str = "reply";
    check_bytes(TABLE, &reply.private_data, rep::PRIVATE_DATA_BYTES)?;
    ResumeError::check_range(
        TABLE,
        [
            (
                "ack_timeout",
                reply.ack_timeout.into(),
                config.max_ack_timeout.into(),
            ),
            ("rnr_retry", reply.rnr_retry.into(), 7),
        ],
    )?;
    if reply.ack_timeout == 0 || Some(reply.remote_qpn) != conn.remote_qpn {
        let what = format!("it is not the one of its connection: {reply:?}");
        return Err(ResumeError::snapshot(TABLE, what));
    }
    Ok(())
}
