//! `dat_ep_post_many` and `dat_srq_post_many` (many posts in one call), and `dat_evd_dequeue_many` (many events).

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use udapl::capi::types::{CEpParam, CEvent, CPost, CRegionDescription, CSrqParam, DatHandle};
use udapl::capi::*;
use udapl::memory::{LmrTriplet, RmrTriplet};

use crate::ext::{NONE, SEND_IMMEDIATE, WRITE_IMMEDIATE, completion};
use crate::instances::connect;
use crate::support::{SECOND, World, c, fresh_name, ok, software};

/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER.
const INVALID_PARAMETER: u32 = 0x8006_0000;
/// `DAT_INSUFFICIENT_RESOURCES`, and the mask of a code's type.
const INSUFFICIENT_RESOURCES: u32 = 0x0003_0000;
const TYPE: u32 = 0x3fff_0000;
const SEND: u32 = 0;
const WRITE: u32 = 1;
const RECV: u32 = 3;
const WRITE_WITH_IMMEDIATE: u32 = 8;
const FETCH_ADD: u32 = 10;
const COMPARE_SWAP: u32 = 11;
const SEND_WITH_IMMEDIATE: u32 = 0x100;
const SEND_INVALIDATE: u32 = 0x101;
/// Index of the counter in a side's memory, in words of 8 bytes.
const COUNTER: usize = 128;
/// `DAT_DTO_DETAIL_INVALIDATED`.
const INVALIDATED: u32 = 4;

fn zeros() -> CEvent {
    software(0)
}

/// Makes a list of posts that all use the same segment.
fn posts(segment: &udapl::memory::LmrTriplet, what: &[(u32, u64)]) -> Vec<CPost> {
    let post = |&(operation, user_cookie): &(u32, u64)| CPost {
        operation,
        num_segments: 1,
        local_iov: segment,
        user_cookie,
        remote_buffer: null(),
        completion_flags: 0,
        value: 0,
        operand: 0,
        swap: 0,
    };
    what.iter().map(post).collect()
}

/// Posts the list to an endpoint. Returns the code, and the number of posts made.
fn post_many(ep: DatHandle, posts: &[CPost]) -> (u32, i32) {
    let mut posted = -1;
    let count = i32::try_from(posts.len()).expect("few");
    let answer = c!(dat_ep_post_many(ep, count, posts.as_ptr(), &raw mut posted));
    (answer, posted)
}

/// Waits for `count` events. The wait takes the first event, and one `dat_evd_dequeue_many` takes the others. Returns
/// the cookies of the completions.
fn cookies(world: &World, count: usize) -> Vec<u64> {
    let (mut first, mut left) = (zeros(), 0);
    let threshold = i32::try_from(count).expect("few");
    ok!(dat_evd_wait(
        world.evd,
        SECOND,
        threshold,
        &raw mut first,
        &raw mut left
    ));
    let mut events = [const { None::<CEvent> }; 16].map(|_| zeros());
    let mut taken = -1;
    ok!(dat_evd_dequeue_many(
        world.evd,
        16,
        events.as_mut_ptr(),
        &raw mut taken
    ));
    let taken = usize::try_from(taken).expect("a count");
    std::iter::once(&first)
        .chain(&events[..taken])
        .map(|event| {
            assert_eq!((event.event_number, event.evd_handle), (1, world.evd));
            // SAFETY: the event is a DTO completion.
            let done = unsafe { event.event_data.dto_completion_event_data };
            assert_eq!((done.ep_handle, done.status), (world.ep, 0));
            done.user_cookie
        })
        .collect()
}

/// Posts of one call complete in the order of the list. The two sides are instances of one adapter.
#[test]
fn many_posts_complete_in_their_order() {
    for thread_safe in [false, true] {
        let name = fresh_name();
        let one = World::of(&name, thread_safe, 0x1_0000_0101);
        let other = World::of(&name, thread_safe, 0x1_0000_0201);
        connect(&one, &other, 0x1_0000_0201);
        let (from, to) = (one.segment(), other.segment());
        let room = posts(&to, &[(RECV, 11), (RECV, 12), (RECV, 13), (RECV, 14)]);
        assert_eq!(post_many(other.ep, &room), (0, 4));
        let messages = posts(&from, &[(SEND, 1), (SEND, 2), (SEND, 3), (SEND, 4)]);
        assert_eq!(post_many(one.ep, &messages), (0, 4));
        assert_eq!(cookies(&one, 4), [1, 2, 3, 4]);
        assert_eq!(cookies(&other, 4), [11, 12, 13, 14]);
    }
}

