//! The parts of the daemon `nvmeofd`.
//!
//! ```text
//!   file        text of a configuration file  -->  Settings, or mistakes with their lines
//!   Settings    wanted state: ports, subsystems, namespaces, hosts
//!   Daemon      current state: a target and its workers, and the settings that describe them
//!   reload      other Settings  -->  the steps from the current state to the wanted one
//!   control     the control socket: methods that query, and methods that make one such step
//!   metrics     counters as OpenMetrics text
//!   handover    the current state  -->  the next process, whose hosts and connections stay
//!   import      the configuration of another target  -->  text of a configuration file
//!   ssds        events of SSDs that the daemon drives itself
//!   check       checks that the files, adapters and addresses that a configuration names exist now
//!   log         the filter of the log, and mistakes in the filter
//!   notify      messages to the service manager
//! ```
//!
//! Every change is one step of [`Daemon`]: at the start, by the control socket, or when the file is read again. A step
//! that is refused changes nothing. A step that succeeds changes the settings as well, so that the saved settings
//! always describe the current state.

mod check;
mod control;
pub mod file;
mod handover;
pub mod import;
mod log;
mod metrics;
mod mistake;
pub mod notify;
mod port;
mod reload;
mod settings;
mod ssds;
mod state;
mod state_words;
mod status;
mod worker_thread;
mod write;

pub use self::check::{Check, Named, counted};
pub use self::control::{Controlled, SocketError, serve};
pub use handover::{AdoptError, HandOverError, check_manager};
pub use log::{log_filter, log_filter_of_environment};
pub use metrics::text as metrics;
pub use mistake::{Mistake, Mistakes};
pub use port::PortError;
pub use reload::Reloaded;
pub use settings::{
    ControlSettings, ControlSocket, HostSettings, NamespaceSettings, PortSettings, Settings,
    SubsystemSettings,
};
pub use ssds::SsdEvents;
pub use state::{Daemon, DaemonError};
pub use status::{
    ControllerStatus, HostLimitStatus, NamespaceStatus, PortStatus, Status, SubsystemStatus,
    WorkerStatus,
};
pub use write::{save, text};
