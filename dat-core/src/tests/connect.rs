//! Connecting: both sides, every outcome, private data.

use super::*;

use crate::cm::wire::Message;
use ConnectionEventKind as Kind;

fn try_connect(
    a: &mut Side,
    to: IpAddr,
    qual: ConnQual,
    timeout: Timeout,
    data: &[u8],
) -> DatResult<()> {
    a.ia.ep_connect(
        a.ep,
        to,
        qual,
        timeout,
        data,
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
}

#[test]
fn private_data_travels_both_ways_byte_for_byte() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let ask: Vec<u8> = (0..64).collect();
    let cr = request(&mut a, &mut b, &ask);
    let param = b.ia.cr_query(cr).expect("exists");
    assert_eq!(
        (param.private_data, param.conn_qual, param.remote_ia_address),
        (&ask[..], QUAL, a.address())
    );
    b.ia.cr_accept(cr, Some(b.ep), b"welcome\0")
        .expect("accepts");
    assert_eq!(
        b.ia.cr_query(cr),
        Err(DatError::handle(Subtype::HandleCr)),
        "gone when accepted"
    );
    progress_both(&mut a, &mut b);
    let established = |ep, private_data_size| {
        Event::Connection(ConnectionEvent {
            kind: Kind::Established,
            ep,
            private_data_size,
        })
    };
    assert_eq!(a.events(a.connect), [established(a.ep, 8)]);
    assert_eq!(b.events(b.connect), [established(b.ep, 0)]);
    assert_eq!(a.ia.ep_private_data(a.ep), Ok(&b"welcome\0"[..]));
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    assert_eq!(
        a.ia.ep_private_data(a.ep),
        Ok(&b"welcome\0"[..]),
        "readable when disconnected"
    );
    a.ia.ep_reset(a.ep).expect("resets");
    assert_eq!(a.ia.ep_private_data(a.ep), Ok(&b""[..]));
}

/// IBTA volume 1, "Starting PSN": a message names the first PSN that its receiver sends. (Observed with Linux software
/// RoCE: its REP named 0xfcf99f, and it answered a first packet that had another PSN with a NAK for 0xfcf99f.)
#[test]
fn a_side_begins_with_the_psn_that_the_other_sides_message_named() {
    let (net, a, b) = connected();
    let mut told = [None; 2];
    for mad in net.mads() {
        let (_, message) = Message::parse(&mad).expect("ours");
        if let Message::Req(req) = message {
            told[0] = Some((req.local_qpn, req.starting_psn));
        } else if let Message::Rep(rep) = message {
            told[1] = Some((rep.local_qpn, rep.starting_psn));
        }
    }
    let [Some((active, by_active)), Some((passive, by_passive))] = told else {
        panic!("{told:?}")
    };
    assert_ne!(by_active, by_passive, "drawn apart");
    assert_eq!(net.first_psns(active), (by_active, by_passive));
    assert_eq!(net.first_psns(passive), (by_passive, by_active));
    drop((a, b));
}

/// IBTA volume 1, "Local ACK Timeout" and "Target ACK Delay": a REQ carries the ACK timeout that the sender's adapter
/// needs, and a REP carries the ACK delay of its sender (Linux `cm.c` `cm_format_req`, `cm_rep_handler`). In units of
/// 4.096 us, the round trip takes 2^15, and the adapters' delays are 2^16 and 2^19.
#[test]
fn a_side_waits_for_acknowledgements_as_long_as_the_other_adapter_needs() {
    for (configured, said, used) in [(None, 17, [20, 17]), (Some(9), 9, [9, 9])] {
        let net = Net::default();
        let mut config = IaConfig::default();
        config.transport.ack_timeout = configured;
        let [mut a, mut b] = [0; 2].map(|_| Side::with(&net, config, |_| {}));
        let cr = request(&mut a, &mut b, &[]);
        b.ia.cr_accept(cr, Some(b.ep), &[]).expect("accepts");
        progress_both(&mut a, &mut b);
        let mut qpns = [None; 2];
        for mad in net.mads() {
            let (_, message) = Message::parse(&mad).expect("ours");
            if let Message::Req(req) = message {
                qpns[0] = Some(req.local_qpn);
                assert_eq!(req.primary.ack_timeout, said);
            } else if let Message::Rep(rep) = message {
                qpns[1] = Some(rep.local_qpn);
                assert_eq!(rep.target_ack_delay, 19);
            }
        }
        let waits = qpns.map(|qpn| net.ack_timeout(qpn.expect("a side's message")));
        assert_eq!(waits, used, "{configured:?}");
    }
}

