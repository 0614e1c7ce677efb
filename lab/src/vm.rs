//! Tests in a stock Linux kernel in a virtual machine, with simulated functions in its PCI slots.
//!
//! ```text
//!   cargo xtask vm --- datctl sim serve --- two sockets --- QEMU, vfio-user-pci --- Linux --- vfio-pci --- programs
//! ```
//!
//! Programs in the guest use the functions as on a real machine: through `/dev/vfio`, behind an (emulated Intel) IOMMU,
//! with MSI-X interrupts. QEMU and the kernel are Debian's packages, unpacked into a folder under the target directory
//! ([`machine`]). A guest is an initramfs ([`image`]) whose parts a suite lists as data. The guest sends its results as
//! lines on a separate serial port ([`guest`]). The results are judged here, test by test ([`report`]).
//!
//! Root is not needed: programs run in the folder where they were unpacked.

mod beside;
mod blktests;
mod build;
mod c;
mod capture;
mod card;
mod compare;
mod foreign;
mod functions;
mod guest;
mod image;
mod interop;
mod libtest;
mod log;
mod loss;
mod machine;
mod nvme;
mod perftest;
mod report;
mod serial;
mod service;
mod ssd;
mod stock;
mod suite;
mod vfio;

use ::guest::Kernel;
use anyhow::Result;
use clap::{Args, Subcommand};

use self::suite::Suite;
use crate::left_out;

pub use self::stock::coverage::Coverage;

/// What to do with the guest.
#[derive(Subcommand)]
pub enum Task {
    /// Boot, run the suites, and print which steps ran and their figures.
    Test {
        /// Run the suites of the kernel's own mlx5 drivers and rdma-core's programs, instead of our driver on vfio-pci.
        #[arg(long)]
        stock: bool,
    },
    /// Run only the stock suite with Ethernet ports: network devices, RoCE, NVMe over RDMA.
    Roce,
    /// Run only the stock suite with a subnet that opensm manages: infiniband-diags, IPoIB, `rdma_cm`.
    Subnet,
    /// Run only the suites of RDMA test programs, and kernel users of RDMA, that others wrote.
    Foreign {
        /// Run only this suite.
        suite: Option<foreign::Which>,
    },
    /// Run only the suites with our driver on one side and a stock RDMA stack on the other.
    Interop {
        /// Run only this suite.
        suite: Option<interop::Which>,
    },
    /// Run only the suite of one card: the kernel drives its physical function, our driver its two virtual functions.
    Card,
    /// Boot, and connect the guest's console to this terminal. Ctrl-a x ends the machine.
    Shell {
        /// Use the guest with the kernel's own mlx5 drivers.
        #[arg(long)]
        stock: bool,
        /// Use the guest with Ethernet ports.
        #[arg(long)]
        roce: bool,
    },
}

/// Options of every task.
#[derive(Args)]
pub struct Options {
    /// The guest's kernel, given by the Debian release that contains it.
    #[arg(long, value_enum, default_value_t, global = true)]
    kernel: Kernel,
    /// Run only these steps of the suites: names separated by commas. A * at the end of a name stands for any
    /// characters.
    #[arg(long, value_delimiter = ',', global = true)]
    only: Vec<String>,
    /// Number of times to run the steps that depend on a seed. Each repetition uses the next seed.
    #[arg(long, default_value_t = 1, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u32,
}

impl Options {
    /// Returns whether a step is selected.
    fn wants(&self, step: &str) -> bool {
        let named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => step.starts_with(beginning),
            None => step == pattern,
        };
        self.only.is_empty() || self.only.iter().any(named)
    }
}

/// Runs the NVMe over RDMA target with a guest that uses it: its suite, or a console for a person.
pub fn nvme(is_test: bool, options: &Options) -> Result<()> {
    let machine = machine::prepare(options.kernel)?;
    let suite = nvme::suite();
    if is_test {
        guest::test(&machine, &suite, options)?;
        if !options.wants(nvme::LOST[1]) {
            return Ok(());
        }
        // Each further seed needs a new guest, because the step `host-lost` ends its guest.
        for seed in (options.seed..).take(options.seeds as usize).skip(1) {
            let again = Options {
                kernel: options.kernel,
                only: nvme::LOST.map(str::to_owned).to_vec(),
                seeds: 1,
                seed,
            };
            guest::test(&machine, &suite, &again)?;
        }
        Ok(())
    } else {
        guest::shell(&machine, &suite)
    }
}

