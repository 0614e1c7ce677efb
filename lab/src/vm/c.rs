//! Our C programs, for interfaces of the guest's packages that exist in C only.
//!
//! The machine's own `cc` compiles them against the headers and libraries of the guest's release, unpacked for that
//! purpose, so that the libraries are found in the guest.

use anyhow::{Context, Result};

use super::image::Program;
use super::machine::Machine;
use crate::shell;

/// A program: its name, its source, its libraries.
pub struct Source {
    /// Its name in the guest, as `/programs/NAME`.
    pub name: &'static str,
    /// Its source text.
    pub text: &'static str,
    /// Libraries for the linker.
    pub libraries: &'static [&'static str],
}

/// Folder of headers and libraries, in /vm.
const FOLDER: &str = "dev";
/// Folder of the libraries in it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Packages with headers and libraries.
const PACKAGES: [&str; 3] = ["libibverbs-dev", "librdmacm-dev", "libc6-dev"];

/// Compiles the programs.
///
/// # Errors
/// The packages are not available, or a program does not compile.
pub fn programs(machine: &Machine, sources: &[Source]) -> Result<Vec<Program>> {
    let folder = machine.path(FOLDER);
    let stamp = folder.join("packages");
    let recipe = PACKAGES.join(" ");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&recipe) {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        machine.unpack_packages(&PACKAGES, FOLDER)?;
        // Linker scripts name files without /usr; the links are those of the release's base-files.
        shell::run(machine.script(&format!(
            "cd {FOLDER}; ln -sfn usr/lib lib; ln -sfn usr/lib64 lib64; mkdir programs"
        )))?;
        std::fs::write(&stamp, recipe)?;
    }
    let compile = |source: &Source| {
        let program = folder.join("programs").join(source.name);
        let text = program.with_extension("c");
        std::fs::write(&text, source.text).with_context(|| text.display().to_string())?;
        let mut command =
            shell::command("cc", &["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]);
        command
            .arg(format!("--sysroot={}", folder.display()))
            // This folder precedes the compiler's built-in folders, which it searches with or without a sysroot.
            .arg(format!("-L{}", folder.join(LIBRARIES).display()))
            .arg("-o")
            .arg(&program)
            .arg(&text)
            .args(
                source
                    .libraries
                    .iter()
                    .map(|library| format!("-l{library}")),
            );
        shell::run(command)?;
        Ok((source.name.to_owned(), program))
    };
    sources.iter().map(compile).collect()
}
