//! Service points and connection requests: PSPs, RSPs, CRs.

use udapl::connection::{CrHandle, PspHandle, RspHandle};
use udapl::endpoint::{EpChange, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::{
    ConnQual, ConnectionEventKind as Kind, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, PspFlags,
};

use crate::support::{self, A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

/// A qualifier at which only some tests listen.
const ELSEWHERE: ConnQual = ConnQual::service_id(CONN_QUAL.0 + 1);

fn unconnected() -> Pair {
    Pair::unconnected(&PairConfig::default())
}

impl Pair {
    /// Sends a request of A's endpoint to a qualifier of B, and waits for the request's event at B. Returns the handles
    /// of the request and of its PSP.
    #[track_caller]
    fn request_at(&mut self, conn_qual: ConnQual) -> (CrHandle, Option<PspHandle>) {
        let ep = self.sides[A].ep;
        self.start(A, ep, conn_qual, LONG, b"request")
            .expect("UNCONNECTED");
        let Event::ConnectionRequest(request) = self.wait_event(B, self.sides[B].cr) else {
            panic!("a connection request");
        };
        assert_eq!(request.conn_qual, conn_qual);
        (request.cr, request.psp)
    }

    /// Checks that B's provider rejects a request of A's endpoint to a qualifier, and resets the endpoint.
    #[track_caller]
    fn expect_rejected_at(&mut self, conn_qual: ConnQual) {
        let ep = self.sides[A].ep;
        self.start(A, ep, conn_qual, LONG, b"")
            .expect("UNCONNECTED");
        self.expect_end(A, Kind::NonPeerRejected);
        self.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    }

    /// Makes an RSP of B at a qualifier.
    fn rsp(&mut self, conn_qual: ConnQual, ep: Option<EpHandle>) -> RspHandle {
        let side = &mut self.sides[B];
        let rsp = side.ia.rsp_create(conn_qual, ep, side.cr);
        rsp.expect("an RSP")
    }

    /// Sets the missing attributes of an endpoint of B that the provider made.
    fn configure_ep(&mut self, ep: EpHandle) {
        let side = &mut self.sides[B];
        let change = EpChange {
            pz: Some(Some(side.pz)),
            recv_evd: Some(Some(side.recv)),
            request_evd: Some(Some(side.request)),
            connect_evd: Some(Some(side.connect)),
            ..EpChange::default()
        };
        side.ia.ep_modify(ep, &change).expect("TENTATIVE");
    }

    /// Checks that both ends get ESTABLISHED, and that B's endpoint then carries messages.
    #[track_caller]
    fn expect_connected(&mut self, b: EpHandle) {
        for (side, ep) in [(A, self.sides[A].ep), (B, b)] {
            let event = self.connection_event(side);
            assert_eq!((event.kind, event.ep), (Kind::Established, ep));
            assert_eq!(self.state_of(side, ep), EpState::Connected);
        }
        self.sides[B].ep = b;
        self.expect_alive();
    }
}

/// Clauses: PSPC-1, PSPC-2, PSPQ-1, CRQ-1, CRQ-2, CRR-1.
#[test]
fn a_psp_takes_request_after_request_and_none_brings_an_endpoint() {
    let mut pair = unconnected();
    let param = pair.sides[B].ia.psp_query(pair.psp).expect("exists");
    assert_eq!((param.conn_qual, param.evd), (CONN_QUAL, pair.sides[B].cr));
    assert_eq!(param.flags, PspFlags::CONSUMER);
    let ep = pair.sides[A].ep;
    for _ in 0..3 {
        let (cr, psp) = pair.request_at(CONN_QUAL);
        assert_eq!(psp, Some(pair.psp));
        let from = pair.sides[A].ia.ep_query(ep).expect("exists");
        let told = pair.sides[B].ia.cr_query(cr).expect("undecided");
        assert_eq!(told.remote_ia_address, from.local_ia_address);
        assert_eq!(told.remote_port_qual, from.local_port_qual);
        assert_eq!(
            (told.conn_qual, told.private_data),
            (CONN_QUAL, &b"request"[..])
        );
        assert_eq!(told.local_ep, None);
        pair.sides[B].ia.cr_reject(cr).expect("undecided");
        pair.expect_end(A, Kind::PeerRejected);
        pair.expect_nothing(B, pair.sides[B].connect);
        pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    }
    pair.assert_no_complaints();
}

/// A PSP with DAT_PSP_PROVIDER_FLAG gives an endpoint with each request. The consumer sets the endpoint's missing
/// attributes and accepts the request.
///
/// Clauses: PSPC-3, CRQ-2, CRA-1, CRA-2.
#[test]
fn a_psp_that_provides_lends_an_endpoint_that_is_furnished_and_accepted() {
    let mut pair = unconnected();
    let side = &mut pair.sides[B];
    let psp = side.ia.psp_create(ELSEWHERE, side.cr, PspFlags::PROVIDER);
    let psp = psp.expect("a PSP");
    let (cr, at) = pair.request_at(ELSEWHERE);
    assert_eq!(at, Some(psp));
    let ia = &mut pair.sides[B].ia;
    let told = ia.cr_query(cr).expect("undecided").local_ep;
    let ep = told.expect("an endpoint is lent");
    let param = ia.ep_query(ep).expect("the consumer's to configure");
    assert_eq!(param.state, EpState::TentativeConnectionPending);
    assert_eq!(
        (
            param.pz,
            param.recv_evd,
            param.request_evd,
            param.connect_evd
        ),
        (None, None, None, None)
    );
    // The numbers of RDMA Reads that A wants to issue to B, and accepts from B.
    assert_eq!(
        (param.attr.max_rdma_read_in, param.attr.max_rdma_read_out),
        (4, 4)
    );
    // The accept must not name an endpoint: neither another endpoint nor the endpoint that came with the request.
    for given in [pair.sides[B].ep, ep] {
        let error = refused(
            pair.sides[B].ia.cr_accept(cr, Some(given), b""),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleEp);
    }
    let error = refused(
        pair.sides[B].ia.cr_accept(cr, None, b""),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpNotReady);
    pair.configure_ep(ep);
    pair.sides[B].ia.cr_accept(cr, None, b"yes").expect("ready");
    assert_eq!(pair.state_of(B, ep), EpState::CompletionPending);
    let error = refused(pair.sides[B].ia.cr_query(cr), ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleCr);
    pair.expect_connected(ep);
    let a = &pair.sides[A];
    assert_eq!(a.ia.ep_private_data(a.ep).expect("exists"), b"yes");
    pair.assert_no_complaints();
}

/// An endpoint of the provider that came with a request is freed when the request is rejected.
///
/// Clauses: CRR-2, CRQ-3.
#[test]
fn an_endpoint_that_was_lent_is_gone_when_its_request_is_rejected() {
    let mut pair = unconnected();
    let side = &mut pair.sides[B];
    side.ia
        .psp_create(ELSEWHERE, side.cr, PspFlags::PROVIDER)
        .expect("a PSP");
    let (cr, _) = pair.request_at(ELSEWHERE);
    let ia = &mut pair.sides[B].ia;
    let lent = ia.cr_query(cr).expect("undecided").local_ep;
    let lent = lent.expect("an endpoint is lent");
    ia.cr_reject(cr).expect("undecided");
    let calls = [
        ia.cr_query(cr).err(),
        ia.cr_accept(cr, None, b"").err(),
        ia.cr_reject(cr).err(),
        ia.cr_handoff(cr, CONN_QUAL).err(),
    ];
    for error in calls {
        let error = error.expect("the request is over");
        assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidHandle, Subtype::HandleCr)
        );
    }
    refused(ia.ep_query(lent), ReturnType::InvalidHandle);
    pair.expect_end(A, Kind::PeerRejected);
    pair.assert_no_complaints();
}

