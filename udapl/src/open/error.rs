//! Why an adapter could not be opened.

use std::path::PathBuf;

use dat_core::DatError;
use driver::{FunctionError, HandedInError};
use hw_mlx::MlxError;
use thiserror::Error;

/// Why an adapter could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No backend understands the name.
    #[error(
        "no adapter is called {name:?}: {}names are sim:NAME, sim:CARD/pf, sim:CARD/vf0 to sim:CARD/vf7, vfio-user:SOCKET and a PCI address like 0000:3b:00.2 (DAT_PROVIDER_NOT_FOUND)",
        of_the_kernel(name)
    )]
    NotFound {
        /// The name.
        name: String,
    },
    /// The name says something about the adapter that is not understood.
    #[error("{name}: {why} (DAT_PROVIDER_NOT_FOUND)")]
    BadOption {
        /// The whole name.
        name: String,
        /// The option.
        option: String,
        /// What is wrong with it, and what there would be.
        why: String,
    },
    /// A card's name was used for a function by itself, or the other way round.
    #[error(
        "{name}: sim:{card} was opened as {there} in this process; use one of its functions, or another name (DAT_PROVIDER_NOT_FOUND)"
    )]
    OtherKind {
        /// The adapter.
        name: String,
        /// The name before the function's.
        card: String,
        /// What it is.
        there: &'static str,
    },
    /// Somebody in this process has it open; a function has one driver.
    #[error(
        "{name} is open already, and a function has one driver at a time: `Adapter::instance` opens one more instance of it"
    )]
    InUse {
        /// The adapter.
        name: String,
    },
    /// It cannot be looked at where that was asked for.
    #[cfg(feature = "control")]
    #[error("{name}: {error}")]
    Control {
        /// The adapter.
        name: String,
        /// Why not.
        error: ::control::ServeError,
    },
    /// It was to be looked at from outside, and this library was built without that.
    #[error("{name},control={}: this library was built without feature `control` (DAT_PROVIDER_NOT_FOUND)", path.display())]
    NoControl {
        /// The adapter.
        name: String,
        /// Where.
        path: PathBuf,
    },
    /// What is recorded cannot be kept where that was asked for.
    #[error("{name}: recorder folder {}: {error}", path.display())]
    Recorder {
        /// The adapter.
        name: String,
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// What passes on its wire cannot be written where that was asked for.
    #[cfg(feature = "sim")]
    #[error("{name}: pcap={}: {error}", path.display())]
    Capture {
        /// The adapter.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Its last instance has been closed.
    #[error("{name} is closed: its last instance is gone")]
    Closed {
        /// The adapter.
        name: String,
    },
    /// The function could not be reached.
    #[error("{error}")]
    Function {
        /// The adapter.
        name: String,
        /// Why.
        error: FunctionError,
    },
    /// A descriptor that was to be handed in is not there.
    #[error("{name}: {error}")]
    HandedIn {
        /// The adapter.
        name: String,
        /// Which descriptor, and which there are.
        error: HandedInError,
    },
    /// The function could not be reached by the descriptors that were handed in.
    #[error("{name}, by {descriptors}: {error}")]
    ByDescriptors {
        /// The adapter.
        name: String,
        /// Their names.
        descriptors: String,
        /// Why.
        error: Box<FunctionError>,
    },
    /// The adapter is simulated, and this library was built without the simulator.
    #[error(
        "{name}: this library was built without feature `sim`, the simulator (DAT_PROVIDER_NOT_FOUND)"
    )]
    NoSimulator {
        /// The adapter.
        name: String,
    },
    /// There is no such kind of device.
    #[cfg(feature = "sim")]
    #[error("{name}: profile {}", once(profile, error))]
    Profile {
        /// The adapter.
        name: String,
        /// The profile.
        profile: String,
        /// Why.
        error: Box<hw_sim_host::profile::BadProfile>,
    },
    /// The wire of a simulated function could not be laid.
    #[error("{name}: link {}", once(&path.display().to_string(), error))]
    Link {
        /// The adapter.
        name: String,
        /// The path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The system starts no thread.
    #[error("{name}: a thread to look after it: {error}")]
    Thread {
        /// The adapter.
        name: String,
        /// Why.
        error: std::io::Error,
    },
    /// The device could not be brought up.
    #[error("{name}: bring-up: {error}")]
    BringUp {
        /// The adapter.
        name: String,
        /// Why.
        error: MlxError,
    },
    /// DAT refused.
    #[error(transparent)]
    Dat(#[from] DatError),
}

/// What is said of a name under which the kernel has a network device or an RDMA device.
fn of_the_kernel(name: &str) -> &'static str {
    /// How the kernel and systemd call them; a number follows.
    const BEGINNINGS: [&str; 10] = [
        "mlx5_", "mlx4_", "eth", "eno", "ens", "enp", "ib", "ibp", "rocep", "rdmap",
    ];
    let is_numbered = |beginning: &&str| {
        let rest = name.strip_prefix(beginning);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    if BEGINNINGS.iter().any(is_numbered) {
        "that is a name of the kernel's, and `datctl devices` lists the PCI address of each card; "
    } else {
        ""
    }
}

/// What is said of something, which it may begin with already.
fn once(of: &str, said: impl std::fmt::Display) -> String {
    let said = said.to_string();
    if said.starts_with(of) {
        said
    } else {
        format!("{of}: {said}")
    }
}
