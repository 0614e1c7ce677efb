//! Kernels for guests, from Debian's packages.
//!
//! Up to 6.18 a kernel is one package with the image and the modules. From 6.19 on it is several packages:
//! `linux-base-`, `linux-binary-`, `linux-modules-`. The list of packages comes from a simulated installation by apt.
//! The packages have the image in /boot or with the modules; here it is moved to the top of the kernel's folder.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::program;
use crate::progress::Progress;
use crate::root::{Root, UNPACK, UNPACKED};

/// A kernel, named by the Debian release that contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Kernel of Debian 12, version 6.1.
    Bookworm,
    /// Kernel of Debian 13, version 6.12.
    #[default]
    Trixie,
    /// Newest kernel in the backports of Debian 13.
    Backports,
}

/// Name of the last file that depmod writes. If the file exists, the modules are complete.
const LAST_DEPMOD_FILE: &str = "modules.symbols.bin";

/// Beginnings of the names of a kernel's packages; the version follows.
const PARTS: [&str; 4] = [
    "linux-image-",
    "linux-base-",
    "linux-binary-",
    "linux-modules-",
];

impl Kernel {
    /// Returns the name of the folder below `ROOT/vm` for the files that depend on the kernel.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "backports",
        }
    }

    /// Returns the release's name for apt.
    const fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "trixie-backports",
        }
    }

    /// Returns the kernel. Downloads and unpacks it if it is missing, and reports progress.
    ///
    /// # Errors
    /// The kernel's packages are not available, cannot be unpacked, or have no modules.
    pub fn unpack(self, root: &Root, progress: &impl Progress) -> Result<Unpacked> {
        if let Some(unpacked) = self.unpacked(root) {
            return Ok(unpacked);
        }
        let release = self.release();
        let folder = self.folder();
        progress.begins(&format!("fetching the kernel of {release}"));
        // Files of an interrupted download are removed first.
        root.fetch(&format!(
            "rm -rf {folder} debs; mkdir -p {folder}/kernel debs
             apt-get -s install -t {release} --no-install-recommends linux-image-amd64 > {folder}/simulated"
        ), progress)?;
        let simulated = std::fs::read_to_string(root.path(folder).join("simulated"))?;
        let names = packages_of(&simulated).join(" ");
        root.fetch(&format!(
            "cd debs; rm -f *; apt-get -qq -o APT::Status-Fd=3 download -t {release} {names} 3>&1 >/dev/null
             {UNPACK} dpkg-deb -x $deb ../{folder}/kernel; {UNPACKED}; cd ..; rm -rf debs"
        ), progress)?;
        arrange(root, &format!("{folder}/kernel"))?;
        self.unpacked(root)
            .with_context(|| format!("the packages of {release}'s kernel have no modules: {names}"))
    }

    fn unpacked(self, root: &Root) -> Option<Unpacked> {
        Unpacked::in_folder(root.path(self.folder()).join("kernel"))
    }
}

/// An unpacked kernel: a folder with `vmlinuz` and `usr/lib/modules/VERSION`.
#[derive(Clone, Debug)]
pub struct Unpacked {
    folder: PathBuf,
    /// Kernel release, such as 6.12.107+deb13-amd64.
    pub version: String,
}

impl Unpacked {
    fn in_folder(folder: PathBuf) -> Option<Self> {
        let modules = std::fs::read_dir(folder.join("usr/lib/modules"))
            .ok()?
            .flatten()
            .next()?;
        modules
            .path()
            .join(LAST_DEPMOD_FILE)
            .exists()
            .then_some(())?;
        let version = modules.file_name().into_string().ok()?;
        Some(Self { folder, version })
    }

    /// Unpacks a kernel's package into a folder of the root, unless that was done before.
    ///
    /// # Errors
    /// The package cannot be unpacked, or has no kernel with its modules.
    pub fn from_package(root: &Root, package: &std::path::Path, folder: &str) -> Result<Self> {
        if let Some(unpacked) = Self::in_folder(root.path(folder)) {
            return Ok(unpacked);
        }
        let mut unpack = root.script(&format!(
            "rm -rf {folder}; mkdir -p {folder}; dpkg-deb -x \"$DEB\" {folder}"
        ));
        unpack.env("DEB", package);
        program::quietly(unpack)?;
        arrange(root, folder)?;
        Self::in_folder(root.path(folder))
            .with_context(|| format!("{}: no kernel with its modules", package.display()))
    }

    /// Returns the path of the kernel's image.
    pub fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Returns the folder of the modules of this version.
    pub fn modules(&self) -> PathBuf {
        self.folder.join("usr/lib/modules").join(&self.version)
    }
}

/// Moves the image and the modules to the same places whichever release the packages are from, and runs depmod.
fn arrange(root: &Root, folder: &str) -> Result<()> {
    let arrange = root.script(&format!(
        "if [ -d {folder}/lib ]; then mkdir -p {folder}/usr; mv {folder}/lib {folder}/usr/lib; fi
         find {folder} -name 'vmlinuz*' -exec mv {{}} {folder}/vmlinuz \\;
         for version in $(ls {folder}/usr/lib/modules); do depmod -b \"$PWD/{folder}/usr\" $version; done"
    ));
    program::quietly(arrange).map(drop)
}

/// Returns the packages of the kernel among those that apt would install. They have a version in their name.
fn packages_of(simulated: &str) -> Vec<&str> {
    let names = simulated
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    names
        .filter(|name| {
            PARTS
                .iter()
                .filter_map(|prefix| name.strip_prefix(prefix))
                .any(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_in_one_package_is_that_package() {
        let simulated = "Reading package lists...\n\
            Inst linux-base (4.12 Debian:13.1/stable [all])\n\
            Inst linux-image-6.12.107+deb13-amd64 (6.12.107-1 Debian:13.7/stable [amd64])\n\
            Inst linux-image-amd64 (6.12.107-1 Debian:13.7/stable [amd64])\n\
            Conf linux-image-6.12.107+deb13-amd64 (6.12.107-1 Debian:13.7/stable [amd64])\n";
        assert_eq!(packages_of(simulated), ["linux-image-6.12.107+deb13-amd64"]);
    }

    #[test]
    fn a_kernel_in_several_packages_is_all_of_them() {
        let simulated = "Inst linux-base-7.3.4+deb13-amd64 (7.3.4-1~bpo13+1 [amd64])\n\
            Inst linux-binary-7.3.4+deb13-amd64 (7.3.4-1~bpo13+1 [amd64])\n\
            Inst linux-modules-7.3.4+deb13-amd64 (7.3.4-1~bpo13+1 [amd64])\n\
            Inst linux-image-7.3.4+deb13-amd64 (7.3.4-1~bpo13+1 [amd64])\n\
            Inst linux-modules-amd64 (7.3.4-1~bpo13+1 [amd64])\n";
        assert_eq!(
            packages_of(simulated),
            [
                "linux-base-7.3.4+deb13-amd64",
                "linux-binary-7.3.4+deb13-amd64",
                "linux-modules-7.3.4+deb13-amd64",
                "linux-image-7.3.4+deb13-amd64"
            ]
        );
    }
}
