//! `ep_post_recv`: where messages are placed and how receives complete.
//!
//! `recv_states.rs` tests states and limits, `flags.rs` completion flags, `refused.rs` errors. The test program
//! `hotpath` tests that a post allocates nothing (RECV-21).

use udapl::endpoint::EpState;
use udapl::memory::LmrTriplet;
use udapl::{ConnectionEventKind, DtoCookie, DtoStatus, Event};

use crate::support::{self, A, B, Buffer, LONG, NONE, Pair};

const EMPTY: &[LmrTriplet] = &[];
/// A segment of no bytes with invalid fields, which are ignored.
const NOTHING: LmrTriplet = LmrTriplet {
    lmr_context: 0xffff_ffff,
    virtual_address: u64::MAX,
    segment_length: 0,
};

/// Clauses: RECV-10, RECV-27, RECV-R5.
#[test]
fn messages_go_into_receives_in_posting_order_one_into_each() {
    let mut pair = Pair::connected();
    let lengths = [1, 4096, 0, 5000, 1024, 3, 2048, 1];
    let (from, to) = (pair.buffer(A, 5000), pair.buffer(B, 8 * 5000));
    let data = support::pattern(1, 5000);
    from.write(0, &data);
    for (at, _) in lengths.iter().enumerate() {
        pair.post_recv(B, &[to.part(at * 5000, 5000)], at as u64, NONE)
            .expect("posted");
    }
    for &bytes in &lengths {
        pair.post_send(A, &[from.part(0, bytes)], 0, NONE)
            .expect("posted");
    }
    for (at, &bytes) in lengths.iter().enumerate() {
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.ep, received.cookie.0, received.request),
            (pair.sides[B].ep, at as u64, false)
        );
        assert_eq!(
            (received.status, received.transferred_length),
            (DtoStatus::Success, bytes as u64)
        );
        assert_eq!(to.read(at * 5000, bytes), data[..bytes]);
        assert_eq!(
            to.read(at * 5000 + bytes, 5000 - bytes),
            vec![0; 5000 - bytes]
        );
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    }
    pair.expect_nothing(B, pair.sides[B].recv);
    pair.assert_no_complaints();
}

