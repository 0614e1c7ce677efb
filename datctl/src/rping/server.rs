//! The passive end of `rping`: any number of peers at a time, and addresses that are added and removed meanwhile.
//!
//! Each connection has its own state, and one loop handles all events. If a peer disconnects or sends an invalid
//! message, only its own connection ends.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use udapl::connection::CrHandle;
use udapl::endpoint::EpTransport;
use udapl::event::{ConnectionEvent, DtoCompletion};
use udapl::network::Address;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectionEventKind, DtoCookie, DtoStatus, EpHandle,
    Event, OpenOptions, PspFlags,
};

use super::{
    INBOX, MESSAGE_BYTES, OUTBOX, RDMA, RECEIVE, SEND, SINK, SLOT_BYTES, SLOTS, decode, endpoint,
    place_bytes,
};
use crate::adapter::{Adapter, PATIENCE, Region, unexpected};
use crate::ends::Answered;
use crate::report::{Output, Report};

/// Limit on the connections at a time. Further requests are rejected.
const MAX_SESSIONS: usize = 64;
/// Longest delay until a line of standard input is handled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The passive end.
pub(super) struct Server {
    adapter: Adapter,
    transport: EpTransport,
    sessions: Vec<Session>,
    answered: u64,
    /// Number of peers whose connections have ended.
    over: u32,
    /// Error of the last connection that ended with an error.
    failed: Option<String>,
    /// Time of the last event from a peer.
    heard: Instant,
}

/// A connection with a peer.
struct Session {
    ep: EpHandle,
    region: Region,
    peer: IpAddr,
    stage: Stage,
    answered: u64,
    /// The first error on this connection.
    wrong: Option<String>,
}

/// Content of the next message of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Memory range of the peer's text, which this end then reads.
    Source,
    /// Memory range to which this end then writes the text.
    Sink,
}

/// Report of a connection that has ended.
#[derive(Serialize)]
struct Ended {
    peer: String,
    answered: u64,
    end: String,
}

impl Report for Ended {
    fn human(&self) -> String {
        let Self {
            peer,
            answered,
            end,
        } = self;
        format!("{peer}: {answered} messages; {end}")
    }
}

/// Report of the result of a line of standard input.
#[derive(Serialize)]
struct CommandResult {
    answer: String,
}

impl Report for CommandResult {
    fn human(&self) -> String {
        self.answer.clone()
    }
}

impl Server {
    pub(super) fn listen(
        mut adapter: Adapter,
        port: u64,
        transport: EpTransport,
    ) -> Result<Self, Box<dyn Error>> {
        let events = adapter.events;
        adapter
            .ia
            .psp_create(ConnQual(port), events, PspFlags::CONSUMER)?;
        Ok(Self {
            adapter,
            transport,
            sessions: Vec::new(),
            answered: 0,
            over: 0,
            failed: None,
            heard: Instant::now(),
        })
    }

    pub(super) fn address(&self) -> IpAddr {
        self.adapter.address()
    }

    /// Serves `peers` peers, or without limit if that is 0, and changes addresses as the lines of input specify.
    pub(super) fn run(
        mut self,
        peers: u32,
        lines: Option<&Receiver<String>>,
        output: Output,
    ) -> Result<Answered, Box<dyn Error>> {
        let interval = lines.map_or(PATIENCE / 10, |_| POLL_INTERVAL);
        while peers == 0 || self.over < peers {
            while let Some(line) = lines.and_then(|lines| lines.try_recv().ok()) {
                let obeyed = obey(&mut self.adapter, &line);
                output.show(&CommandResult {
                    answer: obeyed.map_or_else(|wrong| wrong, |()| "ok".to_owned()),
                })?;
            }
            if let Some(event) = self.adapter.sleep(interval)? {
                self.heard = Instant::now();
                if let Some(ended) = self.handle(&event)?
                    && peers != 1
                {
                    output.show(&ended)?;
                }
            } else if peers != 0 && !self.sessions.is_empty() && self.heard.elapsed() > PATIENCE {
                return Err(format!("no event for {} s", PATIENCE.as_secs()).into());
            }
        }
        let answered = self.answered;
        self.adapter.close()?;
        match self.failed {
            None => Ok(Answered { answered }),
            Some(failed) => Err(failed.into()),
        }
    }

