//! Reasons why an adapter could not be opened.

use std::path::PathBuf;

use dat_core::DatError;
use driver::{FunctionError, HandedInError};
use hw_mlx::MlxError;
use thiserror::Error;

/// Reasons why an adapter could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No kind of device has a name of this form.
    #[error(
        "no adapter is called {name:?}: {}names are sim:NAME, sim:CARD/pf, sim:CARD/vf0 to sim:CARD/vf7, vfio-user:SOCKET and a PCI address like 0000:3b:00.2 (DAT_PROVIDER_NOT_FOUND)",
        kernel_name_hint(name)
    )]
    NotFound {
        /// The name.
        name: String,
    },
    /// An option of the name is unknown or malformed.
    #[error("{name}: {why} (DAT_PROVIDER_NOT_FOUND)")]
    BadOption {
        /// The whole name.
        name: String,
        /// The option.
        option: String,
        /// The mistake, and the valid options or values.
        why: String,
    },
    /// The name of a card was used for a single function, or the other way round.
    #[error(
        "{name}: sim:{card} was opened as {there} in this process; use one of its functions, or another name (DAT_PROVIDER_NOT_FOUND)"
    )]
    OtherKind {
        /// The adapter.
        name: String,
        /// The card's name: the part of the name before the `/`.
        card: String,
        /// The kind of the open device.
        there: &'static str,
    },
    /// This process has the function open already; a function has one driver.
    #[error(
        "{name} is open already, and a function has one driver at a time: `Adapter::instance` opens one more instance of it"
    )]
    InUse {
        /// The adapter.
        name: String,
    },
    /// The control socket could not be served.
    #[cfg(feature = "control")]
    #[error("{name}: {error}")]
    Control {
        /// The adapter.
        name: String,
        /// Reason.
        error: ::control::ServeError,
    },
    /// The options name a control socket, but this library was built without feature `control`.
    #[error("{name},control={}: this library was built without feature `control` (DAT_PROVIDER_NOT_FOUND)", path.display())]
    NoControl {
        /// The adapter.
        name: String,
        /// Path of the socket.
        path: PathBuf,
    },
    /// The recorder's folder cannot be written.
    #[error("{name}: recorder folder {}: {error}", path.display())]
    Recorder {
        /// The adapter.
        name: String,
        /// The folder.
        path: PathBuf,
        /// Reason.
        error: std::io::Error,
    },
    /// The wire cannot be captured in the file given.
    #[cfg(feature = "sim")]
    #[error("{name}: pcap={}: {error}", path.display())]
    Capture {
        /// The adapter.
        name: String,
        /// The file.
        path: PathBuf,
        /// Reason.
        error: std::io::Error,
    },
    /// The adapter is closed: its last instance was closed.
    #[error("{name} is closed: its last instance is gone")]
    Closed {
        /// The adapter.
        name: String,
    },
    /// The function could not be opened.
    #[error("{error}")]
    Function {
        /// The adapter.
        name: String,
        /// Reason.
        error: FunctionError,
    },
    /// A descriptor that the process should have inherited is missing.
    #[error("{name}: {error}")]
    HandedIn {
        /// The adapter.
        name: String,
        /// The missing descriptor, and the inherited ones.
        error: HandedInError,
    },
    /// The function could not be opened by the inherited descriptors.
    #[error("{name}, by {descriptors}: {error}")]
    ByDescriptors {
        /// The adapter.
        name: String,
        /// Names of the inherited descriptors.
        descriptors: String,
        /// Reason.
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
    /// The profile of a simulated function is unknown or malformed.
    #[cfg(feature = "sim")]
    #[error("{name}: profile {}", once(profile, error))]
    Profile {
        /// The adapter.
        name: String,
        /// The profile.
        profile: String,
        /// Reason.
        error: Box<hw_sim_host::profile::BadProfile>,
    },
    /// The wire of a simulated function could not be set up.
    #[error("{name}: link {}", once(&path.display().to_string(), error))]
    Link {
        /// The adapter.
        name: String,
        /// The path.
        path: PathBuf,
        /// Reason.
        error: std::io::Error,
    },
    /// The system could not start a thread.
    #[error("{name}: cannot start its background thread: {error}")]
    Thread {
        /// The adapter.
        name: String,
        /// Reason.
        error: std::io::Error,
    },
    /// The device could not be brought up.
    #[error("{name}: bring-up: {error}")]
    BringUp {
        /// The adapter.
        name: String,
        /// Reason.
        error: MlxError,
    },
    /// A DAT call failed.
    #[error(transparent)]
    Dat(#[from] DatError),
}

/// Returns a hint if the name looks like a network device or an RDMA device of the kernel.
fn kernel_name_hint(name: &str) -> &'static str {
    /// Prefixes of device names of the kernel and systemd; a number follows.
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

/// Joins a subject and a message, unless the message begins with the subject already.
fn once(of: &str, said: impl std::fmt::Display) -> String {
    let said = said.to_string();
    if said.starts_with(of) {
        said
    } else {
        format!("{of}: {said}")
    }
}
