//! The steps of a bring-up by name, and the time of each.
//!
//! Times are those of the function's clock: real on hardware, virtual in a simulation.

use std::time::Duration;

use driver::{Clock, Instant};

/// A step of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Function level reset.
    Reset,
    /// MSI-X vectors.
    Interrupts,
    /// Memory space on, BAR 0 mapped.
    MapBar,
    /// `initializing` clear for the first time: the firmware listens.
    PreInitialized,
    /// Command interface revision and queue geometry.
    CommandInterface,
    /// Queue memory, and its address written.
    CommandQueue,
    /// Bus mastering on.
    BusMaster,
    /// `initializing` clear again.
    FirmwareReady,
    /// ENABLE_HCA.
    EnableHca,
    /// QUERY_ISSI, SET_ISSI.
    Issi,
    /// Boot pages given.
    BootPages,
    /// HOST_ENDIANNESS written.
    HostEndianness,
    /// Capability pages read.
    QueryCaps,
    /// Capability pages written.
    SetCaps,
    /// Init pages given.
    InitPages,
    /// INIT_HCA.
    InitHca,
    /// Regular pages given.
    RegularPages,
    /// SET_DRIVER_VERSION.
    DriverVersion,
    /// Capability pages read again.
    RequeryCaps,
    /// Doorbell page.
    AllocUar,
    /// Event queue for commands and pages; commands by event from here on.
    ControlEq,
    /// Event queue for errors and the port.
    AsyncEq,
    /// Event queue for completion queues.
    CompletionEq,
    /// MAC, MTU, RoCE on.
    Vport,
    /// Address table.
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

/// A feature that a function does without, since its firmware refused a command of the bring-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The refusal, or how the device differs from its settings.
    pub why: String,
    /// The feature that is lost.
    pub lost: &'static str,
}

/// Report of a bring-up: its results and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BringupReport {
    /// Every step and its time on the function's clock.
    pub steps: Vec<(Step, Duration)>,
    /// Total time on the function's clock, which in a simulation is virtual.
    pub total: Duration,
    /// Pages given to boot.
    pub boot_pages: u64,
    /// ... to initialize,
    pub init_pages: u64,
    /// ... and to run.
    pub regular_pages: u64,
    /// Commands sent.
    pub commands: u64,
    /// Refused commands that the function does without (the table in `docs/generations.md`).
    pub losses: Vec<Loss>,
}

/// Times the steps.
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

    /// Records the step that just ended.
    pub(super) fn done(&mut self, step: Step) {
        let now = self.clock.now();
        let took = now - self.last;
        tracing::debug!(?step, ?took, "bring-up");
        self.report.steps.push((step, took));
        self.report.total += took;
        self.last = now;
    }
}
