//! One client of a served socket, with the bytes received from the client and the bytes queued for the client.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde_json::Value;

use crate::rpc::{self, Answer, FAILED, Notification, Refusal};

/// Maximum length of a request in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Maximum number of bytes queued for a client. A client whose next answer would exceed the limit is disconnected; an
/// answer that exceeds the limit by itself is replaced by a refusal.
pub(crate) const MAX_UNREAD_BYTES: usize = 16 << 20;
/// Maximum number of bytes of one read, so that a client that never stops writing does not delay the others.
const READ_BYTES: usize = 16 * 1024;

/// A connected client.
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
    /// Number of notices that did not fit the queue since the last queued notice with a field `lost`.
    pub(crate) lost: u64,
    /// User id of the client.
    pub(crate) user: u32,
    /// Two keys for eviction. Of one user's clients, the client with the lowest keys is evicted first. The first key is
    /// true once the client has sent a complete request, so a client without a request is evicted first. The second
    /// key is the time of the client's last request, or of its admission, on the clock `Server::requests`.
    pub(crate) asked: (bool, u64),
    /// True if the last wait found bytes to read, or the end of the stream.
    pub(crate) is_readable: bool,
}

/// Error: the client must be disconnected.
#[derive(Debug)]
pub(crate) struct Over;

impl Connection {
    /// Creates a connection for an accepted client. Fails with the system's error.
    pub(crate) fn new(stream: UnixStream, user: u32, accepted_at: u64) -> std::io::Result<Self> {
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
            asked: (false, accepted_at),
            is_readable: false,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns whether to read from the client. A client with a waiting request is not read, so that requests do not
    /// accumulate.
    pub(crate) fn wants_read(&self) -> bool {
        !self.ended && !self.has_line()
    }

    /// Returns whether a complete request is waiting.
    pub(crate) fn has_line(&self) -> bool {
        self.received.contains(&b'\n')
    }

    /// Returns whether the client has closed its sending side, and all its requests were answered and the answers sent.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.has_line() && !self.has_unread()
    }

    /// Returns whether a notice may be queued. Half of the capacity is reserved for answers.
    fn may_queue_notice(&self) -> bool {
        self.unread.len() < MAX_UNREAD_BYTES / 2
    }

    /// Queues a notice for the client, or counts it in `lost` if it does not fit. A notice that is an object gets the
    /// field `lost` if others were lost before it.
    pub(crate) fn queue_notice(&mut self, notice: &Value) {
        if !self.may_queue_notice() {
            self.lost += 1;
            return;
        }
        let mut params = notice.clone();
        let mut reports_lost = false;
        if self.lost != 0
            && let Value::Object(fields) = &mut params
        {
            fields.insert("lost".to_owned(), self.lost.into());
            reports_lost = true;
        }
        let notification = Notification {
            jsonrpc: rpc::VERSION.to_owned(),
            method: "event".to_owned(),
            params,
        };
        match self.queue(&notification) {
            Err(Over) => self.lost += 1,
            Ok(()) if reports_lost => self.lost = 0,
            Ok(()) => {}
        }
    }

    /// Reads up to `READ_BYTES` bytes from the client. Fails if the socket fails, or the incomplete last request
    /// exceeds the limit.
    pub(crate) fn read(&mut self) -> Result<(), Over> {
        let mut buffer = [0; READ_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(())
            }
            Ok(bytes) => {
                self.received.extend_from_slice(&buffer[..bytes]);
                let line = self.received.iter().rposition(|byte| *byte == b'\n');
                let open = self.received.len() - line.map_or(0, |end| end + 1);
                if open > MAX_REQUEST_BYTES {
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

    /// Removes and returns the next complete line, without its newline. A line that is longer than
    /// `MAX_REQUEST_BYTES` is returned empty.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.received.drain(..=end).collect();
        line.pop();
        if line.len() > MAX_REQUEST_BYTES {
            line.clear();
        }
        Some(line)
    }

    /// Queues an answer for the client, or a refusal if the answer is longer than `MAX_UNREAD_BYTES`. Fails if the
    /// client would have too many unread bytes.
    pub(crate) fn queue_answer(&mut self, answer: Answer) -> Result<(), Over> {
        let line = line(&answer)?;
        if line.len() <= MAX_UNREAD_BYTES {
            return self.queue_line(line);
        }
        let bytes = line.len();
        let why = format!(
            "the answer has {bytes} bytes, and an answer has at most {MAX_UNREAD_BYTES}: ask for less"
        );
        self.queue(&Answer::new(answer.id, Err(Refusal::new(FAILED, why))))
    }

    /// Queues an object as a line for the client. Fails if the client would have too many unread bytes.
    pub(crate) fn queue(&mut self, object: &impl Serialize) -> Result<(), Over> {
        self.queue_line(line(object)?)
    }

    fn queue_line(&mut self, line: Vec<u8>) -> Result<(), Over> {
        if self.unread.len() + line.len() > MAX_UNREAD_BYTES {
            return Err(Over);
        }
        self.unread.extend(line);
        Ok(())
    }

    /// Writes queued bytes until the queue is empty or the socket accepts no more.
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

/// Returns an object as a line.
fn line(object: &impl Serialize) -> Result<Vec<u8>, Over> {
    let mut line = serde_json::to_vec(object).map_err(|_| Over)?;
    line.push(b'\n');
    Ok(line)
}
