//! simnic: an mlx5 network card in software.
//!
//! ```text
//! simnic run -- ibv_devinfo
//! simnic run -- sh -c 'peer ibv_rc_pingpong -g 3 & sleep 2; ibv_rc_pingpong -g 3 192.0.2.2'
//! simnic serve --socket /run/a.sock --socket /run/b.sock
//! simnic fabric --topology incast:4 --switch rate=10G,ecn,pfc --svg incast.svg
//! simnic replay failure.rec
//! ```
//!
//! `run` boots a stock kernel with one to eight ports and runs a command in it. `serve` serves functions for a user's
//! own QEMU. `ctl` steers the simulation of a running `run` or `serve`. `replay` repeats a recorded simulation.
#![forbid(unsafe_code)]

mod run;

use std::error::Error;
use std::io::{BufWriter, ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "fabric")]
use simnic::fabric;
use simnic::{manual, replay, serve, steer};
use tracing_subscriber::EnvFilter;

const EXIT_STATUS: &str = "Exit status of run: the command's; 124 after --timeout; 128 and a signal's number after the third signal; \
                           125 if there is none, the reason is on the error stream; 2 usage. \
                           Of the others: 0 ok; 1 not ok; 2 usage.

Examples:
  simnic run -- ibv_devinfo
  simnic serve --socket /tmp/a.sock --socket /tmp/b.sock
  simnic replay failure.rec";

/// An mlx5 network card in software.
#[derive(Parser)]
#[command(version, about, after_help = EXIT_STATUS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boots a stock Linux kernel with simulated ports, and runs a command in it.
    ///
    /// The guest sees the working directory under the same path. Input, output and exit status are the command's. With
    /// two ports, the first has address 192.0.2.1. The second has 192.0.2.2, in a network namespace of its own:
    /// `peer COMMAND` runs a command there.
    #[command(after_help = "Examples:
  simnic run -- ibv_devinfo
  simnic run -- sh -c 'peer ibv_rc_pingpong -g 3 & sleep 2; ibv_rc_pingpong -g 3 192.0.2.2'
  simnic run --faults loss=1%,delay=5us --pcap wire.pcapng --timeout 600 -- ./test.sh
  simnic run --ports 1 --link unix:/tmp/wire --address 192.0.2.2 -- nvme discover -t rdma -a 192.0.2.1 -s 4420")]
    Run(Box<run::Options>),
    /// Serves simulated functions on sockets, for QEMU's vfio-user-pci; two are linked with each other.
    ///
    /// Runs until it is killed.
    #[command(after_help = "Examples:
  simnic serve --socket /tmp/a.sock --socket /tmp/b.sock
  simnic serve --socket /tmp/a.sock --socket /tmp/b.sock --profile connectx-6-dx,roce --steer /tmp/steer.sock
  simnic serve --socket /tmp/a.sock --link unix:/tmp/wire --record failure.rec")]
    Serve(Box<serve::Options>),
    /// Makes functions send to each other over switches, in virtual time, and shows queues and rates.
    #[cfg(feature = "fabric")]
    #[command(after_help = "Examples:
  simnic fabric --topology incast:4
  simnic fabric --topology incast:4 --switch rate=10G,ecn,pfc --svg incast.svg")]
    Fabric(Box<fabric::Options>),
    /// Not available in this build: the senders need a driver, which is not compiled in.
    #[cfg(not(feature = "fabric"))]
    #[command(hide = true, disable_help_flag = true)]
    Fabric {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _rest: Vec<String>,
    },
    /// Steers functions served with --steer: faults of the link, events of functions, time, counters.
    #[command(after_help = "Examples:
  simnic ctl /tmp/steer.sock link loss=1%,delay=5us
  simnic ctl /tmp/steer.sock function 1:link-down
  simnic ctl /tmp/steer.sock counters")]
    Ctl(steer::Options),
    /// Replays a simulation recorded with --record, without a machine, and reports the first difference.
    #[command(after_help = "Examples:
  simnic replay failure.rec
  simnic replay failure.rec --log
  simnic replay failure.rec --until 1000 --pcap failure.pcapng")]
    Replay(replay::Options),
    /// Writes the manual pages of simnic and its commands.
    #[command(after_help = "Examples:
  simnic man | man -l -
  simnic man /usr/share/man/man1")]
    Man(manual::Man),
    /// Prints a script that completes simnic's commands in a shell.
    #[command(after_help = "Examples:
  simnic completions bash > /usr/share/bash-completion/completions/simnic")]
    Completions(manual::Completions),
}

