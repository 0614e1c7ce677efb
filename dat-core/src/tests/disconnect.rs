//! Ends of connections: each side gets exactly one event, and every posted request completes.

use super::*;
use crate::handle::index_of;
use crate::object::ep::cause::EndCause;
use crate::provider::ProviderEvent;

use ConnectionEventKind as Kind;

#[test]
fn an_abrupt_disconnect_flushes_both_sides_and_tells_each_once() {
    let (net, mut a, mut b) = connected();
    net.hold();
    a.post_recv(1).expect("posts");
    b.post_recv(2).expect("posts");
    a.send(3, NO_FLAGS).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    assert_eq!(a.state(), EpState::Disconnected);
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (vec![Kind::Disconnected], vec![Kind::Disconnected])
    );
    assert_eq!(a.completions(a.request), [(3, DtoStatus::ErrFlushed)]);
    assert_eq!(
        (a.completions(a.recv), b.completions(b.recv)),
        (
            vec![(1, DtoStatus::ErrFlushed)],
            vec![(2, DtoStatus::ErrFlushed)]
        )
    );
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("a no-op");
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (vec![], vec![])
    );
}

#[test]
fn a_graceful_disconnect_finishes_the_requests_first() {
    let (net, mut a, mut b) = connected();
    (0..3).for_each(|cookie| b.post_recv(cookie).expect("posts"));
    net.hold();
    (0..2).for_each(|cookie| a.send(cookie, NO_FLAGS).expect("posts"));
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("starts");
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.state(), a.connection_events()),
        (EpState::DisconnectPending, vec![])
    );
    net.release();
    // The caller waits only on the connect EVD, but the completion of the last request still ends the connection.
    let (event, _) =
        a.ia.evd_wait(a.connect, Timeout::from_micros(1000), 1)
            .expect("disconnects");
    assert_eq!(kinds(&[event]), [Kind::Disconnected]);
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.completions(a.request),
        [(0, DtoStatus::Success), (1, DtoStatus::Success)]
    );
    assert_eq!(
        b.completions(b.recv),
        [
            (0, DtoStatus::Success),
            (1, DtoStatus::Success),
            (2, DtoStatus::ErrFlushed)
        ]
    );
    assert_eq!(b.connection_events(), [Kind::Disconnected]);
}

#[test]
fn a_graceful_disconnect_ends_although_the_last_requests_are_suppressed() {
    let (net, mut a, mut b) = connected();
    (0..3).for_each(|cookie| b.post_recv(cookie).expect("posts"));
    net.hold();
    a.send(0, NO_FLAGS).expect("posts");
    a.send(1, CompletionFlags::SUPPRESS).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("starts");
    assert_eq!(a.state(), EpState::DisconnectPending);
    net.release();
    progress_both(&mut a, &mut b);
    assert_eq!(
        (a.state(), a.connection_events()),
        (EpState::Disconnected, vec![Kind::Disconnected])
    );
    assert_eq!(
        a.completions(a.request),
        [(0, DtoStatus::Success)],
        "our own request is shown to nobody"
    );
    assert_eq!(dtos(&b.events(b.recv)).len(), 3);
}

#[test]
fn our_own_request_stays_hidden_when_it_is_flushed() {
    let (net, mut a, mut b) = connected();
    net.hold();
    a.send(1, CompletionFlags::SUPPRESS).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("starts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("forces");
    a.send(2, NO_FLAGS).expect("posts");
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.completions(a.request),
        [(1, DtoStatus::ErrFlushed), (2, DtoStatus::ErrFlushed)]
    );
    assert_eq!(a.connection_events(), [Kind::Disconnected]);
}

#[test]
fn an_error_while_draining_breaks_the_connection() {
    let (net, mut a, mut b) = connected();
    net.hold();
    a.send(1, NO_FLAGS).expect("posts");
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("starts");
    net.fail_next(a.qpn(), DtoStatus::ErrTransport);
    net.release();
    progress_both(&mut a, &mut b);
    assert_eq!(a.connection_events(), [Kind::Broken]);
    assert_eq!(b.connection_events(), [Kind::Disconnected]);
}

#[test]
fn every_failed_dto_breaks_the_connection_and_the_rest_is_flushed() {
    let failures = [
        DtoStatus::ErrLocalLength,
        DtoStatus::ErrLocalEp,
        DtoStatus::ErrLocalProtection,
        DtoStatus::ErrBadResponse,
        DtoStatus::ErrRemoteAccess,
        DtoStatus::ErrRemoteResponder,
        DtoStatus::ErrTransport,
        DtoStatus::ErrReceiverNotReady,
        DtoStatus::ErrPartialPacket,
    ];
    for status in failures {
        let (net, mut a, mut b) = connected();
        a.post_recv(7).expect("posts");
        net.hold();
        (1..=3).for_each(|cookie| a.send(cookie, NO_FLAGS).expect("posts"));
        net.fail_next(a.qpn(), status);
        net.release();
        let requests = a.completions(a.request);
        assert_eq!(
            requests,
            [
                (1, status),
                (2, DtoStatus::ErrFlushed),
                (3, DtoStatus::ErrFlushed)
            ]
        );
        assert_eq!(
            (a.state(), a.connection_events()),
            (EpState::Disconnected, vec![Kind::Broken]),
            "{status:?}"
        );
        assert_eq!(a.completions(a.recv), [(7, DtoStatus::ErrFlushed)]);
        progress_both(&mut a, &mut b);
        assert_eq!(b.connection_events(), [Kind::Disconnected]);
        assert_eq!(a.connection_events(), [], "one terminal event");
    }
}

