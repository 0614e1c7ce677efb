//! Serves simulated functions to other processes: `simnic serve`, which is also `datctl sim serve`.
//!
//! Each socket has a thread that answers its clients. A register write runs the simulation in that thread until the
//! simulation is idle. The thread that calls `serve` handles delayed work (commands, frames on the wire, retransmission
//! timers): it advances virtual time by the real time that has passed ([`Pace`]), then waits for the next due event,
//! for a register write, or for a millisecond. Complaints of a function about its driver (an access that the IOMMU
//! refused, a broken rule that the device cannot report) are logged with a short delay.
//!
//! SIGINT, SIGTERM and SIGHUP end the server, which removes its sockets.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use driver::{Device, Front, Fronted, VfioUserServer};
use hw_sim::{Fault, FaultCause, FunctionReport, Sim, SimConfig, SimFunction};
use hw_sim_host::mac;
use hw_sim_host::open_locked;
use hw_sim_host::pace::Pace;
use hw_sim_host::wire::{Wire, WirePath};

use crate::address::address_number;
use crate::card::{self, CardOptions};
use crate::signals::Stop;
use crate::simulated::{FaultOptions, ProfileOptions};
use crate::steer;
use crate::switch::SwitchOptions;

/// Maximum number of cards and functions on a switch.
pub const MOST_PORTS: usize = 8;
/// Longest time by which virtual time lags behind real time while no register is written.
const TICK: Duration = Duration::from_millis(1);
/// Interval at which the functions' complaints about their drivers are logged.
const ASK: Duration = Duration::from_millis(100);

/// Interval at which a recording is flushed. If the process is killed, the part after the last flush is lost.
const KEEP: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(clap::Args, Debug, Default)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["socket", "card"])))]
pub struct Options {
    /// Socket of a single function; once or twice, with --switch up to eight times.
    #[arg(long, value_name = "PATH", num_args = 1)]
    pub socket: Vec<PathBuf>,
    /// Cards and their settings.
    #[command(flatten)]
    pub cards: CardOptions,
    /// Other end of the link with one socket: another server with the same option, unix:PATH; or a network device of
    /// QEMU, dgram:HERE,THERE (-netdev dgram,local.type=unix,local.path=THERE,remote.type=unix,remote.path=HERE).
    #[arg(long)]
    pub link: Option<WirePath>,
    /// Put all on a switch, in place of a link between two: a list like rate=25G,buffer=256K,ecn=5K/200K/1%,pfc.
    /// Faults then apply to each cable. For InfiniBand ports the switch is called ib.
    #[arg(long, value_name = "SETTINGS", conflicts_with = "link")]
    pub switch: Option<SwitchOptions>,
    /// Simulated device, a list like connectx-5,vectors=8,mtu=1500.
    #[arg(long)]
    pub profile: Vec<ProfileOptions>,
    /// Write every frame on the link to this file, as pcapng.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Record all input in this file, for `simnic replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Description in the recording, for people.
    #[arg(skip = "simnic serve".to_owned())]
    pub about: String,
    /// Keep a list of the requested commands and registers and their results in this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Faults, a list like loss=1%,delay=5us on the link and removal@5s in a function.
    #[arg(long)]
    pub faults: Vec<FaultOptions>,
    /// Socket on which `ctl` steers the simulation, for this user and root.
    #[arg(long, value_name = "SOCKET")]
    pub steer: Option<PathBuf>,
}

/// Serves until a signal ends the server.
///
/// # Errors
/// Invalid options, an unavailable socket or file, or no server left.
pub fn run(arguments: &Options) -> Result<(), Box<dyn Error>> {
    let over = Stop::on_signals()?;
    serve(arguments, &over, |sockets| {
        for socket in sockets {
            println!("vfio-user:{}", socket.display());
        }
        stdout().flush()
    })
}

