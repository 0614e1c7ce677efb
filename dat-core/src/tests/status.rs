//! Results of calls on endpoints in the different states.

use super::*;

/// Calls `visit` with an endpoint in each state, except RESERVED, PASSIVE_CONNECTION_PENDING and
/// TENTATIVE_CONNECTION_PENDING.
fn every_state(mut visit: impl FnMut(EpState, &Net, &mut Side, &mut Side)) {
    let states = [
        EpState::Unconnected,
        EpState::ActiveConnectionPending,
        EpState::CompletionPending,
        EpState::Connected,
        EpState::DisconnectPending,
        EpState::Disconnected,
    ];
    for state in states {
        let net = Net::default();
        let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
        match state {
            EpState::ActiveConnectionPending => {
                request(&mut a, &mut b, b"");
            }
            EpState::CompletionPending => {
                let cr = request(&mut b, &mut a, b"");
                net.drop_mads(true);
                a.ia.cr_accept(cr, Some(a.ep), b"").expect("accepts");
            }
            EpState::Connected => connect(&mut a, &mut b),
            EpState::DisconnectPending => {
                connect(&mut a, &mut b);
                net.hold();
                a.send(77, NO_FLAGS).expect("posts");
                a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
                    .expect("starts");
            }
            EpState::Disconnected => {
                connect(&mut a, &mut b);
                a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
                    .expect("disconnects");
            }
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::TentativeConnectionPending => {}
        }
        assert_eq!(a.state(), state);
        visit(state, &net, &mut a, &mut b);
    }
}

#[test]
fn requests_are_taken_when_connected_or_disconnected_only() {
    every_state(|state, _net, a, b| {
        b.post_recv(0).expect("posts");
        let iov = [a.triplet(0, 8)];
        let remote = b.remote(8);
        let legal = matches!(state, EpState::Connected | EpState::Disconnected);
        let expected = if legal {
            Ok(())
        } else {
            Err(DatError::state(state.subtype()))
        };
        assert_eq!(a.send(1, NO_FLAGS), expected, "{state:?}");
        assert_eq!(
            a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(2), &remote, NO_FLAGS),
            expected,
            "{state:?}"
        );
        assert_eq!(
            a.ia.ep_post_rdma_read(a.ep, &iov, DtoCookie(3), &remote, NO_FLAGS),
            expected,
            "{state:?}"
        );
    });
}

#[test]
fn receives_are_taken_in_every_state() {
    every_state(|state, _net, a, _b| {
        a.post_recv(5)
            .unwrap_or_else(|error| panic!("{state:?}: {error}"));
        let flushed = if state == EpState::Disconnected {
            vec![(5, DtoStatus::ErrFlushed)]
        } else {
            vec![]
        };
        assert_eq!(a.completions(a.recv), flushed, "{state:?}");
    });
}

#[test]
fn posts_to_a_disconnected_endpoint_are_flushed_in_order_even_suppressed_ones() {
    every_state(|state, _net, a, b| {
        if state == EpState::Disconnected {
            a.send(1, NO_FLAGS).expect("posts");
            a.send(2, CompletionFlags::SUPPRESS).expect("posts");
            a.ia.ep_post_rdma_read(
                a.ep,
                &[a.triplet(0, 8)],
                DtoCookie(3),
                &b.remote(8),
                NO_FLAGS,
            )
            .expect("posts");
            assert_eq!(
                a.completions(a.request),
                [1, 2, 3].map(|cookie| (cookie, DtoStatus::ErrFlushed))
            );
        }
    });
}

#[test]
fn connecting_accepting_and_resetting_need_their_states() {
    every_state(|state, _net, a, b| {
        let refused = Err(DatError::state(state.subtype()));
        if state != EpState::Unconnected {
            let again = a.ia.ep_connect(
                a.ep,
                b.address(),
                QUAL,
                Timeout::INFINITE,
                b"",
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            );
            assert_eq!(again, refused, "{state:?}");
        }
        let expected = if matches!(state, EpState::Unconnected | EpState::Disconnected) {
            Ok(())
        } else {
            refused
        };
        assert_eq!(a.ia.ep_reset(a.ep), expected, "{state:?}");
    });
}