#[test]
fn a_consumer_that_watches_connections_only_hears_of_a_broken_one() {
    for wait in [false, true] {
        let (net, mut a, b) = connected();
        net.fail_next(a.qpn(), DtoStatus::ErrRemoteAccess);
        a.ia.ep_post_rdma_write(
            a.ep,
            &[a.triplet(0, 8)],
            DtoCookie(1),
            &b.remote(8),
            NO_FLAGS,
        )
        .expect("posts");
        let event = if wait {
            a.ia.evd_wait(a.connect, Timeout::from_micros(1000), 1)
                .expect("wakes")
                .0
        } else {
            a.ia.evd_dequeue(a.connect).expect("seen").expect("seen")
        };
        assert_eq!(kinds(&[event]), [Kind::Broken]);
        assert_eq!(
            a.completions(a.request),
            [(1, DtoStatus::ErrRemoteAccess)],
            "nothing was lost by looking"
        );
    }
}

#[test]
fn a_queue_pair_the_device_stops_is_a_broken_connection() {
    let (net, mut a, mut b) = connected();
    let owner = crate::handle::index_of(b.ep.key);
    net.report(1, ProviderEvent::QpError { owner, event: 0x13 });
    net.report(
        1,
        ProviderEvent::QpError {
            owner: 4000,
            event: 0x13,
        },
    );
    progress_both(&mut a, &mut b);
    assert_eq!(b.connection_events(), [Kind::Broken]);
    assert_eq!(a.connection_events(), [Kind::Disconnected]);
}

#[test]
fn a_message_too_long_for_its_buffer_breaks_both_ends() {
    let (_net, mut a, mut b) = connected();
    b.ia.ep_post_recv(b.ep, &[b.triplet(0, 15)], DtoCookie(1), NO_FLAGS)
        .expect("posts");
    a.send(2, NO_FLAGS).expect("posts");
    assert_eq!(b.completions(b.recv), [(1, DtoStatus::ErrLocalLength)]);
    assert_eq!(
        a.completions(a.request),
        [(2, DtoStatus::ErrRemoteResponder)]
    );
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (vec![Kind::Broken], vec![Kind::Broken])
    );
}

#[test]
fn completions_that_were_there_precede_the_end_on_the_same_evd() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let all =
        a.ia.evd_create(32, EvdFlags::DTO | EvdFlags::CONNECTION)
            .expect("an EVD");
    a.ep =
        a.ia.ep_create(Some(a.pz), EpEvds::all(all), None)
            .expect("an EP");
    (0..3).for_each(|cookie| b.post_recv(cookie).expect("posts"));
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    progress_both(&mut a, &mut b);
    (0..3).for_each(|cookie| a.send(cookie, NO_FLAGS).expect("posts"));
    b.ia.ep_disconnect(b.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    progress_both(&mut a, &mut b);
    let events = a.events(all);
    assert_eq!(kinds(&events), [Kind::Established, Kind::Disconnected]);
    assert_eq!(
        dtos(&events[1..4]),
        [0, 1, 2].map(|cookie| (cookie, DtoStatus::Success)),
        "{events:?}"
    );
}

#[test]
fn many_connections_of_one_evd_may_break_in_one_look() {
    let net = Net::default();
    let mut b = Side::new(&net, |_| {});
    b.ia.psp_create(QUAL, b.connect, PspFlags::CONSUMER)
        .expect("listens");
    let mut a = Side::new(&net, |_| {});
    let all =
        a.ia.evd_create(512, EvdFlags::DTO | EvdFlags::CONNECTION)
            .expect("an EVD");
    let attr = EpAttr {
        max_request_dtos: 2,
        max_recv_dtos: 2,
        ..EpAttr::defaults(a.ia.query().ia)
    };
    let mut eps = Vec::new();
    for _ in 0..200 {
        a.ep =
            a.ia.ep_create(Some(a.pz), EpEvds::all(all), Some(&attr))
                .expect("an EP");
        let ep =
            b.ia.ep_create(
                Some(b.pz),
                EpEvds::NONE.recv(b.recv).request(b.request),
                Some(&attr),
            )
            .expect("an EP");
        let cr = request(&mut a, &mut b, b"");
        b.ia.cr_accept(cr, Some(ep), b"").expect("accepts");
        progress_both(&mut a, &mut b);
        assert_eq!(kinds(&a.events(all)), [Kind::Established]);
        eps.push(a.ep);
    }
    for ep in &eps {
        a.ep = *ep;
        net.fail_next(a.qpn(), DtoStatus::ErrTransport);
        a.send(0, NO_FLAGS).expect("posts");
    }
    let events = a.events(all);
    assert_eq!(
        (kinds(&events), dtos(&events).len()),
        (vec![Kind::Broken; 200], 200)
    );
}

