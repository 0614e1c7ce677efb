//! `--link unix:PATH`, `--link dgram:HERE,THERE`: the wire of a simulated function ends in another process.
//!
//! A thread keeps the wire. To another server (`unix:`) it waits at the path for it, hands what arrives to the function, and
//! when the other server goes, waits for the next one; the function's port has a carrier while somebody is there. With
//! datagrams (`dgram:`), which QEMU's network devices speak, nobody comes or goes, and there is always a carrier. Frames
//! that leave are sent by whoever moves the world, which so never waits for the other side.

use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use driver::{FrameDatagrams, FrameEnd, FrameSocket};
use hw_sim::{Fault, LinkFaults, Sim, SimFunction};

/// Where the other side is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkPath {
    /// A path that another server is told too.
    Server(PathBuf),
    /// Our path, and that of a network device of QEMU.
    Datagrams { here: PathBuf, there: PathBuf },
}

impl FromStr for LinkPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let full = |path: &&str| !path.is_empty();
        if let Some(path) = text.strip_prefix("unix:").filter(full) {
            return Ok(Self::Server(path.into()));
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

/// Who takes the frames that leave.
#[derive(Clone)]
enum Other {
    Server(FrameSocket),
    Datagrams(FrameDatagrams),
}

impl Other {
    fn send(&self, frame: &[u8]) -> std::io::Result<bool> {
        match self {
            Self::Server(socket) => socket.send(frame),
            Self::Datagrams(socket) => socket.send(frame),
        }
    }

    /// Waits for a frame. `None`: the other side is gone.
    fn receive(&self) -> std::io::Result<Option<Vec<u8>>> {
        match self {
            Self::Server(socket) => socket.receive(),
            Self::Datagrams(socket) => socket.receive().map(Some),
        }
    }
}

/// The wire of a function that leaves this process.
pub(crate) struct Wire {
    sim: Sim,
    function: Arc<SimFunction>,
    /// `None` while nobody is there.
    other: Arc<Mutex<Option<Other>>>,
}

impl Wire {
    /// Lays the wire. `poke` wakes whoever moves the world.
    pub(crate) fn lay(
        sim: &Sim,
        function: &Arc<SimFunction>,
        path: &LinkPath,
        faults: LinkFaults,
        poke: SyncSender<()>,
    ) -> Result<Self, Box<dyn Error>> {
        sim.connect_outside(function, faults);
        sim.inject(function, &Fault::LinkDown);
        let wire = Self {
            sim: sim.clone(),
            function: Arc::clone(function),
            other: Arc::default(),
        };
        let kept = Self {
            sim: sim.clone(),
            function: Arc::clone(function),
            other: Arc::clone(&wire.other),
        };
        match path.clone() {
            LinkPath::Server(path) => {
                let end =
                    FrameEnd::at(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                thread::spawn(move || kept.meet(end, &path, &poke));
            }
            LinkPath::Datagrams { here, there } => {
                let socket = FrameDatagrams::bind(&here, &there)
                    .map_err(|error| format!("{}: {error}", here.display()))?;
                thread::spawn(move || kept.carry(&Other::Datagrams(socket), &poke));
            }
        }
        Ok(wire)
    }

    fn other(&self) -> MutexGuard<'_, Option<Other>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries frames for one server after the other that comes to the path.
    fn meet(&self, mut end: FrameEnd, path: &Path, poke: &SyncSender<()>) {
        loop {
            let socket = match end {
                FrameEnd::First(listener) => listener.accept(),
                FrameEnd::Second(socket) => Ok(socket),
            };
            let next = socket.and_then(|socket| {
                self.carry(&Other::Server(socket), poke);
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
                    // Full: it will wake anyway. Closed: it has ended, and the process with it.
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

    /// Sends what has left the function. Without anybody there it is lost, as on a wire.
    pub(crate) fn send(&self) {
        let frames = self.sim.take_frames(&self.function);
        let Some(other) = self.other().clone() else {
            return;
        };
        for frame in frames {
            if let Err(error) = other.send(&frame) {
                tracing::debug!("{error}");
            }
        }
    }
}

/// The number a function's address is made of. Two servers on one wire know nothing of each other but must have
/// different addresses, which stay the same when a server is started anew: so it follows from the function's socket.
pub(crate) fn address_number(socket: &Path) -> usize {
    // FNV-1a, "Fowler/Noll/Vo": any hash that every build computes alike would do.
    let hash = socket
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    let [high, low, ..] = hash.to_be_bytes();
    0x4000 | usize::from(high & 0x3f) << 8 | usize::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_path_of_a_server_or_two_of_datagrams() {
        let server = LinkPath::Server("/run/wire".into());
        assert_eq!("unix:/run/wire".parse(), Ok(server));
        let datagrams = LinkPath::Datagrams {
            here: "a".into(),
            there: "b".into(),
        };
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
            let error = wrong.parse::<LinkPath>().expect_err(wrong);
            assert!(error.contains("unix:PATH or dgram:HERE,THERE"), "{error}");
        }
    }

    #[test]
    fn functions_of_two_servers_have_different_addresses_that_stay() {
        let [a, b] = ["/run/a.sock", "/run/b.sock"].map(|path| address_number(Path::new(path)));
        assert_ne!(a, b);
        assert_eq!(a, address_number(Path::new("/run/a.sock")));
        assert!(
            [a, b]
                .iter()
                .all(|number| (0x4000..0x8000).contains(number))
        );
    }
}
