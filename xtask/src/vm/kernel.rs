//! The kernels a guest can have: Debian's, as its packages are.
//!
//! A kernel is one package up to 6.18, image and modules in it, and several from 6.19 on: `linux-base-`,
//! `linux-binary-`, `linux-modules-`. Which ones is asked of apt, by letting it say what it would install. The image is
//! in /boot, or with the modules; here it is beside them.

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::machine::Machine;

/// A kernel, by the release of Debian that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Debian 12's: 6.1.
    Bookworm,
    /// Debian 13's: 6.12.
    #[default]
    Trixie,
    /// The newest that Debian 13 is offered.
    Backports,
}

/// What depmod writes last: nothing is missing.
const WHOLE: &str = "modules.symbols.bin";

/// What a kernel's packages are called, before its version.
const PARTS: [&str; 4] = [
    "linux-image-",
    "linux-base-",
    "linux-binary-",
    "linux-modules-",
];

impl Kernel {
    /// The folder of everything that depends on the kernel, in /vm.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "backports",
        }
    }

    /// What apt calls the release.
    const fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "trixie-backports",
        }
    }

    /// The version of the kernel that is unpacked, downloading it first if there is none.
    pub fn unpack(self, machine: &Machine) -> Result<String> {
        if let Some(version) = self.unpacked(machine) {
            return Ok(version);
        }
        let release = self.release();
        let folder = self.folder();
        // Told that nothing is installed, apt names everything; what is left of an interrupted download goes first.
        machine.fetch(&format!(
            "rm -rf {folder} debs; mkdir -p {folder}/kernel debs; : > nothing-installed
             apt-get -s install -t {release} --no-install-recommends \
                 -o Dir::State::status=/vm/nothing-installed linux-image-amd64 > {folder}/simulated"
        ))?;
        let simulated = std::fs::read_to_string(machine.path(folder).join("simulated"))?;
        let names = packages_of(&simulated).join(" ");
        machine.fetch(&format!(
            "cd debs; rm -f *; apt-get -qq -o APT::Sandbox::User=root download -t {release} {names}
             for deb in *.deb; do dpkg-deb -x $deb ../{folder}/kernel; done; cd ..; rm -rf debs
             if [ -d {folder}/kernel/lib ]; then mkdir -p {folder}/kernel/usr; mv {folder}/kernel/lib {folder}/kernel/usr/lib; fi
             find {folder}/kernel -name 'vmlinuz*' -exec mv {{}} {folder}/kernel/vmlinuz \\;
             for version in $(ls {folder}/kernel/usr/lib/modules); do depmod -b /vm/{folder}/kernel/usr $version; done"
        ))?;
        self.unpacked(machine)
            .with_context(|| format!("the packages of {release}'s kernel have no modules: {names}"))
    }

    fn unpacked(self, machine: &Machine) -> Option<String> {
        let modules = machine.path(self.folder()).join("kernel/usr/lib/modules");
        let folder = std::fs::read_dir(modules).ok()?.flatten().next()?;
        folder.path().join(WHOLE).exists().then_some(())?;
        folder.file_name().into_string().ok()
    }
}

/// Of what apt would install, the packages with a kernel's files: those that name a version.
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
