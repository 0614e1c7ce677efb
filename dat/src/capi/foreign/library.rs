//! Libraries of `dat.conf`: loaded when an adapter of theirs is opened, and let go when the last one is closed.

// UNSAFETY: code of other libraries is loaded and called.
#![expect(unsafe_code, reason = "libraries that dat.conf names")]

use core::ffi::c_char;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::Library;

use crate::capi::registry::{forget, of_rust};
use crate::capi::types::CProviderInfo;
use crate::registry::ProviderInfo;
use crate::registry::conf::ConfEntry;

type Init = unsafe extern "C" fn(*const CProviderInfo, *const c_char);
type Fini = unsafe extern "C" fn(*const CProviderInfo);

/// A library that was loaded for an adapter.
struct Loaded {
    info: ProviderInfo,
    /// Openings of the adapter.
    loans: usize,
    fini: Fini,
    _library: Library,
}

/// What has been loaded, one entry for each adapter.
#[derive(Default)]
pub(in crate::capi) struct Libraries(Vec<Loaded>);

static LIBRARIES: Mutex<Libraries> = Mutex::new(Libraries(Vec::new()));

/// Everything that is loaded. While it is held, no library comes or goes.
pub(in crate::capi) fn libraries() -> MutexGuard<'static, Libraries> {
    LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Libraries {
    /// Loads the library of a record and has it register its provider.
    ///
    /// # Errors
    /// What the loader says.
    pub(in crate::capi) fn load(&mut self, record: &ConfEntry) -> Result<(), libloading::Error> {
        let info = ProviderInfo::from(record);
        // SAFETY: whoever wrote the record trusts the library's constructors as far as it trusts the library.
        let library = unsafe { Library::new(&record.library) }?;
        // SAFETY: a provider's library has these functions of these types (page of dat_provider_init).
        let init = *unsafe { library.get::<Init>(c"dat_provider_init") }?;
        // SAFETY: as above.
        let fini = *unsafe { library.get::<Fini>(c"dat_provider_fini") }?;
        // A file's line has no NUL.
        let params = CString::new(record.ia_params.as_str()).unwrap_or_default();
        // SAFETY: as above; the library keeps neither.
        unsafe { init(&of_rust(&info), params.as_ptr()) };
        self.0.push(Loaded {
            info,
            loans: 0,
            fini,
            _library: library,
        });
        Ok(())
    }

    /// Keeps the library of an adapter, if it was loaded.
    pub(in crate::capi) fn lend(&mut self, info: &ProviderInfo) -> Option<Loan> {
        let loaded = self.0.iter_mut().find(|loaded| loaded.info == *info)?;
        loaded.loans += 1;
        Some(Loan(info.clone()))
    }

    /// Lets the libraries go that nobody has an adapter of.
    fn sweep(&mut self) {
        for loaded in self.0.extract_if(.., |loaded| loaded.loans == 0) {
            // SAFETY: as in `load`; the library is still there.
            unsafe { (loaded.fini)(&of_rust(&loaded.info)) };
            // It should have done so itself.
            forget(&loaded.info);
        }
    }
}

/// Keeps a library loaded.
pub(in crate::capi) struct Loan(ProviderInfo);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut libraries = libraries();
        if let Some(loaded) = libraries.0.iter_mut().find(|loaded| loaded.info == self.0) {
            loaded.loans -= 1;
        }
        libraries.sweep();
    }
}
