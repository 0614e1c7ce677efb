//! Compiles our own C programs for the guest. The programs use interfaces that exist only in C.
//!
//! The machine's own `cc` compiles the programs. Headers and libraries are those of the guest's release, unpacked for
//! this purpose, so that the programs find the same libraries in the guest. [`alone`] uses this machine's libc instead,
//! as our other programs do.

use anyhow::{Context, Result};

use super::image::Program;
use super::machine::Machine;
use crate::shell;

/// A C program: its name, source text and libraries.
pub struct Source {
    /// Name of the program in the guest: `/programs/NAME`.
    pub name: &'static str,
    /// Source text of the program.
    pub text: &'static str,
    /// Names of the libraries with which the program is linked.
    pub libraries: &'static [&'static str],
}

/// Folder of headers and libraries in the machine's folder.
const FOLDER: &str = "dev";
/// Path of the libraries in that folder.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Packages with headers and libraries.
const PACKAGES: [&str; 3] = ["libibverbs-dev", "librdmacm-dev", "libc6-dev"];

const FLAGS: [&str; 5] = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"];

/// Compiles a program that needs no library but libc, and returns its name and path.
///
/// # Errors
/// The program does not compile.
pub fn alone(machine: &Machine, name: &str, source: &str) -> Result<Program> {
    let program = machine.path(name);
    let text = program.with_extension("c");
    std::fs::write(&text, source).with_context(|| text.display().to_string())?;
    let mut command = shell::command("cc", &FLAGS);
    command.arg("-o").arg(&program).arg(&text);
    shell::run(command)?;
    Ok((name.to_owned(), program))
}

/// Compiles the programs, and returns their names and paths.
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
        // Linker scripts contain paths without /usr. The release's base-files would create these links.
        shell::run(machine.script(&format!(
            "cd {FOLDER}; ln -sfn usr/lib lib; ln -sfn usr/lib64 lib64; mkdir programs"
        )))?;
        std::fs::write(&stamp, recipe)?;
    }
    let compile = |source: &Source| {
        let program = folder.join("programs").join(source.name);
        let text = program.with_extension("c");
        std::fs::write(&text, source.text).with_context(|| text.display().to_string())?;
        let mut command = shell::command("cc", &FLAGS);
        command
            .arg(format!("--sysroot={}", folder.display()))
            // The compiler searches this folder before its built-in folders, which it searches with and without a
            // sysroot.
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