/// Serves until `over` is set. Calls `ready` with the paths of the sockets as soon as clients can connect.
///
/// # Errors
/// The errors of [`run`], and the error of `ready`.
pub fn serve(
    arguments: &Options,
    over: &Stop,
    ready: impl FnOnce(&[&Path]) -> std::io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let ends = arguments.cards.paths.len()
        + arguments.socket.len()
        + usize::from(arguments.link.is_some());
    if ends > 2 && arguments.switch.is_none() {
        return Err(
            "a link has two ends: at most two of cards, sockets and --link; more are on a --switch"
                .into(),
        );
    }
    if ends > MOST_PORTS {
        return Err(format!("a switch has {MOST_PORTS} ports here, not {ends}").into());
    }
    if arguments.cards.control && arguments.cards.paths.len() > 1 {
        return Err("--control is of one card".into());
    }
    let sim = Sim::new(SimConfig {
        seed: arguments.seed,
        event_log: false,
    });
    let begun = Arc::new(AtomicBool::new(false));
    if let Some(path) = &arguments.record {
        let failed = |error: &dyn Error| format!("--record {}: {error}", path.display());
        let file = Kept::open(path, &begun).map_err(|error| failed(&error))?;
        sim.record(BufWriter::new(file), &arguments.about)
            .map_err(|error| failed(&error))?;
    }
    sim.set_posted_writes(true);
    if ProfileOptions::has_manager(&arguments.profile)? {
        sim.use_external_subnet_manager();
    }
    let (poke, poked) = sync_channel(1);
    // `ends` has one function of each port on the link, `served` all functions that are served.
    let (mut ends, mut served, mut cards) = (Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.cards.paths {
        let card = arguments.cards.add(&sim, path, &arguments.profile)?;
        ends.push(card.physical());
        served.extend(arguments.cards.served(&card, path));
        cards.push(card);
    }
    for (number, socket) in arguments.socket.iter().enumerate() {
        let name = format!("sim:{}", socket.display());
        let number = match arguments.link {
            Some(_) => address_number(socket),
            None => number,
        };
        let mut profile = ProfileOptions::profile(&arguments.profile, &name, mac(number));
        if arguments.switch.is_some() {
            // A switch may mark frames, so the device permits drivers to query and change congestion control.
            profile.general.set(|page| {
                page.set_cc_query_allowed(true);
                page.set_cc_modify_allowed(true);
            });
        }
        let function = sim.try_add_function(profile)?;
        ends.push(Arc::clone(&function));
        served.push((function, socket.clone()));
    }
    let (mut functions, mut listeners, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for (function, socket) in &served {
        let (listener, path) = driver::listen_at(socket)?;
        functions.push(Arc::clone(function));
        listeners.push(listener);
        paths.push(path);
    }
    if let Some(path) = &arguments.pcap {
        let file = Kept::open(path, &begun)
            .map_err(|error| format!("--pcap {}: {error}", path.display()))?;
        sim.pcap(BufWriter::new(file))?;
    }
    let planned = planned(&arguments.faults, &functions)?;
    let faults = FaultOptions::link(&arguments.faults, arguments.seed);
    let mut link = None;
    if let Some(switch) = &arguments.switch {
        switch.lay(&sim, &ends, faults)?;
    }
    let wire = match (&ends[..], &arguments.link) {
        _ if arguments.switch.is_some() => None,
        ([one, other], _) => {
            link = Some(sim.connect(one, other, faults));
            None
        }
        ([one], Some(path)) => {
            let laid = Wire::lay(&sim, one, path, faults, poke.clone());
            let wire = laid.map_err(|error| format!("--link {path}: {error}"))?;
            link = Some(wire.link());
            Some(wire)
        }
        _ => None,
    };
    let complaints = functions.iter().map(Complaints::of).collect();
    for (function, listener) in functions.into_iter().zip(listeners) {
        let device = Arc::new(Fronted {
            device: function,
            front: WakingFront(poke.clone()),
        });
        thread::spawn(move || {
            let error = VfioUserServer::serve(device, listener);
            tracing::error!("{error}");
        });
    }
    drop(poke);
    let _steered = match &arguments.steer {
        Some(path) => Some(steer::serve(
            path,
            steer::World {
                sim: sim.clone(),
                link,
                functions: served.clone(),
                seed: arguments.seed,
            },
        )?),
        None => None,
    };
    // All options are valid, so the files lose their former contents now.
    begun.store(true, Ordering::Release);
    let captures = arguments.pcap.is_some() && flush(&sim);
    let records = arguments.record.is_some() && sim.flush_record();
    let sockets: Vec<&Path> = served.iter().map(|(_, socket)| socket.as_path()).collect();
    ready(&sockets)?;
    if let Some(card) = cards.pop().filter(|_| arguments.cards.control) {
        card::control(card);
    }
    let ended = follow(
        &sim,
        &poked,
        over,
        planned,
        complaints,
        wire.as_deref(),
        captures,
        records,
        arguments.report.as_deref(),
    );
    // The recording is flushed here, before the effects of the shutdown.
    if arguments.record.is_some() {
        sim.flush_record();
    }
    if let Some(wire) = wire {
        wire.cut();
    }
    drop(paths);
    ended
}

/// The file of a capture or of a recording. Until the server has begun, the file keeps its former contents, and what is
/// written stays in memory: a server that cannot start destroys no file.
struct Kept {
    file: File,
    begun: Arc<AtomicBool>,
    /// Bytes that were written before the server began. `None` once they are in the file.
    held: Option<Vec<u8>>,
}

impl Kept {
    /// Opens and locks a file. Fails if another server writes to it.
    fn open(path: &Path, begun: &Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self {
            file: open_locked(path)?,
            begun: Arc::clone(begun),
            held: Some(Vec::new()),
        })
    }

    /// Replaces the file's contents by the bytes in memory, if the server has begun since they were written.
    fn begin(&mut self) -> io::Result<()> {
        if self.held.is_none() || !self.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        // If this fails, the bytes stay in memory: what follows them must not overwrite the former contents.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        match self.held.take() {
            Some(held) => self.file.write_all(&held),
            None => Ok(()),
        }
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begin()?;
        match &mut self.held {
            Some(held) => held.write(bytes),
            None => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.begin()
    }
}

/// Writes for each function its commands and registers with their results, and its lost frames by reason. Replaces the
/// file atomically.
fn write_report(path: &Path, sim: &Sim, functions: &[Complaints]) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for one in functions {
        text += &format!("function {}\n", one.function.name());
        let report = sim.report(&one.function);
        for line in report.coverage() {
            text += &line;
            text.push('\n');
        }
        for (reason, frames) in &report.dropped {
            text += &format!("lost {frames} frames: {reason}\n");
        }
    }
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // An incomplete report is removed: it is useless, and the disk may need the space.
        let _gone = std::fs::remove_file(&new);
    }
    Ok(written.map_err(failed)?)
}

