//! The wire of a simulated function that leaves its process.
//!
//! A thread keeps the wire. To another process of ours (`unix:`) it waits at the path for it, hands what arrives to the
//! function, and when the other side goes, waits for the next one; the function's port has a carrier while somebody is
//! there. With datagrams (`dgram:`), which QEMU's network devices speak, nobody comes or goes, and there is always a
//! carrier. A path has room for two: a third is refused.
//!
//! Frames that leave are sent by the thread that made them ([`Wire::send_at_once`]), which does not wait for room on
//! the wire: what finds none is left, in order, to whoever moves the world ([`Wire::send`]). So the thread that takes
//! frames in never waits for the other side, which may be waiting for it.
//!
//! Frames of another process come in shared memory ([`FrameSocket`]), and whoever is at hand takes them in: the wire's
//! thread, or a thread of the program that asks for the time, as one that polls does again and again
//! ([`Wire::attend`]), or that sleeps ([`Wire::sleep`]). While the program does, the wire's thread keeps away, so that
//! a frame wakes one thread and not two, or none; it looks every millisecond whether that is so still, and less often
//! while nothing of the program moves.
//!
//! A wire that is cut ([`Wire::cut`]) wakes its thread wherever it waits, and is over when the thread is: what it made
//! in the file system is gone then.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use driver::{
    Arrived, Clock, FrameDatagrams, FrameEnd, FrameListener, FrameSocket, HeldSignals, Instant,
    Interrupt, RealClock, Taken, Woken,
};
use hw_sim::{Alarm, Fault, LinkFaults, LinkId, Sim, SimFunction};

/// The longest that a frame waits for room on the wire, before it is lost: the other process has stopped.
const PATIENCE: Duration = Duration::from_millis(100);

/// Between two attempts to have an end of the wire that the system refuses.
const AGAIN: Duration = Duration::from_millis(100);

/// How long a path may be taken by two others before a third is told: one of them may be leaving.
const OCCUPIED: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const TRY: Duration = Duration::from_millis(5);

/// How long the wire's thread keeps away from a wire that the program looks after, before it looks again.
const TURN: Duration = Duration::from_millis(1);

/// ... and how long a look may take if nobody of the program has moved since the last one.
const LONG_TURN: Duration = Duration::from_millis(16);

/// How long the wire's thread looks for a frame before it sleeps.
const LOOKS: Duration = Duration::from_micros(20);

/// Frames that are taken in before anything else is looked at.
const FRAMES: usize = 64;
/// Frames that are taken in before their answers are sent.
const UNANSWERED: usize = 8;

/// Where the other side is met: `unix:PATH` or `dgram:HERE,THERE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WirePath {
    /// A path that another process of ours is told too.
    Process(PathBuf),
    /// Datagrams between our path and that of a network device of QEMU.
    Datagrams {
        /// Ours.
        here: PathBuf,
        /// The other side's.
        there: PathBuf,
    },
}

impl FromStr for WirePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let full = |path: &&str| !path.is_empty();
        if let Some(path) = text.strip_prefix("unix:").filter(full) {
            return Ok(Self::Process(path.into()));
        }
        if let Some((here, there)) = text
            .strip_prefix("dgram:")
            .and_then(|paths| paths.split_once(','))
            .filter(|(here, there)| full(here) && full(there))
        {
            let (here, there) = (here.into(), there.into());
            return Ok(Self::Datagrams { here, there });
        }
        Err(format!(
            "{text:?} is no link; one is unix:PATH or dgram:HERE,THERE"
        ))
    }
}

impl fmt::Display for WirePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(path) => write!(f, "unix:{}", path.display()),
            Self::Datagrams { here, there } => {
                write!(f, "dgram:{},{}", here.display(), there.display())
            }
        }
    }
}

/// Who takes the frames that leave.
#[derive(Clone, Debug)]
enum Other {
    Process(FrameSocket),
    Datagrams(FrameDatagrams),
}

impl Other {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match self {
            Self::Process(socket) => socket.send_within(frame, PATIENCE),
            Self::Datagrams(socket) => socket.send_within(frame, PATIENCE),
        }
    }

    /// Sends a frame if there is room for it now; false if there is none.
    fn send_now(&self, frame: &[u8]) -> io::Result<bool> {
        match self {
            Self::Process(socket) => socket.send(frame),
            Self::Datagrams(socket) => socket.send_within(frame, Duration::ZERO),
        }
    }

    fn shut(&self) {
        match self {
            Self::Process(socket) => socket.shut(),
            Self::Datagrams(socket) => socket.shut(),
        }
    }
}

