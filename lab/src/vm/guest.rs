//! Runs a guest: starts the simulated functions and QEMU, and collects the guest's output.
//!
//! Every step and every run has a time limit. The guest enforces the step's limit; the suite defines the run's. A run
//! fails if the script has not ended at the limit, or if the guest ends before its script does. A failure is shown with
//! the last lines of the console. A process ends when its parent ends, whatever the reason ([`guest::child`]).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use guest::child::{Running, tied};
use guest::qemu::{Accelerator, Qemu};

use super::beside::{self, Beside};
use super::functions::{self, NETWORK_SOCKET, Servers, Slots, serve};
use super::log::{lines_of, show_tail, tail};
use super::machine::Machine;
use super::report::{self, Step, Verdict};
use super::serial::Line;
use super::suite::{Ssd, Suite};
use super::{Options, image};
use crate::shell;

/// Longest time until a log line of the functions' server is in the log.
const LOGGED_WITHIN: Duration = Duration::from_millis(300);
/// PCI slot of QEMU's SSD, the file with its content in the folder of the run, and its size in bytes.
const SSD_SLOT: u32 = 0x10;
const SSD_IMAGE: &str = "ssd.img";
const SSD_BYTES: u64 = 64 << 20;
/// PCI slot of the network device in a guest with a single function.
const NETWORK_SLOT: u8 = 8;
/// File in the folder of the run with the output of the guest's third serial port.
pub(super) const KEPT: &str = "kept";

/// Boots the guest, runs the suite's script, and prints and judges its output.
pub fn test(machine: &Machine, suite: &Suite, options: &Options) -> Result<()> {
    let began = Instant::now();
    let initramfs = prepare(machine, suite)?;
    let mut functions = serve(machine, suite.slots, suite.serve)?;
    let _backing = backing(machine, suite)?;
    let mut beside = Beside::start(machine, suite.beside)?;
    if let Ssd::Served(socket) = suite.ssd {
        beside.await_socket(socket)?;
    }
    let parameters = format!(
        "quiet only={} seed={} seeds={}",
        options.only.join(","),
        options.seed,
        options.seeds
    );
    let (mut qemu, lines) = boot(machine, suite, &initramfs, &parameters)?;
    println!(
        "vm: {}: QEMU {}, Linux {}, {} function(s); console in {}",
        suite.image.name,
        machine.qemu,
        machine.unpacked.version,
        suite.slots.sockets().len(),
        machine.path("run/console.log").display()
    );
    let (mut steps, end) = follow(
        &lines,
        &mut qemu,
        &mut functions,
        &mut beside,
        suite.patience * options.seeds,
    );
    let ran = steps.len();
    // The script has ended. The guest sends no more lines, and powers off a moment later.
    let _ = lines.recv_timeout(LOGGED_WITHIN);
    drop(qemu);
    if let (End::Lost, Some(step), Some(lost)) = (&end, steps.last_mut(), suite.lost) {
        step.said.extend(lost(&beside));
        step.code = Some(0);
    }
    drop(functions);
    for shown in suite.shown.iter().filter(|it| options.wants(it.step)) {
        let said = (shown.lines)(&machine.path("run").join(shown.file))?;
        steps.push(Step::shown(shown.step, shown.file, said));
    }
    let log = machine.path("run").join(functions::LOG);
    steps.push(Step::shown(
        "functions",
        "datctl sim serve",
        lines_of(&log).context("the functions' log")?,
    ));
    let verdicts: Vec<Verdict> = steps
        .into_iter()
        .map(|step| Verdict::of(step, suite.judge))
        .collect();
    println!("{}", report::table(&verdicts));
    println!("vm: {:.0} s in all", began.elapsed().as_secs_f64());
    let failed: Vec<&Verdict> = verdicts.iter().filter(|v| v.result.is_err()).collect();
    if options.seeds > 1 {
        println!("{}", report::summary(&verdicts));
    }
    if failed.is_empty() && !matches!(end, End::Cut(_)) {
        ensure!(ran > 0, "{}: has none of these steps", suite.image.name);
        return Ok(());
    }
    for verdict in &failed {
        println!("--- {}: {}", verdict.step.name, verdict.step.command);
        for line in tail(&verdict.step.said) {
            println!("    {line}");
        }
    }
    for log in ["console.log", functions::LOG, "qemu.log"] {
        show_tail(&machine.path("run").join(log));
    }
    if suite.beside.is_some() {
        show_tail(&machine.path("run").join(beside::LOG));
    }
    if let End::Cut(why) = end {
        return Err(why);
    }
    let names: Vec<&str> = failed.iter().map(|v| v.step.name.as_str()).collect();
    bail!(
        "{}: failed in the guest: {}",
        suite.image.name,
        names.join(", ")
    );
}

