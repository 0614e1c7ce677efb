//! The registry: lists the adapters, and resolves the name of an open (`dat_registry_list_providers`,
//! `_add_provider`, `_remove_provider`, `dat_provider_init`, `_fini`).
//!
//! ```text
//!      dat.conf --parse--> static entries --open, if the library is ours--> provider_init
//!                               |                                               |
//!                         list_providers                                        v
//!                                         add_provider, remove_provider --> dynamic entries --open--> Ia
//! ```
//!
//! An entry is identified by its [`ProviderInfo`]: name, version of DAT, thread safety. An open gives all three.
//! Name, major version and thread safety must be equal; of the minor versions, the smallest that is not below the
//! requested one is used. An [`Opened`] adapter holds its dynamic entry, which cannot be removed before the adapter
//! is dropped.
//!
//! A [`Registry`] lists static entries of other libraries but does not open them: only the C ABI (`libdat`) loads
//! foreign libraries, because only C providers have a stable ABI. Both use the same rules for names and records
//! (`Directory`). [`ia_open`] takes device names and needs no registry.

pub mod conf;
mod directory;

use std::sync::Arc;

use dat_core::{CloseFlags, DatError, DatResult};
use hw_mlx::CloseReport;
use thiserror::Error;

use crate::Ia;
use crate::open::{NotClosed, OpenError, OpenOptions, StillOpen, ia_open};
use conf::ConfEntry;
pub(crate) use directory::{Directory, Found};

/// Environment variable that names another file for the static registry.
pub const OVERRIDE: &str = "DAT_OVERRIDE";
/// The files of the static registry; the first one that exists is used.
pub const FILES: [&str; 2] = ["/etc/dat/dat.conf", "/etc/dat.conf"];
/// Prefix of this library's file name, in any version.
pub const OUR_LIBRARY: &str = "libdat.so";

impl ConfEntry {
    /// Returns whether the record names this library.
    pub(crate) fn is_ours(&self) -> bool {
        let file = self.library.rsplit('/').next();
        file.is_some_and(|file| file.starts_with(OUR_LIBRARY))
    }
}

/// The name and kind under which an adapter is registered and opened (`DAT_PROVIDER_INFO`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProviderInfo {
    /// The name.
    pub ia_name: String,
    /// Major and minor version of DAT.
    pub dapl_version: (u32, u32),
    /// True if calls may come from several threads at once.
    pub is_thread_safe: bool,
}

impl ProviderInfo {
    /// Describes an adapter of this library: DAT 1.2, one thread at a time.
    #[must_use]
    pub fn of_this_crate(ia_name: &str) -> Self {
        Self {
            ia_name: ia_name.to_owned(),
            dapl_version: (1, 2),
            is_thread_safe: false,
        }
    }

    /// Returns the device of an adapter of this library: the instance data, or the adapter's name if that is empty.
    pub(crate) fn device(&self, instance_data: &str) -> String {
        match instance_data.trim() {
            "" => self.ia_name.clone(),
            device => device.to_owned(),
        }
    }
}

impl From<&ConfEntry> for ProviderInfo {
    fn from(entry: &ConfEntry) -> Self {
        Self {
            ia_name: entry.ia_name.clone(),
            dapl_version: entry.version,
            is_thread_safe: entry.is_thread_safe,
        }
    }
}

/// Function that opens a registered adapter.
pub type Opener = dyn Fn(&OpenOptions) -> Result<Ia, OpenError> + Send + Sync;

/// Error of [`Registry::list_providers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{error}; {available} entries")]
pub struct ListRefused {
    /// DAT_INVALID_PARAMETER|ARG1: more than `max` entries. DAT_INTERNAL_ERROR: the file of the static registry
    /// cannot be read or is not trusted, or the file that the environment names does not exist.
    pub error: DatError,
    /// Number of entries; 0 with DAT_INTERNAL_ERROR.
    pub available: usize,
}

/// An adapter opened by name.
pub struct Opened {
    /// The adapter.
    pub ia: Ia,
    /// Keeps the entry from being removed.
    _entry: Arc<Opener>,
}

