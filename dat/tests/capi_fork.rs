//! A process that forks: its adapters are not its child's. A program of its own, since it forks.

// UNSAFETY: fork(2), and calls of the C ABI.
#![expect(unsafe_code, reason = "fork(2), calls of the C ABI")]

use std::ptr::null_mut;

use dat::capi::dat_evd_post_se;
use dat::capi::types::{CEvent, CEventData, CSoftware};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[path = "capi/calls.rs"]
mod calls;
#[path = "capi/support.rs"]
#[allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "what the other program needs"
)]
mod support;

use calls::CALLS;
use support::{INVALID_HANDLE, SECOND, World, fresh_name, ok, opened};

/// DAT_INSUFFICIENT_RESOURCES|DEVICE, as for a device in use.
const DEVICE: u32 = 0x8003_0003;
/// What the child says if it may open an adapter.
const OPENED: i32 = 200;

/// In the child, where nothing may be left to chance that is not there: the number of the first call that does not refuse
/// the parent's handle, from 1; 0 if all do, and no adapter can be opened.
fn child(worlds: &[World]) -> i32 {
    for world in worlds {
        for (handle, kind) in world.objects() {
            for (number, (_, subtype, call)) in (1..).zip(CALLS) {
                if kind == *subtype && call(handle) != INVALID_HANDLE | subtype {
                    return number;
                }
            }
        }
    }
    match opened(&fresh_name(), null_mut(), false) {
        Err(DEVICE) => 0,
        Ok(_) | Err(_) => OPENED,
    }
}

#[test]
fn a_child_has_none_of_its_parents_adapters_and_the_parent_has_them_all() {
    let worlds = [World::new(false), World::new(true)];
    // SAFETY: the child makes calls that end before they come to a lock, and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // SAFETY: numbers. Who hangs is ended by a signal.
            unsafe { libc::alarm(60) };
            let answer = child(&worlds);
            // SAFETY: nothing of the parent's is tidied up.
            unsafe { libc::_exit(answer) };
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).expect("our child");
            assert_eq!(
                ended,
                WaitStatus::Exited(child, 0),
                "the number of a call, from 1"
            );
        }
    }
    for world in &worlds {
        let event = CEvent {
            event_number: 0x10001,
            evd_handle: null_mut(),
            event_data: CEventData {
                software_event_data: CSoftware {
                    pointer: null_mut(),
                },
            },
        };
        ok!(dat_evd_post_se(world.evd, &raw const event));
        assert_eq!(world.wait(SECOND).answer, 0);
        world.post_recv(1);
    }
}
