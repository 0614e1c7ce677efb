//! What an instance says in the log: spans of connections that are being made, and how many lines peers cause.

use std::collections::HashMap;

use tracing::Span;

use crate::handle::EpKey;
use crate::log_budget::LogBudget;
use crate::object::ep::state::EpState;

/// What an instance keeps for the log.
#[derive(Default)]
pub(in crate::ia) struct Log {
    /// Connections that are being made and that somebody who listens to the log wants to hear of.
    attempts: HashMap<EpKey, Span>,
    /// Lines about peers that refuse.
    pub(in crate::ia) refused: LogBudget,
    /// Lines about connections that broke.
    pub(in crate::ia) broken: LogBudget,
    /// Lines about requests that found no endpoint.
    pub(in crate::ia) no_endpoint: LogBudget,
}

impl Log {
    /// A connection is being made. What is logged while the span is there is not inside it: others are made meanwhile.
    pub(in crate::ia) fn attempt(&mut self, key: EpKey, span: Span) {
        if !span.is_disabled() {
            self.attempts.insert(key, span);
        }
    }

    /// An endpoint has made a step: the attempt may be over.
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
