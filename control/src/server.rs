//! The server of a control socket, in the inspected process.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use driver::{HeldSignals, SocketPathError, TakenPath, listen_privately};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, geteuid};
use serde_json::Value;
use thiserror::Error;

use crate::connection::{Connection, Over};
use crate::metrics::PAUSE;
use crate::places::{eviction_index, is_logged};
use crate::rpc::{self, Answer, Refusal};

/// Maximum number of clients at a time; a further client evicts another ([`eviction_index`]). Clients have no deadline,
/// because a client that waits for notices sends no requests.
pub(crate) const CLIENTS: usize = 16;
/// Maximum number of requests of one client that are answered before the next client is served.
const REQUESTS_AT_ONCE: usize = 16;

/// An object that answers the requests of a control socket.
pub trait Subject: Send {
    /// Answers a request. The call may take time, but must return, because all clients wait meanwhile.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal>;

    /// Returns the notices that arose since the last call. The server sends them to the subscribed clients (method
    /// `subscribe`).
    fn notices(&mut self) -> Vec<Value>;

    /// Starts (`on`) or stops measuring latencies. The server starts the measuring when the first client requests
    /// it (method `measure`), and stops it when no client requests it any more. Returns false if the subject cannot
    /// measure.
    fn measure(&mut self, on: bool) -> bool {
        let _ = on;
        false
    }
}

/// The users, besides root, who may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Owner of the socket, who may connect. `None` stands for the user of the process.
    pub user: Option<u32>,
    /// A group whose users may connect, too.
    pub group: Option<u32>,
}

/// Reason why a socket is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The path of the socket could not be used.
    #[error("control socket: {0}")]
    Path(#[from] SocketPathError),
    /// A system call failed.
    #[error("control socket {}: {what}: {error}", path.display())]
    System {
        /// Path of the socket.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// Error of the system.
        error: io::Error,
    },
}

/// A handle that wakes the server to send notices. Any thread can use it without blocking.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<UnixStream>);

impl Notifier {
    /// Reports to the server that there are notices.
    pub fn notify(&self) {
        // If the socket is full, a wake-up is pending already.
        let _ = (&*self.0).write(&[1]);
    }
}

/// A served control socket. Serving ends when this object or the last [`Notifier`] is dropped.
#[derive(Debug)]
pub struct Service {
    path: PathBuf,
    over: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Consumes the service without ending it. Serving then ends only when the last [`Notifier`] is dropped.
    pub fn detach(mut self) {
        self.thread = None;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = (&self.over).write(&[0]);
            if thread.join().is_err() {
                tracing::error!(path = %self.path.display(), "the control socket's thread panicked");
            }
        }
    }
}

/// Serves a socket in a new thread. `subject` receives the [`Notifier`] with which it reports notices. When the last
/// [`Notifier`] is dropped, the subject has ended, and serving ends.
///
/// # Errors
/// [`ServeError`]; the socket is not served.
pub fn serve<S: Subject + 'static>(
    path: &Path,
    access: Access,
    subject: impl FnOnce(Notifier) -> S,
) -> Result<Service, ServeError> {
    let failed = |what| {
        move |error: io::Error| ServeError::System {
            path: path.to_owned(),
            what,
            error,
        }
    };
    let (listener, taken) = listen_privately(path)?;
    let mode = if access.group.is_some() { 0o660 } else { 0o600 };
    let given = taken.give_to(access.user, access.group, mode);
    given.map_err(failed("its owner and mode"))?;
    serve_on(listener, path, Some(taken), access, subject)
}

/// Serves a socket that the parent process handed in. Its path and mode do not change. `name` stands for the path in
/// errors.
///
/// # Errors
/// [`ServeError::System`]; the socket is not served.
pub fn serve_handed_in<S: Subject + 'static>(
    listener: UnixListener,
    name: &str,
    access: Access,
    subject: impl FnOnce(Notifier) -> S,
) -> Result<Service, ServeError> {
    serve_on(listener, Path::new(name), None, access, subject)
}

fn serve_on<S: Subject + 'static>(
    listener: UnixListener,
    path: &Path,
    taken: Option<TakenPath>,
    access: Access,
    subject: impl FnOnce(Notifier) -> S,
) -> Result<Service, ServeError> {
    let failed = |what| {
        move |error: io::Error| ServeError::System {
            path: path.to_owned(),
            what,
            error,
        }
    };
    listener
        .set_nonblocking(true)
        .map_err(failed("listening"))?;
    let (woken, notify) = UnixStream::pair().map_err(failed("a pair of sockets"))?;
    let (ended, over) = UnixStream::pair().map_err(failed("a pair of sockets"))?;
    for end in [&woken, &notify, &ended, &over] {
        end.set_nonblocking(true)
            .map_err(failed("a pair of sockets"))?;
    }
    let server = Server {
        subject: subject(Notifier(Arc::new(notify))),
        access,
        listener,
        woken,
        ended: Some(ended),
        clients: Vec::new(),
        requests: 0,
        refused: 0,
        evictions: 0,
        failures: 0,
        paused_until: None,
        measures: false,
        _taken: taken,
    };
    // The thread inherits the blocked signals, so the program's signals go to the program's threads.
    let _held = HeldSignals::hold();
    let thread = Builder::new()
        .name("udapl-control".to_owned())
        .spawn(move || server.run())
        .map_err(failed("a thread"))?;
    Ok(Service {
        path: path.to_owned(),
        over,
        thread: Some(thread),
    })
}

