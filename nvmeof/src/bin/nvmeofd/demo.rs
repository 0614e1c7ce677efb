//! `nvmeofd --demo`: serves a file of 64 MiB on a simulated function, and prints the command by which a stock kernel
//! mounts it.
//!
//! ```text
//!   nvmeofd -- simulated function --(Unix socket)-- simnic run: QEMU -- mlx5_ib, nvme-rdma of the guest
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nvmeof::daemon::{
    ControlSettings, ControlSocket, NamespaceSettings, PortSettings, Settings, SubsystemSettings,
};
use nvmeof::disk::Source;
use nvmeof::nvme::Nqn;

use crate::run::run as serve;

/// Name of the subsystem, unless the command line has another.
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.org.udapl:disks";
/// Size of the file in bytes.
const BYTES: u64 = 64 << 20;
/// Addresses of the target and of the guest (RFC 5737: for documentation).
const HERE: &str = "192.0.2.1";
const GUEST: &str = "192.0.2.2";

pub(crate) fn run(
    folder: Option<&Path>,
    name: &Nqn,
    service: u16,
    workers: u16,
) -> Result<ExitCode, Box<dyn Error>> {
    let temporary;
    let folder = match folder {
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            folder
        }
        None => {
            temporary = tempfile::Builder::new().prefix("nvmeofd-").tempdir()?;
            temporary.path()
        }
    };
    let folder = folder.canonicalize()?;
    let disk = make_disk(&folder)?;
    let wire = folder.join("wire");
    let mut subsystem = SubsystemSettings::new(name);
    subsystem.any_host = true;
    let namespace = NamespaceSettings::new(name, 1, Source::File(disk.clone()));
    subsystem.namespaces.insert(1, namespace);
    let adapter = format!(
        "sim:target,mac=02:00:00:00:0f:01,link=unix:{},address={HERE}/24",
        wire.display()
    );
    let port = PortSettings {
        service,
        workers,
        ..PortSettings::new(adapter)
    };
    let settings = Settings {
        control: Some(ControlSettings {
            socket: ControlSocket::Path(folder.join("control.sock")),
            user: None,
            group: None,
        }),
        ports: [(1, port)].into(),
        subsystems: [(name.clone(), subsystem)].into(),
        // The command must be the first line on the terminal, so the warning that the wire has no peer is suppressed.
        log: Some("error".to_owned()),
        ..Settings::default()
    };
    let text = commands(&folder, &wire, &disk, name, service);
    serve(
        || Ok(settings),
        None,
        || {
            let mut out = stdout();
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        },
    )
}

/// Creates the file of the disk, and returns its path. An existing file keeps its content.
fn make_disk(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = folder.join("disk");
    let failed = |error| format!("{}: {error}", path.display());
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let file = options.open(&path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() < BYTES {
        file.set_len(BYTES).map_err(failed)?;
    }
    Ok(path)
}

/// Returns the command that starts a kernel with a port on the other end of the wire. The kernel connects the disk,
/// formats it and mounts it.
fn mounts(wire: &Path, name: &Nqn, service: u16) -> String {
    let link = quoted(&format!("unix:{}", wire.display()));
    let name = quoted(name.as_str());
    let script = format!(
        "modprobe nvme-rdma && nvme connect -t rdma -a {HERE} -s {service} -n {name} && nvme list && \
         mkfs.ext4 -q /dev/nvme0n1 && mkdir -p /mnt && mount /dev/nvme0n1 /mnt && df -h /mnt"
    );
    let simnic = quoted(&simnic().display().to_string());
    let script = quoted(&script);
    format!("{simnic} run --ports 1 --link {link} --address {GUEST} -- sh -c {script}")
}

/// Returns the path of the program `simnic`: the bare name if `PATH` has it, otherwise the file beside this program.
fn simnic() -> PathBuf {
    let name = PathBuf::from("simnic");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_found = std::env::split_paths(&path).any(|folder| folder.join(&name).is_file());
    let beside = std::env::current_exe()
        .ok()
        .map(|here| here.with_file_name(&name));
    let beside = beside.filter(|beside| !is_found && beside.is_file());
    beside.unwrap_or(name)
}

/// Quotes a text as one word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-:=,+".contains(letter);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the text with the commands for the user.
fn commands(folder: &Path, wire: &Path, disk: &Path, name: &Nqn, service: u16) -> String {
    let mounts = mounts(wire, name, service);
    let (wire, disk) = (wire.display(), disk.display());
    let nic = folder.join("nic.sock");
    let nic = nic.display();
    let socket = folder.join("control.sock");
    let socket = socket.display();
    format!(
        "\
{mounts}

mounts this disk in a stock kernel, which it boots for that, and shows that; paste it into another shell.

serving {disk}, 64 MiB, as namespace 1 of {name}
        at {HERE} port {service}, on a simulated function whose wire is {wire}

With a machine of your own: its card, on the other end of that wire:
  datctl sim serve --profile roce --socket {nic} --link unix:{wire}

The machine: QEMU 10.1 or later; the card reaches its memory, which is why that is shared:
  qemu-system-x86_64 -machine q35,memory-backend=mem -object memory-backend-memfd,id=mem,size=2G,share=on \\
    -device pcie-root-port,id=port3,chassis=3 \\
    -device '{{\"driver\":\"vfio-user-pci\",\"bus\":\"port3\",\"socket\":{{\"type\":\"unix\",\"path\":\"{nic}\"}}}}' ...

In the machine, as root; the card is the network device of driver mlx5_core, eth0 here:
  modprobe -a mlx5_ib nvme-rdma
  ip link set eth0 up
  ip addr add {GUEST}/24 dev eth0
  nvme discover -t rdma -a {HERE} -s {service}
  nvme connect -t rdma -a {HERE} -s {service} -n {name}
  mkfs.ext4 /dev/nvme0n1
  mount /dev/nvme0n1 /mnt

Here, meanwhile:
  nvmeofd ctl {socket} status

Ctrl-C ends this.
"
    )
}