/// Runs the NVMe over RDMA target as a service of systemd.
pub fn service(options: &Options) -> Result<()> {
    guest::test(
        &machine::prepare(options.kernel)?,
        &service::suite(),
        options,
    )
}

/// Runs a stock kernel's NVMe driver on the simulated SSD.
pub fn ssd(options: &Options) -> Result<()> {
    guest::test(&machine::prepare(options.kernel)?, &ssd::suite(), options)
}

/// Runs blktests against the NVMe over RDMA target.
pub fn blktests(options: &Options) -> Result<()> {
    guest::test(
        &machine::prepare(options.kernel)?,
        &blktests::suite(),
        options,
    )
}

/// Runs the NVMe over RDMA targets, ours and the kernel's, side by side.
pub fn compare(options: &Options) -> Result<()> {
    guest::test(
        &machine::prepare(options.kernel)?,
        &compare::suite(),
        options,
    )
}

/// Runs the same targets over a wire that loses packets, on cards with and without adaptive retransmission.
pub fn loss(options: &Options) -> Result<()> {
    let machine = machine::prepare(options.kernel)?;
    for early in [true, false] {
        guest::test(&machine, &loss::suite(early), options)?;
    }
    Ok(())
}

/// Runs a task.
pub fn run(task: &Task, options: &Options) -> Result<()> {
    let machine = machine::prepare(options.kernel)?;
    let test = |suite: &Suite| guest::test(&machine, suite, options);
    let interop = || interop::all().iter().try_for_each(test);
    match task {
        Task::Test { stock: false } => test(&vfio::suite()),
        Task::Test { stock: true } => {
            test(&stock::infiniband())?;
            test(&stock::subnet())?;
            test(&stock::ethernet())?;
            for suite in foreign::all() {
                test(&suite)?;
            }
            // The page lists the requests of the default kernel. They are complete only if all steps ran.
            if options.only.is_empty() && options.kernel == Kernel::default() {
                stock::write_coverage(&machine)?;
            }
            interop()?;
            test(&card::suite())
        }
        Task::Roce => test(&stock::ethernet()),
        Task::Subnet => test(&stock::subnet()),
        Task::Foreign { suite: None } => foreign::all().iter().try_for_each(test),
        Task::Foreign { suite: Some(suite) } => test(&suite.suite()),
        Task::Interop { suite: None } => interop(),
        Task::Interop { suite: Some(suite) } => test(&suite.suite()),
        Task::Card => test(&card::suite()),
        Task::Shell { stock, roce } => {
            let suite = match (stock, roce) {
                (_, true) => stock::ethernet(),
                (true, false) => stock::infiniband(),
                (false, false) => vfio::suite(),
            };
            guest::shell(&machine, &suite)
        }
    }
}

/// Runs the suite on `vfio-pci`, and the short forms of the suites of the NVMe target and of the SSD, as one of the
/// checks. If QEMU or a kernel is not available, reports that and runs nothing.
pub fn check() -> Result<()> {
    let options = Options {
        kernel: Kernel::default(),
        only: Vec::new(),
        seeds: 1,
        seed: 1,
    };
    match machine::prepare(options.kernel) {
        Ok(machine) => {
            guest::test(&machine, &vfio::suite(), &options)?;
            let short = |steps: &[&str]| Options {
                only: steps.iter().map(|&step| step.to_owned()).collect(),
                ..options
            };
            guest::test(&machine, &ssd::suite(), &short(&ssd::SHORT))?;
            guest::test(&machine, &nvme::suite(), &short(&nvme::SHORT))
        }
        Err(error) => {
            left_out::say("the virtual machine", &format!("{error:#}"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_are_named_run_and_all_if_none_is() {
        let options = |only: &[&str]| Options {
            kernel: Kernel::default(),
            only: only.iter().map(|&name| name.to_owned()).collect(),
            seeds: 1,
            seed: 1,
        };
        assert!(options(&[]).wants("rc"));
        let some = options(&["probe", "nvme-*"]);
        for (step, wanted) in [
            ("probe", true),
            ("probed", false),
            ("nvme-dd", true),
            ("rc", false),
        ] {
            assert_eq!(some.wants(step), wanted, "{step}");
        }
    }
}