/// Clauses: RECV-2, RECV-3.
#[test]
fn a_receive_without_segments_takes_a_message_of_no_bytes() {
    let mut pair = Pair::connected();
    let to = pair.buffer(B, 16);
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.post_recv(B, &[NOTHING; 8], 2, NONE)
        .expect("segments of no bytes are none");
    pair.post_recv(B, &[to.all()], 3, NONE).expect("posted");
    for cookie in 1..4 {
        pair.post_send(A, EMPTY, 0, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!(
            (
                received.cookie.0,
                received.status,
                received.transferred_length
            ),
            (cookie, DtoStatus::Success, 0)
        );
    }
    pair.assert_no_complaints();
}

/// Segments of B's memory, each in the middle of its own slot, with the bytes around them.
struct Scatter {
    buffer: Buffer,
    lengths: Vec<usize>,
}

impl Scatter {
    const PLACE: usize = 8192;
    const INSIDE: usize = 1000;

    fn new(pair: &mut Pair, lengths: &[usize]) -> Self {
        let buffer = pair.buffer(B, Self::PLACE * lengths.len());
        buffer.write(0, &vec![0xcc; buffer.bytes]);
        Self {
            buffer,
            lengths: lengths.to_vec(),
        }
    }

    fn iov(&self) -> Vec<LmrTriplet> {
        // The segments use the slots in reverse order, because the order of addresses must not matter.
        let last = self.lengths.len() - 1;
        let place = |at: usize| (last - at) * Self::PLACE + Self::INSIDE;
        self.lengths
            .iter()
            .enumerate()
            .map(|(at, &bytes)| self.buffer.part(place(at), bytes))
            .collect()
    }

    /// Returns the expected memory after a message of `data`: segments filled in order, all else unchanged.
    fn after(&self, mut data: &[u8]) -> Vec<u8> {
        let mut memory = vec![0xcc; self.buffer.bytes];
        let last = self.lengths.len() - 1;
        for (at, &bytes) in self.lengths.iter().enumerate() {
            let place = (last - at) * Self::PLACE + Self::INSIDE;
            let (here, rest) = data.split_at(bytes.min(data.len()));
            memory[place..place + here.len()].copy_from_slice(here);
            data = rest;
        }
        memory
    }
}

/// Clauses: RECV-2, RECV-11, RECV-12.
#[test]
fn a_message_fills_the_segments_from_the_first_on_and_touches_nothing_else() {
    let shapes: [&[usize]; 6] = [
        &[5000],
        &[1, 1, 1, 4997],
        &[3000, 2000],
        &[1023, 1, 1024, 7, 2945],
        &[0, 2500, 0, 0, 2500, 0],
        &[625; 8],
    ];
    for lengths in shapes {
        let mut pair = Pair::connected();
        let from = pair.buffer(A, 5000);
        let data = support::pattern(2, 5000);
        from.write(0, &data);
        let mut edges: Vec<usize> = lengths
            .iter()
            .scan(0, |end, bytes| {
                *end += bytes;
                Some(*end)
            })
            .flat_map(|end: usize| [end.saturating_sub(1), end, end + 1])
            .chain([0, 1, 1024, 1025, 4096])
            .filter(|&bytes| bytes <= 5000)
            .collect();
        edges.dedup();
        for bytes in edges {
            let scatter = Scatter::new(&mut pair, lengths);
            pair.post_recv(B, &scatter.iov(), 1, NONE).expect("posted");
            pair.post_send(A, &[from.part(0, bytes)], 2, NONE)
                .expect("posted");
            let received = pair.wait_recv(B);
            assert_eq!(
                (received.status, received.transferred_length),
                (DtoStatus::Success, bytes as u64)
            );
            assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
            let memory = scatter.buffer.read(0, scatter.buffer.bytes);
            assert!(
                memory == scatter.after(&data[..bytes]),
                "{bytes} bytes into {lengths:?}"
            );
            pair.sides[B]
                .ia
                .lmr_free(scatter.buffer.lmr.lmr)
                .expect("freed");
        }
        pair.assert_no_complaints();
    }
}

/// Clauses: RECV-4, RECV-5, RECV-6.
#[test]
fn any_cookie_comes_back_as_it_was_even_one_used_before() {
    let mut pair = Pair::connected();
    let cookies = [
        0,
        1,
        u64::MAX,
        0,
        0xdead_beef_0000_0001,
        1 << 63,
        7,
        7,
        7,
        u64::from(u32::MAX) + 1,
        0,
    ];
    for cookie in cookies {
        pair.post_recv(B, EMPTY, cookie, NONE).expect("posted");
    }
    for cookie in cookies {
        pair.post_send(A, EMPTY, 1, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.status),
            (cookie, DtoStatus::Success)
        );
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-13.
#[test]
fn the_completion_comes_with_the_message_once_and_on_the_receive_evd_alone() {
    let mut pair = Pair::connected();
    let (recv, request, connect) = (
        pair.sides[B].recv,
        pair.sides[B].request,
        pair.sides[B].connect,
    );
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.expect_nothing(B, recv);
    pair.set_delay(1000);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    assert_eq!(pair.sides[B].ia.evd_dequeue(recv), Ok(None));
    assert_eq!(pair.wait_recv(B).cookie, DtoCookie(1));
    for evd in [recv, request, connect] {
        pair.expect_nothing(B, evd);
    }
}

/// Clauses: RECV-16.
#[test]
fn the_vector_is_the_callers_again_on_return() {
    // `send.rs` tests `iov_ownership_on_return`, the provider's attribute for all posts.
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let data = support::pattern(3, 64);
    from.write(0, &data);
    let mut iov = vec![to.part(32, 32), to.part(0, 32)];
    pair.post_recv(B, &iov, 1, NONE).expect("posted");
    iov.fill(LmrTriplet {
        lmr_context: 1,
        virtual_address: 2,
        segment_length: 3,
    });
    drop(iov);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    assert_eq!(pair.wait_recv(B).transferred_length, 64);
    assert_eq!(to.read(32, 32), data[..32]);
    assert_eq!(to.read(0, 32), data[32..]);
    pair.assert_no_complaints();
}

/// After a receive was accepted, it takes its message without further calls of the receiver.
///
/// Clauses: RECV-20.
#[test]
fn once_accepted_a_receive_needs_nothing_more_from_its_receiver() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 5000), pair.buffer(B, 5000));
    let data = support::pattern(4, 5000);
    from.write(0, &data);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(1000);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    // Only the sender's software runs, until its Send has completed.
    let evd = pair.sides[A].request;
    let (event, _) = pair.sides[A]
        .ia
        .evd_wait(evd, LONG, 1)
        .expect("the Send ends");
    let Event::Dto(sent) = event else {
        panic!("a completion, not {event:?}")
    };
    assert_eq!(sent.status, DtoStatus::Success);
    assert_eq!(to.read(0, 5000), data);
    assert_eq!(pair.wait_recv(B).transferred_length, 5000);
}

