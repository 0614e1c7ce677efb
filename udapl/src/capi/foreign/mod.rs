//! Providers of other libraries.
//!
//! ```text
//!    program --dat_pz_create(handle)--> ours, by the table of handles? --yes--> Ia
//!                                          | no
//!                                          v
//!                          object of a registered provider? --yes--> its pz_create_func(handle)
//!                                          | no
//!                                          v
//!                                  DAT_INVALID_HANDLE
//! ```
//!
//! A provider of DAT 1.2 is a table of functions ([`CProvider`]), and its handles are addresses of objects that begin
//! with the table's address. So a handle has to be dereferenced, though it may be any number. The kernel reads the
//! word (`process_vm_readv(2)` on the process itself, which fails where a load would fault), and the provider is
//! called only if the word is the address of a registered table. This costs one system call per call; calls on this
//! library's handles never come here. The provider checks whether the object is valid and of the right kind.
//!
//! All handles among the arguments must belong to the same provider. A handle of this library, or an invalid one, is
//! refused here. The provider itself checks the contents of structures (`dat_ep_modify`).

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
pub(super) use library::{Loan, borrow, is_under_way};
pub(super) use provider::Foreign;

/// Returns the provider of a handle that is not of this library.
#[inline(always)]
pub(super) fn of(handle: DatHandle) -> Option<Arc<Foreign>> {
    // Every handle of this library has the highest bit set, and no address has.
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

/// Passes the call on if the first handle belongs to another provider. Other arguments that are handles are marked
/// with the subtype of their position; handles inside an argument follow the call in brackets.
macro_rules! foreign {
    ($member:ident($handle:ident $(, $argument:ident $(: $place:ident)?)* $(,)?) $([$inside:ident: $at:ident])?) => {
        if let Some(provider) = $crate::capi::foreign::of($handle) {
            let others: &[($crate::capi::types::DatHandle, ::dat_core::Subtype)] = &[
                $($(($argument, ::dat_core::Subtype::$place),)?)*
                $(($inside, ::dat_core::Subtype::$at),)?
            ];
            return provider.pass_on(provider.functions.$member, others, |function| {
                // SAFETY: contract TABLE: the provider's library registered this function for this call. The pointers
                // are the caller's contract with it.
                unsafe { function($handle $(, $argument)*) }
            });
        }
    };
}
pub(super) use foreign;

/// What an open adapter holds: its registry entry, then its library; they are dropped in this order.
pub(super) struct Lease {
    _entry: Arc<Entry>,
    provider: Arc<Foreign>,
    _library: Option<Loan>,
}

impl Lease {
    pub(super) fn new(entry: Arc<Entry>, provider: Arc<Foreign>, library: Option<Loan>) -> Self {
        Self {
            _entry: entry,
            provider,
            _library: library,
        }
    }
}

/// Open adapters, by handle; several openings of an adapter may have the same handle.
static OPEN: Mutex<Vec<(usize, Lease)>> = Mutex::new(Vec::new());

/// `dat_ia_openv`.
///
/// # Safety
/// `name` is a string; the other pointers point to handles.
pub(super) unsafe fn open(
    lease: Lease,
    name: *const c_char,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    let provider = Arc::clone(&lease.provider);
    // SAFETY: not null, and contract GIVEN.
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

/// An adapter of a provider was closed: drops its lease, so that the provider may be removed and its library ended.
pub(super) fn closed(provider: &Arc<Foreign>, ia_handle: DatHandle) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Another provider may have an object at this address by now.
    let at = open.iter().position(|(handle, lease)| {
        *handle == ia_handle.addr() && lease.provider.is_same(provider)
    });
    let lease = at.map(|at| open.swap_remove(at));
    // The library's `dat_provider_fini` may call the registry: release the lock.
    drop(open);
    drop(lease);
}
