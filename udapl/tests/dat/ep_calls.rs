//! Creation, query, disconnect, reset and free of endpoints; creation, query and free of PZs.

use mlx_prm::Opcode;
use udapl::endpoint::{EpAttr, EpParam, EpState, EpTransport};
use udapl::error::{ReturnType, Subtype};
use udapl::memory::PzHandle;
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, EpHandle,
    EvdFlags, Event, PspFlags, Qos,
};

use crate::support::connecting::EMPTY;
use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

/// Clauses: EPC-1, EPC-2, EPC-8, EPQ-1.
#[test]
fn an_endpoint_is_what_was_asked_for_or_what_the_provider_chooses() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[A];
    let asked = EpAttr {
        max_message_size: 12_345,
        max_rdma_size: 54_321,
        recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
        max_recv_dtos: 7,
        max_request_dtos: 9,
        max_rdma_read_iov: 2,
        max_rdma_write_iov: 3,
        ..attributes(&side.ia)
    };
    let provider = EpAttr::defaults(side.ia.query().ia);
    let (pz, recv, request, connect) = (side.pz, side.recv, side.request, side.connect);
    for (attr, expected) in [(Some(&asked), asked), (None, provider)] {
        let ia = &mut side.ia;
        let ep = ia.ep_create(
            Some(pz),
            EpEvds::NONE.recv(recv).request(request).connect(connect),
            attr,
        );
        let ep = ep.expect("an endpoint");
        assert_eq!(
            ia.ep_query(ep),
            Ok(EpParam {
                state: EpState::Unconnected,
                local_ia_address: ia.query().ia.ia_address,
                local_port_qual: 0,
                remote_ia_address: None,
                remote_port_qual: 0,
                pz: Some(pz),
                recv_evd: Some(recv),
                request_evd: Some(request),
                connect_evd: Some(connect),
                srq: None,
                attr: expected,
                transport: EpTransport::default(),
            })
        );
    }
    let costly = EpAttr {
        qos: Qos::from_bits_retain(0x10),
        ..asked
    };
    let made = side.ia.ep_create(Some(pz), EpEvds::NONE, Some(&costly));
    refused(made, ReturnType::ModelNotSupported);
}

/// An endpoint whose creation the device refuses leaves no object behind.
///
/// Clauses: EPC-7.
#[test]
fn an_endpoint_the_device_refuses_leaves_nothing_behind() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.refuse_next(A, Opcode::CREATE_QP);
    let ia = &mut pair.sides[A].ia;
    let pz = ia.pz_create().expect("a PZ");
    let evd = ia.evd_create(8, EvdFlags::DTO).expect("an EVD");
    let made = ia.ep_create(Some(pz), EpEvds::dto(evd), None);
    refused(made, ReturnType::InsufficientResources);
    ia.evd_free(evd).expect("nothing feeds it");
    ia.pz_free(pz).expect("nothing is in it");
}

/// An SRQ cannot be freed before its endpoints.
///
/// Clauses: EPCS-1, EPCS-3, EPC-4.
#[test]
fn an_srq_is_its_endpoints_until_they_are_freed() {
    let config = PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    };
    let mut pair = Pair::connected_with(&config);
    let (srq, ep) = (pair.srq.expect("an SRQ"), pair.sides[B].ep);
    let in_use = |pair: &mut Pair| {
        let error = refused(pair.sides[B].ia.srq_free(srq), ReturnType::InvalidState);
        assert_eq!(error.subtype(), Subtype::StateSrqInUse);
    };
    pair.disconnect();
    in_use(&mut pair);
    pair.sides[B].ia.ep_reset(ep).expect("DISCONNECTED");
    in_use(&mut pair);
    assert_eq!(
        pair.sides[B].ia.ep_query(ep).expect("exists").srq,
        Some(srq)
    );
    // An endpoint with an SRQ ignores the attributes of its own receive queue.
    let (pz, evd) = (pair.sides[B].pz, Some(pair.sides[B].recv));
    let ia = &mut pair.sides[B].ia;
    let odd = EpAttr {
        max_recv_dtos: u32::MAX,
        max_recv_iov: u32::MAX,
        ..attributes(ia)
    };
    let other = ia.ep_create_with_srq(
        Some(pz),
        EpEvds {
            recv: evd,
            request: evd,
            connect: None,
        },
        srq,
        &odd,
    );
    let other = other.expect("an endpoint");
    assert_eq!(ia.ep_query(other).expect("exists").attr, odd);
    for ep in [ep, other] {
        ia.ep_free(ep).expect("freed");
    }
    ia.srq_free(srq).expect("nobody uses it");
    let made = ia.ep_create_with_srq(
        Some(pz),
        EpEvds {
            recv: evd,
            request: evd,
            connect: None,
        },
        srq,
        &odd,
    );
    let error = refused(made, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleSrq);
}

