//! The wire of a simulated function to another process.
//!
//! Each wire has a thread. A wire to another process with a simulator (`unix:`) connects to the process that waits at
//! the path, or waits at the path until another process connects. Then the thread delivers arriving frames to the
//! function. When the other side disconnects, the thread connects to the next process in the same way. The function's
//! port has a carrier while the other side is connected. With datagrams (`dgram:`), the format of QEMU's network
//! devices, there is no connection, and the carrier is always on. Two processes can use a path; a third is refused.
//!
//! With `Wake::NoRoom`, the thread that creates an outgoing frame sends it ([`Wire::send_at_once`]), and does not wait
//! for capacity on the wire. The thread that advances virtual time sends all other frames later, in order
//! ([`Wire::send`]). So the receiving thread never waits for the other side, which may be waiting for the receiving
//! thread.
//!
//! Frames of another process arrive in shared memory ([`FrameSocket`]). The first available thread receives them: the
//! wire's thread, a thread of the program that reads the clock, as a polling thread does repeatedly ([`Wire::attend`]),
//! or a thread of the program that sleeps ([`Wire::sleep`]). While threads of the program receive, the wire's thread
//! does not, so that a frame wakes at most one thread. The wire's thread checks every millisecond whether the program
//! still receives, and less often while no thread of the program is active.
//!
//! Cutting a wire ([`Wire::cut`]) wakes its thread if the thread waits for the other side or for a frame. When the
//! thread has ended, the wire is closed and its files are removed.

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

/// Maximum time that a frame waits for capacity on the wire. After that the frame is lost, because the other process
/// has stopped.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time until the next attempt to open an end of the wire, or to receive a datagram, after an error of the operating
/// system.
const AGAIN: Duration = Duration::from_millis(100);

/// Time for which an occupied path is retried before an error is reported. One of the two other processes may be about
/// to disconnect.
const OCCUPIED: Duration = Duration::from_secs(1);
/// Time between two attempts while the path is occupied.
const TRY: Duration = Duration::from_millis(5);

/// Time between two checks by the wire's thread while the program receives the frames.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum of this interval. The interval doubles at each check that finds no activity of the program's threads.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(16);

/// Time for which the wire's thread polls for a frame before it sleeps.
const POLL_TIME: Duration = Duration::from_micros(20);

/// Maximum number of frames that one call of `Wire::take_in` receives.
const FRAMES: usize = 64;
/// Maximum number of times that the wire's thread receives another `FRAMES` frames before it lets others receive.
const ROUNDS: usize = 4;
/// Maximum number of frames that a thread receives before it sends the resulting frames.
const UNANSWERED: usize = 8;