/// Clauses: CRA-2, CRA-3, CRA-4.
#[test]
fn an_accept_that_is_refused_changes_nothing_on_either_side() {
    let mut pair = unconnected();
    let (cr, _) = pair.request_at(CONN_QUAL);
    let ep = pair.sides[B].ep;
    let (recv, request, connect) = {
        let side = &pair.sides[B];
        (side.recv, side.request, side.connect)
    };
    let ia = &mut pair.sides[B].ia;
    let without_zone = ia.ep_create(
        None,
        EpEvds::NONE.recv(recv).request(request).connect(connect),
        None,
    );
    let without_zone = without_zone.expect("an endpoint");
    let freed = ia.ep_create(None, EpEvds::NONE, None);
    let freed = freed.expect("an endpoint");
    ia.ep_free(freed).expect("UNCONNECTED");
    let refusals = [
        (None, 0, ReturnType::InvalidHandle, Subtype::HandleEp),
        (Some(freed), 0, ReturnType::InvalidHandle, Subtype::HandleEp),
        (
            Some(without_zone),
            0,
            ReturnType::InvalidState,
            Subtype::StateEpNotReady,
        ),
        (Some(ep), 65, ReturnType::InvalidParameter, Subtype::Arg3),
    ];
    for (given, bytes, kind, subtype) in refusals {
        let error = refused(ia.cr_accept(cr, given, &vec![7; bytes]), kind);
        assert_eq!(error.subtype(), subtype);
    }
    // Another service point has reserved the endpoint.
    pair.rsp(ELSEWHERE, Some(ep));
    let error = refused(
        pair.sides[B].ia.cr_accept(cr, Some(ep), b""),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpReserved);
    assert_eq!(pair.state(A), EpState::ActiveConnectionPending);
    assert_eq!(pair.state_of(B, without_zone), EpState::Unconnected);
    let fresh = pair.another_ep(B);
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(fresh), b"")
        .expect("the request is as it was");
    pair.expect_connected(fresh);
}