/// `ep_query` returns the peer's address and port qualifier from the connection attempt on. After the end of the
/// connection and a reset it returns neither.
///
/// Clauses: EPQ-2.
#[test]
fn the_peer_is_told_from_the_attempt_to_the_end() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let peer = pair.sides[B].ia.query().ia.ia_address;
    let told = |pair: &Pair| {
        let side = &pair.sides[A];
        let param = side.ia.ep_query(side.ep).expect("exists");
        (param.remote_ia_address, param.remote_port_qual)
    };
    assert_eq!(told(&pair), (None, 0));
    pair.start_usual();
    assert_eq!(told(&pair), (Some(peer), CONN_QUAL.0));
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    let passive = pair.sides[B].ia.ep_query(b).expect("exists");
    let active = pair.sides[A].ia.query().ia.ia_address;
    assert_eq!(passive.remote_ia_address, Some(active));
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    assert_eq!(told(&pair), (Some(peer), CONN_QUAL.0));
    let ep = pair.sides[A].ep;
    pair.disconnect();
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    assert_eq!(told(&pair), (None, 0));
}

/// Clauses: EPS-2, EPS-3.
#[test]
fn queues_are_idle_when_nothing_is_in_them() {
    let mut pair = Pair::connected();
    pair.set_delay(1_000);
    let idle = |pair: &Pair, side: usize| {
        let side = &pair.sides[side];
        let status = side.ia.ep_get_status(side.ep).expect("exists");
        (status.recv_idle, status.request_idle)
    };
    assert_eq!(
        (idle(&pair, A), idle(&pair, B)),
        ((true, true), (true, true))
    );
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    assert_eq!(
        (idle(&pair, A), idle(&pair, B)),
        ((true, false), (false, true))
    );
    pair.expect_recv(B, 1, DtoStatus::Success);
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(
        (idle(&pair, A), idle(&pair, B)),
        ((true, true), (true, true))
    );
}

/// An aborted connection attempt is reported by one event, and flushes its receives.
///
/// Clauses: DISC-4.
#[test]
fn an_aborted_attempt_is_told_of_once_and_its_receives_are_flushed() {
    for flags in [CloseFlags::Abrupt, CloseFlags::Graceful] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        pair.post_recv(A, EMPTY, 1, NONE).expect("posted");
        pair.start_usual();
        let ep = pair.sides[A].ep;
        pair.sides[A].ia.ep_disconnect(ep, flags).expect("aborted");
        assert_eq!(pair.state(A), EpState::Disconnected);
        pair.expect_connection(A, ConnectionEventKind::Disconnected);
        pair.expect_nothing(A, pair.sides[A].connect);
        pair.expect_recv(A, 1, DtoStatus::ErrFlushed);
    }
}

