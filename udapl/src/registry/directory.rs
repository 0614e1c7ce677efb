//! The tables of the registry: records of `dat.conf`, and entries added at run time.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dat_core::{DatError, DatResult, ReturnType, Subtype};

use super::conf::{self, Api, ConfEntry, NAME_MAX_LENGTH};
use super::{FILES, ListRefused, OVERRIDE, ProviderInfo};

/// The static registry, and the dynamic one with a `P` for each entry.
pub(crate) struct Directory<P: ?Sized> {
    /// Records of the static registry; empty if no file was named and none of the usual ones exists. `None` if the file
    /// cannot be read or is not trusted, or if the file that the environment names does not exist.
    records: Option<Vec<ConfEntry>>,
    providers: BTreeMap<ProviderInfo, Arc<P>>,
}

/// A lookup's result.
pub(crate) enum Found<P: ?Sized> {
    /// An entry of the dynamic registry, with the name that it is registered by.
    Registered(ProviderInfo, Arc<P>),
    /// A record of `dat.conf` without an entry: its library has to register the entry first.
    Listed(ConfEntry),
}

impl<P: ?Sized> Found<P> {
    /// Returns the entry. Call it after the record's library has been loaded.
    ///
    /// # Errors
    /// DAT_PROVIDER_NOT_FOUND|NAME: there is only a record, no entry.
    pub(crate) fn registered(self) -> DatResult<Arc<P>> {
        match self {
            Self::Registered(_, entry) => Ok(entry),
            Self::Listed(_) => Err(missing(Subtype::NameNotRegistered)),
        }
    }
}

impl<P: ?Sized> Default for Directory<P> {
    fn default() -> Self {
        Self {
            records: Some(Vec::new()),
            providers: BTreeMap::new(),
        }
    }
}

impl<P: ?Sized> Directory<P> {
    pub(crate) fn with_conf(text: &str) -> Self {
        let (records, errors) = conf::parse(text);
        for error in errors {
            tracing::warn!(%error, "dat.conf");
        }
        let mut kept: Vec<ConfEntry> = Vec::new();
        for record in records {
            let known =
                |entry: &ConfEntry| ProviderInfo::from(entry) == ProviderInfo::from(&record);
            if record.api == Api::User && record.is_default && !kept.iter().any(known) {
                kept.push(record);
            }
        }
        Self {
            records: Some(kept),
            providers: BTreeMap::new(),
        }
    }

    pub(crate) fn of_this_machine() -> Self {
        let named = driver::caller_variable(OVERRIDE).map(PathBuf::from);
        let usual = FILES.map(PathBuf::from);
        Self::of_files(named, &usual, driver::has_gained_rights())
    }

    /// Reads the file that the environment names, or the first existing file of the usual ones. The file names
    /// libraries whose code runs in the program. So a set-user-ID program (`gained`), which ignores the environment,
    /// trusts only a file that no user but root can write.
    fn of_files(named: Option<PathBuf>, usual: &[PathBuf], gained: bool) -> Self {
        let usual = || usual.iter().find(|path| path.exists()).cloned();
        let Some(path) = named.filter(|_| !gained).or_else(usual) else {
            return Self::default();
        };
        let read = Some(path).filter(|path| !gained || only_root_writes(path));
        read.and_then(|path| Self::from_file(&path))
            .unwrap_or_else(|| Self {
                records: None,
                ..Self::default()
            })
    }

    fn from_file(path: &Path) -> Option<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Some(Self::with_conf(&text)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the static registry");
                None
            }
        }
    }

    /// Lists the static registry, if it has no more than `max` records.
    ///
    /// # Errors
    /// [`ListRefused`].
    pub(crate) fn list(&self, max: usize) -> Result<Vec<ProviderInfo>, ListRefused> {
        let Some(records) = &self.records else {
            let error = DatError::new(ReturnType::InternalError, Subtype::None)
                .because("the static registry cannot be read: the log says which file, and why");
            return Err(ListRefused {
                error,
                available: 0,
            });
        };
        if records.len() > max {
            let error = DatError::new(ReturnType::InvalidParameter, Subtype::Arg1)
                .because("the list is too small");
            return Err(ListRefused {
                error,
                available: records.len(),
            });
        }
        Ok(records.iter().map(ProviderInfo::from).collect())
    }

    /// Adds an entry to the dynamic registry.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: the name is empty or longer than 255 bytes. DAT_PROVIDER_ALREADY_REGISTERED.
    pub(crate) fn add(&mut self, info: ProviderInfo, entry: Arc<P>) -> DatResult<()> {
        named(&info, Subtype::Arg2)?;
        if self.providers.contains_key(&info) {
            return Err(DatError::new(
                ReturnType::ProviderAlreadyRegistered,
                Subtype::None,
            ));
        }
        self.providers.insert(info, entry);
        Ok(())
    }

    /// Removes an entry, unless it is in use.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: there is no such entry. DAT_PROVIDER_IN_USE: an open adapter holds it.
    pub(crate) fn remove(&mut self, info: &ProviderInfo) -> DatResult<()> {
        let Some(entry) = self.providers.get(info) else {
            return Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2)
                .because("no such provider is registered"));
        };
        if Arc::strong_count(entry) > 1 {
            return Err(DatError::new(ReturnType::ProviderInUse, Subtype::None));
        }
        self.providers.remove(info);
        Ok(())
    }

    /// Returns the entry of the dynamic registry with exactly this name, version and thread safety.
    pub(crate) fn get(&self, info: &ProviderInfo) -> Option<&Arc<P>> {
        self.providers.get(info)
    }

    /// Returns the record with exactly this name, version and thread safety.
    pub(crate) fn record(&self, info: &ProviderInfo) -> Option<&ConfEntry> {
        let mut records = self.records.iter().flatten();
        records.find(|record| ProviderInfo::from(*record) == *info)
    }

    /// Iterates over the dynamic registry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<P>> {
        self.providers.values()
    }

    /// Finds the provider for a request, among entries and `usable` records. If an entry and a record have the same
    /// name, version and thread safety, the entry is returned.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG1: the name is empty or too long. DAT_PROVIDER_NOT_FOUND, with the subtype of the
    /// mismatch: name, major version, thread safety, minor version.
    pub(crate) fn find(
        &self,
        wanted: &ProviderInfo,
        usable: impl Fn(&ConfEntry) -> bool,
    ) -> DatResult<Found<P>> {
        named(wanted, Subtype::Arg1)?;
        let records = self.records.iter().flatten();
        let records: BTreeMap<ProviderInfo, &ConfEntry> = records
            .filter(|record| usable(record))
            .map(|record| (record.into(), record))
            .collect();
        let info = best(self.providers.keys().chain(records.keys()), wanted)?;
        match (self.providers.get(info), records.get(info)) {
            (Some(entry), _) => Ok(Found::Registered(info.clone(), Arc::clone(entry))),
            (None, Some(&record)) => Ok(Found::Listed(record.clone())),
            (None, None) => Err(missing(Subtype::NameNotRegistered)),
        }
    }
}

