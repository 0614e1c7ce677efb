//! The provider: a name and a table of functions for the registry of DAT 2.0, `libdat2.so.2`.
//!
//! The registry loads this library when a program opens an adapter that `dat.conf` says is ours, and calls
//! `dat_provider_init` with the record's name, version and instance data. We answer with a [`Provider`] for that name;
//! the registry is asked for by name, since nothing here is linked to it. Then it calls the provider's `ia_open` with
//! the adapter's name alone, which leads back to the device.

// UNSAFETY: the registry is found by name, and is given and gives pointers.
#![expect(unsafe_code, reason = "the registry of DAT 2.0")]

use core::ffi::{CStr, c_char, c_void};
use core::mem::offset_of;
use core::ptr::null;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use crate::capi::directory::of_rust;
use crate::capi::types::{CProviderInfo, DatReturn};
use crate::capi::{fork, log};
use crate::registry::ProviderInfo;

/// What the registry has of us (`DAT_PROVIDER`).
#[repr(C)]
pub struct Provider {
    /// The name it is registered under.
    device_name: *const c_char,
    /// The registry's; unused.
    extension: *const c_void,
    functions: Functions,
}
/// Addresses of functions, in the order of the header.
pub(super) type Functions = [*const c_void; FUNCTIONS];
/// So many has `struct dat_provider`.
pub(super) const FUNCTIONS: usize = 79;
const _: () = assert!(size_of::<Provider>() == 648 && offset_of!(Provider, functions) == 16);

/// A registered adapter.
struct Registered {
    info: ProviderInfo,
    /// As `dat_ia_open` of DAT 1.2 names it.
    device: String,
    /// Never freed: handles lead to it.
    provider: &'static Provider,
}

// SAFETY: nobody changes a provider; its name is never freed.
unsafe impl Sync for Provider {}

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// # Errors
/// Those of [`fork::not_a_child`]: in a child nobody may be there to let the lock go.
fn registered() -> DatResult<MutexGuard<'static, Vec<Registered>>> {
    log::begin();
    fork::not_a_child()?;
    Ok(REGISTERED.lock().unwrap_or_else(PoisonError::into_inner))
}

type Change = unsafe extern "C" fn(*const Provider, *const CProviderInfo) -> DatReturn;

/// A function of the registry's, unless what goes by the name is only `ours`.
fn of_registry(name: &CStr, ours: *const c_void) -> DatResult<Change> {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
    // SAFETY: the name is a string. Nothing is loaded: the registry is there, or nobody would have called us.
    let library = unsafe { libc::dlopen(c"libdat2.so.2".as_ptr(), flags) };
    let library = if library.is_null() {
        // A registry that the program has been linked with.
        libc::RTLD_DEFAULT
    } else {
        library
    };
    // SAFETY: a library's handle, or the constant for all of them; the name is a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() || found.addr() == ours.addr() {
        return Err(DatError::new(ReturnType::InvalidState, Subtype::None)
            .because("the registry of DAT 2.0, libdat2.so.2, is not in this process"));
    }
    // SAFETY: the functions of these names have this type (dat_registry.h of DAT 2.0).
    Ok(unsafe { core::mem::transmute::<*mut c_void, Change>(found) })
}

/// What the registry answered, as an error unless it is success.
fn answered(answer: DatReturn) -> DatResult<()> {
    if answer == 0 {
        return Ok(());
    }
    tracing::error!("the registry of DAT 2.0 answers {answer:#010x}");
    let refused = DatError::new(ReturnType::InternalError, Subtype::None);
    Err(refused.because("the registry of DAT 2.0 refused"))
}

/// Registers an adapter with these functions, for the device that `instance_data` names; if it is empty, the adapter's
/// name does.
pub(super) fn register(
    info: ProviderInfo,
    instance_data: &str,
    functions: Functions,
) -> DatResult<()> {
    let ours = crate::capi::registry::dat_registry_add_provider as *const c_void;
    let add = of_registry(c"dat_registry_add_provider", ours)?;
    let device = info.device(instance_data);
    let name = CString::new(info.ia_name.as_str())
        .map_err(|_| DatError::new(ReturnType::InvalidParameter, Subtype::Arg1))?;
    let mut list = registered()?;
    let at = list.iter().position(|one| one.info == info);
    let at = at.unwrap_or_else(|| {
        let provider = Box::leak(Box::new(Provider {
            device_name: name.into_raw(),
            extension: null(),
            functions,
        }));
        list.push(Registered {
            info,
            device: String::new(),
            provider,
        });
        list.len() - 1
    });
    let entry = &mut list[at];
    entry.device = device;
    let (provider, info) = (entry.provider, of_rust(&entry.info));
    // The registry may come back to us.
    drop(list);
    // SAFETY: both are what the registry takes.
    answered(unsafe { add(provider, &info) })
}

/// Takes an adapter out of the registry. What is open stays open.
pub(in crate::capi) fn fini(info: &ProviderInfo) -> DatResult<()> {
    let ours = crate::capi::registry::dat_registry_remove_provider as *const c_void;
    let remove = of_registry(c"dat_registry_remove_provider", ours)?;
    let known = registered()?
        .iter()
        .find(|one| one.info == *info)
        .map(|entry| entry.provider);
    let Some(provider) = known else {
        return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg1));
    };
    // The registry may come back to us: nothing is locked.
    // SAFETY: both are what the registry takes.
    answered(unsafe { remove(provider, &of_rust(info)) })
}

/// What a name was registered for last: the device, and the provider.
///
/// # Errors
/// Those of [`fork::not_a_child`].
pub(super) fn of_name(name: &str) -> DatResult<Option<(String, &'static Provider)>> {
    let list = registered()?;
    let entry = list.iter().rfind(|one| one.info.ia_name == name);
    Ok(entry.map(|entry| (entry.device.clone(), entry.provider)))
}

/// What the adapters of a provider are registered as.
pub(super) fn info_of(provider: *const Provider) -> Option<ProviderInfo> {
    let list = registered().ok()?;
    let entry = list
        .iter()
        .find(|one| core::ptr::eq(one.provider, provider))?;
    Some(entry.info.clone())
}