/// Returns a pair with an endpoint of B in the state RESERVED, PASSIVE_CONNECTION_PENDING or
/// TENTATIVE_CONNECTION_PENDING.
fn waiting(state: EpState) -> (Pair, EpHandle) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let own = pair.sides[B].ep;
    let ia = &mut pair.sides[B].ia;
    let evd = ia.evd_create(16, EvdFlags::CR).expect("an EVD");
    let qualifier = support::beside(1);
    if state == EpState::TentativeConnectionPending {
        let psp = ia.psp_create(qualifier, evd, PspFlags::PROVIDER);
        psp.expect("a PSP");
    } else {
        let rsp = ia.rsp_create(qualifier, Some(own), evd);
        rsp.expect("an RSP");
    }
    if state == EpState::Reserved {
        return (pair, own);
    }
    let a = pair.sides[A].ep;
    pair.start(A, a, qualifier, LONG, b"").expect("starts");
    pair.sides[B].cr = evd;
    let cr = pair.request(B);
    let param = pair.sides[B].ia.cr_query(cr).expect("undecided");
    let ep = param.local_ep.expect("an endpoint comes with it");
    (pair, ep)
}

/// Clauses: DISC-6, EPR-3, EPF-2, CONN-9.
#[test]
fn an_endpoint_that_waits_for_a_decision_is_not_disconnected_reset_or_freed() {
    for state in [
        EpState::Reserved,
        EpState::PassiveConnectionPending,
        EpState::TentativeConnectionPending,
    ] {
        let (mut pair, ep) = waiting(state);
        assert_eq!(pair.state_of(B, ep), state);
        let connected = pair.start(B, ep, CONN_QUAL, LONG, b"");
        let ia = &mut pair.sides[B].ia;
        let calls = [
            ia.ep_disconnect(ep, CloseFlags::Abrupt),
            ia.ep_disconnect(ep, CloseFlags::Graceful),
            ia.ep_reset(ep),
            ia.ep_free(ep),
            ia.ep_post_send(ep, EMPTY, DtoCookie(1), NONE),
            connected,
        ];
        for call in calls {
            let error = refused(call, ReturnType::InvalidState);
            assert_eq!(error.subtype(), state.subtype(), "{state:?}");
        }
        ia.ep_recv_query(ep).expect("legal in every state");
        ia.ep_set_watermark(ep, Some(1), None)
            .expect("legal in every state");
        assert_eq!(pair.state_of(B, ep), state);
    }
    let mut pair = Pair::unconnected(&PairConfig::default());
    let ep = pair.sides[A].ep;
    for flags in [CloseFlags::Abrupt, CloseFlags::Graceful] {
        let ended = pair.sides[A].ia.ep_disconnect(ep, flags);
        let error = refused(ended, ReturnType::InvalidState);
        assert_eq!(error.subtype(), Subtype::StateEpUnconnected);
    }
}

/// On one EVD, completions of successful DTOs precede the event of the connection's end.
///
/// Clauses: DISC-7.
#[test]
fn what_succeeded_comes_before_the_end_on_one_evd() {
    let mut pair = Pair::connected();
    let flags = EvdFlags::DTO | EvdFlags::CONNECTION;
    let (pz, attr) = (pair.sides[A].pz, attributes(&pair.sides[A].ia));
    let ia = &mut pair.sides[A].ia;
    let evd = ia.evd_create(64, flags).expect("an EVD");
    let a = ia.ep_create(Some(pz), EpEvds::all(evd), Some(&attr));
    let (a, b) = (a.expect("an endpoint"), pair.another_ep(B));
    pair.start(A, a, CONN_QUAL, LONG, b"").expect("starts");
    let cr = pair.request(B);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    pair.expect_connection(B, ConnectionEventKind::Established);
    let event = pair.wait_event(A, evd);
    assert!(matches!(event, Event::Connection(it) if it.kind == ConnectionEventKind::Established));
    for cookie in 0..5 {
        let posted = pair.sides[B]
            .ia
            .ep_post_recv(b, EMPTY, DtoCookie(cookie), NONE);
        posted.expect("posted");
        let posted = pair.sides[A]
            .ia
            .ep_post_send(a, EMPTY, DtoCookie(cookie), NONE);
        posted.expect("posted");
    }
    for _ in 0..5 {
        assert_eq!(pair.wait_recv(B).status, DtoStatus::Success);
    }
    let ended = pair.sides[A].ia.ep_disconnect(a, CloseFlags::Abrupt);
    ended.expect("CONNECTED");
    for cookie in 0..5 {
        let event = pair.wait_event(A, evd);
        let Event::Dto(done) = event else {
            panic!("the completion of {cookie}, not {event:?}");
        };
        assert_eq!((done.cookie.0, done.status), (cookie, DtoStatus::Success));
    }
    let event = pair.wait_event(A, evd);
    assert!(matches!(event, Event::Connection(it) if it.kind == ConnectionEventKind::Disconnected));
}

