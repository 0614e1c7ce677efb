//! Endpoint attributes, and which streams may share an EVD.

use super::*;

fn create(a: &mut Side, adjust: impl FnOnce(&mut EpAttr)) -> DatResult<EpHandle> {
    let mut attr = EpAttr::defaults(a.ia.query().ia);
    adjust(&mut attr);
    let evd = || -> EvdFlags { EvdFlags::DTO };
    let (recv, request) = (
        a.ia.evd_create(32, evd()).expect("an EVD"),
        a.ia.evd_create(32, evd()).expect("an EVD"),
    );
    a.ia.ep_create(
        Some(a.pz),
        EpEvds::NONE.recv(recv).request(request).connect(a.connect),
        Some(&attr),
    )
}

#[test]
fn attributes_beyond_the_ia_are_refused() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let bad = Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg6));
    let changes: [fn(&mut EpAttr); 12] = [
        |attr| attr.max_message_size += 1,
        |attr| attr.max_rdma_size += 1,
        |attr| attr.max_recv_dtos = 65,
        |attr| attr.max_request_dtos = 65,
        |attr| attr.max_recv_iov = 9,
        |attr| attr.max_request_iov = 9,
        |attr| attr.max_rdma_read_in = 17,
        |attr| attr.max_rdma_read_out = 17,
        |attr| attr.max_rdma_read_iov = 7,
        |attr| attr.max_rdma_write_iov = 9,
        |attr| attr.recv_completion_flags = CompletionFlags::SUPPRESS,
        |attr| attr.request_completion_flags = CompletionFlags::SOLICITED_WAIT,
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let refused = create(&mut a, change);
        assert_eq!(refused, bad, "change {which}");
        // The last two changes are flags, not amounts.
        let error = refused.expect_err("as was seen");
        let excess = error.excess();
        assert_eq!(excess.is_some(), which < 10, "{error}");
        assert!(
            excess.is_none_or(|(asked, allowed)| asked > allowed),
            "{error}"
        );
    }
    let refused = create(&mut a, |attr| attr.max_recv_dtos = 65).expect_err("one too many");
    assert!(
        refused
            .to_string()
            .ends_with(": max_recv_dtos is beyond max_dto_per_ep: 65 asked for, 64 at most"),
        "{refused}"
    );
    assert_eq!(
        create(&mut a, |attr| attr.qos = Qos::from_bits_retain(0x20)),
        Err(DatError::unsupported())
    );
    assert_eq!(
        create(&mut a, |attr| attr.srq_soft_hw = Some(3)),
        Err(DatError::unsupported())
    );
    create(&mut a, |attr| {
        attr.recv_completion_flags = CompletionFlags::empty()
    })
    .expect("nothing is EVD_THRESHOLD");
}

#[test]
fn evds_need_the_flags_of_their_streams() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let create = |a: &mut Side, recv, request, connect| {
        a.ia.ep_create(
            Some(a.pz),
            EpEvds {
                recv,
                request,
                connect,
            },
            None,
        )
    };
    let (dto, other) = (Some(a.recv), Some(a.connect));
    assert_eq!(
        create(&mut a, other, None, None),
        Err(DatError::handle(Subtype::HandleEvdRecv))
    );
    assert_eq!(
        create(&mut a, dto, other, None),
        Err(DatError::handle(Subtype::HandleEvdRequest))
    );
    assert_eq!(
        create(&mut a, dto, dto, dto),
        Err(DatError::handle(Subtype::HandleEvdConn))
    );
    let foreign = Side::new(&net, |_| {});
    assert_eq!(
        create(&mut a, Some(foreign.recv), None, None),
        Err(DatError::handle(Subtype::HandleEvdRecv))
    );
    assert_eq!(
        a.ia.ep_create(Some(foreign.pz), EpEvds::NONE, None),
        Err(DatError::handle(Subtype::HandlePz))
    );
}

#[test]
fn strictly_an_evd_takes_streams_of_one_kind_of_notification() {
    let net = Net::default();
    for strict in [true, false] {
        let config = IaConfig {
            strict_evd_sharing: strict,
            ..IaConfig::default()
        };
        let mut a = Side::with(&net, config, |_| {});
        let mixed =
            a.ia.evd_create(64, EvdFlags::DTO | EvdFlags::CONNECTION)
                .expect("an EVD");
        let plain = EpAttr::defaults(a.ia.query().ia);
        let unsignalled = EpAttr {
            request_completion_flags: CompletionFlags::UNSIGNALLED,
            ..plain
        };
        let both = EpAttr {
            recv_completion_flags: CompletionFlags::UNSIGNALLED,
            ..unsignalled
        };
        let answer = |result: DatResult<EpHandle>| match result {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        let refused = if strict {
            Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg6))
        } else {
            Ok(())
        };
        let (evd, pz) = (Some(mixed), Some(a.pz));
        assert_eq!(
            answer(a.ia.ep_create(
                pz,
                EpEvds {
                    recv: evd,
                    request: evd,
                    connect: None
                },
                Some(&unsignalled)
            )),
            refused,
            "unequal flags"
        );
        assert_eq!(
            answer(a.ia.ep_create(
                pz,
                EpEvds {
                    recv: evd,
                    request: evd,
                    connect: evd
                },
                Some(&both)
            )),
            refused,
            "and connection events"
        );
        a.ia.ep_create(
            pz,
            EpEvds {
                recv: evd,
                request: evd,
                connect: evd,
            },
            Some(&plain),
        )
        .expect("all of them count");
        assert_eq!(
            answer(a.ia.ep_create(
                pz,
                EpEvds {
                    recv: evd,
                    request: evd,
                    connect: None
                },
                Some(&both)
            )),
            refused,
            "beside one that counts"
        );
    }
}

#[test]
fn a_failed_creation_leaves_no_trace() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let attr = EpAttr {
        qos: Qos::from_bits_retain(0x10),
        ..EpAttr::defaults(a.ia.query().ia)
    };
    let evd = a.ia.evd_create(8, EvdFlags::DTO).expect("an EVD");
    a.ia.ep_create(Some(a.pz), EpEvds::dto(evd), Some(&attr))
        .expect_err("quality of service");
    a.ia.evd_free(evd).expect("nothing feeds it");
}
