//! The connection on which we exchange messages with a program of perftest, and the connections that are measured.
//!
//! One EVD has the events of all connections. The end of a connection may be reported before a completion that preceded
//! the end. So the end of a measured connection is recorded whenever it is reported, and checked at the end of the
//! measurement.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpHandle, Event, Qos, Timeout,
};

use super::message::MAX_MESSAGE_BYTES;
use crate::adapter::{PATIENCE, Region, deadline};
use crate::dialer::Dialer;

/// Slots of the memory for messages. A slot is longer than any valid message, so that a message that is too long is
/// noticed.
const OUTBOX: usize = 0;
const INBOX: usize = 1;
const SLOT_BYTES: usize = 2 * MAX_MESSAGE_BYTES;
/// Cookies on the control connection.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Pause between two attempts to connect, while the peer does not listen yet.
const PAUSE: Duration = Duration::from_millis(100);

/// A peer, and the state of the exchange with it.
pub(super) struct Peer<'a> {
    pub(super) dialer: &'a mut Dialer,
    address: IpAddr,
    port: u16,
    control: EpHandle,
    region: Region,
    /// Length of a message that was received and not yet read.
    heard: Option<usize>,
    /// True if the last Send has completed.
    sent: bool,
    /// Connections whose end was reported.
    ended: Vec<EpHandle>,
}

impl<'a> Peer<'a> {
    /// Makes the control connection to a program that listens.
    pub(super) fn connect(
        dialer: &'a mut Dialer,
        address: IpAddr,
        port: u16,
    ) -> Result<Self, Box<dyn Error>> {
        let control = dialer.adapter.endpoint(1, 1)?;
        let region = dialer.adapter.region(2, SLOT_BYTES)?;
        let mut peer = Self {
            dialer,
            address,
            port,
            control,
            region,
            heard: None,
            sent: false,
            ended: Vec::new(),
        };
        peer.receive()?;
        if !peer.attempt(control)? {
            return Err(format!("nobody listens at port {port} of {address}").into());
        }
        Ok(peer)
    }

    /// Sends a message and returns the peer's answer, which has the same length.
    pub(super) fn exchange(
        &mut self,
        what: &str,
        message: &[u8],
    ) -> Result<Vec<u8>, Box<dyn Error>> {
        self.say(what, message)?;
        self.hear(what, message.len())
    }

    /// Connects an endpoint to be measured. The peer starts listening anew for each endpoint, possibly after we try to
    /// connect, so attempts are repeated.
    pub(super) fn connect_lane(&mut self, ep: EpHandle) -> Result<(), Box<dyn Error>> {
        let give_up = deadline();
        while !self.attempt(ep)? {
            if Instant::now() > give_up {
                let (port, waited) = (self.port, PATIENCE.as_secs());
                return Err(
                    format!("it does not listen at port {port} again within {waited} s").into(),
                );
            }
            self.dialer.adapter.ia.ep_reset(ep)?;
            if let Some(event) = self.dialer.adapter.sleep(PAUSE)? {
                self.note("a pause", &event)?;
            }
        }
        Ok(())
    }

    /// Waits until the peer has ended the measured connections, ends the control connection, and frees everything.
    pub(super) fn disconnect_all(mut self) -> Result<(), Box<dyn Error>> {
        let lanes = self.dialer.take_lanes();
        for &(ep, _) in &lanes {
            self.until_ended(ep)?;
        }
        if !self.ended.contains(&self.control) {
            let ia = &mut self.dialer.adapter.ia;
            ia.ep_disconnect(self.control, CloseFlags::Abrupt)?;
            self.until_ended(self.control)?;
        }
        for (ep, region) in &lanes {
            self.dialer.adapter.release(*ep, region)?;
        }
        self.dialer.adapter.release(self.control, &self.region)
    }

