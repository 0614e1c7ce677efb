//! Connections between simnic and the guest: sockets that QEMU presents to the guest as virtio ports.
//!
//! ```text
//!   nr 0  terminal   a console of the guest's, if simnic itself has a terminal
//!   nr 1  control    lines: signals and sizes go in; ready, failed, taken and status come out (guest/simnic-guest)
//!   nr 2  in         standard input, in pieces: a line with the number of bytes, then these; 0 is the end
//!   nr 3  out        standard output
//!   nr 4  err        standard error
//! ```
//!
//! simnic listens and QEMU connects. A write in the guest returns when the data is in the guest's queue of the port,
//! which QEMU empties as fast as simnic reads. So the guest reports the number of bytes that it has written, and simnic
//! ends QEMU when the reader of simnic's own output has read that many ([`Session::drain`]). Bytes of a terminal are
//! not counted.
//!
//! A reader may stop reading, and then a write to it never returns. So separate threads write. No other thread waits
//! for them without a limit, and the process ends without joining them. Bytes that the reader did not read are counted
//! ([`Session::lost`]).
//!
//! QEMU drops input that does not fit into the guest's queue of a port. So simnic sends a piece of the input only when
//! the guest has confirmed the previous piece over `control`.
//!
//! SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the command; the third signal ends the machine.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write, stderr, stdin, stdout};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use guest::child::Running;
use nix::sys::signal::{SigSet, Signal};

use super::command::quoted;
use super::terminal::{self, Raw};

/// Ports besides the terminal, in the order of their numbers.
const PORTS: [&str; 4] = ["control", "in", "out", "err"];
/// Line by which the guest asks for the next piece of the input.
const TAKEN: &str = "taken";
/// Number of received signals at which simnic ends the machine in any case.
const LAST: usize = 3;
/// Maximum number of bytes read at once.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes written at once. A write of up to PIPE_BUF bytes to a pipe is atomic, so a write that never
/// returns has written nothing.
const PIECE: usize = 4096;
/// Interval at which simnic checks whether QEMU has connected.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a reader has for the remaining output when a time limit or a signal ends the machine.
pub const GRACE: Duration = Duration::from_secs(5);

/// Returns a folder whose path is short enough for sockets in it.
pub fn short_folder() -> PathBuf {
    let folder = std::env::temp_dir();
    match folder.as_os_str().len() {
        0..=60 => folder,
        _ => PathBuf::from("/tmp"),
    }
}

/// Returns the paths of the functions' sockets.
pub fn function_sockets(run: &Path, ports: u8) -> Vec<PathBuf> {
    (0..ports)
        .map(|number| run.join(format!("{number}.sock")))
        .collect()
}

/// Returns the folder that contains the guest's instructions.
pub fn instructions(run: &Path) -> PathBuf {
    run.join("told")
}

fn socket(run: &Path, name: &str) -> PathBuf {
    run.join(format!("{name}.sock"))
}

/// Adds the ports to QEMU's command line.
pub fn add_ports(qemu: &mut Command, run: &Path, is_terminal: bool) {
    let at = |name: &str| format!("socket,id={name},path={}", socket(run, name).display());
    let terminal = match is_terminal {
        true => at("terminal"),
        false => "null,id=terminal".to_owned(),
    };
    qemu.args(["-device", "virtio-serial-pci,max_ports=8"]);
    qemu.args([
        "-chardev",
        &terminal,
        "-device",
        "virtconsole,chardev=terminal,nr=0",
    ]);
    for (number, name) in (1..).zip(PORTS) {
        if is_terminal && name != "control" {
            continue;
        }
        qemu.args(["-chardev", &at(name), "-device"]);
        qemu.arg(format!(
            "virtserialport,chardev={name},nr={number},name={name}"
        ));
    }
}

/// An event of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The command begins.
    Ready,
    /// The command cannot begin.
    Failed(String),
    /// The command has ended with a status, and has written this many bytes of output and of errors.
    Status { status: u8, written: [u64; 2] },
    /// The last permitted signal has arrived: the machine has to end, with this status.
    Signal(u8),
    /// An output has made progress: its reader has read some bytes, or the output has ended.
    Moved,
    /// The guest has closed its connection.
    Over,
    /// The guest has sent any other line, which is an error.
    Unexpected(String),
}

