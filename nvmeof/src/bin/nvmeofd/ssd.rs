//! `nvmeofd ssd`: serves a simulated NVMe SSD on a socket, for a guest of QEMU or for a program with a driver.
//!
//! ```text
//!   nvmeofd ssd --(Unix socket, vfio-user)-- QEMU, vfio-user-pci -- nvme of the guest
//! ```

use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use driver::VfioUserServer;
use nix::sys::signal::Signal;
use nvmeof::disk::{Disk, Source};
use nvmeof::model::NamespaceConfig;
use nvmeof::nvme::Nqn;
use nvmeof::pci::{Ssd, SsdConfig};
use uuid::Uuid;

use crate::log::Log;
use crate::run::Signals;

/// Interval at which the main thread checks that the server still serves.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `nvmeofd ssd`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The socket to serve the SSD on, for QEMU's vfio-user-pci.
    socket: PathBuf,
    /// A file or a block device; repeat the option for namespaces 1, 2 and so on.
    #[arg(long, value_name = "PATH", required = true)]
    disk: Vec<PathBuf>,
    /// Number of bytes of a block, 512 or 4096.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(512..=4096))]
    block: u32,
    /// Number of I/O queues.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Serial number. The default follows from the socket's path.
    #[arg(long)]
    serial: Option<String>,
    /// The name of the subsystem. The default follows from the socket's path.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let log = Log::begin(None)?;
    let signals = Signals::take()?;
    let shift = match options.block {
        512 => 9,
        4096 => 12,
        block => return Err(format!("--block {block}: 512 or 4096").into()),
    };
    // Hosts tell SSDs apart by name and serial number, so two sockets have two of each.
    let path = std::path::absolute(&options.socket)?;
    let own = Uuid::new_v5(&Uuid::NAMESPACE_URL, path.as_os_str().as_encoded_bytes());
    let subsystem = match &options.subsystem {
        Some(name) => name.clone(),
        None => format!("nqn.2014-08.org.nvmexpress:uuid:{own}").parse()?,
    };
    let serial = options.serial.clone().unwrap_or_else(|| {
        let mut serial = own.simple().to_string();
        serial.truncate(16);
        serial
    });
    let mut namespaces = Vec::new();
    for (nsid, path) in (1_u32..).zip(&options.disk) {
        let name = format!("{subsystem} {nsid}");
        namespaces.push(NamespaceConfig {
            nsid: Some(nsid),
            uuid: Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()),
            group: 1,
            hosts: None,
            disk: Disk::open(Source::File(path.clone()), shift, false)?,
        });
    }
    let config = SsdConfig {
        name: format!("ssd:{}", options.socket.display()),
        serial,
        queues: options.queues,
        ..SsdConfig::new(subsystem)
    };
    let ssd = Ssd::new(config, namespaces)?;
    let (listener, path) = driver::listen_at(&options.socket)?;
    let server = thread::spawn(move || VfioUserServer::serve(ssd, listener));
    writeln!(stdout(), "vfio-user:{}", options.socket.display())?;
    loop {
        match signals.wait(CHECK_INTERVAL)? {
            Some(Signal::SIGTERM | Signal::SIGINT) => break,
            Some(_) | None if server.is_finished() => {
                let error = server.join().map_err(|_panic| "the server has panicked")?;
                return Err(error.into());
            }
            Some(_) | None => {}
        }
    }
    drop((path, log));
    Ok(ExitCode::SUCCESS)
}