fn main() -> ExitCode {
    let failed = |status: u8, error: &dyn std::fmt::Display| {
        eprintln!("simnic: {error}");
        ExitCode::from(status)
    };
    let done = match Arguments::parse().command {
        Command::Run(options) => {
            return match run::run(&options) {
                Ok(status) => ExitCode::from(status),
                Err(error) => {
                    run::print_error(&format!("{error:#}"));
                    ExitCode::from(run::NO_STATUS)
                }
            };
        }
        Command::Serve(options) => served(&options),
        #[cfg(feature = "fabric")]
        Command::Fabric(options) => fabric::print(&options)
            .map_err(Into::into)
            .and_then(|table| print(table.as_bytes())),
        #[cfg(not(feature = "fabric"))]
        Command::Fabric { .. } => Err(
            "fabric: this simnic is built without it; cargo install simnic --features fabric"
                .into(),
        ),
        Command::Ctl(options) => {
            steer::run(&options).and_then(|answer| print(format!("{answer}\n").as_bytes()))
        }
        Command::Replay(options) => replay::run(&options, BufWriter::new(stdout().lock())),
        Command::Man(options) => man(&options),
        Command::Completions(options) => {
            print(&manual::completions(Arguments::command(), &options))
        }
    };
    match done {
        Err(error) if !is_unread(&*error) => failed(1, &error),
        _ => ExitCode::SUCCESS,
    }
}

fn man(options: &manual::Man) -> Result<(), Box<dyn Error>> {
    match &options.folder {
        None => print(&manual::page(Arguments::command())?)?,
        Some(folder) => {
            let pages = manual::pages(Arguments::command(), folder);
            for page in pages.map_err(|error| format!("{}: {error}", folder.display()))? {
                println!("{}", folder.join(page).display());
            }
        }
    }
    Ok(())
}

fn print(text: &[u8]) -> Result<(), Box<dyn Error>> {
    Ok(stdout().lock().write_all(text)?)
}

/// Returns whether an error only means that the reader of the output has stopped reading.
fn is_unread(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn served(options: &serve::Options) -> Result<(), Box<dyn Error>> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_writer(stderr)
        .with_env_filter(filter)
        .init();
    serve::run(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command has examples at the end of its help, and the parser accepts them. Words after a pipe or a
    /// redirection belong to the shell and are not parsed.
    #[test]
    fn each_command_has_examples_that_its_command_line_takes() {
        let mut program = Arguments::command();
        program.build();
        let mut left = vec![program];
        let mut typed = 0;
        while let Some(command) = left.pop() {
            let is_shown = |one: &&clap::Command| !one.is_hide_set() && one.get_name() != "help";
            left.extend(command.get_subcommands().filter(is_shown).cloned());
            let name = command.get_name();
            let after = command.get_after_help().map(ToString::to_string);
            let after = after.unwrap_or_default();
            let examples = after.split_once("Examples:\n");
            let (_, examples) = examples.unwrap_or_else(|| panic!("{name} has no examples"));
            for line in examples.lines() {
                let words = line.split_whitespace();
                let words: Vec<&str> = words
                    .take_while(|word| !["|", ">"].contains(word))
                    .collect();
                assert!(words[0] == "simnic" && words.contains(&name), "{line}");
                if let Err(error) = Arguments::try_parse_from(words) {
                    panic!("{line}: {error}");
                }
                typed += 1;
            }
        }
        assert!(typed > 10, "{typed}");
    }
}
