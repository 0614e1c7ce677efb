//! Completion statuses of DTOs: every status that a reliable connection can produce, and the text for each.
//!
//! A test makes one DTO fail and then checks all results: the failed DTO has its status, later DTOs are flushed in the
//! order of posting, and each side gets one event for the end of its connection. `ERR_PARTIAL_PACKET` cannot happen,
//! because the device has no code for this error. `rmr.rs` tests `RMR_OPERATION_FAILED`.

use hw_sim::wire::Operation;
use hw_sim::{Drive, Faults, LinkFaults};
use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype, strerror};
use udapl::event::DtoCompletion;
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DatError, DtoStatus, MemPrivFlags, explain,
};

use crate::support::shared::Shared;
use crate::support::{A, B, Buffer, NONE, Pair};

/// An empty I/O vector, with its type.
const EMPTY: &[LmrTriplet] = &[];
/// Words of advice: the text of each failed completion contains at least one of them.
const ADVICE: [&str; 7] = [
    "check",
    "compare",
    "look",
    "post more",
    "suspect",
    "report",
    "note",
];

/// Checks the text of a completion: DAT's name and number of the status, the device's syndromes, and the advice.
#[track_caller]
fn assert_explained(done: &DtoCompletion, number: u32, syndrome: u8) {
    let text = explain(done);
    assert_eq!(done.syndrome().0, syndrome, "{text}");
    let queue = if done.request { "request" } else { "receive" };
    let head = format!(
        "{queue} failed: {} ({number}), syndrome {syndrome:#04x}, vendor syndrome {:#04x}: ",
        done.status.name(),
        done.syndrome().1
    );
    let advice = text
        .strip_prefix(&head)
        .unwrap_or_else(|| panic!("{text:?} begins with {head:?}"));
    assert!(
        advice.len() > 20 && ADVICE.iter().any(|word| advice.contains(word)),
        "{text}"
    );
}

impl Pair {
    /// Posts one receive of 64 bytes on a side for each cookie, all into one buffer. Returns the buffer.
    fn receives(&mut self, side: usize, cookies: &[u64]) -> Buffer {
        let buffer = self.buffer(side, 64);
        for &cookie in cookies {
            self.post_recv(side, &[buffer.all()], cookie, NONE)
                .expect("posted");
        }
        buffer
    }

    /// Checks that exactly these receives of the side are flushed, in this order.
    #[track_caller]
    fn expect_flushed_receives(&mut self, side: usize, cookies: &[u64]) {
        for &cookie in cookies {
            let done = self.expect_recv(side, cookie, DtoStatus::ErrFlushed);
            assert_explained(&done, 1, 0x05);
        }
        self.expect_nothing(side, self.sides[side].recv);
    }

    /// Checks that exactly these requests of the side are flushed, in this order.
    #[track_caller]
    fn expect_flushed_requests(&mut self, side: usize, cookies: &[u64]) {
        for &cookie in cookies {
            let done = self.expect_request(side, cookie, DtoStatus::ErrFlushed);
            assert_explained(&done, 1, 0x05);
        }
        self.expect_nothing(side, self.sides[side].request);
    }

    /// Drops all frames to the side from now on.
    fn drop_frames_to(&mut self, side: usize) {
        let nothing = Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        };
        let faults = if side == A {
            LinkFaults {
                b_to_a: nothing,
                ..LinkFaults::NONE
            }
        } else {
            LinkFaults {
                a_to_b: nothing,
                ..LinkFaults::NONE
            }
        };
        self.fabric.sim.set_faults(self.fabric.link, faults);
    }

    /// Posts a receive and a Send on the ended connection, and waits until both are flushed. The provider flushes them
    /// after all earlier DTOs, so no other completion is outstanding then.
    #[track_caller]
    fn expect_markers(&mut self, side: usize) {
        self.post_recv(side, EMPTY, 98, NONE).expect("posted");
        self.post_send(side, EMPTY, 99, CompletionFlags::SUPPRESS)
            .expect("posted");
        self.expect_flushed_receives(side, &[98]);
        self.expect_flushed_requests(side, &[99]);
    }
}