impl core::fmt::Debug for Opened {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Opened").field(&self.ia).finish()
    }
}

impl Opened {
    /// Closes the adapter, as [`ia_close`](crate::ia_close) does.
    ///
    /// # Errors
    /// Those of [`ia_close`](crate::ia_close).
    pub fn close(self, flags: CloseFlags) -> Result<CloseReport, NotClosed<Self>> {
        let Self { ia, _entry } = self;
        crate::ia_close(ia, flags).map_err(|not| match not {
            NotClosed::InUse(open) => {
                let error = open.error;
                let ia = open.into_ia();
                NotClosed::InUse(StillOpen::new(Self { ia, _entry }, error))
            }
            NotClosed::Teardown(error) => NotClosed::Teardown(error),
        })
    }
}

/// A registry.
#[derive(Default)]
pub struct Registry(Directory<Opener>);

impl Registry {
    /// Creates a registry with the records of a `dat.conf`. Of records with equal names, versions and thread safety,
    /// the first is used. Records for kDAPL or outside the default section are ignored.
    #[must_use]
    pub fn with_conf(text: &str) -> Self {
        Self(Directory::with_conf(text))
    }

    /// Creates the registry of this machine, from the file that `DAT_OVERRIDE` names or the usual one. Without a file
    /// it is empty. [`Registry::list_providers`] reports a file that cannot be read.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self(Directory::of_this_machine())
    }

    /// Lists the static registry, if it has no more than `max` entries.
    ///
    /// Page: dat_registry_list_providers.
    ///
    /// # Errors
    /// [`ListRefused`].
    pub fn list_providers(&self, max: usize) -> Result<Vec<ProviderInfo>, ListRefused> {
        self.0.list(max)
    }

    /// Adds an adapter.
    ///
    /// Page: dat_registry_add_provider.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: the name is empty or longer than 255 bytes. DAT_PROVIDER_ALREADY_REGISTERED.
    pub fn add_provider(&mut self, info: ProviderInfo, opener: Arc<Opener>) -> DatResult<()> {
        self.0.add(info, opener)
    }

    /// Removes an adapter, so that it cannot be opened any more.
    ///
    /// Page: dat_registry_remove_provider.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: there is no such entry. DAT_PROVIDER_IN_USE: it is open.
    pub fn remove_provider(&mut self, info: &ProviderInfo) -> DatResult<()> {
        self.0.remove(info)
    }

    /// Registers an adapter of this library, as the loader of a static entry does. `instance_data` names the device;
    /// if it is empty, `info` does.
    ///
    /// Page: dat_provider_init.
    ///
    /// # Errors
    /// Those of [`Registry::add_provider`].
    pub fn provider_init(&mut self, info: ProviderInfo, instance_data: &str) -> DatResult<()> {
        let device = info.device(instance_data);
        self.add_provider(info, Arc::new(move |options| ia_open(&device, options)))
    }

    /// Removes an adapter of this library, before the library is unloaded.
    ///
    /// Page: dat_provider_fini.
    ///
    /// # Errors
    /// Those of [`Registry::remove_provider`].
    pub fn provider_fini(&mut self, info: &ProviderInfo) -> DatResult<()> {
        self.remove_provider(info)
    }

    /// Opens a registered adapter. A static entry of this library is registered first.
    ///
    /// Page: dat_ia_open.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG1: the name is empty or too long. DAT_PROVIDER_NOT_FOUND, with the subtype of the
    /// mismatch: name, major version, thread safety, minor version. Errors of the provider.
    pub fn open(
        &mut self,
        wanted: &ProviderInfo,
        options: &OpenOptions,
    ) -> Result<Opened, OpenError> {
        let entry = match self.0.find(wanted, ConfEntry::is_ours)? {
            Found::Registered(_, entry) => entry,
            Found::Listed(record) => {
                let info = ProviderInfo::from(&record);
                self.provider_init(info, &record.ia_params)?;
                self.0.find(wanted, |_| false)?.registered()?
            }
        };
        Ok(Opened {
            ia: entry(options)?,
            _entry: entry,
        })
    }
}
