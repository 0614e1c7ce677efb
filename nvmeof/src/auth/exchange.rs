//! Authentication messages of one queue, on the target's side.

mod parking;

use subtle::ConstantTimeEq;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};
use zeroize::{Zeroize, Zeroizing};

use super::dh::Secret;
use super::{Group, Hash, Keys};

/// Message types (common, and DH-HMAC-CHAP) and message identifiers.
const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;
/// Length in bytes of the fixed fields of challenge, reply and success.
const HEAD: usize = 16;

/// Reason code explanations of the message FAILURE1.
mod why {
    pub(super) const FAILED: u8 = 1;
    pub(super) const PROTOCOL: u8 = 2;
    pub(super) const CONCATENATION: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const GROUP: u8 = 5;
    pub(super) const PAYLOAD: u8 = 6;
    pub(super) const MESSAGE: u8 = 7;
}

/// Names of the host and the subsystem in an exchange.
#[derive(Clone, Debug)]
pub struct Parties {
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
}

/// State of an exchange: the message that is expected next, or the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::EnumIter))]
enum State {
    /// The host sends NEGOTIATE.
    Begin,
    /// The host is to receive CHALLENGE.
    Challenge,
    /// The host sends REPLY.
    Reply,
    /// The host is to receive SUCCESS1.
    Success,
    /// The host sends SUCCESS2.
    Confirm,
    /// The host is authenticated.
    Done,
    /// The host is to receive FAILURE1 with this reason.
    Failed(u8),
    /// The host has received FAILURE1 with this reason. It cannot try again.
    Over(u8),
}

/// Authentication of one queue, by DH-HMAC-CHAP.
pub struct Exchange {
    keys: Keys,
    parties: Parties,
    state: State,
    transaction: u16,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    secret: Option<Secret>,
    /// Response to the host's own challenge, if the host sent one.
    answer: Option<Zeroizing<Vec<u8>>>,
}

/// An exchange that was parked: plain data.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ExchangeSnapshot {
    state: State,
    transaction: u16,
    hash: u8,
    group: u8,
    sequence: u32,
    challenge: Vec<u8>,
    secret: Option<Private>,
    /// Response to the host's own challenge, if the host sent one.
    answer: Option<Private>,
}

/// Secret exponent of a key exchange, or a response that the host does not have yet. It is not printed, and zeroized
/// when dropped.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Private(Vec<u8>);

impl Drop for Private {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl core::fmt::Debug for Private {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Private({} bytes)", self.0.len())
    }
}

impl core::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Exchange({:?}, {:?})", self.parties, self.state)
    }
}

fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) | u16::from(bytes[at + 1]) << 8
}

impl Exchange {
    /// Returns a new exchange, which expects NEGOTIATE.
    #[must_use]
    pub fn new(keys: Keys, parties: Parties) -> Self {
        Self {
            keys,
            parties,
            state: State::Begin,
            transaction: 0,
            hash: Hash::Sha256,
            group: Group::Null,
            sequence: 0,
            challenge: Vec::new(),
            secret: None,
            answer: None,
        }
    }

    /// Returns whether the host is authenticated.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns the reason why the authentication has failed; `None` if it has not failed.
    #[must_use]
    pub const fn failure(&self) -> Option<u8> {
        match self.state {
            State::Failed(reason) | State::Over(reason) => Some(reason),
            State::Begin
            | State::Challenge
            | State::Reply
            | State::Success
            | State::Confirm
            | State::Done => None,
        }
    }