/// Checks the effects of a failure of A's request 1. Before the call, A has posted the requests 1, 2 and 3, and two
/// receives with the cookies 11 and 12. The function checks A's completions and the connection event of each side. The
/// caller checks B's completions. `status` consists of the status of request 1, the DAT number of that status, and the
/// device's syndrome. `ends` has the connection event of each side.
fn fail_first_request(
    pair: &mut Pair,
    status: (DtoStatus, u32, u8),
    ends: [ConnectionEventKind; 2],
) {
    let done = pair.expect_request(A, 1, status.0);
    assert_explained(&done, status.1, status.2);
    pair.expect_flushed_requests(A, &[2, 3]);
    pair.expect_flushed_receives(A, &[11, 12]);
    for side in [A, B] {
        pair.expect_end(side, ends[side]);
    }
    pair.expect_markers(A);
}

const BROKEN: ConnectionEventKind = ConnectionEventKind::Broken;
const DISCONNECTED: ConnectionEventKind = ConnectionEventKind::Disconnected;

/// Clauses: SEND-28, RECV-26.
#[test]
fn what_is_outstanding_when_a_connection_ends_is_flushed_in_order() {
    let mut pair = Pair::connected();
    let from = pair.buffer(A, 64);
    for side in [A, B] {
        pair.receives(side, &[11, 12, 13]);
    }
    pair.drop_frames_to(B);
    for cookie in [1, 2, 3] {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("connected");
    pair.fabric.sim.heal();
    pair.expect_flushed_requests(A, &[1, 2, 3]);
    pair.expect_flushed_receives(A, &[11, 12, 13]);
    pair.expect_end(A, DISCONNECTED);
    pair.expect_end(B, DISCONNECTED);
    pair.expect_flushed_receives(B, &[11, 12, 13]);
    pair.expect_markers(A);
    pair.expect_markers(B);
    pair.assert_no_complaints();
}

/// Clauses: RECV-22.
#[test]
fn a_message_longer_than_its_receive_is_a_length_error_there_and_a_responder_error_here() {
    let mut pair = Pair::connected();
    let from = pair.buffer(A, 65);
    pair.receives(A, &[11, 12]);
    pair.receives(B, &[21, 22, 23]);
    for cookie in [1, 2, 3] {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let done = pair.expect_recv(B, 21, DtoStatus::ErrLocalLength);
    assert_explained(&done, 2, 0x01);
    pair.expect_flushed_receives(B, &[22, 23]);
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrRemoteResponder, 7, 0x12),
        [BROKEN, BROKEN],
    );
    pair.expect_markers(B);
    pair.assert_no_complaints();
}

/// Clauses: RECV-22.
#[test]
fn a_message_that_does_not_fit_in_its_middle_is_a_length_error_too() {
    let mut pair = Pair::connected();
    let from = pair.buffer(A, 100_000);
    let to = pair.buffer(B, 70_000);
    pair.post_recv(B, &[to.all()], 21, NONE).expect("posted");
    pair.post_recv(B, &[to.all()], 22, NONE).expect("posted");
    pair.post_send(A, &[from.all()], 1, NONE).expect("posted");
    let done = pair.expect_recv(B, 21, DtoStatus::ErrLocalLength);
    assert_explained(&done, 2, 0x01);
    pair.expect_flushed_receives(B, &[22]);
    let done = pair.expect_request(A, 1, DtoStatus::ErrRemoteResponder);
    assert_explained(&done, 7, 0x12);
    pair.expect_end(A, BROKEN);
    pair.expect_end(B, BROKEN);
    pair.assert_no_complaints();
}

#[test]
fn a_receive_whose_region_was_freed_is_a_protection_error_there_and_a_responder_error_here() {
    let mut pair = Pair::connected();
    let (from, gone) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.receives(A, &[11, 12]);
    pair.post_recv(B, &[gone.all()], 21, NONE).expect("posted");
    pair.receives(B, &[22, 23]);
    pair.sides[B]
        .ia
        .lmr_free(gone.lmr.lmr)
        .expect("a DTO holds no LMR");
    for cookie in [1, 2, 3] {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let done = pair.expect_recv(B, 21, DtoStatus::ErrLocalProtection);
    assert_explained(&done, 4, 0x04);
    pair.expect_flushed_receives(B, &[22, 23]);
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrRemoteResponder, 7, 0x14),
        [BROKEN, BROKEN],
    );
    pair.assert_no_complaints();
}