struct Server<S> {
    subject: S,
    access: Access,
    listener: UnixListener,
    /// Socket that receives one byte for each report of notices. A read returns 0 bytes after the last `Notifier` was
    /// dropped.
    woken: UnixStream,
    /// Socket on which a received byte ends serving. After `Service::detach` a read returns 0 bytes, and this field
    /// becomes `None`. Then serving ends only when the last `Notifier` is dropped.
    ended: Option<UnixStream>,
    clients: Vec<Connection>,
    /// Number of requests of all clients plus number of admitted clients. It serves as the clock for eviction.
    requests: u64,
    /// Number of clients that were refused because of their user.
    refused: u64,
    /// Number of clients that were evicted for other clients.
    evictions: u64,
    /// Number of failures to accept a client.
    failures: u64,
    /// After a failure to accept a client, no client is accepted before this time. Without the pause, the waiting
    /// client would wake the thread again at once as long as the failure lasts.
    paused_until: Option<Instant>,
    /// True while the subject measures latencies because a client has requested it.
    measures: bool,
    _taken: Option<TakenPath>,
}

/// Results of a wait. The result of a client is in [`Connection::is_readable`], because the list of clients changes
/// before all of them are served.
struct Ready {
    is_over: bool,
    notices: bool,
    has_waiting: bool,
}

