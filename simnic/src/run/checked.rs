//! Checks of the options before anything is downloaded. A mistake is reported at once and has no effect.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{AccessFlags, access};
use simnic::simulated::FaultOptions;

use super::Options;
use super::kernel::Which;

/// Magic bytes of a Debian package, which is an ar(1) archive.
const DEB: &[u8] = b"!<arch>\n";

/// Kernel and packages of the options, after their check.
pub struct CheckedOptions {
    /// The kernel: a release, or the absolute path of a package.
    pub kernel: Which,
    /// Further packages: names, or absolute paths of files.
    pub packages: Vec<String>,
}

impl CheckedOptions {
    /// Checks the options that name a kernel, a package, an output file, a socket, the folder for logs or a function.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn of(options: &Options) -> Result<Self> {
        let kernel = match &options.kernel {
            Which::Release(release) => Which::Release(*release),
            Which::Package(file) => {
                let known = "bookworm, trixie, backports, or the path of a linux-image .deb";
                let found = deb(file);
                let named = || format!("--kernel {}: {known}", file.display());
                Which::Package(found.with_context(named)?)
            }
        };
        let packages = options.package.iter().map(|package| package_of(package));
        let packages = packages.collect::<Result<_>>()?;
        for (option, file) in [
            ("--pcap", &options.pcap),
            ("--record", &options.record),
            ("--steer", &options.steer),
        ] {
            if let Some(file) = file {
                check_creatable(file).with_context(|| format!("{option} {}", file.display()))?;
            }
        }
        let planned = FaultOptions::functions(&options.faults);
        if let Some(beyond) = planned
            .iter()
            .find(|one| one.function >= options.ports.into())
        {
            let (number, last) = (beyond.function, options.ports - 1);
            bail!("--faults: there is no function {number}, they are 0 to {last}");
        }
        if let Some(folder) = &options.logs {
            folder_can_be_made(folder).with_context(|| format!("--logs {}", folder.display()))?;
        }
        Ok(Self { kernel, packages })
    }
}

/// Checks a package. Returns its name, or the absolute path if it is a file.
fn package_of(text: &str) -> Result<String> {
    if text.ends_with(".deb") {
        let found = deb(Path::new(text)).with_context(|| format!("--package {text}"))?;
        // apt treats an argument that begins with / as a path.
        return Ok(found.display().to_string());
    }
    // NAME=VERSION, NAME:ARCHITECTURE and NAME/RELEASE are allowed. A name that ends in a hyphen is refused, because
    // apt would remove the package.
    let is_name = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !text.ends_with('-')
        && text
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || "+-.:=~/_".contains(one));
    ensure!(
        is_name,
        "--package {text}: neither a package's name nor the path of a .deb"
    );
    Ok(text.to_owned())
}

/// Returns the absolute path of a file after checking that it is a Debian package.
fn deb(file: &Path) -> Result<PathBuf> {
    let whole = file.canonicalize()?;
    let mut begin = [0; DEB.len()];
    let read = File::open(&whole)?.read_exact(&mut begin);
    ensure!(read.is_ok() && begin == DEB, "not a Debian package");
    Ok(whole)
}

/// Checks that a file or socket can be made at a path.
fn check_creatable(path: &Path) -> Result<()> {
    ensure!(!path.is_dir(), "a folder");
    if path.exists() {
        return access(path, AccessFlags::W_OK).context("it cannot be written");
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    is_open(folder)
}

/// Checks that a folder exists and can be written, or can be made.
fn folder_can_be_made(folder: &Path) -> Result<()> {
    for one in folder.ancestors() {
        if one.as_os_str().is_empty() {
            return is_open(Path::new("."));
        }
        if one.symlink_metadata().is_ok() {
            return is_open(one);
        }
    }
    bail!("no such folder")
}

fn is_open(folder: &Path) -> Result<()> {
    ensure!(
        folder.exists(),
        "the folder {} is not there",
        folder.display()
    );
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
        .with_context(|| format!("the folder {} cannot be written", folder.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn asked(words: &[&str]) -> Result<CheckedOptions, String> {
        let line = ["simnic"].iter().chain(words).chain(&["--", "true"]);
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        CheckedOptions::of(&line.options).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn options_that_name_what_is_not_there_are_refused_with_their_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("text.deb");
        std::fs::write(&text, "no archive").expect("a file");
        let (folder, text) = (
            folder.path().display().to_string(),
            text.display().to_string(),
        );
        let cases = [
            (
                "--kernel sid",
                "--kernel sid: bookworm, trixie, backports, or the path",
            ),
            ("--kernel TEXT", "not a Debian package"),
            ("--kernel FOLDER", "not a Debian package"),
            ("--package TEXT", "not a Debian package"),
            (
                "--package /no/such.deb",
                "--package /no/such.deb: No such file",
            ),
            ("--package make-", "neither a package's name nor"),
            ("--package ;reboot", "neither a package's name nor"),
            (
                "--pcap /no/such/file",
                "--pcap /no/such/file: the folder /no/such is not there",
            ),
            (
                "--record /no/such/file",
                "--record /no/such/file: the folder /no/such is not",
            ),
            (
                "--steer /no/such/socket",
                "--steer /no/such/socket: the folder /no/such is not",
            ),
            ("--pcap FOLDER", ": a folder"),
            ("--logs TEXT", "is not a folder"),
            ("--logs TEXT/below", "is not a folder"),
            ("--ports 1 --link tcp:x", "--link"),
            (
                "--faults 2:removal@60s",
                "--faults: there is no function 2, they are 0 to 1",
            ),
            ("--timeout 0", "0 is not in 1.."),
            ("--share x --timeout soon", "invalid digit"),
        ];
        for (line, part) in cases {
            let line = line.replace("TEXT", &text).replace("FOLDER", &folder);
            let words: Vec<&str> = line.split(' ').collect();
            let error = asked(&words).err().unwrap_or_else(|| panic!("{line}"));
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn options_that_can_be_are_taken_and_nothing_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("a.deb"), DEB).expect("a file");
        std::fs::write(path("old.rec"), "").expect("a file");
        let (pcap, record, logs) = (path("wire.pcapng"), path("old.rec"), path("logs/today"));
        let (deb, steer) = (path("a.deb"), path("steer"));
        let words: [[&str; 2]; 8] = [
            ["--kernel", "backports"],
            ["--package", "g++"],
            ["--package", &deb],
            ["--pcap", &pcap],
            ["--record", &record],
            ["--steer", &steer],
            ["--logs", &logs],
            ["--faults", "loss=1%,1:removal@60s"],
        ];
        let asked = asked(words.as_flattened()).expect("all can be");
        let whole = folder
            .path()
            .canonicalize()
            .expect("a folder")
            .join("a.deb");
        assert_eq!(
            asked.packages,
            ["g++".to_owned(), whole.display().to_string()]
        );
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 2, "nothing is made");
    }
}
