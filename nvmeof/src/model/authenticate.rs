//! Authentication of queues: which queues require it, and the commands that carry it.
//!
//! A message may need modular exponentiations, which take up to tenths of a second. So the model does not compute them.
//! It returns an [`AuthStep`], which contains the exchange and the host's message. The caller computes it on any
//! thread, and then returns it to the model. A queue has one step at a time. Meanwhile its controller may end, or
//! another connection may get the same controller and queue numbers. Therefore a step contains the number of its
//! connection.
//!
//! ```text
//!   begin_step --> AuthStep --work--> finish_step: the answer, and whether the host has authenticated
//!                           '-------> abandon_step: the step was not computed
//! ```
//!
//! A host has [`PATIENCE`] from its Connect on, and one attempt. If it fails, it has two seconds to read the reason,
//! and then its connection ends. If the admin queue fails, its controller ends. If an I/O queue fails, only that queue
//! ends, because its host has not proven that the controller belongs to it.
//!
//! From its authentication on, a controller counts in the pool of hosts' controllers, so the pool must have space for
//! it ([`super::quota`]).

mod parking;

use std::net::IpAddr;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Answer, Model, Moment, Notice, Outcome};
use crate::auth::{Exchange, Keys, Parties};
use crate::nvme::fabrics::kind;
use crate::nvme::{Nqn, Sqe, Status};

/// Time from the Connect of a queue within which its host must authenticate.
pub const PATIENCE: Moment = Moment::from_secs(60);
/// Time within which a host may request the reason of its failure.
const REASON_TIME: Moment = Moment::from_secs(2);
/// Time for the last answer to reach the host before its connection ends.
const LAST_ANSWER_TIME: Moment = Moment::from_millis(500);

/// Unfinished authentications, by controller and queue. A queue that is missing has authenticated, or need not.
pub(super) type Exchanges = std::collections::BTreeMap<(u16, u16), Pending>;

/// An unfinished authentication.
#[derive(Debug)]
pub(super) struct Pending {
    /// State of the exchange; `None` while a step computes it, and if the host has authenticated when no controller was
    /// left.
    exchange: Option<Exchange>,
    /// True while a step computes the exchange.
    is_computed: bool,
    connection: u64,
    source: IpAddr,
    /// Time at which the connection ends.
    until: Moment,
    has_failed: bool,
    /// True if the worker was notified that the connection ends.
    is_over: bool,
}

impl Pending {
    /// Returns whether the authentication belongs to that connection.
    pub(super) const fn is_of(&self, connection: u64) -> bool {
        self.connection == connection
    }
}

/// Source of random bytes.
#[derive(Debug)]
pub(super) struct Random(ChaCha20Rng);

impl Default for Random {
    fn default() -> Self {
        Self(ChaCha20Rng::from_os_rng())
    }
}

/// One step of an authentication: a message of a host, or its request for one, and all that is needed to compute the
/// answer.
#[derive(Debug)]
pub struct AuthStep {
    controller: u16,
    queue: u16,
    sqe: Sqe,
    connection: u64,
    exchange: Exchange,
    host: Nqn,
    source: IpAddr,
    random: ChaCha20Rng,
    /// Message of the host; `None` if the host requests a message.
    said: Option<Vec<u8>>,
    answer: Answer,
}

impl AuthStep {
    /// Returns the name that the host claims to have, and its address.
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

/// Returns the answer with the next message for a host that accepts this many bytes.
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
    /// Sets the keys with which a host must authenticate at every subsystem; `None` if it need not authenticate. Queues
    /// that are connected already are not affected.
    pub fn set_keys(&mut self, host: Nqn, keys: Option<Keys>) {
        match keys {
            Some(keys) => self.keys.insert(host, keys),
            None => self.keys.remove(&host),
        };
    }

    /// Returns the keys with which a host must authenticate; `None` if it need not.
    pub(crate) fn keys(&self, host: &Nqn) -> Option<&Keys> {
        self.keys.get(host)
    }