fn named(info: &ProviderInfo, argument: Subtype) -> DatResult<()> {
    if info.ia_name.is_empty() || info.ia_name.len() >= NAME_MAX_LENGTH {
        return Err(DatError::new(ReturnType::InvalidParameter, argument)
            .because("an IA name has 1 to 255 bytes"));
    }
    Ok(())
}

/// Returns whether only root can write a file.
fn only_root_writes(path: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let is = std::fs::metadata(path)
        .is_ok_and(|file| file.uid() == 0 && file.mode() & OTHERS_WRITE == 0);
    if !is {
        tracing::warn!(path = %path.display(), "ignored: this program has rights its caller lacks, and others than root may write the file");
    }
    is
}

fn missing(subtype: Subtype) -> DatError {
    DatError::new(ReturnType::ProviderNotFound, subtype)
}

/// Returns the entry that fits a request best.
fn best<'a>(
    entries: impl Iterator<Item = &'a ProviderInfo>,
    wanted: &ProviderInfo,
) -> DatResult<&'a ProviderInfo> {
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

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Creates a file of one record.
    fn conf(directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        let line = format!("{name} u1.2 nonthreadsafe default libdat.so mlx5.0.1 \"sim:a\" \"\"\n");
        write(&path, line).unwrap();
        path
    }

    fn names(of: &Directory<()>) -> Vec<&str> {
        let records = of.records.iter().flatten();
        records.map(|record| record.ia_name.as_str()).collect()
    }

    /// "Static registry missing" (dat_registry_list_providers) means that a named file does not exist. On a machine
    /// without a file the registry is empty, and adapters are opened by device name.
    ///
    /// Clauses: REGL-3.
    #[test]
    fn without_a_file_nothing_is_listed_and_a_file_that_is_named_and_not_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let none = directory.path().join("none");
        let list = |named: Option<&PathBuf>, usual: &[PathBuf]| {
            Directory::<()>::of_files(named.cloned(), usual, false).list(8)
        };
        assert_eq!(list(None, std::slice::from_ref(&none)), Ok(vec![]));
        let missing = list(Some(&none), &[]).unwrap_err();
        assert_eq!(missing.error.return_type(), ReturnType::InternalError);
        assert_eq!(missing.available, 0);
        // A directory: it exists but cannot be read as text.
        let usual = [directory.path().to_owned()];
        let unread = list(None, &usual).unwrap_err();
        assert_eq!(unread.error.return_type(), ReturnType::InternalError);
    }

    /// A set-user-ID program ignores the file that its caller's environment names, and a usual file that others than
    /// root can write.
    #[test]
    fn who_starts_a_program_with_more_rights_names_no_libraries_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let callers = conf(directory.path(), "callers");
        let usual = [
            directory.path().join("none"),
            conf(directory.path(), "usual"),
        ];
        set_permissions(&usual[1], Permissions::from_mode(0o644)).unwrap();
        let found = |named: Option<&PathBuf>, gained| {
            Directory::<()>::of_files(named.cloned(), &usual, gained)
        };
        assert_eq!(names(&found(Some(&callers), false)), ["callers"]);
        assert_eq!(names(&found(None, false)), ["usual"]);
        // The file belongs to the user who runs this test, so it is trusted only if that user is root.
        let roots = std::fs::metadata(&usual[1]).unwrap().uid() == 0;
        let expected: &[&str] = if roots { &["usual"] } else { &[] };
        assert_eq!(names(&found(None, true)), expected);
        assert_eq!(names(&found(Some(&callers), true)), expected);
        set_permissions(&usual[1], Permissions::from_mode(0o664)).unwrap();
        assert_eq!(names(&found(None, true)), [""; 0], "its group may write it");
        assert_eq!(names(&found(None, false)), ["usual"]);
    }
}
