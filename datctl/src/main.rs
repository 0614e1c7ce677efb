//! datctl: functions and adapters from the command line.
//!
//! ```text
//! datctl devices
//! datctl doctor 3b:00.2
//! datctl bind 3b:00.2
//! datctl perf 3b:00.2 --connect fe80::5eff:fe10:1
//! datctl record 3b:00.2 card.toml
//! datctl accept 3b:00.2 3b:00.3
//! datctl sim serve --socket /run/a.sock --socket /run/b.sock --pcap wire.pcapng
//! ```
//!
//! `devices`, `bind`, `unbind` and `doctor` inspect the machine and open no function. `info`, `ping`, `perf`, `cmtime`,
//! `rping` and `accept` open an adapter by any name that `udapl::ia_open` accepts; `record` opens the function of such
//! a name. `resource`, `stat`, `top`, `monitor`, `recorder` and `metrics` inspect a live process by its control socket.
//! `sim serve` simulates functions for other processes.
//!
//! One structure for each command has the output for a person and for a program ([`report::Report`]). Errors go to the
//! error stream as one line. With `--json` an error also goes to the output as an object.
#![forbid(unsafe_code)]

mod accept;
mod adapter;
mod bind;
mod cmtime;
mod counted;
mod decode;
mod devices;
mod dialer;
mod doctor;
mod ends;
mod hello;
mod info;
mod listener;
mod live;
mod manual;
mod perf;
mod ping;
mod profiles;
mod qos;
mod record;
mod report;
mod rping;
mod selftest;
mod value;

