//! `simnic run`: runs a command in a stock kernel that has simulated ports.
//!
//! ```text
//!   simnic ---- serve, a thread of its own: two functions on a link, or more on a switch
//!     |              | vfio-user: two sockets
//!     |            QEMU ---- Linux: mlx5_core, mlx5_ib; the command
//!     |              |
//!     '--- sockets --'       terminal, or input, output, errors; control: signals go in, the exit status comes out
//! ```
//!
//! The guest's files are an image made of Debian packages ([`image`]). The guest reads the image over 9p under an
//! overlay in memory, so changes by the command are lost. The shared folder is the host's, and changes in it remain.
//!
//! A run has these steps: the packages are unpacked ([`machine`]), the functions are served, QEMU starts, the guest
//! reports that the command begins, and the guest reports its exit status. simnic ends QEMU when the reader of simnic's
//! output has read all output of the command. The guest has [`BOOT`] to begin. The command and the reader have no
//! limit unless `--timeout` is given, which ends a run in any case.

mod checked;
mod command;
mod image;
mod kernel;
mod machine;
mod progress;
mod session;
mod terminal;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest::child::{Running, tied};
use guest::program;
use guest::qemu::Accelerator;
use hw_sim_host::wire::WirePath;
use simnic::serve;
use simnic::signals::Stop;
use simnic::simulated::{FaultOptions, ProfileOptions};
use simnic::switch::SwitchOptions;
use tracing_subscriber::EnvFilter;

use self::checked::CheckedOptions;
use self::kernel::Which;
use self::session::{Drained, Event, Session};

/// Maximum number of ports, which is that of the server's switch.
const MOST_PORTS: i64 = serve::MOST_PORTS as i64;
/// Longest `--timeout` in seconds: a year.
const LONGEST: u64 = 365 * 24 * 60 * 60;
/// Exit status if simnic itself fails.
pub const NO_STATUS: u8 = 125;
/// Exit status of a run that `--timeout` has ended.
const TIMED_OUT: u8 = 124;
/// Time limit for the machine to begin the command. An emulated machine takes a minute on an idle host, and several
/// minutes on a busy host.
const BOOT: Duration = Duration::from_secs(1200);
/// Time limit for the server to serve the functions.
const SERVED: Duration = Duration::from_secs(300);
/// Number of lines of a log that are shown with an error.
const TAIL: usize = 25;

/// Options of a run.
#[derive(clap::Args)]
pub struct Options {
    /// Number of ports. Two are on one link, more on a switch; the link of a single one leads to --link.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=MOST_PORTS))]
    ports: u8,
    /// Put the ports on a switch with these settings, a list like rate=25G,buffer=256K,ecn=5K/200K/1%,pfc. Faults
    /// then apply to each cable.
    #[arg(long, value_name = "SETTINGS", conflicts_with = "link")]
    switch: Option<SwitchOptions>,
    /// Other end of the link of a single port: unix:PATH, to another simnic with the same --link.
    #[arg(long, conflicts_with = "steer")]
    link: Option<WirePath>,
    /// Address of a single port.
    #[arg(
        long,
        value_name = "IP",
        default_value = "192.0.2.1",
        requires = "link"
    )]
    address: std::net::Ipv4Addr,
    /// Kernel: bookworm (6.1), trixie (6.12), backports (the newest of trixie-backports), or a linux-image .deb.
    #[arg(long, default_value = "trixie")]
    kernel: Which,
    /// Memory of the machine.
    #[arg(long, default_value = "2G", value_parser = machine::memory)]
    memory: String,
    /// Further Debian package for the machine: a name, or the path of a .deb. May be repeated.
    #[arg(long, value_name = "DEB")]
    package: Vec<String>,
    /// Faults, a list like loss=1%,delay=5us on the link and 0:removal@60s in a function, counted from 0.
    #[arg(long)]
    faults: Vec<FaultOptions>,
    /// Simulated device, a list like connectx-6-dx,roce,vectors=8.
    #[arg(long, default_value = "roce")]
    profile: Vec<ProfileOptions>,
    /// Seed of everything random in the card and on the link.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write every frame on the link to this file, as pcapng.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record all input of the functions in this file, for `simnic replay`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Socket on which `simnic ctl` steers the link and the functions.
    #[arg(long, value_name = "SOCKET")]
    steer: Option<PathBuf>,
    /// Folder that the machine shares, under the same path; the command runs in it. By default the working directory.
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,
    /// Environment variable for the command: NAME, with its value here, or NAME=VALUE. May be repeated.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// End the command after this many seconds, whether or not its output is read, with exit status 124.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    timeout: Option<u64>,
    /// Emulate the processor even if KVM is available.
    #[arg(long)]
    emulate: bool,
    /// Keep the logs of the kernel (console.log, complete), QEMU (qemu.log) and the functions (functions.log) in this
    /// folder.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Folder for images; by default $SIMNIC_CACHE, or $XDG_CACHE_HOME/simnic.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl Options {
    /// Returns the settings of the switch between the ports; `None` if the ports have a link.
    fn switch(&self) -> Option<SwitchOptions> {
        let usual = (self.ports > 2).then(|| match ProfileOptions::is_infiniband(&self.profile) {
            true => SwitchOptions::infiniband(),
            false => SwitchOptions::default(),
        });
        self.switch.clone().or(usual)
    }
}

