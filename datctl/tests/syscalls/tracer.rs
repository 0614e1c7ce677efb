//! Follows a child's system calls with ptrace(2), and makes one of them fail.
//!
//! The child reports that it is ready. The tracer then seizes all its threads and lets it continue. The tracer counts
//! the system calls that the child makes between two calls of getppid(2), the marks; nothing else in the child calls
//! getppid(2). ptrace(2) binds a tracee to one thread of the tracer. Therefore that thread also starts and reaps the
//! child, and the children of other tests belong to other threads.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::{Call, Caller, Fault, Owner, call, call_at_files, owner};
use super::files;
use super::parts::DIRECTORY;

/// Environment variable with the part that a child runs.
pub const PART: &str = "DAT_TEST_SYSCALLS_PART";
/// Time limit for a child. A child that exceeds it is considered hung and is killed.
const PATIENCE: Duration = Duration::from_secs(600);

/// The call that is to fail, identified by its name and by the number of calls of that name before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: &'static str,
    pub before: usize,
    pub fault: Fault,
}

/// Ways in which a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Exit(i32),
    Signal(Signal),
    /// The child did not end in time and was killed.
    Hung,
}

/// Results of tracing a child.
#[derive(Debug)]
pub struct Run {
    /// Number of calls of each name between the marks, and the faults that apply to this call.
    pub calls: BTreeMap<&'static str, (usize, &'static [Fault])>,
    /// Numbers of the system calls that are missing in the tables.
    pub unknown: Vec<i64>,
    /// True if the wanted call occurred.
    pub failed: bool,
    pub ended: Ended,
    pub said: String,
    pub complained: String,
}

/// The reason why this system does not permit tracing.
#[derive(Debug)]
pub struct Forbidden(pub Errno);

/// Interacts with the traced child through its standard input and output. Returns the child's output.
pub type Outside<'a> = dyn Fn(&Path, ChildStdin, BufReader<ChildStdout>) -> String + Sync + 'a;

/// Starts the child's work and collects its output, without any further interaction.
pub fn alone(_: &Path, mut stdin: ChildStdin, mut stdout: BufReader<ChildStdout>) -> String {
    let mut said = String::new();
    // A child that has already ended does not read the line; the error is ignored.
    let _gone = stdin.write_all(b"go\n");
    let _cut = stdout.read_to_string(&mut said);
    said
}

/// Runs a part in a traced child that has its sockets in `directory`, and makes the wanted call fail, if there is one.
#[expect(clippy::zombie_processes, reason = "who traces it waits for it, too")]
pub fn play(
    part: &str,
    directory: &Path,
    wanted: Option<Wanted>,
    outside: &Outside<'_>,
) -> Result<Run, Forbidden> {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "parts::played_by_a_child", "--nocapture"])
        .arg("--test-threads=1")
        .env(PART, part)
        .env(DIRECTORY, directory)
        // malloc uses one arena, which grows by brk(2) and returns no memory to the kernel.
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_TOP_PAD_", "16777216")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a number of a process"));
    let stdin = child.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut stderr = child.stderr.take().expect("a pipe");
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        line.clear();
        let bytes = stdout.read_line(&mut line).expect("readable");
        assert!(bytes > 0, "the child of part {part} said nothing");
    }
    if let Err(errno) = seize(pid) {
        let _ended = child.kill();
        let _ended = child.wait();
        return Err(Forbidden(errno));
    }
    let (over, waits) = channel::<()>();
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let hung = waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
            if hung {
                let _gone = kill(pid, Signal::SIGKILL);
            }
            hung
        });
        let said = scope.spawn(move || outside(directory, stdin, stdout));
        let complained = scope.spawn(move || {
            let mut text = String::new();
            let _cut = stderr.read_to_string(&mut text);
            text
        });
        let mut tracer = Tracer::new(pid, wanted, directory);
        if files::is_a_program(part) {
            tracer.rules = call_at_files;
        }
        let ended = tracer.follow();
        drop(over);
        let hung = watch.join().expect("it does not panic");
        Ok(Run {
            calls: tracer.calls,
            unknown: tracer.unknown,
            failed: tracer.failed,
            ended: if hung { Ended::Hung } else { ended },
            said: said.join().expect("what the child said"),
            complained: complained.join().expect("what the child complained of"),
        })
    })
}

/// Seizes all threads of a process that creates no threads meanwhile.
fn seize(pid: Pid) -> nix::Result<()> {
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_EXITKILL;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    for task in tasks {
        let name = task.expect("a thread").file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let thread = Pid::from_raw(thread.expect("a number"));
        ptrace::seize(thread, options)?;
        ptrace::interrupt(thread)?;
    }
    Ok(())
}