    fn handle(&mut self, event: &Event) -> Result<Option<Ended>, Box<dyn Error>> {
        if let Event::ConnectionRequest(request) = event {
            self.requested(request.cr)?;
        } else if let Event::Dto(done) = event {
            self.completed(done);
        } else if let Event::Connection(change) = event {
            return self.changed(change);
        } else {
            return Err(unexpected(event, "a message"));
        }
        Ok(None)
    }

    fn requested(&mut self, cr: CrHandle) -> Result<(), Box<dyn Error>> {
        let ia = &mut self.adapter.ia;
        // Does not fail: a request stays valid until it is decided, even if the peer has given up.
        let Ok(peer) = ia.cr_query(cr).map(|request| request.remote_ia_address) else {
            return Ok(());
        };
        if self.sessions.len() >= MAX_SESSIONS {
            tracing::warn!(%peer, "turned away: {MAX_SESSIONS} others are connected");
            let _gone = ia.cr_reject(cr);
            return Ok(());
        }
        let ep = endpoint(&mut self.adapter, &self.transport)?;
        let region = self.adapter.region(SLOTS, SLOT_BYTES)?;
        let session = Session {
            ep,
            region,
            peer,
            stage: Stage::Source,
            answered: 0,
            wrong: None,
        };
        session.receive(&mut self.adapter)?;
        if let Err(error) = self.adapter.ia.cr_accept(cr, Some(ep), &[]) {
            tracing::warn!(%peer, %error, "a request that cannot be accepted");
            return self.adapter.release(ep, &session.region);
        }
        self.sessions.push(session);
        Ok(())
    }

    fn completed(&mut self, done: &DtoCompletion) {
        // Flushed DTOs belong to a connection whose end is reported separately, before or after them.
        let Some(session) = self.sessions.iter_mut().find(|it| it.ep == done.ep) else {
            return;
        };
        if done.status == DtoStatus::ErrFlushed {
            return;
        }
        let stepped = if done.status == DtoStatus::Success {
            session.step(done, &mut self.adapter)
        } else {
            Err(self.adapter.dto_failed(done))
        };
        match stepped {
            Ok(false) => {}
            Ok(true) => self.answered += 1,
            Err(wrong) => {
                session.wrong.get_or_insert(wrong.to_string());
                // The disconnect fails if the connection is broken already; otherwise it ends the connection.
                let _broken = self
                    .adapter
                    .ia
                    .ep_disconnect(session.ep, CloseFlags::Abrupt);
            }
        }
    }

    /// Handles a connection event. If the connection has ended, frees its objects and returns the report of its end.
    fn changed(&mut self, change: &ConnectionEvent) -> Result<Option<Ended>, Box<dyn Error>> {
        if change.kind == ConnectionEventKind::Established {
            return Ok(None);
        }
        let Some(at) = self.sessions.iter().position(|it| it.ep == change.ep) else {
            return Ok(None);
        };
        let session = self.sessions.swap_remove(at);
        let end = match self.adapter.ia.ep_end_cause(session.ep)? {
            Some(cause) => cause.to_string(),
            None => format!("{:?}", change.kind),
        };
        self.adapter.release(session.ep, &session.region)?;
        self.over = self.over.saturating_add(1);
        let whole =
            change.kind == ConnectionEventKind::Disconnected && session.stage == Stage::Source;
        let well = whole && session.wrong.is_none();
        let end = match session.wrong {
            Some(wrong) => format!("{wrong}; {end}"),
            None => end,
        };
        if !well {
            self.failed = Some(format!("{}: {end}", session.peer));
        }
        Ok(Some(Ended {
            peer: session.peer.to_string(),
            answered: session.answered,
            end,
        }))
    }
}

impl Session {
    fn receive(&self, adapter: &mut Adapter) -> Result<(), Box<dyn Error>> {
        let place = self.region.local(INBOX, MESSAGE_BYTES);
        let (cookie, none) = (DtoCookie(RECEIVE as u64), CompletionFlags::empty());
        Ok(adapter.ia.ep_post_recv(self.ep, &[place], cookie, none)?)
    }

