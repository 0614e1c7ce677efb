//! Paths of sockets: who may take one, and what becomes of what lies there.
//!
//! Two processes that meet at a UNIX socket agree on nothing but a path. Whoever is to listen there may find something
//! at it. A socket of the same user that nobody has open any more was left by a process that was killed, and is
//! removed. Everything else is somebody's: it stays as it is, and the error says what it is.
//!
//! Whether anybody has a socket open is asked by connecting a datagram socket to it. The system answers ECONNREFUSED if
//! nobody has, and EPROTOTYPE if who has it open speaks otherwise (Linux `net/unix/af_unix.c` `unix_find_bsd`); so the
//! question never takes a place in the queue of a listener.
//!
//! Between the question and the answer's use nobody else may take the path. `PATH.lock` sees to that. It is made
//! without following links and never written, held while a path is being taken ([`PathClaim`]) and removed before it is
//! let go; who waited for a lock that is gone by then makes a new one. So it outlives a process only if that is killed
//! just then.
//!
//! A path that was taken ([`TakenPath`]) is free again when it is dropped, unless it has become another's meanwhile:
//! while our socket is open, no other can have its inode number.

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

/// How long another process may take to take a path.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const ASK: Duration = Duration::from_millis(1);
/// Connections that wait to be taken, as the standard library has it.
const BACKLOG: i32 = 128;

/// Why a path cannot be taken for a socket.
#[derive(Debug, Error)]
pub enum SocketPathError {
    /// Something else is there.
    #[error("{} is {kind}, not a socket; it stays as it is", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// There is no folder to make it in.
    #[error("the folder {} is {what}", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// Nobody has the socket open, but it is not ours to remove.
    #[error("{} is a socket that user {owner} has left, and this is user {user}; it stays as it is", path.display())]
    AnothersSocket {
        /// The path.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// A process has the socket open.
    #[error("{} is a socket that another process has open", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// What is at the lock's path is no lock of ours.
    #[error("{}, where the lock of a socket would be, is {what}; it stays as it is", path.display())]
    NotALock {
        /// The path of the lock.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// Another process is taking the path, and does not come to an end.
    #[error("{} has been locked by another process for {PATIENCE:?}", path.display())]
    Locked {
        /// The path of the lock.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {call}: {source}", path.display())]
    System {
        /// The path it was asked about.
        path: PathBuf,
        /// What it was asked.
        call: &'static str,
        /// What it answered.
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
            SocketPathError::AnothersSocket { .. } => ErrorKind::PermissionDenied,
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

/// Listens for connections at a path.
///
/// # Errors
/// [`SocketPathError`]: what is there, or what the system answered.
pub fn listen_at(path: &Path) -> Result<(UnixListener, TakenPath), SocketPathError> {
    PathClaim::new(path)?.bind(|path| UnixListener::bind(path))
}

/// [`listen_at`], at a socket that is its owner's alone from the first moment on: it has its mode before it has a name.
///
/// # Errors
/// [`SocketPathError`]: what is there, or what the system answered.
pub fn listen_privately(path: &Path) -> Result<(UnixListener, TakenPath), SocketPathError> {
    PathClaim::new(path)?.bind(|path| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        // The file has the mode of the socket, less the umask (Linux `net/unix/af_unix.c` `unix_bind_bsd`).
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(UnixListener::from(socket))
    })
}

/// What is known of a path while nobody else can take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// Nothing is there, or a socket of ours that nobody has open.
    Nobody,
    /// A process has a socket open there.
    Somebody,
}

/// A path that is being taken. Nobody else who goes by this type takes it meanwhile.
#[derive(Debug)]
pub(crate) struct PathClaim {
    path: PathBuf,
    user: u32,
    _lock: Lock,
}

impl PathClaim {
    /// Waits until nobody else is taking the path.
    pub(crate) fn new(path: &Path) -> Result<Self, SocketPathError> {
        Self::of_user(path, geteuid().as_raw())
    }

    fn of_user(path: &Path, user: u32) -> Result<Self, SocketPathError> {
        folder_of(path)?;
        // What is no socket will be none later; no lock has to lie beside it.
        look(path)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        Ok(Self {
            path: path.to_owned(),
            user,
            _lock: Lock::take(&PathBuf::from(beside), user)?,
        })
    }

    /// Who is there. What is no socket, or another user's, is an error.
    pub(crate) fn occupant(&self) -> Result<Occupant, SocketPathError> {
        let Some(found) = look(&self.path)? else {
            return Ok(Occupant::Nobody);
        };
        let asks = UnixDatagram::unbound().map_err(system(&self.path, "socket"))?;
        match asks.connect(&self.path) {
            Ok(()) => Ok(Occupant::Somebody),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Occupant::Nobody),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                if found.uid() == self.user {
                    return Ok(Occupant::Nobody);
                }
                Err(SocketPathError::AnothersSocket {
                    path: self.path.clone(),
                    owner: found.uid(),
                    user: self.user,
                })
            }
            // It speaks otherwise, or with one other only.
            Err(error)
                if [Errno::EPROTOTYPE, Errno::EPERM]
                    .map(|errno| Some(errno as i32))
                    .contains(&error.raw_os_error()) =>
            {
                Ok(Occupant::Somebody)
            }
            Err(source) => Err(system(&self.path, "connect")(source)),
        }
    }

    /// Binds a socket there. `make` makes it, and has it listen if it is to.
    pub(crate) fn bind<S>(
        self,
        make: impl FnOnce(&Path) -> io::Result<S>,
    ) -> Result<(S, TakenPath), SocketPathError> {
        let path = &self.path;
        if self.occupant()? == Occupant::Somebody {
            return Err(SocketPathError::InUse { path: path.clone() });
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(system(path, "unlink")(error));
            }
            Ok(()) => tracing::debug!("{}: a socket nobody has open is gone", path.display()),
            Err(_) => {}
        }
        let socket = make(path).map_err(system(path, "bind"))?;
        let metadata = fs::symlink_metadata(path).map_err(system(path, "lstat"))?;
        let taken = TakenPath {
            // The program may change its directory before the path is given back.
            path: absolute(path).map_err(system(path, "getcwd"))?,
            inode: inode(&metadata),
        };
        Ok((socket, taken))
    }
}

