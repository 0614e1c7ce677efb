//! The description of a suite: its guest, the processes beside it, and the function that judges its output.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::beside::Beside;
use super::capture;
use super::functions::Slots;
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;

/// Default time limit of a suite.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// The SSD of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ssd {
    /// No SSD.
    None,
    /// An SSD of QEMU's own, at PCI address 0000:00:10.0.
    Qemu,
    /// The SSD of `nvmeofd ssd`, which is the process beside the guest and serves it on this socket, a path in the
    /// folder of the run.
    Served(&'static str),
    /// No SSD. The process beside the guest drives one, which another process serves ([`super::beside::backing`]).
    Backing,
}

/// A suite: the contents of its guest, and the function that judges its script's output.
pub struct Suite {
    pub image: Image,
    pub slots: Slots,
    /// The SSD of the guest.
    pub ssd: Ssd,
    /// Amount of memory of the guest.
    pub memory: &'static str,
    /// Time limit for the whole suite.
    pub patience: Duration,
    /// Arguments of `datctl sim serve` in addition to the sockets.
    pub serve: &'static [&'static str],
    /// Command of the host process at the other end of the functions' wire, which runs while the guest runs.
    pub beside: Option<fn(&Machine) -> Result<Command>>,
    /// Returns the state of the process `beside` after the guest was ended in the middle of a step
    /// ([`Line::Lost`](super::serial::Line::Lost)). The lines are added to the output of this step.
    pub lost: Option<fn(&Beside<'_>) -> Vec<String>>,
    /// Builds our programs for the guest.
    pub programs: fn(&Machine) -> Result<Vec<Program>>,
    /// Files of the run that the suite judges, as additional steps after those of its script.
    pub shown: &'static [Shown],
    /// Returns the figures in the output of a step, or an error. The last step, `functions`, is not a program: its
    /// output is the log of the server of the functions.
    pub judge: fn(&Step) -> Result<String>,
}

/// A file that a run produces, and the part of it that is judged.
pub struct Shown {
    /// Name of the step for the file.
    pub step: &'static str,
    /// Path of the file in the folder of the run.
    pub file: &'static str,
    /// Returns the lines of the file that are judged.
    pub lines: fn(&Path) -> Result<Vec<String>>,
}

impl Shown {
    /// Returns the step that judges the RNR NAKs in the capture of the functions' server.
    pub const fn wire(file: &'static str) -> Self {
        Self {
            step: "wire",
            file,
            lines: capture::refusals,
        }
    }
}
