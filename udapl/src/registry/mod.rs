//! The registry: which adapters there are and who opens them (`dat_registry_list_providers`,
//! `_add_provider`, `_remove_provider`, `dat_provider_init`, `_fini`).
//!
//! ```text
//!      dat.conf --parse--> static entries --open, if the library is ours--> provider_init
//!                               |                                               |
//!                         list_providers                                        v
//!                                         add_provider, remove_provider --> dynamic entries --open--> Ia
//! ```
//!
//! An entry is known by its [`ProviderInfo`]: name, version of DAT, thread safety. An open names all three; name, major
//! version and thread safety must be the same, and if the minor version is not there the next larger one serves. What
//! is open keeps its dynamic entry: it holds an [`Opened`], and the entry cannot be removed before that is dropped.
//!
//! Static entries of other libraries are listed and not opened by a [`Registry`]: loading foreign code is the business
//! of [`capi`](crate::capi), where providers have an ABI; the rules of names and records are the same there
//! (`Directory`). [`ia_open`] takes names of devices and needs no registry.

pub mod conf;
mod directory;

use std::sync::Arc;

use dat_core::{DatError, DatResult};
use thiserror::Error;

use crate::open::{NotClosed, OpenError, OpenOptions, StillOpen, ia_open};
use crate::{CloseFlags, CloseReport, Ia};
use conf::ConfEntry;
pub(crate) use directory::{Directory, Found};

/// The environment variable that names another file for the static registry.
pub const OVERRIDE: &str = "DAT_OVERRIDE";
/// The files of the static registry; the first one that exists is used.
pub const FILES: [&str; 2] = ["/etc/dat/dat.conf", "/etc/dat.conf"];
/// The beginning of the file name of this library, in any version.
pub const OUR_LIBRARY: &str = "libdat.so";

impl ConfEntry {
    /// The record names this library.
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
    /// Whether calls may come from several threads at once.
    pub is_thread_safe: bool,
}

impl ProviderInfo {
    /// An adapter of this library: DAT 1.2, one thread at a time.
    #[must_use]
    pub fn of_this_crate(ia_name: &str) -> Self {
        Self {
            ia_name: ia_name.to_owned(),
            dapl_version: (1, 2),
            is_thread_safe: false,
        }
    }

    /// The device of an adapter of this library: what the instance data names, or else what the adapter is called.
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

/// How a registered adapter is opened.
pub type Opener = dyn Fn(&OpenOptions) -> Result<Ia, OpenError> + Send + Sync;

/// Why [`Registry::list_providers`] gives no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{error}; {available} entries")]
pub struct ListRefused {
    /// DAT_INVALID_PARAMETER|ARG1: more entries than asked for. DAT_INTERNAL_ERROR: the file of the
    /// static registry cannot be read, or the one that the environment names is not there.
    pub error: DatError,
    /// How many entries there are.
    pub available: usize,
}

/// An adapter opened by name.
pub struct Opened {
    /// The adapter.
    pub ia: Ia,
    /// Keeps the entry in use.
    _entry: Arc<Opener>,
}

impl core::fmt::Debug for Opened {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Opened").field(&self.ia).finish()
    }
}

impl Opened {
    /// Closes it, as [`ia_close`](crate::ia_close) does.
    ///
    /// # Errors
    /// As [`ia_close`](crate::ia_close).
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
    /// A registry with the records of a `dat.conf`. Of records that are known by the same, the first counts; those for
    /// kDAPL, and those that are not in the default section, do not.
    #[must_use]
    pub fn with_conf(text: &str) -> Self {
        Self(Directory::with_conf(text))
    }

    /// The registry of this machine: the file that `DAT_OVERRIDE` names, or the usual one. Without a file it is
    /// empty. One that cannot be read is missed when it is listed.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self(Directory::of_this_machine())
    }

    /// The entries of the static registry, if they are no more than `max`.
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
    /// DAT_INVALID_PARAMETER|ARG2: no name, or one of more than 255 bytes. DAT_PROVIDER_ALREADY_REGISTERED.
    pub fn add_provider(&mut self, info: ProviderInfo, opener: Arc<Opener>) -> DatResult<()> {
        self.0.add(info, opener)
    }

    /// Removes an adapter: it cannot be opened any more.
    ///
    /// Page: dat_registry_remove_provider.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: there is none. DAT_PROVIDER_IN_USE: it is open.
    pub fn remove_provider(&mut self, info: &ProviderInfo) -> DatResult<()> {
        self.0.remove(info)
    }

    /// Registers an adapter of this library: what the loader of a static entry calls. `instance_data` names the device;
    /// if it is empty, `info` does.
    ///
    /// Page: dat_provider_init.
    ///
    /// # Errors
    /// As [`Registry::add_provider`].
    pub fn provider_init(&mut self, info: ProviderInfo, instance_data: &str) -> DatResult<()> {
        let device = info.device(instance_data);
        self.add_provider(info, Arc::new(move |options| ia_open(&device, options)))
    }

    /// Removes an adapter of this library. It is called before a library is unloaded.
    ///
    /// Page: dat_provider_fini.
    ///
    /// # Errors
    /// As [`Registry::remove_provider`].
    pub fn provider_fini(&mut self, info: &ProviderInfo) -> DatResult<()> {
        self.remove_provider(info)
    }

    /// Opens a registered adapter; an entry of the static registry that is ours is registered first.
    ///
    /// Page: dat_ia_open.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG1: no name, or too long a one. DAT_PROVIDER_NOT_FOUND, with the subtype of what does
    /// not fit: name, major version, thread safety, minor version. Whatever the provider says.
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