#[test]
fn a_request_through_the_rdma_cm_carries_56_bytes_and_its_padding() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    b.ia.psp_create(ConnQual(4791), b.connect, PspFlags::CONSUMER)
        .expect("listens");
    let to = b.address();
    let refused =
        try_connect(&mut a, to, ConnQual(4791), Timeout::INFINITE, &[7; 57]).expect_err("57 bytes");
    assert_eq!(
        refused,
        DatError::new(ReturnType::InvalidParameter, Subtype::Arg5)
    );
    assert!(refused.detail().contains("56"), "{refused}");
    try_connect(&mut a, to, ConnQual(4791), Timeout::INFINITE, &[7; 10]).expect("10 bytes");
    progress_both(&mut a, &mut b);
    let Ok(Some(Event::ConnectionRequest(request))) = b.ia.evd_dequeue(b.connect) else {
        panic!("no request")
    };
    let param = b.ia.cr_query(request.cr).expect("exists");
    assert_eq!(request.conn_qual, ConnQual(4791));
    assert_eq!(param.private_data.len(), 56);
    assert_eq!(
        &param.private_data[..11],
        &[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]
    );
    assert!(param.remote_port_qual >= 0xc000);
    assert_eq!(
        a.ia.ep_query(a.ep).expect("exists").local_port_qual,
        param.remote_port_qual
    );
}

#[test]
fn parameters_of_a_connect_are_checked_before_anything_happens() {
    let net = Net::default();
    let (mut a, b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let to = b.address();
    let inf = Timeout::INFINITE;
    assert_eq!(
        try_connect(&mut a, to, ConnQual(0), inf, b""),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    assert_eq!(
        try_connect(&mut a, to, QUAL, Timeout::ZERO, b""),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg4))
    );
    assert_eq!(
        try_connect(&mut a, to, QUAL, inf, &[0; 65]),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg5))
    );
    let bad = |subtype| Err(DatError::new(ReturnType::InvalidAddress, subtype));
    for (address, subtype) in [
        ("0.0.0.0", Subtype::AddressMalformed),
        ("::", Subtype::AddressMalformed),
        ("224.0.0.1", Subtype::AddressUnsupported),
        ("255.255.255.255", Subtype::AddressUnsupported),
        ("ff02::1", Subtype::AddressUnsupported),
        ("10.0.0.1", Subtype::AddressUnreachable),
    ] {
        let address: IpAddr = address.parse().expect("an address");
        assert_eq!(
            try_connect(&mut a, address, QUAL, inf, b""),
            bad(subtype),
            "{address}"
        );
    }
    let connect = |a: &mut Side, qos, flags| a.ia.ep_connect(a.ep, to, QUAL, inf, b"", qos, flags);
    assert_eq!(
        connect(&mut a, Qos::from_bits_retain(0x10), ConnectFlags::empty()),
        Err(DatError::unsupported())
    );
    assert_eq!(
        connect(&mut a, Qos::BEST_EFFORT, ConnectFlags::MULTIPATH),
        Err(DatError::unsupported())
    );
    let unknown = ConnectFlags::from_bits_retain(2);
    assert_eq!(
        connect(&mut a, Qos::BEST_EFFORT, unknown),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg8))
    );
    assert_eq!(a.state(), EpState::Unconnected);
    let zoneless = a.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    let refused = a.ia.ep_connect(
        zoneless,
        to,
        QUAL,
        inf,
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    );
    assert_eq!(refused, Err(DatError::state(Subtype::StateEpNotReady)));
}