/// Where the thread of a wire is.
#[derive(Debug)]
enum At {
    /// On the way from one of the others to the next.
    Between,
    /// Nobody is at the other end yet.
    Waits(Arc<FrameListener>),
    /// Somebody is there. Who came first keeps the path meanwhile.
    Carries(Other),
    /// The wire is cut.
    Over,
}

/// Who is woken by the thread of a wire.
#[derive(Clone, Debug)]
pub enum Wake {
    /// This one, by every frame: it moves the world, and sends what leaves.
    Always(SyncSender<()>),
    /// This one, when there is no room on the wire for what leaves.
    NoRoom(Arc<Alarm>),
}

/// What the thread of a wire saw of the program when it looked last.
struct Seen {
    attended: u64,
    turn: Duration,
}

/// The wire of a function that leaves this process.
pub struct Wire {
    sim: Sim,
    function: Arc<SimFunction>,
    link: LinkId,
    at: Mutex<At>,
    /// Keeps frames in order; those that found no room.
    sending: Mutex<VecDeque<Vec<u8>>>,
    /// Frames may have left since whoever sends has looked.
    left: AtomicBool,
    /// Who takes frames in; memory for one.
    receiving: Mutex<Vec<u8>>,
    /// How often a thread of the program has looked after the wire.
    attended: AtomicU64,
    /// How many of them sleep, and take in what comes.
    sleepers: AtomicUsize,
    wake: Wake,
    /// `None` once it is cut.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Wire {
    /// Lays the wire. `poke` wakes whoever moves the world and calls [`Wire::send`].
    ///
    /// # Errors
    /// What the system answered at the path, or when asked for a thread; `AddrInUse`: two others are at the path.
    pub fn lay(
        sim: &Sim,
        function: &Arc<SimFunction>,
        path: &WirePath,
        faults: LinkFaults,
        poke: SyncSender<()>,
    ) -> io::Result<Arc<Self>> {
        Self::lay_waking(sim, function, path, faults, Wake::Always(poke))
    }

    /// [`Wire::lay`], with a choice of who is woken.
    ///
    /// # Errors
    /// As [`Wire::lay`].
    pub fn lay_waking(
        sim: &Sim,
        function: &Arc<SimFunction>,
        path: &WirePath,
        faults: LinkFaults,
        wake: Wake,
    ) -> io::Result<Arc<Self>> {
        let link = sim.connect_outside(function, faults);
        sim.inject(function, &Fault::LinkDown);
        let wire = Arc::new(Self {
            sim: sim.clone(),
            function: Arc::clone(function),
            link,
            at: Mutex::new(At::Between),
            sending: Mutex::default(),
            left: AtomicBool::new(false),
            receiving: Mutex::default(),
            attended: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            wake,
            thread: Mutex::new(None),
        });
        let kept = Arc::clone(&wire);
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        let thread = thread::Builder::new().name("sim-wire".into());
        let thread = match path.clone() {
            WirePath::Process(path) => {
                let end = end_at(&path)?;
                thread.spawn(move || kept.meet(end, &path))
            }
            WirePath::Datagrams { here, there } => {
                let socket = FrameDatagrams::bind(&here, &there)?;
                thread.spawn(move || kept.carry(Other::Datagrams(socket)))
            }
        };
        let thread = thread
            .map_err(|error| io::Error::new(error.kind(), format!("sim-wire thread: {error}")))?;
        *wire.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(wire)
    }

    /// The link in the world of the function, for [`Sim::set_faults`].
    pub const fn link(&self) -> LinkId {
        self.link
    }

