//! Libraries of `dat.conf`: told to register a provider (`dat_provider_init`) when an adapter of theirs is opened, and
//! of the end (`dat_provider_fini`) when the last one is closed.
//!
//! ```text
//!              init                       last loan given back
//!     none --> Calling --> Ready { loans } --> Calling --> none
//!                                                 fini
//! ```
//!
//! A library is called by one thread at a time for one adapter, and without a lock, since it comes back to the
//! registry: others who want the adapter wait meanwhile, but not for ever. Libraries stay mapped. A thread may still be
//! in one, blocked in a wait that the closing of its adapter ends.

// UNSAFETY: code of other libraries is loaded and called.
#![expect(unsafe_code, reason = "libraries that dat.conf names")]

use core::ffi::c_char;
use core::mem::ManuallyDrop;
use core::time::Duration;
use std::ffi::CString;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use libloading::Library;
use thiserror::Error;

use crate::capi::directory::{entry_at, forget, of_rust};
use crate::capi::types::CProviderInfo;
use crate::registry::ProviderInfo;
use crate::registry::conf::ConfEntry;

type Init = unsafe extern "C" fn(*const CProviderInfo, *const c_char);
type Fini = unsafe extern "C" fn(*const CProviderInfo);

/// The longest that somebody waits for a library to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a library has no provider for us.
#[derive(Debug, Error)]
pub(in crate::capi) enum LibraryError {
    /// It cannot be loaded, or is no provider's.
    #[error("{0}")]
    Loader(#[from] libloading::Error),
    /// Its file would be searched for, in a program that has rights its caller lacks.
    #[error("{0}: a program that has rights its caller lacks takes absolute paths alone")]
    Searched(String),
    /// It has not come back from a call, or asks for itself.
    #[error("the library is being called")]
    Busy,
}

/// A library that is used for an adapter.
struct Used {
    info: ProviderInfo,
    state: State,
}

enum State {
    /// It begins or ends, in this thread.
    Calling(ThreadId),
    Ready {
        /// Openings of the adapter.
        loans: usize,
        end: End,
    },
}

/// How it ends.
#[derive(Clone, Copy)]
struct End {
    fini: Fini,
    /// The entry of the registry that it has made.
    entry: Option<usize>,
}

static USED: Mutex<Vec<Used>> = Mutex::new(Vec::new());
/// A library has come back.
static RETURNED: Condvar = Condvar::new();

fn used() -> MutexGuard<'static, Vec<Used>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a library is used for an adapter.
pub(in crate::capi) fn is_under_way(info: &ProviderInfo) -> bool {
    used().iter().any(|one| one.info == *info)
}

/// The library of a record, which has registered its provider, or has had its chance.
///
/// # Errors
/// [`LibraryError`].
pub(in crate::capi) fn borrow(record: &ConfEntry) -> Result<Loan, LibraryError> {
    let info = ProviderInfo::from(record);
    let me = thread::current().id();
    let mut list = used();
    loop {
        match list.iter_mut().find(|one| one.info == info) {
            None => break,
            Some(Used {
                state: State::Ready { loans, .. },
                ..
            }) => {
                *loans += 1;
                return Ok(Loan(info));
            }
            Some(Used {
                state: State::Calling(thread),
                ..
            }) if *thread == me => return Err(LibraryError::Busy),
            Some(_) => {}
        }
        let waited = RETURNED.wait_timeout(list, PATIENCE);
        let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(LibraryError::Busy);
        }
        list = again;
    }
    list.push(Used {
        info: info.clone(),
        state: State::Calling(me),
    });
    drop(list);
    let begun = begin(record, &info);
    let state = begun
        .as_ref()
        .ok()
        .map(|&end| State::Ready { loans: 1, end });
    returned(&info, state);
    begun?;
    Ok(Loan(info))
}

/// A library has come back from a call.
fn returned(info: &ProviderInfo, state: Option<State>) {
    let mut list = used();
    if let Some(at) = list.iter().position(|one| one.info == *info) {
        match state {
            Some(state) => list[at].state = state,
            None => drop(list.swap_remove(at)),
        }
    }
    drop(list);
    RETURNED.notify_all();
}

fn begin(record: &ConfEntry, info: &ProviderInfo) -> Result<End, LibraryError> {
    check_path(&record.library, driver::has_gained_rights())?;
    // SAFETY: whoever wrote the record trusts the library's constructors as far as it trusts the library.
    let library = ManuallyDrop::new(unsafe { Library::new(&record.library) }?);
    // SAFETY: a provider's library has these functions of these types (page of dat_provider_init).
    let init = *unsafe { library.get::<Init>(c"dat_provider_init") }?;
    // SAFETY: as above.
    let fini = *unsafe { library.get::<Fini>(c"dat_provider_fini") }?;
    // A file's line has no NUL.
    let params = CString::new(record.ia_params.as_str()).unwrap_or_default();
    let before = entry_at(info);
    // SAFETY: as above; the library keeps neither.
    unsafe { init(&of_rust(info), params.as_ptr()) };
    Ok(End {
        fini,
        entry: entry_at(info).filter(|_| before.is_none()),
    })
}

/// Whether a library may be loaded by this name.
fn check_path(library: &str, gained: bool) -> Result<(), LibraryError> {
    if gained && !Path::new(library).is_absolute() {
        return Err(LibraryError::Searched(library.to_owned()));
    }
    Ok(())
}

/// An opening's hold on a library.
pub(in crate::capi) struct Loan(ProviderInfo);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut list = used();
        let Some(one) = list.iter_mut().find(|one| one.info == self.0) else {
            return;
        };
        let State::Ready { loans, end } = &mut one.state else {
            return;
        };
        *loans -= 1;
        if *loans != 0 {
            return;
        }
        let end = *end;
        one.state = State::Calling(thread::current().id());
        drop(list);
        // SAFETY: as in `begin`, and the library stays mapped.
        unsafe { (end.fini)(&of_rust(&self.0)) };
        if let Some(entry) = end.entry {
            // It should have done so itself.
            forget(&self.0, entry);
        }
        returned(&self.0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::check_path;

    /// ld.so(8), "secure-execution mode", leaves the search to whoever has the name.
    #[test]
    fn a_program_with_more_rights_than_its_caller_searches_for_no_library() {
        assert!(check_path("libprovider.so", false).is_ok());
        assert!(check_path("/usr/lib/libprovider.so", true).is_ok());
        for searched in ["libprovider.so", "./libprovider.so", "lib/libprovider.so"] {
            let error = check_path(searched, true).expect_err(searched).to_string();
            assert!(error.contains(searched), "{error}");
        }
    }
}
