//! Authentication of queues: the queues that require it, and the commands that carry it.
//!
//! A message may need powers of large numbers, which take up to tenths of a second. So the model does not compute them.
//! It hands out a [`Turn`], the exchange with the host's message, and takes it back when the caller has computed it, on
//! any thread. A queue has one turn at a time. Meanwhile its controller may end, or another connection may have its
//! number: the turn has the number of the connection that it was taken from.
//!
//! ```text
//!   begin_turn --> Turn --work--> end_turn: the answer, and whether the host is known now
//!                       '-------> give_up_turn: it was not computed
//! ```
//!
//! A host has [`PATIENCE`] from its Connect on, and one try. If it fails, it may read the reason at once, and its
//! connection ends. A controller ends with its admin queue. An I/O queue ends alone: a host that fails there has not
//! shown that the controller is its own.
//!
//! From then on a controller counts among the hosts', so there has to be a place for it ([`super::quota`]).

use std::net::IpAddr;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Answer, Model, Moment, Notice, Outcome};
use crate::auth::{Exchange, Keys, Parties};
use crate::nvme::fabrics::kind;
use crate::nvme::{Nqn, Sqe, Status};

/// Time from the Connect of a queue until its host has authenticated.
pub const PATIENCE: Moment = Moment::from_secs(60);
/// Time that a host has to ask for the reason of its failure.
const TIME_TO_ASK: Moment = Moment::from_secs(2);
/// Time for that answer to leave.
const TIME_TO_LEAVE: Moment = Moment::from_millis(500);

/// Authentications that have begun, by controller and queue. Other queues need not authenticate, or have done so.
pub(super) type Exchanges = std::collections::BTreeMap<(u16, u16), Pending>;

/// An authentication that has begun.
#[derive(Debug)]
pub(super) struct Pending {
    /// `None` while a turn of it is computed.
    exchange: Option<Exchange>,
    connection: u64,
    source: IpAddr,
    /// The time at which its connection ends.
    until: Moment,
    has_failed: bool,
    /// The worker was told that its connection ends.
    is_over: bool,
}

impl Pending {
    /// Returns whether it is that connection's.
    pub(super) const fn is_of(&self, connection: u64) -> bool {
        self.connection == connection
    }
}

/// Random bytes.
#[derive(Debug)]
pub(super) struct Random(ChaCha20Rng);

impl Default for Random {
    fn default() -> Self {
        Self(ChaCha20Rng::from_os_rng())
    }
}

/// A message of a host, or its request for one, with everything that is needed to compute the answer.
#[derive(Debug)]
pub struct Turn {
    controller: u16,
    queue: u16,
    sqe: Sqe,
    connection: u64,
    exchange: Exchange,
    host: Nqn,
    source: IpAddr,
    random: ChaCha20Rng,
    /// The host's message; `None` if it asks for one.
    said: Option<Vec<u8>>,
    answer: Answer,
}

impl Turn {
    /// The name that the host claims, and its address.
    #[must_use]
    pub fn who(&self) -> (Nqn, IpAddr) {
        (self.host.clone(), self.source)
    }

    /// Computes the answer. This may take tenths of a second.
    pub fn work(&mut self) {
        let Self {
            exchange,
            random,
            said,
            ..
        } = self;
        self.answer = match said.take() {
            Some(said) => {
                exchange.send(&said, &mut |bytes| random.fill_bytes(bytes));
                Answer::done()
            }
            None => heard(exchange, self.sqe.cdw11.get()),
        };
    }
}

/// The message for a host that has room for this many bytes.
fn heard(exchange: &mut Exchange, bytes: u32) -> Answer {
    let Some(mut said) = exchange.receive() else {
        return Status::SEQUENCE.dnr().into();
    };
    match usize::try_from(bytes) {
        Ok(bytes) if said.len() <= bytes => {
            said.resize(bytes, 0);
            Answer::data(said)
        }
        Ok(_) | Err(_) => Status::INVALID_FIELD.dnr().into(),
    }
}

impl Model {
    /// Sets the keys that a host must authenticate with at each subsystem; `None` if it need not. Connected queues
    /// stay.
    pub fn set_keys(&mut self, host: Nqn, keys: Option<Keys>) {
        match keys {
            Some(keys) => self.keys.insert(host, keys),
            None => self.keys.remove(&host),
        };
    }

    /// Begins the authentication of a new queue, if its host must. Returns whether it must.
    pub(super) fn begin_authentication(
        &mut self,
        (id, queue): (u16, u16),
        host: &Nqn,
        subsystem: &Nqn,
        source: IpAddr,
        now: Moment,
    ) -> bool {
        let Some(keys) = self.keys.get(host) else {
            return false;
        };
        let parties = Parties {
            host: host.to_string(),
            subsystem: subsystem.to_string(),
        };
        let pending = Pending {
            exchange: Some(Exchange::new(keys.clone(), parties)),
            connection: self.connections,
            source,
            until: now + PATIENCE,
            has_failed: false,
            is_over: false,
        };
        self.exchanges.insert((id, queue), pending);
        true
    }

    /// Returns whether commands of a queue are carried out.
    #[must_use]
    pub fn is_authenticated(&self, id: u16, queue: u16) -> bool {
        !self.exchanges.contains_key(&(id, queue))
    }

