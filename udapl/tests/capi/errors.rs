//! Texts of errors, through C (`dat_last_error_text`).

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::thread;

use udapl::capi::types::CEvent;
use udapl::capi::*;

use crate::support::{World, c, ok};

/// DAT_CLASS_ERROR|DAT_QUEUE_EMPTY.
const QUEUE_EMPTY: u32 = 0x800d_0000;

/// Returns this thread's last error and its text.
fn told() -> (u32, String) {
    let (mut refused, mut text) = (u32::MAX, null::<c_char>());
    ok!(dat_last_error_text(&raw mut refused, &raw mut text));
    assert!(!text.is_null(), "there is always a text");
    // SAFETY: the text belongs to the library, and is valid until the next call of this thread.
    let text = unsafe { CStr::from_ptr(text) };
    (refused, text.to_str().expect("text").to_owned())
}

#[test]
fn why_a_call_was_refused_is_told_to_the_thread_that_made_it() {
    thread::spawn(|| {
        assert_eq!(told(), (0, String::new()), "nothing was refused yet");
        ok!(dat_last_error_text(null_mut(), null_mut()));
        let world = World::new(false);
        let no_handle = 0_u64;
        let answer = dat_pz_free((&raw const no_handle).cast_mut().cast());
        let (refused, text) = told();
        assert_eq!(refused, answer);
        assert!(
            text.starts_with("DAT_INVALID_HANDLE|DAT_INVALID_HANDLE_PZ (0x")
                && text.contains(&format!("{answer:08x}")),
            "{text}"
        );
        let other = thread::spawn(told).join().expect("it ends");
        assert_eq!(other, (0, String::new()), "another thread's are its own");
        // Freeing a PZ that has objects fails; `dat-core` has a text for this error.
        let answer = dat_pz_free(world.pz);
        assert_ne!(answer, 0);
        let (refused, text) = told();
        assert_eq!(refused, answer);
        assert!(text.contains("DAT_INVALID_STATE"), "{text}");
        // A successful call does not change the text.
        ok!(dat_ep_get_status(
            world.ep,
            null_mut(),
            null_mut(),
            null_mut()
        ));
        assert_eq!(told(), (refused, text.clone()));
        // An empty queue is no error, and does not change the text either.
        let mut event = MaybeUninit::<CEvent>::uninit();
        let empty = c!(dat_evd_dequeue(world.evd, event.as_mut_ptr()));
        assert_eq!(empty, QUEUE_EMPTY);
        assert_eq!(told(), (refused, text));
    })
    .join()
    .expect("it ends");
}

#[test]
fn a_call_that_comes_too_early_is_told_what_comes_first() {
    let world = World::new(false);
    let text = |answer| {
        let (refused, text) = told();
        assert_eq!(refused, answer);
        text
    };
    let answer = dat_ep_disconnect(world.ep, 0);
    assert_eq!(
        text(answer),
        "DAT_INVALID_STATE|DAT_INVALID_STATE_EP_UNCONNECTED (0x8007002e): the endpoint is not connected: there is nothing to disconnect"
    );
    let answer = c!(dat_ep_post_send(world.ep, 0, null(), 0, 0));
    let told = text(answer);
    assert!(told.contains("once ESTABLISHED has come"), "{told}");
}

#[test]
fn a_limit_that_is_exceeded_is_told_with_both_numbers() {
    let world = World::new(false);
    let mut evd = null_mut();
    let answer = c!(dat_evd_create(
        world.ia,
        i32::MAX,
        null_mut(),
        1,
        &raw mut evd
    ));
    let (refused, text) = told();
    assert_eq!(refused, answer);
    assert!(
        text.contains("evd_min_qlen is beyond max_evd_qlen: 2147483647 asked for, "),
        "{text}"
    );
}

#[test]
fn a_name_that_is_none_is_told_with_those_there_are() {
    let name = CString::new("sim:a,colour=red").expect("a name");
    let (mut evd, mut ia) = (null_mut(), null_mut());
    let answer = c!(dat_ia_openv(
        name.as_ptr(),
        8,
        &raw mut evd,
        &raw mut ia,
        1,
        2,
        0
    ));
    assert_ne!(answer, 0);
    let (refused, text) = told();
    assert_eq!(refused, answer);
    assert!(
        text.contains("sim:a,colour=red: \"colour\" is no option; there are address=IP"),
        "{text}"
    );
}