/// Clauses: RECV-22, RECV-23, RECV-R7.
#[test]
fn a_message_too_long_by_a_byte_is_a_length_error_and_breaks_the_connection() {
    let shapes: [(&[usize], usize); 6] = [
        (&[], 1),
        (&[8], 9),
        (&[0, 8, 0, 8], 17),
        (&[5000], 5001),
        (&[1024], 1025),
        (&[4096], 60_000),
    ];
    for (lengths, bytes) in shapes {
        let mut pair = Pair::connected();
        let from = pair.buffer(A, bytes);
        from.write(0, &vec![0xdd; bytes]);
        let scatter = Scatter::new(&mut pair, if lengths.is_empty() { &[0] } else { lengths });
        let iov = scatter.iov();
        let iov = if lengths.is_empty() { EMPTY } else { &iov };
        pair.post_recv(B, iov, 1, NONE).expect("posted");
        pair.post_recv(B, EMPTY, 2, NONE).expect("posted");
        pair.post_send(A, &[from.all()], 3, NONE).expect("posted");

        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.status),
            (1, DtoStatus::ErrLocalLength),
            "{bytes} into {lengths:?}"
        );
        assert_eq!(received.status as u32, 2, "DAT_DTO_LENGTH_ERROR");
        let flushed = pair.wait_recv(B);
        assert_eq!(
            (flushed.cookie.0, flushed.status),
            (2, DtoStatus::ErrFlushed)
        );
        pair.expect_connection(B, ConnectionEventKind::Broken);
        assert_eq!(pair.state(B), EpState::Disconnected);
        let sent = pair.wait_request(A);
        assert_eq!(
            (sent.cookie.0, sent.status),
            (3, DtoStatus::ErrRemoteResponder)
        );
        pair.expect_connection(A, ConnectionEventKind::Broken);
        assert_eq!(pair.state(A), EpState::Disconnected);
        for side in [A, B] {
            pair.expect_nothing(side, pair.sides[side].connect);
        }

        // The contents of the segments are undefined now. The bytes around the segments must not change.
        let mut memory = scatter.buffer.read(0, scatter.buffer.bytes);
        let base = scatter.buffer.lmr.registered_address;
        for segment in iov {
            let start = usize::try_from(segment.virtual_address - base).expect("an offset");
            let end = start + usize::try_from(segment.segment_length).expect("a length");
            memory[start..end].fill(0xcc);
        }
        assert!(
            memory.iter().all(|&byte| byte == 0xcc),
            "{bytes} into {lengths:?}"
        );
        pair.assert_no_complaints();
    }
}

/// Clauses: RECV-22.
#[test]
fn a_message_that_fits_exactly_is_no_length_error() {
    for bytes in [1, 8, 1024, 4096, 5000] {
        let mut pair = Pair::connected();
        let (from, to) = (pair.buffer(A, bytes), pair.buffer(B, bytes));
        pair.send(&from, &to, bytes);
        assert_eq!(pair.state(B), EpState::Connected);
    }
}

/// Clauses: RECV-23.
#[test]
fn a_receive_whose_region_is_gone_when_the_message_comes_fails_and_breaks_the_connection() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.sides[B]
        .ia
        .lmr_free(to.lmr.lmr)
        .expect("a free does not wait for DTOs");
    from.write(0, &[0xdd; 64]);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!(
        (received.cookie.0, received.status),
        (1, DtoStatus::ErrLocalProtection)
    );
    pair.expect_connection(B, ConnectionEventKind::Broken);
    assert_ne!(pair.wait_request(A).status, DtoStatus::Success);
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(to.read(0, 64), [0; 64], "freed memory is out of reach");
}
