//! `cargo xtask matrix`: the requests that programs in several kernels send to the simulator.
//!
//! In each kernel, `simnic run --record` runs the programs one after the other. The virtual time at which each program
//! begins is noted, and the recording is replayed in parts that begin at these times. The reports of the functions have
//! the requests, and the event log has the packets that arrived. Recordings are kept in target/matrix, and an existing
//! recording is not made again. A run that fails leaves no recording. The results are in docs/simulator-matrix.json,
//! from which the page is made.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::shell;
use crate::vm::Coverage;

const DATA: &str = "docs/simulator-matrix.json";
const PAGE: &str = "docs/simulator-matrix.md";
/// Kernels by their `simnic run --kernel` names, the oldest first.
const KERNELS: [&str; 3] = ["bookworm", "trixie", "backports"];
/// Time limit for all programs of one kernel, in seconds.
const SECONDS: &str = "900";

/// Name of the part before the first program, in which the drivers load and both ports get an address.
const BOOT: &str = "boot";
/// Script that runs the programs one after the other. A line that begins with [`PART`] names the part that follows.
const SCRIPT: &str = include_str!("matrix/programs");
/// Packages that contain the programs, in addition to the packages of every machine.
const PACKAGES: [&str; 4] = [
    "ucx-utils",
    "libfabric-bin",
    "dpdk-dev",
    "librte-net-mlx5-25",
];
/// Script that runs fio on a disk over NVMe over RDMA. It moves both ports into one namespace, where they remain in
/// later parts.
const NVME_FIO: &str = include_str!("../../simnic/examples/nvme-fio.sh");
const PART: &str = "== ";
/// Prefix of a line with the virtual time at which a part began.
const AT: &str = "@ ";

/// Requests of one program in one kernel. A command and a register begin with their number, so that their sets are
/// sorted by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// Version as in `uname -r`.
    kernel: String,
    program: String,
    date: String,
    commands: BTreeSet<String>,
    registers: BTreeSet<String>,
    /// Commands and registers that were refused every time.
    refused: BTreeSet<String>,
    packets: BTreeSet<String>,
}

impl Run {
    /// Parses the output of `simnic replay --coverage`.
    fn of(said: &str) -> Result<Self> {
        let coverage = Coverage::parse(said)?;
        let mut run = Self::default();
        let kinds = [
            (coverage.commands, &mut run.commands),
            (coverage.registers, &mut run.registers),
        ];
        for (asked, names) in kinds {
            for (number, asked) in asked.iter().filter(|(_, asked)| asked.times > 0) {
                let name = format!("{number:#06x} {}", asked.name);
                if asked.refused == asked.times {
                    run.refused.insert(name.clone());
                }
                names.insert(name);
            }
        }
        let packets = said.lines().filter_map(|line| line.strip_prefix("packet "));
        run.packets = packets
            .filter_map(|line| line.split_once(' '))
            .map(|(what, _)| what.to_owned())
            .collect();
        Ok(run)
    }

    /// Returns the kernel's version without Debian's suffix.
    fn version(&self) -> String {
        let parts: Vec<&str> = self.kernel.splitn(3, '.').collect();
        parts[..parts.len().min(2)].join(".")
    }
}

/// Records missing recordings, and writes data and page.
pub fn run() -> Result<()> {
    shell::run(shell::cargo(&[
        "build",
        shell::TESTED,
        "--workspace",
        "--bin",
        "simnic",
    ]))?;
    let target = shell::target_directory()?;
    let folder = target.join("matrix");
    std::fs::create_dir_all(&folder)?;
    let mut runs = Vec::new();
    for kernel in KERNELS {
        let recording = folder.join(format!("{kernel}.rec"));
        if !recording.exists() {
            record(&target, kernel, &recording).with_context(|| kernel.to_owned())?;
        }
        runs.extend(read(&target, &recording).with_context(|| kernel.to_owned())?);
    }
    let data = serde_json::to_string_pretty(&runs)? + "\n";
    std::fs::write(shell::root().join(DATA), data)?;
    std::fs::write(shell::root().join(PAGE), page(&runs)?)?;
    println!("matrix: {PAGE} is written");
    Ok(())
}

