//! The steps of a bring-up by name, and the time of each.
//!
//! Times are those of the function's clock: real on hardware, virtual in a simulation.

use std::time::Duration;

use driver::{Clock, Instant};

/// A step of the bring-up, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Step {
    /// Function level reset.
    Reset,
    /// Enabling the MSI-X vectors.
    Interrupts,
    /// Switching memory space on, and mapping BAR 0.
    MapBar,
    /// Waiting until `initializing` clears for the first time: the firmware then accepts register writes.
    PreInitialized,
    /// Reading command interface revision and queue geometry.
    CommandInterface,
    /// Allocating queue memory, and writing its address.
    CommandQueue,
    /// Switching bus mastering on.
    BusMaster,
    /// Waiting until `initializing` clears again.
    FirmwareReady,
    /// ENABLE_HCA.
    EnableHca,
    /// QUERY_ISSI, SET_ISSI.
    Issi,
    /// Giving the boot pages.
    BootPages,
    /// Writing the register HOST_ENDIANNESS.
    HostEndianness,
    /// Reading the capability pages.
    QueryCaps,
    /// Writing the capability pages.
    SetCaps,
    /// Giving the init pages.
    InitPages,
    /// INIT_HCA.
    InitHca,
    /// Giving the regular pages, which the firmware uses in operation.
    RegularPages,
    /// SET_DRIVER_VERSION.
    DriverVersion,
    /// Reading the capability pages again.
    RequeryCaps,
    /// Allocating the doorbell page.
    AllocUar,
    /// Creating the event queue for commands and pages. Command completions come by event from this step on.
    ControlEq,
    /// Creating the event queue for errors and the port.
    AsyncEq,
    /// Creating the event queue for completion queues.
    CompletionEq,
    /// Setting up MAC and MTU, and switching RoCE on.
    Vport,
    /// Writing the address table.
    Gids,
}

impl Step {
    /// All steps in their order.
    pub const ALL: [Self; 25] = [
        Self::Reset,
        Self::Interrupts,
        Self::MapBar,
        Self::PreInitialized,
        Self::CommandInterface,
        Self::CommandQueue,
        Self::BusMaster,
        Self::FirmwareReady,
        Self::EnableHca,
        Self::Issi,
        Self::BootPages,
        Self::HostEndianness,
        Self::QueryCaps,
        Self::SetCaps,
        Self::InitPages,
        Self::InitHca,
        Self::RegularPages,
        Self::DriverVersion,
        Self::RequeryCaps,
        Self::AllocUar,
        Self::ControlEq,
        Self::AsyncEq,
        Self::CompletionEq,
        Self::Vport,
        Self::Gids,
    ];
}

/// A feature that the function lacks, because its firmware refused a command of the bring-up or did not keep a
/// setting.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loss {
    /// Reason: the refusal, or how the device differs from its settings.
    pub why: String,
    /// The feature that is lost.
    pub lost: String,
}

/// Report of a bring-up: its results and times.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BringupReport {
    /// Duration of every step, on the function's clock.
    pub steps: Vec<(Step, Duration)>,
    /// Total time on the function's clock, which in a simulation is virtual.
    pub total: Duration,
    /// Number of pages given for the boot.
    pub boot_pages: u64,
    /// Number of pages given for the initialization.
    pub init_pages: u64,
    /// Number of pages given for operation.
    pub regular_pages: u64,
    /// Number of commands sent.
    pub commands: u64,
    /// Features that the function lacks (the table in `docs/generations.md`).
    pub losses: Vec<Loss>,
}

/// Measures the time of each step.
pub(super) struct Stopwatch<'a> {
    clock: &'a dyn Clock,
    last: Instant,
    pub(super) report: BringupReport,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn new(clock: &'a dyn Clock) -> Self {
        Self {
            clock,
            last: clock.now(),
            report: BringupReport::default(),
        }
    }

    /// Records the step that has just ended, with its time.
    pub(super) fn done(&mut self, step: Step) {
        let now = self.clock.now();
        let took = now - self.last;
        tracing::debug!(?step, ?took, "bring-up");
        self.report.steps.push((step, took));
        self.report.total += took;
        self.last = now;
    }
}