#[test]
fn a_rejection_names_the_rejecting_side_and_flushes_receives() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    a.post_recv(9).expect("posts");
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_reject(cr).expect("rejects");
    assert_eq!(b.ia.cr_reject(cr), Err(DatError::handle(Subtype::HandleCr)));
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.state(), a.connection_events()),
        (EpState::Disconnected, vec![Kind::PeerRejected])
    );
    assert_eq!(a.completions(a.recv), [(9, DtoStatus::ErrFlushed)]);
    assert_eq!(b.state(), EpState::Unconnected);
}

/// The private data of a rejection is limited by the service ID in the peer's REQ: 144 bytes unless it is an RDMA CM
/// port (148). A handoff to a qualifier of the other kind does not change the limit, and loses no private data.
#[test]
fn a_handoff_does_not_change_how_much_a_rejection_can_carry() {
    let port = ConnQual(5);
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    b.ia.psp_create(port, b.connect, PspFlags::CONSUMER)
        .expect("listens");
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_handoff(cr, port).expect("handed off");
    let cr = match b.ia.evd_dequeue(b.connect) {
        Ok(Some(Event::ConnectionRequest(request))) => request.cr,
        other => panic!("no request but {other:?}"),
    };
    let refused = b.ia.cr_reject_with(cr, &[7; 145]);
    assert_eq!(
        refused,
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    b.ia.cr_reject_with(cr, &[7; 144]).expect("rejects");
    progress_both(&mut a, &mut b);
    assert_eq!(a.connection_events(), [Kind::PeerRejected]);
    assert_eq!(a.ia.ep_private_data(a.ep), Ok(&[7; 144][..]));
}

#[test]
fn a_connect_without_a_listener_is_rejected_by_the_provider() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let psp =
        b.ia.psp_create(QUAL, b.connect, PspFlags::CONSUMER)
            .expect("listens");
    b.ia.psp_free(psp).expect("stops");
    try_connect(&mut a, b.address(), QUAL, Timeout::INFINITE, b"").expect("starts");
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.state(), a.connection_events()),
        (EpState::Disconnected, vec![Kind::NonPeerRejected])
    );
}

#[test]
fn the_backlog_is_the_length_of_the_evd() {
    let net = Net::default();
    let mut b = Side::new(&net, |_| {});
    let evd = b.ia.evd_create(2, EvdFlags::CR).expect("an EVD");
    b.ia.psp_create(QUAL, evd, PspFlags::CONSUMER)
        .expect("listens");
    let mut askers: Vec<Side> = (0..3).map(|_| Side::new(&net, |_| {})).collect();
    for a in &mut askers {
        try_connect(a, b.address(), QUAL, Timeout::INFINITE, b"").expect("starts");
        progress_both(a, &mut b);
    }
    let outcomes: Vec<_> = askers.iter_mut().map(Side::connection_events).collect();
    assert_eq!(outcomes, [vec![], vec![], vec![Kind::NonPeerRejected]]);
    assert_eq!(b.events(evd).len(), 2);
    assert_eq!(
        b.events(b.ia.async_evd()),
        [],
        "a full backlog is no overflow"
    );
}

#[test]
fn why_an_attempt_failed_is_told_before_the_receives_that_end_with_it() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let all = a.ia.evd_create(32, EvdFlags::DTO | EvdFlags::CONNECTION);
    let all = all.expect("an EVD");
    a.ep =
        a.ia.ep_create(Some(a.pz), EpEvds::all(all), None)
            .expect("an EP");
    a.post_recv(1).expect("posts");
    a.post_recv(2).expect("posts");
    try_connect(&mut a, b.address(), QUAL, Timeout::INFINITE, b"").expect("starts");
    progress_both(&mut a, &mut b);
    let events = a.events(all);
    assert_eq!(kinds(&events[..1]), [Kind::NonPeerRejected], "{events:?}");
    let flushed = [(1, DtoStatus::ErrFlushed), (2, DtoStatus::ErrFlushed)];
    assert_eq!(dtos(&events[1..]), flushed);
}

