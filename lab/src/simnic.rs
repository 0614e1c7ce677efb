//! Tests `simnic run` as a user runs it. The first test covers input and output through pipes, both ports, the working
//! directory, Ctrl-C and the exit status. The second has two InfiniBand ports, and reads the output late. The third has
//! readers that stop reading. The fourth connects four ports to a switch that marks packets and sends pause frames; its
//! run is recorded, and replayed without the machine.
//!
//! The tests boot the emulated machine five times, which takes some fifteen seconds each. The first run also unpacks
//! some hundred megabytes of packages. QEMU and the kernel are those of `cargo xtask vm`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

/// Bytes of input for the guest: more than a pipe and the queues of QEMU and the guest's port hold.
const BYTES: usize = 1 << 22;
/// Script that `simnic run` executes in the first test.
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
/// Script for two InfiniBand ports, which have LIDs as addresses. The out-of-band exchange of its programs uses another
/// network. At its end the script writes more than sockets and pipes hold, but less than they and the guest's queue
/// hold together. The queue has 128 pieces of some KiB. A file counts the pieces written, because a reader that waited
/// for the end of the script while the queue is full would wait for ever.
const INFINIBAND: &str = "
    cat /sys/class/infiniband/mlx5_0/ports/1/link_layer
    pingpong() {
        until $1 ss -ltn | grep -q 18515; do sleep 0.1; done
        ibv_rc_pingpong -d mlx5_0 -n 100 192.0.2.2 | grep -c '100 iters in'
        wait $!
    }
    peer ibv_rc_pingpong -n 100 > peer.txt &
    pingpong peer
    ports-together
    ibv_rc_pingpong -d mlx5_1 -n 100 > peer.txt &
    pingpong
    for piece in $(seq 30); do
        yes | head -c 20000
        echo $piece > pieces
    done
