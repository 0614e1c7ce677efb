//! Paths of UNIX sockets: binding a socket to a path, and handling a file that already exists there.
//!
//! Two processes that connect through a UNIX socket have only its path in common. A process that wants to listen may
//! find a file at the path. If the file is a socket of the same user that no process has open, a killed process has
//! left it, and it is removed. Any other file stays unchanged, and the error describes it.
//!
//! The test for an open socket connects a datagram socket to it. The system returns ECONNREFUSED if no process has
//! the socket open, and EPROTOTYPE if it is open with another type (Linux `net/unix/af_unix.c` `unix_find_bsd`). So
//! the test never takes an entry in the queue of a listener.
//!
//! Between the test and the bind no other process may bind to the path. The lock file `PATH.lock` ensures that. It is
//! created without following links and never written. A process holds the lock while it binds ([`PathClaim`]), and
//! removes the file before it releases the lock. A process that waited for a lock whose file was removed creates a new
//! file. So the lock file outlives a process only if the process is killed while it holds the lock.
//!
//! Dropping a [`TakenPath`] frees the path, unless another socket has replaced ours meanwhile: while our socket is
//! open, no other file can have its inode number.

use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;
use thiserror::Error;

use crate::clock::Clock;
use crate::real_clock::RealClock;

/// Longest time to wait for another process that holds the lock of the path.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to take the lock.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Backlog of the listener, the same as in the standard library.
const BACKLOG: i32 = 128;