/// Runs the command in a guest. Returns the exit status of the run: the command's, or that of `--timeout` or of the
/// last signal.
pub fn run(options: &Options) -> Result<u8> {
    ensure!(
        options.ports == 1 || options.link.is_none(),
        "--link is of a single port (--ports 1): more are linked to each other already"
    );
    let share = command::share(options.share.as_deref())?;
    let script = command::script(&options.command, &options.env, &share)?;
    let asked = CheckedOptions::of(options)?;
    let prepared = machine::prepare(&asked, options.cache.as_deref())?;
    let run = tempfile::Builder::new()
        .prefix("simnic-")
        .tempdir_in(session::short_folder())
        .context("a folder for sockets")?;
    let logs = match &options.logs {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            folder.canonicalize()?
        }
        None => run.path().to_owned(),
    };
    let mut session = Session::open(run.path(), options.ports)?;
    session.write_instructions(&script, &share, options.address)?;

    let over = Arc::new(AtomicBool::new(false));
    let functions = serve_functions(options, run.path(), &logs, Stop::by(Arc::clone(&over)))?;
    let mut qemu = prepared.qemu(options, run.path(), &logs, session.terminal());
    machine::share(&mut qemu, "share", &share, false);
    let ended = follow(options, &mut session, &tied(&qemu), &logs);
    over.store(true, Ordering::Release);
    // The server writes out the capture when it ends.
    let served = functions.join();
    match (ended, served) {
        (Err(error), _) => Err(explained(&error, &logs)),
        (Ok(_), Ok(Err(error))) => Err(anyhow!("the functions: {error}")),
        (Ok(_), Err(_)) => Err(anyhow!("the functions' server has panicked")),
        (Ok(status), Ok(Ok(()))) => Ok(status),
    }
}

/// Starts the server of the functions, and waits until they are served.
fn serve_functions(
    options: &Options,
    run: &Path,
    logs: &Path,
    over: Stop,
) -> Result<thread::JoinHandle<Result<(), String>>> {
    let log = File::create(logs.join("functions.log"))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(std::sync::Mutex::new(log))
        .with_ansi(false)
        .with_env_filter(filter)
        .init();
    let served = serve::Options {
        socket: session::function_sockets(run, options.ports),
        link: options.link.clone(),
        switch: options.switch(),
        profile: options.profile.clone(),
        pcap: options.pcap.clone(),
        record: options.record.clone(),
        about: format!("simnic run -- {}", options.command.join(" ")),
        seed: options.seed,
        faults: options.faults.clone(),
        steer: options.steer.clone(),
        ..serve::Options::default()
    };
    let (tell, told) = sync_channel(1);
    let server = thread::Builder::new()
        .name("functions".into())
        .spawn(move || {
            let ready = |_: &[&Path]| {
                // If sending fails, the receiver has given up waiting and ends the run.
                let _ = tell.send(());
                Ok(())
            };
            serve::serve(&served, &over, ready).map_err(|error| error.to_string())
        })?;
    match told.recv_timeout(SERVED) {
        Ok(()) => Ok(server),
        Err(RecvTimeoutError::Timeout) => bail!("the functions are not served within {SERVED:?}"),
        Err(RecvTimeoutError::Disconnected) => match server.join() {
            Ok(Err(error)) => bail!("{error}"),
            Ok(Ok(())) | Err(_) => bail!("the functions' server has ended"),
        },
    }
}

