//! `datctl record`: all that a function reports about itself, as one file.
//!
//! The function is reset, queried for everything, and taken down again (`hw_mlx::bringup::Record`). No other program
//! may have it open meanwhile. The file is a profile of the simulator: `sim:a,profile=FILE` answers as the function
//! did. Identifiers of the card are replaced.
//!
//! An existing file is never overwritten. The new file is written under a temporary name in the same directory, so that
//! a record is complete or absent. The temporary file is created before the function is reset, so that an unwritable
//! directory causes no reset.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use driver::Function;
use hw_mlx::{HcaConfig, bringup, ids};
use serde::Serialize;

use crate::report::{Report, pairs};

/// `record`
#[derive(clap::Args)]
pub(crate) struct Record {
    /// The function: a PCI address, vfio-user:SOCKET or sim:NAME. No program may have it open.
    function: String,
    /// The file, which must not exist.
    file: PathBuf,
}

/// Summary of a record that was made.
#[derive(Serialize)]
pub(crate) struct Recorded {
    function: String,
    file: String,
    product: &'static str,
    device_id: String,
    firmware: String,
    psid: String,
    capability_pages: usize,
    registers: usize,
    commands: usize,
    /// Recorded commands that the device refused.
    refused: Vec<String>,
    /// Name of a simulated function that answers as the recorded function did.
    simulated: String,
}

pub(crate) fn run(record: &Record) -> Result<Recorded, Box<dyn Error>> {
    keep(&record.function, &record.file, || {
        udapl::adapter::function_open(&record.function, &udapl::OpenOptions::default())
    })
}

/// Records the function that `open` returns, and writes the record to a file.
pub(crate) fn keep(
    name: &str,
    file: &Path,
    open: impl FnOnce() -> Result<Function, udapl::error::OpenError>,
) -> Result<Recorded, Box<dyn Error>> {
    let draft = Draft::beside(file)?;
    let taken = bringup::Record::take(open()?, &HcaConfig::new())
        .map_err(|error| format!("{name}: recording: {error}"))?;
    draft.keep(&taken.text(&profile_name(file)))?;
    Ok(Recorded::of(&taken, name, file))
}

impl Recorded {
    fn of(record: &bringup::Record, name: &str, file: &Path) -> Self {
        let (major, minor, sub_minor) = record.firmware_version();
        let [capability_pages, registers] = record.counts();
        Self {
            function: name.to_owned(),
            file: file.display().to_string(),
            product: ids::product(record.device_id()).unwrap_or("unknown"),
            device_id: format!("{:#06x}", record.device_id()),
            firmware: format!("{major}.{minor}.{sub_minor}"),
            psid: record.psid().to_owned(),
            capability_pages,
            registers,
            commands: record.commands().len(),
            refused: record.refused().to_vec(),
            simulated: format!("sim:NAME,profile={}", as_path(file)),
        }
    }

    /// Returns a summary in one line.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{}, firmware {}: {} capability pages, {} registers, {} commands, of which {} were refused",
            self.product,
            self.firmware,
            self.capability_pages,
            self.registers,
            self.commands,
            self.refused.len()
        )
    }
}

impl Report for Recorded {
    fn human(&self) -> String {
        let refused = self.refused.iter().map(|line| ("refused", line.clone()));
        let rows = [
            ("function", self.function.clone()),
            ("file", self.file.clone()),
            ("device", format!("{} ({})", self.product, self.device_id)),
            ("firmware", format!("{}, {}", self.firmware, self.psid)),
            ("capability pages", self.capability_pages.to_string()),
            ("registers", self.registers.to_string()),
            ("commands", self.commands.to_string()),
            ("simulated as", self.simulated.clone()),
        ];
        pairs(rows.into_iter().chain(refused))
    }
}

/// Returns the name of the profile: the file's name, with `_` for each character that a profile's name may not have.
fn profile_name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    stem.chars()
        .map(|letter| match letter {
            '-' | '.' | '_' => letter,
            _ if letter.is_ascii_alphanumeric() => letter,
            _ => '_',
        })
        .collect()
}

/// Returns the file's name in a form that is parsed as a path, and not as the name of a generation.
fn as_path(file: &Path) -> String {
    let text = file.display().to_string();
    if text.contains('/') || text.ends_with(".toml") {
        text
    } else {
        format!("./{text}")
    }
}

/// A file under a temporary name beside its final path. Dropping it removes the temporary name.
struct Draft {
    file: File,
    path: PathBuf,
    place: PathBuf,
}

impl Draft {
    fn beside(place: &Path) -> Result<Self, String> {
        let name = place
            .file_name()
            .ok_or_else(|| format!("{}: not the name of a file", place.display()))?;
        if place.symlink_metadata().is_ok() {
            return Err(there(place));
        }
        let mut new = name.to_owned();
        new.push(format!(".{}.new", std::process::id()));
        let path = place.with_file_name(new);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| format!("{}: {error}", place.display()))?;
        Ok(Self {
            file,
            path,
            place: place.to_owned(),
        })
    }

    /// Writes the file and links it to its final path, if no file has that path.
    fn keep(mut self, text: &str) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.place.display());
        self.file.write_all(text.as_bytes()).map_err(failed)?;
        self.file.sync_all().map_err(failed)?;
        // A hard link is used, because renaming would replace a file that was created there meanwhile. Dropping `self`
        // removes the temporary name.
        fs::hard_link(&self.path, &self.place).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                there(&self.place)
            } else {
                failed(error)
            }
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Only we know this file, so it does no harm if it cannot be removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn there(place: &Path) -> String {
    format!(
        "{}: is there already, and is not overwritten; name another file",
        place.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_takes_its_place_only_if_that_is_free_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("card.toml");
        let names = || {
            let entries = fs::read_dir(directory.path()).expect("readable");
            entries
                .map(|entry| entry.expect("an entry").file_name())
                .collect::<Vec<_>>()
        };
        drop(Draft::beside(&place).expect("a draft"));
        assert!(names().is_empty(), "{:?}", names());
        let draft = Draft::beside(&place).expect("a draft");
        // Another process creates the file first.
        fs::write(&place, "theirs").expect("written");
        let error = draft.keep("ours").expect_err("it is not free");
        assert!(error.contains("is there already"), "{error}");
        assert_eq!(fs::read_to_string(&place).expect("readable"), "theirs");
        assert_eq!(names(), ["card.toml"]);
        fs::remove_file(&place).expect("it goes");
        let draft = Draft::beside(&place).expect("a draft");
        draft.keep("ours").expect("it is free");
        assert_eq!(fs::read_to_string(&place).expect("readable"), "ours");
        assert_eq!(names(), ["card.toml"]);
        let error = Draft::beside(&place).err().expect("it is not free");
        assert!(error.contains("is there already"), "{error}");
        // A dangling link counts as an existing file, too.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/nonexistent/x", &link).expect("a link");
        assert!(Draft::beside(&link).is_err());
        for nothing in ["/", "..", "/nonexistent/x"] {
            assert!(Draft::beside(Path::new(nothing)).is_err(), "{nothing}");
        }
    }

    #[test]
    fn a_file_is_named_as_who_reads_profiles_takes_it() {
        for (file, path, name) in [
            ("mine", "./mine", "mine"),
            ("mine.toml", "mine.toml", "mine"),
            ("a/b \"c\".toml", "a/b \"c\".toml", "b__c_"),
        ] {
            let file = Path::new(file);
            assert_eq!(
                (as_path(file), profile_name(file)),
                (path.into(), name.into())
            );
        }
    }
}
