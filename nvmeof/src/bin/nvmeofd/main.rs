//! nvmeofd serves disks to hosts by NVMe over RDMA, without the kernel's RDMA stack.
//!
//! ```text
//! nvmeofd --demo
//! nvmeofd /etc/nvmeofd.toml
//! nvmeofd --check /etc/nvmeofd.toml
//! nvmeofd --adapter 3b:00.2,address=192.0.2.1/24 --subsystem nqn.2026-11.org.example:disks --disk /dev/sdb
//! ```
//!
//! docs/nvmeof.md is the manual.
#![forbid(unsafe_code)]

mod ctl;
mod demo;
mod import;
mod log;
mod manual;
mod nvmetcli;
mod restart;
mod run;
mod ssd;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nvmeof::daemon::{
    Mistakes, NamespaceSettings, PortSettings, Settings, SubsystemSettings, file,
};
use nvmeof::disk::Source;
use nvmeof::nvme::Nqn;

/// Exit status of a daemon whose configuration file has mistakes: EX_CONFIG of sysexits.h(3head).
const MISTAKEN: u8 = 78;
const AFTER: &str = "Exit status: 0 ended by SIGTERM or SIGINT, all connections closed; 1 not ok, the reason is on the error stream; 2 usage;
75 ended by SIGUSR2, to be started again; 78 the configuration file has mistakes, and a restart does not help.

Examples:
  nvmeofd --demo
  nvmeofd --check /etc/nvmeofd/nvmeofd.toml
  nvmeofd /etc/nvmeofd/nvmeofd.toml
  nvmeofd --adapter 3b:00.2,address=192.0.2.1/24 --disk /dev/sdb";
const AFTER_CTL: &str = "Examples:
  nvmeofd ctl /run/nvmeofd/control.sock status
  nvmeofd ctl /run/nvmeofd/control.sock namespace.add subsystem=nqn.2026-11.org.example:disks file=/dev/sdc
  nvmeofd ctl /run/nvmeofd/control.sock save";
const AFTER_IMPORT: &str = "Examples:
  nvmeofd import /etc/nvmet/config.json --card 192.0.2.1=3b:00.2 > nvmeofd.toml";
const AFTER_NVMETCLI: &str = "Examples:
  nvmeofd nvmetcli /run/nvmeofd/control.sock < commands";
const AFTER_SSD: &str = "Examples:
  nvmeofd ssd /tmp/ssd.sock --disk /tmp/disk.img --block 4096";
const AFTER_MAN: &str = "Examples:
  nvmeofd man /usr/share/man/man1";
const AFTER_COMPLETIONS: &str = "Examples:
  nvmeofd completions bash > /usr/share/bash-completion/completions/nvmeofd";

/// An NVMe over RDMA target.
#[derive(Parser)]
#[command(name = "nvmeofd", version, about, after_help = AFTER)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The configuration file.
    #[arg(conflicts_with_all = ["demo", "adapter"])]
    file: Option<PathBuf>,
    /// Checks the file, and that the files, adapters, addresses and keys that it names exist now; serves nothing. Exit
    /// status 1 if the text has mistakes, 0 with warnings alone.
    #[arg(long, requires = "file")]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
    /// Serves a file of 64 MiB on a simulated function, and prints the command by which a stock kernel mounts it.
    #[arg(long, conflicts_with = "adapter")]
    demo: bool,
    /// With --demo: the folder for the sockets and the disk's file, which is kept; the default is a temporary folder.
    #[arg(long, value_name = "DIR", requires = "demo")]
    socket: Option<PathBuf>,
    /// The adapter to listen at, such as 3b:00.2,address=192.0.2.1/24.
    #[arg(long, requires = "disk")]
    adapter: Option<String>,
    /// The name of the subsystem that hosts connect to.
    #[arg(long, value_name = "NQN", default_value = demo::SUBSYSTEM)]
    subsystem: Nqn,
    /// A file or a block device to serve to any host; repeat the option for namespaces 1, 2 and so on.
    #[arg(long, value_name = "PATH", requires = "adapter")]
    disk: Vec<PathBuf>,
    /// The service (TCP port number) to listen at.
    #[arg(long, default_value_t = 4420, value_parser = clap::value_parser!(u16).range(1..))]
    service: u16,
    /// Number of threads that serve, each with its own instance of the adapter.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Queries or changes a running daemon by its control socket.
    #[command(after_help = AFTER_CTL)]
    Ctl(ctl::Options),
    /// Prints a configuration file that is made of that of another target, nvmetcli's or SPDK's.
    #[command(after_help = AFTER_IMPORT)]
    Import(import::Options),
    /// Carries out commands of nvmetcli, from the standard input, at a running daemon.
    #[command(after_help = AFTER_NVMETCLI)]
    Nvmetcli(nvmetcli::Options),
    /// Serves a simulated NVMe SSD on a socket, for QEMU's vfio-user-pci.
    #[command(after_help = AFTER_SSD)]
    Ssd(ssd::Options),
    /// Writes the manual pages into a folder.
    #[command(after_help = AFTER_MAN)]
    Man(manual::Options),
    /// Prints the completion script of a shell.
    #[command(after_help = AFTER_COMPLETIONS)]
    Completions(manual::Completions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "nvmeofd: {error}");
            let mistakes = error.downcast_ref::<Mistakes>();
            if mistakes.is_some_and(Mistakes::are_in_text) && !arguments.check {
                return MISTAKEN.into();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(command) = &arguments.command {
        match command {
            Command::Ctl(options) => ctl::run(options)?,
            Command::Import(options) => import::run(options)?,
            Command::Nvmetcli(options) => nvmetcli::run(options)?,
            Command::Ssd(options) => return ssd::run(options),
            Command::Man(options) => manual::write::<Arguments>(options)?,
            Command::Completions(options) => manual::completions::<Arguments>(options)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &arguments.file {
        if arguments.check {
            let check = file::check(path)?;
            if !check.warnings.mistakes.is_empty() {
                writeln!(std::io::stderr(), "{}", check.warnings)?;
            }
            writeln!(std::io::stdout(), "{check}")?;
            return Ok(ExitCode::SUCCESS);
        }
        return run::run(|| file::read(path), Some(path), || Ok(()));
    }
    if arguments.demo {
        return demo::run(
            arguments.socket.as_deref(),
            &arguments.subsystem,
            arguments.service,
            arguments.workers,
        );
    }
    if let Some(adapter) = &arguments.adapter {
        let settings = of_arguments(adapter, arguments);
        return run::run(|| Ok(settings), None, || Ok(()));
    }
    Err("nothing to serve: a configuration file, --demo, or --adapter and --disk".into())
}

/// Returns the settings that a command line without a configuration file describes.
fn of_arguments(adapter: &str, arguments: &Arguments) -> Settings {
    let name = &arguments.subsystem;
    let mut subsystem = SubsystemSettings::new(name);
    subsystem.any_host = true;
    for (nsid, path) in (1..).zip(&arguments.disk) {
        let namespace = NamespaceSettings::new(name, nsid, Source::File(path.clone()));
        subsystem.namespaces.insert(nsid, namespace);
    }
    let port = PortSettings {
        service: arguments.service,
        workers: arguments.workers,
        ..PortSettings::new(adapter)
    };
    Settings {
        ports: [(1, port)].into(),
        subsystems: [(name.clone(), subsystem)].into(),
        ..Settings::default()
    }
}