/// Boots a guest whose console is this terminal.
pub fn shell(machine: &Machine, suite: &Suite) -> Result<()> {
    let initramfs = prepare(machine, suite)?;
    let _functions = serve(machine, suite.slots, suite.serve)?;
    let _backing = backing(machine, suite)?;
    let mut beside = Beside::start(machine, suite.beside)?;
    if let Ssd::Served(socket) = suite.ssd {
        beside.await_socket(socket)?;
    }
    let mut command = qemu(machine, suite, &initramfs, "vm=shell");
    command.args(["-serial", "mon:stdio"]);
    shell::run(tied(&command))
}

/// Starts the process that serves an SSD to the process beside the guest, if the suite has one.
fn backing(machine: &Machine, suite: &Suite) -> Result<Option<Running>> {
    match suite.ssd {
        Ssd::Backing => beside::backing(machine).map(Some),
        Ssd::None | Ssd::Qemu | Ssd::Served(_) => Ok(None),
    }
}

/// Builds the programs and the initramfs, and returns the path of the initramfs.
fn prepare(machine: &Machine, suite: &Suite) -> Result<PathBuf> {
    let programs = (suite.programs)(machine)?;
    image::build(machine, &suite.image, &programs)
}

/// Returns the QEMU command without its serial ports.
fn qemu(machine: &Machine, suite: &Suite, initramfs: &Path, parameters: &str) -> Command {
    // The kernel checks its timer at boot. On a loaded machine the emulated timer may be too slow for that check.
    let mut append = format!("console=ttyS0 intel_iommu=on no_timer_check panic=-1 {parameters}");
    // The kernel passes parameters that it does not know to init as environment variables.
    for name in suite.image.variables {
        if let Ok(value) = std::env::var(name) {
            append = format!("{append} {name}={value}");
        }
    }
    let mut command = machine.emulator();
    // The path of a Unix socket must be short. QEMU runs in the machine's folder, so `run/NAME` is enough.
    let sockets = suite.slots.sockets().iter();
    let ssd = match suite.ssd {
        Ssd::Served(socket) => Some(socket),
        Ssd::None | Ssd::Qemu | Ssd::Backing => None,
    };
    let sockets = sockets.copied().chain(ssd);
    let sockets: Vec<String> = sockets.map(|socket| format!("run/{socket}")).collect();
    let virtual_machine = Qemu {
        accelerator: Accelerator::Tcg,
        iommu: true,
        memory: suite.memory,
        kernel: &machine.unpacked.image(),
        initramfs,
        append: &append,
    };
    virtual_machine.add_to(&mut command, &sockets);
    if suite.ssd == Ssd::Qemu {
        command.args([
            "-drive",
            &format!("file=run/{SSD_IMAGE},if=none,id=ssd,format=raw,cache=unsafe"),
            "-device",
            &format!("nvme,serial=qemu-ssd,drive=ssd,addr={SSD_SLOT:#x}"),
        ]);
    }
    if suite.slots == Slots::Networked {
        command.args([
            "-netdev",
            &format!(
                "dgram,id=wire,local.type=unix,local.path=run/{NETWORK_SOCKET},\
                 remote.type=unix,remote.path=run/wire.sock"
            ),
            "-device",
            &format!("virtio-net-pci,netdev=wire,addr={NETWORK_SLOT:#x}"),
        ]);
    }
    command
}