impl Event {
    /// Parses a line of the guest.
    fn parse(line: &str) -> Self {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => Self::Ready,
            "failed" => Self::Failed(rest.to_owned()),
            "status" => Self::ended(rest).unwrap_or_else(|| Self::Unexpected(line.to_owned())),
            _ => Self::Unexpected(line.to_owned()),
        }
    }

    /// Parses a status, followed by the numbers of bytes written if the guest counted them.
    fn ended(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let status = words.next()?.parse().ok()?;
        let mut written = [0; 2];
        for (count, word) in written.iter_mut().zip(&mut words) {
            *count = word.parse().ok()?;
        }
        words
            .next()
            .is_none()
            .then_some(Self::Status { status, written })
    }
}

/// Progress of one output of the command.
#[derive(Debug, Default)]
struct Progress {
    /// Number of bytes received from the machine.
    come: u64,
    /// Number of bytes that the reader accepted.
    taken: u64,
    /// Error of the reader. Bytes that arrive later are dropped.
    refused: Option<std::io::Error>,
    /// True if the machine sends no more bytes.
    is_over: bool,
}

impl Progress {
    /// Returns whether the reader has this many bytes, or will get no more.
    fn has_passed(&self, bytes: u64) -> bool {
        let passed = if self.refused.is_some() {
            self.come
        } else {
            self.taken
        };
        self.is_over || passed >= bytes
    }
}

/// Counts an output's bytes, and wakes the thread that waits for them.
struct Meter {
    progress: Mutex<Progress>,
    events: SyncSender<Event>,
}

impl Meter {
    fn new(events: SyncSender<Event>) -> Arc<Self> {
        Arc::new(Self {
            progress: Mutex::default(),
            events,
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress());
        // If the queue is full, this event is dropped: the receiver checks the progress after every other event, too.
        let _ = self.events.try_send(Event::Moved);
    }
}

/// An output of the command.
struct Output {
    name: &'static str,
    meter: Arc<Meter>,
    /// Source of the output, needed to count the bytes that the output's thread has not read.
    from: UnixStream,
}

/// Reason why draining the outputs ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Drained {
    /// The readers have everything, or have refused the rest.
    Whole,
    /// A reader did not read everything before the deadline.
    Late,
    /// The last signal arrived, with this status.
    Signal(u8),
}

/// Bytes of an output that did not reach its reader.
#[derive(Debug, PartialEq, Eq)]
pub struct Lost {
    /// Description in one sentence.
    pub what: String,
    /// True if the system reported an error, false if the reader stopped reading.
    pub is_failure: bool,
}

/// The connections of one run.
pub struct Session {
    run: PathBuf,
    ports: u8,
    listeners: Vec<(&'static str, UnixListener)>,
    is_terminal: bool,
    raw: Option<Raw>,
    received: Receiver<Event>,
    events: SyncSender<Event>,
    /// Confirmations from the thread that reads the guest's messages to the thread that feeds the input.
    taken: Option<Sender<()>>,
    takes: Option<Receiver<()>>,
    signals: Option<SigSet>,
    outputs: Vec<Output>,
}

impl Session {
    /// Listens on the sockets, and blocks the signals that are passed to the guest.
    pub fn open(run: &Path, ports: u8) -> Result<Self> {
        let is_terminal = Raw::is_wanted();
        let names: &[&str] = match is_terminal {
            true => &["terminal", "control"],
            false => &PORTS,
        };
        let listeners = names.iter().map(|&name| {
            let listener = UnixListener::bind(socket(run, name))?;
            listener.set_nonblocking(true)?;
            Ok((name, listener))
        });
        let listeners = listeners
            .collect::<std::io::Result<_>>()
            .context("a socket")?;
        let mut signals = SigSet::empty();
        for signal in [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGWINCH,
        ] {
            signals.add(signal);
        }
        // Threads that are started later inherit the mask, so only the thread that waits for the signals gets them.
        signals.thread_block()?;
        let (events, received) = sync_channel(16);
        let (taken, takes) = channel();
        Ok(Self {
            run: run.to_owned(),
            ports,
            listeners,
            is_terminal,
            raw: None,
            received,
            events,
            taken: Some(taken),
            takes: Some(takes),
            signals: Some(signals),
            outputs: Vec::new(),
        })
    }