/// Calls refuse the handle of a freed endpoint. A freed endpoint keeps neither its PZ nor its EVDs in use.
///
/// Clauses: EPF-3, EPQ-3, EPC-4.
#[test]
fn a_freed_endpoint_is_no_handle_and_keeps_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let foreign = pair.sides[B].ep;
    let ia = &mut pair.sides[A].ia;
    let pz = ia.pz_create().expect("a PZ");
    let evd = ia.evd_create(8, EvdFlags::DTO).expect("an EVD");
    let ep = ia.ep_create(Some(pz), EpEvds::dto(evd), None);
    let ep = ep.expect("an endpoint");
    ia.ep_free(ep).expect("freed");
    for gone in [ep, foreign] {
        let calls = [
            ia.ep_free(gone),
            ia.ep_query(gone).map(drop),
            ia.ep_get_status(gone).map(drop),
            ia.ep_reset(gone),
            ia.ep_disconnect(gone, CloseFlags::Abrupt),
        ];
        for call in calls {
            let error = refused(call, ReturnType::InvalidHandle);
            assert_eq!(error.subtype(), Subtype::HandleEp);
        }
    }
    ia.evd_free(evd).expect("nothing feeds it");
    ia.pz_free(pz).expect("nothing is in it");
    let made = ia.ep_create(Some(pz), EpEvds::NONE, None);
    let error = refused(made, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandlePz);
    let made = ia.ep_create(None, EpEvds::NONE.recv(evd), None);
    let error = refused(made, ReturnType::InvalidHandle);
    assert_eq!(error.subtype(), Subtype::HandleEvdRecv);
}

/// `pz_query` and `pz_free` accept the handle of a PZ until the PZ is freed. A PZ can be freed once it is empty.
///
/// Clauses: PZC-1, PZC-2, PZF-1.
#[test]
fn a_zone_is_known_until_it_is_freed_and_freed_when_it_is_empty() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let foreign = pair.sides[B].pz;
    let used = pair.sides[A].pz;
    let buffer = pair.buffer(A, 64);
    let ep = pair.sides[A].ep;
    let ia = &mut pair.sides[A].ia;
    let in_use = |ia: &mut udapl::Ia, pz: PzHandle| {
        let error = refused(ia.pz_free(pz), ReturnType::InvalidState);
        assert_eq!(error.subtype(), Subtype::StatePzInUse);
    };
    let empty = ia.pz_create().expect("a PZ");
    ia.pz_query(empty).expect("it is there");
    ia.pz_free(empty).expect("nothing is in it");
    for gone in [empty, foreign] {
        for call in [ia.pz_query(gone), ia.pz_free(gone)] {
            let error = refused(call, ReturnType::InvalidHandle);
            assert_eq!(error.subtype(), Subtype::HandlePz);
        }
    }
    in_use(ia, used);
    ia.ep_free(ep).expect("freed");
    in_use(ia, used);
    ia.lmr_free(buffer.lmr.lmr).expect("freed");
    let rmr = ia.rmr_create(used).expect("an RMR");
    in_use(ia, used);
    ia.rmr_free(rmr).expect("freed");
    ia.pz_free(used).expect("nothing is in it");
}
