//! The process's directory of adapters, read from `dat.conf` on first use.
//!
//! An entry is a device that this library opens, or a provider of another library ([`foreign`](super::foreign)).
//!
//! A child of fork(2) whose parent had adapters open cannot use the directory: a thread of the parent may have held
//! its lock, and that thread does not exist in the child ([`fork`]).

// UNSAFETY: reads through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::CStr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use dat_core::{DatResult, Subtype};

use super::argument::{given, text};
use super::error::parameter;
use super::foreign::provider::Foreign;
use super::fork;
use super::log;
use super::types::CProviderInfo;
use crate::registry::{Directory, ProviderInfo};

/// An entry of the directory: the meaning of an adapter's name.
pub(super) enum Entry {
    /// A device that this library opens.
    Device(String),
    /// A provider of another library.
    Foreign(Arc<Foreign>),
}

static DIRECTORY: OnceLock<RwLock<Directory<Entry>>> = OnceLock::new();

/// Returns the directory. The first call creates it.
///
/// # Errors
/// Those of [`fork::not_a_child`].
fn directory() -> DatResult<&'static RwLock<Directory<Entry>>> {
    log::begin();
    fork::not_a_child()?;
    Ok(DIRECTORY.get_or_init(|| RwLock::new(Directory::of_this_machine())))
}

/// Runs `work` on the directory under the read lock.
///
/// # Errors
/// Those of [`directory`].
pub(super) fn inspect<R>(work: impl FnOnce(&Directory<Entry>) -> R) -> DatResult<R> {
    let directory = directory()?.read();
    Ok(work(&directory.unwrap_or_else(PoisonError::into_inner)))
}

/// Runs `work` on the directory under the write lock.
///
/// # Errors
/// Those of [`directory`] and of `work`.
pub(super) fn change(work: impl FnOnce(&mut Directory<Entry>) -> DatResult<()>) -> DatResult<()> {
    let directory = directory()?.write();
    work(&mut directory.unwrap_or_else(PoisonError::into_inner))
}

/// Returns another library's provider whose table is at the address that `address` returns. Calls `address` only if
/// providers of other libraries are registered. Returns `None` in a forked child, and before the first use of the
/// directory.
pub(super) fn provider_of(address: impl FnOnce() -> Option<usize>) -> Option<Arc<Foreign>> {
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

/// Returns the memory address of a name's entry, which identifies the entry in `forget`.
pub(super) fn entry_at(info: &ProviderInfo) -> Option<usize> {
    inspect(|directory| directory.get(info).map(|entry| Arc::as_ptr(entry).addr())).ok()?
}

/// Removes the entry at this address. Does nothing if the entry was already removed, or if one of its adapters is open.
pub(super) fn forget(info: &ProviderInfo, entry: usize) {
    let _gone = change(|directory| match directory.get(info) {
        Some(there) if Arc::as_ptr(there).addr() == entry => directory.remove(info),
        Some(_) | None => Ok(()),
    });
}

/// Converts `ProviderInfo` to a `DAT_PROVIDER_INFO`.
pub(super) fn of_rust(info: &ProviderInfo) -> CProviderInfo {
    CProviderInfo {
        ia_name: text(&info.ia_name),
        dapl_version_major: info.dapl_version.0,
        dapl_version_minor: info.dapl_version.1,
        is_thread_safe: info.is_thread_safe.into(),
    }
}

/// Converts a `DAT_PROVIDER_INFO` to `ProviderInfo`.
///
/// # Safety
/// `info` is null or points to a `DAT_PROVIDER_INFO`, whose name ends with a NUL.
pub(super) unsafe fn info_of(info: *const CProviderInfo) -> DatResult<ProviderInfo> {
    given(info, Subtype::Arg2)?;
    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
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