/// Numbers of a function's complaints about its driver that are logged already.
struct Complaints {
    function: Arc<SimFunction>,
    dma_faults: usize,
    driver_bugs: usize,
}

impl Complaints {
    fn of(function: &Arc<SimFunction>) -> Self {
        Self {
            function: Arc::clone(function),
            dma_faults: 0,
            driver_bugs: 0,
        }
    }

    /// Logs the complaints that are new since the last call.
    fn log(&mut self, sim: &Sim) {
        let FunctionReport {
            dma_faults,
            driver_bugs,
            ..
        } = sim.report(&self.function);
        let name = self.function.name();
        // If there are fewer complaints than before, a reset has cleared them, so all are new.
        let new = |seen: usize, now: usize| if now < seen { 0 } else { seen };
        for record in dma_faults
            .iter()
            .skip(new(self.dma_faults, dma_faults.len()))
        {
            let (who, fault) = (record.who, &record.fault);
            match record.cause {
                FaultCause::Unmapped => {
                    tracing::warn!("{name}: the IOMMU refused the {who}: {fault}");
                }
                FaultCause::NotBusMaster => {
                    tracing::info!("{name}: not a bus master: the {who}: {fault}");
                }
                FaultCause::NotDone => {
                    tracing::info!("{name}: its driver did not complete the {who}: {fault}");
                }
            }
        }
        for bug in driver_bugs
            .iter()
            .skip(new(self.driver_bugs, driver_bugs.len()))
        {
            tracing::warn!("{name}: driver bug: {bug}");
        }
        (self.dma_faults, self.driver_bugs) = (dma_faults.len(), driver_bugs.len());
    }
}

