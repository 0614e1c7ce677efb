//! Private data of a request and an accept: exact where the transport allows it, padded where it does not.

use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::{ConnQual, ConnectionEventKind as Kind, PspFlags};

use crate::support::{self, A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

/// Connects A to `conn_qual` of B, with the given private data in the request and in the accept. Returns the pair, the
/// data that B received, and the data that A received.
fn exchange_private_data(
    conn_qual: ConnQual,
    request: &[u8],
    accept: &[u8],
) -> (Pair, Vec<u8>, Vec<u8>) {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.sides[B].cr;
    if conn_qual != CONN_QUAL {
        pair.sides[B]
            .ia
            .psp_create(conn_qual, evd, PspFlags::CONSUMER)
            .expect("a PSP");
    }
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    let mut own = request.to_vec();
    pair.start(A, a, conn_qual, LONG, &own).expect("starts");
    own.fill(0xee); // it is ours again
    let cr = pair.request(B);
    let asked = pair.sides[B]
        .ia
        .cr_query(cr)
        .expect("undecided")
        .private_data
        .to_vec();
    let mut own = accept.to_vec();
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), &own)
        .expect("accepted");
    own.fill(0xee);
    let event = pair.connection_event(A);
    assert_eq!(event.kind, Kind::Established);
    let answered = pair.sides[A]
        .ia
        .ep_private_data(a)
        .expect("connected")
        .to_vec();
    assert_eq!(event.private_data_size, answered.len());
    pair.expect_connection(B, Kind::Established);
    (pair, asked, answered)
}

/// Clauses: CONN-2.
#[test]
fn private_data_arrives_byte_for_byte_whatever_its_length() {
    for bytes in 0..=64 {
        let (request, accept) = (support::pattern(1, bytes), support::pattern(2, 64 - bytes));
        let (mut pair, asked, answered) = exchange_private_data(CONN_QUAL, &request, &accept);
        assert_eq!((asked, &answered), (request, &accept), "{bytes} bytes");
        // The private data is available while the endpoint is DISCONNECTED, and not after the reset.
        pair.disconnect();
        let ep = pair.sides[A].ep;
        assert_eq!(
            pair.sides[A].ia.ep_private_data(ep).expect("exists"),
            accept
        );
        pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
        assert_eq!(pair.sides[A].ia.ep_private_data(ep).expect("exists"), b"");
    }
}

#[test]
fn private_data_that_looks_like_a_header_or_like_padding_arrives_all_the_same() {
    let cases: [&[u8]; 6] = [
        &[0; 64],
        &[0xff; 64],
        &[0; 1],
        &[0xda, 1, 0, 2, 9, 9],
        &[0xda; 64],
        &[0xda, 1],
    ];
    for data in cases {
        let (_, asked, answered) = exchange_private_data(CONN_QUAL, data, data);
        assert_eq!((&asked[..], &answered[..]), (data, data));
    }
}

#[test]
fn private_data_through_a_port_of_the_rdma_cm_is_padded_with_zeros() {
    for (port, bytes) in [(1, 0), (80, 1), (4420, 55), (0xffff, 56)] {
        let (request, accept) = (support::pattern(3, bytes), support::pattern(4, 64 - bytes));
        let (pair, asked, answered) = exchange_private_data(ConnQual(port), &request, &accept);
        let mut padded = request.clone();
        padded.resize(56, 0);
        assert_eq!(asked, padded, "{bytes} bytes");
        let mut padded = accept.clone();
        padded.resize(196, 0);
        assert_eq!(answered, padded, "{bytes} bytes");
        // The active side has a port of its own, which the passive side reports as remote port.
        let param = pair.sides[A].ia.ep_query(pair.sides[A].ep).expect("exists");
        assert!(
            (0xc000..=0xffff).contains(&param.local_port_qual),
            "{}",
            param.local_port_qual
        );
        assert_eq!(param.remote_port_qual, port);
        let peer = pair.sides[B].ia.ep_query(pair.sides[B].ep).expect("exists");
        assert_eq!(peer.remote_port_qual, param.local_port_qual);
    }
}

#[test]
fn an_accept_with_too_much_private_data_leaves_the_request_undecided() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    pair.start_usual();
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let error = refused(
        pair.sides[B].ia.cr_accept(cr, Some(b), &[0; 65]),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg3);
    refused(
        pair.sides[B].ia.cr_accept(cr, None, b""),
        ReturnType::InvalidHandle,
    );
    assert_eq!(pair.state(B), EpState::Unconnected);
    assert_eq!(
        pair.sides[B]
            .ia
            .cr_query(cr)
            .expect("undecided")
            .private_data,
        b"request"
    );
    pair.sides[B]
        .ia
        .cr_accept(cr, Some(b), &[0; 64])
        .expect("as much as fits");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
    pair.assert_no_complaints();
}
