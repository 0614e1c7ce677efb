//! `datctl sim serve`: simulated functions for other processes.
//!
//! Each socket has a thread that answers its clients; a register write runs the world to idle in that thread. What
//! takes time (commands, frames under way, retransmission timers) is moved on by the main thread, which lets the
//! world's time follow the machine's: it advances the world by what has passed ([`Pace`]), then waits for the next thing that
//! is due, for a register write, or a millisecond. What a function has to say against its driver (an access that the
//! IOMMU refused, a rule broken where the device has no way to answer) it logs, a while after it happened.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use dat::fabric;
use dat::fabric::pace::Pace;
use dat::fabric::wire::Wire;
use driver::{Device, Front, Fronted, VfioUserServer};
use hw_sim::{Fault, FunctionReport, Sim, SimConfig, SimFunction};

use crate::Serve;
use crate::address::address_number;
use crate::simulated::{FaultOptions, ProfileOptions};

/// The longest the world's time lags behind the machine's while nobody writes a register.
const TICK: Duration = Duration::from_millis(1);
/// How often the functions are asked whether they have something to say against their drivers.
const ASK: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Serve) -> Result<(), Box<dyn Error>> {
    let ends = arguments.socket.len() + usize::from(arguments.link.is_some());
    if ends > 2 {
        return Err("a link has two ends: at most two sockets, or one and --link".into());
    }
    let sim = Sim::new(SimConfig {
        seed: arguments.seed,
        event_log: false,
    });
    sim.set_posted_writes(true);
    let (poke, poked) = sync_channel(1);
    let mut functions = Vec::new();
    for (number, socket) in arguments.socket.iter().enumerate() {
        let name = format!("sim:{}", socket.display());
        let number = match arguments.link {
            Some(_) => address_number(socket),
            None => number,
        };
        let profile = ProfileOptions::profile(&arguments.profile, &name, fabric::mac(number));
        let function = sim.try_add_function(profile)?;
        functions.push((function, listen(socket)?));
    }
    let faults = FaultOptions::link(&arguments.faults, arguments.seed);
    let wire = match (&functions[..], &arguments.link) {
        ([(one, _), (other, _)], _) => {
            sim.connect(one, other, faults);
            None
        }
        ([(one, _)], Some(path)) => {
            let laid = Wire::lay(&sim, one, path, faults, poke.clone());
            Some(laid.map_err(|error| format!("--link {path}: {error}"))?)
        }
        _ => None,
    };
    if let Some(path) = &arguments.pcap {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        sim.pcap(BufWriter::new(file))?;
    }
    let planned = planned(&arguments.faults, &functions)?;
    let complaints = functions
        .iter()
        .map(|(function, _)| Complaints::of(function))
        .collect();
    for (function, listener) in functions {
        let device = Arc::new(Fronted {
            device: function,
            front: Poking(poke.clone()),
        });
        thread::spawn(move || {
            let error = VfioUserServer::serve(device, listener);
            tracing::error!("{error}");
        });
    }
    drop(poke);
    for socket in &arguments.socket {
        println!("vfio-user:{}", socket.display());
    }
    stdout().flush()?;
    follow(
        &sim,
        &poked,
        planned,
        complaints,
        wire.as_deref(),
        arguments.pcap.is_some(),
        arguments.report.as_deref(),
    )
}

/// Writes what was asked of every function, and how it answered; a reader finds the old list or the new one.
fn write_report(path: &Path, sim: &Sim, functions: &[Complaints]) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for one in functions {
        text += &format!("function {}\n", one.function.name());
        for line in sim.report(&one.function).coverage() {
            text += &line;
            text.push('\n');
        }
    }
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let new = path.with_extension("new");
    std::fs::write(&new, text).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    Ok(())
}

/// What a function has said against its driver so far.
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

    /// Logs what is new.
    fn log(&mut self, sim: &Sim) {
        let FunctionReport {
            dma_faults,
            driver_bugs,
            ..
        } = sim.report(&self.function);
        let name = self.function.name();
        // A reset may begin the record anew.
        let new = |seen: usize, now: usize| if now < seen { 0 } else { seen };
        for record in dma_faults
            .iter()
            .skip(new(self.dma_faults, dma_faults.len()))
        {
            let (who, fault) = (record.who, &record.fault);
            if record.unmapped {
                tracing::warn!("{name}: the IOMMU refused the {who}: {fault}");
            } else {
                tracing::info!("{name}: not a bus master: the {who}: {fault}");
            }
        }
        for bug in driver_bugs
            .iter()
            .skip(new(self.driver_bugs, driver_bugs.len()))
        {
            tracing::warn!("{name}: driver mistake: {bug}");
        }
        (self.dma_faults, self.driver_bugs) = (dma_faults.len(), driver_bugs.len());
    }
}

/// What is to happen to functions, and when, the next one last.
fn planned(
    faults: &[FaultOptions],
    functions: &[(Arc<SimFunction>, UnixListener)],
) -> Result<Vec<(Duration, Arc<SimFunction>, Fault)>, String> {
    let mut planned = FaultOptions::functions(faults)
        .into_iter()
        .map(|planned| {
            let number = planned.function;
            let (function, _) = functions.get(number).ok_or_else(|| {
                format!("--faults: there is no socket {number}, they count from 0")
            })?;
            Ok((planned.after, Arc::clone(function), planned.fault))
        })
        .collect::<Result<Vec<_>, String>>()?;
    planned.reverse();
    Ok(planned)
}

/// Listens at a path; a socket that nobody listens at any more is replaced.
fn listen(path: &Path) -> Result<UnixListener, Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    match UnixListener::bind(path) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(failed(error).into());
            }
            std::fs::remove_file(path).map_err(failed)?;
            Ok(UnixListener::bind(path).map_err(failed)?)
        }
        Err(error) => Err(failed(error).into()),
    }
}

/// Lets the world's time follow the machine's until no server is left.
fn follow(
    sim: &Sim,
    poked: &Receiver<()>,
    mut planned: Vec<(Duration, Arc<SimFunction>, Fault)>,
    mut complaints: Vec<Complaints>,
    wire: Option<&Wire>,
    captures: bool,
    report: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let (clock, start) = (sim.clock(), Instant::now());
    let (mut pace, mut ask) = (Pace::new(start), start + ASK);
    loop {
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
            if let Some(path) = report {
                write_report(path, sim, &complaints)?;
            }
            ask = Instant::now() + ASK;
        }
        let wait = sim.next_due().map_or(TICK, |due| {
            Duration::from_nanos(due.0.saturating_sub(clock.now().0)).min(TICK)
        });
        match poked.recv_timeout(wait) {
            Ok(()) => {}
            // A quiet moment; whoever ends this process finds the capture whole.
            Err(RecvTimeoutError::Timeout) if captures => sim.flush_pcap()?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("no server is left".into()),
        }
    }
}

/// Wakes the thread that moves the time when a register is written.
struct Poking(SyncSender<()>);

impl Poking {
    fn poke(&self) {
        // Full: it will wake anyway. Closed: it has ended, and the process with it.
        let _ = self.0.try_send(());
    }
}

impl Front<SimFunction> for Poking {
    fn bar_written(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        function.bar_written(index, offset, bytes);
        self.poke();
    }

    fn reset(&self, function: &SimFunction) {
        function.reset();
        self.poke();
    }
}
