//! Libraries named in `dat.conf`. The first open of one of their adapters calls `dat_provider_init`, which registers
//! a provider; the last close calls `dat_provider_fini`.
//!
//! ```text
//!              init                       last loan given back
//!     none --> Calling --> Ready { loans } --> Calling --> none
//!                                                 fini
//! ```
//!
//! For one adapter only one thread at a time calls a library. It holds no lock, because the library calls the
//! registry; other threads that open the adapter wait, with a time limit. Libraries are never unmapped: a thread may
//! still be inside one, in a wait that ends when its adapter is closed.

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

/// Longest wait for another thread's call of a library.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reasons why a library has not registered a provider.
#[derive(Debug, Error)]
pub(in crate::capi) enum LibraryError {
    /// It cannot be loaded, or lacks the functions of a provider.
    #[error("{0}")]
    Loader(#[from] libloading::Error),
    /// A set-user-ID program would have to search for its file.
    #[error(
        "{0}: a program with privileges that its caller lacks loads libraries by absolute paths only"
    )]
    Searched(String),
    /// Another call of it has not returned, or it opens its own adapter.
    #[error("another call of the library has not returned")]
    Busy,
}

/// A library in use for an adapter.
struct Used {
    info: ProviderInfo,
    state: State,
}

enum State {
    /// This thread is in its `init` or `fini`.
    Calling(ThreadId),
    Ready {
        /// Number of openings of the adapter.
        loans: usize,
        end: End,
    },
}

/// How to end the use of a library.
#[derive(Clone, Copy)]
struct End {
    fini: Fini,
    /// The registry's entry that it has made.
    entry: Option<usize>,
}

static USED: Mutex<Vec<Used>> = Mutex::new(Vec::new());
/// Signalled when a call of a library has returned.
static RETURNED: Condvar = Condvar::new();

fn used() -> MutexGuard<'static, Vec<Used>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a library is in use for an adapter.
pub(in crate::capi) fn is_under_way(info: &ProviderInfo) -> bool {
    used().iter().any(|one| one.info == *info)
}

/// Returns a hold on a record's library, after its `dat_provider_init` has returned.
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

/// Records that a call of a library has returned.
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
    // SAFETY: the author of the record trusts the library, and so its constructors.
    let library = ManuallyDrop::new(unsafe { Library::new(&record.library) }?);
    // SAFETY: a provider's library has these functions of these types (page of dat_provider_init).
    let init = *unsafe { library.get::<Init>(c"dat_provider_init") }?;
    // SAFETY: as above.
    let fini = *unsafe { library.get::<Fini>(c"dat_provider_fini") }?;
    // A line of the file has no NUL.
    let params = CString::new(record.ia_params.as_str()).unwrap_or_default();
    let before = entry_at(info);
    // SAFETY: as above; the library keeps neither pointer.
    unsafe { init(&of_rust(info), params.as_ptr()) };
    Ok(End {
        fini,
        entry: entry_at(info).filter(|_| before.is_none()),
    })
}

/// Checks that a library may be loaded by this name.
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
            // The library should have removed its entry itself.
            forget(&self.0, entry);
        }
        returned(&self.0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::check_path;

    /// ld.so(8), "secure-execution mode": such a program must not search for a library by a relative name.
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