    /// Carries out Authentication Send or Receive, computed here. `data` is the command's data, `room` the bytes that
    /// the host has room for.
    pub fn authenticate(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Outcome {
        let answer = match self.begin_turn(id, queue, sqe, data, room) {
            Ok(mut turn) => {
                turn.work();
                let now = self.latest;
                self.end_turn(turn, now).0
            }
            Err(answer) => answer,
        };
        Outcome::Answered(answer)
    }

    /// Begins Authentication Send or Receive: returns the turn that is to be computed.
    ///
    /// # Errors
    /// The answer, if there is nothing to compute.
    pub fn begin_turn(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Result<Box<Turn>, Answer> {
        let turn = self.turn(id, queue, sqe, data, room);
        turn.map_err(|status| {
            // An I/O queue that has not authenticated has not shown that the controller is its host's.
            if queue == 0 || self.is_authenticated(id, queue) {
                self.note_error(id, queue, sqe, status);
            }
            status.into()
        })
    }

    fn turn(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Result<Box<Turn>, Status> {
        /// SPSP0, SPSP1 and SECP in bytes 1 to 3 of dword 10.
        const PROTOCOL: u32 = 0xe901_0100;
        let bytes = sqe.cdw11.get();
        if sqe.cdw10.get() & !0xff != PROTOCOL || bytes == 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let host = self.controllers.get(&id).map(|one| one.host().clone());
        // It need not authenticate, or has done so; or its last turn has not ended.
        let pending = self.exchanges.get_mut(&(id, queue));
        let (Some(pending), Some(host)) = (pending, host) else {
            return Err(Status::SEQUENCE.dnr());
        };
        let says = sqe.fabrics_type() == kind::AUTHENTICATION_SEND;
        if !says && bytes > room {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let exchange = pending.exchange.take().ok_or(Status::SEQUENCE.dnr())?;
        let mut seed = [0; 32];
        self.random.0.fill_bytes(&mut seed);
        Ok(Box::new(Turn {
            controller: id,
            queue,
            sqe: *sqe,
            connection: pending.connection,
            exchange,
            host,
            source: pending.source,
            random: ChaCha20Rng::from_seed(seed),
            said: says.then(|| data.to_vec()),
            answer: Answer::done(),
        }))
    }

    /// A turn was computed. Returns the answer, and whether the host has authenticated.
    pub fn end_turn(&mut self, turn: Box<Turn>, now: Moment) -> (Answer, bool) {
        let (id, queue) = (turn.controller, turn.queue);
        if self.pending_of(&turn).is_none() {
            return (Status::ABORTED_QUEUE.into(), false);
        }
        if !turn.answer.status.is_success() {
            self.note_error(id, queue, &turn.sqe, turn.answer.status);
        } else if turn.exchange.is_done() && queue == 0 && !self.has_place_after_authentication(id)
        {
            // It was connected while there was a place, which another one has now. Its try is over.
            if let Some(pending) = self.pending_of(&turn) {
                pending.has_failed = true;
                pending.until = pending.until.min(now + TIME_TO_LEAVE);
            }
            let answer = Answer::refused(Status::INTERRUPTED);
            self.note_error(id, queue, &turn.sqe, answer.status);
            return (answer, false);
        } else if turn.exchange.is_done() {
            if let Some(unlogged) = self.lines.take(turn.source, "authenticated", now) {
                tracing::info!(controller = id, queue, unlogged, "authenticated");
            }
            self.exchanges.remove(&(id, queue));
            return (turn.answer, true);
        }
        let Turn {
            exchange,
            host,
            source,
            answer,
            ..
        } = *turn;
        let Some(pending) = self.exchanges.get_mut(&(id, queue)) else {
            return (answer, false);
        };
        if let Some(reason) = exchange.failure() {
            let patience = if exchange.is_over() {
                TIME_TO_LEAVE
            } else {
                TIME_TO_ASK
            };
            pending.until = pending.until.min(now + patience);
            if !core::mem::replace(&mut pending.has_failed, true)
                && let Some(unlogged) = self.lines.take(source, "authentication", now)
            {
                tracing::warn!(controller = id, queue, %host, %source, reason, unlogged, "authentication failed: the connection ends");
            }
        }
        pending.exchange = Some(exchange);
        (answer, false)
    }

    /// A turn was not computed: the host may try again. Returns the answer.
    pub fn give_up_turn(&mut self, turn: Box<Turn>) -> Answer {
        let answer = Answer::refused(Status::INTERRUPTED);
        self.note_error(turn.controller, turn.queue, &turn.sqe, answer.status);
        if let Some(pending) = self.pending_of(&turn) {
            pending.exchange = Some(turn.exchange);
        }
        answer
    }

    /// The authentication of a turn, if its connection has not ended.
    fn pending_of(&mut self, turn: &Turn) -> Option<&mut Pending> {
        let pending = self.exchanges.get_mut(&(turn.controller, turn.queue));
        pending.filter(|pending| pending.connection == turn.connection)
    }

    /// Returns whether the connection of a turn still waits for its result.
    pub(crate) fn wants(&mut self, turn: &Turn) -> bool {
        self.pending_of(turn).is_some()
    }

    /// Ends the connections whose authentication has failed, or whose time is over.
    pub(super) fn expire_exchanges(&mut self, now: Moment) {
        let due = self.exchanges.iter_mut();
        let due = due.filter(|(_, one)| one.until <= now && !one.is_over);
        let due: Vec<_> = due
            .map(|(key, one)| {
                one.is_over = true;
                (*key, one.connection, one.source, one.has_failed)
            })
            .collect();
        for ((id, queue), connection, source, has_failed) in due {
            if !has_failed && let Some(unlogged) = self.lines.take(source, "unknown", now) {
                tracing::info!(controller = id, queue, %source, patience = ?PATIENCE, unlogged, "a host has not shown who it is: its connection ends");
            }
            if queue == 0 {
                self.fail_controller(id);
            } else {
                self.notices.push(Notice::Queue { connection });
            }
        }
    }

    /// The time at which the next one ends.
    pub(super) fn next_exchange(&self) -> Option<Moment> {
        let open = self.exchanges.values().filter(|one| !one.is_over);
        open.map(|one| one.until).min()
    }
}
