//! A provider of another library: its table of functions, and the test whether a handle belongs to it.

// UNSAFETY: reads the table of another library.
#![expect(unsafe_code, reason = "a provider's table")]

use core::mem::{offset_of, size_of};
use std::io::IoSliceMut;

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use super::functions::{CProvider, Functions};
use crate::capi::answer::answer;
use crate::capi::error::{handle_error, internal, parameter};
use crate::capi::table::number;
use crate::capi::types::{DatHandle, DatReturn};

/// `DAT_EVD_OUT_OF_SCOPE`, the largest handle value that is a constant and not an object.
const LAST_CONSTANT: u64 = 2;

/// A registered provider of another library.
pub(in crate::capi) struct Foreign {
    /// Address of the provider's table. The provider's objects begin with this address.
    address: usize,
    /// Size of the table's functions in the provider's version of DAT, in bytes.
    pub(in crate::capi) size: usize,
    pub(in crate::capi) functions: Functions,
}

impl Foreign {
    /// Reads the table of a provider that is being registered for a version of DAT.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER: a null, misaligned or unreadable provider, or a version other than DAT 1.
    /// DAT_INTERNAL_ERROR: process_vm_readv(2) does not work, so the provider's handles cannot be recognized.
    ///
    /// # Safety
    /// `provider` is null or points to the table of this version.
    pub(in crate::capi) unsafe fn new(
        provider: *const CProvider,
        version: (u32, u32),
    ) -> DatResult<Self> {
        // Each version adds functions at the end of the table.
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
        // SAFETY: contract TABLE: `provider` points to a table.
        let table = unsafe { &raw const (*provider).functions };
        // SAFETY: contract TABLE: the table of this version has `size` bytes. The function types accept any address and
        // null.
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

    /// Returns whether the provider's table is at this address.
    pub(in crate::capi) fn is(&self, address: usize) -> bool {
        self.address == address
    }

    /// Returns whether both providers have the same table.
    pub(in crate::capi) fn is_same(&self, other: &Self) -> bool {
        self.address == other.address
    }

    /// Calls a function of the provider with `call`, if all `others` belong to the provider. `others` are the remaining
    /// handles of the call, each with the subtype for its position.
    #[cold]
    pub(in crate::capi) fn pass_on<F>(
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

/// Returns the first word of the object at a handle, or `None` if the handle is misaligned or the memory unreadable.
pub(super) fn first_word(handle: DatHandle) -> Option<usize> {
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