/// Clauses: PSPC-4, PSPC-5, PSPQ-2, RSPC-5.
#[test]
fn service_points_need_a_free_qualifier_and_an_evd_for_requests() {
    let mut pair = unconnected();
    let (cr, recv) = (pair.sides[B].cr, pair.sides[B].recv);
    let gone = pair.sides[B].ia.evd_create(4, EvdFlags::CR);
    let gone = gone.expect("an EVD");
    let foreign = pair.sides[A].cr;
    let ia = &mut pair.sides[B].ia;
    ia.evd_free(gone).expect("unused");
    for evd in [recv, gone, foreign] {
        let calls = [
            ia.psp_create(ELSEWHERE, evd, PspFlags::CONSUMER).err(),
            ia.psp_create_any(evd, PspFlags::CONSUMER).err(),
            ia.rsp_create(ELSEWHERE, None, evd).err(),
        ];
        for error in calls {
            let error = error.expect("no EVD for requests");
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidHandle, Subtype::HandleEvdCr)
            );
        }
    }
    let unknown = PspFlags::from_bits_retain(2);
    let calls = [
        (
            ia.psp_create(ConnQual(0), cr, PspFlags::CONSUMER).err(),
            Subtype::Arg2,
        ),
        (ia.psp_create(ELSEWHERE, cr, unknown).err(), Subtype::Arg4),
        (ia.psp_create_any(cr, unknown).err(), Subtype::Arg4),
        (ia.rsp_create(ConnQual(0), None, cr).err(), Subtype::Arg2),
    ];
    for (error, subtype) in calls {
        let error = error.expect("a bad parameter");
        assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidParameter, subtype)
        );
    }
    let rsp = ia.rsp_create(ELSEWHERE, None, cr).expect("an RSP");
    for qualifier in [CONN_QUAL, ELSEWHERE] {
        let psp = ia.psp_create(qualifier, cr, PspFlags::CONSUMER);
        refused(psp, ReturnType::ConnQualInUse);
        refused(
            ia.rsp_create(qualifier, None, cr),
            ReturnType::ConnQualInUse,
        );
    }
    ia.rsp_free(rsp).expect("exists");
    let psp = ia.psp_create(ELSEWHERE, cr, PspFlags::CONSUMER);
    let psp = psp.expect("free again");
    ia.psp_free(psp).expect("exists");
    for error in [ia.psp_free(psp).err(), ia.psp_query(psp).err()] {
        let error = error.expect("no such PSP");
        assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidHandle, Subtype::HandlePsp)
        );
    }
}

