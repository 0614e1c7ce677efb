//! Import of the configurations of other targets: the kernel's, as nvmetcli saves it, and SPDK's.
//!
//! The result is a configuration file of ours, and notes: what the other file has and ours has no equal for, and what a
//! person has to complete. Nothing is left out without a note, except settings with no effect on hosts.
//!
//! Neither file names the card, only addresses. So a port names the card that the caller gives for its address, or
//! [`NO_CARD`].

mod nvmet;
mod spdk;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::file;
use super::settings::{PortSettings, Settings, SubsystemSettings};
use super::write::text_after;
use crate::nvme::Nqn;

/// PCI address of a port whose card is not known.
pub const NO_CARD: &str = "0000:00:00.0";
/// Maximum number of bytes of a file.
pub const LONGEST: u64 = 16 << 20;

/// Names of adapters by the address that they are to have.
pub type Cards = BTreeMap<IpAddr, String>;

/// A configuration file of ours, and what a person should know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Text of the configuration file. It begins with the notes, as comments.
    pub text: String,
    /// Notes: each names a setting that has no equal, or one that a person has to complete.
    pub notes: Vec<String>,
}

/// Reason why a text cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The text is no JSON.
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is neither of the two kinds of files.
    #[error(
        "neither a file of nvmetcli, which has `ports` and `subsystems` with `nqn`, nor one of SPDK, whose `subsystems` have `config`"
    )]
    Kind,
    /// The result would not be read again. This is a bug of the import.
    #[error("the result has mistakes:\n{0}")]
    Result(String),
}

/// Converts the text of a file of nvmetcli or SPDK.
///
/// # Errors
/// [`ImportError`].
pub fn import(text: &str, cards: &Cards) -> Result<Imported, ImportError> {
    let whole: Value = serde_json::from_str(text)?;
    let mut import = Import {
        settings: Settings::default(),
        cards,
        notes: Vec::new(),
    };
    let subsystems = whole.get("subsystems").and_then(Value::as_array);
    let has = |key: &str| {
        let mut all = subsystems.into_iter().flatten();
        all.any(|one| one.get(key).is_some())
    };
    if has("config") {
        import.spdk(&whole);
    } else if has("nqn") || whole.get("ports").is_some() {
        import.nvmet(&whole);
    } else {
        return Err(ImportError::Kind);
    }
    import.finish()
}

/// An import under way.
struct Import<'a> {
    settings: Settings,
    cards: &'a Cards,
    notes: Vec<String>,
}

impl Import<'_> {
    fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }

    /// Notes the keys of an object that are not among `known`.
    fn note_others(&mut self, of: &str, object: &Map<String, Value>, known: &[&str]) {
        for (key, value) in object {
            if !known.contains(&&**key) {
                self.note(format!("{of}: `{key}` = {value} has no equal"));
            }
        }
    }

    /// Adds a subsystem. `None`: its name cannot be that of a subsystem.
    fn subsystem(&mut self, name: &str) -> Option<(Nqn, &mut SubsystemSettings)> {
        match name.parse::<Nqn>() {
            Ok(nqn) => {
                let all = &mut self.settings.subsystems;
                let settings = all
                    .entry(nqn.clone())
                    .or_insert_with(|| SubsystemSettings::new(&nqn));
                Some((nqn, settings))
            }
            Err(error) => {
                self.note(format!("subsystem {name} is left out: {error}"));
                None
            }
        }
    }

    /// Sets a text that is at most `most` printable characters, or notes that it is not.
    fn text(&mut self, of: &str, value: Option<&Value>, most: usize) -> Option<String> {
        let text = value?.as_str()?;
        let is_good = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if !text.is_empty() && text.len() <= most && is_good {
            return Some(text.to_owned());
        }
        self.note(format!(
            "{of}: {text:?} is not 1 to {most} printable characters, and the default is used"
        ));
        None
    }

    /// Adds a port at an address, unless there is one. `of` names it in notes.
    fn port(&mut self, of: &str, id: Option<u16>, at: SocketAddr) -> Option<u16> {
        let address = at.ip();
        let card = self.cards.get(&address);
        if card.is_none() {
            self.note(format!(
                "{of}: the card with {address} is not known; put its PCI address in the place of {NO_CARD}"
            ));
        }
        let card = card.map_or(NO_CARD, String::as_str);
        let adapter = format!("{card},address={address}");
        let same = |port: &&PortSettings| port.adapter == adapter && port.service == at.port();
        if self.settings.ports.values().any(|port| same(&port)) {
            return None;
        }
        let free = (1..=u16::MAX).find(|id| !self.settings.ports.contains_key(id));
        let id = id
            .filter(|id| !self.settings.ports.contains_key(id))
            .or(free)?;
        let mut port = PortSettings::new(adapter);
        port.service = at.port();
        self.settings.ports.insert(id, port);
        Some(id)
    }

    /// Writes the file, and checks that it can be read.
    fn finish(mut self) -> Result<Imported, ImportError> {
        if self.settings.ports.is_empty() {
            self.note("no port is for RDMA: add one, with a card");
        }
        let mut head = String::from("# Imported by nvmeofd.\n");
        for note in &self.notes {
            head.push_str("# - ");
            head.push_str(&note.replace(['\n', '\r'], " "));
            head.push('\n');
        }
        let text = text_after(&head, &self.settings);
        let read = file::parse(Path::new("the result"), &text);
        read.map_err(|mistakes| ImportError::Result(mistakes.to_string()))?;
        Ok(Imported {
            text,
            notes: self.notes,
        })
    }
}

/// Returns a flag, which nvmetcli writes as 0 and 1, as texts, or as a boolean.
fn flag(value: Option<&Value>) -> Option<bool> {
    match value? {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => number.as_u64().map(|number| number != 0),
        Value::String(text) => Some(text == "1"),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns a number, which may be written as a text.
fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns an identifier; `None` if there is none, or it is zero.
fn identifier(value: Option<&Value>) -> Option<Uuid> {
    let uuid: Uuid = value?.as_str()?.parse().ok()?;
    (!uuid.is_nil()).then_some(uuid)
}

/// Returns the address at which a port listens, from its texts.
fn address(object: &Map<String, Value>) -> Option<SocketAddr> {
    let ip: IpAddr = object.get("traddr")?.as_str()?.parse().ok()?;
    let port = number(object.get("trsvcid")).unwrap_or(super::settings::SERVICE.into());
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

/// Returns whether an address is one of RDMA.
fn is_rdma(object: &Map<String, Value>) -> bool {
    let kind = object.get("trtype").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("rdma"))
}

#[cfg(test)]
mod tests;