#[test]
fn a_shared_buffer_whose_region_was_freed_breaks_the_connection_that_took_it_and_no_other() {
    let mut shared = Shared::connected();
    let (from, gone, to) = (
        shared.pair.buffer(A, 64),
        shared.pair.buffer(B, 64),
        shared.pair.buffer(B, 64),
    );
    shared.post(&[gone.all()], 21).expect("posted");
    shared.post(&[to.all()], 22).expect("posted");
    shared.pair.sides[B]
        .ia
        .lmr_free(gone.lmr.lmr)
        .expect("a DTO holds no LMR");
    shared.send(0, &[from.all()], 1, NONE).expect("posted");
    let done = shared.received(0);
    assert_eq!(
        (done.cookie.0, done.status),
        (21, DtoStatus::ErrLocalProtection)
    );
    assert_explained(&done, 4, 0x04);
    let done = shared
        .pair
        .expect_request(A, 1, DtoStatus::ErrRemoteResponder);
    assert_explained(&done, 7, 0x14);
    shared.pair.expect_end(A, BROKEN);
    shared.pair.expect_end(B, BROKEN);
    // The other connection can still take the other buffer.
    assert_eq!(shared.queued(0), []);
    shared.exchange(1, &from, 64, 22);
    shared.pair.assert_no_complaints();
}

#[test]
fn a_request_whose_region_is_freed_before_it_starts_is_a_protection_error_and_nothing_reaches_the_peer()
 {
    let mut pair = Pair::connected();
    let (sink, gone, source) = (pair.buffer(A, 64), pair.buffer(A, 64), pair.buffer(B, 64));
    pair.receives(A, &[11, 12]);
    let to = pair.receives(B, &[21, 22, 23]);
    to.write(0, &[0xa5; 64]);
    // The fence delays the request while the Read is in flight.
    pair.set_delay(50);
    pair.post_read(A, &[sink.all()], 0, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.post_send(A, &[gone.all()], 1, CompletionFlags::BARRIER_FENCE)
        .expect("posted");
    pair.post_send(A, &[sink.all()], 2, NONE).expect("posted");
    pair.post_send(A, EMPTY, 3, NONE).expect("posted");
    pair.sides[A]
        .ia
        .lmr_free(gone.lmr.lmr)
        .expect("a DTO holds no LMR");
    pair.expect_request(A, 0, DtoStatus::Success);
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrLocalProtection, 4, 0x04),
        [BROKEN, DISCONNECTED],
    );
    pair.expect_flushed_receives(B, &[21, 22, 23]);
    assert_eq!(to.read(0, 64), [0xa5; 64]);
    pair.assert_no_complaints();
}

#[test]
fn a_read_whose_sink_is_freed_before_its_answer_is_a_protection_error() {
    let mut pair = Pair::connected();
    let (gone, source) = (pair.buffer(A, 64), pair.buffer(B, 64));
    gone.write(0, &[0xa5; 64]);
    pair.receives(A, &[11, 12]);
    pair.set_delay(50);
    pair.post_read(A, &[gone.all()], 1, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.post_send(A, EMPTY, 2, CompletionFlags::BARRIER_FENCE)
        .expect("posted");
    pair.post_send(A, EMPTY, 3, NONE).expect("posted");
    pair.sides[A]
        .ia
        .lmr_free(gone.lmr.lmr)
        .expect("a DTO holds no LMR");
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrLocalProtection, 4, 0x04),
        [BROKEN, DISCONNECTED],
    );
    assert_eq!(
        gone.read(0, 64),
        [0xa5; 64],
        "what was freed is not written"
    );
    pair.assert_no_complaints();
}

#[test]
fn a_queue_the_device_finds_inconsistent_is_an_endpoint_error() {
    let mut pair = Pair::connected();
    pair.receives(A, &[11, 12]);
    // A correct driver never causes this status: the test rings the doorbell before the driver has written the WQE.
    pair.fabric.sim.set_drive(Drive::Stepped);
    pair.forge_doorbell(A);
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    pair.fabric.sim.set_drive(Drive::Inline);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    pair.post_send(A, EMPTY, 3, NONE).expect("posted");
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrLocalEp, 3, 0x02),
        [BROKEN, DISCONNECTED],
    );
}

