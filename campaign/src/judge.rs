//! The calls that DAT allows in each endpoint state, and the changes of state that a refused call may cause.

use udapl::DatError;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;

/// Returns the name of a state, as in [`crate::calls::ENDPOINT`].
pub const fn name(state: EpState) -> &'static str {
    match state {
        EpState::Unconnected => "Unconnected",
        EpState::Reserved => "Reserved",
        EpState::PassiveConnectionPending => "PassiveConnectionPending",
        EpState::ActiveConnectionPending => "ActiveConnectionPending",
        EpState::TentativeConnectionPending => "TentativeConnectionPending",
        EpState::CompletionPending => "CompletionPending",
        EpState::Connected => "Connected",
        EpState::DisconnectPending => "DisconnectPending",
        EpState::Disconnected => "Disconnected",
    }
}

/// Returns whether network input that a call handled may have changed an endpoint's state from `before` to `after`.
fn may_have_become(before: EpState, after: EpState) -> bool {
    use EpState as S;
    match before {
        S::ActiveConnectionPending | S::CompletionPending => {
            matches!(after, S::Connected | S::Disconnected)
        }
        S::Connected => matches!(after, S::DisconnectPending | S::Disconnected),
        S::DisconnectPending => after == S::Disconnected,
        S::Reserved => after == S::PassiveConnectionPending,
        S::Unconnected
        | S::PassiveConnectionPending
        | S::TentativeConnectionPending
        | S::Disconnected => false,
    }
}

/// Returns whether a call may succeed on an endpoint in this state (uDAPL 1.2, the page of the call).
fn allowed(call: &str, state: EpState) -> bool {
    use EpState as S;
    match call {
        "dat_ep_connect" | "dat_ep_dup_connect" | "dat_rsp_create" => state == S::Unconnected,
        "batch"
        | "send immediate"
        | "send invalidate"
        | "fetch and add"
        | "dat_ep_post_send"
        | "dat_ep_post_rdma_write"
        | "dat_ep_post_rdma_read"
        | "dat_rmr_bind" => matches!(state, S::Connected | S::Disconnected),
        "dat_ep_modify" => matches!(
            state,
            S::Unconnected
                | S::Reserved
                | S::PassiveConnectionPending
                | S::TentativeConnectionPending
        ),
        "dat_ep_free" => !matches!(
            state,
            S::Reserved | S::PassiveConnectionPending | S::TentativeConnectionPending
        ),
        "dat_ep_reset" => matches!(state, S::Unconnected | S::Disconnected),
        "dat_ep_disconnect" => !matches!(
            state,
            S::Unconnected
                | S::Reserved
                | S::PassiveConnectionPending
                | S::TentativeConnectionPending
        ),
        "dat_cr_accept" => matches!(
            state,
            S::Unconnected | S::PassiveConnectionPending | S::TentativeConnectionPending
        ),
        "dat_ep_query"
        | "dat_ep_get_status"
        | "dat_ep_recv_query"
        | "dat_ep_set_watermark"
        | "dat_ep_post_recv" => true,
        _ => panic!("no rule for {call}"),
    }
}

/// Checks a call's result against the states of its endpoint before and after the call. `after` is `None` if the
/// endpoint does not exist any more. Returns the violation, if any.
pub fn judge(
    call: &str,
    before: EpState,
    after: Option<EpState>,
    error: Option<&DatError>,
) -> Result<(), String> {
    let Some(error) = error else {
        if !allowed(call, before) {
            return Err(format!("{call} succeeds in {before:?}"));
        }
        return if after.is_none() == (call == "dat_ep_free") {
            Ok(())
        } else {
            Err(format!(
                "{call} succeeds in {before:?} and leaves {after:?}"
            ))
        };
    };
    // If the device refused a step of the call, the endpoint may also be DISCONNECTED.
    let device = matches!(
        error.return_type(),
        ReturnType::InternalError | ReturnType::InsufficientResources | ReturnType::Abort
    );
    match after {
        Some(after) if after == before || may_have_become(before, after) => Ok(()),
        Some(EpState::Disconnected) if device => Ok(()),
        Some(_) | None => Err(format!(
            "{call} is refused ({error}) in {before:?} and leaves {after:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udapl::error::Subtype;

    #[test]
    fn a_refused_call_leaves_the_state_and_no_call_succeeds_in_a_wrong_one() {
        let refused = DatError::new(ReturnType::InvalidState, Subtype::None);
        let same = Some(EpState::Unconnected);
        let judged = |after, error| judge("dat_ep_post_send", EpState::Unconnected, after, error);
        assert!(judged(same, Some(&refused)).is_ok());
        assert!(judged(Some(EpState::Connected), Some(&refused)).is_err());
        assert!(judged(None, Some(&refused)).is_err());
        assert!(judged(same, None).is_err(), "nothing is sent unconnected");
        let wrong = judge("dat_ep_disconnect", EpState::Unconnected, same, None);
        assert!(wrong.is_err(), "there is no connection to end");
        let free = |after| judge("dat_ep_free", EpState::Connected, after, None);
        assert!(free(None).is_ok());
        assert!(free(Some(EpState::Disconnected)).is_err());
    }
}
