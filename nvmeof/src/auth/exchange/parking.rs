//! An exchange that outlives its process.
//!
//! The keys are not in the snapshot: [`Exchange::resume`] gets them from the caller. An exchange that waits for REPLY
//! needs its challenge and its secret exponent. Of an exchange that has failed, only the reason is left.

use core::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{Exchange, Parties, State, why};
use crate::auth::dh::Secret;
use crate::auth::{Group, Hash, Keys};

/// An exchange that was parked: plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeSnapshot {
    state: State,
    transaction: u16,
    hash: u8,
    group: u8,
    sequence: u32,
    challenge: Vec<u8>,
    secret: Option<Exponent>,
    /// Response to the host's own challenge, if the host sent one.
    answer: Option<Vec<u8>>,
}

/// Secret exponent of a key exchange. It is not printed, and zeroized when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Exponent(Vec<u8>);

impl Drop for Exponent {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exponent({} bytes)", self.0.len())
    }
}

impl Exchange {
    /// Writes the exchange out, without its keys. Nothing changes.
    #[must_use]
    pub fn park(&self) -> ExchangeSnapshot {
        let has_failed = self.failure().is_some();
        let secret = self.secret.as_ref().filter(|_| !has_failed);
        let answer = self.answer.as_ref().filter(|_| !has_failed);
        ExchangeSnapshot {
            state: self.state,
            transaction: self.transaction,
            hash: self.hash as u8,
            group: self.group as u8,
            sequence: self.sequence,
            challenge: if has_failed {
                Vec::new()
            } else {
                self.challenge.clone()
            },
            secret: secret.map(|one| Exponent(one.bytes().to_vec())),
            answer: answer.map(|one| one.to_vec()),
        }
    }

    /// Goes on with a parked exchange.
    ///
    /// # Errors
    /// The values that are impossible, or that contradict each other.
    pub fn resume(
        snapshot: &ExchangeSnapshot,
        keys: Keys,
        parties: Parties,
    ) -> Result<Self, String> {
        let ExchangeSnapshot {
            state,
            transaction,
            hash,
            group,
            sequence,
            ref challenge,
            ref secret,
            ref answer,
        } = *snapshot;
        let hash = Hash::of(hash).ok_or(format!("hash is {hash}: there are 1 to 3"))?;
        let group = Group::of(group).ok_or(format!("group is {group}: there are 0 to 5"))?;
        let secret = match secret {
            None => None,
            Some(Exponent(bytes)) => {
                let bytes: Result<[u8; Secret::BYTES], _> = bytes.as_slice().try_into();
                let bytes = bytes.map_err(|error| format!("secret: {error}"))?;
                Some(Secret::new(bytes))
            }
        };
        let has_challenge = challenge.len() == hash.bytes() && sequence != 0;
        let needs_secret = group != Group::Null;
        let fits = match state {
            State::Begin | State::Failed(_) | State::Over(_) => {
                challenge.is_empty() && secret.is_none() && answer.is_none()
            }
            State::Challenge | State::Reply => {
                has_challenge && secret.is_some() == needs_secret && answer.is_none()
            }
            State::Success => {
                let has_length = |one: &Vec<u8>| one.len() == hash.bytes();
                has_challenge && secret.is_none() && answer.as_ref().is_none_or(has_length)
            }
            State::Confirm => has_challenge && secret.is_none() && answer.is_none(),
            State::Done => false,
        };
        if !fits {
            return Err(format!(
                "state {state:?} does not fit a challenge of {} bytes, sequence number {sequence}, group {group:?}, \
                 secret: {}, answer: {:?} bytes",
                challenge.len(),
                secret.is_some(),
                answer.as_ref().map(Vec::len)
            ));
        }
        if let State::Failed(reason) | State::Over(reason) = state
            && !(why::FAILED..=why::MESSAGE).contains(&reason)
        {
            return Err(format!("reason is {reason}: there are 1 to 7"));
        }
        Ok(Self {
            keys,
            parties,
            state,
            transaction,
            hash,
            group,
            sequence,
            challenge: challenge.clone(),
            secret,
            answer: answer.clone().map(Zeroizing::new),
        })
    }
}
