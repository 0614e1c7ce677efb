//! What passes between simnic and the guest: sockets that QEMU shows the guest as ports.
//!
//! ```text
//!   nr 0  terminal   a console of the guest's, if simnic itself has a terminal
//!   nr 1  control    lines: signals and sizes go in; ready, failed, taken and status come out (guest/simnic-guest)
//!   nr 2  in         standard input, in pieces: a line with the number of bytes, then these; 0 is the end
//!   nr 3  out        standard output
//!   nr 4  err        standard error
//! ```
//!
//! simnic listens, QEMU connects. A write of the guest's ends when it is in the guest's own queue of the port, which
//! QEMU empties as fast as it is read here. So the guest says how many bytes it has written, and QEMU is ended when as
//! many have come ([`Session::drain`]). A terminal's bytes nobody counts.
//!
//! QEMU drops what the guest's queue of a port has no room for. So a piece of the input waits until the guest has taken
//! the one before it, as it says by `control`.
//!
//! SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the command; the third of them ends the machine.

use std::io::{BufRead, BufReader, Read, Write, stderr, stdin, stdout};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use guest::child::Running;
use nix::sys::signal::{SigSet, Signal};

use super::command::quoted;
use super::terminal::{self, Raw};

/// The ports besides the terminal, in the order of their numbers.
const PORTS: [&str; 4] = ["control", "in", "out", "err"];
/// The line by which the guest asks for the next piece of the input.
const TAKEN: &str = "taken";
/// So many signals end the machine, whatever the command does.
const LAST: usize = 3;
/// Bytes passed on at once.
const CHUNK: usize = 64 << 10;
/// How often a connection is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A folder for sockets, whose paths are short.
pub fn short_folder() -> PathBuf {
    let folder = std::env::temp_dir();
    match folder.as_os_str().len() {
        0..=60 => folder,
        _ => PathBuf::from("/tmp"),
    }
}

/// Where the functions are served.
pub fn function_sockets(run: &Path, ports: u8) -> Vec<PathBuf> {
    (0..ports)
        .map(|number| run.join(format!("{number}.sock")))
        .collect()
}

/// The folder that tells the guest what to do.
pub fn told(run: &Path) -> PathBuf {
    run.join("told")
}

fn socket(run: &Path, name: &str) -> PathBuf {
    run.join(format!("{name}.sock"))
}

/// Gives QEMU the ports.
pub fn tell(qemu: &mut Command, run: &Path, is_terminal: bool) {
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

/// What happens.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// The command begins.
    Ready,
    /// It cannot.
    Failed(String),
    /// It has ended, and has written so many bytes of output and of errors.
    Status { status: u8, written: [u64; 2] },
    /// Enough signals have come: the machine is to end, and this is the status.
    Signal(u8),
    /// The guest has gone.
    Over,
    /// Anything else, which should not be there.
    Stray(String),
}

impl Word {
    /// A line of the guest's.
    fn parse(line: &str) -> Self {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => Self::Ready,
            "failed" => Self::Failed(rest.to_owned()),
            "status" => Self::ended(rest).unwrap_or_else(|| Self::Stray(line.to_owned())),
            _ => Self::Stray(line.to_owned()),
        }
    }

    /// A status, and what was written, if that was counted.
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

/// How many bytes of an output have come.
#[derive(Debug, Default)]
struct Meter {
    /// The bytes, and whether there is an end.
    come: Mutex<(u64, bool)>,
    more: Condvar,
}

impl Meter {
    fn change(&self, change: impl FnOnce(&mut (u64, bool))) {
        change(&mut self.come.lock().unwrap_or_else(PoisonError::into_inner));
        self.more.notify_all();
    }

    /// Returns when so many have come, or no more will.
    fn wait_for(&self, bytes: u64) {
        let come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waited_for = |(come, ended): &mut (u64, bool)| *come < bytes && !*ended;
        drop(self.more.wait_while(come, is_waited_for));
    }
}