#[test]
fn accepting_with_an_endpoint_in_use_changes_nothing() {
    every_state(|state, net, a, _b| {
        if matches!(state, EpState::Unconnected | EpState::CompletionPending) {
            return;
        }
        let mut c = Side::new(net, |_| {});
        a.ia.psp_create(ConnQual(QUAL.0 + 7), a.connect, PspFlags::CONSUMER)
            .expect("listens");
        c.ia.ep_connect(
            c.ep,
            a.address(),
            ConnQual(QUAL.0 + 7),
            Timeout::INFINITE,
            b"",
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("connects");
        a.ia.progress();
        let cr = a.events(a.connect).iter().find_map(|event| {
            if let Event::ConnectionRequest(request) = event {
                Some(request.cr)
            } else {
                None
            }
        });
        let cr = cr.expect("a request");
        assert_eq!(
            a.ia.cr_accept(cr, Some(a.ep), b""),
            Err(DatError::state(state.subtype())),
            "{state:?}"
        );
        assert_eq!(a.state(), state);
        a.ia.cr_query(cr).expect("the request is still there");
    });
}

#[test]
fn disconnecting_needs_a_connection_or_an_attempt() {
    for flags in [CloseFlags::Abrupt, CloseFlags::Graceful] {
        every_state(|state, _net, a, _b| {
            a.connection_events();
            let expected = if state == EpState::Unconnected {
                Err(DatError::state(state.subtype()))
            } else {
                Ok(())
            };
            assert_eq!(a.ia.ep_disconnect(a.ep, flags), expected, "{state:?}");
            let (after, events) = match (state, flags) {
                (EpState::Unconnected, _) => (state, vec![]),
                (EpState::Disconnected, _) | (EpState::DisconnectPending, CloseFlags::Graceful) => {
                    (state, vec![])
                }
                _ => (
                    EpState::Disconnected,
                    vec![ConnectionEventKind::Disconnected],
                ),
            };
            assert_eq!(
                (a.state(), a.connection_events()),
                (after, events),
                "{state:?} {flags:?}"
            );
        });
    }
}

#[test]
fn an_endpoint_can_be_freed_in_all_of_these_states() {
    every_state(|state, _net, a, _b| {
        a.post_recv(1).expect("posts");
        a.ia.ep_free(a.ep)
            .unwrap_or_else(|error| panic!("{state:?}: {error}"));
        assert_eq!(
            a.ia.ep_get_status(a.ep),
            Err(DatError::handle(Subtype::HandleEp))
        );
        assert_eq!(
            a.ia.ep_free(a.ep),
            Err(DatError::handle(Subtype::HandleEp)),
            "twice"
        );
    });
}

#[test]
fn an_endpoint_is_modified_before_it_connects_only() {
    every_state(|state, _net, a, _b| {
        let attr = EpAttr {
            max_request_dtos: 2,
            ..a.ia.ep_query(a.ep).expect("exists").attr
        };
        let change = EpChange {
            attr: Some(attr),
            ..EpChange::default()
        };
        let expected = if state == EpState::Unconnected {
            Ok(())
        } else {
            Err(DatError::state(state.subtype()))
        };
        assert_eq!(a.ia.ep_modify(a.ep, &change), expected, "{state:?}");
        let now = a.ia.ep_query(a.ep).expect("exists").attr.max_request_dtos;
        assert_eq!(now == 2, expected.is_ok(), "{state:?}");
    });
}

#[test]
fn a_modified_endpoint_lets_go_of_what_it_used() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let pz = a.ia.pz_create().expect("a PZ");
    let evd = a.ia.evd_create(32, EvdFlags::DTO).expect("an EVD");
    let change = EpChange {
        pz: Some(Some(pz)),
        request_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    a.ia.ep_modify(a.ep, &change).expect("modifies");
    a.ia.evd_free(a.request).expect("no longer used");
    assert_eq!(
        a.ia.evd_free(evd),
        Err(DatError::state(Subtype::StateEvdInUse))
    );
    assert_eq!(
        a.ia.pz_free(pz),
        Err(DatError::state(Subtype::StatePzInUse))
    );
    a.post_recv(0).expect_err("the LMR is in the old zone");
    a.ia.ep_modify(
        a.ep,
        &EpChange {
            pz: Some(Some(a.pz)),
            ..EpChange::default()
        },
    )
    .expect("modifies back");
    a.post_recv(0).expect("posts");
    let back = EpChange {
        pz: Some(Some(pz)),
        ..EpChange::default()
    };
    a.ia.ep_modify(a.ep, &back).expect("with a receive posted");
    let status = a.ia.ep_get_status(a.ep).expect("exists");
    assert!(!status.recv_idle, "which stays");
}

#[test]
fn a_posted_receive_keeps_what_it_needs() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    a.post_recv(0).expect("posts");
    a.post_recv(1).expect("posts");
    let attr = a.ia.ep_query(a.ep).expect("exists").attr;
    let with = |attr| EpChange {
        attr: Some(attr),
        ..EpChange::default()
    };
    let changes = [
        with(EpAttr {
            max_recv_dtos: 1,
            ..attr
        }),
        with(EpAttr {
            max_recv_iov: 0,
            ..attr
        }),
        with(EpAttr {
            recv_completion_flags: CompletionFlags::SOLICITED_WAIT,
            ..attr
        }),
        EpChange {
            pz: Some(None),
            ..EpChange::default()
        },
    ];
    for change in changes {
        assert_eq!(
            a.ia.ep_modify(a.ep, &change),
            Err(DatError::state(Subtype::StateEpUnconnected)),
            "{change:?}"
        );
    }
    let fits = with(EpAttr {
        max_recv_dtos: 2,
        max_recv_iov: 1,
        ..attr
    });
    a.ia.ep_modify(a.ep, &fits).expect("two fit");
    assert_eq!(
        a.post_recv(2).map_err(|error| error.return_type()),
        Err(ReturnType::InsufficientResources)
    );
}

#[test]
fn status_and_query_tell_what_is_known() {
    let (net, mut a, b) = connected();
    net.hold();
    a.post_recv(0).expect("posts");
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(
        a.ia.ep_get_status(a.ep),
        Ok(EpStatus {
            state: EpState::Connected,
            recv_idle: false,
            request_idle: false
        })
    );
    let param = a.ia.ep_query(a.ep).expect("exists");
    assert_eq!(
        (param.remote_ia_address, param.remote_port_qual),
        (Some(b.address()), QUAL.0)
    );
    assert_eq!(
        (param.recv_evd, param.request_evd, param.connect_evd),
        (Some(a.recv), Some(a.request), Some(a.connect))
    );
    assert_eq!(
        (param.pz, param.srq, param.local_ia_address),
        (Some(a.pz), None, a.address())
    );
    assert_eq!(
        b.ia.ep_query(b.ep).expect("exists").remote_ia_address,
        Some(a.address())
    );
}
