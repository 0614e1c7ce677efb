//! Names of the descriptors of a handover, here and in systemd's descriptor store.
//!
//! The store accepts names of at most 255 ASCII characters without control characters and without `:`
//! (sd_notify(3), `FDNAME`). In the store, the names of a handover begin with [`FILE`], so that they differ from those
//! of sockets and disks that the unit hands in.

use std::collections::BTreeSet;

use super::error::HandoverError;
use super::{MAX_DESCRIPTORS, MAX_NAME};

/// Maximum length of a part of a name, which is that of a descriptor of a function ([`NamedFd`](crate::NamedFd)).
const MAX_PART: usize = 32;
/// Name of the file of a handover in the store.
pub(super) const FILE: &str = "handover";
/// Name of a descriptor that is in the store only while a process tests whether the store keeps descriptors.
pub(super) const CANARY: &str = "handover-canary";
/// Maximum length of all names in the store. The next process gets them in one environment variable, which has at most
/// 128 KiB (execve(2)). 16 KiB are left for the names that the unit itself hands in.
const MAX_STORED_NAMES: usize = 112 << 10;
/// Text before the name of a descriptor in the store.
const PREFIX: &str = "handover.";

/// Returns the name of a descriptor in the store.
pub(super) fn stored(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Returns the name of a descriptor from its name in the store.
pub(super) fn of_stored(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}

/// Returns whether a name in the store is one of a handover.
pub(super) fn is_stored(name: &str) -> bool {
    name == FILE || name == CANARY || of_stored(name).is_some()
}

/// Checks the length of all names in the store, with a separator each.
pub(super) fn check_stored(names: &[String]) -> Result<(), HandoverError> {
    let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    let bytes = bytes + FILE.len();
    if bytes > MAX_STORED_NAMES {
        let limit = MAX_STORED_NAMES;
        return Err(HandoverError::NamesSize { bytes, limit });
    }
    Ok(())
}

/// Checks the number of names, the form of each name, and that no two are equal.
pub(super) fn check_all<'a>(
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), HandoverError> {
    let count = names.len();
    if count > MAX_DESCRIPTORS {
        return Err(HandoverError::TooMany { count });
    }
    let mut known = BTreeSet::new();
    for name in names {
        check(name)?;
        if !known.insert(name) {
            return Err(HandoverError::Repeated {
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}

fn check(name: &str) -> Result<(), HandoverError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let is_part = |part: &str| (1..=MAX_PART).contains(&part.len());
    let what = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_NAME {
        format!("it has {} bytes, the limit is {MAX_NAME}", name.len())
    } else if let Some(byte) = name.bytes().find(|&byte| !is_allowed(byte)) {
        format!("it has the byte {byte:#04x}: only ASCII letters, digits, '-' and '.' are allowed")
    } else if let Some(part) = name.split('.').find(|part| !is_part(part)) {
        let bytes = part.len();
        format!("a part between dots has {bytes} bytes, and 1 to {MAX_PART} are allowed")
    } else {
        return Ok(());
    };
    let start = name.chars().take(MAX_NAME).collect();
    Err(HandoverError::Name { name: start, what })
}