#[test]
fn the_consumers_timeout_and_a_silent_peer_are_told_apart() {
    for (timeout, kind) in [
        (Timeout::from_micros(1_000_000), Kind::TimedOut),
        (Timeout::INFINITE, Kind::Unreachable),
    ] {
        let net = Net::default();
        let (mut a, b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        net.drop_mads(true);
        try_connect(&mut a, b.address(), QUAL, timeout, b"").expect("starts");
        let (event, _) =
            a.ia.evd_wait(a.connect, Timeout::INFINITE, 1)
                .expect("ends");
        assert_eq!(
            (kinds(&[event]), a.state()),
            (vec![kind], EpState::Disconnected)
        );
        if kind == Kind::TimedOut {
            assert_eq!(now(&a), 1_000_000_000, "exactly then");
        }
    }
}

#[test]
fn an_accept_after_the_peer_gave_up_ends_in_an_accept_completion_error() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    b.post_recv(3).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("gives up");
    progress_both(&mut a, &mut b);
    assert_eq!(
        b.events(b.connect),
        [],
        "the request is still the consumer's to decide"
    );
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    progress_both(&mut a, &mut b);
    assert_eq!(
        (b.state(), b.connection_events()),
        (EpState::Disconnected, vec![Kind::AcceptCompletionError])
    );
    assert_eq!(b.completions(b.recv), [(3, DtoStatus::ErrFlushed)]);
    assert_eq!(a.connection_events(), [Kind::Disconnected]);
}

#[test]
fn an_accept_without_an_endpoint_or_with_too_much_data_is_refused() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    assert_eq!(
        b.ia.cr_accept(cr, None, b""),
        Err(DatError::handle(Subtype::HandleEp))
    );
    assert_eq!(
        b.ia.cr_accept(cr, Some(b.ep), &[0; 65]),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    let zoneless = b.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    assert_eq!(
        b.ia.cr_accept(cr, Some(zoneless), b""),
        Err(DatError::state(Subtype::StateEpNotReady))
    );
    b.ia.cr_accept(cr, Some(b.ep), &[0; 64]).expect("accepts");
}

#[test]
fn receives_posted_before_connecting_take_the_first_messages() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    b.post_recv(1).expect("posts");
    b.ia.ep_reset(b.ep).expect("a no-op");
    connect(&mut a, &mut b);
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(b.completions(b.recv), [(1, DtoStatus::Success)]);
}

#[test]
fn a_message_before_the_handshake_is_done_comes_after_established() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let both =
        b.ia.evd_create(32, EvdFlags::DTO | EvdFlags::CONNECTION)
            .expect("an EVD");
    b.ep =
        b.ia.ep_create(Some(b.pz), EpEvds::all(both), None)
            .expect("an EP");
    b.post_recv(1).expect("posts");
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    // The peer's REP arrives, but the RTU is lost.
    net.drop_mads(true);
    a.ia.progress();
    assert_eq!(
        (a.state(), b.state()),
        (EpState::Connected, EpState::CompletionPending)
    );
    a.send(0, NO_FLAGS).expect("posts");
    let events = b.events(both);
    assert!(
        matches!(
            events[..],
            [
                Event::Connection(ConnectionEvent {
                    kind: Kind::Established,
                    ..
                }),
                Event::Dto(_)
            ]
        ),
        "{events:?}"
    );
    net.drop_mads(false);
    progress_both(&mut a, &mut b);
    assert_eq!(
        (b.state(), b.events(both)),
        (EpState::Connected, vec![]),
        "established once"
    );
}