/// Lengths that a call had before the tracer cut them, each after the address at which it is stored.
type Cut = Vec<(u64, u64)>;

struct Tracer {
    leader: Pid,
    /// Directory of the files on which system calls are made to fail.
    files: PathBuf,
    rules: fn(i64, [u64; 6], &dyn Caller) -> Call,
    wanted: Option<Wanted>,
    /// True between the marks, while calls are counted.
    counts: bool,
    over: bool,
    calls: BTreeMap<&'static str, (usize, &'static [Fault])>,
    unknown: Vec<i64>,
    failed: bool,
    /// Error to return to each thread whose current call is made to fail.
    answers: HashMap<Pid, Errno>,
    /// Lengths to restore in each thread's memory when its current call ends.
    cut: HashMap<Pid, Cut>,
    /// Size and owner of the memory that each thread's current call requests.
    asking: HashMap<Pid, (u64, Owner)>,
    /// Mapped memory by its start address: the end address and the owner.
    memory: BTreeMap<u64, (u64, Owner)>,
}

impl Caller for Tracer {
    fn descriptor(&self, fd: u64) -> String {
        std::fs::read_link(format!("/proc/{}/fd/{fd}", self.leader))
            .map(|link| link.display().to_string())
            .unwrap_or_default()
    }

    fn owner(&self, address: u64) -> Owner {
        match self.memory.range(..=address).next_back() {
            Some((_, (end, owner))) if address < *end => *owner,
            Some(_) | None => Owner::Project,
        }
    }

    fn path(&self, address: u64) -> PathBuf {
        let mut bytes = Vec::new();
        // The path is read in pieces, because the memory after the path may not be mapped.
        while !bytes.contains(&0) && bytes.len() < PATH_BYTES {
            let at = address + bytes.len() as u64;
            let mut piece = [0; PIECE];
            // This piece ends at the next multiple of `PIECE`, so that no read crosses a page boundary.
            let length = PIECE - usize::try_from(at % PIECE as u64).expect("less than a piece");
            if read(self.leader, at, &mut piece[..length]).is_err() {
                return PathBuf::new();
            }
            bytes.extend_from_slice(&piece[..length]);
        }
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_bytes);
        OsStr::from_bytes(text.unwrap_or_default()).into()
    }

    fn files(&self) -> &Path {
        &self.files
    }
}

/// Length of the longest path, and of one read, in bytes. The length of a read divides the page size.
const PATH_BYTES: usize = 4096;
const PIECE: usize = 64;

