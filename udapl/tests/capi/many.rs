//! Many posts by one call, many events by one call.

// UNSAFETY: calls of the C ABI; `main.rs` expects it.

use std::ptr::{null, null_mut};

use udapl::capi::types::{CEvent, CPost, CSrqParam, DatHandle};
use udapl::capi::*;

use crate::instances::connect;
use crate::support::{SECOND, World, c, fresh_name, ok, software};

/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER.
const INVALID_PARAMETER: u32 = 0x8006_0000;
/// `DAT_INSUFFICIENT_RESOURCES`, and the bits of an answer that say a type.
const INSUFFICIENT_RESOURCES: u32 = 0x0003_0000;
const TYPE: u32 = 0x3fff_0000;
const SEND: u32 = 0;
const WRITE: u32 = 1;
const RECV: u32 = 3;

fn zeros() -> CEvent {
    software(0)
}

/// Posts of one segment, which is shared by all.
fn posts(segment: &udapl::LmrTriplet, what: &[(u32, u64)]) -> Vec<CPost> {
    let post = |&(operation, user_cookie): &(u32, u64)| CPost {
        operation,
        num_segments: 1,
        local_iov: segment,
        user_cookie,
        remote_buffer: null(),
        completion_flags: 0,
    };
    what.iter().map(post).collect()
}

/// Posts them to an endpoint: the answer, and how many were posted.
fn post_many(ep: DatHandle, posts: &[CPost]) -> (u32, i32) {
    let mut posted = -1;
    let count = i32::try_from(posts.len()).expect("few");
    let answer = c!(dat_ep_post_many(ep, count, posts.as_ptr(), &raw mut posted));
    (answer, posted)
}

/// Waits for so many events and takes them by one call; the cookies of those that are completions of the endpoint.
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
            // SAFETY: the member of such an event.
            let done = unsafe { event.event_data.dto_completion_event_data };
            assert_eq!((done.ep_handle, done.status), (world.ep, 0));
            done.user_cookie
        })
        .collect()
}

/// Between two instances of an adapter, which take turns.
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
    // SAFETY: the query has filled it.
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
            // SAFETY: the member of such an event.
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
