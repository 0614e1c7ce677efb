//! `simnic run` as a person runs it: input and output through pipes, both ports, the working directory, Ctrl-C, exit
//! status.
//!
//! One boot of the emulated machine, some fifteen seconds; the first time some hundred megabytes of packages are
//! unpacked besides. QEMU and the kernel are those of `cargo xtask vm`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// What the guest is given: more than a pipe and the queues of QEMU and the guest's port hold.
const BYTES: usize = 1 << 22;
/// What it is to do.
const SCRIPT: &str = "
    cksum
    echo beside >&2
    peer ibv_rc_pingpong -g 3 -n 100 > peer.txt &
    until peer ss -ltn | grep -q 18515; do sleep 0.1; done
    ibv_rc_pingpong -g 3 -n 100 192.0.2.2 > ours.txt
    echo pingpong $?
    wait $! && echo peer $?
    trap 'exit 3' INT
    echo interrupt me
    sleep 1000 &
    wait
";
/// When it says this, it wants a Ctrl-C.
const INTERRUPT: &str = "interrupt me";
/// The longest it may take from the beginning of the command.
const SECONDS: &str = "300";

/// The recording that a test of simnic's replays.
const RECORDING: &str = "simnic/tests/recordings/linux.rec";
/// What it is of; virtual functions, since a driver makes no keys in advance for these.
const RECORDED: &str = "
    ibv_devinfo
    peer ibv_rc_pingpong -g 3 -n 10 &
    until peer ss -ltn | grep -q 18515; do sleep 0.1; done
    ibv_rc_pingpong -g 3 -n 10 192.0.2.2 && wait
";

/// What is run.
#[derive(clap::Args)]
pub struct Arguments {
    /// Record a small run anew, for the test that replays one: simnic/tests/recordings/linux.rec.
    #[arg(long)]
    record: bool,
}

/// Boots and judges, or records.
pub fn run(arguments: &Arguments) -> Result<()> {
    match arguments.record {
        true => record(),
        false => judge(),
    }
}

fn record() -> Result<()> {
    shell::run(shell::cargo(&["build", "--package", "simnic"]))?;
    let target = shell::target_directory()?;
    let share = tempfile::tempdir()?;
    let mut command = Command::new(target.join("debug/simnic"));
    command
        .args([
            "run",
            "--timeout",
            SECONDS,
            "--profile",
            "connectx-7-vf,roce",
        ])
        .arg("--record")
        .arg(shell::root().join(RECORDING))
        .args(["--", "sh", "-c", RECORDED])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    shell::run(command)
}

fn judge() -> Result<()> {
    shell::run(shell::cargo(&["build", "--package", "simnic"]))?;
    let target = shell::target_directory()?;
    let share = tempfile::tempdir()?;
    let input: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let expected = cksum(&input)?;
    let mut command = Command::new(target.join("debug/simnic"));
    command
        .args(["run", "--timeout", SECONDS, "--", "sh", "-c", SCRIPT])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    let began = Instant::now();
    let (status, said, beside) = fed(command, input)?;
    print!("{said}");
    let lines: Vec<&str> = said.lines().collect();
    let wanted = [expected.trim_end(), "pingpong 0", "peer 0", INTERRUPT];
    ensure!(
        lines == wanted,
        "simnic run says {lines:?}, not {wanted:?}: {beside}"
    );
    ensure!(
        status == Some(3),
        "simnic run ends with {status:?}, not 3: {beside}"
    );
    ensure!(
        beside.lines().any(|line| line == "beside"),
        "errors are lost: {beside}"
    );
    for name in ["ours.txt", "peer.txt"] {
        let file = share.path().join(name);
        let said = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        ensure!(said.contains("100 iters in"), "{name}: {said}");
    }
    println!("simnic: {:.0} s in all", began.elapsed().as_secs_f64());
    Ok(())
}

fn cksum(bytes: &[u8]) -> Result<String> {
    let (_, said, _) = fed(Command::new("cksum"), bytes.to_vec())?;
    Ok(said)
}

/// Runs a command with this input, and interrupts it when it asks for that: its exit status, output and errors.
fn fed(mut command: Command, input: Vec<u8>) -> Result<(Option<i32>, String, String)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| command.get_program().display().to_string())?;
    let mut to = child.stdin.take().context("its input")?;
    let said = child.stdout.take().context("its output")?;
    let mut beside = child.stderr.take().context("its errors")?;
    let writer = thread::spawn(move || to.write_all(&input));
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        beside.read_to_end(&mut text).map(|_| text)
    });
    let mut output = String::new();
    for line in BufReader::new(said).lines() {
        let line = line?;
        if line == INTERRUPT {
            let id = child.id().to_string();
            shell::run(shell::command("kill", &["-s", "INT", &id]))?;
        }
        output += &format!("{line}\n");
    }
    let status = child.wait()?;
    // Who ends early has not read everything; what it said tells why.
    let _ = writer.join();
    let errors = errors.join().expect("a reader does not panic")?;
    let errors = String::from_utf8_lossy(&errors).into_owned();
    Ok((status.code(), output, errors))
}