/// Reason why a path cannot be taken for a socket.
#[derive(Debug, Error)]
pub enum SocketPathError {
    /// The file at the path is not a socket.
    #[error("{} is {kind}, not a socket; it stays as it is", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
        /// Kind of the file.
        kind: &'static str,
    },
    /// The folder of the path does not exist, or is not a directory.
    #[error("the folder {} is {what}", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
        /// Kind of the file at the folder's path, or "not there".
        what: &'static str,
    },
    /// The socket is not open in any process, but belongs to another user.
    #[error("{} is a socket that user {owner} has left, and this is user {user}; it stays as it is", path.display())]
    OtherUsersSocket {
        /// Path of the socket.
        path: PathBuf,
        /// User ID of the socket's owner.
        owner: u32,
        /// User ID of this process.
        user: u32,
    },
    /// A process has the socket open.
    #[error("{} is a socket that another process has open", path.display())]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The file at the lock's path is not a lock file of this user.
    #[error("{}, where the lock of a socket would be, is {what}; it stays as it is", path.display())]
    NotALock {
        /// Path of the lock file.
        path: PathBuf,
        /// Kind, owner or length of the file that was found.
        what: String,
    },
    /// Another process has held the lock for the whole waiting time.
    #[error("{} has been locked by another process for {PATIENCE:?}", path.display())]
    Locked {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {call}: {source}", path.display())]
    System {
        /// Path that the call was made for.
        path: PathBuf,
        /// Name of the system call.
        call: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

impl From<SocketPathError> for io::Error {
    fn from(error: SocketPathError) -> Self {
        let kind = match &error {
            SocketPathError::NotASocket { .. } | SocketPathError::NotALock { .. } => {
                ErrorKind::AlreadyExists
            }
            SocketPathError::NoFolder { .. } => ErrorKind::NotFound,
            SocketPathError::OtherUsersSocket { .. } => ErrorKind::PermissionDenied,
            SocketPathError::InUse { .. } => ErrorKind::AddrInUse,
            SocketPathError::Locked { .. } => ErrorKind::TimedOut,
            SocketPathError::System { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

fn system(path: &Path, call: &'static str) -> impl FnOnce(io::Error) -> SocketPathError {
    let path = path.to_owned();
    move |source| SocketPathError::System { path, call, source }
}

/// Listens for connections at a path. Replaces a socket of this user that no process has open.
///
/// # Errors
/// [`SocketPathError`]: another file, or a socket that is in use or of another user, is at the path; the path cannot be
/// locked; or a system call failed.
pub fn listen_at(path: &Path) -> Result<(UnixListener, TakenPath), SocketPathError> {
    PathClaim::new(path)?.bind(|path| UnixListener::bind(path))
}

/// Listens as [`listen_at`] does, but only the owner can ever access the socket: its mode is set before it is bound to
/// the path.
///
/// # Errors
/// As [`listen_at`].
pub fn listen_privately(path: &Path) -> Result<(UnixListener, TakenPath), SocketPathError> {
    PathClaim::new(path)?.bind(|path| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        // The file gets the mode of the socket, less the umask (Linux `net/unix/af_unix.c` `unix_bind_bsd`).
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(UnixListener::from(socket))
    })
}

/// State of a path, determined while the lock prevents other processes from binding to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// The path is free: it has no file, or only a socket of this user that no process has open.
    None,
    /// A process has the socket at the path open.
    Process,
}

/// The lock on a path. While it is held, no other process that uses this type binds a socket to the path.
#[derive(Debug)]
pub(crate) struct PathClaim {
    path: PathBuf,
    user: u32,
    _lock: Lock,
}

impl PathClaim {
    /// Waits until no other process holds the lock of the path, and takes it.
    pub(crate) fn new(path: &Path) -> Result<Self, SocketPathError> {
        Self::of_user(path, geteuid().as_raw())
    }

    fn of_user(path: &Path, user: u32) -> Result<Self, SocketPathError> {
        folder_of(path)?;
        // A file that is not a socket is refused before a lock file is made.
        stat_socket(path)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        Ok(Self {
            path: path.to_owned(),
            user,
            _lock: Lock::take(&PathBuf::from(beside), user)?,
        })
    }

    /// Determines whether a process has a socket open at the path. It is an error if the file is not a socket, or is an
    /// unused socket of another user.
    pub(crate) fn occupant(&self) -> Result<Occupant, SocketPathError> {
        let Some(found) = stat_socket(&self.path)? else {
            return Ok(Occupant::None);
        };
        let asks = UnixDatagram::unbound().map_err(system(&self.path, "socket"))?;
        match asks.connect(&self.path) {
            Ok(()) => Ok(Occupant::Process),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Occupant::None),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                if found.uid() == self.user {
                    return Ok(Occupant::None);
                }
                Err(SocketPathError::OtherUsersSocket {
                    path: self.path.clone(),
                    owner: found.uid(),
                    user: self.user,
                })
            }
            // The socket is open, but has another type, or is connected to a single peer.
            Err(error)
                if [Errno::EPROTOTYPE, Errno::EPERM]
                    .map(|errno| Some(errno as i32))
                    .contains(&error.raw_os_error()) =>
            {
                Ok(Occupant::Process)
            }
            Err(source) => Err(system(&self.path, "connect")(source)),
        }
    }

    /// Binds a socket to the path. `make` creates and binds the socket, and may also make it listen.
    pub(crate) fn bind<S>(
        self,
        make: impl FnOnce(&Path) -> io::Result<S>,
    ) -> Result<(S, TakenPath), SocketPathError> {
        let path = &self.path;
        if self.occupant()? == Occupant::Process {
            return Err(SocketPathError::InUse { path: path.clone() });
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(system(path, "unlink")(error));
            }
            Ok(()) => tracing::debug!(
                "{}: removed a socket that no process has open",
                path.display()
            ),
            Err(_) => {}
        }
        let socket = make(path).map_err(system(path, "bind"))?;
        let metadata = fs::symlink_metadata(path).map_err(system(path, "lstat"))?;
        let taken = TakenPath {
            // The path is absolute, because the program may change its directory before the path is freed.
            path: absolute(path).map_err(system(path, "getcwd"))?,
            inode: inode(&metadata),
        };
        Ok((socket, taken))
    }
}

/// Checks that the folder of a path exists. If its state cannot be read, the check passes and a later call reports the
/// error.
fn folder_of(path: &Path) -> Result<(), SocketPathError> {
    let folder = path.parent();
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let what = match fs::metadata(folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(found) => kind(found.file_type()),
        Err(error) if error.kind() == ErrorKind::NotFound => "not there",
        Err(_) => return Ok(()),
    };
    Err(SocketPathError::NoFolder {
        folder: folder.to_owned(),
        what,
    })
}

/// Returns the metadata of the socket at a path; `None` if there is no file. Any other file is an error.
fn stat_socket(path: &Path) -> Result<Option<Metadata>, SocketPathError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Ok(Some(metadata)),
        Ok(metadata) => Err(SocketPathError::NotASocket {
            path: path.to_owned(),
            kind: kind(metadata.file_type()),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(system(path, "lstat")(source)),
    }
}

fn kind(file: FileType) -> &'static str {
    match () {
        () if file.is_file() => "a regular file",
        () if file.is_dir() => "a directory",
        () if file.is_symlink() => "a symbolic link",
        () if file.is_fifo() => "a FIFO",
        () if file.is_socket() => "a socket",
        () => "a device",
    }
}