    /// Cuts the wire: whoever is at the other end reads what was sent, and then that nobody is there any more.
    pub fn cut(&self) {
        match std::mem::replace(&mut *self.at(), At::Over) {
            At::Waits(listener) => listener.shut(),
            At::Carries(other) => other.shut(),
            At::Between | At::Over => {}
        }
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread of a wire has panicked");
        }
    }

    fn at(&self) -> MutexGuard<'_, At> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where the thread is now; false if it is to end because the wire is cut.
    fn go(&self, next: At) -> bool {
        let mut at = self.at();
        let on = !matches!(*at, At::Over);
        if on {
            *at = next;
        }
        on
    }

    /// Carries frames for one after the other that comes to the path.
    fn meet(&self, mut end: FrameEnd, path: &Path) {
        loop {
            let (met, kept) = match end {
                FrameEnd::First(listener) => {
                    let listener = Arc::new(listener);
                    (self.wait(&listener), Some(listener))
                }
                FrameEnd::Second(socket) => (Ok(socket), None),
            };
            let met = met.map(|socket| self.carry(Other::Process(socket)));
            // The path is free from here on.
            drop(kept);
            let next = met.and_then(|()| FrameEnd::at(path));
            let Some(next) = self.next(next, path) else {
                return;
            };
            end = next;
        }
    }

    /// The end of the wire for the next that comes; `None` if it is cut. What cannot be had now is tried again: the
    /// path may be free, and descriptors be there, later.
    fn next(&self, mut next: io::Result<FrameEnd>, path: &Path) -> Option<FrameEnd> {
        let clock = RealClock::new();
        let quiet_until = clock.now() + OCCUPIED;
        let mut told = String::new();
        loop {
            if !self.go(At::Between) {
                return None;
            }
            let error = match next {
                Ok(next) => return Some(next),
                Err(error) => error,
            };
            // Who was at the other end may not have let go of the path yet.
            let is_leaving = error.kind() == ErrorKind::AddrInUse && clock.now() < quiet_until;
            let error = error.to_string();
            if told != error && !is_leaving {
                tracing::error!("{}: {error}; trying again", path.display());
                told = error;
            }
            let pause = if is_leaving { TRY } else { AGAIN };
            clock.wait(&[], clock.now() + pause);
            next = FrameEnd::at(path);
        }
    }

    /// Waits for the other side; an error if the wire is cut meanwhile.
    fn wait(&self, listener: &Arc<FrameListener>) -> io::Result<FrameSocket> {
        if !self.go(At::Waits(Arc::clone(listener))) {
            return Err(ErrorKind::NotConnected.into());
        }
        let met = listener.accept();
        self.go(At::Between);
        met
    }

    /// Takes in frames until the other side goes, or the wire is cut.
    fn carry(&self, other: Other) {
        if !self.go(At::Carries(other.clone())) {
            return;
        }
        self.sim.inject(&self.function, &Fault::LinkUp);
        let mut told = String::new();
        let mut seen = Seen {
            attended: self.attended.load(Ordering::Relaxed),
            turn: TURN,
        };
        loop {
            let received = match &other {
                Other::Process(socket) => self.next_of_process(socket, &mut seen),
                Other::Datagrams(socket) => self.next_datagram(socket),
            };
            if matches!(*self.at(), At::Over) {
                break;
            }
            match received {
                Ok(Taken::Frame | Taken::Nothing) => {}
                Ok(Taken::Gone) => break,
                Err(error) if error.kind() == ErrorKind::InvalidData => tracing::warn!("{error}"),
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!("{error}");
                        told = error;
                    }
                    if matches!(other, Other::Process(_)) {
                        break;
                    }
                    // Nobody will come to take its place, and what the system refuses now it may give later.
                    let clock = RealClock::new();
                    clock.wait(&[], clock.now() + AGAIN);
                }
            }
        }
        self.go(At::Between);
        self.sim.inject(&self.function, &Fault::LinkDown);
    }

    fn next_datagram(&self, socket: &FrameDatagrams) -> io::Result<Taken> {
        let mut frame = socket.receive()?;
        self.sim.deliver_in_place(&self.function, &mut frame);
        self.answered();
        Ok(Taken::Frame)
    }

    /// Waits for frames of another process, and takes them in.
    fn next_of_process(&self, socket: &FrameSocket, seen: &mut Seen) -> io::Result<Taken> {
        let before = std::mem::replace(&mut seen.attended, self.attended.load(Ordering::Relaxed));
        let has_moved = seen.attended != before;
        let is_attended = has_moved || self.sleepers.load(Ordering::Relaxed) > 0;
        seen.turn = match has_moved {
            true => TURN,
            false => LONG_TURN.min(2 * seen.turn),
        };
        let arrived = if is_attended && socket.is_by_memory() {
            let clock = RealClock::new();
            clock.wait(&[], clock.now() + seen.turn);
            // It may have happened behind the program's back that the other side went.
            Arrived::AtSocket
        } else {
            socket.wait(LOOKS)?
        };
        if matches!(*self.at(), At::Over) {
            return Ok(Taken::Gone);
        }
        let mut frame = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.take_in(socket, &mut frame, arrived);
        // The word that was for a thread of the program may have been taken here. It is woken with the next frame.
        while let Ok(Taken::Frame | Taken::Nothing) = taken
            && self.sleepers.load(Ordering::Relaxed) > 0
            && !socket.arm()
        {
            taken = self.take_in(socket, &mut frame, Arrived::ByMemory);
        }
        taken
    }

    /// Takes in what has arrived, and sends what it made leave.
    fn take_in(
        &self,
        socket: &FrameSocket,
        frame: &mut Vec<u8>,
        arrived: Arrived,
    ) -> io::Result<Taken> {
        let mut unanswered = 0;
        let mut taken = Ok(Taken::Nothing);
        for _ in 0..FRAMES {
            taken = match arrived {
                Arrived::ByMemory => socket.take_by_memory(frame).map(|is_one| match is_one {
                    true => Taken::Frame,
                    false => Taken::Nothing,
                }),
                Arrived::AtSocket => socket.take(frame),
                Arrived::Not(_) => Ok(Taken::Nothing),
            };
            if !matches!(taken, Ok(Taken::Frame)) {
                break;
            }
            self.sim.deliver_in_place(&self.function, frame);
            unanswered += 1;
            if unanswered == UNANSWERED {
                self.answered();
                unanswered = 0;
            }
        }
        if unanswered > 0 {
            self.answered();
        }
        taken
    }

    /// The other side, if it is another process whose frames come by memory.
    fn by_memory(&self) -> Option<FrameSocket> {
        match &*self.at() {
            At::Carries(Other::Process(socket)) if socket.is_by_memory() => Some(socket.clone()),
            At::Carries(_) | At::Between | At::Waits(_) | At::Over => None,
        }
    }

    /// A thread of the program looks after the wire in passing: takes in what has come, unless another one does.
    pub fn attend(&self) {
        self.attended.fetch_add(1, Ordering::Relaxed);
        let Some(socket) = self.by_memory() else {
            return;
        };
        if socket.has_some()
            && let Ok(mut frame) = self.receiving.try_lock()
            && let Err(error) = self.take_in(&socket, &mut frame, Arrived::ByMemory)
        {
            // The wire's thread finds it, too, and ends the wire.
            tracing::debug!("{error}");
        }
    }

    /// A thread of the program sleeps, and takes in what comes meanwhile. `None`: it is to sleep without the wire.
    pub fn sleep(
        &self,
        interrupts: &[Interrupt],
        deadline: Instant,
        signals: Option<&HeldSignals>,
    ) -> Option<Woken> {
        let socket = self.by_memory()?;
        self.attended.fetch_add(1, Ordering::Relaxed);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let woken = self.sleep_at(&socket, interrupts, deadline, signals);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    fn sleep_at(
        &self,
        socket: &FrameSocket,
        interrupts: &[Interrupt],
        deadline: Instant,
        signals: Option<&HeldSignals>,
    ) -> Option<Woken> {
        loop {
            let arrived = socket.wait_beside(interrupts, deadline, signals);
            if let Arrived::Not(woken) = arrived {
                return Some(woken);
            }
            // Who has it takes in a number of frames at most.
            let mut frame = self
                .receiving
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match self.take_in(socket, &mut frame, arrived) {
                Ok(Taken::Frame | Taken::Nothing) => {}
                Ok(Taken::Gone) | Err(_) => return None,
            }
        }
    }

    /// Frames have been taken in: what they made leave is sent, or who is to do that is woken.
    fn answered(&self) {
        match &self.wake {
            Wake::Always(poke) => {
                // Full: it will wake anyway. Closed: nobody moves the world any more.
                let _ = poke.try_send(());
            }
            Wake::NoRoom(alarm) => {
                if !self.send_at_once() {
                    alarm.ring();
                }
            }
        }
    }

    fn other(&self) -> Option<Other> {
        match &*self.at() {
            At::Carries(other) => Some(other.clone()),
            At::Between | At::Waits(_) | At::Over => None,
        }
    }

    /// Sends what has left the function; whether there was anything. Without anybody there it is lost, as on a wire;
    /// and so is what finds no room for long, because the other process has stopped.
    pub fn send(&self) -> bool {
        let mut left = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.left.store(false, Ordering::SeqCst);
        left.extend(self.sim.take_frames(&self.function));
        let any = !left.is_empty();
        let other = self.other();
        for frame in left.drain(..) {
            if let Some(Err(error)) = other.as_ref().map(|other| other.send(&frame)) {
                tracing::debug!("{error}");
            }
        }
        drop(left);
        any || self.left.load(Ordering::SeqCst)
    }

    /// Sends what has left the function as far as there is room for it, or lets the one do it who is at it. False:
    /// something is left, and [`Wire::send`] is to be called.
    pub fn send_at_once(&self) -> bool {
        // Whoever sends looks at this when it is done, so one of the two finds what has left.
        self.left.store(true, Ordering::SeqCst);
        while self.left.load(Ordering::SeqCst) {
            let mut waiting = match self.sending.try_lock() {
                Ok(waiting) => waiting,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return true,
            };
            self.left.store(false, Ordering::SeqCst);
            if !self.send_all(&mut waiting) {
                return false;
            }
        }
        true
    }

    /// Sends those that wait and what has left; false if there was no room for all of it.
    fn send_all(&self, waiting: &mut VecDeque<Vec<u8>>) -> bool {
        let other = self.other();
        loop {
            let unsent = waiting.iter().position(|frame| {
                match other.as_ref().map(|other| other.send_now(frame)) {
                    Some(Ok(sent)) => !sent,
                    Some(Err(error)) => {
                        tracing::debug!("{error}");
                        false
                    }
                    None => false,
                }
            });
            if let Some(sent) = unsent {
                waiting.drain(..sent);
                return false;
            }
            self.sim.exchange_frames(&self.function, waiting);
            if waiting.is_empty() {
                return true;
            }
        }
    }
}