";
/// Name of the file that counts pieces, number of all pieces, and bytes in a piece.
const PIECES: &str = "pieces";
const ALL: usize = 30;
const PIECE: usize = 20_000;
/// Time between two checks of the file that counts pieces.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of checks without a new piece after which the late reader begins to read, since the queues are then full.
const UNCHANGED_POLLS: u32 = 500;
/// Script in which three ports write to the first at once, over a switch that is slower than they are. The counters of
/// stock `mlx5_ib` show the congestion notifications. The driver also has files for the congestion control parameters
/// of a port: the script writes a valid value and reads it back, and writes an invalid value, which is refused.
const INCAST: &str = "
    for n in 2 3 4; do
        ib_write_bw -F -x 3 -s 65536 -n 100 -p $((18515 + n)) > receiver$n.txt &
    done
    for n in 2 3 4; do
        until ss -ltn | grep -q $((18515 + n)); do sleep 0.1; done
        port $n ib_write_bw -F -x 3 -s 65536 -n 100 -p $((18515 + n)) 192.0.2.1 > sender$n.txt &
    done
    wait
    for n in 2 3 4; do grep -c '^ 65536' sender$n.txt; done
    counter() { cat /sys/class/infiniband/mlx5_$1/ports/1/hw_counters/$2; }
    counter 0 np_ecn_marked_roce_packets
    counter 0 np_cnp_sent
    for n in 2 3 4; do
        counters=/sys/class/infiniband/mlx5_$((n - 1))/ports/1/hw_counters
        port $n cat $counters/rp_cnp_handled $counters/rp_cnp_ignored
    done
    mount -t debugfs none /sys/kernel/debug
    set -- /sys/kernel/debug/mlx5/*/cc_params
    cd $1
    echo 7 > rp_ai_rate
    cat rp_ai_rate rp_time_reset
    echo 0 > rp_ai_rate 2>/dev/null
    echo $?
    cat rp_ai_rate
";
/// Settings of the switch between the four ports.
const SWITCH: &str = "rate=100M,buffer=256K,ecn,pfc";

/// Output of the script that requests a Ctrl-C.
const INTERRUPT: &str = "interrupt me";
/// Time limit in seconds from the start of the command. It only ends a hang, and measures nothing.
const SECONDS: &str = "1800";
/// Time after which a whole run is killed. It is above simnic's own limit.
const HANG_LIMIT: Duration = Duration::from_secs(3600);
/// Time limit in seconds of a command whose reader stops reading.
const SOON: &str = "5";
/// A command that writes without end, more than any queue holds.
const FLOOD: &str = "yes";

/// A recorded run that the tests of simnic's replay use.
struct Recording {
    file: &'static str,
    /// The script that is recorded.
    script: &'static str,
    /// Exit status of the script.
    status: i32,
}

/// Folder in which the recordings are.
const RECORDINGS: &str = "simnic/tests/recordings";
/// All recordings. They use virtual functions, for which the driver creates no memory keys in advance.
const RECORDED: [Recording; 2] = [
    Recording {
        file: "linux.rec",
        script: "
            ibv_devinfo
            peer ibv_rc_pingpong -g 3 -n 10 &
            until peer ss -ltn | grep -q 18515; do sleep 0.1; done
            ibv_rc_pingpong -g 3 -n 10 192.0.2.2 && wait
        ",
        status: 0,
    },
    Recording {
        file: "late-write.rec",
        script: "peer python3 late-write.py & python3 late-write.py 192.0.2.2",
        status: 1,
    },
];
/// The program that fails in one of the recordings.
const LATE_WRITE: &str = include_str!("../../simnic/examples/late-write.py");

/// Options of `cargo xtask simnic`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Record the runs in simnic/tests/recordings anew, which the tests replay.
    #[arg(long)]
    record: bool,
}

/// Runs all tests, or makes the recordings.
pub fn run(arguments: &Arguments) -> Result<()> {
    match arguments.record {
        true => record(),
        false => judge(),
    }
}

fn record() -> Result<()> {
    shell::run(shell::cargo(&[
        "build",
        shell::TESTED,
        "--workspace",
        "--bin=simnic",
    ]))?;
    let target = shell::target_directory()?;
    let share = tempfile::tempdir()?;
    std::fs::write(share.path().join("late-write.py"), LATE_WRITE)?;
    for Recording {
        file,
        script,
        status,
    } in RECORDED
    {
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
            .arg(shell::root().join(RECORDINGS).join(file))
            .args(["--", "sh", "-c", script])
            .env("SIMNIC_CACHE", target.join("vm"))
            .current_dir(share.path());
        let (ended, said, beside) = run_with_input(command, Vec::new())?;
        print!("{said}");
        ensure!(
            ended == Some(status),
            "{file}: simnic run ends with {ended:?}, not {status}: {beside}"
        );
    }
    Ok(())
}

fn judge() -> Result<()> {
    shell::run(shell::cargo(&[
        "build",
        shell::TESTED,
        "--workspace",
        "--bin=simnic",
    ]))?;
    let target = shell::target_directory()?;
    slip(&target)?;
    let share = tempfile::tempdir()?;
    let input: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let expected = cksum(&input)?;
    let mut command = Command::new(target.join("debug/simnic"));
    command
        .args(["run", "--timeout", SECONDS, "--", "sh", "-c", SCRIPT])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    let began = Instant::now();
    let (status, said, beside) = run_with_input(command, input)?;
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
    infiniband(&target)?;
    unread(&target)?;
    incast(&target)?;
    println!("simnic: {:.0} s in all", began.elapsed().as_secs_f64());
    Ok(())
}

/// Checks that simnic refuses an unknown option, instead of passing it to the command, and boots nothing.
fn slip(target: &Path) -> Result<()> {
    let mut command = Command::new(target.join("debug/simnic"));
    command.args(["run", "--port", "4", "--", "true"]);
    let (status, said, beside) = run_with_input(command, Vec::new())?;
    ensure!(
        status == Some(2) && said.is_empty() && beside.contains("'--ports'"),
        "simnic run --port ends with {status:?}: {said}{beside}"
    );
    Ok(())
}

/// Tests two InfiniBand ports: first each in its own namespace, then both together.
fn infiniband(target: &Path) -> Result<()> {
    let share = tempfile::tempdir()?;
    let mut command = Command::new(target.join("debug/simnic"));
    command
        .args(["run", "--profile", "ib", "--timeout", SECONDS])
        .args(["--", "sh", "-c", INFINIBAND])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    let pieces = share.path().join(PIECES);
    let (status, said, beside) = read_late(command, Vec::new(), written(pieces))?;
    let head: String = said.chars().take(200).collect();
    let all = "y\n".repeat(ALL * PIECE / 2);
    ensure!(
        status == Some(0) && said == format!("InfiniBand\n1\n1\n{all}"),
        "InfiniBand: simnic run ends with {status:?}: {} bytes: {head}{beside}",
        said.len()
    );
    println!(
        "two ports of InfiniBand: connected in two namespaces, and in one; all that was written is there for a late reader"
    );
    Ok(())
}

/// Returns a function that returns true once the file counts all pieces, or its count has not changed for
/// `UNCHANGED_POLLS` calls.
fn written(file: PathBuf) -> impl FnMut() -> bool {
    let (mut before, mut looks) = (String::new(), 0);
    move || {
        let now = std::fs::read_to_string(&file).unwrap_or_default();
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
        before.trim() == ALL.to_string() || (looks > UNCHANGED_POLLS && !before.is_empty())
    }
}

/// Checks that a run ends at its time limit if its reader never reads, or stops after some bytes.
fn unread(target: &Path) -> Result<()> {
    for read in [0, 1_000_000] {
        let mut command = Command::new(target.join("debug/simnic"));
        command
            .args(["run", "--timeout", SOON])
            .args(["--", FLOOD])
            .env("SIMNIC_CACHE", target.join("vm"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("simnic")?;
        let over = limited(&child);
        let mut output = child.stdout.take().context("its output")?;
        std::io::copy(&mut output.by_ref().take(read), &mut std::io::sink())?;
        let mut beside = String::new();
        let mut errors = child.stderr.take().context("its errors")?;
        errors.read_to_string(&mut beside)?;
        let status = child.wait()?;
        drop((over, output));
        ensure!(
            status.code() == Some(124)
                && beside.contains(" bytes of the command's output are lost: nothing reads them"),
            "a reader that reads {read} bytes: simnic run ends with {status}: {beside}"
        );
    }
    println!("a run whose reader stops ends at its time limit");
    Ok(())
}

/// Kills a run that has not ended within [`HANG_LIMIT`]. The caller prevents this by dropping the returned sender.
fn limited(child: &Child) -> Sender<()> {
    let id = child.id().to_string();
    let (over, is_over) = channel();
    thread::spawn(move || {
        if is_over.recv_timeout(HANG_LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!(
                "simnic run has not ended within {HANG_LIMIT:?}, past its --timeout: it is killed"
            );
            // This fails if the run has just ended, which does no harm.
            let _ = shell::run(shell::command("kill", &["-s", "KILL", &id]));
        }
    });
    over
}

/// Tests four ports on a switch.
fn incast(target: &Path) -> Result<()> {
    let share = tempfile::tempdir()?;
    let mut command = Command::new(target.join("debug/simnic"));
    let recording = share.path().join("incast.rec");
    command
        .args(["run", "--ports", "4", "--switch", SWITCH, "--record"])
        .arg(&recording)
        .args(["--timeout", SECONDS, "--", "sh", "-c", INCAST])
        .env("SIMNIC_CACHE", target.join("vm"))
        .current_dir(share.path());
    let (status, said, beside) = run_with_input(command, Vec::new())?;
    ensure!(
        status == Some(0),
        "four ports: simnic run ends with {status:?}: {beside}"
    );
    let numbers: Result<Vec<u64>, _> = said.lines().map(str::parse).collect();
    let numbers = numbers.with_context(|| format!("four ports: {said:?}: {beside}"))?;
    let [1, 1, 1, marked, told, answers @ .., 7, 55, 1, 7] = &numbers[..] else {
        bail!(
            "four ports: not all have written, or parameters are not as they were set: {numbers:?}: {beside}"
        );
    };
    println!(
        "four ports on a switch: {marked} packets marked, {told} told of, {answers:?} heeded and ignored"
    );
    let mut heeded = answers.iter().step_by(2);
    ensure!(
        *told > 0 && told <= marked && answers.len() == 6 && heeded.all(|&count| count > 0),
        "who sends is not told of congestion"
    );
    // In this run no notification is lost. A sender ignores a notification whose queue pair is destroyed already, which
    // happens after a retransmission.
    ensure!(
        answers.iter().sum::<u64>() == *told,
        "{told} notifications sent, {answers:?} heeded and ignored"
    );
    // Replays the run without the machine, and compares the log line by line.
    let mut again = Command::new(target.join("debug/simnic"));
    again.arg("replay").arg(&recording);
    println!("{}", shell::capture(again)?);
    Ok(())
}

fn cksum(bytes: &[u8]) -> Result<String> {
    let (_, said, _) = run_with_input(Command::new("cksum"), bytes.to_vec())?;
    Ok(said)
}

/// Runs a command with this input, and sends it a Ctrl-C when its output requests one. Returns its exit status, output
/// and errors.
fn run_with_input(command: Command, input: Vec<u8>) -> Result<(Option<i32>, String, String)> {
    read_late(command, input, || true)
}

/// Runs a command as `run_with_input` does, but reads the output only once a condition is true or the command has
/// ended.
fn read_late(
    mut command: Command,
    input: Vec<u8>,
    mut is_time: impl FnMut() -> bool,
) -> Result<(Option<i32>, String, String)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| command.get_program().display().to_string())?;
    let _over = limited(&child);
    let mut to = child.stdin.take().context("its input")?;
    let said = child.stdout.take().context("its output")?;
    let mut beside = child.stderr.take().context("its errors")?;
    let writer = thread::spawn(move || to.write_all(&input));
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        beside.read_to_end(&mut text).map(|_| text)
    });
    while !is_time() && child.try_wait()?.is_none() {
        thread::park_timeout(POLL_INTERVAL);
    }
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
    // Writing the input fails if the command ends early. Its output then shows the reason.
    let _ = writer.join();
    let errors = errors.join().expect("a reader does not panic")?;
    let errors = String::from_utf8_lossy(&errors).into_owned();
    Ok((status.code(), output, errors))
}