    /// Starts the authentication of a new queue if its host must authenticate. Returns whether it must.
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
            is_computed: false,
            connection: self.connections,
            source,
            until: now + PATIENCE,
            has_failed: false,
            is_over: false,
        };
        self.exchanges.insert((id, queue), pending);
        true
    }

    /// Returns whether a queue has authenticated or need not, so that its commands are carried out.
    #[must_use]
    pub fn is_authenticated(&self, id: u16, queue: u16) -> bool {
        !self.exchanges.contains_key(&(id, queue))
    }

    /// Carries out Authentication Send or Receive, and computes the answer on this thread. `data` is the command's
    /// data; `room` is the number of bytes that the host accepts.
    pub fn authenticate(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Outcome {
        let answer = match self.begin_step(id, queue, sqe, data, room) {
            Ok(mut step) => {
                step.work();
                let now = self.latest;
                self.finish_step(step, now).0
            }
            Err(answer) => answer,
        };
        Outcome::Answered(answer)
    }

    /// Starts Authentication Send or Receive. Returns the step that the caller must compute.
    ///
    /// # Errors
    /// The answer, if the command is refused.
    pub fn begin_step(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Result<Box<AuthStep>, Answer> {
        let step = self.make_step(id, queue, sqe, data, room);
        step.map_err(|status| {
            self.note_error(id, queue, sqe, status);
            status.into()
        })
    }

    fn make_step(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Result<Box<AuthStep>, Status> {
        /// Expected values of SPSP0, SPSP1 and SECP, in bytes 1 to 3 of dword 10.
        const PROTOCOL: u32 = 0xe901_0100;
        let bytes = sqe.cdw11.get();
        if sqe.cdw10.get() & !0xff != PROTOCOL || bytes == 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let host = self.controllers.get(&id).map(|one| one.host().clone());
        // Without an entry, the queue need not authenticate or has authenticated. The exchange of an entry is `None`
        // while a step is computed.
        let pending = self.exchanges.get_mut(&(id, queue));
        let (Some(pending), Some(host)) = (pending, host) else {
            return Err(Status::SEQUENCE.dnr());
        };
        let says = sqe.fabrics_type() == kind::AUTHENTICATION_SEND;
        if !says && bytes > room {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let exchange = pending.exchange.take().ok_or(Status::SEQUENCE.dnr())?;
        pending.is_computed = true;
        let mut seed = [0; 32];
        self.random.0.fill_bytes(&mut seed);
        Ok(Box::new(AuthStep {
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

    /// Takes back a computed step. Returns the answer, and whether the host has authenticated.
    pub fn finish_step(&mut self, step: Box<AuthStep>, now: Moment) -> (Answer, bool) {
        let (id, queue) = (step.controller, step.queue);
        match self.pending_of(&step) {
            None => return (Status::ABORTED_QUEUE.into(), false),
            Some(pending) => pending.is_computed = false,
        }
        if !step.answer.status.is_success() {
            self.note_error(id, queue, &step.sqe, step.answer.status);
        } else if step.exchange.is_done() && queue == 0 && !self.has_place_after_authentication(id)
        {
            // At Connect the pool had space, but another controller has taken it since. The attempt is over.
            if let Some(pending) = self.pending_of(&step) {
                pending.has_failed = true;
                pending.until = pending.until.min(now + LAST_ANSWER_TIME);
            }
            let answer = Answer::refused(Status::INTERRUPTED);
            self.note_error(id, queue, &step.sqe, answer.status);
            return (answer, false);
        } else if step.exchange.is_done() {
            let source = step.source;
            if let Some(unlogged) = self.host_lines.take(source, "authenticated", now) {
                tracing::info!(controller = id, queue, %source, unlogged, "authenticated");
            }
            self.exchanges.remove(&(id, queue));
            return (step.answer, true);
        }
        let AuthStep {
            exchange,
            host,
            source,
            answer,
            ..
        } = *step;
        let Some(pending) = self.exchanges.get_mut(&(id, queue)) else {
            return (answer, false);
        };
        if let Some(reason) = exchange.failure() {
            let patience = if exchange.is_over() {
                LAST_ANSWER_TIME
            } else {
                REASON_TIME
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

    /// Takes back a step that was not computed. The host may try again. Returns the answer.
    pub fn abandon_step(&mut self, step: Box<AuthStep>) -> Answer {
        let answer = Answer::refused(Status::INTERRUPTED);
        let (id, queue, sqe) = (step.controller, step.queue, step.sqe);
        // Without its connection, the numbers may be those of another host's queue.
        if let Some(pending) = self.pending_of(&step) {
            pending.exchange = Some(step.exchange);
            pending.is_computed = false;
            self.note_error(id, queue, &sqe, answer.status);
        }
        answer
    }

    /// Returns the authentication that a step belongs to, if its connection has not ended.
    fn pending_of(&mut self, step: &AuthStep) -> Option<&mut Pending> {
        let pending = self.exchanges.get_mut(&(step.controller, step.queue));
        pending.filter(|pending| pending.connection == step.connection)
    }

    /// Returns whether the connection of a step still waits for its result.
    pub(crate) fn wants(&mut self, step: &AuthStep) -> bool {
        self.pending_of(step).is_some()
    }

    /// Ends the connections whose authentication has failed, or has not finished in time.
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
                self.end_controller(id);
            } else {
                self.notices.push(Notice::Queue { connection });
            }
        }
    }

    /// Returns the earliest time at which a connection ends.
    pub(super) fn next_exchange(&self) -> Option<Moment> {
        let open = self.exchanges.values().filter(|one| !one.is_over);
        open.map(|one| one.until).min()
    }
}
