//! datctl: adapters from the command line.
//!
//! ```text
//! datctl sim serve --socket /run/a.sock --socket /run/b.sock --pcap wire.pcapng
//! datctl info vfio-user:/run/a.sock
//! datctl ping vfio-user:/run/a.sock --listen
//! datctl ping vfio-user:/run/b.sock --connect fe80::5eff:fe10:1
//! ```
//!
//! `sim serve` plays one or two simulated functions, linked with each other, for other processes; the rest opens an
//! adapter by any name that `dat::ia_open` knows.
#![forbid(unsafe_code)]

mod info;
mod ping;
mod serve;

use std::error::Error;
use std::io::stderr;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Adapters from the command line.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The simulator.
    Sim {
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Opens an adapter and prints what it is.
    Info {
        /// The adapter, such as vfio-user:/run/a.sock.
        name: String,
    },
    /// Sends messages back and forth between two adapters.
    Ping(Ping),
}

#[derive(Subcommand)]
enum SimCommand {
    /// Serves simulated functions on sockets; two are linked with each other. Runs until it is killed.
    Serve(Serve),
}

/// `sim serve`
#[derive(clap::Args)]
struct Serve {
    /// Where a function is served; once or twice.
    #[arg(long, required = true, num_args = 1)]
    socket: Vec<PathBuf>,
    /// Write every frame on the link to this file, as pcapng.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// `ping`
#[derive(clap::Args)]
struct Ping {
    /// The adapter, such as vfio-user:/run/a.sock.
    name: String,
    /// Answer one peer, then end.
    #[arg(long, conflicts_with = "connect", required_unless_present = "connect")]
    listen: bool,
    /// Connect to the adapter with this address.
    #[arg(long)]
    connect: Option<Ipv6Addr>,
    /// Round trips.
    #[arg(long, default_value_t = 10)]
    count: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    bytes: u32,
    /// The connection qualifier.
    #[arg(long, default_value_t = 0x1_0000_0001)]
    qualifier: u64,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn")),
        )
        .with_writer(stderr)
        .init();
    let done: Result<(), Box<dyn Error>> = match Arguments::parse().command {
        Command::Sim {
            command: SimCommand::Serve(serve),
        } => serve::run(&serve),
        Command::Info { name } => info::run(&name),
        Command::Ping(ping) => ping::run(&ping),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("datctl: {error}");
            ExitCode::FAILURE
        }
    }
}