use std::error::Error;
use std::io::stderr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use driver::PciAddress;
use driver::pci::Machine;
use simnic::{serve, steer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use self::accept::Accept;
use self::cmtime::Cmtime;
use self::info::Info;
use self::perf::Perf;
use self::ping::Ping;
use self::record::Record;
use self::report::{Output, Usage};
use self::rping::Rping;

const EXIT_STATUS: &str = "Exit status: 0 ok; 1 not ok, the reason is on the error stream; 2 usage.

Examples:
  datctl devices
  datctl doctor
  datctl info 3b:00.2
  datctl perf sim:a sim:b";

/// ConnectX functions and DAT adapters from the command line.
#[derive(Parser)]
#[command(version, propagate_version = true, about, after_help = EXIT_STATUS)]
struct Arguments {
    /// Print JSON instead of tables.
    #[arg(long, global = true, display_order = 900)]
    json: bool,
    /// The directory that contains sys, proc and dev.
    #[arg(long, global = true, hide = true, default_value = "/")]
    machine_root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the ConnectX functions and NVMe SSDs of this machine, their drivers, and whether they could be opened now.
    #[command(after_help = "Examples:
  datctl devices")]
    Devices,
    /// Binds a function to vfio-pci, so that a program can open it, and prints the commands that undo this.
    ///
    /// Refused: a function whose interfaces carry the default route or a TCP connection (yours, perhaps), an SSD whose
    /// disks are in use (mounted, for instance), a physical function that has virtual ones, a machine without an IOMMU.
    #[command(after_help = "Examples:
  datctl bind 3b:00.2")]
    Bind {
        /// PCI addresses, such as 3b:00.2.
        #[arg(required = true)]
        device: Vec<PciAddress>,
    },
    /// Returns a function to the kernel's driver.
    #[command(after_help = "Examples:
  datctl unbind 3b:00.2")]
    Unbind {
        /// PCI addresses, such as 3b:00.2.
        #[arg(required = true)]
        device: Vec<PciAddress>,
    },
    /// Reports what is missing before a function can be driven from user space, and the commands that fix it.
    ///
    /// Without a device, checks the functions that are bound to vfio-pci, or all if there are none. Lines that concern
    /// only speed do not count for the exit status.
    #[command(after_help = "Examples:
  datctl doctor
  datctl doctor 3b:00.2 --fix --dry-run")]
    Doctor {
        /// PCI addresses, such as 3b:00.2.
        device: Vec<PciAddress>,
        /// Memory that will be registered, in MiB.
        #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value::within(1..=1_u64 << 30))]
        memory_mib: u64,
        /// Fix what can be fixed safely, until the next boot: load modules, bind the named functions to vfio-pci, raise
        /// limits of the kernel, reserve huge pages. Each command is printed before it is run.
        #[arg(long)]
        fix: bool,
        /// With --fix: print the commands and run none.
        #[arg(long, requires = "fix")]
        dry_run: bool,
    },
    /// Simulated functions for other processes.
    #[command(after_help = "Examples:
  datctl sim serve --socket /tmp/a.sock --socket /tmp/b.sock
  datctl sim profiles")]
    Sim {
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Opens an adapter and prints its identity, capabilities and state.
    #[command(after_help = "Examples:
  datctl info 3b:00.2
  datctl info sim:a --all")]
    Info(Info),
    /// Sends messages back and forth between two adapters and compares the bytes.
    ///
    /// With two adapters, both ends are in this process. With one, this is the passive end (--listen) or the active one
    /// (--connect).
    #[command(after_help = "Examples:
  datctl ping sim:a sim:b
  datctl ping 3b:00.2 --listen
  datctl ping 3b:00.2 --connect fe80::5eff:fe10:1")]
    #[command(override_usage = "datctl ping [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Ping(Ping),
    /// Measures latency and bandwidth of Send, RDMA Write and RDMA Read between two adapters.
    ///
    /// With two adapters, both ends are in this process. With one, this is the passive end (--listen) or the active one
    /// (--connect). The active end decides what is measured.
    #[command(after_help = "Examples:
  datctl perf sim:a sim:b
  datctl perf 3b:00.2 --listen
  datctl perf 3b:00.2 --connect fe80::5eff:fe10:1 --bytes 64,4k,1M --svg latencies.svg")]
    #[command(override_usage = "datctl perf [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Perf(Perf),
    /// Measures how fast connections are made and ended, and how long each step takes, as cmtime of rdma-core does.
    ///
    /// With two adapters, both ends are in this process. With one, this is the passive end (--listen) or the active one
    /// (--connect).
    #[command(after_help = "Examples:
  datctl cmtime sim:a sim:b --count 1000 --at-once 16")]
    #[command(override_usage = "datctl cmtime [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Cmtime(Cmtime),
    /// Does what rping of librdmacm does: Send, RDMA Read and RDMA Write. The other end may be any RDMA stack.
    ///
    /// A peer whose address does not contain its MAC, such as any IPv4 address, needs --neighbour.
    #[command(after_help = "Examples:
  datctl rping 3b:00.2,address=192.0.2.1/24 --listen
  datctl rping 3b:00.2,address=192.0.2.2/24 --connect 192.0.2.1")]
    #[command(override_usage = "datctl rping [OPTIONS] <NAME> <--listen|--connect <IP>>")]
    Rping(Rping),
    /// Reads all that a function reports about itself, and writes it into one file.
    ///
    /// This covers capabilities, registers, port and vport, firmware, and the commands with their answers. Identifiers
    /// of the card are replaced. The function is reset before and after, and no setting of it is changed. The file is a
    /// profile of the simulator: sim:NAME,profile=FILE.
    #[command(after_help = "Examples:
  datctl record 3b:00.2 mine.toml")]
    Record(Record),
    /// Accepts a card: does to one or two functions everything that a program will, and compares every byte.
    ///
    /// The result is one table, and one directory with all details for later analysis. Lines that cannot be run here
    /// are skipped with the reason. Simulated functions can be accepted, too; the table then says that they are
    /// simulated.
    #[command(after_help = "Examples:
  datctl accept 3b:00.2 3b:00.3 --hours 12")]
    Accept(Accept),
    /// Shows the objects of a live process: endpoints, EVDs, SRQs, memory.
    #[command(after_help = "Examples:
  datctl resource /run/target/4711.sock")]
    Resource(live::resource::Options),
    /// Shows the counters of a live process, its adapter and its device.
    #[command(after_help = "Examples:
  datctl stat /run/target/4711.sock
  datctl stat /run/target/4711.sock --all")]
    Stat(live::stat::Options),
    /// Shows what the endpoints of a live process are doing, and refreshes the display.
    #[command(after_help = "Examples:
  datctl top /run/target/4711.sock
  datctl top /run/target/4711.sock --interval 0.2 --count 10")]
    Top(live::top::Options),
    /// Reports events of a live process: link, addresses, connections and why they end.
    #[command(after_help = "Examples:
  datctl monitor /run/target/4711.sock")]
    Monitor(live::monitor::Options),
    /// Shows the last events of the instances of a live process, if they record: posts, completions, states.
    #[command(after_help = "Examples:
  datctl recorder /run/target/4711.sock --pcapng last.pcapng")]
    Recorder(live::recorder::Options),
    /// Prints the sequence of a connection from a file of a flight recorder, and draws it as a ladder of both sides.
    ///
    /// Such a file is written by `datctl recorder --pcapng`, and by a process with NAME,recorder=FOLDER when a
    /// connection breaks. Wireshark opens it, too.
    #[command(after_help = "Examples:
  datctl decode last.pcapng
  datctl decode last.pcapng --connection 1 --svg ladder.svg")]
    Decode(decode::Options),
    /// Prints or serves the counters of a live process as OpenMetrics text.
    #[command(after_help = "Examples:
  datctl metrics /run/target/4711.sock
  datctl metrics /run/target/4711.sock --listen 127.0.0.1:9401 --latencies")]
    Metrics(live::metrics::Options),
    /// Explains a number or a name from a log.
    #[command(after_help = "Examples:
  datctl explain 0x15
  datctl explain DAT_DTO_ERR_REMOTE_ACCESS")]
    Explain(live::explain::Options),
    /// Writes the manual pages of datctl and its commands.
    #[command(after_help = "Examples:
  datctl man /usr/share/man/man1
  datctl man | man -l -")]
    Man(manual::Man),
    /// Prints the completion script for a shell.
    #[command(after_help = "Examples:
  datctl completions bash > /usr/share/bash-completion/completions/datctl")]
    Completions(manual::Completions),
}

#[derive(Subcommand)]
enum SimCommand {
    /// Serves simulated functions on sockets. Two functions are linked with each other. Runs until it is killed.
    #[command(after_help = "Examples:
  datctl sim serve --socket /tmp/a.sock --socket /tmp/b.sock
  datctl sim serve --socket /tmp/a --socket /tmp/b --socket /tmp/c --switch rate=100G")]
    Serve(Box<serve::Options>),
    /// Lists the profiles of a simulated function: sim:NAME,profile=PROFILE, and --profile of `sim serve`.
    #[command(after_help = "Examples:
  datctl sim profiles")]
    Profiles,
    /// Controls functions that are served with --steer: faults of the link, events of functions, time, counters.
    #[command(after_help = "Examples:
  datctl sim ctl /tmp/steer.sock link loss=5%")]
    Ctl(steer::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log(&arguments.command);
    let output = Output {
        json: arguments.json,
    };
    let machine = Machine::at(arguments.machine_root);
    match run(arguments.command, &machine, output) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of the output has closed the pipe, which is no error.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            output.fail(&*error);
            if error.is::<Usage>() {
                return ExitCode::from(2);
            }
            ExitCode::FAILURE
        }
    }
}

/// Sets up logging: to the error stream as `RUST_LOG` specifies, and for `accept` also in full detail into its bundle.
fn log(command: &Command) {
    // An acceptance run provokes warnings on purpose. Its table has the results, and its bundle has the warnings.
    let usual = if matches!(command, Command::Accept(_)) {
        "off"
    } else {
        // The command itself reports a failed connect as its error, with a remedy.
        "warn,dat_core::ia::call::ep::connect=error"
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let errors = fmt::layer()
        .with_ansi(report::has_colours(&stderr()))
        .with_writer(stderr)
        .with_filter(filter);
    let trace = matches!(command, Command::Accept(_)).then(|| {
        fmt::layer()
            .with_ansi(false)
            .with_writer(accept::trace_writer)
            .with_filter(EnvFilter::new("debug,hw_mlx::cmd=trace"))
    });
    let wire = matches!(command, Command::Accept(_))
        .then(|| accept::WireListener.with_filter(EnvFilter::new("off,hw_mlx::mad=trace")));
    tracing_subscriber::registry()
        .with(errors)
        .with(trace)
        .with(wire)
        .init();
}

/// Runs a command. Returns false if the command ran and its result is not ok.
fn run(command: Command, machine: &Machine, output: Output) -> Result<bool, Box<dyn Error>> {
    match command {
        Command::Devices => output.show(&devices::run(machine))?,
        Command::Bind { device } => {
            for address in device {
                output.show(&bind::bind(machine, address)?)?;
            }
        }
        Command::Unbind { device } => {
            for address in device {
                output.show(&bind::unbind(machine, address)?)?;
            }
        }
        Command::Doctor {
            device,
            memory_mib,
            fix,
            dry_run,
        } => {
            let mut diagnosis = doctor::run(machine, &device, memory_mib)?;
            if fix && doctor::fix(machine, &diagnosis, &device, dry_run, output)? {
                diagnosis = doctor::run(machine, &device, memory_mib)?;
            }
            output.show(&diagnosis)?;
            return Ok(diagnosis.ok);
        }
        Command::Sim {
            command: SimCommand::Serve(serve),
        } => serve::run(&serve)?,
        Command::Sim {
            command: SimCommand::Profiles,
        } => output.show(&profiles::run()?)?,
        Command::Sim {
            command: SimCommand::Ctl(options),
        } => output.show(&steer::run(&options)?)?,
        Command::Info(info) => {
            let adapter = info::run(&info)?;
            output.show(&adapter)?;
            return Ok(adapter.health.alive);
        }
        Command::Ping(ping) => ping::run(&ping, output)?,
        Command::Perf(perf) => return perf::run(&perf, output),
        Command::Cmtime(cmtime) => return cmtime::run(&cmtime, output),
        Command::Rping(rping) => rping::run(&rping, output)?,
        Command::Record(record) => output.show(&record::run(&record)?)?,
        Command::Accept(accept) => return accept::run(&accept, machine, output),
        Command::Resource(options) => output.show(&live::resource::run(&options)?)?,
        Command::Stat(options) => output.show(&live::stat::run(&options)?)?,
        Command::Top(options) => live::top::run(&options, output)?,
        Command::Monitor(options) => live::monitor::run(&options, output)?,
        Command::Recorder(options) => output.show(&live::recorder::run(&options)?)?,
        Command::Decode(options) => output.show(&decode::run(&options)?)?,
        Command::Metrics(options) => live::metrics::run(&options)?,
        Command::Explain(options) => output.show(&live::explain::run(&options)?)?,
        Command::Man(options) => manual::man(Arguments::command(), &options, output)?,
        Command::Completions(options) => manual::completions(Arguments::command(), &options)?,
    }
    Ok(true)
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
