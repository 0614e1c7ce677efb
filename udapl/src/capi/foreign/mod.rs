//! Providers of other libraries: adapters that this library only has the names of.
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
//! with the address of that table. Which makes a handle something to be followed, that may be anything. So the word
//! there is read by the kernel (`process_vm_readv(2)` on the process itself, which fails where a load would fault), and
//! only if it is the address of a table in the registry, the provider is called. That costs a system call a call; calls
//! on handles of ours never come here. What kind of object it is and whether it is still one is the provider's to say.
//!
//! Every handle among the arguments must be of the same provider. One of ours, or a number that is none, is refused
//! before the provider follows it. What is within a structure (`dat_ep_modify`) is for the provider to look at.

// UNSAFETY: functions of other libraries are called, and pointers of a C program are followed.
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

/// The provider of a handle that is not ours.
#[inline(always)]
pub(super) fn of(handle: DatHandle) -> Option<Arc<Foreign>> {
    // The highest bit is set in every handle of ours, and in no address.
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

/// Hands the call on, if the first handle is that of another provider. Handles among the other arguments are marked by
/// the subtype of their place; what follows the call in brackets is handles within an argument.
macro_rules! foreign {
    ($member:ident($handle:ident $(, $argument:ident $(: $place:ident)?)* $(,)?) $([$inside:ident: $at:ident])?) => {
        if let Some(provider) = $crate::capi::foreign::of($handle) {
            let others: &[($crate::capi::types::DatHandle, ::dat_core::Subtype)] = &[
                $($(($argument, ::dat_core::Subtype::$place),)?)*
                $(($inside, ::dat_core::Subtype::$at),)?
            ];
            return provider.hand_on(provider.functions.$member, others, |function| {
                // SAFETY: whoever registered the provider has promised that this is its function for this call; the
                // pointers are the caller's promise to it.
                unsafe { function($handle $(, $argument)*) }
            });
        }
    };
}
pub(super) use foreign;

/// What an open adapter keeps: its entry of the registry, then the library, in this order of leaving.
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

/// Open adapters, by handle; an adapter may have the same one for several openings.
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
    provider.hand_on(provider.functions.ia_open_func, &given, |function| {
        // SAFETY: the provider's promise, and the caller's.
        let answer = unsafe { function(name, async_evd_min_qlen, async_evd_handle, ia_handle) };
        if answer == 0 {
            // SAFETY: the provider has written there.
            let opened = unsafe { *ia_handle }.addr();
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            open.push((opened, lease));
        }
        answer
    })
}

/// An adapter of a provider has been closed: the provider may be removed, its library hear of the end.
pub(super) fn closed(provider: &Arc<Foreign>, ia_handle: DatHandle) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Somebody else may have an object there by now.
    let at = open.iter().position(|(handle, lease)| {
        *handle == ia_handle.addr() && lease.provider.is_same(provider)
    });
    let lease = at.map(|at| open.swap_remove(at));
    // The library's last words may come back to the registry.
    drop(open);
    drop(lease);
}