/// Clauses: PSPA-1, PSPA-2.
#[test]
fn any_free_qualifier_is_found_until_there_is_none() {
    let mut pair = unconnected();
    let cr = pair.sides[B].cr;
    let ia = &mut pair.sides[B].ia;
    let (first, psp) = ia.psp_create_any(cr, PspFlags::CONSUMER).expect("one");
    let (second, _) = ia.psp_create_any(cr, PspFlags::CONSUMER).expect("one");
    assert_ne!(first, second);
    assert_eq!(ia.psp_query(psp).expect("exists").conn_qual, first);
    let (request, _) = pair.request_at(second);
    let b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(request, Some(b), b"")
        .expect("accepted");
    pair.expect_connected(b);
    // The provider gives out consecutive qualifiers.
    let ia = &mut pair.sides[B].ia;
    let mut next = second.0 + 1;
    while ia
        .psp_create(ConnQual(next), cr, PspFlags::CONSUMER)
        .is_ok()
        && next < first.0 + 65_535
    {
        next += 1;
    }
    refused(
        ia.psp_create_any(cr, PspFlags::CONSUMER),
        ReturnType::ConnQualUnavailable,
    );
    ia.psp_free(psp).expect("exists");
    let (again, _) = ia.psp_create_any(cr, PspFlags::CONSUMER).expect("one");
    assert_eq!(again, first);
}

/// After a PSP was freed, the consumer can still accept its requests, with the endpoints that came with them.
///
/// Clauses: PSPF-1, PSPF-2.
#[test]
fn a_freed_psp_leaves_its_requests_and_their_endpoints_to_the_consumer() {
    let mut pair = unconnected();
    let side = &mut pair.sides[B];
    let psp = side.ia.psp_create(ELSEWHERE, side.cr, PspFlags::PROVIDER);
    let psp = psp.expect("a PSP");
    let (cr, _) = pair.request_at(ELSEWHERE);
    pair.sides[B].ia.psp_free(psp).expect("exists");
    let lent = pair.sides[B].ia.cr_query(cr).expect("undecided").local_ep;
    let lent = lent.expect("an endpoint is lent");
    pair.configure_ep(lent);
    pair.sides[B].ia.cr_accept(cr, None, b"").expect("ready");
    pair.expect_connected(lent);
    pair.disconnect();
    let a = pair.sides[A].ep;
    pair.sides[A].ia.ep_reset(a).expect("DISCONNECTED");
    pair.expect_rejected_at(ELSEWHERE);
}

/// An RSP takes one request for its endpoint. Later requests are rejected.
///
/// Clauses: RSPC-1, RSPC-2, RSPC-6, RSPQ-1.
#[test]
fn an_rsp_takes_one_request_for_its_endpoint_and_is_spent() {
    let mut pair = unconnected();
    let ep = pair.another_ep(B);
    let rsp = pair.rsp(ELSEWHERE, Some(ep));
    assert_eq!(pair.state_of(B, ep), EpState::Reserved);
    let param = pair.sides[B].ia.rsp_query(rsp).expect("exists");
    assert_eq!((param.conn_qual, param.ep), (ELSEWHERE, Some(ep)));
    assert_eq!(param.evd, pair.sides[B].cr);
    let (cr, sp) = pair.request_at(ELSEWHERE);
    assert_eq!(sp, None, "the RSP is spent");
    assert_eq!(pair.state_of(B, ep), EpState::PassiveConnectionPending);
    let ia = &mut pair.sides[B].ia;
    assert_eq!(ia.cr_query(cr).expect("undecided").local_ep, Some(ep));
    let other = pair.sides[B].ep;
    refused(
        pair.sides[B].ia.cr_accept(cr, Some(other), b""),
        ReturnType::InvalidHandle,
    );
    // A second request is refused.
    let first = pair.sides[A].ep;
    pair.sides[A].ep = pair.another_ep(A);
    pair.expect_rejected_at(ELSEWHERE);
    pair.sides[A].ep = first;
    pair.sides[B].ia.cr_accept(cr, None, b"").expect("PASSIVE");
    pair.expect_connected(ep);
    pair.sides[B].ia.rsp_free(rsp).expect("spent");
    let error = refused(pair.sides[B].ia.rsp_free(rsp), ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleRsp);
    refused(pair.sides[B].ia.rsp_query(rsp), ReturnType::InvalidHandle);
}