/// Starts the guest. Returns QEMU and the lines that the guest sends.
fn boot(
    machine: &Machine,
    suite: &Suite,
    initramfs: &Path,
    parameters: &str,
) -> Result<(Running, Receiver<Line>)> {
    let mut command = qemu(machine, suite, initramfs, parameters);
    let run = machine.path("run");
    std::fs::write(run.join("console.log"), "")?;
    if suite.ssd == Ssd::Qemu {
        File::create(run.join(SSD_IMAGE))?.set_len(SSD_BYTES)?;
    }
    for port in ["file:run/console.log", "stdio"] {
        command.args(["-serial", port]);
    }
    command.args(["-serial", &format!("file:run/{KEPT}")]);
    let mut command = tied(&command);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(run.join("qemu.log"))?);
    let mut qemu = Running::start("QEMU", command)?;
    let output = qemu.child.stdout.take().context("QEMU's output")?;
    Ok((qemu, read_lines(output)))
}

fn read_lines(output: ChildStdout) -> Receiver<Line> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        // The loop ends when QEMU ends or when the receiver is dropped.
        while let Ok(1..) = output.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            if sender.send(Line::parse(text.trim_end())).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Reason for which the collection of a guest's steps ended.
enum End {
    /// The script has run to its end.
    Over,
    /// The script requests that its guest be ended in the middle of a step.
    Lost,
    /// An error ended the run.
    Cut(anyhow::Error),
}

/// Collects the script's steps and answers its requests, until the script ends or the time limit is exceeded.
fn follow(
    lines: &Receiver<Line>,
    qemu: &mut Running,
    functions: &mut Servers,
    beside: &mut Beside<'_>,
    patience: Duration,
) -> (Vec<Step>, End) {
    let deadline = Instant::now() + patience;
    let mut steps: Vec<Step> = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(Line::Over) => return (steps, End::Over),
            Ok(Line::Step { name, command }) => {
                println!("vm: {name}: {command}");
                steps.push(Step {
                    name,
                    command,
                    said: Vec::new(),
                    code: None,
                    took: Duration::ZERO,
                });
            }
            Ok(Line::Said(text)) => {
                if let Some(step) = steps.last_mut() {
                    step.said.push(text);
                }
            }
            Ok(Line::Done { code, took }) => {
                if let Some(step) = steps.last_mut() {
                    (step.code, step.took) = (Some(code), took);
                }
            }
            Ok(Line::Card(settings)) => {
                let answered = functions.card(&settings);
                if let Err(error) = answered.and_then(|it| answer(qemu, &it)) {
                    return (steps, End::Cut(error));
                }
            }
            Ok(Line::Steer(words)) => {
                let answered = functions.steer(&words);
                if let Err(error) = answered.and_then(|it| answer(qemu, &it)) {
                    return (steps, End::Cut(error));
                }
            }
            Ok(Line::Beside(words)) => {
                let answered = beside.happen(&words);
                if let Err(error) = answer(qemu, &answered) {
                    return (steps, End::Cut(error));
                }
            }
            Ok(Line::Lost) => return (steps, End::Lost),
            Ok(Line::Stray(text)) => println!("vm: the guest says {text:?}"),
            Err(RecvTimeoutError::Timeout) => {
                let silent = anyhow::anyhow!("the guest is not done within {patience:?}");
                return (steps, End::Cut(silent));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = qemu.child.wait();
                let ended = anyhow::anyhow!("QEMU ended before the suite did: {status:?}");
                return (steps, End::Cut(ended));
            }
        }
    }
}

/// Sends the guest the result of its request.
fn answer(qemu: &mut Running, answer: &str) -> Result<()> {
    let guest = qemu.child.stdin.as_mut().context("QEMU's input")?;
    writeln!(guest, "{answer}").context("QEMU reads nothing")
}