/// Returns the planned faults of functions with their times, latest first.
fn planned(
    faults: &[FaultOptions],
    functions: &[Arc<SimFunction>],
) -> Result<Vec<(Duration, Arc<SimFunction>, Fault)>, String> {
    let mut planned = FaultOptions::functions(faults)
        .into_iter()
        .map(|planned| {
            let number = planned.function;
            let function = functions.get(number).ok_or_else(|| {
                format!("--faults: there is no socket {number}, they count from 0")
            })?;
            Ok((planned.after, Arc::clone(function), planned.fault))
        })
        .collect::<Result<Vec<_>, String>>()?;
    planned.reverse();
    Ok(planned)
}

/// Advances virtual time with real time until `over` is set, or no server thread is left.
#[expect(clippy::too_many_arguments, reason = "all that a server has, once")]
fn follow(
    sim: &Sim,
    poked: &Receiver<()>,
    over: &Stop,
    mut planned: Vec<(Duration, Arc<SimFunction>, Fault)>,
    mut complaints: Vec<Complaints>,
    wire: Option<&Wire>,
    mut captures: bool,
    mut records: bool,
    report: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let (clock, start) = (sim.clock(), Instant::now());
    let mut told = false;
    let (mut pace, mut ask, mut kept) = (Pace::new(start), start + ASK, start + KEEP);
    loop {
        if over.is_asked() {
            if captures {
                flush(sim);
            }
            return Ok(());
        }
        sim.advance(pace.step(Instant::now()));
        while let Some((_, function, fault)) =
            planned.pop_if(|(after, ..)| *after <= start.elapsed())
        {
            sim.inject(&function, &fault);
        }
        if let Some(wire) = wire {
            wire.send();
        }
        if Instant::now() >= ask {
            complaints.iter_mut().for_each(|one| one.log(sim));
            if let Some(path) = report
                && let Err(error) = write_report(path, sim, &complaints)
                && !told
            {
                // The error is logged once and does not end the server. Later reports are still tried, because the disk
                // may have space again.
                tracing::error!("--report: {error}");
                told = true;
            }
            if records && Instant::now() >= kept {
                records = sim.flush_record();
                kept = Instant::now() + KEEP;
            }
            ask = Instant::now() + ASK;
        }
        let wait = sim.next_due().map_or(TICK, |due| {
            Duration::from_nanos(due.0.saturating_sub(clock.now().0)).min(TICK)
        });
        match poked.recv_timeout(wait) {
            Ok(()) => {}
            // The simulation is idle, so the capture is flushed. It is complete if the process is killed now.
            Err(RecvTimeoutError::Timeout) if captures => captures = flush(sim),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("no server is left".into()),
        }
    }
}

/// Flushes the capture. Returns whether the capture continues. An error, such as a full disk, ends the capture but not
/// the server.
fn flush(sim: &Sim) -> bool {
    let flushed = sim.flush_pcap();
    if let Err(error) = &flushed {
        tracing::error!("--pcap: {error}; the capture ends here");
    }
    flushed.is_ok()
}

/// Front of a function. After each register write and each reset, it wakes the thread that advances virtual time.
struct WakingFront(SyncSender<()>);

impl WakingFront {
    fn poke(&self) {
        // If the channel is full, a wake-up is pending. If it is closed, the thread has ended, and so will the process.
        let _ = self.0.try_send(());
    }
}

impl Front<SimFunction> for WakingFront {
    fn bar_written(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        function.bar_written(index, offset, bytes);
        self.poke();
    }

    fn reset(&self, function: &SimFunction) {
        function.reset();
        self.poke();
    }
}
