//! The states of an endpoint in which each call is legal, and the resulting states.

use udapl::connection::CrHandle;
use udapl::endpoint::{EpChange, EpState};
use udapl::error::ReturnType;
use udapl::{CloseFlags, DatResult, EpHandle, PspFlags};

use crate::support::connecting::EMPTY;
use crate::support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

/// Puts the endpoint of one side into the given state. Returns the pair, this side, and an undecided connection request
/// of this side.
fn endpoint_in(state: EpState) -> (Pair, usize, CrHandle) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[A].cr;
    pair.sides[A]
        .ia
        .psp_create(CONN_QUAL, evd, PspFlags::CONSUMER)
        .expect("a PSP");
    let side = usize::from(state == EpState::CompletionPending);
    let other = pair.another_ep(1 - side);
    pair.start(1 - side, other, CONN_QUAL, LONG, b"another")
        .expect("starts");
    let undecided = pair.request(side);
    match state {
        EpState::Unconnected => {}
        EpState::ActiveConnectionPending => pair.start_usual(),
        EpState::CompletionPending => {
            pair.start_usual();
            let (cr, b) = (pair.request(B), pair.sides[B].ep);
            // A's software does not run, so the handshake stays incomplete.
            pair.sides[B]
                .ia
                .cr_accept(cr, Some(b), b"")
                .expect("accepted");
        }
        EpState::Connected => pair.connect(),
        EpState::DisconnectPending => {
            pair.connect();
            pair.cut();
            pair.post_send(A, EMPTY, 0, NONE).expect("posted");
            let a = pair.sides[A].ep;
            pair.sides[A]
                .ia
                .ep_disconnect(a, CloseFlags::Graceful)
                .expect("CONNECTED");
        }
        EpState::Disconnected => {
            pair.connect();
            pair.disconnect();
        }
        EpState::Reserved
        | EpState::PassiveConnectionPending
        | EpState::TentativeConnectionPending => {
            panic!("{state:?} is reached otherwise")
        }
    }
    assert_eq!(pair.state(side), state);
    (pair, side, undecided)
}

/// A call on a side's endpoint. The call may accept the connection request.
type Call = fn(&mut Pair, usize, EpHandle, CrHandle) -> DatResult<()>;

/// Clauses: SEND-26, SEND-27, SEND-29, RECV-26, CONN-9, DISC-5, EPR-3, EPM-5, EPS-1.
#[test]
fn every_call_is_legal_in_the_states_of_the_table_and_in_no_other() {
    use EpState as S;
    let states = [
        S::Unconnected,
        S::ActiveConnectionPending,
        S::CompletionPending,
        S::Connected,
        S::DisconnectPending,
        S::Disconnected,
    ];
    // The state to which each call leads, in the order of `states`. `None`: the call returns DAT_INVALID_STATE with the
    // subtype of the state.
    let calls: [(&str, Call, [Option<EpState>; 6]); 8] = [
        (
            "connect",
            |pair, side, ep, _| pair.start(side, ep, CONN_QUAL, LONG, b""),
            [
                Some(S::ActiveConnectionPending),
                None,
                None,
                None,
                None,
                None,
            ],
        ),
        (
            "accept",
            |pair, side, ep, cr| pair.sides[side].ia.cr_accept(cr, Some(ep), b""),
            [Some(S::CompletionPending), None, None, None, None, None],
        ),
        (
            "abrupt disconnect",
            |pair, side, ep, _| pair.sides[side].ia.ep_disconnect(ep, CloseFlags::Abrupt),
            [
                None,
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::Disconnected),
            ],
        ),
        (
            "graceful disconnect",
            |pair, side, ep, _| {
                if pair.state(side) == S::Connected {
                    pair.cut();
                    pair.post_send(side, EMPTY, 0, NONE)?;
                }
                pair.sides[side].ia.ep_disconnect(ep, CloseFlags::Graceful)
            },
            [
                None,
                Some(S::Disconnected),
                Some(S::Disconnected),
                Some(S::DisconnectPending),
                Some(S::DisconnectPending),
                Some(S::Disconnected),
            ],
        ),
        (
            "reset",
            |pair, side, ep, _| pair.sides[side].ia.ep_reset(ep),
            [
                Some(S::Unconnected),
                None,
                None,
                None,
                None,
                Some(S::Unconnected),
            ],
        ),
        (
            "post_send",
            |pair, side, _, _| pair.post_send(side, EMPTY, 1, NONE),
            [
                None,
                None,
                None,
                Some(S::Connected),
                None,
                Some(S::Disconnected),
            ],
        ),
        (
            "post_recv",
            |pair, side, _, _| pair.post_recv(side, EMPTY, 1, NONE),
            states.map(Some),
        ),
        (
            "modify",
            |pair, side, ep, _| {
                let mut attr = pair.sides[side].ia.ep_query(ep)?.attr;
                attr.max_recv_dtos += 1;
                pair.sides[side].ia.ep_modify(
                    ep,
                    &EpChange {
                        attr: Some(attr),
                        ..EpChange::default()
                    },
                )
            },
            [Some(S::Unconnected), None, None, None, None, None],
        ),
    ];
    for (name, call, leads_to) in calls {
        for (state, expected) in states.into_iter().zip(leads_to) {
            let (mut pair, side, cr) = endpoint_in(state);
            let ep = pair.sides[side].ep;
            let result = call(&mut pair, side, ep, cr);
            match expected {
                Some(next) => {
                    result.unwrap_or_else(|error| panic!("{name} in {state:?}: {error}"));
                    assert_eq!(pair.state(side), next, "{name} in {state:?}");
                }
                None => {
                    let error = refused(result, ReturnType::InvalidState);
                    assert_eq!(error.subtype(), state.subtype(), "{name} in {state:?}");
                    assert_eq!(pair.state(side), state, "{name} in {state:?}");
                    pair.sides[side].ia.cr_query(cr).expect("undecided still");
                }
            }
            // The queries and `ep_free` are legal in all these states.
            pair.sides[side]
                .ia
                .ep_query(ep)
                .expect("legal in every state");
            pair.sides[side]
                .ia
                .ep_get_status(ep)
                .expect("legal in every state");
            pair.sides[side]
                .ia
                .ep_free(ep)
                .expect("legal in every state it can be in here");
            pair.assert_no_complaints();
        }
    }
}
