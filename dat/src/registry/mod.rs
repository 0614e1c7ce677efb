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
//! Static entries of other libraries are listed and not opened: loading foreign code is the business of the C library
//! that has a dynamic loader. [`ia_open`] takes names of devices and needs no registry.

pub mod conf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use thiserror::Error;

use crate::open::{OpenError, OpenOptions, ia_open};
use crate::{CloseFlags, CloseReport, Ia};
use conf::{Api, ConfEntry, NAME_MAX_LENGTH};

/// Names the static registry in place of the usual file.
pub const OVERRIDE: &str = "DAT_OVERRIDE";
/// Where the static registry is looked for, in this order.
pub const FILES: [&str; 2] = ["/etc/dat/dat.conf", "/etc/dat.conf"];
/// How the library of a record begins that is this one, whatever version follows.
pub const OUR_LIBRARY: &str = "libdat.so";

/// What an adapter is registered and opened as (`DAT_PROVIDER_INFO`).
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

/// `list_providers` could not say it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{error}; {available} entries")]
pub struct ListRefused {
    /// DAT_INVALID_PARAMETER|ARG1: more entries than asked for. DAT_INTERNAL_ERROR: there is no static registry.
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

impl Opened {
    /// Closes it, as [`ia_close`](crate::ia_close) does.
    ///
    /// # Errors
    /// As [`ia_close`](crate::ia_close).
    pub fn close(self, flags: CloseFlags) -> Result<CloseReport, OpenError> {
        crate::ia_close(self.ia, flags)
    }

    /// The adapter, and what keeps its entry in use.
    pub(crate) fn into_parts(self) -> (Ia, Box<dyn Send>) {
        (self.ia, Box::new(self._entry))
    }
}

/// A registry.
#[derive(Default)]
pub struct Registry {
    /// `None`: there is no file.
    entries: Option<Vec<ConfEntry>>,
    providers: BTreeMap<ProviderInfo, Arc<Opener>>,
}

impl Registry {
    /// A registry with the records of a `dat.conf`. Of records that are known by the same, the first counts; those for
    /// kDAPL, and those that are not in the default section, do not.
    #[must_use]
    pub fn with_conf(text: &str) -> Self {
        let (records, errors) = conf::parse(text);
        for error in errors {
            tracing::warn!(%error, "dat.conf");
        }
        let mut entries: Vec<ConfEntry> = Vec::new();
        for record in records {
            let known =
                |entry: &ConfEntry| ProviderInfo::from(entry) == ProviderInfo::from(&record);
            if record.api == Api::User && record.is_default && !entries.iter().any(known) {
                entries.push(record);
            }
        }
        Self {
            entries: Some(entries),
            providers: BTreeMap::new(),
        }
    }

