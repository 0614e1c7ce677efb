//! Handing over a connection from one process to another. The server sees one client that pauses.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use super::{Client, Connection, MAX_VECTORS};
use crate::descriptors::{Given, Parting};
use crate::error::{FunctionError, ParkError, ResumeError};
use crate::interrupt::Notices;
use crate::snapshot::VfioUserSnapshot;
use crate::vfio_user::VfioUserError;
use crate::vfio_user::message::{Header, MAX_FDS, TYPE_MASK, TYPE_REPLY};
use crate::vfio_user::name::function_name;
use crate::vfio_user::socket::Socket;
use crate::vfio_user::twin_client::TwinClient;

/// Sockets of a connection that is taken over.
pub(crate) struct Sockets {
    main: OwnedFd,
    twin: Option<OwnedFd>,
}

impl Sockets {
    /// Finds the sockets of a snapshot.
    pub(crate) fn of(
        snapshot: &VfioUserSnapshot,
        given: &mut Given<'_>,
    ) -> Result<Self, ResumeError> {
        let twin = snapshot.twin.as_ref();
        Ok(Self {
            main: given.duplicate("socket", &snapshot.socket)?,
            twin: twin.map(|twin| given.duplicate("twin", twin)).transpose()?,
        })
    }
}

/// Number of messages that a resumption sends: DEVICE_GET_INFO, DEVICE_GET_IRQ_INFO, and a REGION_READ for each of four
/// registers of configuration space.
#[cfg(test)]
pub(in crate::vfio_user) const RESUME_MESSAGES: u16 = 6;

/// Number of messages of an unclaimed function whose late replies are dropped. Most of them ask for registers. A reply
/// to a later message is not dropped, and the next resumption is refused.
pub(in crate::vfio_user) const UNCLAIMED_MESSAGES: u16 = 4096;

/// Largest number of late replies that one resumption drops. Each earlier resumption that gave up waiting left one. The
/// limit ends the loop if a server sends replies without end.
const MAX_LATE_REPLIES: usize = 1024;

/// Drops replies to earlier resumptions that have given up waiting. They began with the same ID `next_id`, because they
/// had the same snapshot. A reply that arrives during this resumption makes it fail, and a later resumption drops the
/// rest.
fn drop_late_replies(socket: &Socket, next_id: u16) -> io::Result<()> {
    let is_late = |header: &Header| {
        let is_reply = header.flags.get() & TYPE_MASK == TYPE_REPLY;
        is_reply && header.id.get().wrapping_sub(next_id) < UNCLAIMED_MESSAGES
    };
    for _ in 0..MAX_LATE_REPLIES {
        if !socket.discard_next(is_late)? {
            break;
        }
    }
    Ok(())
}

impl Client {
    /// Describes the connection for another process, with a duplicate of each socket. The snapshot has the ID of the
    /// next message. The next process repeats the IDs of messages that another function of the space sends after this.
    /// That is harmless, because those were answered before.
    pub(crate) fn snapshot(
        &self,
        parting: &mut Parting<'_>,
    ) -> Result<VfioUserSnapshot, ParkError> {
        let connection = self.lock();
        let socket = match &connection.socket {
            Ok(socket) => Arc::clone(socket),
            Err(lost) => {
                return Err(ParkError::Lost {
                    name: self.name.clone(),
                    because: self.gone(lost).to_string(),
                });
            }
        };
        let twin = self.twin.as_ref();
        Ok(VfioUserSnapshot {
            path: self.path.clone(),
            socket: parting.add("socket", socket.as_fd())?,
            twin: twin
                .map(|twin| parting.add("twin", twin.as_fd()))
                .transpose()?,
            next_id: connection.next_id,
            // PANIC: at most MAX_FDS.
            max_fds: u32::try_from(self.max_fds).expect("a few descriptors"),
            most_mappings: self.most_mappings as u64,
            // PANIC: at most MAX_VECTORS.
            vector_count: u32::try_from(self.vectors).expect("a few vectors"),
        })
    }

