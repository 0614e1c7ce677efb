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
//! A provider of DAT 1.2 is a table of functions ([`CProvider`]), and its handles are addresses of objects that begin with the
//! address of that table. Which makes a handle something to be followed, that may be anything. So the word there is read by
//! the kernel (`process_vm_readv(2)` on the process itself, which fails where a load would fault), and only if it is the
//! address of a table in the registry, the provider is called. That costs a system call a call; calls on handles of ours
//! never come here. What kind of object it is and whether it is still one is the provider's to say.
//!
//! Every handle among the arguments must be of the same provider. One of ours, or a number that is none, is refused before
//! the provider follows it. What is within a structure (`dat_ep_modify`) is for the provider to look at.

// UNSAFETY: functions of other libraries are called, and pointers of a C program are followed.
#![expect(unsafe_code, reason = "the caller's pointers and providers")]

mod functions;
mod library;

use core::ffi::c_char;
use core::mem::{offset_of, size_of};
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, PoisonError};

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use super::adapter::{handle_error, internal};
use super::call::{answer, parameter};
use super::registry::{self, Entry};
use super::table::number;
use super::types::{DatCount, DatHandle, DatReturn};
use functions::Functions;

pub use functions::{CProvider, LAYOUT};
pub(super) use library::{Loan, borrow, is_under_way};

/// `DAT_EVD_OUT_OF_SCOPE`, the largest handle that is a number by definition.
const LAST_CONSTANT: u64 = 2;

/// A registered provider.
pub(super) struct Foreign {
    /// Of its table, which its objects begin with.
    address: usize,
    /// Bytes of the functions that its version of DAT has.
    pub(super) size: usize,
    pub(super) functions: Functions,
}

impl Foreign {
    /// A provider that is being registered for a version of DAT.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER: no provider; a version other than DAT 1. DAT_INTERNAL_ERROR: this process cannot tell its
    /// handles.
    ///
    /// # Safety
    /// `provider` is null or points to the table of this version.
    pub(super) unsafe fn new(provider: *const CProvider, version: (u32, u32)) -> DatResult<Self> {
        // What came with a version is at the end of the table.
        let size = match version {
            (1, 0) => offset_of!(Functions, psp_create_any_func),
            (1, 1) => offset_of!(Functions, lmr_sync_rdma_read_func),
            (1, _) => size_of::<Functions>(),
            _ => return Err(parameter(Subtype::Arg2).because("providers of DAT 1 only")),
        };
        let address = provider.addr();
        if address == 0 || !address.is_multiple_of(align_of::<CProvider>()) {
            return Err(parameter(Subtype::Arg1));
        }
        word_at(address).map_err(|error| {
            tracing::error!(%error, "process_vm_readv");
            if error == nix::Error::EFAULT {
                return parameter(Subtype::Arg1);
            }
            internal("process_vm_readv(2) does not serve this process")
        })?;
        let mut functions = Functions::default();
        // SAFETY: contract TABLE.
        let table = unsafe { &raw const (*provider).functions };
        // SAFETY: as above, and so much of the table is there in this version. Any address, and null, is a value of its types.
        unsafe {
            core::ptr::copy_nonoverlapping(
                table.cast::<u8>(),
                (&raw mut functions).cast::<u8>(),
                size,
            );
        }
        Ok(Self {
            address,
            size,
            functions,
        })
    }

    /// Its table is at this address.
    pub(super) fn is(&self, address: usize) -> bool {
        self.address == address
    }

    /// Calls one of its functions, if the other handles of the call are its own.
    #[cold]
    pub(super) fn hand_on<F>(
        &self,
        function: Option<F>,
        others: &[(DatHandle, Subtype)],
        call: impl FnOnce(F) -> DatReturn,
    ) -> DatReturn {
        let stranger = others.iter().find(|(handle, _)| {
            number(*handle) > LAST_CONSTANT && first_word(*handle) != Some(self.address)
        });
        if let Some(&(_, place)) = stranger {
            return answer(handle_error(place));
        }
        match function {
            Some(function) => call(function),
            None => answer(DatError::new(ReturnType::NotImplemented, Subtype::None)),
        }
    }
}

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
    registry::foreign(|| first_word(handle))
}

/// What an object begins with, if there is memory.
fn first_word(handle: DatHandle) -> Option<usize> {
    let address = handle.addr();
    if !address.is_multiple_of(4) {
        return None;
    }
    word_at(address).ok()
}

#[expect(clippy::host_endian_bytes, reason = "a word of this machine's memory")]
fn word_at(address: usize) -> nix::Result<usize> {
    let mut word = [0; size_of::<usize>()];
    let there = RemoteIoVec {
        base: address,
        len: word.len(),
    };
    let read = process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut word)], &[there])?;
    if read < word.len() {
        return Err(nix::Error::EFAULT);
    }
    Ok(usize::from_ne_bytes(word))
}

/// Hands the call on, if the first handle is that of another provider. Handles among the other arguments are marked by the
/// subtype of their place; what follows the call in brackets is handles within an argument.
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
        *handle == ia_handle.addr() && lease.provider.address == provider.address
    });
    let lease = at.map(|at| open.swap_remove(at));
    // The library's last words may come back to the registry.
    drop(open);
    drop(lease);
}
