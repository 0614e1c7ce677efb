//! The daemon's main thread: it starts the ports, and sleeps until a signal arrives.
//!
//! On SIGTERM and SIGINT the daemon drains: it refuses new connections, answers pending commands, ends the connections,
//! and exits. A second signal ends the process at once. On SIGHUP it reads the configuration file again. On SIGUSR2 it
//! hands its adapter and its hosts over to its next process ([`super::restart`]).

use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvmeof::daemon::notify::{Notify, watchdog};
use nvmeof::daemon::{
    Controlled, Daemon, Mistakes, Reloaded, Settings, SsdEvents, counted, file, metrics, serve,
};
use udapl::handover::take_stored;
use udapl::reactor::names_handed_in;

use crate::log::{Log, USUAL};
use crate::restart;

/// Interval at which the main thread checks that a worker still serves.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The way in which the daemon ends.
enum End {
    /// A signal has ended it.
    Stopped,
    /// The next process goes on with its hosts.
    HandedOver,
    /// It was asked to hand over, and could not: the next process starts afresh.
    Restarts,
    /// No worker is left.
    NoWorker,
}

/// Serves with the settings that `wanted` reads, until a signal arrives or no worker is left. Calls `ready` when hosts
/// can connect.
pub(crate) fn run(
    wanted: impl FnOnce() -> Result<Settings, Mistakes>,
    path: Option<&Path>,
    ready: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<ExitCode, Box<dyn Error>> {
    // The descriptors that were handed in are identified by number, so this comes before any file is opened.
    let stored = take_stored()?;
    let handed_in: Vec<&str> = names_handed_in().collect();
    let wanted = wanted();
    let level = wanted.as_ref().ok().and_then(|wanted| wanted.log.clone());
    let log = Log::begin(level.as_deref())?;
    // Threads started later inherit the signal mask, so that only this thread receives the signals.
    let signals = Signals::take()?;
    if !handed_in.is_empty() {
        tracing::info!(?handed_in, "descriptors");
    }
    let notify = Notify::of_environment();
    let adopted = match stored {
        Some(stored) => restart::adopt(stored, notify.manager())?.map(|daemon| (daemon, true)),
        None => Some((
            Daemon::start(wanted.as_ref().map_err(Clone::clone)?)?,
            false,
        )),
    };
    let (daemon, is_adopted) = match adopted {
        Some((mut daemon, true)) => {
            let has_ports = wanted.as_ref().is_ok_and(|wanted| !wanted.ports.is_empty());
            apply_file(&mut daemon, wanted, &log);
            if has_ports && daemon.settings().ports.is_empty() {
                tracing::error!(
                    "no port could be opened with its new settings: the daemon starts again, without the old state"
                );
                return Ok(restart::AGAIN.into());
            }
            (daemon, true)
        }
        Some(started) => started,
        None => (restart::start(&wanted?)?, false),
    };
    let settings = daemon.settings().clone();
    let of = Controlled::new(daemon, path.map(Path::to_owned));
    let socket = match serve_others(&of, &settings) {
        Ok(socket) => socket,
        // Hosts are connected, and need neither.
        Err(error) if is_adopted => {
            tracing::error!(%error, "there is no control socket, or there are no metrics");
            None
        }
        Err(error) => {
            end(of);
            return Err(error);
        }
    };
    ready()?;
    notify.ready(&summary(&of));
    let ended = sleep(&of, path, &signals, &notify, &log)?;
    if !matches!(ended, End::HandedOver) {
        notify.stopping();
        signals.give_back()?;
    }
    drop(socket);
    end(of);
    Ok(match ended {
        End::Stopped => ExitCode::SUCCESS,
        End::HandedOver | End::Restarts => restart::AGAIN.into(),
        End::NoWorker => ExitCode::FAILURE,
    })
}

/// Applies the configuration file to a daemon that an earlier process has handed over.
fn apply_file(daemon: &mut Daemon, wanted: Result<Settings, Mistakes>, log: &Log) {
    let told = match wanted {
        Ok(wanted) => {
            daemon.set_of_process(&wanted);
            daemon.reload(&wanted)
        }
        Err(mistakes) => {
            tracing::error!("the file has mistakes, and nothing changes:\n{mistakes}");
            if let Err(why) = log.set(daemon.settings().log.as_deref()) {
                tracing::debug!(why, "the filter of the log");
            }
            return;
        }
    };
    report(&told);
}

/// Starts the control socket and the metrics.
fn serve_others(
    of: &Controlled,
    settings: &Settings,
) -> Result<Option<control::Service>, Box<dyn Error>> {
    let scraped = settings
        .metrics
        .map(|at| TcpListener::bind(at).map_err(|error| format!("metrics at {at}: {error}")));
    let scraped = scraped.transpose()?;
    let socket = settings.control.as_ref().map(|control| serve(of, control));
    let socket = socket.transpose()?;
    // An SSD that answers slowly delays this thread and nothing else.
    let mut events = SsdEvents::new(of.clone());
    std::thread::Builder::new()
        .name("ssds".to_owned())
        .spawn(move || {
            loop {
                std::thread::park_timeout(CHECK_INTERVAL);
                events.follow();
            }
        })?;
    if let Some(listener) = scraped {
        let of = of.clone();
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                let text = || Ok::<_, std::convert::Infallible>(metrics(&of.lock().status()));
                control::metrics::serve(&listener, text)
            })?;
    }
    Ok(socket)
}

