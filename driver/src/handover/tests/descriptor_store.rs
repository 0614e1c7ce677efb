//! A service manager in the hands of a test, with a descriptor store (sd_notify(3)).

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread::JoinHandle;

use nix::sys::stat::fstat;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;

use super::*;
use crate::service_manager::ServiceManager;

/// A service manager, which runs in a thread.
pub(super) struct Manager {
    pub(super) path: PathBuf,
    _directory: TempDir,
    runs: JoinHandle<Store>,
}

/// Descriptors that are kept, newest first, and all messages.
#[derive(Default)]
pub(super) struct Store {
    pub(super) kept: Vec<NamedFd>,
    pub(super) messages: Vec<String>,
}

impl Store {
    pub(super) fn names(&self) -> Vec<&str> {
        self.kept.iter().map(|named| named.name.as_str()).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().contains(&name)
    }

    /// Returns duplicates in the order in which a service gets them.
    pub(super) fn duplicates(&self) -> Vec<NamedFd> {
        let duplicate = |named: &NamedFd| NamedFd {
            name: named.name.clone(),
            fd: named.fd.try_clone().expect("a duplicate"),
        };
        self.kept.iter().map(duplicate).collect()
    }

    /// Handles a message as systemd does: without a report of descriptors that it does not keep.
    fn handle(&mut self, message: &str, fds: Vec<OwnedFd>, most: usize) {
        self.messages.push(message.to_owned());
        let lines: Vec<&str> = message.lines().collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored");
        if lines.contains(&"FDSTOREREMOVE=1") {
            self.kept.retain(|named| named.name != name);
        }
        if lines.contains(&"FDSTORE=1") {
            assert!(lines.contains(&"FDPOLL=0"), "{message}");
            for fd in fds {
                let inode = |fd: &OwnedFd| fstat(fd).expect("a file").st_ino;
                let is_new = self.kept.iter().all(|kept| inode(&kept.fd) != inode(&fd));
                if is_new && self.kept.len() < most {
                    let name = name.to_owned();
                    self.kept.insert(0, NamedFd { name, fd });
                }
            }
        }
    }
}

impl Manager {
    /// Starts a manager that keeps at most `most` descriptors, and has `kept` already.
    pub(super) fn start(most: usize, kept: Vec<NamedFd>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let runs = std::thread::spawn(move || {
            let mut store = Store {
                kept,
                ..Store::default()
            };
            loop {
                let (message, fds) = received(&socket);
                if message == "END" {
                    return store;
                }
                store.handle(&message, fds, most);
            }
        });
        Self {
            path,
            _directory: directory,
            runs,
        }
    }

    /// Returns the driver's side of it.
    pub(super) fn client(&self, room: Option<u64>) -> ServiceManager {
        client(&self.path, room)
    }

    /// Ends the manager, and returns its store.
    pub(super) fn end(self) -> Store {
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.send_to(b"END", &self.path).expect("a message");
        self.runs.join().expect("a manager")
    }
}

/// Returns the driver's side of a manager at a path.
pub(super) fn client(path: &std::path::Path, room: Option<u64>) -> ServiceManager {
    let path = path.to_str().expect("a path");
    ServiceManager::at(path.as_bytes(), room).expect("a socket")
}

/// Receives a datagram with its descriptors.
pub(super) fn received(socket: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut slices, &mut control, flags).expect("a message");
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let text = std::str::from_utf8(&bytes[..received.bytes]).expect("text");
    (text.to_owned(), fds)
}
