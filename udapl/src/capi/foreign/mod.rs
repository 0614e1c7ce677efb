//! Providers of other libraries.
//!
//! ```text
//!    program --dat_pz_create(handle)--> bit 63 set? --yes--> Ia, by the table of handles
//!                                          | no
//!                                          v
//!                          object of a registered provider? --yes--> its pz_create_func(handle)
//!                                          | no
//!                                          v
//!                                  DAT_INVALID_HANDLE
//! ```
//!
//! A provider of DAT 1.2 is a table of functions ([`CProvider`]), and its handles are addresses of objects that begin
//! with the table's address. So this module must read the word at a handle, although the handle may be any number. The
//! kernel reads the word (`process_vm_readv(2)` on the process itself, which fails where a load would fault). The
//! provider is called only if the word is the address of a registered table. This costs one system call for each handle
//! among the arguments, and none if no other provider is registered. Calls on this library's handles do not pay this
//! cost. The provider checks whether the object is valid and of the right kind.
//!
//! All handles of a call must belong to the same provider: any other handle (of this library, of another provider, or
//! an invalid one) is refused here. Handles inside structures (`dat_ep_modify`) are checked by the provider, except the
//! LMR that `dat_lmr_create` names.

// UNSAFETY: calls functions of other libraries, and dereferences pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers and providers")]

mod functions;
mod library;
pub(super) mod provider;

use core::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

use dat_core::Subtype;

use super::directory::{self, Entry};
use super::table::number;
use super::types::{DatCount, DatHandle, DatReturn};
use provider::first_word;

pub use functions::{CProvider, LAYOUT};
pub(super) use library::{LibraryRef, borrow, is_in_use};
pub(super) use provider::Foreign;

/// Returns the provider that a handle belongs to, if it is a registered provider of another library.
#[inline(always)]
pub(super) fn of(handle: DatHandle) -> Option<Arc<Foreign>> {
    // Every handle of this library has bit 63 set, and no address of a process has.
    if number(handle).cast_signed() <= 0 {
        return None;
    }
    of_address(handle)
}

#[cold]
#[inline(never)]
fn of_address(handle: DatHandle) -> Option<Arc<Foreign>> {
    directory::provider_of(|| first_word(handle))
}

/// Passes a call to the other library whose provider owns the first handle, if there is one. An argument that is also
/// a handle is followed by the subtype for its position; a handle inside an argument follows the call in brackets.
macro_rules! foreign {
    ($member:ident($handle:ident $(, $argument:ident $(: $place:ident)?)* $(,)?) $([$inside:ident: $at:ident])?) => {
        if let Some(provider) = $crate::capi::foreign::of($handle) {
            let others: &[($crate::capi::types::DatHandle, ::dat_core::Subtype)] = &[
                $($(($argument, ::dat_core::Subtype::$place),)?)*
                $(($inside, ::dat_core::Subtype::$at),)?
            ];
            return provider.pass_on(provider.functions.$member, others, |function| {
                // SAFETY: contract TABLE: the provider's library registered this function for this call. The caller's
                // contract for the pointers is with that library.
                unsafe { function($handle $(, $argument)*) }
            });
        }
    };
}
pub(super) use foreign;

/// Resources of an open adapter: its directory entry and its library. They are dropped in this order.
pub(super) struct ForeignResources {
    _entry: Arc<Entry>,
    provider: Arc<Foreign>,
    _library: Option<LibraryRef>,
}

impl ForeignResources {
    pub(super) fn new(
        entry: Arc<Entry>,
        provider: Arc<Foreign>,
        library: Option<LibraryRef>,
    ) -> Self {
        Self {
            _entry: entry,
            provider,
            _library: library,
        }
    }
}

/// Open adapters of other libraries, by handle. Several opens of an adapter may return the same handle.
static OPEN: Mutex<Vec<(usize, ForeignResources)>> = Mutex::new(Vec::new());

/// Opens an adapter of another library (`dat_ia_openv`).
///
/// # Safety
/// `name` is a string; the other pointers point to handles.
pub(super) unsafe fn open(
    lease: ForeignResources,
    name: *const c_char,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    let provider = Arc::clone(&lease.provider);
    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
    let given = [(unsafe { *async_evd_handle }, Subtype::HandleEvdAsync)];
    provider.pass_on(provider.functions.ia_open_func, &given, |function| {
        // SAFETY: contract TABLE, and contract PASSED ON.
        let answer = unsafe { function(name, async_evd_min_qlen, async_evd_handle, ia_handle) };
        if answer == 0 {
            // SAFETY: the provider has written the handle.
            let opened = unsafe { *ia_handle }.addr();
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            open.push((opened, lease));
        }
        answer
    })
}

/// Drops the lease of an adapter that was closed, so that its provider can be removed and its library can be ended.
pub(super) fn closed(provider: &Arc<Foreign>, ia_handle: DatHandle) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Another provider may have opened an adapter at this address by now, so compare the provider, too.
    let at = open.iter().position(|(handle, lease)| {
        *handle == ia_handle.addr() && lease.provider.is_same(provider)
    });
    let lease = at.map(|at| open.swap_remove(at));
    // Dropping the lease may call the library's `dat_provider_fini`, which may call the registry: release the lock
    // first.
    drop(open);
    drop(lease);
}
