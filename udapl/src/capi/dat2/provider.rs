//! The provider: a name and a table of functions for the registry of DAT 2.0, `libdat2.so.2`.
//!
//! When a program opens an adapter whose `dat.conf` record names this library, the registry loads the library and calls
//! `dat_provider_init` with the record's name, version and instance data. That call registers a [`Provider`] for the
//! name. This module finds the registry's functions by dlsym(3), because this library is not linked to the registry.
//! Then the registry calls the provider's `ia_open` with only the adapter's name, from which this module finds the
//! device.

// UNSAFETY: looks up the registry's functions, and exchanges pointers with them.
#![expect(unsafe_code, reason = "the registry of DAT 2.0")]

use core::ffi::{CStr, c_char, c_void};
use core::mem::offset_of;
use core::ptr::null;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use crate::capi::directory::of_rust;
use crate::capi::types::{CProviderInfo, DatReturn};
use crate::capi::{fork, log};
use crate::registry::ProviderInfo;

/// A provider as the registry reads it (`DAT_PROVIDER`).
#[repr(C)]
pub struct Provider {
    /// Name under which the provider is registered.
    device_name: *const c_char,
    /// Pointer that only the registry uses.
    extension: *const c_void,
    functions: Functions,
}
/// Addresses of functions, in the order of the header.
pub(super) type Functions = [*const c_void; FUNCTIONS];
/// Number of functions in `struct dat_provider`.
pub(super) const FUNCTIONS: usize = 79;
const _: () = assert!(size_of::<Provider>() == 648 && offset_of!(Provider, functions) == 16);

/// A registered adapter.
struct Registered {
    info: ProviderInfo,
    /// The registration, unless it was removed. The entry stays, because open adapters need its version.
    live: Option<Registration>,
    /// Provider that the registry has. It is never freed, because handles point to it.
    provider: &'static Provider,
}

/// A registration that is in the registry.
struct Registration {
    /// Number of the registration; a later registration has a larger number.
    number: u64,
    /// Device name that is passed to `dat_ia_open` of DAT 1.2.
    device: String,
}

impl Registration {
    fn new(device: String) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, device }
    }
}

impl Registered {
    fn number(&self) -> Option<u64> {
        self.live.as_ref().map(|live| live.number)
    }
}

/// Replaces the registration with this number by another, or by none. Does nothing if another thread has replaced it.
fn replace(number: u64, by: Option<Registration>) -> DatResult<()> {
    let mut list = registered()?;
    if let Some(entry) = list.iter_mut().find(|one| one.number() == Some(number)) {
        entry.live = by;
    }
    Ok(())
}

// SAFETY: a provider never changes, and its name is never freed.
unsafe impl Sync for Provider {}

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// Locks the list of registered adapters.
///
/// # Errors
/// Those of [`fork::not_a_child`]: in a forked child the lock may be held for ever.
fn registered() -> DatResult<MutexGuard<'static, Vec<Registered>>> {
    log::begin();
    fork::not_a_child()?;
    Ok(REGISTERED.lock().unwrap_or_else(PoisonError::into_inner))
}

type Change = unsafe extern "C" fn(*const Provider, *const CProviderInfo) -> DatReturn;

/// Returns the registry's function `name`. Fails if the process has no such function, or only this library's, `ours`.
fn of_registry(name: &CStr, ours: *const c_void) -> DatResult<Change> {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
    // SAFETY: the name is a C string. With RTLD_NOLOAD nothing is loaded; the registry is already in memory, because it
    // has called this library.
    let library = unsafe { libc::dlopen(c"libdat2.so.2".as_ptr(), flags) };
    let library = if library.is_null() {
        // There is no `libdat2.so.2`, so the registry is linked into the program itself.
        libc::RTLD_DEFAULT
    } else {
        library
    };
    // SAFETY: `library` is a library's handle or the constant for all libraries; the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() || found.addr() == ours.addr() {
        return Err(DatError::new(ReturnType::InvalidState, Subtype::None)
            .because("the registry of DAT 2.0, libdat2.so.2, is not in this process"));
    }
    // SAFETY: the functions of these names have this type (dat_registry.h of DAT 2.0).
    Ok(unsafe { core::mem::transmute::<*mut c_void, Change>(found) })
}

/// Converts the registry's return code to a result.
fn answered(answer: DatReturn) -> DatResult<()> {
    if answer == 0 {
        return Ok(());
    }
    tracing::error!("the registry of DAT 2.0 returned {answer:#010x}");
    let refused = DatError::new(ReturnType::InternalError, Subtype::None);
    Err(refused.because("the registry of DAT 2.0 refused"))
}

/// Registers an adapter with these functions, for the device that `instance_data` names. If `instance_data` is empty,
/// the adapter's name is also the device's name.
pub(super) fn register(
    info: ProviderInfo,
    instance_data: &str,
    functions: Functions,
) -> DatResult<()> {
    let ours = crate::capi::registry::dat_registry_add_provider as *const c_void;
    let add = of_registry(c"dat_registry_add_provider", ours)?;
    let registration = Registration::new(info.device(instance_data));
    let number = registration.number;
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
            live: None,
            provider,
        });
        list.len() - 1
    });
    let entry = &mut list[at];
    // Another thread may open the adapter as soon as the registry has it, so it is registered here first.
    let before = entry.live.replace(registration);
    let (provider, info) = (entry.provider, of_rust(&entry.info));
    // The registry may call this library, so the lock must not be held.
    drop(list);
    // SAFETY: the arguments have the types of the registry's function.
    let added = answered(unsafe { add(provider, &info) });
    if added.is_err() {
        // The registry may still have the previous registration.
        replace(number, before)?;
    }
    added
}

/// Removes an adapter from the registry. Instances of the adapter that are open stay open.
pub(in crate::capi) fn fini(info: &ProviderInfo) -> DatResult<()> {
    let ours = crate::capi::registry::dat_registry_remove_provider as *const c_void;
    let remove = of_registry(c"dat_registry_remove_provider", ours)?;
    let known = registered()?
        .iter()
        .find(|one| one.info == *info)
        .and_then(|entry| Some((entry.number()?, entry.provider)));
    let Some((number, provider)) = known else {
        return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg1));
    };
    // The registry may call this library, so no lock is held.
    // SAFETY: the arguments have the types of the registry's function.
    answered(unsafe { remove(provider, &of_rust(info)) })?;
    replace(number, None)
}

/// Returns the device and the provider of the last registration of a name that was not removed.
///
/// # Errors
/// Those of [`fork::not_a_child`].
pub(super) fn of_name(name: &str) -> DatResult<Option<(String, &'static Provider)>> {
    let list = registered()?;
    let live = list
        .iter()
        .filter(|one| one.info.ia_name == name)
        .filter_map(|one| Some((one.live.as_ref()?, one.provider)));
    let last = live.max_by_key(|(live, _)| live.number);
    Ok(last.map(|(live, provider)| (live.device.clone(), provider)))
}

/// Returns the name and version under which a provider is registered, or was before it was removed.
pub(super) fn info_of(provider: *const Provider) -> Option<ProviderInfo> {
    let list = registered().ok()?;
    let entry = list
        .iter()
        .find(|one| core::ptr::eq(one.provider, provider))?;
    Some(entry.info.clone())
}