    /// Waits for a completion on a measured connection. The end of the connection may be reported before the
    /// completion.
    pub(super) fn completed(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let event = if self.has_left() {
                let last = self.dialer.adapter.poll()?;
                last.ok_or("the peer hung up in the middle of it")?
            } else {
                self.event()?
            };
            if let Event::Dto(done) = &event
                && done.status == DtoStatus::Success
                && done.ep != self.control
            {
                return Ok(());
            }
            self.note("a completion", &event)?;
        }
    }

    /// Returns true if the peer has ended a measured connection.
    pub(super) fn has_left(&self) -> bool {
        self.ended.iter().any(|&ep| ep != self.control)
    }

    /// Handles the next event, if there is one. The only expected event is the end of a connection.
    pub(super) fn poll_event(&mut self) -> Result<(), Box<dyn Error>> {
        match self.dialer.adapter.poll()? {
            None => Ok(()),
            Some(event) => self.note("what the peer writes", &event),
        }
    }

    /// Makes one attempt to connect. Returns false if the peer does not listen.
    fn attempt(&mut self, ep: EpHandle) -> Result<bool, Box<dyn Error>> {
        let patience = Timeout::from_micros(u32::try_from(PATIENCE.as_micros())?);
        let (ia, qualifier) = (&mut self.dialer.adapter.ia, ConnQual(self.port.into()));
        let flags = ConnectFlags::empty();
        let begun = ia.ep_connect(
            ep,
            self.address,
            qualifier,
            patience,
            &[],
            Qos::BEST_EFFORT,
            flags,
        );
        begun.map_err(|error| self.dialer.adapter.unreachable_error(self.address, &error))?;
        loop {
            let event = self.event()?;
            let kind = match &event {
                Event::Connection(change) if change.ep == ep => Some(change.kind),
                Event::Connection(_)
                | Event::Dto(_)
                | Event::RmrBind(_)
                | Event::ConnectionRequest(_)
                | Event::Async(_)
                | Event::Software(_) => None,
            };
            if kind == Some(ConnectionEventKind::Established) {
                return Ok(true);
            }
            if kind == Some(ConnectionEventKind::NonPeerRejected) {
                return Ok(false);
            }
            // The programs themselves reject no peer. They stop if the kernel cannot create a queue pair.
            if kind == Some(ConnectionEventKind::PeerRejected) {
                return Err(format!(
                    "{} cannot accept the connection, as where the MTUs of both ports differ",
                    self.address
                )
                .into());
            }
            self.note("a connection", &event)?;
        }
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let place = self.region.local(INBOX, SLOT_BYTES);
        let (ia, cookie) = (&mut self.dialer.adapter.ia, DtoCookie(RECEIVE));
        Ok(ia.ep_post_recv(self.control, &[place], cookie, NONE)?)
    }

    fn say(&mut self, what: &str, message: &[u8]) -> Result<(), Box<dyn Error>> {
        let at = self.region.offset(OUTBOX);
        self.region.memory.write_from(at, message)?;
        let place = self.region.local(OUTBOX, message.len());
        let (ia, cookie) = (&mut self.dialer.adapter.ia, DtoCookie(SEND));
        ia.ep_post_send(self.control, &[place], cookie, NONE)?;
        self.sent = false;
        while !self.sent {
            self.listen(what)?;
        }
        Ok(())
    }

    fn hear(&mut self, what: &str, bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
        let length = loop {
            if let Some(length) = self.heard.take() {
                break length;
            }
            self.listen(what)?;
        };
        let (memory, at) = (&self.region.memory, self.region.offset(INBOX));
        let message = memory.read(at, length.min(SLOT_BYTES))?;
        if length != bytes {
            return Err(format!(
                "a message of {length} bytes, not {bytes}, as {what}: {message:02x?}"
            )
            .into());
        }
        self.receive()?;
        Ok(message)
    }

    /// Waits for the next event on the control connection and handles it. The end of the connection may be reported
    /// before the last message.
    fn listen(&mut self, what: &str) -> Result<(), Box<dyn Error>> {
        let event = if self.ended.contains(&self.control) {
            self.dialer.adapter.poll()?
        } else {
            let event = self.event();
            Some(event.map_err(|error| format!("waiting for {what}: {error}"))?)
        };
        let event =
            event.ok_or_else(|| format!("the peer hung up where {what} should have come"))?;
        self.note(what, &event)
    }

    fn until_ended(&mut self, ep: EpHandle) -> Result<(), Box<dyn Error>> {
        while !self.ended.contains(&ep) {
            let event = self.event()?;
            self.note("the end of a connection", &event)?;
        }
        Ok(())
    }

    /// Returns the next event, but skips the completions of flushed DTOs.
    fn event(&mut self) -> Result<Event, Box<dyn Error>> {
        loop {
            let event = self.dialer.next()?;
            if !matches!(&event, Event::Dto(done) if done.status == DtoStatus::ErrFlushed) {
                return Ok(event);
            }
        }
    }

    /// Records an event that is expected at any time: the end of a connection, or a completion on the control
    /// connection. Any other event is an error.
    fn note(&mut self, instead_of: &str, event: &Event) -> Result<(), Box<dyn Error>> {
        if let Event::Dto(done) = event {
            if done.status == DtoStatus::ErrFlushed {
                return Ok(());
            }
            if done.status != DtoStatus::Success {
                return Err(self.dialer.adapter.dto_failed(done));
            }
            if done.ep == self.control {
                if done.cookie == DtoCookie(RECEIVE) {
                    self.heard = Some(usize::try_from(done.transferred_length)?);
                } else {
                    self.sent = true;
                }
                return Ok(());
            }
        }
        let ep = if let Event::Connection(change) = event {
            if change.kind == ConnectionEventKind::Disconnected {
                self.ended.push(change.ep);
                return Ok(());
            }
            change.ep
        } else {
            self.control
        };
        Err(self.dialer.adapter.instead_of(ep, instead_of, event))
    }
}
