//! Threads that are cancelled.
//!
//! pthread_cancel(3) ends a thread where it sleeps or does something the system may let it wait for: in the middle of a
//! call, with the adapter in its hands. It does so by unwinding, which Rust's frames do not take from anybody else. So
//! a call holds cancellation off, as glibc's own calls do that must not end half-way, and the thread ends at its next
//! cancellation point after the call. Posts and dequeues take no such precaution.

// UNSAFETY: a function of the C library's.
#![expect(unsafe_code, reason = "pthread_setcancelstate(3)")]

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::null_mut;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const DISABLE: c_int = 1;

/// The thread is not cancelled until this is dropped.
pub(super) struct Uncancelled {
    before: c_int,
    /// It is the thread's, and may not go to another one.
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    pub(super) fn hold() -> Self {
        let mut before = 0;
        // SAFETY: a state there is, and a place for the one before. It fails for other states only.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the same thread had.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}
