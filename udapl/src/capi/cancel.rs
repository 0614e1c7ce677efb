//! Delays pthread_cancel(3) until the end of a call.
//!
//! pthread_cancel(3) ends a thread at a cancellation point, such as a sleep in the middle of a call, while the thread
//! has exclusive access to the adapter. The cancellation unwinds the stack by a forced unwind, which Rust frames do not
//! support. So a call disables cancellation, as glibc does in its own calls that must not be interrupted. The thread
//! ends at its next cancellation point after the call. Posts and dequeues do not disable cancellation, so a program
//! must not cancel a thread in one of them (`udat.h`).

// UNSAFETY: calls a function of the C library.
#![expect(unsafe_code, reason = "pthread_setcancelstate(3)")]

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::null_mut;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const DISABLE: c_int = 1;

/// Disables cancellation of this thread until the value is dropped.
pub(super) struct Uncancelled {
    before: c_int,
    /// Makes the type not `Send`, because the cancellation state belongs to the thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    pub(super) fn hold() -> Self {
        let mut before = 0;
        // SAFETY: the state is valid, and `before` has memory for the previous one. The call fails only for invalid
        // states.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state was returned for the same thread.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}
