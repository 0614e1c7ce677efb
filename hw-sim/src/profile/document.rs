//! A profile file, as text and as statements.
//!
//! The format is TOML (`profiles/README.md` describes it for authors). Reading a file needs no knowledge of devices. A
//! document consists of statements by section and field, each with its evidence, and of pages and registers as bytes.
//! [`build`](super::build) interprets the statements.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use thiserror::Error;
use toml::{Table, Value};

/// Size of a capability page in bytes.
pub const PAGE_BYTES: usize = 0x1000;
const ROW_BYTES: usize = 16;
/// Name of the section about the virtual functions of a device.
pub(super) const VIRTUAL: &str = "vf";

/// Reason for which a profile could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ProfileError {
    /// The text is not TOML.
    #[error("not a profile: {0}")]
    Syntax(String),
    /// A statement is missing or wrong.
    #[error("profile, {place}: {problem}")]
    Statement {
        /// Section and field of the statement.
        place: String,
        /// Description of the problem.
        problem: String,
    },
    /// No built-in profile has this name.
    #[error("no generation is called {name:?}; there are {known}")]
    UnknownGeneration {
        /// The unknown name.
        name: String,
        /// The known names, separated by commas.
        known: String,
    },
}

/// Returns an error about a place in the document.
pub(super) fn wrong(place: impl Into<String>, problem: impl Into<String>) -> ProfileError {
    ProfileError::Statement {
        place: place.into(),
        problem: problem.into(),
    }
}

/// Evidence that a file gives for a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The value was recorded on the device itself.
    Recorded,
    /// The value is from this source, which names the device.
    Known(String),
    /// The value is derived from values of other devices, as the text explains.
    Derived(String),
    /// No public source states the value. The text is the reason for the choice.
    Unknown(String),
}

/// A stated value: a word, or a number with maximum and current value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stated {
    /// The value is a number.
    Number {
        /// Maximum of a capability. For anything that is not a capability, the value itself.
        max: u64,
        /// Value after a reset.
        current: u64,
    },
    /// The value is a word.
    Word(String),
}

/// A file's statement about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The stated value.
    pub value: Stated,
    /// Evidence for the value.
    pub evidence: Evidence,
}

/// A recorded capability page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawPage {
    /// Bytes of the maximum page.
    pub max: Vec<u8>,
    /// Bytes of the current page.
    pub current: Vec<u8>,
}

/// The contents of a profile file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Name of the profile, which `Profile::generation` accepts.
    pub name: String,
    /// Description of the device.
    pub title: String,
    /// Name of the base file, if any. The base's statements apply too.
    pub base: Option<String>,
    /// True if the file describes a virtual function. Its bases' statements about virtual functions (section `vf`) then
    /// apply to it.
    pub is_virtual: bool,
    /// Statements, by section and field.
    pub statements: BTreeMap<(String, String), Statement>,
    /// Complete capability pages, by type.
    pub pages: BTreeMap<u16, RawPage>,
    /// Contents of registers, by number.
    pub registers: BTreeMap<u16, Vec<u8>>,
}

