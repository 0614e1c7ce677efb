//! `dat_provider_init`, `dat_provider_fini`: this library as a provider, which a registry loads. To DAT 1.2's it is one
//! more name of a device; DAT 2.0's is given a table of functions ([`dat2`]).

// UNSAFETY: pointers of a C program are read.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char};
use std::sync::Arc;

use dat_core::Subtype;

use super::answer::{call, parameter};
use super::dat2;
use super::directory::{Entry, change, info_of};
use super::types::CProviderInfo;

/// `dat_provider_init`: registers an adapter of this library, for the device that `instance_data` names.
///
/// # Safety
/// `provider_info` is null or points to one; `instance_data` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_init(
    provider_info: *const CProviderInfo,
    instance_data: *const c_char,
) {
    let _answer = call(|| {
        // SAFETY: contract GIVEN.
        let info = unsafe { info_of(provider_info) }?;
        let device = if instance_data.is_null() {
            c""
        } else {
            // SAFETY: not null, and contract TEXT.
            unsafe { CStr::from_ptr(instance_data) }
        };
        let device = device.to_str().map_err(|_| parameter(Subtype::Arg2))?;
        match info.dapl_version.0 {
            2 => dat2::init(info, device),
            _ => {
                let device = Entry::Device(info.device(device));
                change(|directory| directory.add(info, Arc::new(device)))
            }
        }
    });
}

/// `dat_provider_fini`: takes it out again.
///
/// # Safety
/// `provider_info` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_fini(provider_info: *const CProviderInfo) {
    let _answer = call(|| {
        // SAFETY: contract GIVEN.
        let info = unsafe { info_of(provider_info) }?;
        match info.dapl_version.0 {
            2 => dat2::fini(&info),
            _ => change(|directory| directory.remove(&info)),
        }
    });
}
