//! Errors of calls that the endpoint's state does not allow. The texts name the state and the call to make first.

use super::state::EpState;
use crate::error::DatError;

/// Calls that need the endpoint to be in certain states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum EpCall {
    /// `ep_connect`, `ep_dup_connect`, `cr_accept` or `rsp_create`, for the endpoint that they use: it must be free.
    Connect,
    /// `ep_dup_connect`, for the endpoint whose connection is duplicated.
    Duplicate,
    /// `ep_disconnect`.
    Disconnect,
    /// `ep_reset`.
    Reset,
    /// `ep_modify`.
    Modify,
    /// `ep_free`.
    Free,
    /// The post of a request, or the bind of an RMR.
    Post,
}

impl EpState {
    /// Returns the DAT_INVALID_STATE error for this call, with the subtype of this state.
    #[cold]
    #[inline(never)]
    pub(crate) const fn refuse(self, call: EpCall) -> DatError {
        use {EpCall as C, EpState as S};
        let sentence = match (call, self) {
            (C::Connect, S::Connected) => {
                "the endpoint is connected: ep_disconnect, wait for DISCONNECTED, and ep_reset come first, or take another endpoint"
            }
            (C::Connect, S::DisconnectPending) => {
                "the endpoint is disconnecting: wait for DISCONNECTED, then ep_reset, or take another endpoint"
            }
            (C::Connect, S::Disconnected) => "the endpoint is disconnected: ep_reset comes first",
            (C::Connect | C::Modify, S::ActiveConnectionPending | S::CompletionPending) => {
                "the endpoint is connecting already: wait for the event on its connect EVD, or ep_disconnect"
            }
            (C::Connect, S::Reserved) => {
                "a reserved service point has the endpoint: rsp_free comes first, or take another endpoint"
            }
            (C::Connect, S::PassiveConnectionPending | S::TentativeConnectionPending) => {
                "a request to connect has the endpoint: cr_accept without an endpoint uses it, cr_reject lets it go"
            }
            (C::Connect, S::Unconnected) => {
                "the endpoint is not connected, and the request to connect brings another one"
            }
            (C::Duplicate, S::Disconnected | S::DisconnectPending) => {
                "the endpoint whose connection is to be duplicated is disconnected"
            }
            (C::Duplicate, _) => {
                "the endpoint whose connection is to be duplicated is not connected: wait for ESTABLISHED"
            }
            (C::Disconnect, S::Reserved) | (C::Free, S::Reserved) => {
                "a reserved service point has the endpoint: rsp_free comes first"
            }
            (
                C::Disconnect | C::Free | C::Reset,
                S::PassiveConnectionPending | S::TentativeConnectionPending,
            ) => "a request to connect has the endpoint: cr_accept or cr_reject comes first",
            (C::Disconnect, _) => "the endpoint is not connected: there is nothing to disconnect",
            (C::Reset, S::Reserved) => {
                "a reserved service point has the endpoint, and there is nothing to reset"
            }
            (C::Reset, S::ActiveConnectionPending | S::CompletionPending) => {
                "the endpoint is connecting: ep_disconnect, and wait for DISCONNECTED before ep_reset"
            }
            (C::Reset, S::DisconnectPending) => {
                "the endpoint is disconnecting: wait for DISCONNECTED before ep_reset"
            }
            (C::Reset, _) => {
                "the endpoint is connected: ep_disconnect, and wait for DISCONNECTED before ep_reset"
            }
            (C::Modify, S::Connected | S::DisconnectPending) => {
                "the endpoint is connected: change it before ep_connect, or after ep_disconnect and ep_reset"
            }
            (C::Modify, S::Disconnected) => "the endpoint is disconnected: ep_reset comes first",
            (C::Modify, _) => {
                "the endpoint waits for a request to connect, or has one: its zone cannot be changed now"
            }
            (C::Free, _) => "the endpoint cannot be freed now",
            (C::Post, S::Unconnected) => {
                "the endpoint is not connected: post requests once ESTABLISHED has come; receives may be posted before"
            }
            (C::Post, S::Reserved) => {
                "a reserved service point has the endpoint, and no peer has come: post requests once ESTABLISHED has come"
            }
            (C::Post, S::PassiveConnectionPending | S::TentativeConnectionPending) => {
                "a request to connect has the endpoint: cr_accept, and post requests once ESTABLISHED has come"
            }
            (C::Post, S::ActiveConnectionPending | S::CompletionPending) => {
                "the endpoint is still connecting: post requests once ESTABLISHED has come"
            }
            (C::Post, S::DisconnectPending) => {
                "the endpoint is disconnecting, and takes no more requests: wait for DISCONNECTED, ep_reset, and connect again"
            }
            (C::Post, S::Connected | S::Disconnected) => {
                "the endpoint takes no request of this kind"
            }
        };
        DatError::state(self.subtype()).because(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantArray;

    #[test]
    fn every_refusal_names_the_endpoint_and_its_state() {
        for &call in EpCall::VARIANTS {
            for &state in EpState::VARIANTS {
                let error = state.refuse(call);
                assert_eq!(error, DatError::state(state.subtype()));
                assert!(error.detail().contains("endpoint"), "{call:?} {state:?}");
            }
        }
    }

    #[test]
    fn a_refusal_of_an_early_call_names_the_call_to_make_first() {
        let told = |call, state: EpState| state.refuse(call).detail();
        assert!(told(EpCall::Post, EpState::Unconnected).contains("ESTABLISHED"));
        assert!(told(EpCall::Reset, EpState::Connected).contains("ep_disconnect"));
        assert!(told(EpCall::Connect, EpState::Disconnected).contains("ep_reset"));
        assert!(told(EpCall::Connect, EpState::Connected).contains("ep_reset"));
        assert!(told(EpCall::Free, EpState::Reserved).contains("rsp_free"));
        assert!(told(EpCall::Modify, EpState::Connected).contains("before ep_connect"));
    }
}
