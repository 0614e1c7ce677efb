//! Builds a guest's initramfs from the parts that a suite names.
//!
//! All parts of a guest are data: modules by name, Debian packages by name, programs by path. Our programs are those
//! that cargo built, stripped of debug information, with their shared libraries. The guest's first process is
//! `guest/init`, the same in all guests. Each suite has a script of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest::modules;

use super::machine::Machine;
use crate::shell;

/// Contents of a guest.
pub struct Image {
    /// Name of the suite, used in messages and for its folder.
    pub name: &'static str,
    /// Kernel modules that are loaded at start in this order, with their dependencies. A module whose name ends with
    /// `?` may be built into the kernel.
    pub modules: &'static [&'static str],
    /// Debian packages that are unpacked in the guest.
    pub packages: &'static [&'static str],
    /// Script that the guest runs as `/suite` after its start.
    pub script: &'static str,
    /// Environment variables of the host that are passed to the script if they are set.
    pub variables: &'static [&'static str],
}

/// Script of the first process of every guest.
const INIT: &str = include_str!("guest/init");
/// Shell functions that a suite's script uses.
const STEPS: &str = include_str!("guest/steps");

/// A program for the guest, or a folder of programs: its name in /programs, and its path on the host. A folder is
/// copied unchanged.
pub type Program = (String, PathBuf);

/// Builds the initramfs and returns its path.
pub fn build(machine: &Machine, image: &Image, programs: &[Program]) -> Result<PathBuf> {
    let name = format!("{}/{}", machine.folder(), image.name);
    let base = format!("{name}/base");
    let recipe = format!(
        "{:?} {:?} {}",
        image.modules, image.packages, machine.unpacked.version
    );
    let folder = machine.path(&name);
    let stamp = folder.join("recipe");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&recipe) {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(machine.path(&base))?;
        machine.unpack_packages(image.packages, &base)?;
        base_files(machine, image, &base)?;
        std::fs::write(&stamp, recipe)?;
    }
    let ours = folder.join("ours");
    if ours.exists() {
        std::fs::remove_dir_all(&ours)?;
    }
    std::fs::create_dir_all(ours.join("programs"))?;
    install(&ours.join("init"), INIT)?;
    install(&ours.join("steps"), STEPS)?;
    install(&ours.join("suite"), image.script)?;
    add_programs(&ours, &machine.path(&base), programs)?;
    // The kernel accepts several archives in one file, and unpacks them in order. An archive gets its final name only
    // when it is complete.
    shell::run(machine.script(&format!(
        "cd {name}
         test -s base.cpio || {{ (cd base; find . -print0 | cpio --null -o -H newc --quiet) > half; mv half base.cpio; }}
         (cd ours; find . -print0 | cpio --null -o -H newc --quiet) > ours.cpio
         cat base.cpio ours.cpio > initramfs"
    )))?;
    Ok(folder.join("initramfs"))
}

/// Adds folders, busybox and kernel modules.
fn base_files(machine: &Machine, image: &Image, base: &str) -> Result<()> {
    let kernel_modules = machine.unpacked.modules();
    let dep = kernel_modules.join("modules.dep");
    let dep = std::fs::read_to_string(&dep).with_context(|| dep.display().to_string())?;
    let order = modules::load_order(&dep, image.modules)?;
    let mut script = format!(
        "cd {base}; mkdir -p bin dev proc sys tmp run modules; cp '{}' bin/busybox\n",
        machine.busybox().display()
    );
    // All files of the packages are below /usr; the release's base-files would create the links. Documentation is
    // removed, except that of rdma-core, because Debian counts rdma-core's tests as documentation.
    script += "if [ -d usr ]; then ln -sfn usr/lib lib; ln -sfn usr/lib64 lib64; \
               find usr/share/doc -mindepth 1 -maxdepth 1 ! -name rdma-core -exec rm -rf {} +; \
               rm -rf usr/share/man usr/share/locale usr/share/i18n usr/lib/*/gconv usr/lib/*/*.a usr/include; fi\n";
    let mut list = String::new();
    for file in &order {
        let name = modules::name(file);
        // If a module is not compressed, xz copies it unchanged.
        let file = kernel_modules.join(file);
        script += &format!("xz -dcf '{}' > modules/{name}.ko\n", file.display());
        list += &format!("{name}\n");
    }
    shell::run(machine.script(&script))?;
    std::fs::write(machine.path(base).join("modules/order"), list)?;
    Ok(())
}

/// Adds the programs, and those of their shared libraries that no package contains.
fn add_programs(ours: &Path, base: &Path, programs: &[Program]) -> Result<()> {
    let mut libraries = BTreeSet::new();
    for (name, path) in programs {
        let to = ours.join("programs").join(name);
        if path.is_dir() {
            let mut copy = shell::command("cp", &["-R"]);
            copy.arg(path).arg(&to);
            shell::capture(copy)?;
            continue;
        }
        let mut strip = shell::command("strip", &["-o"]);
        strip.arg(&to).arg(path);
        shell::capture(strip)?;
        let mut ldd = shell::command("ldd", &[]);
        ldd.arg(path);
        let said = shell::capture(ldd)?;
        let named = said.split_whitespace().filter(|word| word.starts_with('/'));
        libraries.extend(named.map(PathBuf::from));
    }
    for library in libraries {
        let inside = library.strip_prefix("/")?;
        if base.join(inside).exists() {
            continue;
        }
        let to = ours.join(inside);
        std::fs::create_dir_all(to.parent().context("a library in a folder")?)?;
        std::fs::copy(&library, &to).with_context(|| library.display().to_string())?;
    }
    Ok(())
}

fn install(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