/// After its request has come, an RSP that is not freed leaves its qualifier free for another RSP, and does not prevent
/// a graceful close of the adapter.
///
/// Clauses: RSPC-6.
#[test]
fn a_spent_rsp_keeps_neither_its_qualifier_nor_its_adapter() {
    let mut pair = unconnected();
    pair.rsp(ELSEWHERE, None);
    let (cr, _) = pair.request_at(ELSEWHERE);
    pair.sides[B].ia.cr_reject(cr).expect("undecided");
    let again = pair.rsp(ELSEWHERE, None);
    let [_, b] = pair.sides;
    let mut ia = b.ia;
    ia.ep_free(b.ep).expect("UNCONNECTED");
    ia.psp_free(pair.psp).expect("exists");
    ia.rsp_free(again).expect("exists");
    for evd in [b.recv, b.request, b.connect, b.cr] {
        ia.evd_free(evd).expect("nothing feeds it");
    }
    ia.pz_free(b.pz).expect("empty");
    // The first RSP was never freed.
    udapl::ia_close(ia, udapl::CloseFlags::Graceful).expect("nothing is left");
}

/// A request to an RSP without an endpoint brings an endpoint of the provider.
///
/// Clauses: RSPC-3.
#[test]
fn an_rsp_without_an_endpoint_has_one_lent() {
    let mut pair = unconnected();
    let rsp = pair.rsp(ELSEWHERE, None);
    assert_eq!(pair.sides[B].ia.rsp_query(rsp).expect("exists").ep, None);
    let (cr, _) = pair.request_at(ELSEWHERE);
    let lent = pair.sides[B].ia.cr_query(cr).expect("undecided").local_ep;
    let lent = lent.expect("an endpoint is lent");
    assert_eq!(pair.state_of(B, lent), EpState::TentativeConnectionPending);
    pair.configure_ep(lent);
    pair.sides[B].ia.cr_accept(cr, None, b"").expect("ready");
    pair.expect_connected(lent);
}

/// Clauses: RSPC-4, RSPC-5.
#[test]
fn an_rsp_is_made_for_an_unconnected_endpoint_only() {
    let mut pair = Pair::connected();
    let (cr, connected) = (pair.sides[B].cr, pair.sides[B].ep);
    let ia = &mut pair.sides[B].ia;
    let error = refused(
        ia.rsp_create(ELSEWHERE, Some(connected), cr),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpConnected);
    let idle = pair.another_ep(B);
    pair.rsp(ELSEWHERE, Some(idle));
    let ia = &mut pair.sides[B].ia;
    let error = refused(
        ia.rsp_create(support::beside(2), Some(idle), cr),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpReserved);
    let foreign = pair.sides[A].ep;
    let error = refused(
        pair.sides[B]
            .ia
            .rsp_create(support::beside(2), Some(foreign), cr),
        ReturnType::InvalidHandle,
    );
    assert_eq!(error.subtype(), Subtype::HandleEp);
    // A refused call has reserved nothing: the qualifier is free.
    pair.rsp(support::beside(2), None);
}

