//! The state of a daemon that the next process goes on with: the program's own bytes of a parked adapter.
//!
//! ```text
//!   number of the form | settings, as the text of a configuration file | addresses | disks | target | workers
//! ```
//!
//! All of it is in the format of postcard. The adapter's snapshot around it has a checksum. A change of any type in
//! here needs another number of the form.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file;
use super::settings::Settings;
use super::write;
use crate::disk::Identity;
use crate::serve::{TargetSnapshot, WorkerSnapshot};

/// Number of the form.
const FORM: u32 = 2;

/// Reason why the bytes are not the state of a daemon.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WordsError {
    /// The bytes have another form: another version of the daemon has written them.
    #[error("the state has form {form}, and this version reads {FORM}")]
    Form { form: u32 },
    /// The bytes are damaged.
    #[error("the state cannot be read: {why}")]
    Damaged { why: String },
    /// The settings are not those of a configuration file.
    #[error("the settings of the state: {why}")]
    Settings { why: String },
}

fn damaged(why: impl ToString) -> WordsError {
    WordsError::Damaged {
        why: why.to_string(),
    }
}

/// A namespace with its disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct DiskWords {
    pub subsystem: String,
    pub nsid: u32,
    /// `None` for a disk without a file.
    pub identity: Option<Identity>,
}

/// The state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub settings: Settings,
    /// Addresses at which hosts find each port.
    pub addresses: BTreeMap<u16, Vec<SocketAddr>>,
    /// All namespaces.
    pub disks: Vec<DiskWords>,
    pub target: TargetSnapshot,
    /// The workers, in the order of their instances.
    pub workers: Vec<WorkerSnapshot>,
}

#[derive(Serialize, Deserialize)]
struct Form {
    settings: String,
    addresses: BTreeMap<u16, Vec<SocketAddr>>,
    disks: Vec<DiskWords>,
    target: TargetSnapshot,
    workers: Vec<WorkerSnapshot>,
}

fn read_settings(text: &str) -> Result<Settings, WordsError> {
    let failed = |why: String| WordsError::Settings { why };
    if text.len() as u64 > file::LONGEST {
        return Err(failed(format!("they have {} bytes", text.len())));
    }
    let settings = file::parse(Path::new("settings"), text);
    settings.map_err(|mistakes| failed(mistakes.to_string()))
}

impl Words {
    /// Writes the state.
    pub(super) fn write(self) -> Result<Vec<u8>, WordsError> {
        let text = write::text(&self.settings);
        // A path may have bytes that the text of a file cannot have.
        if read_settings(&text)? != self.settings {
            let why = "a configuration file cannot have them".to_owned();
            return Err(WordsError::Settings { why });
        }
        let form = Form {
            settings: text,
            addresses: self.addresses,
            disks: self.disks,
            target: self.target,
            workers: self.workers,
        };
        postcard::to_allocvec(&(FORM, form)).map_err(damaged)
    }

    /// Reads the state. Its values are not checked yet.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, WordsError> {
        let (form, rest) = postcard::take_from_bytes::<u32>(bytes).map_err(damaged)?;
        if form != FORM {
            return Err(WordsError::Form { form });
        }
        let (read, rest): (Form, _) = postcard::take_from_bytes(rest).map_err(damaged)?;
        if !rest.is_empty() {
            return Err(damaged(format!("{} bytes are left over", rest.len())));
        }
        Ok(Self {
            settings: read_settings(&read.settings)?,
            addresses: read.addresses,
            disks: read.disks,
            target: read.target,
            workers: read.workers,
        })
    }
}
