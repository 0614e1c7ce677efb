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

mod port;
mod settings;
mod state;

pub use port::PortError;
pub use settings::{
    ControlSettings, HostSettings, NamespaceSettings, PortSettings, Settings, SubsystemSettings,
};
pub use state::{Daemon, DaemonError};