#[test]
fn the_device_may_say_that_communication_is_established() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    net.drop_mads(true);
    a.ia.progress();
    let owner = crate::handle::index_of(b.ep.key);
    net.report(
        1,
        crate::provider::ProviderEvent::CommunicationEstablished { owner },
    );
    assert_eq!(b.connection_events(), [Kind::Established]);
    assert_eq!(b.state(), EpState::Connected);
}

#[test]
fn an_endpoint_connects_again_after_a_reset() {
    let (_net, mut a, mut b) = connected();
    for _ in 0..3 {
        a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
            .expect("disconnects");
        progress_both(&mut a, &mut b);
        assert_eq!(
            (a.connection_events(), b.connection_events()),
            (vec![Kind::Disconnected], vec![Kind::Disconnected])
        );
        a.ia.ep_reset(a.ep).expect("resets");
        b.ia.ep_reset(b.ep).expect("resets");
        connect(&mut a, &mut b);
        b.post_recv(4).expect("posts");
        a.send(5, NO_FLAGS).expect("posts");
        assert_eq!(b.completions(b.recv), [(4, DtoStatus::Success)]);
        assert_eq!(a.completions(a.request), [(5, DtoStatus::Success)]);
    }
}

#[test]
fn a_qualifier_is_listened_at_once_and_any_finds_a_free_one() {
    let net = Net::default();
    let mut b = Side::new(&net, |_| {});
    let psp =
        b.ia.psp_create(ConnQual(5000), b.connect, PspFlags::CONSUMER)
            .expect("listens");
    let again =
        b.ia.psp_create(ConnQual(5000), b.connect, PspFlags::CONSUMER);
    let again = again.expect_err("it is taken");
    assert_eq!(again.return_type(), ReturnType::ConnQualInUse);
    assert!(again.detail().contains("psp_create_any"), "{again}");
    assert_eq!(
        b.ia.psp_create(ConnQual(5001), b.recv, PspFlags::CONSUMER),
        Err(DatError::handle(Subtype::HandleEvdCr))
    );
    assert_eq!(
        b.ia.psp_create(ConnQual(5001), b.connect, PspFlags::from_bits_retain(2)),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg4))
    );
    assert_eq!(
        b.ia.psp_create(ConnQual(0), b.connect, PspFlags::CONSUMER),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    let (first, _) =
        b.ia.psp_create_any(b.connect, PspFlags::CONSUMER)
            .expect("listens");
    let (second, _) =
        b.ia.psp_create_any(b.connect, PspFlags::CONSUMER)
            .expect("listens");
    assert_ne!(first, second);
    assert_eq!(
        b.ia.psp_query(psp),
        Ok(PspParam {
            conn_qual: ConnQual(5000),
            evd: b.connect,
            flags: PspFlags::CONSUMER
        })
    );
    b.ia.psp_free(psp).expect("frees");
    assert_eq!(
        b.ia.psp_query(psp),
        Err(DatError::handle(Subtype::HandlePsp))
    );
    b.ia.psp_create(ConnQual(5000), b.connect, PspFlags::CONSUMER)
        .expect("free again");
}

/// Sends a request to a PSP with the PROVIDER flag. Returns the request and the endpoint that the provider created.
fn request_with_ep(a: &mut Side, b: &mut Side) -> (CrHandle, EpHandle) {
    b.ia.psp_create(ConnQual(QUAL.0 + 1), b.connect, PspFlags::PROVIDER)
        .expect("listens");
    try_connect(a, b.address(), ConnQual(QUAL.0 + 1), Timeout::INFINITE, b"").expect("starts");
    progress_both(a, b);
    let Ok(Some(Event::ConnectionRequest(request))) = b.ia.evd_dequeue(b.connect) else {
        panic!("no request")
    };
    let ep = b.ia.cr_query(request.cr).expect("exists").local_ep;
    (request.cr, ep.expect("an endpoint"))
}