/// The connections of one run.
pub struct Session {
    run: PathBuf,
    ports: u8,
    listeners: Vec<(&'static str, UnixListener)>,
    is_terminal: bool,
    raw: Option<Raw>,
    words: Receiver<Word>,
    tell: SyncSender<Word>,
    /// From the thread that hears the guest to the one that has the input.
    taken: Option<Sender<()>>,
    takes: Option<Receiver<()>>,
    signals: Option<SigSet>,
    outputs: Vec<(JoinHandle<()>, Arc<Meter>)>,
}

impl Session {
    /// Listens. From here on signals are not this process's end.
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
        // Threads that are made later leave them to the one that waits for them.
        signals.thread_block()?;
        let (tell, words) = sync_channel(16);
        let (taken, takes) = channel();
        Ok(Self {
            run: run.to_owned(),
            ports,
            listeners,
            is_terminal,
            raw: None,
            words,
            tell,
            taken: Some(taken),
            takes: Some(takes),
            signals: Some(signals),
            outputs: Vec::new(),
        })
    }

    /// Whether the command has the terminal of this process.
    pub fn terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes what the guest is to do.
    pub fn write_told(&self, script: &str, share: &Path, address: Ipv4Addr) -> Result<()> {
        let folder = told(&self.run);
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

    /// Waits until QEMU has connected to everything, and begins to pass on.
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
                        thread::park_timeout(LOOK);
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
                drop(thread::spawn(move || feed(stdin().lock(), &stream, &takes)));
            }
            "out" => self.output(stream, stdout),
            "err" => self.output(stream, stderr),
            _ => {
                self.raw = Some(Raw::begin()?);
                let keys = stream.try_clone()?;
                drop(thread::spawn(move || {
                    pour(stdin().lock(), keys, &Meter::default());
                }));
                self.output(stream, stdout);
            }
        }
        Ok(())
    }

    fn output<W: Write>(&mut self, from: UnixStream, to: impl Fn() -> W + Send + 'static) {
        let meter = Arc::new(Meter::default());
        let counts = Arc::clone(&meter);
        let thread = thread::spawn(move || {
            pour(from, to(), &counts);
            counts.change(|(_, ended)| *ended = true);
        });
        self.outputs.push((thread, meter));
    }

    /// Lines of the guest's come in, signals go out.
    fn control(&mut self, stream: UnixStream) -> Result<()> {
        let (tell, from) = (self.tell.clone(), stream.try_clone()?);
        let taken = self.taken.take().context("the guest is heard once")?;
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let is_heard = match line.trim_end() {
                    TAKEN => {
                        // An input that has ended waits for nothing.
                        let _ = taken.send(());
                        true
                    }
                    line => tell.send(Word::parse(line)).is_ok(),
                };
                if !is_heard {
                    return;
                }
            }
            let _ = tell.send(Word::Over);
        });
        let tell = self.tell.clone();
        let signals = self.signals.take().context("signals are waited for once")?;
        thread::spawn(move || pass_signals(&signals, stream, &tell));
        Ok(())
    }

    /// What happens next; nothing, if it takes longer than that.
    pub fn next(&self, patience: Option<Duration>) -> Option<Word> {
        match patience {
            Some(patience) => self.words.recv_timeout(patience).ok(),
            // This side holds a sender, too: it never ends by itself.
            None => self.words.recv().ok(),
        }
    }

    /// Waits until what the command has written is here, however slowly that is read; then QEMU is ended, and what it
    /// has left in the sockets is passed on.
    pub fn drain(&mut self, written: [u64; 2], qemu: Running) {
        for ((_, meter), bytes) in self.outputs.iter().zip(written) {
            meter.wait_for(bytes);
        }
        drop(qemu);
        for (output, _) in self.outputs.drain(..) {
            // What has panicked has said so.
            let _ = output.join();
        }
        self.raw = None;
    }
}

/// An input, to its end, goes into a connection: in pieces, so that the end can be told, each of them when the one
/// before it is taken. To close the connection would lose what QEMU has not passed on by then.
fn feed(mut from: impl Read, mut to: impl Write, takes: &Receiver<()>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let told = writeln!(to, "{count}").and_then(|()| to.write_all(&buffer[..count]));
        // A guest that has gone, or whose command reads no more, takes nothing.
        if told.is_err() || takes.recv().is_err() {
            return;
        }
    }
    // A guest that has gone asks for nothing.
    let _ = writeln!(to, "0");
}

