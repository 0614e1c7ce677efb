//! Messages to the service manager (sd_notify(3)).

use std::env;
use std::time::Duration;

use udapl::handover::ServiceManager;
use udapl::reactor::{Clock, RealClock};

/// Time that the service manager has to take a message. It has the watchdog's messages in its queue, too.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, if there is one. Otherwise messages are discarded.
#[derive(Debug)]
pub struct Notify {
    manager: Option<ServiceManager>,
}

impl Notify {
    /// Returns the service manager that `NOTIFY_SOCKET` names.
    #[must_use]
    pub fn of_environment() -> Self {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        });
        Self { manager }
    }

    /// Returns the service manager; `None` if there is none.
    #[must_use]
    pub const fn manager(&self) -> Option<&ServiceManager> {
        self.manager.as_ref()
    }

    fn send(&self, state: &str) {
        let until = RealClock::new().now() + PATIENCE;
        if let Some(manager) = &self.manager
            && let Err(error) = manager.notify(state, until)
        {
            tracing::warn!(%error, state, "the service manager is not told");
        }
    }

    /// Reports that the daemon serves. `status` is its state in one line.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports the state of the daemon in one line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Reports that the daemon reads its configuration again. [`Notify::ready`] must follow.
    pub fn reloading(&self) {
        let now = RealClock::new().now().0 / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
    }

    /// Reports that the daemon is ending.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ending connections");
    }

    /// Reports that the daemon is alive.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }
}

/// Returns half the interval at which the service manager expects [`Notify::watchdog`], so that one message may be
/// late; `None` if it expects none.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let every = number("WATCHDOG_USEC").filter(|every| is_ours && *every > 0)?;
    Some(Duration::from_micros(every / 2))
}