#[test]
fn a_psp_may_bring_an_endpoint_with_each_request() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let (cr, ep) = request_with_ep(&mut a, &mut b);
    let param = b.ia.ep_query(ep).expect("exists");
    assert_eq!(
        (param.state, param.pz),
        (EpState::TentativeConnectionPending, None)
    );
    assert_eq!(
        (param.attr.max_rdma_read_in, param.attr.max_rdma_read_out),
        (4, 4),
        "as the peer has it"
    );
    assert_eq!(param.remote_ia_address, Some(a.address()));
    let two = b.ia.cr_accept(cr, Some(b.ep), b"");
    assert_eq!(two, Err(DatError::handle(Subtype::HandleEp)));
    assert_eq!(
        b.ia.cr_accept(cr, None, b""),
        Err(DatError::state(Subtype::StateEpNotReady))
    );
    assert_eq!(
        b.ia.ep_free(ep),
        Err(DatError::state(Subtype::StateEpTentativeConnectionPending))
    );
    let change = EpChange {
        pz: Some(Some(b.pz)),
        recv_evd: Some(Some(b.recv)),
        request_evd: Some(Some(b.request)),
        connect_evd: Some(Some(b.connect)),
        attr: None,
        ..EpChange::default()
    };
    b.ia.ep_modify(ep, &change).expect("configures");
    b.ep = ep;
    b.post_recv(1).expect("posts");
    b.ia.cr_accept(cr, None, b"hello").expect("accepts");
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (vec![Kind::Established], vec![Kind::Established])
    );
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(b.completions(b.recv), [(1, DtoStatus::Success)]);
    b.ia.ep_free(ep).expect("it is the consumer's now");
}

#[test]
fn a_rejected_request_takes_its_endpoint_with_it() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let (cr, ep) = request_with_ep(&mut a, &mut b);
    b.ia.cr_reject(cr).expect("rejects");
    assert_eq!(b.ia.ep_query(ep), Err(DatError::handle(Subtype::HandleEp)));
    progress_both(&mut a, &mut b);
    assert_eq!(a.connection_events(), [Kind::PeerRejected]);
}

#[test]
fn requests_that_find_no_room_leave_when_there_is_some_and_none_is_repeated() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    b.ia.psp_create(QUAL, b.connect, PspFlags::CONSUMER)
        .expect("listens");
    net.narrow(2);
    let to = b.address();
    for data in 0..6 {
        let (pz, evd) = (Some(a.pz), Some(a.connect));
        a.ep =
            a.ia.ep_create(
                pz,
                EpEvds {
                    recv: None,
                    request: None,
                    connect: evd,
                },
                None,
            )
            .expect("an EP");
        try_connect(&mut a, to, QUAL, Timeout::INFINITE, &[data]).expect("connects");
    }
    assert_eq!(net.mads().len(), 2);
    // The sender wakes up each time an earlier datagram has been sent.
    let empty = a.ia.evd_wait(a.connect, Timeout::from_micros(1), 1);
    empty.expect_err("nobody has answered");
    assert_eq!(net.mads().len(), 6);
    let order = b.events(b.connect).into_iter().map(|event| {
        let Event::ConnectionRequest(request) = event else {
            panic!("{event:?}")
        };
        let param = b.ia.cr_query(request.cr).expect("exists");
        param.private_data[0]
    });
    assert_eq!(order.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

/// If the device refuses to clean up after a failed accept, the library tries again. If the device does not answer, the
/// library does not try again, because each attempt takes as long as the time limit of a command.
#[test]
fn an_accept_that_the_device_does_not_answer_is_not_waited_for_again_and_again() {
    const COMMAND: u64 = 60_000_000_000;
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    net.silence(COMMAND);
    let before = net.now();
    let refused = b.ia.cr_accept(cr, Some(b.ep), b"");
    assert_eq!(
        refused.map_err(|error| error.return_type()),
        Err(ReturnType::InternalError)
    );
    assert_eq!((net.now() - before) / COMMAND, 2, "commands waited for");
    assert!(b.ia.is_dead(), "nobody knows what the queue pair receives");
}