/// One stream, to its end, goes to another. Who does not read it any more has seen enough.
fn pour(mut from: impl Read, mut to: impl Write, meter: &Meter) {
    let mut buffer = vec![0; CHUNK];
    let mut is_read = true;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        is_read = is_read
            && to
                .write_all(&buffer[..count])
                .and_then(|()| to.flush())
                .is_ok();
        meter.change(|(come, _)| *come += count as u64);
    }
}

/// Signals go to the command; the last one ends the machine.
fn pass_signals(signals: &SigSet, mut to: UnixStream, tell: &SyncSender<Word>) {
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
            // As a shell has it: 128 and the signal's number.
            let status = u8::try_from(signal as i32).map_or(u8::MAX, |number| 128 + number);
            let _ = tell.send(Word::Signal(status));
            return;
        }
        // A guest that has gone is told of elsewhere.
        let _ = to.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_guest_are_understood_or_strange() {
        assert_eq!(Word::parse("ready"), Word::Ready);
        let ended = |status, written| Word::Status { status, written };
        assert_eq!(Word::parse("status 3"), ended(3, [0, 0]));
        assert_eq!(Word::parse("status 0 70000 12"), ended(0, [70000, 12]));
        assert_eq!(
            Word::parse("failed no drivers: 5"),
            Word::Failed("no drivers: 5".to_owned())
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
            assert_eq!(Word::parse(text), Word::Stray(text.to_owned()));
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
        pour(there, &mut got, &Meter::default());
        writer.join().expect("no panic").expect("written");
        assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
    }

    #[test]
    fn an_output_that_nobody_reads_does_not_stop_the_machine() {
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
        pour(there, Closed, &Meter::default());
    }

    /// A reader may take its time: QEMU has not passed on all of it when the command ends.
    #[test]
    fn what_was_written_is_waited_for_by_its_number_of_bytes() {
        let (mut qemu, here) = UnixStream::pair().expect("sockets");
        let meter = Arc::new(Meter::default());
        let counts = Arc::clone(&meter);
        let (seen, sees) = channel();
        struct Reader(Sender<usize>);
        impl Write for Reader {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.send(bytes.len()).expect("it is read");
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let output = thread::spawn(move || pour(here, Reader(seen), &counts));
        qemu.write_all(b"half").expect("written");
        let waits = Arc::clone(&meter);
        let waiter = thread::spawn(move || waits.wait_for(8));
        assert_eq!(sees.recv(), Ok(4));
        assert!(!waiter.is_finished());
        qemu.write_all(b"half").expect("written");
        waiter.join().expect("all has come");
        assert_eq!(sees.recv(), Ok(4));
        drop(qemu);
        output.join().expect("poured");
    }

    #[test]
    fn an_output_that_has_ended_is_not_waited_for() {
        let meter = Meter::default();
        meter.change(|(_, ended)| *ended = true);
        meter.wait_for(1);
    }

    #[test]
    fn an_input_goes_in_pieces_and_its_end_is_told() {
        let (taken, takes) = channel();
        taken.send(()).expect("room");
        let mut sent = Vec::new();
        feed(&b"a line\n"[..], &mut sent, &takes);
        assert_eq!(sent, b"7\na line\n0\n");
    }

    #[test]
    fn a_piece_of_the_input_waits_until_the_one_before_it_is_taken() {
        let (taken, takes) = channel();
        taken.send(()).expect("room");
        drop(taken);
        let input = vec![7; 3 * CHUNK];
        let mut sent = Vec::new();
        feed(&input[..], &mut sent, &takes);
        // One was taken, the second is under way, and the guest has gone.
        assert_eq!(sent.len(), 2 * ("65536\n".len() + CHUNK));
    }

    #[test]
    fn sockets_have_short_paths() {
        assert!(short_folder().as_os_str().len() <= 60);
    }
}