impl Document {
    /// Reads a file without its base.
    ///
    /// # Errors
    /// [`ProfileError`], with the place in the file.
    pub fn read(text: &str) -> Result<Self, ProfileError> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ProfileError::Syntax(error.to_string()))?;
        let mut document = Self {
            name: word(&table, "name")?.ok_or_else(|| wrong("name", "is missing"))?,
            title: word(&table, "title")?.ok_or_else(|| wrong("title", "is missing"))?,
            base: word(&table, "base")?,
            is_virtual: match word(&table, "function")?.as_deref() {
                None => false,
                Some("virtual") => true,
                Some(_) => return Err(wrong("function", "is not \"virtual\"")),
            },
            ..Self::default()
        };
        for (section, value) in &table {
            match (section.as_str(), value) {
                ("name" | "title" | "base" | "function", _) => {}
                // These describe how the device was set up for the recording. They are for human readers only.
                ("commands" | "state", Value::Array(_)) => {}
                ("page", Value::Array(pages)) => {
                    for page in pages {
                        document.raw_page(entry(page, section)?)?;
                    }
                }
                ("register", Value::Array(registers)) => {
                    for register in registers {
                        document.register(entry(register, section)?)?;
                    }
                }
                (_, Value::Table(fields)) => document.section(section, "", fields)?,
                _ => return Err(wrong(section, "is neither a section nor known")),
            }
        }
        Ok(document)
    }

    /// Returns the statement about a field.
    #[must_use]
    pub fn statement(&self, section: &str, field: &str) -> Option<&Statement> {
        self.statements.get(&(section.to_owned(), field.to_owned()))
    }

    /// Adds the statements that the bases make about virtual functions, as statements about this device. The nearest
    /// base comes first and takes precedence.
    pub(super) fn become_virtual(&mut self, bases: &[Self]) {
        for ((section, field), statement) in bases.iter().flat_map(|base| &base.statements) {
            if section == VIRTUAL {
                let (section, field) = virtual_place(field);
                self.statements
                    .entry((section.to_owned(), field.to_owned()))
                    .or_insert_with(|| statement.clone());
            }
        }
    }

    /// Returns this document with the statements of its base added where this document has none. Evidence about another
    /// device becomes `Evidence::Derived`. Evidence of the common base, which is about all devices, stays as it is.
    #[must_use]
    pub fn over(mut self, base: Self) -> Self {
        let of_all = base.base.is_none();
        for (place, mut statement) in base.statements {
            if !of_all && let Evidence::Known(source) = statement.evidence {
                statement.evidence = Evidence::Derived(format!("{}: {source}", base.title));
            }
            self.statements.entry(place).or_insert(statement);
        }
        for (kind, page) in base.pages {
            self.pages.entry(kind).or_insert(page);
        }
        for (id, image) in base.registers {
            self.registers.entry(id).or_insert(image);
        }
        self
    }

    fn section(&mut self, section: &str, prefix: &str, fields: &Table) -> Result<(), ProfileError> {
        for (name, value) in fields {
            let path = format!("{prefix}{name}");
            let place = format!("{section}.{path}");
            let Value::Table(inner) = value else {
                return Err(wrong(
                    place,
                    "is not a table with `is`, or `max` and `current`",
                ));
            };
            if ["is", "max", "current"]
                .iter()
                .any(|key| inner.contains_key(*key))
            {
                let statement = statement(&place, inner)?;
                self.statements
                    .insert((section.to_owned(), path), statement);
            } else {
                self.section(section, &format!("{path}."), inner)?;
            }
        }
        Ok(())
    }

    fn raw_page(&mut self, table: &Table) -> Result<(), ProfileError> {
        let kind = small(table, "page", "type")?;
        let place = format!("page {kind:#04x}");
        let half = |key: &str| {
            let rows = word(table, key)?.ok_or_else(|| wrong(&place, format!("has no {key}")))?;
            bytes_of(&rows, PAGE_BYTES).map_err(|problem| wrong(&place, problem))
        };
        let page = RawPage {
            max: half("max")?,
            current: half("current")?,
        };
        if self.pages.insert(kind, page).is_some() {
            return Err(wrong(place, "is given twice"));
        }
        Ok(())
    }

    fn register(&mut self, table: &Table) -> Result<(), ProfileError> {
        let id = small(table, "register", "id")?;
        let place = format!("register {id:#06x}");
        let length = usize::from(small(table, "register", "bytes")?);
        let rows = word(table, "image")?.ok_or_else(|| wrong(&place, "has no image"))?;
        let image = bytes_of(&rows, length).map_err(|problem| wrong(&place, problem))?;
        if self.registers.insert(id, image).is_some() {
            return Err(wrong(place, "is given twice"));
        }
        Ok(())
    }
}

/// Splits the name of a field of section `vf` into section and field: `general.uar_sz` is field `uar_sz` of section
/// `general`. A name without a dot, such as `device_id`, is a field of section `pci`.
pub(super) fn virtual_place(field: &str) -> (&str, &str) {
    field.split_once('.').unwrap_or(("pci", field))
}

/// Returns an element of an array, such as `[[page]]`, as a table.
fn entry<'a>(value: &'a Value, section: &str) -> Result<&'a Table, ProfileError> {
    value
        .as_table()
        .ok_or_else(|| wrong(section, "is a list of something else than tables"))
}

fn word(table: &Table, key: &str) -> Result<Option<String>, ProfileError> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(key, "is not a text")),
    }
}

fn small(table: &Table, section: &str, key: &str) -> Result<u16, ProfileError> {
    table
        .get(key)
        .and_then(Value::as_integer)
        .and_then(|number| u16::try_from(number).ok())
        .ok_or_else(|| wrong(section, format!("{key} is not a number of 16 bits")))
}

fn statement(place: &str, table: &Table) -> Result<Statement, ProfileError> {
    let evidence = evidence(place, table)?;
    let number = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(Value::Integer(value)) => u64::try_from(*value)
            .map(Some)
            .map_err(|_| wrong(place, format!("{key} is negative"))),
        Some(_) => Err(wrong(place, format!("{key} is not a number"))),
    };
    let value = match table.get("is") {
        Some(Value::String(word)) => Stated::Word(word.clone()),
        Some(_) => {
            let value = number("is")?.unwrap_or(0);
            Stated::Number {
                max: value,
                current: value,
            }
        }
        None => match (number("max")?, number("current")?) {
            (Some(max), Some(current)) => Stated::Number { max, current },
            _ => {
                return Err(wrong(
                    place,
                    "has neither `is` nor both of `max` and `current`",
                ));
            }
        },
    };
    Ok(Statement { value, evidence })
}

fn evidence(place: &str, table: &Table) -> Result<Evidence, ProfileError> {
    let mut found = Vec::new();
    for (key, value) in table {
        let text = value.as_str().unwrap_or_default();
        match key.as_str() {
            "is" | "max" | "current" => {}
            "known" => found.push(Evidence::Known(text.to_owned())),
            "derived" => found.push(Evidence::Derived(text.to_owned())),
            "unknown" => found.push(Evidence::Unknown(text.to_owned())),
            other => return Err(wrong(place, format!("{other:?} means nothing"))),
        }
    }
    match found.len() {
        0 => Ok(Evidence::Recorded),
        1 => Ok(found.remove(0)),
        _ => Err(wrong(
            place,
            "is known, derived or unknown, not several of them",
        )),
    }
}

