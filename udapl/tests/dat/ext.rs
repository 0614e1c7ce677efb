//! What DAT 1.2 has no call for and the card can do: a rejection that says why, immediate data, atomic operations, invalidation by the
//! peer.

use udapl::{ConnectionEventKind as Kind, EpState, ReturnType, Subtype};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

/// A rejection reaches the peer with what was said, of whichever kind the service is.
#[test]
fn private_data_of_a_rejection_comes_with_the_event() {
    // An IB service ID, and a port of the RDMA CM, which has no place for a length.
    for (service, limit, told) in [(CONN_QUAL, 144, 4), (4791, 148, 148)] {
        let mut pair = Pair::unconnected(&PairConfig::default());
        let evd = pair.sides[B].cr;
        if service != CONN_QUAL {
            let flags = udapl::PspFlags::CONSUMER;
            let psp = pair.sides[B].ia.psp_create(service, evd, flags);
            psp.expect("a PSP");
        }
        let ep = pair.sides[A].ep;
        pair.start(A, ep, service, LONG, b"request")
            .expect("UNCONNECTED");
        let cr = pair.request(B);
        let ia = &mut pair.sides[B].ia;
        let long = refused(
            ia.cr_reject_with(cr, &vec![1; limit + 1]),
            ReturnType::InvalidParameter,
        );
        assert_eq!(long.subtype(), Subtype::Arg2);
        ia.cr_reject_with(cr, b"full").expect("still undecided");
        refused(ia.cr_reject_with(cr, b"again"), ReturnType::InvalidHandle);
        let event = pair.connection_event(A);
        assert_eq!(
            (event.kind, event.private_data_size),
            (Kind::PeerRejected, told)
        );
        let data = pair.sides[A].ia.ep_private_data(ep).expect("an endpoint");
        assert_eq!((&data[..4], data.len()), (&b"full"[..], told));
        assert!(data[4..].iter().all(|&byte| byte == 0));
        pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
        let data = pair.sides[A].ia.ep_private_data(ep).expect("an endpoint");
        assert_eq!(data, b"");
        pair.connect();
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

#[test]
fn a_rejection_that_says_nothing_brings_nothing() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.start_usual();
    let cr = pair.request(B);
    pair.sides[B].ia.cr_reject(cr).expect("undecided");
    let event = pair.connection_event(A);
    assert_eq!(
        (event.kind, event.private_data_size),
        (Kind::PeerRejected, 0)
    );
    assert_eq!(pair.state(A), EpState::Disconnected);
}