#[test]
fn freeing_a_connected_endpoint_tells_the_peer_and_queues_no_event() {
    let (_net, mut a, mut b) = connected();
    a.ia.ep_free(a.ep).expect("frees");
    progress_both(&mut a, &mut b);
    assert_eq!(b.connection_events(), [Kind::Disconnected]);
    assert_eq!(a.connection_events(), []);
}

#[test]
fn a_dead_device_breaks_every_connection_and_says_so() {
    let (net, mut a, mut b) = connected();
    let pending =
        a.ia.ep_create(
            Some(a.pz),
            EpEvds::NONE
                .recv(a.recv)
                .request(a.request)
                .connect(a.connect),
            None,
        )
        .expect("an EP");
    a.ia.ep_connect(
        pending,
        b.address(),
        QUAL,
        Timeout::INFINITE,
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
    .expect("starts");
    net.kill(0);
    assert_eq!(a.connection_events(), [Kind::Broken, Kind::NonPeerRejected]);
    assert_eq!(
        a.events(a.ia.async_evd()),
        [Event::Async(AsyncEvent::IaCatastrophic)]
    );
    let dead = DatError::new(ReturnType::InternalError, Subtype::None);
    assert_eq!(a.ia.evd_create(1, EvdFlags::DTO), Err(dead));
    let waited =
        a.ia.evd_wait(a.connect, Timeout::INFINITE, 1)
            .expect_err("nothing will come");
    assert_eq!(waited.error.return_type(), ReturnType::Abort);
    progress_both(&mut a, &mut b);
    a.ia.close(CloseFlags::Abrupt).expect("closes all the same");
}

#[test]
fn a_device_that_is_wanted_back_ends_its_connections_in_good_order_and_says_so_once() {
    let (net, mut a, mut b) = connected();
    for _ in 0..2 {
        net.report(0, ProviderEvent::DeviceRequested);
    }
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.events(a.ia.async_evd()),
        [Event::Async(AsyncEvent::IaCatastrophic)]
    );
    assert_eq!(a.connection_events(), [Kind::Disconnected]);
    assert_eq!(
        b.connection_events(),
        [Kind::Disconnected],
        "the peer hears of it"
    );
    let refused = a.ia.evd_create(1, EvdFlags::DTO).expect_err("nothing new");
    assert!(refused.to_string().contains("wants the device back"));
    // The device dies before the adapter is closed. The consumer gets no second IaCatastrophic event.
    net.kill(0);
    progress_both(&mut a, &mut b);
    assert_eq!(a.events(a.ia.async_evd()), []);
    a.ia.close(CloseFlags::Abrupt).expect("closes");
}

#[test]
fn an_overrun_completion_queue_breaks_the_connections_it_served() {
    let (net, mut a, mut b) = connected();
    net.report(
        0,
        ProviderEvent::CqError {
            owner: crate::handle::index_of(a.request.key),
        },
    );
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.events(a.ia.async_evd()),
        [Event::Async(AsyncEvent::EvdOverflow(a.request))]
    );
    assert_eq!(a.connection_events(), [Kind::Broken]);
}

/// A cause that is recorded while an endpoint is unconnected is not the cause of the end of its next connection,
/// whether the endpoint then connects or accepts.
#[test]
fn what_befell_an_unconnected_endpoint_is_no_cause_of_its_next_end() {
    for accepts in [false, true] {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        let cr = request(&mut a, &mut b, b"");
        net.refuse_next();
        let refused = b.ia.cr_accept(cr, Some(b.ep), b"");
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(b.state(), EpState::Unconnected);
        let removed = ProviderEvent::AddressRemoved {
            source_gid_index: 0,
            address: b.address(),
        };
        let owner = index_of(b.recv.key);
        net.report(1, removed);
        net.report(1, ProviderEvent::CqError { owner });
        b.ia.cr_reject(cr).expect("undecided");
        progress_both(&mut a, &mut b);
        assert_eq!(a.connection_events(), [Kind::PeerRejected]);
        a.ia.ep_reset(a.ep).expect("DISCONNECTED");
        if accepts {
            connect(&mut a, &mut b);
        } else {
            connect(&mut b, &mut a);
        }
        a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
            .expect("disconnects");
        progress_both(&mut a, &mut b);
        assert_eq!(b.connection_events(), [Kind::Disconnected]);
        let cause = b.ia.ep_end_cause(b.ep).expect("an EP");
        assert_eq!(cause, Some(EndCause::PeerDisconnected), "{accepts}");
    }
}
