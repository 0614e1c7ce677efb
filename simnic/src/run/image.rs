//! The guest's files: a kept folder with unpacked Debian packages, and the initramfs that mounts the folder.
//!
//! Packages are unpacked but not configured. [`FINISH`] produces the few effects of their scripts that a command needs.
//! The folder's name is a hash of the list of packages and of [`FINISH`], so another list has another folder. The
//! initramfs contains busybox, the modules needed to mount the folder, and the guest's scripts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest::kernel::Unpacked;
use guest::progress::Progress;
use guest::{Root, modules, program};
use sha2::{Digest, Sha256};

use super::command::quoted;

/// Packages that every machine has.
const PACKAGES: [&str; 37] = [
    // The base of a small Debian system.
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "ethtool",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libc-bin",
    "less",
    "mount",
    "ncurses-base",
    "netbase",
    "procps",
    "python3",
    "python3-pytest",
    "sed",
    "tar",
    "util-linux",
    "xz-utils",
    // RDMA libraries and tools.
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "perftest",
    "python3-pyverbs",
    "rdma-core",
    "rdmacm-utils",
    // Applications that use the ports.
    "e2fsprogs",
    "fio",
    "nvme-cli",
];

/// Shell script that replaces the configuration scripts of the packages. It removes the documentation, except that of
/// rdma-core, because Debian installs rdma-core's tests there.
const FINISH: &str = "
    for link in bin sbin lib lib64; do [ -e $link ] || ln -s usr/$link $link; done
    for file in passwd group; do cp usr/share/base-passwd/$file.master etc/$file; done
    ln -sfn gawk usr/bin/awk
    echo simnic > etc/hostname
    printf '127.0.0.1 localhost\\n192.0.2.1 simnic here\\n192.0.2.2 peer port2\\n' > etc/hosts
    for port in 3 4 5 6 7 8; do echo 192.0.2.$port port$port; done >> etc/hosts
    find usr/share/doc -mindepth 1 -maxdepth 1 ! -name rdma-core -exec rm -rf {} +
    gunzip -f usr/share/doc/rdma-core/tests/*.gz
    rm -rf usr/share/man usr/share/locale usr/share/i18n usr/lib/*/gconv usr/lib/*/*.a usr/include
    mkdir -p proc sys dev run tmp root told usr/local/bin usr/lib/modules var/tmp
";

/// Modules needed to mount the image. A kernel may have those with a question mark built in.
const MODULES: [&str; 5] = [
    "virtio_pci?",
    "virtio_console?",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// Script that the initramfs runs as its first process.
const INIT: &str = include_str!("../guest/init");
/// Programs that are added to the image.
const PROGRAMS: [(&str, &str); 7] = [
    ("ports-common", include_str!("../guest/ports-common")),
    ("simnic-guest", include_str!("../guest/simnic-guest")),
    ("port", include_str!("../guest/port")),
    ("peer", include_str!("../guest/peer")),
    ("ports-alone", include_str!("../guest/ports-alone")),
    ("ports-apart", include_str!("../guest/ports-apart")),
    ("ports-together", include_str!("../guest/ports-together")),
];

/// The image with these packages.
struct Image {
    packages: Vec<String>,
    recipe: String,
    /// Name of the image's folder, relative to the root.
    name: String,
}

impl Image {
    fn with(more: &[String]) -> Self {
        let mut packages: Vec<String> = PACKAGES.map(str::to_owned).to_vec();
        packages.extend_from_slice(more);
        packages.sort();
        packages.dedup();
        let recipe = format!("{} {FINISH}", packages.join(" "));
        let name = format!("images/{}", short_name(&recipe));
        Self {
            packages,
            recipe,
            name,
        }
    }

    fn stamp(&self, root: &Root) -> PathBuf {
        root.path(&format!("{}/recipe", self.name))
    }

    fn is_there(&self, root: &Root) -> bool {
        let made = std::fs::read_to_string(self.stamp(root));
        made.is_ok_and(|made| made == self.recipe)
    }
}

/// Returns whether the image with these further packages is unpacked.
pub fn is_there(root: &Root, more: &[String]) -> bool {
    Image::with(more).is_there(root)
}

/// Returns the folder with the files of these further packages, the packages that every machine has, and all their
/// dependencies. Unpacks them if needed.
pub fn files(root: &Root, more: &[String], progress: &impl Progress) -> Result<PathBuf> {
    let image = Image::with(more);
    let files = root.path(&format!("{}/files", image.name));
    if image.is_there(root) {
        return Ok(files);
    }
    let stamp = image.stamp(root);
    let Image {
        packages,
        recipe,
        name,
    } = image;
    progress.begins(&format!(
        "fetching {} packages and what they need",
        packages.len()
    ));
    program::quietly(root.script(&format!("rm -rf {name}; mkdir -p {name}")))?;
    let words: Vec<String> = packages.iter().map(|package| quoted(package)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    root.unpack_with_progress(&words, &format!("{name}/files"), progress)?;
    program::quietly(root.script(&format!("cd {name}/files\n{FINISH}")))?;
    std::fs::write(&stamp, recipe)?;
    Ok(files)
}

/// Returns the path of the initramfs for a kernel. Creates the initramfs if needed.
pub fn initramfs(root: &Root, kernel: &Unpacked) -> Result<PathBuf> {
    let programs: String = PROGRAMS
        .iter()
        .map(|(name, text)| format!("{name}{text}"))
        .collect();
    let recipe = format!("{} {MODULES:?} {INIT} {programs}", kernel.version);
    let name = format!("images/{}-{}", kernel.version, short_name(&recipe));
    let made = root.path(&format!("{name}/initramfs"));
    if made.exists() {
        return Ok(made);
    }
    let folder = root.path(&name).join("files");
    for inside in [
        "bin",
        "bin-of-simnic",
        "dev",
        "image",
        "modules",
        "proc",
        "sys",
    ] {
        std::fs::create_dir_all(folder.join(inside))?;
    }
    std::fs::copy(root.busybox(), folder.join("bin/busybox")).context("busybox")?;
    install(&folder.join("init"), INIT)?;
    for (name, text) in PROGRAMS {
        install(&folder.join("bin-of-simnic").join(name), text)?;
    }
    let modules = kernel.modules();
    let dep = modules.join("modules.dep");
    let dep = std::fs::read_to_string(&dep).with_context(|| dep.display().to_string())?;
    let (mut script, mut order) = (format!("cd {name}/files\n"), String::new());
    for file in modules::load_order(&dep, &MODULES)? {
        let module = modules::name(&file);
        let file = quoted(&modules.join(file).to_string_lossy());
        script += &format!("xz -dcf {file} > modules/{module}.ko\n");
        order += &format!("{module}\n");
    }
    std::fs::write(folder.join("modules/order"), order)?;
    // The file gets its final name when it is complete.
    script += "find . -print0 | cpio --null -o -H newc --quiet > ../half\ncd ..; mv half initramfs; rm -rf files\n";
    program::quietly(root.script(&script))?;
    Ok(made)
}

/// Returns twelve hexadecimal digits of the text's SHA-256.
pub fn short_name(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn install(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_of_packages_is_another_folder() {
        assert_eq!(short_name("a"), short_name("a"));
        assert_ne!(short_name("a"), short_name("b"));
        assert_eq!(short_name("a").len(), 12);
    }

    /// A shell accepts the syntax of each script for the guest, and each script names its interpreter.
    #[test]
    fn the_guests_scripts_are_well_formed() {
        for (name, text) in PROGRAMS.iter().chain(&[("init", INIT)]) {
            let mut shell = std::process::Command::new("sh");
            let status = shell.args(["-n", "-c", text]).status().expect("sh");
            assert!(status.success(), "{name}");
            assert!(text.starts_with("#!/bin/"), "{name}");
        }
    }
}