/// Returns a file's identity: device and inode number.
fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A path to which a socket of this process is bound. It must be dropped before the socket. The drop removes the file
/// only if it is still the one that was made.
#[derive(Debug)]
pub struct TakenPath {
    path: PathBuf,
    inode: (u64, u64),
}

impl TakenPath {
    /// Changes the owner and group of the socket, if given, and sets its mode. Only the socket that was made is
    /// changed, never another file that has replaced it at the path.
    ///
    /// # Errors
    /// Another file is at the path, or a system call failed.
    pub fn give_to(&self, user: Option<u32>, group: Option<u32>, mode: u32) -> io::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(&self.path)?;
        if inode(&opened.metadata()?) != self.inode {
            let what = "another file has taken the place of the socket";
            return Err(io::Error::new(ErrorKind::AlreadyExists, what));
        }
        // Neither call accepts an `O_PATH` descriptor. Its entry in /proc refers to the opened file itself.
        let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
        // The owner changes before the mode, so that no unintended group may connect in between.
        chown(&itself, user, group)?;
        fs::set_permissions(&itself, fs::Permissions::from_mode(mode))
    }
}

impl Drop for TakenPath {
    fn drop(&mut self) {
        remove(&self.path, self.inode);
    }
}

/// Removes the file at `path` if its identity is still `ours`.
fn remove(path: &Path, ours: (u64, u64)) {
    let still = fs::symlink_metadata(path).is_ok_and(|metadata| inode(&metadata) == ours);
    if still && let Err(error) = fs::remove_file(path) {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// A lock file that this process holds locked.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    inode: (u64, u64),
    _file: File,
}

impl Lock {
    fn take(path: &Path, user: u32) -> Result<Self, SocketPathError> {
        let clock = RealClock::new();
        let until = clock.now() + PATIENCE;
        loop {
            if let Some(held) = Self::try_take(path, user)? {
                return Ok(held);
            }
            if clock.now() >= until {
                return Err(SocketPathError::Locked {
                    path: path.to_owned(),
                });
            }
            clock.wait(&[], clock.now() + RETRY_PAUSE);
        }
    }

    /// Tries to take the lock. Returns `None` if another process holds it or has just removed its file.
    fn try_take(path: &Path, user: u32) -> Result<Option<Self>, SocketPathError> {
        let not_a_lock = |what: String| SocketPathError::NotALock {
            path: path.to_owned(),
            what,
        };
        // With these flags the open does not block on a FIFO, and a terminal does not become the controlling terminal.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags.bits())
            .open(path);
        let file = opened.map_err(|source| match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => not_a_lock(kind(found.file_type()).to_owned()),
            Ok(found) if found.uid() != user => not_a_lock(format!("of user {}", found.uid())),
            Ok(_) | Err(_) => system(path, "open")(source),
        })?;
        let metadata = file.metadata().map_err(system(path, "fstat"))?;
        if !metadata.is_file() {
            return Err(not_a_lock(kind(metadata.file_type()).to_owned()));
        }
        if metadata.uid() != user {
            return Err(not_a_lock(format!("of user {}", metadata.uid())));
        }
        if metadata.len() != 0 {
            return Err(not_a_lock(format!("a file of {} bytes", metadata.len())));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(system(path, "flock")(source)),
        }
        let inode = inode(&metadata);
        let still = fs::symlink_metadata(path).is_ok_and(|found| self::inode(&found) == inode);
        Ok(still.then(|| Self {
            path: path.to_owned(),
            inode,
            _file: file,
        }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is still held here: the file is closed after this.
        remove(&self.path, self.inode);
    }
}

#[cfg(test)]
mod tests;
