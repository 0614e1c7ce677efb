//! `dat_set_consumer_context`, `dat_get_consumer_context`, `dat_get_handle_type`.

// UNSAFETY: writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use dat_core::{AnyHandle, DatResult, HandleType, Subtype};

use super::adapter::{Adapter, object};
use super::answer::call;
use super::argument::{given, put};
use super::error::handle_error;
use super::foreign::foreign;
use super::table::IaName;
use super::types::{DatContext, DatHandle, DatReturn};

/// Returns the adapter, the instance and the object of a handle of any kind.
fn any(handle: DatHandle) -> DatResult<(&'static Adapter, IaName, AnyHandle)> {
    object(handle).ok_or(handle_error(Subtype::Handle1))
}

/// `dat_set_consumer_context`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_set_consumer_context(
    dat_handle: DatHandle,
    context: DatContext,
) -> DatReturn {
    foreign!(set_consumer_context_func(dat_handle, context));
    call(|| {
        let (adapter, ia, object) = any(dat_handle)?;
        adapter.with_instance(ia, |open| open.ia.set_consumer_context(object, context))
    })
}

/// `dat_get_consumer_context`.
///
/// # Safety
/// `context` is null or points to a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_get_consumer_context(
    dat_handle: DatHandle,
    context: *mut DatContext,
) -> DatReturn {
    foreign!(get_consumer_context_func(dat_handle, context));
    call(|| {
        let (adapter, ia, object) = any(dat_handle)?;
        given(context, Subtype::Arg2)?;
        let word = adapter.with_instance(ia, |open| open.ia.get_consumer_context(object))?;
        // SAFETY: contract ROOM.
        unsafe { put(context, word) };
        Ok(())
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// `handle_type` is null or points to a handle type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_get_handle_type(
    dat_handle: DatHandle,
    handle_type: *mut u32,
) -> DatReturn {
    foreign!(get_handle_type_func(dat_handle, handle_type));
    call(|| {
        let (adapter, _, object) = any(dat_handle)?;
        given(handle_type, Subtype::Arg2)?;
        let kind: HandleType = adapter.with(|open| open.ia.get_handle_type(object))?;
        // SAFETY: contract ROOM. CAST: the discriminant is DAT's number.
        unsafe { put(handle_type, kind as u32) };
        Ok(())
    })
}
