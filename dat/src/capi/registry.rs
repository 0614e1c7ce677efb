//! The registry as C sees it: `dat_registry_list_providers`, `_add_provider`, `_remove_provider`, `dat_provider_init`,
//! `dat_provider_fini`.
//!
//! There is one for the process, read from the machine's `dat.conf` when it is first needed. A name it does not know is taken
//! for a device's.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use super::call::{as_count, call, given, parameter, put};
use super::dat2;
use super::ia::{dat_error, text};
use super::types::{CProviderInfo, DatCount, DatReturn};
use crate::registry::{ProviderInfo, Registry};
use crate::{Ia, OpenError, OpenOptions, ia_open};

static REGISTRY: LazyLock<Mutex<Registry>> =
    LazyLock::new(|| Mutex::new(Registry::of_this_machine()));

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens an adapter of the registry, or the device of that name.
pub(super) fn open(
    name: &str,
    dapl_version: (u32, u32),
    is_thread_safe: bool,
    options: &OpenOptions,
) -> DatResult<(Ia, Option<Box<dyn Send>>)> {
    let wanted = ProviderInfo {
        ia_name: name.to_owned(),
        dapl_version,
        is_thread_safe,
    };
    let unknown = DatError::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered);
    match registry().open(&wanted, options) {
        Ok(opened) => {
            let (ia, entry) = opened.into_parts();
            return Ok((ia, Some(entry)));
        }
        Err(OpenError::Dat(error)) if error == unknown => {}
        Err(error) => return Err(dat_error(error)),
    }
    let version = |subtype| Err(DatError::new(ReturnType::ProviderNotFound, subtype));
    match dapl_version {
        (1, 0..=2) => {}
        (1, _) => return version(Subtype::MinorNotFound),
        _ => return version(Subtype::MajorNotFound),
    }
    Ok((ia_open(name, options).map_err(dat_error)?, None))
}

/// What a `DAT_PROVIDER_INFO` says.
///
/// # Safety
/// `info` is null or points to one, whose name ends with a NUL.
unsafe fn info_of(info: *const CProviderInfo) -> DatResult<ProviderInfo> {
    given(info, Subtype::Arg2)?;
    // SAFETY: not null, and the caller's promise.
    let info = unsafe { &*info };
    let bytes: Vec<u8> = info
        .ia_name
        .iter()
        .map(|byte| byte.cast_unsigned())
        .collect();
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| parameter(Subtype::Arg2))?;
    Ok(ProviderInfo {
        ia_name: name
            .to_str()
            .map_err(|_| parameter(Subtype::Arg2))?
            .to_owned(),
        dapl_version: (info.dapl_version_major, info.dapl_version_minor),
        is_thread_safe: info.is_thread_safe != 0,
    })
}

/// `dat_registry_list_providers`.
///
/// # Safety
/// `number_entries` is null or points to a count; `dat_provider_list` is null or points to `max_to_return` pointers,
/// each to a `DAT_PROVIDER_INFO`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_list_providers(
    max_to_return: DatCount,
    number_entries: *mut DatCount,
    dat_provider_list: *const *mut CProviderInfo,
) -> DatReturn {
    call(|| {
        let max = usize::try_from(max_to_return).map_err(|_| parameter(Subtype::Arg1))?;
        given(number_entries, Subtype::Arg2)?;
        if max != 0 {
            given(dat_provider_list, Subtype::Arg3)?;
        }
        let list = match registry().list_providers(max) {
            Ok(list) => list,
            Err(refused) => {
                // SAFETY: the caller's promise.
                unsafe { put(number_entries, as_count(refused.available)) };
                return Err(refused.error);
            }
        };
        for (at, info) in list.iter().enumerate() {
            // SAFETY: the list has no more than `max` entries, as many as the caller has pointers.
            let to = unsafe { *dat_provider_list.wrapping_add(at) };
            given(to, Subtype::Arg3)?;
            let entry = CProviderInfo {
                ia_name: text(&info.ia_name),
                dapl_version_major: info.dapl_version.0,
                dapl_version_minor: info.dapl_version.1,
                is_thread_safe: info.is_thread_safe.into(),
            };
            // SAFETY: not null, and the caller's promise.
            unsafe { put(to, entry) };
        }
        // SAFETY: the caller's promise.
        unsafe { put(number_entries, as_count(list.len())) };
        Ok(())
    })
}

/// Calls that answer DAT_NOT_IMPLEMENTED.
pub const NOT_IMPLEMENTED: &[&str] = &[
    // Providers are function tables of other libraries; this library has its own provider only.
    "dat_registry_add_provider",
    "dat_registry_remove_provider",
];

/// `dat_registry_add_provider`.
///
/// # Safety
/// The pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_add_provider(
    provider: *const c_void,
    provider_info: *const CProviderInfo,
) -> DatReturn {
    call(|| {
        given(provider, Subtype::Arg1)?;
        // SAFETY: the caller's promise.
        unsafe { info_of(provider_info) }?;
        Err(DatError::new(ReturnType::NotImplemented, Subtype::None))
    })
}

/// `dat_registry_remove_provider`.
///
/// # Safety
/// As [`dat_registry_add_provider`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_remove_provider(
    provider: *const c_void,
    provider_info: *const CProviderInfo,
) -> DatReturn {
    call(|| {
        given(provider, Subtype::Arg1)?;
        // SAFETY: the caller's promise.
        unsafe { info_of(provider_info) }?;
        Err(DatError::new(ReturnType::NotImplemented, Subtype::None))
    })
}

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
        // SAFETY: the caller's promise.
        let info = unsafe { info_of(provider_info) }?;
        let device = if instance_data.is_null() {
            c""
        } else {
            // SAFETY: not null, and the caller's promise.
            unsafe { CStr::from_ptr(instance_data) }
        };
        let device = device.to_str().map_err(|_| parameter(Subtype::Arg2))?;
        match info.dapl_version.0 {
            2 => dat2::init(info, device),
            _ => registry().provider_init(info, device),
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
        // SAFETY: the caller's promise.
        let info = unsafe { info_of(provider_info) }?;
        match info.dapl_version.0 {
            2 => dat2::fini(&info),
            _ => registry().provider_fini(&info),
        }
    });
}
