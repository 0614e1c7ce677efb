//! Programs of ours in C, for what a guest's packages offer to C alone.
//!
//! They are compiled by the machine's own `cc` against the headers and libraries of the guest's release, unpacked for
//! that purpose: what is linked here is found there.

use anyhow::{Context, Result};

use super::image::Program;
use super::machine::Machine;
use crate::shell;

/// A program: its name, its source, the libraries it names.
pub struct Source {
    /// In the guest, as `/programs/NAME`.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
    /// For the linker.
    pub libraries: &'static [&'static str],
}

/// Where headers and libraries are, in /vm.
const FOLDER: &str = "dev";
/// Where the libraries are in there.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// What has them.
const PACKAGES: [&str; 3] = ["libibverbs-dev", "librdmacm-dev", "libc6-dev"];

/// Compiles the programs.
///
/// # Errors
/// The packages cannot be had; a program does not compile.
pub fn programs(machine: &Machine, sources: &[Source]) -> Result<Vec<Program>> {
    let folder = machine.path(FOLDER);
    let stamp = folder.join("packages");
    let recipe = PACKAGES.join(" ");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&recipe) {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        machine.unpack_packages(&PACKAGES, FOLDER)?;
        // Linker scripts name files without /usr; the links are the release's base-files'.
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
            // Before the folders that the compiler was built to look in, sysroot or not.
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
