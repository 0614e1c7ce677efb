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
//! `devices`, `bind`, `unbind` and `doctor` look at the machine and open nothing. `info`, `ping`, `perf`, `rping` and
//! `accept` open an adapter by any name that `udapl::ia_open` knows, `record` the function of such a name. `sim serve`
//! plays functions for other processes.
//!
//! The output for a person and the output for a program come from one structure each ([`report::Report`]). Errors go
//! to the error stream as one line, and with `--json` also to the output as an object, so that a program always finds
//! one there.
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
    /// The directory that holds sys, proc and dev.
    #[arg(long, global = true, hide = true, default_value = "/")]
    machine_root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the ConnectX functions of this machine: who has them, and whether they could be opened now.
    #[command(after_help = "Examples:
  datctl devices")]
    Devices,
    /// Gives a function to vfio-pci, so that a program can have it, and prints what undoes that.
    ///
    /// Refused: a function whose interfaces carry the default route or a TCP connection (yours, perhaps), a physical
    /// function that has virtual ones, a machine without an IOMMU.
    #[command(after_help = "Examples:
  datctl bind 3b:00.2")]
    Bind {
        /// PCI addresses, such as 3b:00.2.
        #[arg(required = true)]
        device: Vec<PciAddress>,
    },
    /// Gives a function back to the kernel.
    #[command(after_help = "Examples:
  datctl unbind 3b:00.2")]
    Unbind {
        /// PCI addresses, such as 3b:00.2.
        #[arg(required = true)]
        device: Vec<PciAddress>,
    },
    /// Says what is missing before a function can be driven from user space, and the command that mends it.
    ///
    /// Without a device: the functions that are bound to vfio-pci, or else all. Lines that only make things faster
    /// do not count for the exit status.
    #[command(after_help = "Examples:
  datctl doctor
  datctl doctor 3b:00.2 --fix --dry-run")]
    Doctor {
        /// PCI addresses, such as 3b:00.2.
        device: Vec<PciAddress>,
        /// How much memory is going to be registered, in MiB.
        #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value::within(1..=1_u64 << 30))]
        memory_mib: u64,
        /// Do what can be done safely, until the next boot: load modules, give functions that are named to vfio-pci,
        /// raise limits of the kernel, reserve huge pages. Each command is printed before it is run.
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
    /// Opens an adapter and says what it is, can do, and how it is.
    #[command(after_help = "Examples:
  datctl info 3b:00.2
  datctl info sim:a --all")]
    Info(Info),
    /// Sends messages back and forth between two adapters and compares what comes back.
    ///
    /// Two adapters: both ends are here. One: this is the passive end (--listen) or the active one (--connect).
    #[command(after_help = "Examples:
  datctl ping sim:a sim:b
  datctl ping 3b:00.2 --listen
  datctl ping 3b:00.2 --connect fe80::5eff:fe10:1")]
    #[command(override_usage = "datctl ping [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Ping(Ping),
    /// Measures latency and bandwidth of Send, RDMA Write and RDMA Read between two adapters.
    ///
    /// Two adapters: both ends are here. One: this is the passive end (--listen) or the active one (--connect). The
    /// active end chooses everything.
    #[command(after_help = "Examples:
  datctl perf sim:a sim:b
  datctl perf 3b:00.2 --listen
  datctl perf 3b:00.2 --connect fe80::5eff:fe10:1 --bytes 64,4k,1M --svg latencies.svg")]
    #[command(override_usage = "datctl perf [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Perf(Perf),
    /// Measures how fast connections are made and ended, and what takes how long, as cmtime of rdma-core does.
    ///
    /// Two adapters: both ends are here. One: this is the passive end (--listen) or the active one (--connect).
    #[command(after_help = "Examples:
  datctl cmtime sim:a sim:b --count 1000 --at-once 16")]
    #[command(override_usage = "datctl cmtime [OPTIONS] <NAME> <PEER|--listen|--connect <IP>>")]
    Cmtime(Cmtime),
    /// Does what rping of librdmacm does, with any RDMA stack at the other end: Send, RDMA Read and RDMA Write.
    ///
    /// A peer whose address does not contain its MAC, as IPv4 ones do not, is named with --neighbour.
    #[command(after_help = "Examples:
  datctl rping 3b:00.2,address=192.0.2.1/24 --listen
  datctl rping 3b:00.2,address=192.0.2.2/24 --connect 192.0.2.1")]
    #[command(override_usage = "datctl rping [OPTIONS] <NAME> <--listen|--connect <IP>>")]
    Rping(Rping),
    /// Asks a function everything it says of itself, and writes it into one file.
    ///
    /// Capabilities, registers, port and vport, firmware, and the commands with their answers; what names the card is
    /// replaced. The function is reset before and after, and nothing in it is set. The file is a profile of the
    /// simulator: sim:NAME,profile=FILE.
    #[command(after_help = "Examples:
  datctl record 3b:00.2 mine.toml")]
    Record(Record),
    /// Accepts a card: does everything to a function, or two, that a program will, and compares every byte.
    ///
    /// One table, and one directory with all there is to know, for whoever is to look at it. Lines that cannot be done
    /// here are skipped with the reason. It works on simulated functions too, and says so.
    #[command(after_help = "Examples:
  datctl accept 3b:00.2 3b:00.3 --hours 12")]
    Accept(Accept),
    /// Shows the objects of a live process: endpoints, EVDs, SRQs, memory.
    #[command(after_help = "Examples:
  datctl resource /run/target/4711.sock")]
    Resource(live::resource::Options),
    /// Shows what a live process has counted, with its adapter and device.
    #[command(after_help = "Examples:
  datctl stat /run/target/4711.sock
  datctl stat /run/target/4711.sock --all")]
    Stat(live::stat::Options),
    /// Shows what the endpoints of a live process do now, again and again.
    #[command(after_help = "Examples:
  datctl top /run/target/4711.sock
  datctl top /run/target/4711.sock --interval 0.2 --count 10")]
    Top(live::top::Options),
    /// Tells what happens in a live process: link, addresses, connections and why they end.
    #[command(after_help = "Examples:
  datctl monitor /run/target/4711.sock")]
    Monitor(live::monitor::Options),
    /// Shows what the instances of a live process did last, if they record: posts, completions, states.
    #[command(after_help = "Examples:
  datctl recorder /run/target/4711.sock --pcapng last.pcapng")]
    Recorder(live::recorder::Options),
    /// Prints the sequence of a connection from a file of a flight recorder, and draws it as a ladder of both sides.
    ///
    /// A file is written by `datctl recorder --pcapng`, and by a process with NAME,recorder=FOLDER when a connection
    /// breaks. Wireshark opens it, too.
    #[command(after_help = "Examples:
  datctl decode last.pcapng
  datctl decode last.pcapng --connection 1 --svg ladder.svg")]
    Decode(decode::Options),
    /// Gives the counters of a live process as OpenMetrics text.
    #[command(after_help = "Examples:
  datctl metrics /run/target/4711.sock
  datctl metrics /run/target/4711.sock --listen 127.0.0.1:9401 --latencies")]
    Metrics(live::metrics::Options),
    /// Says what a number or a name from a log means.
    #[command(after_help = "Examples:
  datctl explain 0x15
  datctl explain DAT_DTO_ERR_REMOTE_ACCESS")]
    Explain(live::explain::Options),
    /// Writes the manual pages of datctl and its commands.
    #[command(after_help = "Examples:
  datctl man /usr/share/man/man1
  datctl man | man -l -")]
    Man(manual::Man),
    /// Prints the completions of a shell.
    #[command(after_help = "Examples:
  datctl completions bash > /usr/share/bash-completion/completions/datctl")]
    Completions(manual::Completions),
}

#[derive(Subcommand)]
enum SimCommand {
    /// Serves simulated functions on sockets; two are linked with each other. Runs until it is killed.
    #[command(after_help = "Examples:
  datctl sim serve --socket /tmp/a.sock --socket /tmp/b.sock
  datctl sim serve --socket /tmp/a --socket /tmp/b --socket /tmp/c --switch rate=100G")]
    Serve(Box<serve::Options>),
    /// Lists what a simulated function can be: sim:NAME,profile=PROFILE, and --profile of `sim serve`.
    #[command(after_help = "Examples:
  datctl sim profiles")]
    Profiles,
    /// Steers what is served with --steer: faults of the link, what happens to functions, time, counters.
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
        // The reader of the output has closed it, which is no error.
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

/// Sets up logging: to the error stream as `RUST_LOG` asks, and with `accept` in full detail into its bundle.
fn log(command: &Command) {
    // An acceptance run raises alarms on purpose, and its table reports their results: warnings are in its bundle.
    let usual = if matches!(command, Command::Accept(_)) {
        "off"
    } else {
        // A failed connect is reported as the command's error, with a remedy.
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

/// Runs a command. Returns false if it ran and its result is not ok.
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