    /// The registry of this machine: the file that `DAT_OVERRIDE` names, or the usual one. Without a file it is empty.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let path = match std::env::var_os(OVERRIDE) {
            Some(path) => Some(PathBuf::from(path)),
            None => FILES
                .map(PathBuf::from)
                .into_iter()
                .find(|path| path.exists()),
        };
        path.and_then(|path| Self::from_file(&path))
            .unwrap_or_default()
    }

    fn from_file(path: &Path) -> Option<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Some(Self::with_conf(&text)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no static registry");
                None
            }
        }
    }

    /// What the static registry has, if it is no more than `max`.
    ///
    /// Page: dat_registry_list_providers.
    ///
    /// # Errors
    /// [`ListRefused`].
    pub fn list_providers(&self, max: usize) -> Result<Vec<ProviderInfo>, ListRefused> {
        let Some(entries) = &self.entries else {
            let error = DatError::new(ReturnType::InternalError, Subtype::None)
                .because("there is no static registry");
            return Err(ListRefused {
                error,
                available: 0,
            });
        };
        if entries.len() > max {
            let error = DatError::new(ReturnType::InvalidParameter, Subtype::Arg1)
                .because("the list is too small");
            return Err(ListRefused {
                error,
                available: entries.len(),
            });
        }
        Ok(entries.iter().map(ProviderInfo::from).collect())
    }

    /// Adds an adapter.
    ///
    /// Page: dat_registry_add_provider.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: no name, or one of more than 255 bytes. DAT_PROVIDER_ALREADY_REGISTERED.
    pub fn add_provider(&mut self, info: ProviderInfo, opener: Arc<Opener>) -> DatResult<()> {
        if info.ia_name.is_empty() || info.ia_name.len() >= NAME_MAX_LENGTH {
            return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2)
                .because("an IA name has 1 to 255 bytes"));
        }
        if self.providers.contains_key(&info) {
            return Err(DatError::new(
                ReturnType::ProviderAlreadyRegistered,
                Subtype::None,
            ));
        }
        self.providers.insert(info, opener);
        Ok(())
    }

    /// Takes an adapter out: nobody opens it any more.
    ///
    /// Page: dat_registry_remove_provider.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: there is none. DAT_PROVIDER_IN_USE: it is open.
    pub fn remove_provider(&mut self, info: &ProviderInfo) -> DatResult<()> {
        let Some(opener) = self.providers.get(info) else {
            return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2)
                .because("no such provider is registered"));
        };
        if Arc::strong_count(opener) > 1 {
            return Err(DatError::new(ReturnType::ProviderInUse, Subtype::None));
        }
        self.providers.remove(info);
        Ok(())
    }

    /// Registers an adapter of this library: what the loader of a static entry calls. `instance_data` names the device;
    /// if it is empty, `info` does.
    ///
    /// Page: dat_provider_init.
    ///
    /// # Errors
    /// As [`Registry::add_provider`].
    pub fn provider_init(&mut self, info: ProviderInfo, instance_data: &str) -> DatResult<()> {
        let device = match instance_data.trim() {
            "" => info.ia_name.clone(),
            device => device.to_owned(),
        };
        self.add_provider(info, Arc::new(move |options| ia_open(&device, options)))
    }

    /// Takes an adapter of this library out again: what is called before a library is unloaded.
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
    /// DAT_INVALID_PARAMETER|ARG1: no name, or too long a one. DAT_PROVIDER_NOT_FOUND, with the subtype of what does not
    /// fit: name, major version, thread safety, minor version. Whatever the provider says.
    pub fn open(
        &mut self,
        wanted: &ProviderInfo,
        options: &OpenOptions,
    ) -> Result<Opened, OpenError> {
        if wanted.ia_name.is_empty() || wanted.ia_name.len() >= NAME_MAX_LENGTH {
            return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg1)
                .because("an IA name has 1 to 255 bytes")
                .into());
        }
        let ours = |entry: &&ConfEntry| {
            let file = entry.library.rsplit('/').next();
            file.is_some_and(|file| file.starts_with(OUR_LIBRARY))
        };
        let statics = self.entries.iter().flatten().filter(ours);
        let statics: BTreeMap<ProviderInfo, String> = statics
            .map(|entry| (entry.into(), entry.ia_params.clone()))
            .collect();
        // What is in both counts once: it was registered from the record.
        let info = best(self.providers.keys().chain(statics.keys()), wanted)?.clone();
        if !self.providers.contains_key(&info) {
            self.provider_init(info.clone(), &statics[&info])?;
        }
        let entry = Arc::clone(&self.providers[&info]);
        Ok(Opened {
            ia: entry(options)?,
            _entry: entry,
        })
    }
}

/// The entry that serves who wants this one.
fn best<'a>(
    entries: impl Iterator<Item = &'a ProviderInfo>,
    wanted: &ProviderInfo,
) -> DatResult<&'a ProviderInfo> {
    let missing = |subtype| DatError::new(ReturnType::ProviderNotFound, subtype);
    let mut left: Vec<&ProviderInfo> = entries.collect();
    let mut keep = |subtype, fits: &dyn Fn(&ProviderInfo) -> bool| {
        left.retain(|info| fits(info));
        if left.is_empty() {
            Err(missing(subtype))
        } else {
            Ok(())
        }
    };
    keep(Subtype::NameNotRegistered, &|info| {
        info.ia_name == wanted.ia_name
    })?;
    keep(Subtype::MajorNotFound, &|info| {
        info.dapl_version.0 == wanted.dapl_version.0
    })?;
    keep(Subtype::ThreadSafetyNotFound, &|info| {
        info.is_thread_safe == wanted.is_thread_safe
    })?;
    keep(Subtype::MinorNotFound, &|info| {
        info.dapl_version.1 >= wanted.dapl_version.1
    })?;
    left.into_iter()
        .min_by_key(|info| info.dapl_version.1)
        .ok_or(missing(Subtype::MinorNotFound))
}
