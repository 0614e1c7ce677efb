//! File descriptors that are passed to the daemon for files that it may not open itself.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use anyhow::Result;
use control::Client;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nvmeof::nvme::Status;
use serde_json::Value;

use crate::process::{Place, SUBSYSTEM, subsystem};

/// A service manager passes a descriptor (sd_listen_fds(3)). The daemon serves a disk by its descriptor, even if the
/// file has no name any more: the shell opens the file and then removes it.
#[test]
fn a_disk_without_a_name_is_served_by_its_descriptor() -> Result<()> {
    let place = Place::new()?;
    let disk = File::open(place.path("disk"))?;
    place.configure(&format!(
        "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nany_host = true\n[[subsystem.namespace]]\ndescriptor = \"disk\"\n"
    ))?;
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<>\"$1\"; rm \"$1\"; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=disk exec \"$0\" \"$2\""]);
    command.arg(env!("CARGO_BIN_EXE_nvmeofd"));
    command.args([place.path("disk"), place.path("nvmeofd.toml")]);
    let process = place.start_by(command)?;
    assert!(
        fs::metadata(place.path("disk")).is_err(),
        "it has no name any more"
    );
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.memory.write_from(0, &[0x77; 4096])?;
    assert_eq!(host.write(&mut queue, 8, 8, 0, 4096)?, Status::SUCCESS);
    let mut there = [0; 4096];
    disk.read_exact_at(&mut there, 4096)?;
    assert_eq!(there, [0x77; 4096]);
    drop(host);
    process.end()
}

/// O_DIRECT is a flag of the open file description (open(2)), which the daemon shares with the program that passed the
/// descriptor. So the daemon reopens the file to set the flag, at start and when SIGHUP changes the disk.
#[test]
fn a_descriptor_that_was_handed_in_keeps_its_flags() -> Result<()> {
    let place = Place::new()?;
    let mut options = File::options();
    let disk = options.read(true).write(true).open(place.path("disk"))?;
    let flags = || fcntl(&disk, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    let before = flags()?;
    let tables = |more: &str| {
        format!(
            "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nany_host = true\n[[subsystem.namespace]]\ndescriptor = \"disk\"\n{more}"
        )
    };
    place.configure(&tables(""))?;
    // The daemon's descriptor refers to the same open file description as `disk`.
    let mut command = Command::new("sh");
    let script =
        "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=disk exec \"$0\" \"$1\"";
    command.args(["-c", script]);
    command.arg(env!("CARGO_BIN_EXE_nvmeofd"));
    command.arg(place.path("nvmeofd.toml"));
    let process = place.start_with(command, OwnedFd::from(disk.try_clone()?).into())?;
    assert_eq!(flags()?, before);
    // The daemon opens the disk again with another block size, and replaces the present one.
    place.configure(&tables("block_size = 4096\n"))?;
    process.signal(Signal::SIGHUP)?;
    place.wait_for_notice("READY=1")?;
    assert_eq!(flags()?, before);
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.memory.write_from(0, &[0x66; 4096])?;
    assert_eq!(host.write(&mut queue, 1, 1, 0, 4096)?, Status::SUCCESS);
    let mut there = [0; 4096];
    disk.read_exact_at(&mut there, 4096)?;
    assert_eq!(there, [0x66; 4096]);
    drop(host);
    process.end()
}

/// A control socket whose descriptor a privileged program passes is served. The socket stays when the daemon ends.
#[test]
fn a_control_socket_that_was_handed_in_is_answered_at() -> Result<()> {
    let place = Place::new()?;
    let path = place.path("given");
    let listener = UnixListener::bind(&path)?;
    // The shell gets the socket as standard input, and moves it to descriptor 3.
    let mut command = Command::new("sh");
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control exec \"$0\" \"$1\"";
    command.args(["-c", script]);
    command.arg(env!("CARGO_BIN_EXE_nvmeofd"));
    command.arg(place.path("nvmeofd.toml"));
    place.configure(&place.subsystem(""))?;
    let text = fs::read_to_string(place.path("nvmeofd.toml"))?;
    let own = format!("socket = \"{}\"", place.path("control").display());
    fs::write(
        place.path("nvmeofd.toml"),
        text.replace(&own, "descriptor = \"control\""),
    )?;
    let process = place.start_with(command, OwnedFd::from(listener).into())?;
    let mut client = Client::connect(&path)?;
    let version: Value = client.call("version", Value::Null)?;
    assert_eq!(version["adapter"], "nvmeofd");
    process.end()?;
    assert!(path.exists());
    Ok(())
}

#[test]
fn a_descriptor_that_was_not_handed_in_is_named_with_those_that_were() -> Result<()> {
    let place = Place::new()?;
    place.configure(&format!(
        "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\n[[subsystem.namespace]]\ndescriptor = \"data\"\n"
    ))?;
    let script =
        "exec 3<>\"$1\"; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=disk exec \"$0\" \"$2\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_nvmeofd"))
        .args([place.path("disk"), place.path("nvmeofd.toml")])
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    assert!(!output.status.success());
    assert!(
        said.contains("no descriptor \"data\" was handed in; there are disk"),
        "{said}"
    );
    Ok(())
}

/// Returns the output of a daemon whose adapter is a PCI function. Its descriptors 3 and 4 are `files`.
fn says(options: &str, names: &str, files: [&str; 2]) -> Result<String> {
    let place = Place::new()?;
    let adapter = format!("0000:3b:00.2,{options},address=192.0.2.1/24");
    fs::write(
        place.path("nvmeofd.toml"),
        format!("[[port]]\nadapter = \"{adapter}\"\n"),
    )?;
    let script =
        "exec 3<\"$1\" 4<\"$2\"; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=$3 exec \"$0\" \"$4\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_nvmeofd"))
        .args([files[0], files[1], names])
        .arg(place.path("nvmeofd.toml"))
        .output()?;
    assert!(!output.status.success());
    Ok(String::from_utf8(output.stderr)?)
}

/// Descriptors that are not those of VFIO are refused with their names. Opening the group's file needs privileges, so
/// the test passes other files on a machine without VFIO.
#[test]
fn a_card_whose_descriptors_are_not_those_of_vfio_is_refused_with_their_names() -> Result<()> {
    let null = ["/dev/null", "/dev/zero"];
    let said = says("group=card,container=vfio", "card:vfio", null)?;
    assert!(
        said.contains("port 1: 0000:3b:00.2, by group=card,container=vfio: 0000:3b:00.2: VFIO_GET_API_VERSION: ENOTTY (25): Not a typewriter: the descriptor is none of /dev/vfio/vfio"),
        "{said}"
    );
    let said = says("group=crad,container=vfio", "card:vfio", null)?;
    assert!(
        said.contains("0000:3b:00.2: no descriptor \"crad\" was handed in; there are card, vfio"),
        "{said}"
    );
    Ok(())
}
