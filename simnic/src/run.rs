//! `simnic run`: a command in a stock kernel that has simulated ports.
//!
//! ```text
//!   simnic ---- serve, a thread of its own: two functions on a link, or more on a switch
//!     |              | vfio-user: two sockets
//!     |            QEMU ---- Linux: mlx5_core, mlx5_ib; the command
//!     |              |
//!     '--- sockets --'       terminal, or input, output, errors; control: signals go in, the exit status comes out
//! ```
//!
//! The guest's files are an image made of Debian packages ([`image`]), read over 9p below a file system in memory: what
//! the command changes is gone with it. The folder that is shared is the host's, and stays.
//!
//! One after the other: what is unpacked ([`Prepared`]), the functions, QEMU, the guest's word that the command begins,
//! its exit status. QEMU is ended when the reader of simnic's output has what the command has written.
//! The guest has [`BOOT`] to begin. The command and the reader have as long as they like, or `--timeout`: it ends a run
//! whatever either does.

mod asked;
mod command;
mod image;
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

use self::asked::Asked;
use self::machine::Which;
use self::session::{Drained, Session, Word};

/// As many as a switch has, of what serves them.
const MOST_PORTS: i64 = serve::MOST_PORTS as i64;
/// The longest `--timeout`: a year, in seconds.
const LONGEST: u64 = 365 * 24 * 60 * 60;
/// The exit status if the command has none.
pub const NO_STATUS: u8 = 125;
/// That of a command that takes longer than it may.
const TIMED_OUT: u8 = 124;
/// How long an emulated machine may take until the command begins: a minute where little else runs, several where much
/// does.
const BOOT: Duration = Duration::from_secs(1200);
/// How long it may take for the functions to be served.
const SERVED: Duration = Duration::from_secs(300);
/// Lines of a log that are shown when something is wrong.
const TAIL: usize = 25;

/// What is run, and on what.
#[derive(clap::Args)]
pub struct Options {
    /// How many ports the machine has. Two are on one link, more on a switch; the link of one leads to --link.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=MOST_PORTS))]
    ports: u8,
    /// The ports are on a switch that is made like this, a list like rate=25G,buffer=256K,ecn=5K/200K/1%,pfc. Faults
    /// are then those of each cable.
    #[arg(long, value_name = "SETTINGS", conflicts_with = "link")]
    switch: Option<SwitchOptions>,
    /// Where the link of a single port leads: unix:PATH, to another simnic that is told the same.
    #[arg(long, conflicts_with = "steer")]
    link: Option<WirePath>,
    /// The address of a single port.
    #[arg(
        long,
        value_name = "IP",
        default_value = "192.0.2.1",
        requires = "link"
    )]
    address: std::net::Ipv4Addr,
    /// The kernel: bookworm (6.1), trixie (6.12), backports (the newest of trixie-backports), or a linux-image .deb.
    #[arg(long, default_value = "trixie")]
    kernel: Which,
    /// Memory of the machine.
    #[arg(long, default_value = "2G", value_parser = machine::memory)]
    memory: String,
    /// A Debian package whose files the machine has besides: a name, or the path of a .deb. May be repeated.
    #[arg(long, value_name = "DEB")]
    package: Vec<String>,
    /// What goes wrong, a list like loss=1%,delay=5us on the link and 0:removal@60s in a function, counted from 0.
    #[arg(long)]
    faults: Vec<FaultOptions>,
    /// What is simulated, a list like connectx-6-dx,roce,vectors=8.
    #[arg(long, default_value = "roce")]
    profile: Vec<ProfileOptions>,
    /// Everything random in the card and on the link follows from it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write every frame on the link to this file, as pcapng.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record all that comes from outside of the functions in this file, for `simnic replay`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where `simnic ctl` steers the link and the functions.
    #[arg(long, value_name = "SOCKET")]
    steer: Option<PathBuf>,
    /// The folder that the machine shares, under the same path; the command is run in it. By default the working
    /// directory.
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,
    /// A variable of the environment that the command gets: NAME, as it is here, or NAME=VALUE. May be repeated.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Ends the command after so many seconds, whether its output is read or not, with exit status 124.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    timeout: Option<u64>,
    /// Emulate the processor also where KVM could be used.
    #[arg(long)]
    emulate: bool,
    /// Keep the logs of the kernel (console.log, all of it), QEMU (qemu.log) and the functions (functions.log) in this
    /// folder.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Where images are kept; by default $SIMNIC_CACHE, or $XDG_CACHE_HOME/simnic.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl Options {
    /// The switch between the ports, if it is no link.
    fn switch(&self) -> Option<SwitchOptions> {
        let usual = (self.ports > 2).then(|| match ProfileOptions::is_infiniband(&self.profile) {
            true => SwitchOptions::infiniband(),
            false => SwitchOptions::default(),
        });
        self.switch.clone().or(usual)
    }
}

