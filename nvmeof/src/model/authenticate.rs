//! Authentication of queues: which of them have to, and the commands that carry it.
//!
//! A message has to do with powers of large numbers, which take up to tenths of a second. So the model works out none
//! of them: it hands out a [`Turn`], the exchange with what the host says, and takes it back when it was worked out,
//! by whom and where is not its business. A queue has one turn at a time. Meanwhile its controller may end, or its
//! number be another connection's: the turn has the number of the connection that it was taken from.
//!
//! ```text
//!   begin_turn --> Turn --work--> end_turn: the answer, and whether the host is known now
//!                       '-------> give_up_turn: nobody had time for it
//! ```
//!
//! A host has [`PATIENCE`] from its Connect on, however it spends it, and one try: where it fails it is told why, if it
//! asks at once, and its connection ends. With its admin queue the controller ends. An I/O queue ends by itself:
//! whoever fails there has not shown that the controller is his.
//!
//! A controller counts among the hosts' from then on, so there has to be a place for it ([`super::quota`]).

use std::net::IpAddr;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Answer, Model, Moment, Notice, Outcome};
use crate::auth::{Exchange, Keys, Parties};
use crate::nvme::fabrics::kind;
use crate::nvme::{Nqn, Sqe, Status};

/// How long a host has from the Connect of a queue on to show who it is.
pub const PATIENCE: Moment = Moment::from_secs(60);
/// How long a host that has failed has to ask why.
const TIME_TO_ASK: Moment = Moment::from_secs(2);
/// How long the answer to that has to leave.
const TIME_TO_LEAVE: Moment = Moment::from_millis(500);

/// Authentications that have begun, by controller and queue. What is not here need not authenticate, or has.
pub(super) type Exchanges = std::collections::BTreeMap<(u16, u16), Pending>;

/// An authentication that has begun.
#[derive(Debug)]
pub(super) struct Pending {
    /// None while a turn of it is worked out.
    exchange: Option<Exchange>,
    connection: u64,
    source: IpAddr,
    /// Its connection ends then.
    until: Moment,
    has_failed: bool,
    /// The worker was told that its connection ends.
    is_over: bool,
}

impl Pending {
    /// Whether it is that connection's.
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

/// What a host says or wants to hear, and all that is needed to work out what comes of it.
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
    /// What the host says; none if it wants to hear.
    said: Option<Vec<u8>>,
    answer: Answer,
}

impl Turn {
    /// Who says it is whom, and where from.
    #[must_use]
    pub fn who(&self) -> (Nqn, IpAddr) {
        (self.host.clone(), self.source)
    }

    /// Works it out. This takes its time.
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

/// What a host hears that has room for so many bytes.
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
    /// A host has to authenticate from now on with these keys, wherever it connects to; or need not. What is connected
    /// stays.
    pub fn set_keys(&mut self, host: Nqn, keys: Option<Keys>) {
        match keys {
            Some(keys) => self.keys.insert(host, keys),
            None => self.keys.remove(&host),
        };
    }

    /// Whether a new queue has to authenticate, which begins.
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

    /// Whether commands of a queue are carried out.
    #[must_use]
    pub fn is_authenticated(&self, id: u16, queue: u16) -> bool {
        !self.exchanges.contains_key(&(id, queue))
    }

    /// Authentication Send and Receive, for whoever has the time to work it out here. `data` is what came with it,
    /// `room` how many bytes the host takes.
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

    /// Authentication Send and Receive: what is to be worked out.
    ///
    /// # Errors
    /// The answer, if there is nothing to work out.
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
        // It need not, or has; or the turn before is not over.
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

    /// A turn was worked out: the answer, and whether the host is known from now on.
    pub fn end_turn(&mut self, turn: Box<Turn>, now: Moment) -> (Answer, bool) {
        let (id, queue) = (turn.controller, turn.queue);
        if self.pending_of(&turn).is_none() {
            return (Status::ABORTED_QUEUE.into(), false);
        }
        if !turn.answer.status.is_success() {
            self.note_error(id, queue, &turn.sqe, turn.answer.status);
        } else if turn.exchange.is_done() && queue == 0 && !self.is_let_in(id) {
            // It was connected while there was a place, which another one has now. Its try is over.
            if let Some(pending) = self.pending_of(&turn) {
                pending.has_failed = true;
                pending.until = pending.until.min(now + TIME_TO_LEAVE);
            }
            let answer = Answer::refused(Status::INTERRUPTED);
            self.note_error(id, queue, &turn.sqe, answer.status);
            return (answer, false);
        } else if turn.exchange.is_done() {
            tracing::info!(controller = id, queue, "authenticated");
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

    /// A turn was not worked out: the host may try again. What it is answered.
    pub fn give_up_turn(&mut self, turn: Box<Turn>) -> Answer {
        let answer = Answer::refused(Status::INTERRUPTED);
        self.note_error(turn.controller, turn.queue, &turn.sqe, answer.status);
        if let Some(pending) = self.pending_of(&turn) {
            pending.exchange = Some(turn.exchange);
        }
        answer
    }

    /// What a turn is of, if that is still there.
    fn pending_of(&mut self, turn: &Turn) -> Option<&mut Pending> {
        let pending = self.exchanges.get_mut(&(turn.controller, turn.queue));
        pending.filter(|pending| pending.connection == turn.connection)
    }

    /// Whether the connection is still there that waits for what a turn comes to.
    pub(crate) fn wants(&mut self, turn: &Turn) -> bool {
        self.pending_of(turn).is_some()
    }

    /// Ends the connections of those that have failed, and of those whose time is over.
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

    /// When the next of them is due.
    pub(super) fn next_exchange(&self) -> Option<Moment> {
        let open = self.exchanges.values().filter(|one| !one.is_over);
        open.map(|one| one.until).min()
    }
}