/// Checks that the peer refuses an RDMA Write of A to `remote`.
fn refused_by_the_peer(remote: impl Fn(&mut Pair) -> RmrTriplet) {
    let mut pair = Pair::connected();
    let (remote, from) = (remote(&mut pair), pair.buffer(A, 64));
    pair.receives(A, &[11, 12]);
    pair.receives(B, &[21, 22]);
    pair.post_write(A, &[from.all()], 1, &remote, NONE)
        .expect("posted");
    pair.post_write(A, &[from.all()], 2, &remote, CompletionFlags::SUPPRESS)
        .expect("posted");
    pair.post_send(A, EMPTY, 3, NONE).expect("posted");
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrRemoteAccess, 6, 0x13),
        [BROKEN, BROKEN],
    );
    // No receive was used: all of them are flushed.
    pair.expect_flushed_receives(B, &[21, 22]);
    pair.expect_markers(B);
    pair.assert_no_complaints();
}

#[test]
fn memory_the_peer_does_not_give_is_a_remote_access_error() {
    refused_by_the_peer(|pair| {
        let (pz, rights) = (
            pair.sides[B].pz,
            MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_READ,
        );
        pair.buffer_in(B, 64, pz, rights).remote(0, 64)
    });
    refused_by_the_peer(|pair| {
        let gone = pair.buffer(B, 64);
        pair.sides[B].ia.lmr_free(gone.lmr.lmr).expect("freed");
        gone.remote(0, 64)
    });
    refused_by_the_peer(|pair| pair.buffer(B, 64).remote(1, 64));
    refused_by_the_peer(|_| RmrTriplet {
        rmr_context: 0xdead_be00,
        target_address: 0,
        segment_length: 64,
    });
}

#[test]
fn more_reads_than_the_peer_takes_are_a_responder_error() {
    let mut pair = Pair::shaped(|side, attr| {
        (attr.max_rdma_read_in, attr.max_rdma_read_out) = if side == A { (1, 4) } else { (1, 1) };
    });
    let (sink, source) = (pair.buffer(A, 65_536), pair.buffer(B, 65_536));
    pair.raise_read_depth(A, 2);
    pair.receives(A, &[11, 12]);
    pair.set_delay(1);
    for cookie in [0, 1, 2, 3] {
        pair.post_read(A, &[sink.all()], cookie, &source.remote(0, 65_536), NONE)
            .expect("posted");
    }
    // The peer executes and acknowledges the first Read, which was within its limit.
    pair.expect_request(A, 0, DtoStatus::Success);
    fail_first_request(
        &mut pair,
        (DtoStatus::ErrRemoteResponder, 7, 0x12),
        [BROKEN, BROKEN],
    );
}