/// Boots the guest, and passes data and signals on until the command has ended. Returns the exit status.
fn follow(
    options: &Options,
    session: &mut Session,
    qemu: &std::process::Command,
    logs: &Path,
) -> Result<u8> {
    let mut command = machine::apart(qemu);
    let mut log = File::create(logs.join("qemu.log"))?;
    if options.logs.is_some() {
        writeln!(log, "$ {}", program::show(&command))?;
    }
    command.stderr(log);
    let mut running = Running::start("QEMU", command)?;
    let began = Instant::now();
    session.connect(&mut running, BOOT)?;
    let mut deadline = Some(began + BOOT);
    let mut is_ready = false;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match session.next(left) {
            Some(Event::Ready) => {
                is_ready = true;
                let seconds = options.timeout.map(Duration::from_secs);
                deadline = seconds.map(|seconds| Instant::now() + seconds);
            }
            Some(Event::Status { status, written }) => {
                return Ok(match finish(session, running, written, deadline)? {
                    Drained::Whole => status,
                    Drained::Late => {
                        print_error("the command's output was not read in time (--timeout)");
                        TIMED_OUT
                    }
                    Drained::Signal(status) => status,
                });
            }
            Some(Event::Failed(what)) => bail!("error in the machine: {what}"),
            Some(Event::Unexpected(text)) => bail!("unexpected message of the machine: {text:?}"),
            Some(Event::Signal(status)) => {
                finish(session, running, [0; 2], Some(Instant::now()))?;
                return Ok(status);
            }
            Some(Event::Moved) => {}
            Some(Event::Over) => {
                let status = running.child.wait()?;
                bail!("QEMU ended before the command did, with {status}");
            }
            None if is_ready => {
                finish(session, running, [0; 2], deadline)?;
                print_error("the command has not ended in time (--timeout)");
                return Ok(TIMED_OUT);
            }
            None => bail!("the machine did not boot within {BOOT:?}"),
        }
    }
}

/// Passes on the remaining output of the command, and ends the machine.
fn finish(
    session: &mut Session,
    running: Running,
    written: [u64; 2],
    deadline: Option<Instant>,
) -> Result<Drained> {
    let drained = session.drain(written, running, deadline);
    for lost in session.lost(written) {
        ensure!(!lost.is_failure, "{}", lost.what);
        print_error(&lost.what);
    }
    Ok(drained)
}

/// Prints a message on standard error. Stops waiting after a short time if no process reads standard error.
pub fn print_error(text: &str) {
    let text = format!("simnic: {text}");
    let (said, is_said) = sync_channel(1);
    thread::spawn(move || {
        eprintln!("{text}");
        let _ = said.send(());
    });
    let _ = is_said.recv_timeout(session::GRACE);
}

/// Returns the error, followed by the last lines of the logs.
fn explained(error: &anyhow::Error, logs: &Path) -> anyhow::Error {
    let mut text = format!("{error:#}");
    for name in ["console.log", "qemu.log"] {
        let said = std::fs::read(logs.join(name)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        if !tail.is_empty() {
            text += &format!("\n--- end of {name}\n{}", tail.join("\n"));
        }
    }
    anyhow!(text)
}

/// Returns the accelerator: emulation if the user requested it, otherwise the best that is available.
fn accelerator(options: &Options) -> Accelerator {
    match options.emulate {
        true => Accelerator::Tcg,
        false => Accelerator::best(),
    }
}
