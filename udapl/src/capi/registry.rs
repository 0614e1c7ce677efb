//! The registry as C sees it: `dat_registry_list_providers`, `_add_provider`, `_remove_provider`, `dat_provider_init`,
//! `dat_provider_fini`.
//!
//! There is one for the process, read from the machine's `dat.conf` when it is first needed. An entry of it is a device, which
//! this library opens, or the provider of another library ([`foreign`](super::foreign)). A name it does not know is
//! taken for a device's.
//!
//! A child of fork(2) that has none of its parent's adapters has no registry either: another thread of the parent's may have held
//! the lock, and is not there to let it go ([`fork`]).

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use super::call::{as_count, call, given, parameter, put};
use super::dat2;
use super::foreign::{self, CProvider, Foreign, Lease};
use super::fork;
use super::ia::text;
use super::types::{CProviderInfo, DatCount, DatReturn};
use crate::registry::{Directory, Found, ProviderInfo};

/// What a name stands for.
pub(super) enum Entry {
    /// A device that this library opens.
    Device(String),
    /// A provider of another library.
    Foreign(Arc<Foreign>),
}

static DIRECTORY: OnceLock<RwLock<Directory<Entry>>> = OnceLock::new();

/// The registry, which is made when it is first asked for.
///
/// # Errors
/// Those of [`fork::not_a_child`].
fn directory() -> DatResult<&'static RwLock<Directory<Entry>>> {
    fork::not_a_child()?;
    Ok(DIRECTORY.get_or_init(|| RwLock::new(Directory::of_this_machine())))
}

/// Looks something up.
///
/// # Errors
/// Those of [`directory`].
fn look<R>(work: impl FnOnce(&Directory<Entry>) -> R) -> DatResult<R> {
    let directory = directory()?.read();
    Ok(work(&directory.unwrap_or_else(PoisonError::into_inner)))
}

/// Changes something.
///
/// # Errors
/// Those of [`directory`], and of the work.
fn change(work: impl FnOnce(&mut Directory<Entry>) -> DatResult<()>) -> DatResult<()> {
    let directory = directory()?.write();
    work(&mut directory.unwrap_or_else(PoisonError::into_inner))
}

/// The provider of another library that has its table at this address, which is asked for if there is any. There is none
/// before somebody has asked for the registry, and none in a child that has no registry.
pub(super) fn foreign(address: impl FnOnce() -> Option<usize>) -> Option<Arc<Foreign>> {
    if fork::is_child() {
        return None;
    }
    let directory = DIRECTORY.get()?.read();
    let directory = directory.unwrap_or_else(PoisonError::into_inner);
    let providers = directory.entries().filter_map(|entry| match &**entry {
        Entry::Foreign(provider) => Some(provider),
        Entry::Device(_) => None,
    });
    let mut providers = providers.peekable();
    providers.peek()?;
    let address = address()?;
    // One table may be registered for several versions of DAT.
    let its = providers.filter(|provider| provider.is(address));
    its.max_by_key(|provider| provider.size).cloned()
}

/// What opens an adapter.
pub(super) enum Resolved {
    /// A device, and what keeps its entry in use if it has one.
    Device(String, Option<Arc<Entry>>),
    /// A provider of another library.
    Foreign(Lease),
}

/// What a name stands for. The library of a record is loaded if it has to be, and has registered its provider then.
///
/// # Errors
/// DAT_INVALID_PARAMETER|ARG1: no name, or too long a one. DAT_PROVIDER_NOT_FOUND, with the subtype of what does not fit. Those of
/// [`fork::not_a_child`].
pub(super) fn resolve(wanted: &ProviderInfo) -> DatResult<Resolved> {
    let unknown = DatError::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered);
    let find = || look(|directory| directory.find(wanted, |_| true)).flatten();
    let mut library = None;
    let mut found = find();
    // A record of ours is registered by us, any other by its library, which may be on its way out.
    let record = match &found {
        Ok(Found::Listed(record)) => Some(record.clone()),
        Ok(Found::Registered(info, _)) if foreign::is_under_way(info) => {
            look(|directory| directory.record(info).cloned())?
        }
        Ok(Found::Registered(..)) | Err(_) => None,
    };
    if let Some(record) = record {
        // Held, the entry would seem to be in use.
        drop(found);
        if record.is_ours() {
            let info = ProviderInfo::from(&record);
            let device = Arc::new(Entry::Device(info.device(&record.ia_params)));
            // Somebody may have been faster.
            let _there = change(|directory| directory.add(info, device));
        } else {
            library = Some(foreign::borrow(&record).map_err(|error| {
                tracing::error!(%error, ia_name = %record.ia_name, library = %record.library, "dat.conf");
                unknown
            })?);
        }
        found = find();
    }
    let entry = match found {
        Ok(Found::Registered(_, entry)) => entry,
        Ok(Found::Listed(_)) => return Err(unknown),
        Err(error) if error == unknown => return device(wanted),
        Err(error) => return Err(error),
    };
    Ok(match &*entry {
        Entry::Device(device) => Resolved::Device(device.clone(), Some(Arc::clone(&entry))),
        Entry::Foreign(provider) => Resolved::Foreign(Lease::new(
            Arc::clone(&entry),
            Arc::clone(provider),
            library,
        )),
    })
}