/// Parses rows like `010: 0f0f0017 00170000 …`, which contain an offset and big-endian dwords. Bytes without a row are
/// zero.
fn bytes_of(rows: &str, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    for row in rows.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let parsed = row.split_once(':').and_then(|(at, words)| {
            // `from_str_radix` would accept a sign.
            let is_hex = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
            let at = usize::from_str_radix(at, 16).ok().filter(|_| is_hex(at))?;
            let words: Option<Vec<u32>> = words
                .split_whitespace()
                .map(|word| {
                    u32::from_str_radix(word, 16)
                        .ok()
                        .filter(|_| is_hex(word) && word.len() == 8)
                })
                .collect();
            Some((at, words?))
        });
        let Some((at, words)) = parsed else {
            return Err(format!("{row:?} is not an offset and dwords"));
        };
        let end = at.checked_add(words.len() * 4);
        let room = end.and_then(|end| bytes.get_mut(at..end));
        let Some(room) = room.filter(|room| room.len() <= ROW_BYTES) else {
            return Err(format!("the row at {at:#x} leaves the {length:#x} bytes"));
        };
        for (place, word) in room.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str) -> String {
        let text = format!("name = \"x\"\ntitle = \"X\"\n{body}");
        Document::read(&text).expect_err(body).to_string()
    }

    #[test]
    fn a_statement_has_a_value_and_one_reason() {
        let text = "name = \"x\"\ntitle = \"X\"\n[general]\nrc = { is = 1, known = \"seen\" }\n\
                    log_max_qp = { max = 18, current = 14 }\n[port]\ntype = { is = \"ethernet\", unknown = \"a guess\" }";
        let document = Document::read(text).expect("a profile");
        assert_eq!(
            document.statement("general", "rc"),
            Some(&Statement {
                value: Stated::Number { max: 1, current: 1 },
                evidence: Evidence::Known("seen".to_owned()),
            })
        );
        assert_eq!(
            document.statement("general", "log_max_qp"),
            Some(&Statement {
                value: Stated::Number {
                    max: 18,
                    current: 14
                },
                evidence: Evidence::Recorded,
            })
        );
        assert_eq!(
            document.statement("port", "type").map(|said| &said.value),
            Some(&Stated::Word("ethernet".to_owned()))
        );
    }

    #[test]
    fn an_unknown_statement_is_refused_with_its_place() {
        for (body, part) in [
            ("[general]\nrc = 1", "general.rc: is not a table"),
            ("[general]\nrc = { is = -1 }", "general.rc: is is negative"),
            ("[general]\nrc = { max = 1 }", "general.rc: has neither"),
            (
                "[general]\nrc = { is = 1, seen = \"y\" }",
                "\"seen\" means nothing",
            ),
            (
                "[general]\nrc = { is = 1, known = \"a\", unknown = \"b\" }",
                "not several",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"\"",
                "page 0x00: has no current",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"ff0: 1\"\ncurrent = \"\"",
                "is not an offset and dwords",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"+f0: 00000001\"\ncurrent = \"\"",
                "is not an offset and dwords",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"ff0: +0000001\"\ncurrent = \"\"",
                "is not an offset and dwords",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"ffc: 00000000 00000001\"\ncurrent = \"\"",
                "the row at 0xffc leaves the 0x1000 bytes",
            ),
            (
                "[[page]]\ntype = 0\nmax = \"fffffffffffffffc: 00000000 00000001\"\ncurrent = \"\"",
                "the row at 0xfffffffffffffffc leaves the 0x1000 bytes",
            ),
            (
                "[[register]]\nid = 0x10000",
                "id is not a number of 16 bits",
            ),
            ("surprise = 1", "surprise: is neither a section nor known"),
        ] {
            let problem = problem(body);
            assert!(problem.contains(part), "{body}: {problem}");
        }
        assert!(Document::read("= 1").is_err_and(|error| matches!(error, ProfileError::Syntax(_))));
    }

    #[test]
    fn known_values_of_the_base_become_derived() {
        let base = |base: &str| {
            let text = format!(
                "name = \"b\"\ntitle = \"B\"\n{base}\n[general]\nrc = {{ is = 1, known = \"seen\" }}"
            );
            Document::read(&text).expect("a profile")
        };
        let top = || Document::read("name = \"t\"\ntitle = \"T\"").expect("a profile");
        let evidence = |document: Document| {
            let statement = document.statement("general", "rc").expect("of the base");
            statement.evidence.clone()
        };
        assert_eq!(
            evidence(top().over(base(""))),
            Evidence::Known("seen".to_owned())
        );
        assert_eq!(
            evidence(top().over(base("base = \"common\""))),
            Evidence::Derived("B: seen".to_owned())
        );
    }
}