/// Runs the command; its exit status.
pub fn run(options: &Options) -> Result<u8> {
    ensure!(
        options.ports == 1 || options.link.is_none(),
        "--link is of a single port (--ports 1): more are linked to each other already"
    );
    let share = command::share(options.share.as_deref())?;
    let script = command::script(&options.command, &options.env, &share)?;
    let asked = Asked::of(options)?;
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
    session.write_told(&script, &share, options.address)?;

    let over = Arc::new(AtomicBool::new(false));
    let functions = serve_functions(options, run.path(), &logs, Stop::by(Arc::clone(&over)))?;
    let mut qemu = prepared.qemu(options, run.path(), &logs, session.terminal());
    machine::share(&mut qemu, "share", &share, false);
    let ended = follow(options, &mut session, &tied(&qemu), &logs);
    over.store(true, Ordering::Release);
    // It writes out what it has captured.
    let served = functions.join();
    match (ended, served) {
        (Err(error), _) => Err(explained(&error, &logs)),
        (Ok(_), Ok(Err(error))) => Err(anyhow!("the functions: {error}")),
        (Ok(_), Err(_)) => Err(anyhow!("the functions' server has panicked")),
        (Ok(status), Ok(Ok(()))) => Ok(status),
    }
}

/// Starts the server of the functions, and waits until they are there.
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
                // Nobody waits any more: the end is near.
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

/// Boots, and passes on what comes and goes until the command has ended; its exit status.
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
            Some(Word::Ready) => {
                is_ready = true;
                let seconds = options.timeout.map(Duration::from_secs);
                deadline = seconds.map(|seconds| Instant::now() + seconds);
            }
            Some(Word::Status { status, written }) => {
                return Ok(match finish(session, running, written, deadline)? {
                    Drained::Whole => status,
                    Drained::Late => {
                        say("what the command has written was not read in time (--timeout)");
                        TIMED_OUT
                    }
                    Drained::Signal(status) => status,
                });
            }
            Some(Word::Failed(what)) => bail!("in the machine: {what}"),
            Some(Word::Stray(text)) => bail!("the machine says {text:?}"),
            Some(Word::Signal(status)) => {
                finish(session, running, [0; 2], Some(Instant::now()))?;
                return Ok(status);
            }
            Some(Word::Moved) => {}
            Some(Word::Over) => {
                let status = running.child.wait()?;
                bail!("QEMU ended before the command did, with {status}");
            }
            None if is_ready => {
                finish(session, running, [0; 2], deadline)?;
                say("the command has not ended in time (--timeout)");
                return Ok(TIMED_OUT);
            }
            None => bail!("the machine is not up within {BOOT:?}"),
        }
    }
}

/// Passes on what the command has written, and ends the machine.
fn finish(
    session: &mut Session,
    running: Running,
    written: [u64; 2],
    deadline: Option<Instant>,
) -> Result<Drained> {
    let drained = session.drain(written, running, deadline);
    for lost in session.lost(written) {
        ensure!(!lost.is_failure, "{}", lost.what);
        say(&lost.what);
    }
    Ok(drained)
}

/// Says something on the error stream. Something that does not read it may hold its other end: then it is left.
pub fn say(text: &str) {
    let text = format!("simnic: {text}");
    let (said, is_said) = sync_channel(1);
    thread::spawn(move || {
        eprintln!("{text}");
        let _ = said.send(());
    });
    let _ = is_said.recv_timeout(session::GRACE);
}

/// The error, with the ends of the logs behind it.
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

/// Whether the processor is emulated.
fn accelerator(options: &Options) -> Accelerator {
    match options.emulate {
        true => Accelerator::Tcg,
        false => Accelerator::best(),
    }
}