/// Freeing an RSP makes its endpoint UNCONNECTED again, unless a request has come for the endpoint.
///
/// Clauses: RSPF-1, RSPF-2, CRR-2.
#[test]
fn freeing_an_rsp_gives_its_endpoint_back_unless_a_request_has_it() {
    let mut pair = unconnected();
    let ep = pair.sides[B].ep;
    let rsp = pair.rsp(ELSEWHERE, Some(ep));
    pair.sides[B].ia.rsp_free(rsp).expect("exists");
    assert_eq!(pair.state(B), EpState::Unconnected);
    pair.expect_rejected_at(ELSEWHERE);
    let rsp = pair.rsp(ELSEWHERE, Some(ep));
    let (cr, _) = pair.request_at(ELSEWHERE);
    pair.sides[B].ia.rsp_free(rsp).expect("spent");
    assert_eq!(pair.state(B), EpState::PassiveConnectionPending);
    pair.sides[B].ia.cr_reject(cr).expect("undecided still");
    assert_eq!(pair.state(B), EpState::Unconnected);
    pair.expect_end(A, Kind::PeerRejected);
    let a = pair.sides[A].ep;
    pair.sides[A].ia.ep_reset(a).expect("DISCONNECTED");
    pair.connect();
    pair.expect_alive();
}

/// A request that is handed off arrives at the other service point, and the peer does not notice the handoff.
///
/// Clauses: CRH-1.
#[test]
fn a_request_that_is_handed_off_arrives_elsewhere_and_the_peer_does_not_notice() {
    let mut pair = unconnected();
    let other = pair.sides[B].ia.evd_create(4, EvdFlags::CR);
    let other: EvdHandle = other.expect("an EVD");
    let ia = &mut pair.sides[B].ia;
    let second = ia.psp_create(ELSEWHERE, other, PspFlags::CONSUMER);
    let second = second.expect("a PSP");
    let (cr, _) = pair.request_at(CONN_QUAL);
    pair.sides[B]
        .ia
        .cr_handoff(cr, ELSEWHERE)
        .expect("somebody listens there");
    refused(pair.sides[B].ia.cr_query(cr), ReturnType::InvalidHandle);
    let Event::ConnectionRequest(request) = pair.wait_event(B, other) else {
        panic!("a connection request");
    };
    assert_eq!((request.psp, request.conn_qual), (Some(second), ELSEWHERE));
    let told = pair.sides[B].ia.cr_query(request.cr).expect("undecided");
    assert_eq!(told.private_data, b"request");
    assert_eq!(pair.state(A), EpState::ActiveConnectionPending);
    let b = pair.sides[B].ep;
    let accepted = pair.sides[B].ia.cr_accept(request.cr, Some(b), b"hello");
    accepted.expect("UNCONNECTED");
    pair.expect_connected(b);
    pair.assert_no_complaints();
}

/// After a handoff, the endpoint that the first service point gave to the request is as after a rejection.
///
/// Clauses: CRH-2, CRH-3.
#[test]
fn a_handoff_gives_the_endpoint_of_the_first_service_point_back() {
    let mut pair = unconnected();
    let ep = pair.sides[B].ep;
    pair.rsp(ELSEWHERE, Some(ep));
    let (cr, _) = pair.request_at(ELSEWHERE);
    // No service listens at these qualifiers: the RSP at `ELSEWHERE` is spent.
    for qualifier in [ELSEWHERE, support::beside(8), ConnQual(0)] {
        let error = refused(
            pair.sides[B].ia.cr_handoff(cr, qualifier),
            ReturnType::InvalidParameter,
        );
        assert_eq!(error.subtype(), Subtype::Arg2);
        pair.sides[B].ia.cr_query(cr).expect("undecided still");
        assert_eq!(pair.state(B), EpState::PassiveConnectionPending);
    }
    let side = &mut pair.sides[B];
    side.ia
        .psp_create(ELSEWHERE, side.cr, PspFlags::PROVIDER)
        .expect("a PSP");
    side.ia.cr_handoff(cr, ELSEWHERE).expect("it listens now");
    assert_eq!(pair.state(B), EpState::Unconnected);
    let cr = pair.request(B);
    let lent = pair.sides[B].ia.cr_query(cr).expect("undecided").local_ep;
    let lent = lent.expect("an endpoint is lent");
    pair.sides[B]
        .ia
        .cr_handoff(cr, CONN_QUAL)
        .expect("somebody listens there");
    refused(pair.sides[B].ia.ep_query(lent), ReturnType::InvalidHandle);
    let cr = pair.request(B);
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(ep), b"")
        .expect("UNCONNECTED");
    pair.expect_connected(ep);
}
