//! Log of an instance: spans of connections that are being made, and limits on the lines that peers cause.

use std::collections::HashMap;

use tracing::Span;

use crate::handle::EpKey;
use crate::log_budget::LogBudget;
use crate::object::ep::state::EpState;

/// Log state of an instance.
#[derive(Default)]
pub(in crate::ia) struct Log {
    /// Spans of the connections being made, for those that a log subscriber has enabled.
    attempts: HashMap<EpKey, Span>,
    /// Limits lines about peers that refuse.
    pub(in crate::ia) refused: LogBudget,
    /// Limits lines about connections that broke.
    pub(in crate::ia) broken: LogBudget,
    /// Limits lines about requests that found no endpoint.
    pub(in crate::ia) no_endpoint: LogBudget,
}

impl Log {
    /// Starts the span of a connection attempt. The span is not entered, because other attempts run at the same time.
    pub(in crate::ia) fn attempt(&mut self, key: EpKey, span: Span) {
        if !span.is_disabled() {
            self.attempts.insert(key, span);
        }
    }

    /// Ends the span if an endpoint's step ended its attempt.
    pub(in crate::ia) fn stepped(&mut self, key: EpKey, to: EpState) {
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