/// Reads memory of the traced process.
fn read(pid: Pid, address: u64, bytes: &mut [u8]) -> nix::Result<()> {
    let from = remote(address, bytes.len());
    match process_vm_readv(pid, &mut [IoSliceMut::new(bytes)], &[from])? {
        read if read == from.len => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

#[expect(clippy::host_endian_bytes, reason = "memory of this machine")]
fn read_u64(pid: Pid, address: u64) -> nix::Result<u64> {
    let mut bytes = [0; 8];
    read(pid, address, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[expect(clippy::host_endian_bytes, reason = "memory of this machine")]
fn write_u64(pid: Pid, address: u64, value: u64) -> nix::Result<()> {
    let bytes = value.to_ne_bytes();
    let to = remote(address, bytes.len());
    process_vm_writev(pid, &[IoSlice::new(&bytes)], &[to])?;
    Ok(())
}

fn remote(address: u64, len: usize) -> RemoteIoVec {
    RemoteIoVec {
        base: usize::try_from(address).expect("64 bits"),
        len,
    }
}

/// Halves the buffers of a message (`struct msghdr`), and returns their original lengths.
fn cut(pid: Pid, message: u64) -> nix::Result<Cut> {
    let (vectors, count) = (read_u64(pid, message + 16)?, read_u64(pid, message + 24)?);
    // Each `struct iovec` is an address (8 bytes) and a length (8 bytes).
    let lengths = (0..count)
        .map(|number| vectors + 16 * number + 8)
        .map(|at| Ok((at, read_u64(pid, at)?)))
        .collect::<nix::Result<Cut>>()?;
    let all: u64 = lengths.iter().map(|(_, length)| length).sum();
    let mut left = all.div_ceil(2);
    for &(at, length) in &lengths {
        let kept = length.min(left);
        left -= kept;
        write_u64(pid, at, kept)?;
    }
    Ok(lengths)
}

impl Tracer {
    fn new(leader: Pid, wanted: Option<Wanted>, directory: &Path) -> Self {
        Self {
            leader,
            files: files::of(directory),
            rules: call,
            wanted,
            counts: false,
            over: false,
            calls: BTreeMap::new(),
            unknown: Vec::new(),
            failed: false,
            answers: HashMap::new(),
            cut: HashMap::new(),
            asking: HashMap::new(),
            memory: BTreeMap::new(),
        }
    }

    /// Handles the process's ptrace stops until the process has ended.
    fn follow(&mut self) -> Ended {
        let of_this_thread = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = match waitpid(Pid::from_raw(-1), Some(of_this_thread)) {
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                Err(errno) => panic!("waitpid: {errno}"),
            };
            match status {
                WaitStatus::Exited(pid, code) if pid == self.leader => return Ended::Exit(code),
                WaitStatus::Signaled(pid, signal, _) if pid == self.leader => {
                    return Ended::Signal(signal);
                }
                WaitStatus::PtraceSyscall(pid) => {
                    // The process may have been killed at any time; then the error is ignored.
                    let _gone = self.at_call(pid);
                    self.resume(pid, None);
                }
                WaitStatus::PtraceEvent(pid, ..) => self.resume(pid, None),
                WaitStatus::Stopped(pid, signal) => self.resume(pid, Some(signal)),
                WaitStatus::Exited(..)
                | WaitStatus::Signaled(..)
                | WaitStatus::Continued(_)
                | WaitStatus::StillAlive => {}
            }
        }
    }

    fn resume(&self, pid: Pid, signal: Option<Signal>) {
        let _gone = if self.over {
            ptrace::cont(pid, signal)
        } else {
            ptrace::syscall(pid, signal)
        };
    }

    /// Handles a thread at the entry or the exit of a call.
    fn at_call(&mut self, pid: Pid) -> nix::Result<()> {
        let enters = ptrace::syscall_info(pid)?.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
        let mut registers = ptrace::getregs(pid)?;
        if !enters {
            for (at, length) in self.cut.remove(&pid).unwrap_or_default() {
                write_u64(pid, at, length)?;
            }
            if let Some(errno) = self.answers.remove(&pid) {
                registers.rax = i64::from(-(errno as i32)).cast_unsigned();
                return ptrace::setregs(pid, registers);
            }
            if let Some((bytes, owner)) = self.asking.remove(&pid)
                && registers.rax.cast_signed() > 0
            {
                let end = registers.rax.saturating_add(bytes);
                self.memory.insert(registers.rax, (end, owner));
            }
            return Ok(());
        }
        let number = registers.orig_rax.cast_signed();
        if number == libc::SYS_getppid {
            self.over = self.counts;
            self.counts = !self.counts;
            return Ok(());
        }
        let arguments = [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ];
        let known = self.counts.then(|| (self.rules)(number, arguments, self));
        self.note_memory(pid, number, arguments);
        let (name, faults) = match known {
            Some(Call::Fails(name, faults)) => (name, faults),
            Some(Call::Left) | None => return Ok(()),
            Some(Call::Unknown) => {
                self.unknown.push(number);
                return Ok(());
            }
        };
        let (count, _) = self.calls.entry(name).or_insert((0, faults));
        let before = *count;
        *count += 1;
        let Some(wanted) = self
            .wanted
            .filter(|one| one.name == name && one.before == before)
        else {
            return Ok(());
        };
        self.failed = true;
        self.asking.remove(&pid);
        match wanted.fault {
            Fault::Error(errno) => {
                self.answers.insert(pid, errno);
                // The kernel rejects this call number, so the call has no effect.
                registers.orig_rax = u64::MAX;
            }
            Fault::Done(errno) => {
                self.answers.insert(pid, errno);
                return Ok(());
            }
            Fault::Short => match number {
                libc::SYS_sendmsg | libc::SYS_recvmsg => {
                    self.cut.insert(pid, cut(pid, registers.rsi)?);
                    return Ok(());
                }
                // If fewer entries than given were submitted, the kernel does not wait for completions
                // (`io_uring_enter` of Linux io_uring/io_uring.c).
                libc::SYS_io_uring_enter if registers.rsi > 1 => {
                    registers.rsi = registers.rsi.div_ceil(2);
                    registers.rdx = 0;
                }
                libc::SYS_io_uring_enter => return Ok(()),
                _ => registers.rdx = registers.rdx.div_ceil(2),
            },
        }
        ptrace::setregs(pid, registers)
    }

    /// Records the owner of memory that a call maps, and forgets memory that a call unmaps.
    fn note_memory(&mut self, pid: Pid, number: i64, arguments: [u64; 6]) {
        let [address, bytes, new_bytes, ..] = arguments;
        if number == libc::SYS_mmap {
            let owner = owner(arguments, self);
            if owner != Owner::Project {
                self.asking.insert(pid, (bytes, owner));
            }
        } else if number == libc::SYS_munmap {
            self.memory.remove(&address);
        } else if number == libc::SYS_mremap
            && let Some((_, owner)) = self.memory.remove(&address)
        {
            self.asking.insert(pid, (new_bytes, owner));
        }
    }
}
