//! `ep_post_send_inline`: Sends whose data is copied into the queue. An addition to DAT 1.2.

use udapl::endpoint::EpChange;
use udapl::error::{ReturnType, Subtype};
use udapl::{CompletionFlags, DtoCookie, DtoStatus};

use crate::support::{self, A, B, NONE, Pair, PairConfig, refused};

fn pair(max_request_iov: u32) -> Pair {
    Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.max_request_iov = max_request_iov;
    }))
}

/// Makes a pair of which side A waits without limit for a receive. In a machine whose time goes by itself, the usual
/// retries would end while the queue is filled.
fn patient_pair(max_request_iov: u32) -> Pair {
    let config = PairConfig::with_attr(|attr| attr.max_request_iov = max_request_iov);
    let mut pair = Pair::unconnected(&config);
    let side = &mut pair.sides[A];
    let mut transport = side.ia.ep_query(side.ep).expect("an EP").transport;
    transport.rnr_retry = Some(7);
    let change = EpChange {
        transport: Some(transport),
        ..EpChange::default()
    };
    side.ia.ep_modify(side.ep, &change).expect("unconnected");
    pair.connect();
    pair
}

fn limit(pair: &Pair) -> usize {
    let side = &pair.sides[A];
    side.ia.ep_inline_limit(side.ep).expect("an endpoint")
}

fn post(pair: &mut Pair, data: &[u8], cookie: u64, flags: CompletionFlags) -> udapl::DatResult<()> {
    let side = &mut pair.sides[A];
    side.ia
        .ep_post_send_inline(side.ep, data, DtoCookie(cookie), flags)
}

#[test]
fn every_length_up_to_the_limit_arrives_and_the_bytes_are_the_callers_again_at_once() {
    let mut pair = pair(4);
    let limit = limit(&pair);
    assert!(limit >= 64, "{limit}");
    let to = pair.buffer(B, 4096);
    for bytes in 0..=limit {
        let mut data = support::pattern(bytes as u64, bytes);
        let sent = data.clone();
        pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
        post(&mut pair, &data, bytes as u64, NONE).expect("posted");
        data.fill(0xee);
        let request = pair.wait_request(A);
        assert_eq!(
            (request.cookie.0, request.status, request.transferred_length),
            (bytes as u64, DtoStatus::Success, bytes as u64)
        );
        assert_eq!(pair.wait_recv(B).transferred_length, bytes as u64);
        assert_eq!(to.read(0, bytes), sent);
    }
    pair.assert_no_complaints();
}

#[test]
fn room_for_more_segments_is_room_for_more_bytes() {
    let limits = [1, 4, 8].map(|max_request_iov| limit(&pair(max_request_iov)));
    // WQEs of 1, 2 and 3 blocks of 64 bytes, less 16 bytes for the control segment and 4 bytes for the inline header.
    assert_eq!(limits, [44, 108, 172]);
}

#[test]
fn a_byte_too_many_is_refused_and_nothing_is_posted() {
    let mut pair = pair(4);
    let limit = limit(&pair);
    let error = refused(
        post(&mut pair, &vec![0; limit + 1], 1, NONE),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2);
    let error = refused(
        post(&mut pair, &[0], 1, CompletionFlags::all()),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg4);
    let evd = pair.sides[A].request;
    pair.expect_nothing(A, evd);
}

#[test]
fn a_full_queue_refuses_and_takes_the_next_one_when_there_is_room() {
    let mut pair = patient_pair(4);
    let side = &mut pair.sides[A];
    let max = support::attributes(&side.ia).max_request_dtos;
    for cookie in 0..u64::from(max) {
        post(&mut pair, b"waits for a receive", cookie, NONE).expect("room");
    }
    refused(
        post(&mut pair, b"one too many", 0, NONE),
        ReturnType::InsufficientResources,
    );
    let to = pair.buffer(B, 4096);
    pair.post_recv(B, &[to.all()], 0, NONE).expect("posted");
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(0));
    post(&mut pair, b"room again", 0, NONE).expect("room");
}

#[test]
fn on_a_disconnected_endpoint_it_is_flushed_and_before_that_refused() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    refused(post(&mut pair, b"early", 1, NONE), ReturnType::InvalidState);
    pair.connect();
    pair.disconnect();
    post(&mut pair, b"late", 2, NONE).expect("posted");
    let request = pair.wait_request(A);
    assert_eq!(
        (request.cookie.0, request.status),
        (2, DtoStatus::ErrFlushed)
    );
}
