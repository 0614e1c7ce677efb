//! The directory of adapters that the process has, read from the machine's `dat.conf` when it is first needed.
//!
//! An entry of it is a device, which this library opens, or the provider of another library
//! ([`foreign`](super::foreign)).
//!
//! A child of fork(2) that has none of its parent's adapters has no directory either: another thread of the parent's
//! may have held the lock, and is not there to let it go ([`fork`]).

// UNSAFETY: pointers of a C program are read.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::CStr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use dat_core::{DatResult, Subtype};

use super::answer::parameter;
use super::argument::{given, text};
use super::foreign::provider::Foreign;
use super::fork;
use super::log;
use super::types::CProviderInfo;
use crate::registry::{Directory, ProviderInfo};

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
    log::begin();
    fork::not_a_child()?;
    Ok(DIRECTORY.get_or_init(|| RwLock::new(Directory::of_this_machine())))
}

/// Looks something up.
///
/// # Errors
/// Those of [`directory`].
pub(super) fn look<R>(work: impl FnOnce(&Directory<Entry>) -> R) -> DatResult<R> {
    let directory = directory()?.read();
    Ok(work(&directory.unwrap_or_else(PoisonError::into_inner)))
}

/// Changes something.
///
/// # Errors
/// Those of [`directory`], and of the work.
pub(super) fn change(work: impl FnOnce(&mut Directory<Entry>) -> DatResult<()>) -> DatResult<()> {
    let directory = directory()?.write();
    work(&mut directory.unwrap_or_else(PoisonError::into_inner))
}

/// The provider of another library that has its table at this address, which is asked for if there is any. There is
/// none before somebody has asked for the registry, and none in a child that has no registry.
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
pub(super) unsafe fn info_of(info: *const CProviderInfo) -> DatResult<ProviderInfo> {
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
