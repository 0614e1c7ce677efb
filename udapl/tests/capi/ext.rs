//! Calls that DAT 1.2 lacks, through C.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use udapl::capi::types::{CDtoDetail, CEvent};
use udapl::capi::*;
use udapl::memory::RmrTriplet;

use crate::instances::connect;
use crate::support::{INVALID_HANDLE, SECOND, World, c, fresh_name, ok};

/// Kinds of detail (`DAT_DTO_DETAIL_...`).
pub const NONE: u32 = 0;
pub const SEND_IMMEDIATE: u32 = 2;
pub const WRITE_IMMEDIATE: u32 = 3;
/// DAT_CLASS_ERROR|DAT_INVALID_PARAMETER.
const INVALID_PARAMETER: u32 = 0x8006_0000;
const INSUFFICIENT_RESOURCES: u32 = 0x0003_0000;
const TYPE: u32 = 0x3fff_0000;

/// Returns the next completion of a side: cookie, length in bytes, kind of detail, and value of the detail.
pub fn completion(world: &World, by_wait: bool) -> (u64, u64, u32, u32) {
    let (mut event, mut left) = (MaybeUninit::<CEvent>::zeroed(), 0);
    let mut detail = CDtoDetail { kind: 9, value: 9 };
    let to = event.as_mut_ptr();
    if by_wait {
        ok!(dat_evd_wait_with_detail(
            world.evd,
            SECOND,
            1,
            to,
            &raw mut left,
            &raw mut detail
        ));
    } else {
        // The event may be late: a Send completes only after the peer has received the message.
        while c!(dat_evd_dequeue_with_detail(world.evd, to, &raw mut detail)) != 0 {}
    }
    // SAFETY: the call succeeded and has written `event`.
    let event = unsafe { event.assume_init() };
    assert_eq!((event.event_number, event.evd_handle), (1, world.evd));
    // SAFETY: the event is a DTO completion.
    let done = unsafe { event.event_data.dto_completion_event_data };
    assert_eq!((done.ep_handle, done.status), (world.ep, 0));
    (
        done.user_cookie,
        done.transfered_length,
        detail.kind,
        detail.value,
    )
}

#[test]
fn immediate_data_arrive_with_the_event_that_asks_for_them() {
    for by_wait in [true, false] {
        let name = fresh_name();
        let one = World::of(&name, false, 0x1_0000_0301);
        let other = World::of(&name, false, 0x1_0000_0401);
        connect(&one, &other, 0x1_0000_0401);
        let from = one.segment();
        other.post_recv(1);
        other.post_recv(2);
        ok!(dat_ep_post_send_immediate(
            one.ep,
            1,
            &raw const from,
            3,
            0xdead_beef,
            0
        ));
        assert_eq!(completion(&one, by_wait), (3, 64, NONE, 0));
        let told = completion(&other, by_wait);
        assert_eq!(told, (1, 64, SEND_IMMEDIATE, 0xdead_beef));
        let remote = RmrTriplet {
            rmr_context: other.lmr_context,
            target_address: other.memory.as_ptr().addr() as u64 + 256,
            segment_length: 64,
        };
        ok!(dat_ep_post_rdma_write_immediate(
            one.ep,
            1,
            &raw const from,
            4,
            &raw const remote,
            7,
            0
        ));
        assert_eq!(completion(&one, by_wait), (4, 64, NONE, 0));
        assert_eq!(completion(&other, by_wait), (2, 0, WRITE_IMMEDIATE, 7));
    }
}

#[test]
fn posts_beyond_dat_are_refused_as_posts_are() {
    let name = fresh_name();
    let one = World::of(&name, false, 0x1_0000_0501);
    let other = World::of(&name, false, 0x1_0000_0601);
    connect(&one, &other, 0x1_0000_0601);
    let from = one.segment();
    let nowhere = c!(dat_ep_post_rdma_write_immediate(
        one.ep,
        1,
        &raw const from,
        1,
        null(),
        7,
        0
    ));
    assert_eq!(nowhere, INVALID_PARAMETER | 40, "argument 5");
    let nothing = c!(dat_ep_post_send_invalidate(one.ep, 1, null(), 1, 7, 0));
    assert_eq!(nothing & TYPE, INVALID_PARAMETER & TYPE);
    let short = udapl::memory::LmrTriplet {
        segment_length: 8,
        ..from
    };
    let remote = RmrTriplet {
        rmr_context: other.lmr_context,
        target_address: other.memory.as_ptr().addr() as u64,
        segment_length: 8,
    };
    // An endpoint made without attributes allows no outstanding RDMA Reads and atomic operations.
    let depth = c!(dat_ep_post_fetch_add(
        one.ep,
        &raw const short,
        1,
        &raw const remote,
        7,
        0
    ));
    assert_eq!(depth & TYPE, INSUFFICIENT_RESOURCES);
    let no_endpoint = c!(dat_ep_post_compare_swap(
        one.evd,
        &raw const short,
        1,
        &raw const remote,
        7,
        7,
        0
    ));
    assert_eq!(no_endpoint, INVALID_HANDLE | 12);
    let no_event = c!(dat_evd_dequeue_with_detail(one.evd, null_mut(), null_mut()));
    assert_eq!(no_event & TYPE, INVALID_PARAMETER & TYPE);
}