/// The device of a name that the registry does not know.
fn device(wanted: &ProviderInfo) -> DatResult<Resolved> {
    let version = |subtype| Err(DatError::new(ReturnType::ProviderNotFound, subtype));
    match wanted.dapl_version {
        (1, 0..=2) => Ok(Resolved::Device(wanted.ia_name.clone(), None)),
        (1, _) => version(Subtype::MinorNotFound),
        _ => version(Subtype::MajorNotFound),
    }
}

/// An entry of the dynamic registry, known by where it is.
pub(super) fn entry_at(info: &ProviderInfo) -> Option<usize> {
    look(|directory| directory.get(info).map(|entry| Arc::as_ptr(entry).addr())).ok()?
}

/// Takes that entry out, if its library has not and nobody has it open.
pub(super) fn forget(info: &ProviderInfo, entry: usize) {
    let _gone = change(|directory| match directory.get(info) {
        Some(there) if Arc::as_ptr(there).addr() == entry => directory.remove(info),
        Some(_) | None => Ok(()),
    });
}

/// A `DAT_PROVIDER_INFO`.
pub(super) fn of_rust(info: &ProviderInfo) -> CProviderInfo {
    CProviderInfo {
        ia_name: text(&info.ia_name),
        dapl_version_major: info.dapl_version.0,
        dapl_version_minor: info.dapl_version.1,
        is_thread_safe: info.is_thread_safe.into(),
    }
}

/// What a `DAT_PROVIDER_INFO` says.
///
/// # Safety
/// `info` is null or points to one, whose name ends with a NUL.
unsafe fn info_of(info: *const CProviderInfo) -> DatResult<ProviderInfo> {
    given(info, Subtype::Arg2)?;
    // SAFETY: not null, and contract GIVEN.
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
        let list = match look(|directory| directory.list(max))? {
            Ok(list) => list,
            Err(refused) => {
                // SAFETY: contract ROOM.
                unsafe { put(number_entries, as_count(refused.available)) };
                return Err(refused.error);
            }
        };
        for (at, info) in list.iter().enumerate() {
            // SAFETY: the list has no more than `max` entries, as many as the caller has pointers.
            let to = unsafe { *dat_provider_list.wrapping_add(at) };
            given(to, Subtype::Arg3)?;
            // SAFETY: not null, and contract ROOM.
            unsafe { put(to, of_rust(info)) };
        }
        // SAFETY: contract ROOM.
        unsafe { put(number_entries, as_count(list.len())) };
        Ok(())
    })
}

/// `dat_registry_add_provider`: adapters of this name are opened by `provider` from now on.
///
/// # Safety
/// The pointers are null or point to what the header says. The provider's functions are what the header says of them, for as
/// long as it is registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_add_provider(
    provider: *const CProvider,
    provider_info: *const CProviderInfo,
) -> DatReturn {
    call(|| {
        given(provider, Subtype::Arg1)?;
        // SAFETY: contract GIVEN.
        let info = unsafe { info_of(provider_info) }?;
        // SAFETY: contract TABLE.
        let provider = unsafe { Foreign::new(provider, info.dapl_version) }?;
        change(|directory| directory.add(info, Arc::new(Entry::Foreign(Arc::new(provider)))))
    })
}

/// `dat_registry_remove_provider`: nobody opens it any more.
///
/// # Safety
/// As [`dat_registry_add_provider`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_remove_provider(
    provider: *const CProvider,
    provider_info: *const CProviderInfo,
) -> DatReturn {
    call(|| {
        given(provider, Subtype::Arg1)?;
        // SAFETY: contract GIVEN.
        let info = unsafe { info_of(provider_info) }?;
        change(|directory| {
            let is_it = |entry: &Entry| match entry {
                Entry::Foreign(registered) => registered.is(provider.addr()),
                Entry::Device(_) => false,
            };
            match directory.get(&info) {
                Some(entry) if !is_it(entry) => {
                    Err(parameter(Subtype::Arg1).because("the name is another provider's"))
                }
                Some(_) | None => directory.remove(&info),
            }
        })
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
