//! Authentication of queues: which of them have to, and the commands that carry it.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Answer, Model, Outcome};
use crate::auth::{Exchange, Keys, Parties};
use crate::nvme::fabrics::kind;
use crate::nvme::{Nqn, Sqe, Status};

/// Authentications that have begun, by controller and queue. What is not here need not authenticate, or has.
pub(super) type Exchanges = std::collections::BTreeMap<(u16, u16), Exchange>;

/// Random bytes.
#[derive(Debug)]
pub(super) struct Random(ChaCha20Rng);

impl Default for Random {
    fn default() -> Self {
        Self(ChaCha20Rng::from_os_rng())
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
        id: u16,
        queue: u16,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> bool {
        let Some(keys) = self.keys.get(host) else {
            return false;
        };
        let parties = Parties {
            host: host.to_string(),
            subsystem: subsystem.to_string(),
        };
        self.exchanges
            .insert((id, queue), Exchange::new(keys.clone(), parties));
        true
    }

    /// Whether commands of a queue are carried out.
    #[must_use]
    pub fn is_authenticated(&self, id: u16, queue: u16) -> bool {
        !self.exchanges.contains_key(&(id, queue))
    }

    /// Authentication Send and Receive. `data` is what came with it, `room` how many bytes the host takes.
    pub fn authenticate(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: &[u8],
        room: u32,
    ) -> Outcome {
        let answer = self.authenticated(id, queue, sqe, data, room);
        if !answer.status.is_success() {
            self.note_error(id, queue, sqe, answer.status);
        }
        Outcome::Answered(answer)
    }

    fn authenticated(&mut self, id: u16, queue: u16, sqe: &Sqe, data: &[u8], room: u32) -> Answer {
        /// SPSP0, SPSP1 and SECP in bytes 1 to 3 of dword 10.
        const PROTOCOL: u32 = 0xe901_0100;
        let bytes = sqe.cdw11.get();
        if sqe.cdw10.get() & !0xff != PROTOCOL || bytes == 0 {
            return Status::INVALID_FIELD.dnr().into();
        }
        let Some(exchange) = self.exchanges.get_mut(&(id, queue)) else {
            // It need not, or has.
            return Status::SEQUENCE.dnr().into();
        };
        if sqe.fabrics_type() == kind::AUTHENTICATION_SEND {
            exchange.send(data, &mut |bytes| self.random.0.fill_bytes(bytes));
        } else {
            if bytes > room {
                return Status::SGL_LENGTH.dnr().into();
            }
            let Some(mut said) = exchange.receive() else {
                return Status::SEQUENCE.dnr().into();
            };
            let fits = usize::try_from(bytes).is_ok_and(|bytes| said.len() <= bytes);
            if !fits {
                return Status::INVALID_FIELD.dnr().into();
            }
            said.resize(usize::try_from(bytes).unwrap_or(said.len()), 0);
            if exchange.is_done() {
                tracing::info!(controller = id, queue, "authenticated");
                self.exchanges.remove(&(id, queue));
            }
            return Answer::data(said);
        }
        if exchange.is_done() {
            tracing::info!(controller = id, queue, "authenticated, both ways");
            self.exchanges.remove(&(id, queue));
        }
        Answer::done()
    }
}
