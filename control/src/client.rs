//! The client of a control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use driver::connect_within;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::rpc::{Answer, Notification, Refusal, Request, VERSION};
use crate::schema::{SCHEMA, Version};

/// Time limit for the connection, for the answer to a call, and for each write to the socket.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Time limit of a read that only takes bytes that have arrived. It is not zero, because zero
/// means no limit (`SO_RCVTIMEO`).
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// Reason why a request has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// A system call failed, for example because no process serves the socket, or the process did not answer in time.
    #[error("{}: {error}", path.display())]
    System {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The served process closed the connection. Contains the path of the socket.
    #[error("{}: the process has ended, or has disconnected this client", .0.display())]
    Over(PathBuf),
    /// The request could not be converted to JSON, or the answer from JSON.
    #[error("{}: not understood: {error}", path.display())]
    Conversion {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the conversion.
        error: serde_json::Error,
    },
    /// The served process uses another version of the schema.
    #[error(
        "{}: process {} speaks schema {}, and this program {SCHEMA}: use that of library {}",
        path.display(), theirs.process, theirs.schema, theirs.library
    )]
    Schema {
        /// Path of the socket.
        path: PathBuf,
        /// The served process's description of itself.
        theirs: Box<Version>,
    },
    /// The socket belongs to another kind of process.
    #[error("{}: this is the control socket of {}: `{}`", path.display(), is.name(), is.command(path))]
    WrongProcessKind {
        /// Path of the socket.
        path: PathBuf,
        /// Kind of the process that serves the socket.
        is: Side,
    },
    /// The request was refused.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Kind of a process that serves a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A process that has an adapter open.
    Adapter,
    /// The NVMe-oF target, nvmeofd.
    Target,
    /// A process that serves simulated functions.
    World,
}

impl Side {
    const ALL: [Self; 3] = [Self::Adapter, Self::Target, Self::World];

    /// Returns the name of a method that only this kind of process has.
    const fn method(self) -> &'static str {
        match self {
            Self::Adapter => "resource",
            Self::Target => "subsystem.add",
            Self::World => "sim.time",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Adapter => "an adapter",
            Self::Target => "nvmeofd",
            Self::World => "simulated functions that are served",
        }
    }

    /// Returns the command that inspects a process of this kind.
    fn command(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Adapter => format!("datctl stat {path}"),
            Self::Target => format!("nvmeofd ctl {path} status"),
            Self::World => format!("datctl sim ctl {path} time"),
        }
    }

    /// Returns the explanation for a socket that does not exist.
    const fn absent(self) -> &'static str {
        match self {
            Self::Adapter => "no process has an adapter open with control= and this path",
            Self::Target => "no nvmeofd has this control socket ([control] socket)",
            Self::World => "no simulated functions are served with --steer and this path",
        }
    }
}

/// Adds an explanation to the system's error for a failed connection.
fn with_explanation(side: Side, error: io::Error) -> io::Error {
    let known = [
        (io::ErrorKind::NotFound, side.absent()),
        (
            io::ErrorKind::ConnectionRefused,
            "no socket, or one whose process has ended",
        ),
        (
            io::ErrorKind::PermissionDenied,
            "the socket is for the user of its process, and root",
        ),
    ];
    let known = known.into_iter().find(|(kind, _)| *kind == error.kind());
    match known {
        Some((kind, means)) => io::Error::new(kind, format!("{means}: {error}")),
        None => error,
    }
}

/// A client's connection to a control socket.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    /// Beginning of a line whose end had not arrived at the end of a wait.
    line: Vec<u8>,
    next: u64,
    notices: Vec<Value>,
    /// Time limit for the answer to a call.
    pub(crate) patience: Duration,
}

/// Lets the caller wait for messages together with other descriptors.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