#[test]
fn a_peer_that_does_not_answer_is_a_transport_error_after_all_retries() {
    let mut pair = Pair::connected();
    pair.receives(A, &[11, 12]);
    pair.receives(B, &[21, 22]);
    pair.drop_frames_to(B);
    let before = pair.now();
    for cookie in [1, 2, 3] {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    let done = pair.expect_request(A, 1, DtoStatus::ErrTransport);
    assert_explained(&done, 8, 0x15);
    // Eight ACK timeouts of 4.096 us * 2^17 each.
    let took = pair.now().0 - before.0;
    assert!(
        (8 * 536_000_000..8 * 552_000_000).contains(&took),
        "{took} ns"
    );
    pair.expect_flushed_requests(A, &[2, 3]);
    pair.expect_flushed_receives(A, &[11, 12]);
    pair.expect_end(A, BROKEN);
    assert_eq!(pair.state(B), EpState::Connected, "nothing has told it");
    // B notices the end of the connection once it receives frames again.
    pair.fabric.sim.heal();
    pair.expect_end(B, DISCONNECTED);
    pair.expect_flushed_receives(B, &[21, 22]);
    pair.expect_markers(A);
    pair.assert_no_complaints();
}

#[test]
fn a_peer_without_a_receive_is_not_ready_after_all_retries() {
    let mut pair = Pair::connected();
    pair.receives(A, &[11, 12]);
    let before = pair.now();
    for cookie in [1, 2, 3] {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    let done = pair.expect_request(A, 1, DtoStatus::ErrReceiverNotReady);
    assert_explained(&done, 9, 0x16);
    // Six waits of the RNR timer, 0.64 ms each.
    let took = pair.now().0 - before.0;
    assert!((6 * 640_000..6 * 700_000).contains(&took), "{took} ns");
    pair.expect_flushed_requests(A, &[2, 3]);
    pair.expect_flushed_receives(A, &[11, 12]);
    pair.expect_end(A, BROKEN);
    pair.expect_end(B, DISCONNECTED);
    pair.assert_no_complaints();
}

#[test]
fn a_receive_posted_in_time_saves_the_connection() {
    let mut pair = Pair::connected();
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    for _ in 0..20 {
        pair.pump();
    }
    pair.receives(B, &[21]);
    pair.expect_request(A, 1, DtoStatus::Success);
    pair.expect_recv(B, 21, DtoStatus::Success);
    pair.assert_no_complaints();
}

#[test]
fn an_answer_that_does_not_fit_its_request_is_a_bad_response() {
    let wrong: [(Operation, &[u8]); 4] = [
        (Operation::ReadResponseOnly, &[0; 63]),
        (Operation::ReadResponseOnly, &[0; 65]),
        (Operation::ReadResponseFirst, &[0; 64]),
        (Operation::ReadResponseMiddle, &[0; 64]),
    ];
    for (operation, payload) in wrong {
        let mut pair = Pair::connected();
        let (sink, source) = (pair.buffer(A, 64), pair.buffer(B, 64));
        sink.write(0, &[0xa5; 64]);
        pair.receives(A, &[11, 12]);
        pair.drop_frames_to(A);
        pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), NONE)
            .expect("posted");
        pair.post_read(A, &[sink.all()], 2, &source.remote(0, 64), NONE)
            .expect("posted");
        pair.post_send(A, EMPTY, 3, CompletionFlags::BARRIER_FENCE)
            .expect("posted");
        pair.forge_response(A, operation, payload);
        pair.fabric.sim.heal();
        fail_first_request(
            &mut pair,
            (DtoStatus::ErrBadResponse, 5, 0x10),
            [BROKEN, DISCONNECTED],
        );
        assert_eq!(sink.read(0, 64), [0xa5; 64], "{operation:?}");
        pair.assert_no_complaints();
    }
}

#[test]
fn an_answer_that_does_fit_is_believed() {
    // The forged packet itself is valid: a forged response with the right length completes the Read.
    let mut pair = Pair::connected();
    let (sink, source) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.drop_frames_to(A);
    pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.forge_response(A, Operation::ReadResponseOnly, &[7; 64]);
    pair.expect_request(A, 1, DtoStatus::Success);
    assert_eq!(sink.read(0, 64), [7; 64]);
}

#[test]
fn a_broken_connection_is_broken_once_whoever_fails_more_often() {
    // Both sides fail at the same time, in the request queue and in the receive queue.
    let mut pair = Pair::connected();
    let from = [A, B].map(|side| pair.buffer(side, 65));
    for side in [A, B] {
        pair.receives(side, &[11, 12]);
    }
    pair.set_delay(10);
    for side in [A, B] {
        for cookie in [1, 2] {
            pair.post_send(side, &[from[side].all()], cookie, NONE)
                .expect("posted");
        }
    }
    for side in [A, B] {
        pair.expect_recv(side, 11, DtoStatus::ErrLocalLength);
        pair.expect_flushed_receives(side, &[12]);
        let first = pair.wait_request(side);
        assert!(
            matches!(
                first.status,
                DtoStatus::ErrRemoteResponder | DtoStatus::ErrFlushed
            ),
            "{first:?}"
        );
        pair.expect_flushed_requests(side, &[2]);
    }
    for side in [A, B] {
        pair.expect_end(side, BROKEN);
    }
    pair.assert_no_complaints();
}

#[test]
fn a_success_is_explained_with_its_length() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 9), pair.buffer(B, 64));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    assert_eq!(
        explain(&pair.wait_request(A)),
        "request done: DAT_DTO_SUCCESS (0), 9 bytes"
    );
    assert_eq!(
        explain(&pair.wait_recv(B)),
        "receive done: DAT_DTO_SUCCESS (0), 9 bytes"
    );
}

