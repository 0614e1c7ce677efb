//! What the daemon `nvmeofd` is made of.
//!
//! ```text
//!   file        text of a configuration file  -->  Settings, or mistakes with their lines
//!   Settings    what is to be there: ports, subsystems, namespaces, hosts
//!   Daemon      what is there: a target and its workers, and the settings that it was made by
//!   reload      Settings that are to be there instead  -->  the steps from here to there
//!   control     the control socket: methods that look, and methods that take one such step
//!   metrics     counters as OpenMetrics text
//!   notify      what the service manager is told
//! ```
//!
//! Every change is one step of [`Daemon`], whoever wants it: the start, the control socket, or a file that was read
//! again. A step that is refused changes nothing; one that is done changes the settings too, so that what is written
//! to a file is what is there.

mod control;
pub mod file;
mod metrics;
mod mistake;
pub mod notify;
mod port;
mod reload;
mod settings;
mod state;
mod status;
mod write;

pub use self::control::{Controlled, SocketError, serve};
pub use metrics::text as metrics;
pub use mistake::{Mistake, Mistakes};
pub use port::PortError;
pub use reload::Reloaded;
pub use settings::{
    ControlSettings, ControlSocket, HostSettings, NamespaceSettings, PortSettings, Settings,
    SubsystemSettings,
};
pub use state::{Daemon, DaemonError, warnings};
pub use status::{
    ControllerStatus, NamespaceStatus, PortStatus, Status, SubsystemStatus, WorkerStatus,
};
pub use write::{save, text};
