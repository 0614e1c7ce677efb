//! One client of a served socket: what it has sent so far, and what it has not read yet.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;

/// Bytes of a request.
pub(crate) const LONGEST_REQUEST: usize = 64 * 1024;
/// Bytes of answers and notices that wait to be read. Whoever leaves more unread is let go.
const MOST_UNREAD: usize = 16 << 20;
/// Bytes read at a time, so that who writes without end does not hold up the others.
const AT_ONCE: usize = 16 * 1024;

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    heard: Vec<u8>,
    unread: VecDeque<u8>,
    /// It says nothing more.
    ended: bool,
    /// It wants to hear what happens.
    pub(crate) subscribed: bool,
    /// It wants to know how long things take.
    pub(crate) measures: bool,
    /// Notices that found no room since the last that did.
    pub(crate) lost: u64,
    /// Whose it is.
    pub(crate) user: u32,
    /// Whether it has asked something whole; and when it was let in or last did so, in requests of all clients. A
    /// client that has never asked makes room before one that has.
    pub(crate) asked: (bool, u64),
}

/// A client is let go.
#[derive(Debug)]
pub(crate) struct Over;

impl Connection {
    /// Takes a client in. An error is the system's.
    pub(crate) fn new(stream: UnixStream, user: u32, let_in: u64) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            heard: Vec::new(),
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

    /// Whether it is to be heard: not while requests wait for their turn, so that they do not become more and more.
    pub(crate) fn may_speak(&self) -> bool {
        !self.ended && !self.has_line()
    }

    /// Whether a request has come that has had no turn.
    pub(crate) fn has_line(&self) -> bool {
        self.heard.contains(&b'\n')
    }

    /// Whether it has said all, and heard all that there is to say to it.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.has_line() && !self.has_unread()
    }

    /// Whether a notice may be put behind what waits: half of the room is for answers.
    pub(crate) fn takes_notices(&self) -> bool {
        self.unread.len() < MOST_UNREAD / 2
    }

    /// Takes in what the client has sent.
    pub(crate) fn hear(&mut self) -> Result<(), Over> {
        let mut buffer = [0; AT_ONCE];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(())
            }
            Ok(bytes) => {
                self.heard.extend_from_slice(&buffer[..bytes]);
                let line = self.heard.iter().rposition(|byte| *byte == b'\n');
                let open = self.heard.len() - line.map_or(0, |end| end + 1);
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

    /// The next line that is complete, without its end. One that is longer than a request can be is empty.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.heard.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.heard.drain(..=end).collect();
        line.pop();
        if line.len() > LONGEST_REQUEST {
            line.clear();
        }
        Some(line)
    }

    /// Has an object read by the client.
    pub(crate) fn say(&mut self, object: &impl Serialize) -> Result<(), Over> {
        let mut line = serde_json::to_vec(object).map_err(|_| Over)?;
        line.push(b'\n');
        if self.unread.len() + line.len() > MOST_UNREAD {
            return Err(Over);
        }
        self.unread.extend(line);
        Ok(())
    }

    /// Gives the client as much as it takes.
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
