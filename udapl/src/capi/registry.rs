//! The registry's C interface: `dat_registry_list_providers`, `_add_provider`, `_remove_provider`; and the lookup of
//! a name that a program opens. A name that is not in the [directory](super::directory) is used as a device name.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use std::sync::Arc;

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use super::answer::call;
use super::argument::{as_count, given, put};
use super::directory::{Entry, change, info_of, inspect, of_rust};
use super::error::parameter;
use super::foreign::{self, CProvider, Foreign, ForeignResources};
use super::types::{CProviderInfo, DatCount, DatReturn};
use crate::registry::{Found, ProviderInfo};

/// A result of a lookup: the way to open an adapter.
pub(super) enum Resolved {
    /// A device of this library, with its directory entry if it has one. The entry is in use while it is held.
    Device(String, Option<Arc<Entry>>),
    /// A provider of another library.
    Foreign(ForeignResources),
}

/// Looks up a name. If the directory has only a `dat.conf` record for the name, first loads the record's library, which
/// registers its provider.
///
/// # Errors
/// DAT_INVALID_PARAMETER|ARG1: the name is empty or too long. DAT_PROVIDER_NOT_FOUND, with the subtype of the
/// mismatch. Those of [`not_a_child`](super::fork::not_a_child).
pub(super) fn resolve(wanted: &ProviderInfo) -> DatResult<Resolved> {
    let unknown = DatError::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered);
    let find = || inspect(|directory| directory.find(wanted, |_| true)).flatten();
    let mut library = None;
    let mut found = find();
    // This function registers the records of this library. Another library registers its own record, and may be about
    // to remove it again, so its record is looked up even if it is registered.
    let record = match &found {
        Ok(Found::Listed(record)) => Some(record.clone()),
        Ok(Found::Registered(info, _)) if foreign::is_in_use(info) => {
            inspect(|directory| directory.record(info).cloned())?
        }
        Ok(Found::Registered(..)) | Err(_) => None,
    };
    if let Some(record) = record {
        // Drop the entry, because a held entry counts as in use.
        drop(found);
        if record.is_ours() {
            let info = ProviderInfo::from(&record);
            let device = Arc::new(Entry::Device(info.device(&record.ia_params)));
            // This fails if another thread has already added the entry, which is harmless.
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
        Entry::Foreign(provider) => Resolved::Foreign(ForeignResources::new(
            Arc::clone(&entry),
            Arc::clone(provider),
            library,
        )),
    })
}

/// Interprets a name as a device name, because the directory has no entry for it. Checks the requested version.
fn device(wanted: &ProviderInfo) -> DatResult<Resolved> {
    let version = |subtype| Err(DatError::new(ReturnType::ProviderNotFound, subtype));
    match wanted.dapl_version {
        (1, 0..=2) => Ok(Resolved::Device(wanted.ia_name.clone(), None)),
        (1, _) => version(Subtype::MinorNotFound),
        _ => version(Subtype::MajorNotFound),
    }
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
        let list = match inspect(|directory| directory.list(max))? {
            Ok(list) => list,
            Err(refused) => {
                // SAFETY: contract ROOM.
                unsafe { put(number_entries, as_count(refused.available)) };
                return Err(refused.error);
            }
        };
        for (at, info) in list.iter().enumerate() {
            // SAFETY: `list` has at most `max` entries, and by contract GIVEN the caller's array has `max` pointers.
            let to = unsafe { *dat_provider_list.wrapping_add(at) };
            given(to, Subtype::Arg3)?;
            // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
            unsafe { put(to, of_rust(info)) };
        }
        // SAFETY: contract ROOM.
        unsafe { put(number_entries, as_count(list.len())) };
        Ok(())
    })
}

/// Registers a provider (`dat_registry_add_provider`): from now on `provider` opens adapters of this name.
///
/// # Safety
/// The pointers are null or point to what the header says. The provider's functions have the types in the header
/// while it is registered.
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

/// Removes a provider (`dat_registry_remove_provider`): from now on the name cannot be opened.
///
/// # Safety
/// That of [`dat_registry_add_provider`].
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
                    Err(parameter(Subtype::Arg1)
                        .because("another provider has registered the name"))
                }
                Some(_) | None => directory.remove(&info),
            }
        })
    })
}