impl Client {
    /// Connects to a process that has an adapter open. Does not check the schema.
    ///
    /// # Errors
    /// [`ClientError::System`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_to(path, Side::Adapter)
    }

    fn connect_to(path: &Path, side: Side) -> Result<Self, ClientError> {
        let failed = |error| ClientError::System {
            path: path.to_owned(),
            error,
        };
        let stream = connect_within(path, PATIENCE)
            .map_err(|error| failed(with_explanation(side, error)))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
            line: Vec::new(),
            next: 1,
            notices: Vec::new(),
            patience: PATIENCE,
        })
    }

    /// Connects, and checks that the process is not of another kind and uses the same schema.
    ///
    /// # Errors
    /// [`ClientError`]; among them [`ClientError::Schema`] and [`ClientError::WrongProcessKind`].
    pub fn connect_alike(path: &Path, side: Side) -> Result<Self, ClientError> {
        let mut client = Self::connect_to(path, side)?;
        let theirs: Version = client.call("version", Value::Null)?;
        let has = |one: Side| theirs.methods.iter().any(|method| method == one.method());
        if let Some(is) = Side::ALL.into_iter().find(|one| has(*one) && !has(side)) {
            return Err(ClientError::WrongProcessKind {
                path: path.to_owned(),
                is,
            });
        }
        if theirs.schema == SCHEMA {
            return Ok(client);
        }
        Err(ClientError::Schema {
            path: path.to_owned(),
            theirs: Box::new(theirs),
        })
    }

    /// Sends a request, and waits for the answer. Fails if the answer does not arrive within 10 s, whatever else
    /// arrives meanwhile.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<T, ClientError> {
        let id = Value::from(self.next);
        self.next += 1;
        let request = Request {
            jsonrpc: VERSION.to_owned(),
            id: id.clone(),
            method: method.to_owned(),
            params,
        };
        let mut line =
            serde_json::to_vec(&request).map_err(|error| self.conversion_error(error))?;
        line.push(b'\n');
        let written = self.stream.get_mut().write_all(&line);
        written.map_err(|error| self.failed(error))?;
        let until = Instant::now() + self.patience;
        // All reads have the same deadline. The loop checks the deadline, too, because a read after the deadline still
        // takes bytes that have arrived.
        while let Some(object) = self.read(Some(until))? {
            let answer = if object.get("method").is_some() {
                self.notices.push(object);
                None
            } else {
                let answer: Answer =
                    serde_json::from_value(object).map_err(|error| self.conversion_error(error))?;
                Some(answer).filter(|answer| answer.id == id)
            };
            let Some(answer) = answer else {
                if Instant::now() >= until {
                    break;
                }
                continue;
            };
            if let Some(refusal) = answer.error {
                return Err(refusal.into());
            }
            let result = answer.result.unwrap_or(Value::Null);
            return serde_json::from_value(result).map_err(|error| self.conversion_error(error));
        }
        let what = format!("no answer to {method} within {} s", self.patience.as_secs());
        Err(self.failed(io::Error::new(io::ErrorKind::TimedOut, what)))
    }

    /// Returns the next notice, after a subscription. Returns `None` if no notice arrives within `patience`. Without
    /// `patience`, waits without a limit.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn notice<T: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<Option<T>, ClientError> {
        let object = if self.notices.is_empty() {
            self.read(patience.and_then(|patience| Instant::now().checked_add(patience)))?
        } else {
            Some(self.notices.remove(0))
        };
        let Some(object) = object else {
            return Ok(None);
        };
        let notification: Notification =
            serde_json::from_value(object).map_err(|error| self.conversion_error(error))?;
        let params = serde_json::from_value(notification.params);
        params
            .map(Some)
            .map_err(|error| self.conversion_error(error))
    }

    /// Returns the next object. Returns `None` if its line has not arrived completely by `until`, and keeps the
    /// beginning of the line for the next read. Even after `until`, takes bytes that have arrived already. Without
    /// `until`, waits without a limit.
    fn read(&mut self, until: Option<Instant>) -> Result<Option<Value>, ClientError> {
        let mut has_waited = false;
        loop {
            if self.stream.buffer().is_empty() {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if has_waited && left.is_some_and(|left| left.is_zero()) {
                    return Ok(None);
                }
                has_waited = true;
                let limit = left.map(|left| left.max(SHORTEST_WAIT));
                let set = self.stream.get_ref().set_read_timeout(limit);
                set.map_err(|error| self.failed(error))?;
            }
            let arrived = match self.stream.fill_buf() {
                Ok([]) => return Err(ClientError::Over(self.path.clone())),
                Ok(arrived) => arrived,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(self.failed(error)),
            };
            let end = arrived.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(arrived.len(), |end| end + 1);
            self.line.extend_from_slice(&arrived[..taken]);
            self.stream.consume(taken);
            if self.line.len() > MAX_ANSWER_BYTES {
                let what = format!("a line of more than {MAX_ANSWER_BYTES} bytes");
                return Err(self.failed(io::Error::new(io::ErrorKind::InvalidData, what)));
            }
            if end.is_some() {
                let line = core::mem::take(&mut self.line);
                let object =
                    serde_json::from_slice(&line).map_err(|error| self.conversion_error(error))?;
                return Ok(Some(object));
            }
        }
    }

    fn failed(&self, error: io::Error) -> ClientError {
        ClientError::System {
            path: self.path.clone(),
            error,
        }
    }

    fn conversion_error(&self, error: serde_json::Error) -> ClientError {
        ClientError::Conversion {
            path: self.path.clone(),
            error,
        }
    }
}