    /// Returns whether the authentication has failed and the host has received the reason.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Handles a message of the host (Authentication Send). `random` fills a buffer with random bytes.
    pub fn send(&mut self, message: &[u8], random: &mut dyn FnMut(&mut [u8])) {
        // The first failure is the one that is reported.
        if self.failure().is_some() {
            return;
        }
        let said = match message {
            // NEGOTIATE is accepted only once, because each challenge costs a modular exponentiation.
            [COMMON, NEGOTIATE, ..] if message.len() >= 8 && self.state == State::Begin => {
                self.transaction = number(message, 4);
                self.negotiate(message, random)
            }
            [COMMON | DHCHAP, FAILURE2, ..] => Err(why::FAILED),
            [_, _, _, _, low, high, ..]
                if U16::from_bytes([*low, *high]).get() != self.transaction =>
            {
                Err(why::PAYLOAD)
            }
            [DHCHAP, REPLY, ..] if self.state == State::Reply => self.reply(message),
            [DHCHAP, SUCCESS2, ..] if self.state == State::Confirm => Ok(State::Done),
            _ => Err(why::MESSAGE),
        };
        self.state = said.unwrap_or_else(State::Failed);
    }

    fn negotiate(
        &mut self,
        message: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<State, u8> {
        const PROTOCOL: usize = 64;
        if message[6] != 0 {
            return Err(why::CONCATENATION);
        }
        let protocols = message[8..].chunks_exact(PROTOCOL).take(message[7].into());
        let ours = protocols.into_iter().find(|one| one[0] == DHCHAP);
        let ours = ours.ok_or(why::PROTOCOL)?;
        let (hashes, groups) = (usize::from(ours[2]), usize::from(ours[3]));
        if hashes > 30 || groups > 30 {
            return Err(why::PAYLOAD);
        }
        let hashes = ours[4..4 + hashes].iter().filter_map(|one| Hash::of(*one));
        let groups = ours[34..34 + groups]
            .iter()
            .filter_map(|one| Group::of(*one));
        let mut hashes = hashes.filter(|one| self.keys.hash.is_none_or(|only| only == *one));
        self.hash = hashes.next().ok_or(why::HASH)?;
        let groups: Vec<Group> = groups
            .filter(|one| self.keys.group.is_none_or(|only| only == *one))
            .collect();
        let real = groups.iter().find(|one| **one != Group::Null);
        self.group = *real.or(groups.first()).ok_or(why::GROUP)?;
        self.challenge = vec![0; self.hash.bytes()];
        random(&mut self.challenge);
        let mut bytes = [0; 4];
        random(&mut bytes);
        // Sequence number 0 would mean that no response is requested.
        self.sequence = U32::from_bytes(bytes).get().max(1);
        let mut secret = [0; 64];
        random(&mut secret);
        self.secret = (self.group != Group::Null).then(|| Secret::new(secret));
        self.answer = None;
        Ok(State::Challenge)
    }

    fn reply(&mut self, message: &[u8]) -> Result<State, u8> {
        let length = self.hash.bytes();
        if message.len() < HEAD + 2 * length || usize::from(message[6]) != length {
            return Err(why::PAYLOAD);
        }
        let (values, rest) = message[HEAD..].split_at(2 * length);
        let (answer, challenge) = values.split_at(length);
        let theirs = rest.get(..number(message, 10).into()).ok_or(why::PAYLOAD)?;
        if theirs.len() != self.group.bytes() {
            return Err(why::PAYLOAD);
        }
        let shared = match self.secret.take() {
            Some(secret) => {
                let shared = secret.shared(self.group, theirs);
                Some(Zeroizing::new(shared.ok_or(why::PAYLOAD)?))
            }
            None => None,
        };
        let mixed = |challenge: &[u8]| match &shared {
            Some(shared) => self.hash.hmac(&self.hash.hash(shared), &[challenge]),
            None => Zeroizing::new(challenge.to_vec()),
        };
        let (host, subsystem) = (&*self.parties.host, &*self.parties.subsystem);
        let transaction = U16::new(self.transaction);
        let expected = self.hash.hmac(
            &self.keys.host.of(host),
            &[
                &mixed(&self.challenge),
                U32::new(self.sequence).as_bytes(),
                transaction.as_bytes(),
                &[0],
                b"HostHost",
                host.as_bytes(),
                &[0],
                subsystem.as_bytes(),
            ],
        );
        if !bool::from(expected.as_slice().ct_eq(answer)) {
            return Err(why::FAILED);
        }
        if message[8] != 0 {
            let key = self.keys.controller.as_ref().ok_or(why::FAILED)?;
            // The host must not reflect our own challenge: we refuse to answer it.
            if bool::from(self.challenge.as_slice().ct_eq(challenge)) {
                return Err(why::FAILED);
            }
            self.answer = Some(self.hash.hmac(
                &key.of(subsystem),
                &[
                    &mixed(challenge),
                    &message[12..16],
                    transaction.as_bytes(),
                    &[0],
                    b"Controller",
                    subsystem.as_bytes(),
                    &[0],
                    host.as_bytes(),
                ],
            ));
        }
        Ok(State::Success)
    }

    /// Returns the next message for the host (Authentication Receive); `None` if the host must send the next message,
    /// or if the exchange has ended.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let length = u8::try_from(self.hash.bytes()).unwrap_or(0);
        let head = |kind, what| {
            let mut message = vec![0; HEAD];
            (message[0], message[1]) = (kind, what);
            message[4..6].copy_from_slice(U16::new(self.transaction).as_bytes());
            message[6] = length;
            message
        };
        match self.state {
            State::Challenge => {
                let mut message = head(DHCHAP, CHALLENGE);
                let value = match &self.secret {
                    Some(secret) => secret.public(self.group)?,
                    None => Vec::new(),
                };
                (message[8], message[9]) = (self.hash as u8, self.group as u8);
                let bytes = u16::try_from(value.len()).unwrap_or(0);
                message[10..12].copy_from_slice(U16::new(bytes).as_bytes());
                message[12..16].copy_from_slice(U32::new(self.sequence).as_bytes());
                message.extend_from_slice(&self.challenge);
                message.extend_from_slice(&value);
                self.state = State::Reply;
                Some(message)
            }
            State::Success => {
                let mut message = head(DHCHAP, SUCCESS1);
                self.state = State::Done;
                if let Some(answer) = self.answer.take() {
                    message[8] = 1;
                    message.extend_from_slice(&answer);
                    self.state = State::Confirm;
                }
                Some(message)
            }
            State::Failed(why) => {
                let mut message = head(COMMON, FAILURE1);
                (message[6], message[7]) = (1, why);
                message.truncate(8);
                self.state = State::Over(why);
                Some(message)
            }
            State::Begin | State::Reply | State::Confirm | State::Done | State::Over(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Key;
    use strum::IntoEnumIterator;

    const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const HOST: &str = "nqn.2026-11.test:host";
    const DISKS: &str = "nqn.2026-11.test:disks";

    fn exchange(controller: bool) -> Exchange {
        let key: Key = KEY.parse().expect("a key");
        let keys = Keys {
            host: key.clone(),
            controller: controller.then_some(key),
            hash: None,
            group: None,
        };
        let (host, subsystem) = (HOST.to_owned(), DISKS.to_owned());
        Exchange::new(keys, Parties { host, subsystem })
    }

    fn small(number: usize) -> u8 {
        u8::try_from(number).expect("eight bits")
    }

    fn ask(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 72];
        (message[4], message[7], message[8]) = (7, 1, 1);
        (message[10], message[11]) = (small(hashes.len()), small(groups.len()));
        message[12..12 + hashes.len()].copy_from_slice(hashes);
        message[42..42 + groups.len()].copy_from_slice(groups);
        message
    }

    fn reply(answer: &[u8], length: u8) -> Vec<u8> {
        let mut message = vec![1, 2, 0, 0, 7, 0, length, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(answer);
        message.extend(vec![0; length.into()]);
        message
    }

    fn ones(bytes: &mut [u8]) {
        bytes.fill(0x11);
    }

    /// Receives FAILURE1, and returns its reason.
    fn failure(exchange: &mut Exchange) -> Option<u8> {
        let said = exchange.receive()?;
        assert_eq!(
            (said[0], said[1], said[4], said[6], said.len()),
            (0, 0xf1, 7, 1, 8)
        );
        Some(said[7])
    }

    /// Returns the response of answer.hex, which was computed by another implementation.
    fn computed() -> Vec<u8> {
        let answer = include_str!("answer.hex").trim();
        let byte = |at: usize| u8::from_str_radix(&answer[at..at + 2], 16).expect("hex");
        (0..64).step_by(2).map(byte).collect()
    }

    /// Each state handles each of the 65,536 pairs of type and identifier as in the checked-in table. Messages without
    /// a row of their own lead to the state in the row "any other".
    #[test]
    fn every_pair_of_state_and_message_is_as_the_checked_in_table_says() {
        let mut table = String::new();
        let replies = reply(&computed(), 32);
        // A NEGOTIATE message has its own fields; every other message has the fields of REPLY.
        let message = |kind, id| {
            let mut message = match (kind, id) {
                (COMMON, NEGOTIATE) => ask(&[1, 2], &[0]),
                _ => replies.clone(),
            };
            (message[0], message[1]) = (kind, id);
            message
        };
        for state in State::iter() {
            let mut one = exchange(false);
            one.send(&ask(&[1, 2], &[0]), &mut ones);
            let mut after = |message: &[u8], transaction| {
                (one.state, one.transaction) = (state, transaction);
                one.send(message, &mut ones);
                one.state
            };
            let rest = after(&message(0xff, 0xff), 7);
            for (kind, id) in (0..=0xff).flat_map(|kind| (0..=0xff).map(move |id| (kind, id))) {
                let next = after(&message(kind, id), 7);
                if next != rest {
                    table.push_str(&format!("{state:?} + {kind:02x} {id:02x} -> {next:?}\n"));
                }
            }
            table.push_str(&format!("{state:?} + any other -> {rest:?}\n"));
            let next = after(&message(DHCHAP, REPLY), 6);
            table.push_str(&format!("{state:?} + another transaction -> {next:?}\n"));
            one.state = state;
            let said = one.receive();
            let said = said.map_or("nothing".to_owned(), |said| {
                format!("{:02x} {:02x}", said[0], said[1])
            });
            table.push_str(&format!("{state:?} receives {said} -> {:?}\n", one.state));
        }
        assert_eq!(table, include_str!("exchange.table"), "\n{table}");
    }

    /// A response that Python's hmac and hashlib computed from the text of the specification is accepted. The key is
    /// transformed with the host's name; the challenge is 32 times 11h, the sequence number 11111111h, and the
    /// transaction 7.
    #[test]
    fn an_answer_that_another_implementation_computed_is_taken_and_any_other_is_not() {
        let answer = computed();
        for spoilt in [None, Some(0), Some(31)] {
            let mut one = exchange(false);
            one.send(&ask(&[1, 2], &[0]), &mut ones);
            let said = one.receive().expect("a challenge");
            assert_eq!(
                (&said[..12], &said[16..]),
                (&[1, 1, 0, 0, 7, 0, 32, 0, 1, 0, 0, 0][..], &[0x11; 32][..])
            );
            assert!(one.receive().is_none(), "it is the host's turn");
            let mut answer = answer.clone();
            if let Some(at) = spoilt {
                answer[at] ^= 1;
            }
            one.send(&reply(&answer, 32), &mut ones);
            assert!(!one.is_done(), "not before the host was told");
            if spoilt.is_none() {
                assert_eq!(one.receive().map(|said| said[1]), Some(3));
            } else {
                assert_eq!(failure(&mut one), Some(1));
            }
            assert_eq!(one.is_done(), spoilt.is_none());
        }
    }

    /// A host that sends our own challenge back as its own gets no answer.
    #[test]
    fn our_own_challenge_is_not_answered_whoever_sends_it() {
        let answer = computed();
        for (theirs, is_ours) in [([0x11; 32], true), ([0x12; 32], false)] {
            let mut one = exchange(true);
            one.send(&ask(&[1], &[0]), &mut ones);
            one.receive().expect("a challenge");
            let mut message = reply(&answer, 32);
            message[8] = 1;
            message[48..80].copy_from_slice(&theirs);
            one.send(&message, &mut ones);
            if is_ours {
                assert_eq!(failure(&mut one), Some(1));
                assert!(one.is_over() && one.receive().is_none());
            } else {
                assert_eq!(one.receive().map(|said| (said[1], said[8])), Some((3, 1)));
            }
        }
    }

    /// A host implemented in the test, by the same formulas, and the target authenticate each other with every hash and
    /// group.
    #[test]
    fn both_sides_authenticate_each_other_with_every_hash_and_group() {
        for hash in 1..=3 {
            for group in 0..=5 {
                let mut one = exchange(true);
                one.send(&ask(&[hash], &[group]), &mut ones);
                let said = one.receive().expect("a challenge");
                let (kind, of) = (
                    Hash::of(hash).expect("a hash"),
                    Group::of(group).expect("a group"),
                );
                let mine = Secret::new([9; 64]);
                let theirs = &said[16 + kind.bytes()..];
                let shared = mine.shared(of, theirs);
                let mix = |challenge: &[u8]| match &shared {
                    Some(shared) => kind.hmac(&kind.hash(shared), &[challenge]).to_vec(),
                    None => challenge.to_vec(),
                };
                let key = KEY.parse::<Key>().expect("a key");
                let challenge = mix(&said[16..16 + kind.bytes()]);
                let parts = [
                    &challenge[..],
                    &said[12..16],
                    &[7, 0, 0],
                    b"HostHost",
                    HOST.as_bytes(),
                    &[0],
                    DISKS.as_bytes(),
                ];
                let answer = kind.hmac(&key.of(HOST), &parts);
                let mut message = reply(&answer, small(kind.bytes()));
                message[8] = 1;
                let public = mine.public(of).unwrap_or_default();
                message[10..12].copy_from_slice(
                    U16::new(u16::try_from(public.len()).expect("16 bits")).as_bytes(),
                );
                message.extend_from_slice(&public);
                one.send(&message, &mut ones);
                let said = one.receive().expect("success");
                let parts = [
                    &mix(&vec![0; kind.bytes()])[..],
                    &[0; 4],
                    &[7, 0, 0],
                    b"Controller",
                    DISKS.as_bytes(),
                    &[0],
                    HOST.as_bytes(),
                ];
                assert_eq!(
                    (said[1], said[8], &said[16..]),
                    (3, 1, &kind.hmac(&key.of(DISKS), &parts)[..])
                );
                assert!(!one.is_done());
                one.send(&[1, 4, 0, 0, 7, 0], &mut ones);
                assert!(one.is_done(), "{hash} {group}");
            }
        }
    }

    #[test]
    fn messages_that_are_wrong_fail_with_their_reason() {
        let mut concatenated = ask(&[1], &[0]);
        concatenated[6] = 1;
        let mut other = ask(&[1], &[0]);
        other[8] = 2;
        for (message, why) in [
            (ask(&[4], &[0]), 4),
            (ask(&[1], &[6]), 5),
            (ask(&[], &[0]), 4),
            (concatenated, 3),
            (other, 2),
            (vec![1, 4, 0, 0, 7, 0], 6),
            (vec![], 7),
            (vec![0, 0], 7),
        ] {
            let mut one = exchange(false);
            one.transaction = if why > 5 { 0 } else { 7 };
            one.send(&message, &mut ones);
            let State::Failed(said) = one.state else {
                panic!("{message:?}");
            };
            assert_eq!(said, why, "{message:?}");
        }
        for (message, why) in [
            (reply(&[0; 31], 32), 6),
            (reply(&[0; 48], 48), 6),
            (reply(&[0; 32], 32), 1),
            (vec![1, 4, 0, 0, 7, 0], 7),
        ] {
            let mut one = exchange(false);
            one.send(&ask(&[1], &[0]), &mut ones);
            one.receive().expect("a challenge");
            one.send(
                &message[..message.len() - usize::from(why == 6 && message[6] == 32) * 32],
                &mut ones,
            );
            assert_eq!(failure(&mut one), Some(why));
        }
    }
}