    /// Ends this process's use of the connection. No message is sent, and no socket is shut down.
    pub(crate) fn part(&self) {
        if let Some(twin) = &self.twin {
            twin.part();
        }
    }

    /// Takes the connection over.
    pub(crate) fn adopt(&self) {
        if let Ok(socket) = &self.lock().socket {
            socket.set_shared(false);
        }
        if let Some(twin) = &self.twin {
            twin.adopt();
        }
    }

    /// Makes a client of the connection of another process. Sends only DEVICE_GET_INFO and DEVICE_GET_IRQ_INFO. Until
    /// [`adopt`](Self::adopt), replies are taken from the socket as a whole.
    ///
    /// No socket is shut down before [`adopt`](Self::adopt), because that ends the socket for all of its holders.
    pub(crate) fn resume(
        snapshot: &VfioUserSnapshot,
        sockets: Sockets,
        notices: Notices,
    ) -> Result<Self, ResumeError> {
        let name = function_name(&snapshot.path);
        let max_fds = usize::try_from(snapshot.max_fds).unwrap_or(usize::MAX);
        if !(1..=MAX_FDS).contains(&max_fds) || snapshot.vector_count > MAX_VECTORS {
            return Err(ResumeError::Snapshot {
                name,
                what: format!(
                    "{max_fds} descriptors in a message, {} vectors",
                    snapshot.vector_count
                ),
            });
        }
        let unfit = |descriptor: &str| {
            let (name, descriptor) = (name.clone(), descriptor.to_owned());
            move |error: io::Error| ResumeError::Descriptor {
                name,
                descriptor,
                what: error.to_string(),
            }
        };
        let connected = |fd: OwnedFd| -> io::Result<Socket> {
            let stream = UnixStream::from(fd);
            // The call fails for a file of another kind, and for a socket that is not connected.
            stream.peer_addr()?;
            Socket::new(stream)
        };
        let main = connected(sockets.main).and_then(|socket| {
            drop_late_replies(&socket, snapshot.next_id)?;
            socket.check_quiet()?;
            socket.set_shared(true);
            Ok(socket)
        });
        let main = main.map_err(unfit("socket"))?;
        let mut client = Self {
            path: snapshot.path.clone(),
            name: name.clone(),
            twin: None,
            connection: Mutex::new(Connection {
                socket: Ok(Arc::new(main)),
                next_id: snapshot.next_id,
            }),
            max_fds,
            most_mappings: usize::try_from(snapshot.most_mappings).unwrap_or(usize::MAX),
            vectors: 0,
            notices,
        };
        let asked = client.identify();
        asked.map_err(|source| client.unresumed(source))?;
        if client.vectors != snapshot.vector_count as usize {
            return Err(ResumeError::Changed {
                name,
                what: format!(
                    "{} vectors, and there were {}",
                    client.vectors, snapshot.vector_count
                ),
            });
        }
        if let Some(fd) = sockets.twin {
            let twin = connected(fd).and_then(|socket| {
                socket.check_quiet()?;
                Ok(socket)
            });
            let fd = twin.map_err(unfit("twin"))?;
            client.twin = Some(client.with_twin(fd)?);
        }
        Ok(client)
    }

    /// Makes the twin of the connection.
    fn with_twin(&self, socket: Socket) -> Result<TwinClient, ResumeError> {
        let connection = self.lock();
        let made = match &connection.socket {
            Ok(main) => TwinClient::of_another(&self.name, socket, main)
                .map_err(|source| self.transport(super::Command::VERSION, source)),
            Err(lost) => Err(self.gone(lost)),
        };
        made.map_err(|source| self.unresumed(source))
    }

    fn unresumed(&self, source: VfioUserError) -> ResumeError {
        let name = self.name.clone();
        ResumeError::Query {
            name: name.clone(),
            error: Box::new(FunctionError::VfioUser {
                name,
                source: Box::new(source),
            }),
        }
    }
}