/// Boots a kernel, records all programs, and notes the virtual time at which each begins.
fn record(target: &Path, kernel: &str, to: &Path) -> Result<()> {
    let simnic = target.join("debug/simnic");
    let run = tempfile::tempdir()?;
    let (unfinished, steer) = (to.with_extension("new"), run.path().join("steer"));
    std::fs::write(run.path().join("nvme-fio.sh"), NVME_FIO)?;
    let mut child = Command::new(&simnic)
        .args(["run", "--kernel", kernel, "--timeout", SECONDS, "--steer"])
        .arg(&steer)
        .arg("--record")
        .arg(&unfinished)
        .args(PACKAGES.map(|package| format!("--package={package}")))
        .args(["--", "sh", "-c", SCRIPT])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(run.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut notes = String::new();
    let output = child.stdout.take().context("its output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        notes += &format!("{line}\n");
        if line.starts_with(PART) {
            let mut time = Command::new(&simnic);
            time.arg("ctl").arg(&steer).arg("time");
            notes += &format!("{AT}{}", said(time)?);
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    std::fs::write(to.with_extension("out"), notes)?;
    std::fs::rename(unfinished, to)?;
    Ok(())
}

/// Replays a recording and returns the requests of each program.
fn read(target: &Path, recording: &Path) -> Result<Vec<Run>> {
    let notes = std::fs::read_to_string(recording.with_extension("out"))?;
    let kernel = notes.lines().next().context("no kernel")?.to_owned();
    let after = |mark: &'static str| {
        notes
            .lines()
            .filter_map(move |line| line.strip_prefix(mark))
    };
    let mut replay = Command::new(target.join("debug/simnic"));
    replay.arg("replay").arg(recording).arg("--coverage");
    for time in after(AT) {
        replay.arg("--part").arg(time.replace(' ', ""));
    }
    let said_of_parts = said(replay)?;
    let mut parts = said_of_parts.split("\npart ").skip(1);
    let mut date = Command::new("date");
    date.arg("+%F").arg("-r").arg(recording);
    let date = said(date)?.trim().to_owned();
    let programs = [BOOT].into_iter().chain(after(PART));
    let programs = programs.take_while(|program| *program != "end");
    let runs = programs.map(|program| {
        Ok(Run {
            kernel: kernel.clone(),
            program: program.to_owned(),
            date: date.clone(),
            ..Run::of(parts.next().context("no such part")?)?
        })
    });
    runs.collect()
}

/// Returns the output of a command. Fails if the command fails.
fn said(mut command: Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| command.get_program().display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn page(runs: &[Run]) -> Result<String> {
    let mut page = "# Who asks what of the simulator\n\n\
        Written by `cargo xtask matrix`, which runs the programs in each kernel by `simnic run --record`, on two Ethernet\n\
        ports of a ConnectX-5, and reads what each asked for out of the recording ([replay.md](replay.md)). A cell names the\n\
        kernels in which it was asked for while the program ran, by either port or by the kernel itself; a dash is none of\n\
        them; (refused): at least one of them was refused it each time. `boot` is what comes before: `mlx5_core` and `mlx5_ib` load, both ports get an address. The data is in\n\
        `docs/simulator-matrix.json`.\n\n\
        ## Runs\n\n"
        .to_owned();
    let mut programs = Vec::new();
    let mut kernels = Vec::new();
    for run in runs {
        if !programs.contains(&&run.program) {
            programs.push(&run.program);
        }
        if !kernels.contains(&&run.kernel) {
            kernels.push(&run.kernel);
        }
    }
    let head = |page: &mut String, first: &str| -> Result<()> {
        write!(page, "| {first} |")?;
        for program in &programs {
            write!(page, " {program} |")?;
        }
        writeln!(page, "\n|{}", "---|".repeat(programs.len() + 1))?;
        Ok(())
    };
    head(&mut page, "Linux")?;
    for kernel in &kernels {
        write!(page, "| {kernel} |")?;
        for program in &programs {
            let is_it = |run: &&Run| run.kernel == **kernel && run.program == **program;
            let date = runs.iter().find(is_it).map_or("not run", |run| &run.date);
            write!(page, " {date} |")?;
        }
        page.push('\n');
    }
    type Part = (&'static str, &'static str, fn(&Run) -> &BTreeSet<String>);
    let parts: [Part; 3] = [
        ("Commands", "Command", |run| &run.commands),
        ("Registers", "Register", |run| &run.registers),
        ("Packets that arrived", "Packet", |run| &run.packets),
    ];
    for (title, first, of) in parts {
        write!(page, "\n## {title}\n\n")?;
        head(&mut page, first)?;
        let names: BTreeSet<&String> = runs.iter().flat_map(of).collect();
        for name in names {
            write!(page, "| {name} |")?;
            for program in &programs {
                let ran = || runs.iter().filter(move |run| run.program == **program);
                let asked: Vec<String> = ran()
                    .filter(|run| of(run).contains(name))
                    .map(Run::version)
                    .collect();
                let cell = match asked.len() {
                    0 => "–".to_owned(),
                    all if all == ran().count() => "all".to_owned(),
                    _ => asked.join(", "),
                };
                let is_refused = ran().any(|run| run.refused.contains(name));
                let mark = if is_refused { " (refused)" } else { "" };
                write!(page, " {cell}{mark} |")?;
            }
            page.push('\n');
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "recorded: simnic run\n\
        function sim:0.sock\n\
        command 0x0500 CREATE_QP asked 12 refused 0\n\
        command 0x0a04 CREATE_UCTX asked 1 refused 1; unknown opcode\n\
        command 0x0304 GEN_EQE asked 0 refused 0\n\
        register 0x5004 PTYS asked 3 refused 0\n\
        packet Rc_SendOnly arrived 40\n";

    #[test]
    fn a_request_that_no_program_sent_is_not_in_a_run() {
        let run = Run::of(SAID).unwrap();
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        assert_eq!(names(&run.commands), "0x0500 CREATE_QP, 0x0a04 CREATE_UCTX");
        assert_eq!(names(&run.refused), "0x0a04 CREATE_UCTX");
        assert_eq!(names(&run.registers), "0x5004 PTYS");
        assert_eq!(names(&run.packets), "Rc_SendOnly");
    }

    #[test]
    fn a_cell_names_the_kernels_that_asked() {
        let run = |kernel: &str, said: &str| Run {
            kernel: kernel.to_owned(),
            program: "rping".to_owned(),
            date: "2026-01-02".to_owned(),
            ..Run::of(said).unwrap()
        };
        let runs = [run("6.1.0-9-amd64", ""), run("6.12.3+deb13-amd64", SAID)];
        let page = page(&runs).unwrap();
        for row in [
            "| 6.1.0-9-amd64 | 2026-01-02 |",
            "| 0x0500 CREATE_QP | 6.12 |",
            "| 0x0a04 CREATE_UCTX | 6.12 (refused) |",
            "| Rc_SendOnly | 6.12 |",
        ] {
            assert!(page.lines().any(|line| line == row), "{row} in {page}");
        }
    }

    #[test]
    fn the_page_is_what_its_data_says() {
        let read = |name| std::fs::read_to_string(shell::root().join(name)).expect(name);
        let runs: Vec<Run> = serde_json::from_str(&read(DATA)).expect("runs");
        let mut boots = runs.iter().filter(|run| run.program == BOOT);
        assert!(
            boots.all(|run| run.commands.len() > 20),
            "every kernel's driver was there"
        );
        assert!(
            page(&runs).unwrap() == read(PAGE),
            "{PAGE} is old: cargo xtask matrix"
        );
    }
}
