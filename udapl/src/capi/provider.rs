//! `dat_provider_init`, `dat_provider_fini`: this library as a provider that a registry loads. With this library's own
//! registry, which has DAT 1.2, `dat_provider_init` adds a name for a device. With a registry of DAT 2.0, it registers
//! a table of functions ([`dat2`]).

// UNSAFETY: reads through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char};
use std::sync::Arc;

use dat_core::Subtype;

use super::answer::call;
use super::dat2;
use super::directory::{Entry, change, info_of};
use super::error::parameter;
use super::types::CProviderInfo;

/// `dat_provider_init`: registers an adapter of this library for the device that `instance_data` names.
///
/// # Safety
/// `provider_info` is null or points to a `DAT_PROVIDER_INFO`; `instance_data` is null or a string.
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
            // SAFETY: the pointer is not null, so by contract TEXT it leads to a string.
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

/// `dat_provider_fini`: removes the adapter.
///
/// # Safety
/// `provider_info` is null or points to a `DAT_PROVIDER_INFO`.
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
