//! Descriptors of a function that is handed over. They are found by name and compared with the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::stat::fstat;

use crate::error::{ParkError, ResumeError};
use crate::fdinfo::fdinfo;
use crate::snapshot::{DescriptorSnapshot, NamedFd};

/// Duplicates of descriptors that are handed over.
pub(crate) struct Parting<'a> {
    function: &'a str,
    fds: Vec<NamedFd>,
}

impl<'a> Parting<'a> {
    /// Makes an empty list for a function.
    pub(crate) const fn new(function: &'a str) -> Self {
        Self {
            function,
            fds: Vec::new(),
        }
    }

    /// Returns the name of the function.
    pub(crate) const fn function(&self) -> &'a str {
        self.function
    }

    /// Adds a duplicate of a descriptor.
    pub(crate) fn add(
        &mut self,
        name: &str,
        fd: BorrowedFd<'_>,
    ) -> Result<DescriptorSnapshot, ParkError> {
        let failed = |source| self.failed(name, source);
        let described = describe(name, fd).map_err(failed)?;
        let fd = fd.try_clone_to_owned().map_err(failed)?;
        self.fds.push(NamedFd {
            name: name.to_owned(),
            fd,
        });
        Ok(described)
    }

    /// Makes the error for a descriptor that cannot be made or examined.
    pub(crate) fn failed(&self, descriptor: &str, source: io::Error) -> ParkError {
        ParkError::Descriptor {
            name: self.function.to_owned(),
            descriptor: descriptor.to_owned(),
            source,
        }
    }

    /// Returns all descriptors.
    pub(crate) fn finish(self) -> Vec<NamedFd> {
        self.fds
    }
}

/// Descriptors that were given for taking over a function.
pub(crate) struct Given<'a> {
    function: &'a str,
    by_name: BTreeMap<&'a str, BorrowedFd<'a>>,
    /// Names of the snapshot that were found so far.
    named: BTreeSet<String>,
}

impl<'a> Given<'a> {
    /// Makes a table of descriptors.
    pub(crate) fn new(function: &'a str, fds: &'a [NamedFd]) -> Result<Self, ResumeError> {
        let mut by_name = BTreeMap::new();
        for NamedFd { name, fd } in fds {
            if by_name.insert(name.as_str(), fd.as_fd()).is_some() {
                return Err(ResumeError::Repeated {
                    name: function.to_owned(),
                    descriptor: name.clone(),
                });
            }
        }
        Ok(Self {
            function,
            by_name,
            named: BTreeSet::new(),
        })
    }

    /// Returns the descriptor of this name, after checking that it is the one that the snapshot describes.
    fn find(
        &mut self,
        name: &str,
        wanted: &DescriptorSnapshot,
    ) -> Result<BorrowedFd<'a>, ResumeError> {
        let descriptor = name.to_owned();
        let name = self.function.to_owned();
        if wanted.name != descriptor {
            let what = format!("its descriptor {descriptor} has the name {:?}", wanted.name);
            return Err(ResumeError::Snapshot { name, what });
        }
        let Some(&fd) = self.by_name.get(wanted.name.as_str()) else {
            return Err(ResumeError::Missing {
                name,
                descriptor,
                given: self.by_name.len(),
            });
        };
        if !self.named.insert(descriptor.clone()) {
            return Err(ResumeError::Repeated { name, descriptor });
        }
        match describe(&wanted.name, fd) {
            Ok(found) if found == *wanted => Ok(fd),
            Ok(found) => Err(ResumeError::Descriptor {
                name,
                descriptor,
                what: format!("it was {}, and is {}", in_words(wanted), in_words(&found)),
            }),
            Err(error) => Err(ResumeError::Descriptor {
                name,
                descriptor,
                what: error.to_string(),
            }),
        }
    }

    /// Returns a duplicate of the descriptor of this name, after checking that it is the one that the snapshot
    /// describes.
    pub(crate) fn duplicate(
        &mut self,
        name: &str,
        wanted: &DescriptorSnapshot,
    ) -> Result<OwnedFd, ResumeError> {
        let fd = self.find(name, wanted)?;
        fd.try_clone_to_owned()
            .map_err(|error| self.unfit(&wanted.name, error.to_string()))
    }

    /// Makes the error for a descriptor that does not fit.
    pub(crate) fn unfit(&self, descriptor: &str, what: String) -> ResumeError {
        ResumeError::Descriptor {
            name: self.function.to_owned(),
            descriptor: descriptor.to_owned(),
            what,
        }
    }

    /// Checks that the snapshot has named all descriptors that were given.
    pub(crate) fn finish(&self) -> Result<(), ResumeError> {
        let unknown = |name: &&&str| !self.named.contains(**name);
        match self.by_name.keys().find(unknown) {
            None => Ok(()),
            Some(name) => Err(ResumeError::Unknown {
                name: self.function.to_owned(),
                descriptor: (*name).to_owned(),
            }),
        }
    }
}

/// Returns what identifies an open file.
fn describe(name: &str, fd: BorrowedFd<'_>) -> io::Result<DescriptorSnapshot> {
    let stat = fstat(fd)?;
    Ok(DescriptorSnapshot {
        name: name.to_owned(),
        device: stat.st_dev,
        inode: stat.st_ino,
        special: stat.st_rdev,
        event: event_number(fd),
    })
}

/// Returns the kernel's number of an eventfd. `None` for other files, and before Linux 5.2.
fn event_number(fd: BorrowedFd<'_>) -> Option<u64> {
    fdinfo(fd, "eventfd-id:")?.parse().ok()
}

/// Returns the numbers of a descriptor as text.
fn in_words(descriptor: &DescriptorSnapshot) -> String {
    let DescriptorSnapshot {
        device,
        inode,
        special,
        event,
        ..
    } = descriptor;
    let mut words = format!("inode {inode} of file system {device:#x}");
    if *special != 0 {
        words += &format!(", device file {special:#x}");
    }
    if let Some(event) = event {
        words += &format!(", eventfd {event}");
    }
    words
}
