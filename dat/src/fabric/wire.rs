//! The wire of a simulated function that leaves its process.
//!
//! A thread keeps the wire. To another process of ours (`unix:`) it waits at the path for it, hands what arrives to the
//! function, and when the other side goes, waits for the next one; the function's port has a carrier while somebody is there.
//! With datagrams (`dgram:`), which QEMU's network devices speak, nobody comes or goes, and there is always a carrier. Frames
//! that leave are sent by whoever moves the world.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use driver::{FrameDatagrams, FrameEnd, FrameSocket, HeldSignals};
use hw_sim::{Fault, LinkFaults, Sim, SimFunction};

/// The longest that a frame waits for room on the wire, before it is lost: the other process has stopped.
const PATIENCE: Duration = Duration::from_millis(100);

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

    /// Waits for a frame. `None`: the other side is gone.
    fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Process(socket) => socket.receive(),
            Self::Datagrams(socket) => socket.receive().map(Some),
        }
    }
}

/// The wire of a function that leaves this process.
pub struct Wire {
    sim: Sim,
    function: Arc<SimFunction>,
    /// `None` while nobody is there.
    other: Mutex<Option<Other>>,
    /// Keeps frames in order.
    sending: Mutex<()>,
}

impl Wire {
    /// Lays the wire. `poke` wakes whoever moves the world and calls [`Wire::send`].
    ///
    /// # Errors
    /// What the system answered at the path, or when asked for a thread.
    pub fn lay(
        sim: &Sim,
        function: &Arc<SimFunction>,
        path: &WirePath,
        faults: LinkFaults,
        poke: SyncSender<()>,
    ) -> io::Result<Arc<Self>> {
        sim.connect_outside(function, faults);
        sim.inject(function, &Fault::LinkDown);
        let wire = Arc::new(Self {
            sim: sim.clone(),
            function: Arc::clone(function),
            other: Mutex::new(None),
            sending: Mutex::new(()),
        });
        let kept = Arc::clone(&wire);
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        let thread = thread::Builder::new().name("sim-wire".into());
        match path.clone() {
            WirePath::Process(path) => {
                let end = FrameEnd::at(&path)?;
                thread.spawn(move || kept.meet(end, &path, &poke))?;
            }
            WirePath::Datagrams { here, there } => {
                let socket = FrameDatagrams::bind(&here, &there)?;
                thread.spawn(move || kept.carry(&Other::Datagrams(socket), &poke))?;
            }
        }
        Ok(wire)
    }

    fn other(&self) -> MutexGuard<'_, Option<Other>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries frames for one after the other that comes to the path.
    fn meet(&self, mut end: FrameEnd, path: &Path, poke: &SyncSender<()>) {
        loop {
            let met = match end {
                FrameEnd::First(listener) => listener.accept(),
                FrameEnd::Second(socket) => Ok(socket),
            };
            let next = met.and_then(|socket| {
                self.carry(&Other::Process(socket), poke);
                FrameEnd::at(path)
            });
            end = match next {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!("{}: {error}: the wire is cut", path.display());
                    return;
                }
            };
        }
    }

    /// Takes in frames until the other side goes.
    fn carry(&self, other: &Other, poke: &SyncSender<()>) {
        *self.other() = Some(other.clone());
        self.sim.inject(&self.function, &Fault::LinkUp);
        loop {
            match other.receive() {
                Ok(Some(frame)) => {
                    self.sim.deliver(&self.function, &frame);
                    // Full: it will wake anyway. Closed: nobody moves the world any more.
                    let _ = poke.try_send(());
                }
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::InvalidData => tracing::warn!("{error}"),
                Err(error) => {
                    tracing::warn!("{error}");
                    break;
                }
            }
        }
        *self.other() = None;
        self.sim.inject(&self.function, &Fault::LinkDown);
    }

    /// Sends what has left the function; whether there was anything. Without anybody there it is lost, as on a wire; and so
    /// is what finds no room for long, because the other process has stopped.
    pub fn send(&self) -> bool {
        let _order = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let frames = self.sim.take_frames(&self.function);
        let any = !frames.is_empty();
        if let Some(other) = self.other().clone() {
            for frame in frames {
                if let Err(error) = other.send(&frame) {
                    tracing::debug!("{error}");
                }
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
