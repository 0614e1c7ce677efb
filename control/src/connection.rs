//! One client of a served socket: the bytes received from it, and those it has not read yet.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;

/// Limit in bytes on a request.
pub(crate) const LONGEST_REQUEST: usize = 64 * 1024;
/// Limit in bytes on unread answers and notices. A client that leaves more unread is disconnected.
const MOST_UNREAD: usize = 16 << 20;
/// Bytes read at a time, so that a client that writes without end does not delay the others.
const AT_ONCE: usize = 16 * 1024;

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    unread: VecDeque<u8>,
    /// True once the client has closed its sending side.
    ended: bool,
    /// True if the client has subscribed to notices.
    pub(crate) subscribed: bool,
    /// True if the client has asked for time measurements.
    pub(crate) measures: bool,
    /// Number of notices dropped for lack of room since the last that was sent.
    pub(crate) lost: u64,
    /// User id of the client.
    pub(crate) user: u32,
    /// Two keys for eviction. The first is true once the client has sent a complete request. The second is the time
    /// of its last request, or of its admission, counted in requests of all clients. A client that never sent a
    /// request is evicted first.
    pub(crate) asked: (bool, u64),
}

/// The client must be disconnected.
#[derive(Debug)]
pub(crate) struct Over;

impl Connection {
    /// Makes a connection for an accepted client. An error is the system's.
    pub(crate) fn new(stream: UnixStream, user: u32, let_in: u64) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
            unread: VecDeque::new(),
            ended: false,
            subscribed: false,
            measures: false,
            lost: 0,
            user,
            asked: (false, let_in),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns whether to read from the client: not while it has requests waiting, so that these do not accumulate.
    pub(crate) fn wants_read(&self) -> bool {
        !self.ended && !self.has_line()
    }

    /// Returns whether a complete request is waiting.
    pub(crate) fn has_line(&self) -> bool {
        self.received.contains(&b'\n')
    }

    /// Returns whether the client has sent everything, and has been sent every answer.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.has_line() && !self.has_unread()
    }

    /// Returns whether a notice may be queued: half of the room is reserved for answers.
    pub(crate) fn takes_notices(&self) -> bool {
        self.unread.len() < MOST_UNREAD / 2
    }

    /// Reads from the client.
    pub(crate) fn read(&mut self) -> Result<(), Over> {
        let mut buffer = [0; AT_ONCE];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(())
            }
            Ok(bytes) => {
                self.received.extend_from_slice(&buffer[..bytes]);
                let line = self.received.iter().rposition(|byte| *byte == b'\n');
                let open = self.received.len() - line.map_or(0, |end| end + 1);
                if open > LONGEST_REQUEST {
                    return Err(Over);
                }
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(_) => Err(Over),
        }
    }

    /// Takes the next complete line, without its end. One that exceeds the limit on a request is returned empty.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.received.drain(..=end).collect();
        line.pop();
        if line.len() > LONGEST_REQUEST {
            line.clear();
        }
        Some(line)
    }

    /// Queues an object for the client.
    pub(crate) fn queue(&mut self, object: &impl Serialize) -> Result<(), Over> {
        let mut line = serde_json::to_vec(object).map_err(|_| Over)?;
        line.push(b'\n');
        if self.unread.len() + line.len() > MOST_UNREAD {
            return Err(Over);
        }
        self.unread.extend(line);
        Ok(())
    }

    /// Writes as much to the client as it accepts.
    pub(crate) fn flush(&mut self) -> Result<(), Over> {
        while !self.unread.is_empty() {
            let (front, _) = self.unread.as_slices();
            match self.stream.write(front) {
                Ok(0) => return Err(Over),
                Ok(bytes) => {
                    self.unread.drain(..bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }
}
