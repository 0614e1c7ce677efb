//! Messages to the service manager (sd_notify(3)): lines in a datagram to the socket that `NOTIFY_SOCKET` names.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The service manager's socket.
#[derive(Debug)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Notify {
    /// Returns the socket that `NOTIFY_SOCKET` names. If the variable is not set, messages are discarded.
    #[must_use]
    pub fn of_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let bytes = path.as_bytes();
            let at = match bytes.strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&path),
            };
            let made = at.and_then(|at| Ok((UnixDatagram::unbound()?, at)));
            made.inspect_err(|error| tracing::warn!(?path, %error, "NOTIFY_SOCKET"))
                .ok()
        });
        Self { socket }
    }

    fn send(&self, state: &str) {
        if let Some((socket, at)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), at)
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
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000);
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