/// Sleeps until the daemon must end.
fn sleep(
    of: &Controlled,
    path: Option<&Path>,
    signals: &Signals,
    notify: &Notify,
    log: &Log,
) -> Result<End, Box<dyn Error>> {
    let every = watchdog();
    let mut last_watchdog = Instant::now();
    let mut told = summary(of);
    loop {
        let patience = every.map_or(CHECK_INTERVAL, |every| every.min(CHECK_INTERVAL));
        match signals.wait(patience)? {
            Some(Signal::SIGHUP) => {
                notify.reloading();
                reload(of, path, log);
                notify.ready(&summary(of));
            }
            Some(Signal::SIGUSR2) => {
                notify.watchdog();
                let mut daemon = of.lock();
                let is_requested = daemon.take_handover_request();
                match restart::hand_over(&mut daemon, notify.manager()) {
                    Ok(()) => return Ok(End::HandedOver),
                    Err(error) if is_requested => {
                        tracing::error!(%error, "the hosts are not handed over, and stay connected to this process");
                    }
                    Err(error) => {
                        tracing::error!(%error, "the hosts are not handed over, and their connections end");
                        return Ok(End::Restarts);
                    }
                }
            }
            Some(signal) => {
                tracing::info!(%signal, "no new connections, and the present ones end; a second signal ends at once");
                return Ok(End::Stopped);
            }
            None => {}
        }
        let mut daemon = of.lock();
        daemon.give_up_ports();
        let (serves, has_ports) = (daemon.serves(), !daemon.settings().ports.is_empty());
        drop(daemon);
        if has_ports && !serves {
            tracing::error!("no worker is left: all adapters are gone");
            return Ok(End::NoWorker);
        }
        if every.is_some_and(|every| last_watchdog.elapsed() >= every) {
            notify.watchdog();
            last_watchdog = Instant::now();
        }
        let now = summary(of);
        if now != told {
            notify.status(&now);
            told = now;
        }
    }
}

/// Returns the state of the daemon as one line of text.
fn summary(of: &Controlled) -> String {
    let status = of.lock().status();
    let workers = status.ports.iter().flat_map(|port| &port.workers);
    let (serving, all) = workers.fold((0, 0), |(serving, all), worker| {
        (serving + u32::from(worker.serves), all + 1)
    });
    format!(
        "{}, {}, {serving} of {}, {}",
        counted(status.subsystems.len(), "subsystem"),
        counted(status.ports.len(), "port"),
        counted(all, "worker"),
        counted(status.controllers.len(), "controller")
    )
}

fn reload(of: &Controlled, path: Option<&Path>, log: &Log) {
    let Some(path) = path else {
        tracing::warn!("SIGHUP, and there is no file: it was started without one");
        return;
    };
    let wanted = match file::read(path) {
        Ok(wanted) => wanted,
        Err(mistakes) => {
            tracing::error!("the file has mistakes, and nothing changes:\n{mistakes}");
            return;
        }
    };
    let before = of.lock().settings().log.clone();
    let mut told = of.lock().reload(&wanted);
    if before != wanted.log {
        let level = wanted.log.as_deref();
        let what = format!("log = {:?}", level.unwrap_or(USUAL));
        match log.set(level) {
            Ok(()) => told.done.push(what),
            Err(why) => told.needs_restart.push(format!("{what}: {why}")),
        }
    }
    report(&told);
    tracing::info!(
        path = %path.display(), steps = told.done.len(), refused = told.refused.len(),
        need_a_restart = told.needs_restart.len(), "the configuration was read again"
    );
}

/// Reports the steps that were not made.
fn report(told: &Reloaded) {
    for (what, error) in &told.refused {
        tracing::error!(%error, "not done: {what}");
    }
    for what in &told.needs_restart {
        tracing::warn!("takes a restart, and is as it was: {what}");
    }
}

/// Ends all ports. Clients that still hold the daemon see no ports.
fn end(of: Controlled) {
    of.lock().end();
}

/// The signals that the daemon handles.
pub(crate) struct Signals {
    set: SigSet,
    descriptor: SignalFd,
}

impl Signals {
    pub(crate) fn take() -> Result<Self, Errno> {
        let all = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGUSR2,
        ];
        let set: SigSet = all.into_iter().collect();
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&set, flags)?;
        Ok(Self { set, descriptor })
    }

    /// Waits for the next signal. Returns `None` if none arrives within `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> Result<Option<Signal>, Errno> {
        let mut fds = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, patience) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let Some(came) = self.descriptor.read_signal()? else {
            return Ok(None);
        };
        let number = i32::try_from(came.ssi_signo).unwrap_or(0);
        Signal::try_from(number).map(Some)
    }

    /// Restores the default action: a signal, even one that is pending, ends the process.
    fn give_back(&self) -> Result<(), Errno> {
        self.set.thread_unblock()
    }
}
