//! The profiles that come with the simulator: one file per generation, in `profiles/`.

use super::document::{Document, ProfileError};

/// Built-in files by name. `common` is a base, not a device.
const FILES: [(&str, &str); 10] = [
    ("common", include_str!("../../profiles/common.toml")),
    ("connectx-4", include_str!("../../profiles/connectx-4.toml")),
    (
        "connectx-4-lx-14.12",
        include_str!("../../profiles/connectx-4-lx-14.12.toml"),
    ),
    (
        "connectx-4-lx-14.32",
        include_str!("../../profiles/connectx-4-lx-14.32.toml"),
    ),
    ("connectx-5", include_str!("../../profiles/connectx-5.toml")),
    (
        "connectx-6-ib",
        include_str!("../../profiles/connectx-6-ib.toml"),
    ),
    (
        "connectx-6-dx",
        include_str!("../../profiles/connectx-6-dx.toml"),
    ),
    ("connectx-7", include_str!("../../profiles/connectx-7.toml")),
    (
        "connectx-7-vf",
        include_str!("../../profiles/connectx-7-vf.toml"),
    ),
    (
        "bluefield-3",
        include_str!("../../profiles/bluefield-3.toml"),
    ),
];

/// Maximum number of nested bases.
const DEPTH: usize = 4;

/// Returns the names of the built-in devices.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FILES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| *name != "common")
}

/// Returns the document of a generation, with the statements of its bases.
pub(super) fn document(name: &str) -> Result<Document, ProfileError> {
    let known = |wanted: &&str| *wanted == name;
    names()
        .find(known)
        .ok_or_else(|| ProfileError::UnknownGeneration {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })?;
    complete(Document::read(text(name)?)?)
}

/// Returns a document with the statements of its bases.
pub(super) fn complete(mut document: Document) -> Result<Document, ProfileError> {
    let Some(base) = document.base.take() else {
        return Ok(document);
    };
    let mut bases = vec![Document::read(text(&base)?)?];
    while let Some(next) = bases.last().and_then(|last| last.base.clone()) {
        if bases.len() == DEPTH {
            return Err(super::document::wrong(
                "base",
                format!("more than {DEPTH} bases"),
            ));
        }
        bases.push(Document::read(text(&next)?)?);
    }
    let name = document.base.insert(base).clone();
    if document.is_virtual {
        document.become_virtual(&bases);
    }
    // The nearest base comes first, because its statements override those of the bases below it.
    let whole = bases.into_iter().fold(document, Document::over);
    Ok(Document {
        base: Some(name),
        ..whole
    })
}

fn text(name: &str) -> Result<&'static str, ProfileError> {
    FILES
        .iter()
        .find(|(file, _)| *file == name)
        .map(|(_, text)| *text)
        .ok_or_else(|| ProfileError::UnknownGeneration {
            name: name.to_owned(),
            known: FILES.map(|(name, _)| name).join(", "),
        })
}
