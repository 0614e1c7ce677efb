//! Counters of objects, through C.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use udapl::capi::types::{CCounter, DatHandle};
use udapl::capi::*;

use crate::instances::connect;
use crate::support::{World, c, fresh_name, ok};

const NONE: CCounter = CCounter {
    name: null(),
    value: u64::MAX,
};

/// Returns all counters of an object.
fn counters(handle: DatHandle) -> Vec<(String, u64)> {
    let mut number = -1;
    ok!(dat_get_counters(handle, 0, null_mut(), &raw mut number));
    let mut all = vec![NONE; usize::try_from(number).expect("a count")];
    let mut again = -1;
    ok!(dat_get_counters(
        handle,
        number,
        all.as_mut_ptr(),
        &raw mut again
    ));
    assert_eq!(again, number);
    let told = all.iter().map(|counter| {
        // SAFETY: names are valid while the library is loaded.
        let name = unsafe { CStr::from_ptr(counter.name) };
        (name.to_str().expect("a name").to_owned(), counter.value)
    });
    told.collect()
}

fn count(handle: DatHandle, name: &str) -> u64 {
    let all = counters(handle);
    let found = all.iter().find(|(one, _)| one == name);
    found.unwrap_or_else(|| panic!("{name}: {all:?}")).1
}

#[test]
fn what_objects_have_counted_is_told_by_name() {
    let name = fresh_name();
    let one = World::of(&name, false, 0x1_0000_0901);
    let other = World::of(&name, false, 0x1_0000_0903);
    connect(&one, &other, 0x1_0000_0903);
    assert_eq!(count(one.ep, "requests"), 0);
    ok!(dat_ep_post_recv(other.ep, 0, null_mut(), 1, 0));
    ok!(dat_ep_post_send(one.ep, 0, null_mut(), 1, 0));
    assert_eq!(
        (count(one.ep, "requests"), count(one.ep, "doorbells")),
        (1, 1)
    );
    assert_eq!(
        (count(other.ep, "recvs"), count(one.ia, "requests")),
        (1, 1)
    );
    assert_eq!((count(one.ia, "eps"), count(one.srq, "posted")), (1, 0));
    assert!(count(one.evd, "queued") >= 1, "the connection's");
    assert_eq!(count(one.ep, "requests_DAT_DTO_ERR_FLUSHED"), 0);
    let mut number = -1;
    let refused = |answer: u32| assert_eq!(answer & 0x3fff_0000, 0x0006_0000, "{answer:#x}");
    refused(c!(dat_get_counters(one.pz, 0, null_mut(), &raw mut number)));
    refused(c!(dat_get_counters(
        one.ep,
        -1,
        null_mut(),
        &raw mut number
    )));
    refused(c!(dat_get_counters(one.ep, 1, null_mut(), &raw mut number)));
    refused(c!(dat_get_counters(one.ep, 0, null_mut(), null_mut())));
    assert_eq!(number, -1);
    let mut first = [NONE; 2];
    ok!(dat_get_counters(
        one.ep,
        1,
        first.as_mut_ptr(),
        &raw mut number
    ));
    assert!(number > 1 && !first[0].name.is_null() && first[1].name.is_null());
}
