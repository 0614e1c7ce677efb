//! Connecting again to the peer of another endpoint: `ep_dup_connect`.

use std::net::{IpAddr, Ipv6Addr};

use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, DatResult, EpEvds, EpHandle, PspFlags,
    Qos, Timeout,
};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

impl Pair {
    fn dup(&mut self, side: usize, ep: EpHandle, like: EpHandle) -> DatResult<()> {
        self.sides[side]
            .ia
            .ep_dup_connect(ep, like, LONG, b"again", Qos::BEST_EFFORT)
    }
}

/// A duplicate connects to the address and qualifier that the first endpoint connected to.
///
/// Clauses: DUP-1, DUP-2, DUP-3, DUP-4.
#[test]
fn a_duplicate_arrives_where_the_first_one_did() {
    let mut pair = Pair::connected();
    let first = pair.sides[A].ep;
    let (a, b) = (pair.another_ep(A), pair.another_ep(B));
    pair.dup(A, a, first).expect("started");
    assert_eq!(pair.state_of(A, a), EpState::ActiveConnectionPending);
    let cr = pair.request(B);
    let ia = &mut pair.sides[B].ia;
    assert_eq!(ia.cr_query(cr).expect("undecided").private_data, b"again");
    ia.cr_accept(cr, Some(b), b"welcome").expect("accepted");
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    assert_eq!(pair.state_of(A, a), EpState::Connected);
    let ia = &pair.sides[A].ia;
    assert_eq!(ia.ep_private_data(a).expect("connected"), b"welcome");
    let (one, two) = (
        ia.ep_query(first).expect("exists"),
        ia.ep_query(a).expect("exists"),
    );
    assert_eq!(
        (one.remote_ia_address, one.remote_port_qual),
        (two.remote_ia_address, two.remote_port_qual)
    );
    // `ep_dup_connect` also accepts an endpoint that is itself a duplicate.
    let third = pair.another_ep(A);
    pair.dup(A, third, a).expect("started");
    let cr = pair.request(B);
    pair.sides[B].ia.cr_reject(cr).expect("rejected");
    pair.expect_connection(A, ConnectionEventKind::PeerRejected);
    assert_eq!(pair.state_of(A, third), EpState::Disconnected);
    pair.assert_no_complaints();
}

/// A duplicate of an endpoint that was the passive side is refused by the peer's provider: no service listens at the
/// qualifier.
///
/// Clauses: DUP-5.
#[test]
fn a_duplicate_of_a_passive_end_finds_nobody() {
    let mut pair = Pair::connected();
    let (first, ep) = (pair.sides[B].ep, pair.another_ep(B));
    pair.dup(B, ep, first).expect("started");
    pair.expect_connection(B, ConnectionEventKind::NonPeerRejected);
    assert_eq!(pair.state_of(B, ep), EpState::Disconnected);
    assert_eq!(pair.state(B), EpState::Connected);
}

/// A duplicate has the source address of the present connection, not of an earlier one.
#[test]
fn a_duplicate_leaves_from_the_address_of_the_present_connection() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    let gid = pair.sides[B].ia.provider().hca().gids()[0].gid;
    let link_local = IpAddr::V6(Ipv6Addr::from(gid));
    let none = ConnectFlags::empty();
    pair.sides[A]
        .ia
        .ep_connect(a, link_local, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none)
        .expect("starts");
    let cr = pair.request(B);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    pair.disconnect();
    for (side, ep) in [(A, a), (B, b)] {
        pair.sides[side].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    // Now A is the passive side, over IPv4.
    let (qualifier, evd) = (ConnQual(7200), pair.sides[A].cr);
    let psp = pair.sides[A]
        .ia
        .psp_create(qualifier, evd, PspFlags::CONSUMER);
    psp.expect("a PSP");
    pair.start(B, b, qualifier, LONG, b"").expect("starts");
    let cr = pair.request(A);
    let accepted = pair.sides[A].ia.cr_accept(cr, Some(a), b"");
    accepted.expect("accepted");
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    let third = pair.another_ep(A);
    pair.dup(A, third, a).expect("started");
    let local = |ep| {
        let param = pair.sides[A].ia.ep_query(ep).expect("exists");
        param.local_ia_address
    };
    assert_eq!(local(third), local(a));
}

/// Clauses: DUP-6, DUP-7, DUP-8, DUP-9.
#[test]
fn a_duplicate_needs_an_idle_endpoint_and_a_connected_one() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (idle, other) = (pair.another_ep(A), pair.sides[A].ep);
    let state = |result: DatResult<()>, state: EpState| {
        let error = refused(result, ReturnType::InvalidState);
        assert_eq!(error.subtype(), state.subtype());
    };
    state(pair.dup(A, idle, other), EpState::Unconnected);
    pair.start_usual();
    state(pair.dup(A, idle, other), EpState::ActiveConnectionPending);
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    pair.expect_connection(A, ConnectionEventKind::Established);
    state(pair.dup(A, other, other), EpState::Connected);
    let ia = &mut pair.sides[A].ia;
    let long = [0; 65];
    for (timeout, data, subtype) in [
        (Timeout::ZERO, &b""[..], Subtype::Arg3),
        (LONG, &long, Subtype::Arg4),
    ] {
        let started = ia.ep_dup_connect(idle, other, timeout, data, Qos::BEST_EFFORT);
        let error = refused(started, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), subtype);
    }
    let started = ia.ep_dup_connect(idle, other, LONG, b"", Qos::from_bits_retain(0x10));
    refused(started, ReturnType::ModelNotSupported);
    let (recv, connect) = (pair.sides[A].recv, pair.sides[A].connect);
    let ia = &mut pair.sides[A].ia;
    let bare = ia.ep_create(None, EpEvds::NONE.recv(recv).connect(connect), None);
    let bare = bare.expect("an endpoint without a PZ");
    let error = refused(pair.dup(A, bare, other), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpNotReady);
    for (ep, like) in [(b, other), (idle, b)] {
        let error = refused(pair.dup(A, ep, like), ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandleEp);
    }
    let ia = &mut pair.sides[A].ia;
    ia.ep_disconnect(other, CloseFlags::Abrupt).expect("ended");
    state(pair.dup(A, idle, other), EpState::Disconnected);
    assert_eq!(pair.state_of(A, idle), EpState::Unconnected);
}