/// Address of a wire: `unix:PATH` or `dgram:HERE,THERE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WirePath {
    /// Path at which this process and another process with a simulator connect.
    Process(PathBuf),
    /// Datagrams between this process and a network device of QEMU.
    Datagrams {
        /// Path of this side's socket.
        here: PathBuf,
        /// Path of the other side's socket.
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

/// The other side, to which frames are sent.
#[derive(Clone, Debug)]
enum Peer {
    Process(FrameSocket),
    Datagrams(FrameDatagrams),
}

impl Peer {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match self {
            Self::Process(socket) => socket.send_within(frame, PATIENCE),
            Self::Datagrams(socket) => socket.send_within(frame, PATIENCE),
        }
    }

    /// Sends a frame if there is capacity for it now. Otherwise returns false.
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

/// State of a wire's thread.
#[derive(Debug)]
enum ThreadState {
    /// No connection, and the thread does not wait for one: before the first connection, and after each one.
    Between,
    /// The thread waits for the other side to connect.
    Waits(Arc<FrameListener>),
    /// The other side is connected. Meanwhile the side that was first at the path keeps the path occupied.
    Carries(Peer),
    /// The wire is cut.
    Over,
}

/// The thread or alarm that a wire wakes when outgoing frames have to be sent.
#[derive(Clone, Debug)]
pub enum Wake {
    /// Channel to the thread that advances virtual time and sends outgoing frames. The thread is woken after each
    /// batch of received frames.
    Always(SyncSender<()>),
    /// Alarm that is notified only if there is no capacity on the wire for an outgoing frame.
    NoRoom(Arc<Alarm>),
}

/// Value of `Wire::attended` at the last check by the wire's thread, and the time until the next check.
struct Activity {
    attended: u64,
    check_interval: Duration,
}

/// A wire of a function to another process.
pub struct Wire {
    sim: Sim,
    function: Arc<SimFunction>,
    link: LinkId,
    at: Mutex<ThreadState>,
    /// Outgoing frames for which the wire had no capacity. The lock keeps frames in order.
    sending: Mutex<VecDeque<Vec<u8>>>,
    /// True if the function may have sent frames since the sender last checked.
    left: AtomicBool,
    /// Buffer for one frame. The thread that holds the lock receives frames.
    receiving: Mutex<Vec<u8>>,
    /// Number of calls of [`Wire::attend`] and `Wire::sleep` by threads of the program.
    attended: AtomicU64,
    /// Number of threads of the program that are in [`Wire::sleep`].
    sleepers: AtomicUsize,
    wake: Wake,
    /// Thread of the wire. `None` after the wire was cut.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Wire {
    /// Creates the wire. `poke` wakes the thread that advances virtual time and calls [`Wire::send`].
    ///
    /// # Errors
    /// The operating system's error for the path or the thread. `AddrInUse` if two others use the path.
    pub fn lay(
        sim: &Sim,
        function: &Arc<SimFunction>,
        path: &WirePath,
        faults: LinkFaults,
        poke: SyncSender<()>,
    ) -> io::Result<Arc<Self>> {
        Self::lay_waking(sim, function, path, faults, Wake::Always(poke))
    }

    /// Creates the wire as [`Wire::lay`] does. `wake` selects the thread or alarm that the wire wakes to send frames.
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
            at: Mutex::new(ThreadState::Between),
            sending: Mutex::default(),
            left: AtomicBool::new(false),
            receiving: Mutex::default(),
            attended: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            wake,
            thread: Mutex::new(None),
        });
        let kept = Arc::clone(&wire);
        // Signals are blocked in the new thread, because the program's own threads handle them.
        let _held = HeldSignals::hold();
        let thread = thread::Builder::new().name("sim-wire".into());
        let thread = match path.clone() {
            WirePath::Process(path) => {
                let end = end_at(&path)?;
                thread.spawn(move || kept.meet(end, &path))
            }
            WirePath::Datagrams { here, there } => {
                let socket = FrameDatagrams::bind(&here, &there)?;
                thread.spawn(move || kept.carry(Peer::Datagrams(socket)))
            }
        };
        let thread = thread
            .map_err(|error| io::Error::new(error.kind(), format!("sim-wire thread: {error}")))?;
        *wire.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(wire)
    }

    /// Returns the link of the function in the simulator, for [`Sim::set_faults`].
    pub const fn link(&self) -> LinkId {
        self.link
    }

    /// Cuts the wire and joins its thread. The other side receives the frames sent so far, and then the disconnect.
    pub fn cut(&self) {
        match std::mem::replace(&mut *self.at(), ThreadState::Over) {
            ThreadState::Waits(listener) => listener.shut(),
            ThreadState::Carries(other) => other.shut(),
            ThreadState::Between | ThreadState::Over => {}
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

    fn at(&self) -> MutexGuard<'_, ThreadState> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state of the thread. Returns false if the wire is cut and the thread has to end.
    fn set_state(&self, next: ThreadState) -> bool {
        let mut at = self.at();
        let on = !matches!(*at, ThreadState::Over);
        if on {
            *at = next;
        }
        on
    }

    /// Transports frames for every process that connects to the path, one process at a time.
    fn meet(&self, mut end: FrameEnd, path: &Path) {
        loop {
            let (met, kept) = match end {
                FrameEnd::First(listener) => {
                    let listener = Arc::new(listener);
                    (self.wait(&listener), Some(listener))
                }
                FrameEnd::Second(socket) => (Ok(socket), None),
            };
            let met = met.map(|socket| self.carry(Peer::Process(socket)));
            // This frees the path for other processes.
            drop(kept);
            let next = met.and_then(|()| FrameEnd::at(path));
            let Some(next) = self.next(next, path) else {
                return;
            };
            end = next;
        }
    }

    /// Returns the end of the wire for the next process, or `None` if the wire is cut. Retries after a failure, because
    /// the path or descriptors may become available.
    fn next(&self, mut next: io::Result<FrameEnd>, path: &Path) -> Option<FrameEnd> {
        let clock = RealClock::new();
        let quiet_until = clock.now() + OCCUPIED;
        let mut logged = String::new();
        loop {
            if !self.set_state(ThreadState::Between) {
                return None;
            }
            let error = match next {
                Ok(next) => return Some(next),
                Err(error) => error,
            };
            // The previous peer may still occupy the path.
            let is_leaving = error.kind() == ErrorKind::AddrInUse && clock.now() < quiet_until;
            let error = error.to_string();
            if logged != error && !is_leaving {
                tracing::error!("{}: {error}; trying again", path.display());
                logged = error;
            }
            let pause = if is_leaving { TRY } else { AGAIN };
            clock.wait(&[], clock.now() + pause);
            next = FrameEnd::at(path);
        }
    }

    /// Waits until the other side connects. Fails if the wire is cut meanwhile.
    fn wait(&self, listener: &Arc<FrameListener>) -> io::Result<FrameSocket> {
        if !self.set_state(ThreadState::Waits(Arc::clone(listener))) {
            return Err(ErrorKind::NotConnected.into());
        }
        let met = listener.accept();
        self.set_state(ThreadState::Between);
        met
    }

    /// Receives frames until the other side disconnects or fails, or the wire is cut.
    fn carry(&self, other: Peer) {
        if !self.set_state(ThreadState::Carries(other.clone())) {
            return;
        }
        self.sim.inject(&self.function, &Fault::LinkUp);
        let mut logged = String::new();
        let mut seen = Activity {
            attended: self.attended.load(Ordering::Relaxed),
            check_interval: CHECK_INTERVAL,
        };
        loop {
            let received = match &other {
                Peer::Process(socket) => self.next_of_process(socket, &mut seen),
                Peer::Datagrams(socket) => self.next_datagram(socket),
            };
            if matches!(*self.at(), ThreadState::Over) {
                break;
            }
            match received {
                Ok(Taken::Frame | Taken::Nothing) => {}
                Ok(Taken::Gone) => break,
                Err(error) if error.kind() == ErrorKind::InvalidData => tracing::warn!("{error}"),
                Err(error) => {
                    let error = error.to_string();
                    if logged != error {
                        tracing::warn!("{error}");
                        logged = error;
                    }
                    if matches!(other, Peer::Process(_)) {
                        break;
                    }
                    // There is no connection to lose with datagrams, so the thread retries. The error may be temporary.
                    let clock = RealClock::new();
                    clock.wait(&[], clock.now() + AGAIN);
                }
            }
        }
        self.set_state(ThreadState::Between);
        self.sim.inject(&self.function, &Fault::LinkDown);
    }

    fn next_datagram(&self, socket: &FrameDatagrams) -> io::Result<Taken> {
        let mut frame = socket.receive()?;
        self.sim.deliver_in_place(&self.function, &mut frame);
        self.answered();
        Ok(Taken::Frame)
    }

    /// Waits for frames of another process, and receives them.
    fn next_of_process(&self, socket: &FrameSocket, seen: &mut Activity) -> io::Result<Taken> {
        let before = std::mem::replace(&mut seen.attended, self.attended.load(Ordering::Relaxed));
        let has_moved = seen.attended != before;
        let is_attended = has_moved || self.sleepers.load(Ordering::Relaxed) > 0;
        seen.check_interval = match has_moved {
            true => CHECK_INTERVAL,
            false => MAX_CHECK_INTERVAL.min(2 * seen.check_interval),
        };
        let arrived = if is_attended && socket.is_by_memory() {
            let clock = RealClock::new();
            clock.wait(&[], clock.now() + seen.check_interval);
            // The socket is checked, because a thread that only calls `attend` does not notice a disconnect of the
            // other side.
            Arrived::AtSocket
        } else {
            socket.wait(POLL_TIME)?
        };
        if matches!(*self.at(), ThreadState::Over) {
            return Ok(Taken::Gone);
        }
        let mut frame = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.take_in(socket, &mut frame, arrived);
        // This thread may have consumed the wake-up for a sleeping thread of the program. It therefore receives more
        // frames and arms the wake-up again, so that the next frame wakes the sleeping thread.
        for _ in 0..ROUNDS {
            if !matches!(taken, Ok(Taken::Frame | Taken::Nothing))
                || self.sleepers.load(Ordering::Relaxed) == 0
                || socket.arm()
            {
                return taken;
            }
            taken = self.take_in(socket, &mut frame, Arrived::ByMemory);
        }
        // The other side sends as fast as this thread receives, and a thread of the program whose wait is over may need
        // the lock. The wake-up is armed, and this thread checks again after `CHECK_INTERVAL`.
        seen.check_interval = CHECK_INTERVAL / 2;
        taken
    }

    /// Receives the frames that have arrived, at most `FRAMES`, and sends the frames that result.
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

    /// Returns the socket of the other side, if it is another process whose frames arrive in shared memory.
    fn by_memory(&self) -> Option<FrameSocket> {
        match &*self.at() {
            ThreadState::Carries(Peer::Process(socket)) if socket.is_by_memory() => {
                Some(socket.clone())
            }
            ThreadState::Carries(_)
            | ThreadState::Between
            | ThreadState::Waits(_)
            | ThreadState::Over => None,
        }
    }

    /// Receives the frames that have arrived, in a thread of the program, unless another thread is receiving them.
    pub fn attend(&self) {
        self.attended.fetch_add(1, Ordering::Relaxed);
        let Some(socket) = self.by_memory() else {
            return;
        };
        if socket.has_some()
            && let Ok(mut frame) = self.receiving.try_lock()
            && let Err(error) = self.take_in(&socket, &mut frame, Arrived::ByMemory)
        {
            // The wire's thread gets the same error and closes the connection.
            tracing::debug!("{error}");
        }
    }

    /// Sleeps in a thread of the program, and receives frames meanwhile. Returns `None` if the other side is not a
    /// process whose frames arrive in shared memory, or has disconnected; the caller then has to sleep itself.
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
            // The wait for the lock is short: a thread of the program receives at most `FRAMES` frames, and the wire's
            // thread `ROUNDS` times as many more.
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

    /// Sends the frames that result from received frames, or wakes the thread that sends them.
    fn answered(&self) {
        match &self.wake {
            Wake::Always(poke) => {
                // If the channel is full, the receiver wakes anyway. If it is closed, virtual time does not advance any
                // more.
                let _ = poke.try_send(());
            }
            Wake::NoRoom(alarm) => {
                if !self.send_at_once() {
                    alarm.ring();
                }
            }
        }
    }

    fn other(&self) -> Option<Peer> {
        match &*self.at() {
            ThreadState::Carries(other) => Some(other.clone()),
            ThreadState::Between | ThreadState::Waits(_) | ThreadState::Over => None,
        }
    }

    /// Sends the frames that the function has sent. Returns true if there were frames or there may be more. Frames are
    /// lost if no other side is connected. A frame is also lost if there is no capacity for 100 ms, because the other
    /// process has stopped then. The call does not wait for the frames after that one.
    pub fn send(&self) -> bool {
        let mut left = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.left.store(false, Ordering::SeqCst);
        left.extend(self.sim.take_frames(&self.function));
        let any = !left.is_empty();
        let other = self.other();
        let mut has_stopped = false;
        for frame in left.drain(..) {
            let sent = other.as_ref().map(|other| match has_stopped {
                true => other.send_now(&frame),
                false => other.send(&frame),
            });
            match sent {
                Some(Ok(sent)) => has_stopped |= !sent,
                Some(Err(error)) => tracing::debug!("{error}"),
                None => {}
            }
        }
        drop(left);
        any || self.left.load(Ordering::SeqCst)
    }

    /// Sends the frames that the function has sent as long as there is capacity, unless another thread is sending.
    /// Returns false if frames remain; the caller then has to arrange a call of [`Wire::send`].
    pub fn send_at_once(&self) -> bool {
        // The sending thread checks this flag after it has sent, so one of the two threads finds the frames.
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

    /// Sends the waiting frames and then the frames that the function has sent. Returns false if there is no capacity
    /// for all of them.
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

/// Opens an end of the wire at a path. If the path is occupied, retries for a while, because others may disconnect.
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
        let carries = |wire: &Wire| matches!(*wire.at(), ThreadState::Carries(_));
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

    /// Frames to a process that takes none are lost after one wait, however many they are.
    #[test]
    fn a_stopped_process_is_waited_for_once_a_call_and_not_for_each_frame() {
        const LOST: u32 = 600;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("wire");
        let wire = laid(&path, 1).expect("first");
        let FrameEnd::Second(stopped) = FrameEnd::at(&path).expect("an end") else {
            panic!("somebody listens");
        };
        let clock = RealClock::new();
        while !matches!(*wire.at(), ThreadState::Carries(_)) {
            clock.wait(&[], clock.now() + TRY);
        }
        let other = wire.other().expect("connected");
        while other.send_now(&[0; 9000]).expect("no error") {}
        let frames = (0..LOST).map(|_| vec![0; 9000]);
        wire.sending.lock().expect("sound").extend(frames);
        // A wait for each frame would take twice as long.
        let until = clock.now() + PATIENCE * LOST / 2;
        assert!(wire.send());
        assert!(clock.now() < until, "it waited for every frame");
        drop(stopped);
        wire.cut();
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