#[test]
fn the_answer_is_that_of_the_first_post_that_is_refused() {
    let world = World::new(false);
    let segment = world.segment();
    let what = |second| posts(&segment, &[(RECV, 1), (second, 2), (RECV, 3)]);
    assert_eq!(
        post_many(world.ep, &what(WRITE)),
        (INVALID_PARAMETER | 38, 1),
        "a Write to nowhere"
    );
    assert_eq!(
        post_many(world.ep, &what(9)),
        (INVALID_PARAMETER | 38, 1),
        "no operation"
    );
    let single = c!(dat_ep_post_send(world.ep, 1, &raw const segment, 2, 0));
    assert_ne!(single, 0, "nobody is connected");
    assert_eq!(post_many(world.ep, &what(SEND)), (single, 1));
    assert_eq!(post_many(world.ep, &[]), (0, 0));
    let bad = c!(dat_ep_post_many(world.ep, -1, null(), null_mut()));
    assert_eq!(bad, INVALID_PARAMETER | 37);
    let nowhere = c!(dat_ep_post_many(world.ep, 1, null(), null_mut()));
    assert_eq!(nowhere, INVALID_PARAMETER | 38);
}

/// On a connected endpoint, an entry that lacks an argument of its operation, or whose operation does not exist, is
/// refused. No other operation is posted in its place, and the entries before the refused entry are posted.
#[test]
fn a_post_beyond_dat_that_says_too_little_is_not_posted_and_those_before_it_are() {
    let (one, other) = counting(0x1_0000_0701);
    let (from, to) = (one.segment(), other.segment());
    let remote = RmrTriplet {
        rmr_context: other.lmr_context,
        target_address: other.memory.as_ptr().addr() as u64,
        segment_length: 64,
    };
    let room = posts(&to, &[(RECV, 1), (RECV, 2)]);
    assert_eq!(post_many(other.ep, &room), (0, 2));
    for operation in [WRITE_WITH_IMMEDIATE, FETCH_ADD, COMPARE_SWAP, 4, 9, 0x102] {
        let list = posts(&from, &[(operation, 6), (SEND, 7)]);
        let (answer, posted) = post_many(one.ep, &list);
        assert_eq!((answer, posted), (INVALID_PARAMETER | 38, 0), "{operation}");
    }
    // The single call refuses the operation with the same code: its result has 8 bytes, and the segment has 64.
    let single = c!(dat_ep_post_fetch_add(
        one.ep,
        &raw const from,
        6,
        &raw const remote,
        1,
        0
    ));
    assert_ne!(single, 0);
    let mut list = posts(&from, &[(SEND, 5), (FETCH_ADD, 6), (SEND, 7)]);
    list[1].remote_buffer = &raw const remote;
    assert_eq!(post_many(one.ep, &list), (single, 1));
    assert_eq!(completion(&one, true), (5, 64, NONE, 0));
    assert_eq!(completion(&other, true), (1, 64, NONE, 0));
    let mut more = 0;
    let mut event = zeros();
    ok!(dat_evd_dequeue_many(
        one.evd,
        1,
        &raw mut event,
        &raw mut more
    ));
    assert_eq!(more, 0, "nothing else was posted");
}

#[test]
fn all_that_dat_lacks_goes_with_the_others_behind_one_doorbell() {
    let (one, mut other) = counting(0x1_0000_0801);
    let (from, room) = (one.segment(), other.segment());
    let address = other.memory.as_ptr().addr() as u64;
    // The counter is in an LMR of its own, with its own rights. The peer may invalidate the RMR that is bound below.
    other.memory[COUNTER] = 40;
    let counter = &raw mut other.memory[COUNTER];
    let (mut lmr, mut context) = (null_mut(), 0);
    let region = CRegionDescription {
        virtual_address: counter.cast(),
        shared_memory_id: null(),
    };
    ok!(dat_lmr_create(
        other.ia,
        0,
        region,
        8,
        other.pz,
        0x73,
        &raw mut lmr,
        null_mut(),
        &raw mut context,
        null_mut(),
        null_mut()
    ));
    let mut window = 0;
    ok!(dat_rmr_bind(
        other.rmr,
        &raw const room,
        0x80 | 0x20,
        other.ep,
        77,
        0,
        &raw mut window
    ));
    let mut event = zeros();
    let mut left = 0;
    ok!(dat_evd_wait(
        other.evd,
        SECOND,
        1,
        &raw mut event,
        &raw mut left
    ));
    assert_eq!(event.event_number, 0x1001, "bound");
    assert_eq!(
        post_many(
            other.ep,
            &posts(&room, &[(RECV, 11), (RECV, 12), (RECV, 13)])
        ),
        (0, 3)
    );
    let number = RmrTriplet {
        rmr_context: context,
        target_address: counter.addr() as u64,
        segment_length: 8,
    };
    let target = RmrTriplet {
        rmr_context: window,
        target_address: address,
        segment_length: 64,
    };
    let results: Vec<LmrTriplet> = [128, 136]
        .map(|at| LmrTriplet {
            virtual_address: from.virtual_address + at,
            segment_length: 8,
            ..from
        })
        .into();
    let kinds = [
        (FETCH_ADD, 1),
        (WRITE_WITH_IMMEDIATE, 2),
        (COMPARE_SWAP, 3),
        (SEND_WITH_IMMEDIATE, 4),
        (SEND_INVALIDATE, 5),
    ];
    let mut list = posts(&from, &kinds);
    (list[0].local_iov, list[0].remote_buffer) = (&raw const results[0], &raw const number);
    list[0].operand = 2;
    (list[1].remote_buffer, list[1].value) = (&raw const target, 0xdead_beef);
    (list[2].local_iov, list[2].remote_buffer) = (&raw const results[1], &raw const number);
    (list[2].operand, list[2].swap) = (42, 1 << 40);
    list[3].value = 7;
    list[4].value = window;
    assert_eq!(post_many(one.ep, &list), (0, 5));
    for (cookie, bytes) in [(1, 8), (2, 64), (3, 8), (4, 64), (5, 64)] {
        assert_eq!(completion(&one, true), (cookie, bytes, NONE, 0));
    }
    let told = [
        (11, 0, WRITE_IMMEDIATE, 0xdead_beef),
        (12, 64, SEND_IMMEDIATE, 7),
        (13, 64, INVALIDATED, window),
    ];
    for told in told {
        assert_eq!(completion(&other, true), told);
    }
    // SAFETY: the device has written the counter.
    let now = unsafe { std::ptr::read_volatile(counter) };
    assert_eq!(now, 1 << 40);
    let were = [16, 17].map(|at| {
        let place = one.memory.as_ptr().wrapping_add(at);
        // SAFETY: `at` is inside the memory, which lives as long as `one`.
        unsafe { std::ptr::read_volatile(place) }
    });
    assert_eq!(were, [40, 42]);
}

