//! Return codes of calls. A panic is also converted to a return code here.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use dat_core::{DatError, DatResult};

use super::cancel::Uncancelled;
use super::error::internal;
use super::last_error;
use super::types::DatReturn;

/// Runs a call and returns its code. Catches a panic, and returns a code for it.
pub(super) fn caught(work: impl FnOnce() -> DatReturn) -> DatReturn {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(_) => panicked(),
    }
}

#[cold]
#[inline(never)]
pub(super) fn panicked() -> DatReturn {
    answer(internal("a call has failed inside the library"))
}

/// Runs a call that may block or that changes objects (all calls except posts and dequeues). Cancellation of the thread
/// is disabled meanwhile.
pub(super) fn uncancelled(work: impl FnOnce() -> DatReturn) -> DatReturn {
    let _held = Uncancelled::hold();
    caught(work)
}

/// Like [`uncancelled`], for a call with a detailed error.
pub(super) fn call(work: impl FnOnce() -> DatResult<()>) -> DatReturn {
    uncancelled(|| code_of(work()))
}

/// Converts a result to a code.
pub(super) fn code_of(result: DatResult<()>) -> DatReturn {
    match result {
        Ok(()) => 0,
        Err(error) => answer(error),
    }
}

/// Converts an error to a code, and keeps the error for [`last_error`].
#[cold]
#[inline(never)]
pub(super) fn answer(error: DatError) -> DatReturn {
    tracing::debug!(%error, "refused");
    last_error::note(error);
    error.code()
}
