//! `cargo xtask package`: makes Debian packages, and with `--test` tries them in a clean Debian.
//!
//! ```text
//!   cargo build --> datctl, nvmeofd, simnic, libdat --> package::contents --> package::deb --> target/debian/*.deb
//!   packaging/, udapl/include, nvmeof/deploy ------^
//!                                                      mmdebstrap --> package::clean: install, try, purge, compare
//! ```
//!
//! The packages are built for the release of Debian that this machine runs, and their dependencies (`Depends`) are
//! determined from its libraries. Debian's helpers for source packages are not used, since they do not allow
//! dependencies from crates.io.

mod clean;
mod contents;
mod deb;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use comfy_table::Table;

use crate::install::Library;
use crate::shell;
use contents::Programs;
use deb::Build;

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Cargo profile of the packed programs: `release`, or `test` for a quick build.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Then install the packages in a clean Debian, use them, purge them, and check that no file is left. Needs root
    /// and mmdebstrap.
    #[arg(long)]
    test: bool,
}

/// Builds the packages, and tests them if `--test` is given.
///
/// # Errors
/// A tool is missing or fails, or a package does not work.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        shell::exists("dpkg-deb"),
        "no dpkg-deb here: packages are made on a Debian system, or one that comes from it"
    );
    let folder = shell::target_directory()?.join("debian");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder)?;
    let work = tempfile::tempdir_in(&folder)?;
    let programs = programs(&arguments.profile, work.path())?;
    let packages = contents::pack(&build(&folder)?, &programs)?;
    drop(work);
    let source = folder.join("source");
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    let mut table = Table::new();
    table.set_header(["package", "KiB"]);
    for package in &packages {
        let size = fs::metadata(package)?.len().div_ceil(1024);
        table.add_row([package.display().to_string(), size.to_string()]);
    }
    println!("{table}");
    if arguments.test {
        clean::test(&packages)?;
    }
    Ok(())
}

/// Builds the packaged programs with cargo.
fn programs(profile: &str, folder: &Path) -> Result<Programs> {
    // A released program must not have features that only tests of other crates request. A quick build has the features
    // of the test builds: cargo builds the whole workspace with an example, so that nothing is built twice.
    let selected: &[&str] = match profile {
        "test" => &[
            "--workspace",
            "--bin=datctl",
            "--bin=nvmeofd",
            "--bin=simnic",
            "--example=demo",
        ],
        _ => &[
            "--package=datctl",
            "--package=nvmeof",
            "--package=simnic",
            "--features=simnic/fabric",
            "--bins",
        ],
    };
    let mut build = shell::cargo(&["build", "--message-format=json-render-diagnostics"]);
    build.args(["--profile", profile]).args(selected);
    let messages = shell::capture(build)?;
    let program = |name: &str| -> Result<PathBuf> {
        for line in messages.lines() {
            let message: serde_json::Value = serde_json::from_str(line)?;
            if message["reason"] == "compiler-artifact"
                && message["target"]["name"] == name
                && let Some(file) = message["executable"].as_str()
            {
                return Ok(file.into());
            }
        }
        anyhow::bail!("cargo built no {name}")
    };
    Ok(Programs {
        datctl: program("datctl")?,
        nvmeofd: program("nvmeofd")?,
        simnic: program("simnic")?,
        library: Library::build(profile, folder)?,
    })
}

/// Returns the properties common to all packages of this build.
fn build(folder: &Path) -> Result<Build> {
    let ask = |program: &str, arguments: &[&str]| -> Result<String> {
        Ok(shell::capture(shell::command(program, arguments))?
            .trim()
            .to_owned())
    };
    let name = |variable: &str, otherwise: &str| {
        std::env::var(variable).unwrap_or_else(|_| otherwise.to_owned())
    };
    // Without git (a source archive), a neutral maintainer and a constant time are used.
    let author = |format: &str, otherwise: &str| {
        let asked = ask("git", &["log", "-1", &format!("--format={format}")]);
        asked.unwrap_or_else(|_| otherwise.to_owned())
    };
    let time = ask("git", &["log", "-1", "--format=%ct"]).unwrap_or_else(|_| "0".to_owned());
    Ok(Build {
        version: format!("{}-1", env!("CARGO_PKG_VERSION")),
        architecture: ask("dpkg", &["--print-architecture"])?,
        triplet: ask("cc", &["-print-multiarch"])?,
        time,
        copyright: copyright()?,
        maintainer: format!(
            "{} <{}>",
            name("DEBFULLNAME", &author("%an", "udapl")),
            name("DEBEMAIL", &author("%ae", "root@localhost"))
        ),
        folder: folder.to_owned(),
    })
}

/// Returns the licences of this project and of the crates that are linked in.
fn copyright() -> Result<String> {
    let mut crates = shell::cargo(&[
        "tree",
        "--locked",
        "--edges=normal",
        "--prefix=none",
        "--package=datctl",
        "--package=nvmeof",
        "--package=simnic",
        "--package=udapl",
        "--features=simnic/fabric",
        "--format={p} ({l})",
    ]);
    crates.stderr(std::process::Stdio::inherit());
    let said = shell::capture(crates)?;
    let mut foreign: Vec<&str> = said
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty() && !line.contains(" (/"))
        .collect();
    foreign.sort_unstable();
    foreign.dedup();
    let mit = fs::read_to_string(shell::root().join("LICENSE-MIT"))?;
    let owner = mit.lines().find(|line| line.starts_with("Copyright"));
    let owner = owner.unwrap_or("Copyright: the authors of udapl");
    Ok(format!(
        "{owner}\n\nLicensed under either of the Apache License, version 2.0 (on Debian systems in\n\
         /usr/share/common-licenses/Apache-2.0), or the MIT license, at your option:\n\n{mit}\n\
         The programs and the library have these crates from crates.io linked in, each under\n\
         the license in parentheses:\n\n  {}\n",
        foreign.join("\n  ")
    ))
}
