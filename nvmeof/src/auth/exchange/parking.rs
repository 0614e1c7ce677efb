//! An exchange that outlives its process.
//!
//! The keys are not in the snapshot: [`Exchange::resume`] gets them from the caller. An exchange that waits for REPLY
//! needs its challenge and its secret exponent. Of an exchange that has failed, only the reason is left.

use zeroize::Zeroizing;

use super::{Exchange, ExchangeSnapshot, Parties, Private, State, why};
use crate::auth::dh::Secret;
use crate::auth::{Group, Hash, Keys};

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
            secret: secret.map(|one| Private(one.bytes().to_vec())),
            answer: answer.map(|one| Private(one.to_vec())),
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
            Some(Private(bytes)) => {
                let bytes: Result<[u8; Secret::BYTES], _> = bytes.as_slice().try_into();
                let bytes = bytes.map_err(|error| format!("secret: {error}"))?;
                Some(Secret::new(*Zeroizing::new(bytes)))
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
                let has_length = |one: &Private| one.0.len() == hash.bytes();
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
                answer.as_ref().map(|one| one.0.len())
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
            answer: answer.as_ref().map(|one| Zeroizing::new(one.0.clone())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn keys() -> Keys {
        let key: crate::auth::Key = KEY.parse().expect("a key");
        Keys {
            host: key.clone(),
            controller: Some(key),
            hash: None,
            group: None,
        }
    }

    fn parties() -> Parties {
        Parties {
            host: "host".to_owned(),
            subsystem: "disks".to_owned(),
        }
    }

    fn moved(one: &Exchange) -> Exchange {
        let parked = one.park();
        let bytes = postcard::to_stdvec(&parked).expect("bytes");
        let read: ExchangeSnapshot = postcard::from_bytes(&bytes).expect("a snapshot");
        let resumed = Exchange::resume(&read, keys(), parties()).expect("resumed");
        assert_eq!(resumed.park(), parked);
        resumed
    }

    /// Returns an exchange that has negotiated SHA-256 and the group of 2,048 bits.
    fn negotiated() -> Exchange {
        let mut said = vec![0; 72];
        (said[4], said[7], said[8]) = (7, 1, 1);
        (said[10], said[11], said[12], said[42]) = (1, 1, 1, 1);
        let mut exchange = Exchange::new(keys(), parties());
        exchange.send(&said, &mut |bytes| bytes.fill(0x5a));
        exchange
    }

    /// The host replies to the challenge of the old process, and wants the target to authenticate, too.
    #[test]
    fn an_exchange_with_a_group_goes_on_between_any_two_messages() {
        let challenge = negotiated().receive().expect("CHALLENGE");
        let mut one = moved(&negotiated());
        assert_eq!(one.receive().as_ref(), Some(&challenge));
        let mut one = moved(&one);
        let secret = Secret::new([3; 64]);
        let public = secret.public(Group::Ffdhe2048).expect("a value");
        let shared = secret.shared(Group::Ffdhe2048, &challenge[48..]);
        let shared = Hash::Sha256.hash(&shared.expect("a value"));
        let mixed = Hash::Sha256.hmac(&shared, &[&challenge[16..48]]);
        let answer = Hash::Sha256.hmac(
            &keys().host.of("host"),
            &[
                &mixed,
                &challenge[12..16],
                &[7, 0, 0],
                b"HostHost",
                b"host",
                &[0],
                b"disks",
            ],
        );
        let mut reply = vec![1, 2, 0, 0, 7, 0, 32, 0, 1, 0, 0, 1, 0, 0, 0, 0];
        for part in [&answer[..], &[9; 32], &public] {
            reply.extend_from_slice(part);
        }
        one.send(&reply, &mut |_| ());
        let mut one = moved(&one);
        let success = one.receive().expect("SUCCESS1");
        assert_eq!((success[1], success[8], success.len()), (3, 1, 48));
        let mut one = moved(&one);
        one.send(&[1, 4, 0, 0, 7, 0], &mut |_| ());
        assert!(one.is_done());
    }

    #[test]
    fn an_exchange_that_no_exchange_has_written_is_refused() {
        type Change = fn(&mut ExchangeSnapshot);
        let changes: [(Change, &str); 10] = [
            (|one| one.hash = 4, "hash is 4"),
            (|one| one.group = 6, "group is 6"),
            (|one| one.sequence = 0, "sequence number 0"),
            (|one| one.challenge.truncate(31), "a challenge of 31 bytes"),
            (|one| one.secret = None, "secret: false"),
            (|one| one.secret = Some(Private(vec![1])), "secret: "),
            (|one| one.group = 0, "group Null"),
            (
                |one| one.answer = Some(Private(vec![0; 32])),
                "answer: Some(32)",
            ),
            (|one| one.state = State::Done, "state Done"),
            (|one| one.state = State::Failed(1), "state Failed(1)"),
        ];
        for (change, text) in changes {
            let mut parked = negotiated().park();
            change(&mut parked);
            let error = Exchange::resume(&parked, keys(), parties());
            let error = error.map(|_| ()).expect_err(text);
            assert!(error.contains(text), "{error} and not: {text}");
        }
        let mut failed = negotiated();
        failed.send(&[1, 0xf0, 0, 0, 7, 0], &mut |_| ());
        let mut parked = failed.park();
        assert!(parked.secret.is_none() && parked.challenge.is_empty());
        assert_eq!(moved(&failed).failure(), Some(1));
        parked.state = State::Over(8);
        let error = Exchange::resume(&parked, keys(), parties());
        assert_eq!(
            error.map(|_| ()),
            Err("reason is 8: there are 1 to 7".to_owned())
        );
    }

    #[test]
    fn a_secret_exponent_and_a_response_are_not_printed() {
        let text = format!("{:?}", negotiated().park());
        assert!(text.contains("Private(64 bytes)"), "{text}");
        let mut snapshot = negotiated().park();
        snapshot.answer = Some(Private(vec![0xa5; 32]));
        let text = format!("{:?}", snapshot.answer);
        assert_eq!(text, "Some(Private(32 bytes))");
    }
}
