//! Unpacks Debian packages without installing them.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Downloads packages into a folder, which is created anew, and unpacks them into `root`, a folder in it.
///
/// # Errors
/// The required programs or the packages are not available.
pub fn unpack(folder: &Path, root: &Path, packages: &[&str]) -> Result<()> {
    for program in ["apt-get", "dpkg-deb"] {
        ensure!(shell::exists(program), "no {program} here");
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(root)?;
    if let Err(first) = download(folder, packages) {
        // The package lists may be old or missing, so they are updated first.
        shell::run(shell::command("apt-get", &["update", "-qq"])).context(first)?;
        download(folder, packages)?;
    }
    for file in std::fs::read_dir(folder)? {
        let file = file?.path();
        if file.extension().is_some_and(|end| end == "deb") {
            let mut unpack = shell::command("dpkg-deb", &["-x"]);
            unpack.arg(&file).arg(root);
            shell::run(unpack)?;
        }
    }
    Ok(())
}

fn download(folder: &Path, packages: &[&str]) -> Result<()> {
    let mut download = shell::command("apt-get", &["download", "-qq"]);
    download
        .args(["-o", "APT::Sandbox::User=root"])
        .args(packages)
        .current_dir(folder);
    shell::run(download)
}