/// Whether the folder of a path is there. Where the system does not say so, it says what it wants to say later.
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

/// The socket at a path, if there is anything; what is something else is an error.
fn look(path: &Path) -> Result<Option<Metadata>, SocketPathError> {
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

/// What a file is, whatever its name: device and inode number.
fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A path where a socket of ours is. Dropped before the socket is, it removes what it made, and nothing else.
#[derive(Debug)]
pub struct TakenPath {
    path: PathBuf,
    inode: (u64, u64),
}

impl TakenPath {
    /// Gives the socket to a user and a group, or leaves it with its own, and sets its mode. The socket that was made
    /// is meant, and nothing that has taken its name meanwhile.
    ///
    /// # Errors
    /// Something else is at the path; the system refuses.
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
        // Neither call takes a descriptor of a path alone; the kernel's name for it leads to the file itself.
        let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
        // In this order: no group may connect that is not meant.
        chown(&itself, user, group)?;
        fs::set_permissions(&itself, fs::Permissions::from_mode(mode))
    }
}

impl Drop for TakenPath {
    fn drop(&mut self) {
        remove(&self.path, self.inode);
    }
}

/// Removes a file of ours, unless the path has become another's.
fn remove(path: &Path, ours: (u64, u64)) {
    let still = fs::symlink_metadata(path).is_ok_and(|metadata| inode(&metadata) == ours);
    if still && let Err(error) = fs::remove_file(path) {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// A lock file that is held.
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
            clock.wait(&[], clock.now() + ASK);
        }
    }

    /// `None`: another process holds it, or has just removed it.
    fn try_take(path: &Path, user: u32) -> Result<Option<Self>, SocketPathError> {
        let not_a_lock = |what: String| SocketPathError::NotALock {
            path: path.to_owned(),
            what,
        };
        // A FIFO is not waited for, and a terminal does not become ours.
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
        // Still held: the file closes behind this.
        remove(&self.path, self.inode);
    }
}

#[cfg(test)]
mod tests;