/// Returns two connected sides whose endpoints allow atomic operations.
fn counting(qualifier: u64) -> (World, World) {
    let name = fresh_name();
    let one = World::of(&name, false, qualifier + 0x80);
    let other = World::of(&name, false, qualifier);
    for side in [&one, &other] {
        let mut param = MaybeUninit::<CEpParam>::zeroed();
        ok!(dat_ep_query(side.ep, 0x7fff_f7ff, param.as_mut_ptr()));
        // SAFETY: the query succeeded and has written it.
        let mut param = unsafe { param.assume_init() };
        (
            param.ep_attr.max_rdma_read_in,
            param.ep_attr.max_rdma_read_out,
        ) = (4, 4);
        ok!(dat_ep_modify(side.ep, 0xc0_0000, &raw const param));
    }
    connect(&one, &other, qualifier);
    (one, other)
}

#[test]
fn an_srq_takes_as_many_as_it_has_room_for() {
    let world = World::new(false);
    let segment = world.segment();
    let mut posted = -1;
    let refused = posts(&segment, &[(RECV, 1), (SEND, 2)]);
    let mut to_srq = |posts: &[CPost]| {
        let count = i32::try_from(posts.len()).expect("few");
        let list = posts.as_ptr();
        let answer = c!(dat_srq_post_many(world.srq, count, list, &raw mut posted));
        (answer, posted)
    };
    assert_eq!(to_srq(&refused), (INVALID_PARAMETER | 38, 1), "a Send");
    let (answer, posted) = to_srq(&posts(&segment, &[(RECV, 7); 20]));
    assert_eq!((answer & TYPE, posted), (INSUFFICIENT_RESOURCES, 15));
    let mut param = std::mem::MaybeUninit::<CSrqParam>::zeroed();
    ok!(dat_srq_query(world.srq, 0x7f, param.as_mut_ptr()));
    // SAFETY: the query succeeded and has written it.
    let param = unsafe { param.assume_init() };
    assert_eq!(param.available_dto_count, 16);
}

#[test]
fn events_of_all_kinds_come_by_many_and_none_is_no_error() {
    let world = World::new(false);
    let mut events = [0; 4].map(software);
    let mut taken = -1;
    ok!(dat_evd_dequeue_many(
        world.evd,
        4,
        events.as_mut_ptr(),
        &raw mut taken
    ));
    assert_eq!(taken, 0);
    for word in 1..=6 {
        let event = software(word);
        ok!(dat_evd_post_se(world.evd, &raw const event));
    }
    let mut seen = Vec::new();
    for expected in [4, 2, 0] {
        ok!(dat_evd_dequeue_many(
            world.evd,
            4,
            events.as_mut_ptr(),
            &raw mut taken
        ));
        assert_eq!(taken, expected);
        let count = usize::try_from(taken).expect("a count");
        seen.extend(events[..count].iter().map(|event| {
            // SAFETY: the event is a software event.
            unsafe { event.event_data.software_event_data.pointer.addr() }
        }));
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    let nowhere = c!(dat_evd_dequeue_many(
        world.evd,
        4,
        null_mut(),
        &raw mut taken
    ));
    assert_eq!(nowhere, INVALID_PARAMETER | 38);
    let uncounted = c!(dat_evd_dequeue_many(
        world.evd,
        4,
        events.as_mut_ptr(),
        null_mut()
    ));
    assert_eq!(uncounted, INVALID_PARAMETER | 39);
    let fewer = c!(dat_evd_dequeue_many(
        world.evd,
        -1,
        events.as_mut_ptr(),
        &raw mut taken
    ));
    assert_eq!(fewer, INVALID_PARAMETER | 37);
}
