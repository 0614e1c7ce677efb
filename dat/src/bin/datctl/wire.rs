//! `--link unix:PATH`: the wire of a simulated function ends in another server.
//!
//! A thread keeps the wire: it waits at the path for the other server, hands what arrives to the function, and when the
//! other server goes, waits for the next one. The function's port has a carrier while somebody is there. Frames that
//! leave are sent by whoever moves the world, which so never waits for the other side.

use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use driver::{FrameEnd, FrameSocket};
use hw_sim::{Fault, LinkFaults, Sim, SimFunction};

/// Where the other server is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkPath(PathBuf);

impl FromStr for LinkPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Some(path) => Ok(Self(path.into())),
            None => Err(format!("{text:?} is no link; one is unix:PATH")),
        }
    }
}

/// The wire of a function that leaves this process.
pub(crate) struct Wire {
    sim: Sim,
    function: Arc<SimFunction>,
    /// `None` while nobody is there.
    other: Arc<Mutex<Option<FrameSocket>>>,
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
        let LinkPath(path) = path.clone();
        let failed = |error| format!("{}: {error}", path.display());
        sim.connect_outside(function, faults);
        sim.inject(function, &Fault::LinkDown);
        let mut end = FrameEnd::at(&path).map_err(failed)?;
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
        thread::spawn(move || {
            loop {
                let next = meet(end).and_then(|socket| {
                    kept.carry(&socket, &poke);
                    FrameEnd::at(&path)
                });
                match next {
                    Ok(next) => end = next,
                    Err(error) => {
                        tracing::error!("{}: {error}: the wire is cut", path.display());
                        return;
                    }
                }
            }
        });
        Ok(wire)
    }

    fn other(&self) -> MutexGuard<'_, Option<FrameSocket>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in frames until the other side goes.
    fn carry(&self, socket: &FrameSocket, poke: &SyncSender<()>) {
        *self.other() = Some(socket.clone());
        self.sim.inject(&self.function, &Fault::LinkUp);
        loop {
            match socket.receive() {
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
        let Some(socket) = self.other().clone() else {
            return;
        };
        for frame in frames {
            if let Err(error) = socket.send(&frame) {
                tracing::debug!("{error}");
            }
        }
    }
}

/// Waits for the other side.
fn meet(end: FrameEnd) -> std::io::Result<FrameSocket> {
    match end {
        FrameEnd::First(listener) => listener.accept(),
        FrameEnd::Second(socket) => Ok(socket),
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
    fn a_link_is_a_unix_path() {
        assert_eq!("unix:/run/wire".parse(), Ok(LinkPath("/run/wire".into())));
        for wrong in ["", "unix:", "/run/wire", "tap:0"] {
            let error = wrong.parse::<LinkPath>().expect_err(wrong);
            assert!(error.contains("unix:PATH"), "{error}");
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