#[test]
fn whatever_the_device_may_say_there_is_advice() {
    let mut pair = Pair::connected();
    pair.receives(A, &[1]);
    pair.disconnect();
    let mut done = pair.wait_recv(A);
    for syndrome in 0..=u8::MAX {
        for vendor in [0, 0x8a, 0x93, 0xff] {
            done.detail = udapl::event::DtoDetail::of_syndrome((syndrome, vendor));
            assert_explained(&done, 1, syndrome);
        }
    }
}

/// Numbers of return codes, with their names.
type Names = Vec<(u32, &'static str)>;

/// Reads `tables/return_codes.txt`, the return codes of `dat_error.h`. Returns the types and the subtypes.
fn return_codes() -> (Names, Names) {
    let rows = include_str!("tables/return_codes.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let parsed = rows.filter(|line| !line.is_empty()).map(|line| {
        let [kind, number, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{line:?}");
        };
        let digits = number.strip_prefix("0x").expect("hexadecimal");
        (
            kind,
            u32::from_str_radix(digits, 16).expect("a number"),
            name,
        )
    });
    let (types, subtypes): (Vec<_>, Vec<_>) = parsed.partition(|(kind, ..)| *kind == "type");
    let plain = |rows: Vec<(&str, u32, &'static str)>| {
        rows.into_iter()
            .map(|(_, number, name)| (number, name))
            .collect()
    };
    (plain(types), plain(subtypes))
}

/// Clauses: STR-1.
#[test]
fn every_return_code_has_the_text_of_the_table() {
    let (types, subtypes) = return_codes();
    assert_eq!((types.len(), subtypes.len()), (21, 102));
    for &(kind, kind_name) in &types {
        for &(subtype, subtype_name) in &subtypes {
            let minor = if subtype == 0 { "" } else { subtype_name };
            for class in [0x8000_0000, 0] {
                assert_eq!(strerror(class | kind | subtype), Some((kind_name, minor)));
            }
            let error = DatError::new(
                ReturnType::from_value(kind).expect(kind_name),
                u16::try_from(subtype)
                    .ok()
                    .and_then(Subtype::from_value)
                    .expect(subtype_name),
            );
            let code = 0x8000_0000 | kind | subtype;
            assert_eq!(error.code(), code);
            let text = if subtype == 0 {
                format!("{kind_name} ({code:#010x})")
            } else {
                format!("{kind_name}|{subtype_name} ({code:#010x})")
            };
            assert_eq!(error.names().to_string(), text);
            // The text of an error without a detail explains the numbers.
            let meaning = error.to_string();
            let meaning = meaning
                .strip_prefix(&text)
                .and_then(|rest| rest.strip_prefix(": "));
            assert!(meaning.is_some_and(|meaning| meaning.len() > 10), "{error}");
            assert_eq!(
                error.because("so it is").to_string(),
                format!("{text}: so it is")
            );
        }
    }
}

/// Clauses: STR-2.
#[test]
fn numbers_that_are_in_no_table_have_no_text() {
    let (types, subtypes) = return_codes();
    assert_eq!(strerror(0), Some(("DAT_SUCCESS", "")));
    for kind in (0x1_0000..0x4000_0000).step_by(0x1_0000) {
        let known = types.iter().any(|(number, _)| *number == kind);
        assert_eq!(
            strerror(0x8000_0000 | kind).is_some(),
            known,
            "{kind:#010x}"
        );
    }
    for subtype in 0..=0xffff {
        let known = subtypes.iter().any(|(number, _)| *number == subtype);
        assert_eq!(
            strerror(0x8007_0000 | subtype).is_some(),
            known,
            "{subtype:#06x}"
        );
    }
    // A warning class, the warning and error classes combined, an error without a type, the same with a subtype, and a
    // success with a subtype.
    for code in [
        0x4001_0000,
        0xc001_0000,
        0x8000_0000,
        0x8000_0001,
        0x0000_0001,
    ] {
        assert_eq!(strerror(code), None, "{code:#010x}");
    }
}