    /// Returns whether the command has the terminal of this process.
    pub fn terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes the settings and the command that the guest reads.
    pub fn write_instructions(&self, script: &str, share: &Path, address: Ipv4Addr) -> Result<()> {
        let folder = instructions(&self.run);
        std::fs::create_dir(&folder)?;
        let (rows, columns) = terminal::size();
        let settings = format!(
            "export PORTS={}\nTERMINAL={}\nROWS={rows}\nCOLUMNS={columns}\nSHARE={}\nexport ADDRESS={address}\n",
            self.ports,
            if self.is_terminal { "yes" } else { "no" },
            quoted(&share.to_string_lossy())
        );
        std::fs::write(folder.join("settings"), settings)?;
        std::fs::write(folder.join("command"), script)?;
        Ok(())
    }

    /// Waits until QEMU has connected to all sockets, and starts passing data on.
    pub fn connect(&mut self, qemu: &mut Running, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        for (name, listener) in std::mem::take(&mut self.listeners) {
            let stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        qemu.check()?;
                        if Instant::now() > deadline {
                            bail!("QEMU does not connect to {name}");
                        }
                        thread::park_timeout(POLL_INTERVAL);
                    }
                    Err(error) => return Err(error).context(name),
                }
            };
            stream.set_nonblocking(false)?;
            self.pass_on(name, stream)?;
        }
        Ok(())
    }

    fn pass_on(&mut self, name: &str, stream: UnixStream) -> Result<()> {
        match name {
            "control" => self.control(stream)?,
            "in" => {
                let takes = self.takes.take().context("there is one input")?;
                drop(thread::spawn(move || {
                    send_input(stdin().lock(), &stream, &takes)
                }));
            }
            "out" => self.output("output", stream, stdout().as_fd())?,
            "err" => self.output("errors", stream, stderr().as_fd())?,
            _ => {
                self.raw = Some(Raw::begin()?);
                let (keys, meter) = (stream.try_clone()?, Meter::new(self.events.clone()));
                drop(thread::spawn(move || {
                    copy_stream(stdin().lock(), keys, &meter)
                }));
                self.output("output", stream, stdout().as_fd())?;
            }
        }
        Ok(())
    }

    fn output(&mut self, name: &'static str, stream: UnixStream, to: BorrowedFd) -> Result<()> {
        // The standard library's handle is not used, because a write that never returns would hold the handle's lock.
        let to = File::from(to.try_clone_to_owned()?);
        let meter = Meter::new(self.events.clone());
        let (counts, from) = (Arc::clone(&meter), stream.try_clone()?);
        drop(thread::spawn(move || copy_stream(stream, to, &counts)));
        self.outputs.push(Output { name, meter, from });
        Ok(())
    }

    /// Starts the threads that read the guest's messages and send signals.
    fn control(&mut self, stream: UnixStream) -> Result<()> {
        let (events, from) = (self.events.clone(), stream.try_clone()?);
        let taken = self.taken.take().context("the guest is heard once")?;
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let is_heard = match line.trim_end() {
                    TAKEN => {
                        // Sending fails if the input has ended, because then no thread waits for confirmations.
                        let _ = taken.send(());
                        true
                    }
                    line => events.send(Event::parse(line)).is_ok(),
                };
                if !is_heard {
                    return;
                }
            }
            let _ = events.send(Event::Over);
        });
        let events = self.events.clone();
        let signals = self.signals.take().context("signals are waited for once")?;
        thread::spawn(move || pass_signals(&signals, stream, &events));
        Ok(())
    }

    /// Returns the next event, or `None` if none arrives within `patience`.
    pub fn next(&self, patience: Option<Duration>) -> Option<Event> {
        match patience {
            // Without this case, an output that makes constant progress would defer the timeout for ever.
            Some(Duration::ZERO) => None,
            Some(patience) => self.received.recv_timeout(patience).ok(),
            // This side holds a sender, too, so the channel never closes.
            None => self.received.recv().ok(),
        }
    }

    /// Waits until the readers have read the command's output, at most until the deadline. Then ends QEMU, and passes
    /// on the data that is left in the sockets.
    pub fn drain(
        &mut self,
        written: [u64; 2],
        qemu: Running,
        deadline: Option<Instant>,
    ) -> Drained {
        let counted = self.until(deadline, |outputs| {
            let mut counted = outputs.iter().zip(written);
            counted.all(|(output, bytes)| output.meter.progress().has_passed(bytes))
        });
        drop(qemu);
        let last = Instant::now() + GRACE;
        let deadline = match counted {
            Drained::Whole => deadline.map(|deadline| deadline.max(last)),
            Drained::Late | Drained::Signal(_) => Some(last),
        };
        let rest = self.until(deadline, |outputs| {
            outputs.iter().all(|output| output.meter.progress().is_over)
        });
        self.raw = None;
        match counted {
            Drained::Whole => rest,
            Drained::Late | Drained::Signal(_) => counted,
        }
    }

    /// Waits until a condition holds for the outputs.
    fn until(&self, deadline: Option<Instant>, holds: impl Fn(&[Output]) -> bool) -> Drained {
        while !holds(&self.outputs) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.next(left) {
                Some(Event::Signal(status)) => return Drained::Signal(status),
                // After the status, all further messages of the guest are ignored.
                Some(_) => {}
                None => return Drained::Late,
            }
        }
        Drained::Whole
    }

    /// Returns the bytes of each output that did not reach their reader. Call this after [`Session::drain`], with the
    /// numbers of bytes that the guest counted.
    pub fn lost(&self, written: [u64; 2]) -> Vec<Lost> {
        let outputs = self.outputs.iter().zip(written);
        outputs
            .filter_map(|(output, written)| output.lost(written))
            .collect()
    }
}

