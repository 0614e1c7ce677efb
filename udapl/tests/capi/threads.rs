//! Threads: calls allowed while another thread is blocked, and calls on an adapter opened as thread safe.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::mpsc::channel;
use std::thread;

use udapl::capi::types::CEvent;
use udapl::capi::{
    dat_cno_wait, dat_ep_post_recv, dat_evd_dequeue, dat_evd_modify_cno, dat_evd_post_se,
    dat_evd_set_unwaitable, dat_ia_close, dat_pz_create, dat_pz_free,
};
use udapl::memory::LmrTriplet;

use crate::support::{
    ABRUPT, SECOND, SOFTWARE, Seen, TIMEOUT_INFINITE, World, c, done, ok, software,
};

/// The test's objects, for use by two threads.
struct Shared(World);
// SAFETY: handles are numbers, and the other thread does not access the memory.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Runs `wait` in a new thread, and `other` in this thread once the new thread is about to run `wait`. Returns the
/// result of `wait`.
fn while_waiting<R: Send>(
    world: &Shared,
    wait: impl FnOnce(&World) -> R + Send,
    other: impl FnOnce(&World),
) -> R {
    thread::scope(|scope| {
        let (began, begun) = channel();
        let waiter = scope.spawn(move || {
            began.send(()).expect("the test listens");
            wait(&world.0)
        });
        begun.recv().expect("the thread runs");
        other(&world.0);
        waiter.join().expect("the waiter")
    })
}

#[test]
fn a_software_event_of_another_thread_wakes_who_waits() {
    for thread_safe in [false, true] {
        let world = Shared(World::new(thread_safe));
        for word in 1..50 {
            let seen = while_waiting(
                &world,
                |world| world.wait(TIMEOUT_INFINITE),
                |world| {
                    let event = software(word);
                    ok!(dat_evd_post_se(world.evd, &raw const event));
                },
            );
            let expected = Seen {
                answer: 0,
                number: SOFTWARE,
                evd: world.0.evd.addr(),
                word,
            };
            assert_eq!(seen, expected);
        }
    }
}

#[test]
fn posts_go_on_while_a_thread_is_blocked() {
    let world = Shared(World::new(false));
    let seen = while_waiting(
        &world,
        |world| world.wait(TIMEOUT_INFINITE),
        |world| {
            let segment = LmrTriplet {
                lmr_context: world.lmr_context,
                virtual_address: world.memory.as_ptr().addr() as u64,
                segment_length: 64,
            };
            let posted = (0..16)
                .map(|cookie| c!(dat_ep_post_recv(world.ep, 1, &raw const segment, cookie, 0)));
            assert_eq!(posted.collect::<Vec<_>>(), [0; 16]);
            let event = software(1);
            ok!(dat_evd_post_se(world.evd, &raw const event));
        },
    );
    assert_eq!(seen.answer, 0);
}

/// Returns whether a wait was aborted: with DAT_ABORT, or with DAT_INVALID_HANDLE if it began after the close.
fn aborted(answer: u32) -> bool {
    matches!(answer, 0x8001_0000 | 0x8005_001a | 0x8005_000b)
}

#[test]
fn closing_an_adapter_releases_who_waits_in_it() {
    for _ in 0..20 {
        let world = Shared(World::new(false));
        let seen = while_waiting(
            &world,
            |world| world.wait(TIMEOUT_INFINITE),
            |world| done!(dat_ia_close(world.ia, ABRUPT)),
        );
        assert!(aborted(seen.answer), "{seen:x?}");
    }
}

#[test]
fn making_an_evd_unwaitable_releases_who_waits_on_it() {
    let world = Shared(World::new(false));
    let seen = while_waiting(
        &world,
        |world| world.wait(TIMEOUT_INFINITE),
        |world| done!(dat_evd_set_unwaitable(world.evd)),
    );
    // DAT_INVALID_STATE|DAT_INVALID_STATE_EVD_UNWAITABLE.
    assert_eq!(seen.answer, 0x8007_0048);
}

#[test]
fn a_cno_waiter_is_told_which_evd() {
    let world = Shared(World::new(false));
    done!(dat_evd_modify_cno(world.0.evd, world.0.cno));
    let evd = while_waiting(
        &world,
        |world| {
            let mut evd = null_mut();
            ok!(dat_cno_wait(world.cno, TIMEOUT_INFINITE, &raw mut evd));
            evd.addr()
        },
        |world| {
            let event = software(1);
            ok!(dat_evd_post_se(world.evd, &raw const event));
        },
    );
    assert_eq!(evd, world.0.evd.addr());
    let mut evd = world.0.evd;
    // The first wait has consumed the trigger, so the second wait returns DAT_QUEUE_EMPTY and a null EVD.
    let answer = c!(dat_cno_wait(world.0.cno, SECOND, &raw mut evd));
    assert_eq!((answer, evd), (0x800d_0000, null_mut()));
}

#[test]
fn a_thread_safe_adapter_takes_calls_of_all_threads_at_once() {
    let world = Shared(World::new(true));
    thread::scope(|scope| {
        for number in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for _ in 0..200 {
                    let (mut pz, event) = (null_mut(), software(number));
                    ok!(dat_pz_create(world.0.ia, &raw mut pz));
                    ok!(dat_evd_post_se(world.0.evd, &raw const event));
                    let mut taken = MaybeUninit::<CEvent>::uninit();
                    ok!(dat_evd_dequeue(world.0.evd, taken.as_mut_ptr()));
                    done!(dat_pz_free(pz));
                }
            });
        }
    });
}

#[test]
fn adapters_of_different_threads_do_not_disturb_each_other() {
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let world = World::new(false);
                    for word in 0..100 {
                        let event = software(word);
                        ok!(dat_evd_post_se(world.evd, &raw const event));
                        assert_eq!(world.wait(SECOND).answer, 0);
                    }
                }
            });
        }
    });
}

/// Start routine of the thread that is cancelled. Waits for an event, and returns the code of the wait.
extern "C" fn cancelled(world: *mut c_void) -> *mut c_void {
    // SAFETY: `world` is the test's world, which outlives this thread.
    let world = unsafe { &*world.cast::<Shared>() };
    let seen = world.0.wait(TIMEOUT_INFINITE);
    std::ptr::without_provenance_mut(seen.answer as usize)
}

#[test]
fn a_thread_that_is_cancelled_while_it_waits_ends_after_the_call() {
    let world = Shared(World::new(false));
    let (mut thread, mut answer) = (0, null_mut());
    let given = (&raw const world).cast_mut().cast();
    // SAFETY: the pointers lead to locals, and the function takes this argument.
    let made = unsafe { libc::pthread_create(&raw mut thread, null(), cancelled, given) };
    assert_eq!(made, 0);
    // The thread may not have begun its wait yet; the cancellation then stays pending.
    // SAFETY: the thread has not been joined.
    assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
    let event = software(1);
    ok!(dat_evd_post_se(world.0.evd, &raw const event));
    // SAFETY: the thread has not been joined, and `answer` is a local.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut answer) }, 0);
    assert_eq!(answer.addr(), 0, "the event, and no PTHREAD_CANCELED");
}