/// An end of the wire at a path, for which others that leave are given a moment.
fn end_at(path: &Path) -> io::Result<FrameEnd> {
    let clock = RealClock::new();
    let until = clock.now() + OCCUPIED;
    loop {
        match FrameEnd::at(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && clock.now() < until => {
                clock.wait(&[], clock.now() + TRY);
            }
            end => return end,
        }
    }
}

#[cfg(test)]
mod tests {
    use hw_sim::{Profile, SimConfig};

    use super::*;

    fn laid(path: &Path, number: u8) -> io::Result<Arc<Wire>> {
        let sim = Sim::new(SimConfig::default());
        let function = sim.add_function(Profile::named("sim:end", [2, 0, 0, 0, 0, number]));
        let path = WirePath::Process(path.to_owned());
        let wake = Wake::NoRoom(Alarm::new());
        Wire::lay_waking(&sim, &function, &path, LinkFaults::NONE, wake)
    }

    fn meet(one: &Wire, other: &Wire) {
        let clock = RealClock::new();
        let carries = |wire: &Wire| matches!(*wire.at(), At::Carries(_));
        while !(carries(one) && carries(other)) {
            clock.wait(&[], clock.now() + TRY);
        }
    }

    #[test]
    fn a_third_at_a_wire_is_refused_and_takes_the_place_of_one_that_leaves() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("wire");
        let (one, other) = (
            laid(&path, 1).expect("first"),
            laid(&path, 2).expect("second"),
        );
        meet(&one, &other);
        let refused = laid(&path, 3).err().expect("there are two");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(refused.to_string().contains("both ends"), "{refused}");
        other.cut();
        let third = laid(&path, 3).expect("there is one");
        meet(&one, &third);
        one.cut();
        let fourth = laid(&path, 4).expect("there is one");
        meet(&third, &fourth);
        third.cut();
        fourth.cut();
        assert_eq!(directory.path().read_dir().expect("there").count(), 0);
    }

    #[test]
    fn a_link_is_a_path_of_a_process_or_two_of_datagrams() {
        let process = WirePath::Process("/run/wire".into());
        assert_eq!("unix:/run/wire".parse(), Ok(process));
        let datagrams = WirePath::Datagrams {
            here: "a".into(),
            there: "b".into(),
        };
        assert_eq!(datagrams.to_string(), "dgram:a,b");
        assert_eq!("dgram:a,b".parse(), Ok(datagrams));
        for wrong in [
            "",
            "unix:",
            "/run/wire",
            "tap:0",
            "dgram:a",
            "dgram:,b",
            "dgram:a,",
        ] {
            let error = wrong.parse::<WirePath>().expect_err(wrong);
            assert!(error.contains("unix:PATH or dgram:HERE,THERE"), "{error}");
        }
    }
}
