//! Libraries named in `dat.conf`. The first open of one of their adapters calls `dat_provider_init`, which registers
//! a provider; the last close calls `dat_provider_fini`.
//!
//! ```text
//!              init                       last reference dropped
//!     none --> Calling --> Ready { loans } --> Calling --> none
//!                                                 fini
//! ```
//!
//! For one adapter only one thread at a time calls a library's `init` or `fini`. That thread holds no lock, because the
//! library calls the registry. Other threads that open the adapter wait, with a time limit. Libraries are never
//! unmapped: a thread may still be executing a library's wait, which ends when its adapter is closed.

// UNSAFETY: loads libraries and calls their code.
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

/// Maximum time to wait for another thread's call of a library.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reasons why a library has not registered a provider.
#[derive(Debug, Error)]
pub(in crate::capi) enum LibraryError {
    /// The library cannot be loaded, or lacks the functions of a provider.
    #[error("{0}")]
    Loader(#[from] libloading::Error),
    /// The process has privileges that its caller lacks (set-user-ID), and the library's path is not absolute.
    #[error(
        "{0}: a program with privileges that its caller lacks loads libraries by absolute paths only"
    )]
    Searched(String),
    /// Another thread's call of the library has not returned in time, or the library opens its own adapter in a call.
    #[error("another call of the library has not returned")]
    Busy,
}

/// Use of a library for an adapter.
struct Used {
    info: ProviderInfo,
    state: State,
}

enum State {
    /// The thread with this ID is calling the library's `init` or `fini`.
    Calling(ThreadId),
    Ready {
        /// Number of times that the adapter is open.
        loans: usize,
        end: End,
    },
}

/// Data for ending the use of a library.
#[derive(Clone, Copy)]
struct End {
    fini: Fini,
    /// Address of the directory entry that the library's `init` has made, if it has made one.
    entry: Option<usize>,
}

static USED: Mutex<Vec<Used>> = Mutex::new(Vec::new());
/// Condition variable, signalled when a library's `init` or `fini` has returned.
static RETURNED: Condvar = Condvar::new();

fn used() -> MutexGuard<'static, Vec<Used>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a library is in use for an adapter.
pub(in crate::capi) fn is_in_use(info: &ProviderInfo) -> bool {
    used().iter().any(|one| one.info == *info)
}

/// Returns a reference to the library that a record names. The first reference calls the library's
/// `dat_provider_init`.
///
/// # Errors
/// [`LibraryError`].
pub(in crate::capi) fn borrow(record: &ConfEntry) -> Result<LibraryRef, LibraryError> {
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
                return Ok(LibraryRef(info));
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
    Ok(LibraryRef(info))
}

/// Stores the new state of a library after its `init` or `fini` has returned, and wakes waiting threads. With `None`
/// the library is no longer in use.
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
    // SAFETY: the library's constructors run. The author of the `dat.conf` record trusts the library.
    let library = ManuallyDrop::new(unsafe { Library::new(&record.library) }?);
    // SAFETY: a provider's library has functions of these names and types (page of dat_provider_init).
    let init = *unsafe { library.get::<Init>(c"dat_provider_init") }?;
    // SAFETY: as above.
    let fini = *unsafe { library.get::<Fini>(c"dat_provider_fini") }?;
    // The parameters come from a line of the file, which has no NUL.
    let params = CString::new(record.ia_params.as_str()).unwrap_or_default();
    let before = entry_at(info);
    // SAFETY: `init` has this type (as above). The library keeps neither pointer.
    unsafe { init(&of_rust(info), params.as_ptr()) };
    Ok(End {
        fini,
        entry: entry_at(info).filter(|_| before.is_none()),
    })
}

/// Checks that a process may load a library by this path. `gained`: the process has privileges that its caller lacks.
fn check_path(library: &str, gained: bool) -> Result<(), LibraryError> {
    if gained && !Path::new(library).is_absolute() {
        return Err(LibraryError::Searched(library.to_owned()));
    }
    Ok(())
}

/// Reference of an open adapter to its library. Dropping the last reference calls the library's `dat_provider_fini`.
pub(in crate::capi) struct LibraryRef(ProviderInfo);

impl Drop for LibraryRef {
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
        // SAFETY: `fini` has this type (as in `begin`), and the library stays mapped.
        unsafe { (end.fini)(&of_rust(&self.0)) };
        if let Some(entry) = end.entry {
            // The library should have removed its entry itself.
            forget(&self.0, entry);
        }
        returned(&self.0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::check_path;

    /// This library's rule: in a program with gained privileges (as in the secure-execution mode of ld.so(8)), a
    /// provider's library is loaded only by an absolute path.
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