    /// Handles a completed DTO. Returns true if this completes writing a text back to the peer.
    fn step(
        &mut self,
        done: &DtoCompletion,
        adapter: &mut Adapter,
    ) -> Result<bool, Box<dyn Error>> {
        let none = CompletionFlags::empty();
        match usize::try_from(done.cookie.0)? {
            RECEIVE => {
                let length = done.transferred_length;
                if length != MESSAGE_BYTES as u64 {
                    return Err(format!("a message of {length} bytes, not {MESSAGE_BYTES}").into());
                }
                let at = self.region.offset(INBOX);
                let message = self.region.memory.read(at, MESSAGE_BYTES)?;
                let remote = decode(message.as_slice().try_into()?);
                self.receive(adapter)?;
                let local = [self.region.local(SINK, place_bytes(&remote)?)];
                let (ia, cookie) = (&mut adapter.ia, DtoCookie(RDMA as u64));
                match self.stage {
                    Stage::Source => {
                        ia.ep_post_rdma_read(self.ep, &local, cookie, &remote, none)?;
                    }
                    Stage::Sink => ia.ep_post_rdma_write(self.ep, &local, cookie, &remote, none)?,
                }
                Ok(false)
            }
            RDMA => {
                let nothing = self.region.local(OUTBOX, MESSAGE_BYTES);
                let cookie = DtoCookie(SEND as u64);
                adapter.ia.ep_post_send(self.ep, &[nothing], cookie, none)?;
                let back = self.stage == Stage::Sink;
                self.stage = if back { Stage::Source } else { Stage::Sink };
                self.answered += u64::from(back);
                Ok(back)
            }
            _ => Ok(false),
        }
    }
}

/// Starts a thread that reads standard input to its end. Returns the receiver of its lines.
pub(super) fn lines() -> Receiver<String> {
    let (said, lines) = sync_channel(1);
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Adds or removes an address, as the line specifies.
fn obey(adapter: &mut Adapter, line: &str) -> Result<(), String> {
    let said = command(line)?;
    let done = match said {
        Said::Add(address) => adapter.ia.address_add(address),
        Said::Remove(address) => adapter.ia.address_remove(address),
    };
    done.map_err(|error| match adapter.ia.last_device_error() {
        Some(why) => format!("{line}: {error}: {why}"),
        None => format!("{line}: {error}"),
    })
}

/// The meaning of a line of standard input.
#[derive(Debug, PartialEq)]
enum Said {
    Add(Address),
    Remove(IpAddr),
}

fn command(line: &str) -> Result<Said, String> {
    let wrong =
        || format!("{line:?} is not like add 192.0.2.1/24,gateway=192.0.2.254 or remove 192.0.2.1");
    let (what, address) = line.trim().split_once(' ').ok_or_else(wrong)?;
    match what {
        "add" => {
            let of_it = ["gateway=", "vlan=", "priority="];
            let mut behind = address.split(',').skip(1);
            if !behind.all(|option| of_it.iter().any(|key| option.starts_with(key))) {
                return Err(wrong());
            }
            let name = format!("adapter,address={address}");
            let (_, options) = udapl::name::parse(&name, &OpenOptions::default())
                .map_err(|error| format!("{line}: {error}"))?;
            let address = options.hca.addresses.into_iter().next();
            address.map(Said::Add).ok_or_else(wrong)
        }
        "remove" => address.parse().map(Said::Remove).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_adds_an_address_with_what_belongs_to_it_or_removes_one() {
        let Ok(Said::Add(address)) =
            command("add 192.0.2.1/24,gateway=192.0.2.254,vlan=100,priority=3")
        else {
            panic!("an address");
        };
        assert_eq!(
            address.to_string(),
            "192.0.2.1/24 over 192.0.2.254 in VLAN 100 with priority 3"
        );
        let removed = "fd00::1".parse().expect("an address");
        assert_eq!(command("remove fd00::1\n"), Ok(Said::Remove(removed)));
    }

    #[test]
    fn a_line_that_says_anything_else_changes_nothing_and_is_shown() {
        for line in [
            "",
            "add",
            "add here",
            "add 192.0.2.1/33",
            "add 192.0.2.1,memory=pool",
            "add 192.0.2.1,address=192.0.2.2",
            "remove 192.0.2.1/24",
            "replace 192.0.2.1",
        ] {
            let error = command(line).expect_err(line);
            assert!(error.contains(line.trim()), "{error}");
        }
    }
}