impl<S: Subject> Server<S> {
    fn run(mut self) {
        loop {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the control socket cannot sleep, and ends");
                    return;
                }
            };
            if ready.is_over && self.is_ended() || ready.notices && !self.send_notices() {
                return;
            }
            for at in (0..self.clients.len()).rev() {
                if self.serve_client(at).is_err() {
                    self.clients.swap_remove(at);
                }
            }
            if ready.has_waiting {
                self.admit();
            }
            // The clients that requested measuring may have disconnected.
            let _knows = self.update_measuring();
        }
    }

    /// Starts or stops measuring in the subject according to the clients' requests. Returns false if a client requests
    /// measuring and the subject cannot measure.
    fn update_measuring(&mut self) -> bool {
        let measures = self.clients.iter().any(|client| client.measures);
        if measures != self.measures {
            self.measures = measures && self.subject.measure(true);
            if !measures {
                self.subject.measure(false);
            }
        }
        self.measures == measures
    }

    /// Returns whether the owner of the service has ended it. After `leave` there is no owner, so this returns false.
    fn is_ended(&mut self) -> bool {
        let Some(ended) = &mut self.ended else {
            return false;
        };
        match ended.read(&mut [0]) {
            Ok(0) => {
                self.ended = None;
                false
            }
            Ok(_) => true,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn sleep(&mut self) -> nix::Result<Ready> {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| now < *until);
        // `woken` takes the place of a socket that is not polled: `ended` after `detach`, the listener in a pause.
        let ended = self.ended.as_ref().unwrap_or(&self.woken);
        let listener = match self.paused_until {
            None => self.listener.as_fd(),
            Some(_) => self.woken.as_fd(),
        };
        let mut fds = vec![
            PollFd::new(ended.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener, PollFlags::POLLIN),
        ];
        fds.extend(self.clients.iter().map(|client| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, client.wants_read());
            events.set(PollFlags::POLLOUT, client.has_unread());
            PollFd::new(client.fd(), events)
        }));
        // The server does not sleep while a request is waiting.
        let waits = self.clients.iter().any(Connection::has_line);
        // The timeout is rounded up to milliseconds. Otherwise the last millisecond would be a busy loop.
        let left = self
            .paused_until
            .map(|until| until - now + Duration::from_micros(999));
        let timeout = if waits {
            PollTimeout::ZERO
        } else {
            left.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            })
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error),
        }
        let says = |at: usize, flags| {
            let seen = fds.get(at).and_then(PollFd::revents);
            seen.unwrap_or(PollFlags::empty()).intersects(flags)
        };
        let readable = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        let ready = Ready {
            is_over: says(0, readable),
            notices: says(1, readable),
            has_waiting: self.paused_until.is_none() && says(2, readable),
        };
        let of_clients: Vec<bool> = (3..fds.len()).map(|at| says(at, readable)).collect();
        for (client, is_readable) in self.clients.iter_mut().zip(of_clients) {
            client.is_readable = is_readable;
        }
        Ok(ready)
    }

    /// Sends notices to the subscribed clients. Returns false if the last `Notifier` was dropped.
    fn send_notices(&mut self) -> bool {
        let mut bytes = [0; 256];
        let lives = match self.woken.read(&mut bytes) {
            Ok(read) => read != 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        for notice in self.subject.notices() {
            let wanted = self.clients.iter_mut().filter(|client| client.subscribed);
            for client in wanted {
                // The flush below detects a failed connection.
                client.queue_notice(&notice);
            }
        }
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].flush().is_err() {
                self.clients.swap_remove(at);
            }
        }
        lives
    }

    fn serve_client(&mut self, at: usize) -> Result<(), Over> {
        if self.clients[at].is_readable {
            self.clients[at].read()?;
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let Some(line) = self.clients[at].next_line() else {
                break;
            };
            self.requests += 1;
            self.clients[at].asked = (true, self.requests);
            let answer = self.answer(at, &line);
            if let Some(answer) = answer {
                self.clients[at].queue_answer(answer)?;
            }
        }
        let client = &mut self.clients[at];
        client.flush()?;
        if client.is_over() { Err(Over) } else { Ok(()) }
    }

    fn answer(&mut self, at: usize, line: &[u8]) -> Option<Answer> {
        let request = match rpc::read(line) {
            Ok(request) => request,
            Err((id, refusal)) => return Some(Answer::new(id, Err(refusal))),
        };
        let result = match request.method.as_str() {
            "subscribe" => {
                self.clients[at].subscribed = true;
                Ok(Value::Bool(true))
            }
            "unsubscribe" => {
                self.clients[at].subscribed = false;
                Ok(Value::Bool(true))
            }
            "measure" => {
                self.clients[at].measures = true;
                if self.update_measuring() {
                    Ok(Value::Bool(true))
                } else {
                    self.clients[at].measures = false;
                    self.subject.call("measure", &request.params)
                }
            }
            "unmeasure" => {
                self.clients[at].measures = false;
                Ok(Value::Bool(self.update_measuring()))
            }
            method => self.subject.call(method, &request.params),
        };
        // A request without an id is a notification, and gets no answer.
        (!request.id.is_null()).then(|| Answer::new(request.id, result))
    }

    /// Accepts a waiting client if its user is permitted. Evicts another client if the limit is reached. Accepts none
    /// for a while if the system cannot accept one, for example for lack of a descriptor.
    fn admit(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                self.failures += 1;
                if is_logged(self.failures) {
                    tracing::warn!(
                        %error,
                        times = self.failures,
                        "a client of the control socket could not be accepted"
                    );
                }
                self.paused_until = Some(Instant::now() + PAUSE);
                return;
            }
        };
        let who = match getsockopt(&stream, PeerCredentials) {
            Ok(who) => who,
            Err(error) => {
                tracing::warn!(%error, "the user of a client of the control socket is not known");
                return;
            }
        };
        let may = who.uid() == 0
            || who.uid() == self.access.user.unwrap_or_else(|| geteuid().as_raw())
            || self
                .access
                .group
                .is_some_and(|group| belongs(who.uid(), who.gid(), group));
        if !may {
            self.refused += 1;
            if is_logged(self.refused) {
                tracing::warn!(
                    user = who.uid(),
                    process = who.pid(),
                    times = self.refused,
                    "refused at the control socket"
                );
            }
            return;
        }
        if self.clients.len() >= CLIENTS {
            self.make_room(who.uid());
        }
        self.requests += 1;
        match Connection::new(stream, who.uid(), self.requests) {
            Ok(client) => self.clients.push(client),
            Err(error) => {
                tracing::warn!(%error, "a client of the control socket could not be accepted")
            }
        }
    }

    /// Evicts a client in favour of a new client of `user`.
    fn make_room(&mut self, user: u32) {
        let clients = self.clients.iter();
        let clients: Vec<_> = clients.map(|one| (one.user, one.asked)).collect();
        if let Some(at) = eviction_index(&clients, &user) {
            let gone = self.clients.swap_remove(at);
            self.evictions += 1;
            if is_logged(self.evictions) {
                tracing::warn!(
                    clients = CLIENTS,
                    user = gone.user,
                    times = self.evictions,
                    "the control socket had no place left: its idlest client was disconnected"
                );
            }
        }
    }
}

/// Returns whether a user belongs to a group.
fn belongs(user: u32, primary: u32, group: u32) -> bool {
    use nix::unistd::{User, getgrouplist};
    if primary == group {
        return true;
    }
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else {
        return false;
    };
    let Ok(name) = std::ffi::CString::new(user.name) else {
        return false;
    };
    let groups = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.iter().any(|one| one.as_raw() == group)
}
