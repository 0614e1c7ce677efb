//! Logging of an instance: tracing spans of connection attempts, and limits on the log lines that peers can cause.

use std::collections::HashMap;

use tracing::Span;

use crate::handle::EpKey;
use crate::log_budget::LogBudget;
use crate::object::ep::state::EpState;

/// Log state of an instance.
#[derive(Default)]
pub(in crate::ia) struct Log {
    /// Spans of the connection attempts in progress, if a log subscriber has enabled them.
    attempts: HashMap<EpKey, Span>,
    /// Limit on log lines about peers that refuse a connection.
    pub(in crate::ia) refused: LogBudget,
    /// Limit on log lines about connections that broke.
    pub(in crate::ia) broken: LogBudget,
    /// Limit on log lines about requests that found no endpoint.
    pub(in crate::ia) no_endpoint: LogBudget,
    /// Limit on log lines about other stations of the network.
    pub(in crate::ia) stations: LogBudget,
}

impl Log {
    /// Starts the span of a connection attempt. The span is not entered, because other attempts run at the same time.
    pub(in crate::ia) fn attempt(&mut self, key: EpKey, span: Span) {
        if !span.is_disabled() {
            self.attempts.insert(key, span);
        }
    }

    /// Ends the span of an endpoint's attempt, if the new state `to` ends the attempt.
    pub(in crate::ia) fn state_changed(&mut self, key: EpKey, to: EpState) {
        match to {
            EpState::Unconnected | EpState::Connected | EpState::Disconnected => {}
            EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::TentativeConnectionPending
            | EpState::ActiveConnectionPending
            | EpState::CompletionPending
            | EpState::DisconnectPending => return,
        }
        if let Some(span) = self.attempts.remove(&key) {
            span.record("outcome", tracing::field::debug(to));
        }
    }
}