impl Output {
    fn lost(&self, written: u64) -> Option<Lost> {
        let is_over = self.meter.progress().is_over;
        let left = if is_over { 0 } else { left_in(&self.from) };
        let progress = self.meter.progress();
        let bytes = written
            .max(progress.come + left)
            .saturating_sub(progress.taken);
        let (why, is_failure) = match &progress.refused {
            Some(error) => (error.to_string(), error.kind() != ErrorKind::BrokenPipe),
            None => ("nothing reads them".to_owned(), false),
        };
        let what = format!(
            "{bytes} bytes of the command's {} are lost: {why}",
            self.name
        );
        (bytes > 0).then_some(Lost { what, is_failure })
    }
}

/// Reads and counts the bytes left in a connection whose other end is closed.
fn left_in(mut from: &UnixStream) -> u64 {
    // Another process may keep the other end open, so this does not wait for the end of the stream.
    let _ = from.set_read_timeout(Some(POLL_INTERVAL));
    let (mut buffer, mut bytes) = (vec![0; CHUNK], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        bytes += count as u64;
    }
    bytes
}

/// Copies an input into a connection, in pieces with their length, so that the end can be signalled. Waits for the
/// confirmation of each piece before sending the next. If the connection were closed at the end instead, data that QEMU
/// has not passed on yet would be lost.
fn send_input(mut from: impl Read, mut to: impl Write, takes: &Receiver<()>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let sent = writeln!(to, "{count}").and_then(|()| to.write_all(&buffer[..count]));
        // If the guest has ended, or its command reads no more, no confirmation arrives.
        if sent.is_err() || takes.recv().is_err() {
            return;
        }
    }
    // An error is ignored, because it means that the guest has ended.
    let _ = writeln!(to, "0");
}

