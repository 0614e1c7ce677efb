//! The virtual machine: its unpacked files and QEMU's command line.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use guest::kernel::Unpacked;
use guest::qemu::Qemu;
use guest::{EMULATOR, Root, program};

use super::checked::CheckedOptions;
use super::kernel::Which;
use super::progress::ProgressDisplay;
use super::{Options, image, session};

/// Parses `--memory`: a positive number followed by M or G.
pub fn memory(text: &str) -> Result<String, String> {
    let number = text
        .strip_suffix(['M', 'G'])
        .and_then(|number| number.parse::<u32>().ok());
    match number {
        Some(1..) => Ok(text.to_owned()),
        Some(0) | None => Err("a number with M or G behind it, such as 2G".to_owned()),
    }
}

/// Kernel parameters without and with a kept log. With a kept log the console has all messages, otherwise only errors,
/// which is faster. `no_timer_check` is needed because the emulated timer may be too slow for the kernel's check of it
/// on a busy host.
const QUIET: &str = "console=ttyS0 quiet panic=-1 no_timer_check";
const WITH_LOG: &str = "console=ttyS0 ignore_loglevel panic=-1 no_timer_check";

/// Paths of the unpacked files of a machine.
pub struct Prepared {
    root: Root,
    /// True if the host's QEMU in PATH is used instead of the one in `root`.
    has_qemu: bool,
    kernel: Unpacked,
    files: PathBuf,
    initramfs: PathBuf,
}

/// Unpacks the files that are missing. Holds a lock meanwhile, so that other processes do not interfere.
pub fn prepare(asked: &CheckedOptions, named: Option<&Path>) -> Result<Prepared> {
    let cache = cache(named)?;
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let lock = File::create(cache.join("lock")).with_context(|| cache.display().to_string())?;
    lock.lock()?;
    let shown = ProgressDisplay::new(&cache);
    let has_qemu = has_vfio_user();
    let wanted: Vec<&str> = asked.packages.iter().map(String::as_str).collect();
    let root = Root::prepare_for(&cache.join("root"), !has_qemu, &wanted, &shown)?;
    // If an earlier run prepared the root, the names of these packages are not checked yet.
    if !image::is_there(&root, &asked.packages) {
        root.knows(&wanted)?;
    }
    let kernel = match &asked.kernel {
        Which::Release(release) => release.unpack(&root, &shown)?,
        Which::Package(package) => {
            let written = package.metadata()?.modified()?;
            let name = image::short_name(&format!("{} {written:?}", package.display()));
            Unpacked::from_package(&root, package, &format!("kernels/{name}"))?
        }
    };
    let files = image::files(&root, &asked.packages, &shown)?;
    let initramfs = image::initramfs(&root, &kernel)?;
    Ok(Prepared {
        root,
        has_qemu,
        kernel,
        files,
        initramfs,
    })
}

/// Returns the folder in which all files are kept.
fn cache(named: Option<&Path>) -> Result<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let named = named
        .map(Path::to_owned)
        .or_else(|| variable("SIMNIC_CACHE"));
    let folder = named.or_else(|| {
        let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Some(caches?.join("simnic"))
    });
    let folder = folder
        .context("neither XDG_CACHE_HOME nor HOME is set: --cache says where images are kept")?;
    ensure!(
        !folder.to_string_lossy().contains([',', '\'', ' ']),
        "{}: no comma, quote or blank may be in the path of the cache",
        folder.display()
    );
    Ok(std::path::absolute(folder)?)
}

/// Returns whether PATH has a QEMU with vfio-user-pci (10.1 and later).
fn has_vfio_user() -> bool {
    let mut command = Command::new(EMULATOR);
    command
        .args(["-device", "vfio-user-pci,help"])
        .stderr(Stdio::null());
    program::exists(EMULATOR) && program::quietly(command).is_ok()
}

/// Shares a folder with the machine, which mounts the folder by its tag. `is_kept` makes the folder read-only.
pub fn share(qemu: &mut Command, tag: &str, folder: &Path, is_kept: bool) {
    let readonly = if is_kept { ",readonly=on" } else { "" };
    qemu.arg("-fsdev").arg(format!(
        "local,id={tag},path={},security_model=none,multidevs=remap{readonly}",
        folder.display()
    ));
    qemu.arg("-device")
        .arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
}

/// Returns QEMU's command in a process group of its own, so that Ctrl-C reaches the command and not the machine.
pub fn apart(qemu: &Command) -> Command {
    let mut command = Command::new(qemu.get_program());
    command
        .args(qemu.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    for (name, value) in qemu.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.process_group(0);
    command
}

impl Prepared {
    /// Returns QEMU's command line, without the shared folder in which the command runs.
    pub fn qemu(&self, options: &Options, run: &Path, logs: &Path, is_terminal: bool) -> Command {
        let mut command = match self.has_qemu {
            true => Command::new(EMULATOR),
            false => Command::new(self.root.program(EMULATOR).get_program()),
        };
        let machine = Qemu {
            accelerator: super::accelerator(options),
            iommu: false,
            memory: &options.memory,
            kernel: &self.kernel.image(),
            initramfs: &self.initramfs,
            append: match options.logs {
                Some(_) => WITH_LOG,
                None => QUIET,
            },
        };
        machine.add_to(&mut command, &session::function_sockets(run, options.ports));
        share(&mut command, "image", &self.files, true);
        share(&mut command, "modules", &self.kernel.modules(), true);
        share(&mut command, "told", &session::instructions(run), true);
        command
            .arg("-serial")
            .arg(format!("file:{}", logs.join("console.log").display()));
        session::add_ports(&mut command, run, is_terminal);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit() {
        assert_eq!(memory("512M").as_deref(), Ok("512M"));
        for wrong in ["2", "G", "0G", "-1G", "2GB", "2G,size=1"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_cache_is_where_it_is_said_to_be() {
        assert_eq!(
            cache(Some(Path::new("/var/x"))).expect("a folder"),
            Path::new("/var/x")
        );
        let error = cache(Some(Path::new("/a b")))
            .expect_err("a blank")
            .to_string();
        assert!(error.contains("/a b"), "{error}");
    }
}
