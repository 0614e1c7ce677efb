//! Opening and closing.

use super::*;

#[test]
fn a_graceful_close_wants_everything_freed() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let refused =
        a.ia.close(CloseFlags::Graceful)
            .expect_err("objects are left");
    assert_eq!(refused.error, DatError::state(Subtype::StateIaInUse));
    assert_eq!(refused.error.excess(), None);
    let text = refused.error.to_string();
    assert!(
        text.ends_with("objects are left in the IA: 1 EP, 3 EVDs, 1 LMR, 1 PZ"),
        "{text}"
    );
    let mut ia = refused.ia;
    let text = ia.pz_free(a.pz).expect_err("in use").to_string();
    assert!(
        text.ends_with("objects are in the zone: 1 EP, 1 LMR"),
        "{text}"
    );
    ia.ep_free(a.ep).expect("frees");
    ia.lmr_free(a.lmr.lmr).expect("frees");
    [a.recv, a.request, a.connect]
        .into_iter()
        .for_each(|evd| ia.evd_free(evd).expect("frees"));
    ia.pz_free(a.pz).expect("frees");
    ia.close(CloseFlags::Graceful)
        .expect("nothing but the asynchronous EVD");
    assert_eq!(net.leaked(0), [""; 0]);
}

#[test]
fn an_abrupt_close_ends_everything_and_leaks_nothing() {
    let (net, mut a, mut b) = connected();
    let srq =
        a.ia.srq_create(
            a.pz,
            SrqAttr {
                max_recv_dtos: 4,
                max_recv_iov: 1,
                low_watermark: 0,
            },
        )
        .expect("an SRQ");
    let attr = EpAttr::defaults(a.ia.query().ia);
    a.ia.ep_create_with_srq(Some(a.pz), EpEvds::NONE, srq, &attr)
        .expect("an EP");
    a.ia.psp_create_any(a.connect, PspFlags::CONSUMER)
        .expect("listens");
    a.post_recv(0).expect("posts");
    a.ia.close(CloseFlags::Abrupt).expect("closes");
    assert_eq!(net.leaked(0), [""; 0]);
    b.ia.progress();
    assert_eq!(b.connection_events(), [ConnectionEventKind::Disconnected]);
}

#[test]
fn an_undecided_request_is_refused_by_the_close() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    request(&mut a, &mut b, b"");
    b.ia.close(CloseFlags::Abrupt).expect("closes");
    a.ia.progress();
    assert_eq!(
        a.connection_events(),
        [ConnectionEventKind::NonPeerRejected]
    );
}

#[test]
fn an_ia_tells_what_it_is() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let param = a.ia.query();
    assert_eq!(param.async_evd, a.ia.async_evd());
    assert_eq!(
        (param.ia.max_message_size, param.ia.max_iov_segments_per_dto),
        (1 << 30, 8)
    );
    assert!(param.provider.max_private_data_size >= 64);
    assert_eq!(256 % param.provider.optimal_buffer_alignment, 0);
    assert_eq!(
        param.ia.ia_address,
        "fe80::200:ff:fe00:1".parse::<IpAddr>().expect("an address")
    );
    let zero = IaConfig {
        async_evd_min_qlen: 0,
        ..IaConfig::default()
    };
    assert_eq!(
        Ia::open(net.node(), zero).expect_err("an EVD of nothing"),
        DatError::new(ReturnType::InvalidParameter, Subtype::Arg2)
    );
    assert_eq!(
        CloseFlags::from_value(2),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
}

#[test]
fn a_close_tells_every_peer_however_little_leaves_at_a_time() {
    let (net, mut a, mut b) = connected();
    let mut others = Vec::new();
    for _ in 0..5 {
        let attr = EpAttr::defaults(a.ia.query().ia);
        let ep = |side: &mut Side| {
            let (pz, evd) = (Some(side.pz), Some(side.connect));
            side.ia
                .ep_create(
                    pz,
                    EpEvds {
                        recv: None,
                        request: None,
                        connect: evd,
                    },
                    Some(&attr),
                )
                .expect("an EP")
        };
        (a.ep, b.ep) = (ep(&mut a), ep(&mut b));
        connect(&mut a, &mut b);
        others.push(b.ep);
    }
    net.narrow(2);
    a.ia.close(CloseFlags::Abrupt).expect("closes");
    b.ia.progress();
    assert_eq!(
        b.connection_events(),
        [ConnectionEventKind::Disconnected; 6]
    );
}

/// The limit of the wait for last SRQ buffers is one limit for the whole close.
#[test]
fn a_close_waits_once_for_a_device_that_reports_no_last_buffers() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let attr = SrqAttr {
        max_recv_dtos: 4,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let srq = b.ia.srq_create(b.pz, attr).expect("an SRQ");
    let attr = EpAttr::defaults(b.ia.query().ia);
    for _ in 0..10 {
        let evds = EpEvds::NONE.connect(a.connect);
        let ep = a.ia.ep_create(Some(a.pz), evds, Some(&attr));
        a.ep = ep.expect("an EP");
        let evds = EpEvds::NONE.connect(b.connect);
        let ep = b.ia.ep_create_with_srq(Some(b.pz), evds, srq, &attr);
        b.ep = ep.expect("an EP");
        connect(&mut a, &mut b);
    }
    net.drop_last_buffers();
    let begun = net.now();
    b.ia.close(CloseFlags::Abrupt).expect("closes");
    let took = net.now() - begun;
    assert!((500_000_000..=600_000_000).contains(&took), "{took} ns");
    assert_eq!(net.leaked(1), [""; 0]);
}