/// Copies one stream to another. Bytes that the other stream refuses are dropped, because the machine must not wait.
fn copy_stream(mut from: impl Read, mut to: impl Write, meter: &Meter) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        meter.change(|progress| progress.come += count as u64);
        let mut left = &buffer[..count];
        while !left.is_empty() && meter.progress().refused.is_none() {
            match to.write(&left[..left.len().min(PIECE)]) {
                Ok(taken) => {
                    left = &left[taken..];
                    meter.change(|progress| progress.taken += taken as u64);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process may have made the shared descriptor nonblocking; then try again later.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::park_timeout(POLL_INTERVAL)
                }
                Err(error) => meter.change(|progress| progress.refused = Some(error)),
            }
        }
    }
    meter.change(|progress| progress.is_over = true);
}

/// Passes signals on to the command. The third one ends the machine instead.
fn pass_signals(signals: &SigSet, mut to: UnixStream, events: &SyncSender<Event>) {
    let mut count = 0;
    while let Ok(signal) = signals.wait() {
        let line = if signal == Signal::SIGWINCH {
            let (rows, columns) = terminal::size();
            format!("size {rows} {columns}\n")
        } else {
            count += 1;
            format!("signal {}\n", signal.as_str().trim_start_matches("SIG"))
        };
        if count >= LAST {
            // Exit statuses of shells are 128 plus the signal's number.
            let status = u8::try_from(signal as i32).map_or(u8::MAX, |number| 128 + number);
            let _ = events.send(Event::Signal(status));
            return;
        }
        // An error is ignored, because another thread reports the end of the guest.
        let _ = to.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> Arc<Meter> {
        Meter::new(sync_channel(1).0)
    }

    #[test]
    fn lines_of_the_guest_are_understood_or_strange() {
        assert_eq!(Event::parse("ready"), Event::Ready);
        let ended = |status, written| Event::Status { status, written };
        assert_eq!(Event::parse("status 3"), ended(3, [0, 0]));
        assert_eq!(Event::parse("status 0 70000 12"), ended(0, [70000, 12]));
        assert_eq!(
            Event::parse("failed no drivers: 5"),
            Event::Failed("no drivers: 5".to_owned())
        );
        for text in [
            "",
            "status",
            "status 256",
            "status -1",
            "status 0 -1 0",
            "status 0 1 2 3",
            "Oops",
        ] {
            assert_eq!(Event::parse(text), Event::Unexpected(text.to_owned()));
        }
    }

    #[test]
    fn what_was_written_before_the_other_end_went_is_all_poured_out() {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        let bytes: Vec<u8> = (0..100_000_u32)
            .map(|number| number.to_be_bytes()[3])
            .collect();
        let sent = bytes.clone();
        let writer = thread::spawn(move || here.write_all(&sent));
        let mut got = Vec::new();
        copy_stream(there, &mut got, &meter());
        writer.join().expect("no panic").expect("written");
        assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
    }

    #[test]
    fn an_unread_output_does_not_stop_the_machine() {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        here.write_all(b"much").expect("written");
        drop(here);
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let meter = meter();
        copy_stream(there, Closed, &meter);
        let progress = meter.progress();
        assert!(progress.is_over && progress.has_passed(4));
        assert_eq!((progress.come, progress.taken), (4, 0));
    }

    #[test]
    fn an_input_goes_in_pieces_and_its_end_is_signalled() {
        let (taken, takes) = channel();
        taken.send(()).expect("room");
        let mut sent = Vec::new();
        send_input(&b"a line\n"[..], &mut sent, &takes);
        assert_eq!(sent, b"7\na line\n0\n");
    }

    #[test]
    fn a_piece_of_the_input_waits_until_the_one_before_it_is_taken() {
        let (taken, takes) = channel();
        taken.send(()).expect("room");
        drop(taken);
        let input = vec![7; 3 * CHUNK];
        let mut sent = Vec::new();
        send_input(&input[..], &mut sent, &takes);
        // The first piece was confirmed and the second one sent; then the guest ended.
        assert_eq!(sent.len(), 2 * ("65536\n".len() + CHUNK));
    }

    #[test]
    fn sockets_have_short_paths() {
        assert!(short_folder().as_os_str().len() <= 60);
    }
}
