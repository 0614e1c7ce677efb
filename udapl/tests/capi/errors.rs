//! Texts of errors, through C (`dat_last_error_text`).

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null, null_mut};
use std::thread;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use udapl::capi::types::{CEvent, CRegionDescription};
use udapl::capi::*;

use crate::support::{World, c, done, ok};

/// DAT_CLASS_ERROR|DAT_QUEUE_EMPTY.
const QUEUE_EMPTY: u32 = 0x800d_0000;

/// Returns this thread's last error and its text.
fn last_error() -> (u32, String) {
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
        assert_eq!(last_error(), (0, String::new()), "nothing was refused yet");
        ok!(dat_last_error_text(null_mut(), null_mut()));
        let world = World::new(false);
        let no_handle = 0_u64;
        let answer = dat_pz_free((&raw const no_handle).cast_mut().cast());
        let (refused, text) = last_error();
        assert_eq!(refused, answer);
        assert!(
            text.starts_with("DAT_INVALID_HANDLE|DAT_INVALID_HANDLE_PZ (0x")
                && text.contains(&format!("{answer:08x}")),
            "{text}"
        );
        let other = thread::spawn(last_error).join().expect("it ends");
        assert_eq!(other, (0, String::new()), "another thread's are its own");
        // Freeing a PZ that has objects fails; `dat-core` has a text for this error.
        let answer = dat_pz_free(world.pz);
        assert_ne!(answer, 0);
        let (refused, text) = last_error();
        assert_eq!(refused, answer);
        assert!(text.contains("DAT_INVALID_STATE"), "{text}");
        // A successful call does not change the text.
        ok!(dat_ep_get_status(
            world.ep,
            null_mut(),
            null_mut(),
            null_mut()
        ));
        assert_eq!(last_error(), (refused, text.clone()));
        // An empty queue is no error, and does not change the text either.
        let mut event = MaybeUninit::<CEvent>::uninit();
        let empty = c!(dat_evd_dequeue(world.evd, event.as_mut_ptr()));
        assert_eq!(empty, QUEUE_EMPTY);
        assert_eq!(last_error(), (refused, text));
    })
    .join()
    .expect("it ends");
}

#[test]
fn a_call_that_comes_too_early_is_told_what_comes_first() {
    let world = World::new(false);
    let text = |answer| {
        let (refused, text) = last_error();
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
    let (refused, text) = last_error();
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
    let (refused, text) = last_error();
    assert_eq!(refused, answer);
    assert!(
        text.contains("sim:a,colour=red: \"colour\" is no option; there are address=IP"),
        "{text}"
    );
}

/// A region whose second page is unmapped is refused, and no object is made.
#[test]
fn a_region_with_an_unmapped_page_is_refused_and_the_text_names_its_address() {
    const PAGE: usize = 64 << 10;
    let world = World::new(false);
    // The kernel places mappings from the top of the address space down, so no other thread maps anything into the
    // hole. 64 KiB are whole pages on every machine.
    let place = NonZeroUsize::new(0x10_0000_0000);
    let length = NonZeroUsize::new(3 * PAGE).expect("pages");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the flags replace no pages.
    let first = unsafe { mmap_anonymous(place, length, access, flags) }.expect("memory");
    let second = NonNull::new(first.as_ptr().wrapping_byte_add(PAGE)).expect("an address");
    // SAFETY: a page of this test's own.
    unsafe { munmap(second, PAGE) }.expect("unmapped");
    let register = |bytes: usize| {
        let region = CRegionDescription {
            virtual_address: first.as_ptr(),
            shared_memory_id: null(),
        };
        let (mut lmr, mut context) = (null_mut(), 0);
        let answer = c!(dat_lmr_create(
            world.ia,
            0,
            region,
            bytes as u64, // CAST: widening.
            world.pz,
            0x33,
            &raw mut lmr,
            &raw mut context,
            null_mut(),
            null_mut(),
            null_mut()
        ));
        (answer, lmr)
    };
    let (answer, lmr) = register(3 * PAGE);
    let (refused, text) = last_error();
    assert_eq!(refused, answer);
    assert_ne!(answer, 0);
    assert!(lmr.is_null(), "no object");
    assert!(
        text.contains("not all of 0x30000 bytes at 0x1000000000 is mapped (EFAULT)"),
        "{text}"
    );
    // The mapped first page can be registered.
    let (answer, lmr) = register(PAGE);
    assert_eq!(answer, 0);
    done!(dat_lmr_free(lmr));
    // SAFETY: pages of this test's own, which no region covers any more.
    unsafe { munmap(first, 3 * PAGE) }.expect("unmapped");
}
