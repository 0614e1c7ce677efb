//! A handover over a socket: the conversation of both ends.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::channel::{Channel, Kind, MAX_FDS, Message, TO_SEND, Wait, until};
use super::claim::{Claim, Offer};
use super::error::HandoverError;
use super::file::{Contents, HandoverFile};
use super::{MAX_DESCRIPTORS, NotGiven, Sent, take_back};
use crate::clock::{Instant, monotonic_now};
use crate::snapshot::NamedFd;

/// Lowest and highest version of the protocol that this process knows. READY has both, so that a later sender can
/// choose one that its receiver knows. An OFFER without a text is of version 1; a later version puts its number there.
const VERSIONS: RangeInclusive<u16> = 1..=1;

const FOR_READY: &str = "for READY";
const FOR_OFFER: &str = "for OFFER";
const FOR_DESCRIPTORS: &str = "for DESCRIPTORS";
const FOR_ANSWER: &str = "for ADOPTED, REFUSED or FAILED";

/// The other end of a socket, whose process is initialised and waits for a handover.
#[derive(Debug)]
pub struct Receiver {
    channel: Channel,
}

/// Waits until the process at the other end of a connected stream socket has called [`receive`]. A process that hands
/// over parks its functions after this call: until then, nothing has changed.
///
/// # Errors
/// [`HandoverError::Peer`]: the process is of another user and not of root. [`HandoverError::Silent`]: the deadline
/// (of the machine's monotonic clock, [`RealClock`](crate::RealClock)) has passed. [`HandoverError::HungUp`]: the other
/// end was closed. [`HandoverError::Unexpected`]: it has sent something else, or has another version of the protocol.
/// [`HandoverError::System`]: a system call failed, or the socket is no stream socket.
pub fn await_receiver(socket: OwnedFd, deadline: Instant) -> Result<Receiver, HandoverError> {
    await_receiver_by(socket, &mut until(deadline))
}

pub(super) fn await_receiver_by(
    socket: OwnedFd,
    wait: &mut Wait<'_>,
) -> Result<Receiver, HandoverError> {
    let channel = Channel::new(socket)?;
    let ready = channel.receive(FOR_READY, wait)?;
    expect(FOR_READY, &ready, Kind::Ready, 0)?;
    let (lowest, highest) = (ready.number >> 16, ready.number & 0xffff);
    if !(lowest..=highest).contains(&u32::from(*VERSIONS.end())) {
        let what = format!(
            "versions {lowest} to {highest} of the protocol, this process has {} to {}",
            VERSIONS.start(),
            VERSIONS.end()
        );
        let step = FOR_READY;
        let error = HandoverError::Unexpected { step, what };
        channel.answer(Kind::Refused, &error.to_string());
        return Err(error);
    }
    Ok(Receiver { channel })
}

impl Receiver {
    /// Hands a snapshot and its descriptors over, and waits until the receiver has claimed them and reported the
    /// outcome, or has refused them.
    ///
    /// If the result is an error, the receiver cannot claim the handover any more, not even if it receives the
    /// descriptors later.
    ///
    /// # Errors
    /// [`NotGiven`], with the descriptors and the reason. Before anything is sent: [`HandoverError::Name`],
    /// [`HandoverError::Repeated`], [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`]. Afterwards:
    /// [`HandoverError::Refused`], with the receiver's reason; [`HandoverError::Silent`], [`HandoverError::HungUp`],
    /// [`HandoverError::Unexpected`]. [`HandoverError::System`]: a system call failed; `ETOOMANYREFS` means that more
    /// descriptors are on their way than this process may have open (unix(7)).
    pub fn send(
        self,
        snapshot: &[u8],
        descriptors: Vec<NamedFd>,
        deadline: Instant,
    ) -> Result<Sent, NotGiven> {
        match check_deadline(deadline) {
            Ok(()) => self.send_by(snapshot, descriptors, &mut until(deadline)),
            Err(error) => Err(NotGiven::new(descriptors, error)),
        }
    }

    pub(super) fn send_by(
        self,
        snapshot: &[u8],
        descriptors: Vec<NamedFd>,
        wait: &mut Wait<'_>,
    ) -> Result<Sent, NotGiven> {
        let names = descriptors.iter().map(|named| named.name.as_str());
        let file = match HandoverFile::write(names, snapshot) {
            Ok(file) => file,
            Err(error) => return Err(NotGiven::new(descriptors, error)),
        };
        let answer = self.converse(&file, &descriptors, wait);
        // The claim decides, not the answer. The receiver may have claimed the handover without an answer.
        let kept = match answer {
            Err(error) => take_back(file, descriptors, error),
            Ok(()) => {
                let what = "ADOPTED, and had not claimed the handover".to_owned();
                let step = FOR_ANSWER;
                let error = HandoverError::Unexpected { step, what };
                take_back(file, descriptors, error).map(|mut sent| {
                    if sent.undecided.is_none() {
                        sent.unacknowledged = None;
                    }
                    sent
                })
            }
        };
        kept.map_err(|mut kept| {
            self.channel.end_sending();
            kept.receiver = Some(self.channel);
            kept
        })
    }

    fn converse(
        &self,
        file: &HandoverFile,
        descriptors: &[NamedFd],
        wait: &mut Wait<'_>,
    ) -> Result<(), HandoverError> {
        let sent = self.send_all(file, descriptors, wait);
        match &sent {
            // A receiver that refuses early may have hung up. Its reason is read all the same.
            Ok(()) | Err(HandoverError::HungUp { .. }) => {}
            Err(_) => return sent,
        }
        let answer = self.channel.receive(FOR_ANSWER, wait)?;
        let reason = printable(&answer.text);
        match answer.kind {
            Kind::Refused if answer.fds.is_empty() => {
                return Err(HandoverError::Refused { reason });
            }
            Kind::Failed if answer.fds.is_empty() => {
                return Err(HandoverError::Failed { reason });
            }
            Kind::Ready
            | Kind::Offer
            | Kind::Descriptors
            | Kind::Adopted
            | Kind::Refused
            | Kind::Failed => {}
        }
        expect(FOR_ANSWER, &answer, Kind::Adopted, 0)
    }

    fn send_all(
        &self,
        file: &HandoverFile,
        descriptors: &[NamedFd],
        wait: &mut Wait<'_>,
    ) -> Result<(), HandoverError> {
        let offer = (Kind::Offer, number(descriptors.len()), &[][..]);
        self.channel.send(TO_SEND, offer, &[file.as_fd()], wait)?;
        for some in descriptors.chunks(MAX_FDS) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(|named| named.fd.as_fd()).collect();
            let message = (Kind::Descriptors, number(some.len()), &[][..]);
            self.channel.send(TO_SEND, message, &fds, wait)?;
        }
        Ok(())
    }
}

/// Reports to the process at the other end of a connected stream socket that this process is initialised, and waits for
/// its handover.
///
/// # Errors
/// The descriptors that were received are closed, and the sender is informed of the refusal. [`HandoverError::Peer`]:
/// the process is of another user and not of root. [`HandoverError::Silent`]: the deadline (of the machine's monotonic
/// clock, [`RealClock`](crate::RealClock)) has passed. [`HandoverError::HungUp`]: the sender has not sent everything.
/// [`HandoverError::Unexpected`]: a message is not valid, or has another number of descriptors.
/// [`HandoverError::Cut`]: this process has no room for the descriptors. [`HandoverError::File`],
/// [`HandoverError::Name`], [`HandoverError::Repeated`], [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`]:
/// the file of the handover is not valid. [`HandoverError::Claimed`]: the handover is claimed.
/// [`HandoverError::System`]: a system call failed, or the socket is no stream socket.
pub fn receive(socket: OwnedFd, deadline: Instant) -> Result<Offer, HandoverError> {
    check_deadline(deadline)?;
    receive_by(socket, &mut until(deadline))
}

/// Checks that the deadline has not passed, before the first message is sent.
fn check_deadline(deadline: Instant) -> Result<(), HandoverError> {
    if monotonic_now() < deadline {
        return Ok(());
    }
    Err(HandoverError::Silent { step: TO_SEND })
}

pub(super) fn receive_by(socket: OwnedFd, wait: &mut Wait<'_>) -> Result<Offer, HandoverError> {
    let channel = Channel::new(socket)?;
    channel.send(TO_SEND, (Kind::Ready, versions(), &[]), &[], wait)?;
    match received(&channel, wait) {
        Ok((file, contents, fds)) => Ok(Offer {
            snapshot: contents.snapshot,
            descriptors: (contents.names.into_iter().zip(fds))
                .map(|(name, fd)| NamedFd { name, fd })
                .collect(),
            claim: Claim::over_socket(file, channel),
        }),
        Err(error) => {
            channel.answer(Kind::Refused, &error.to_string());
            Err(error)
        }
    }
}

fn received(
    channel: &Channel,
    wait: &mut Wait<'_>,
) -> Result<(HandoverFile, Contents, Vec<OwnedFd>), HandoverError> {
    let mut offer = channel.receive(FOR_OFFER, wait)?;
    if offer.kind == Kind::Refused && offer.fds.is_empty() {
        let reason = printable(&offer.text);
        return Err(HandoverError::Refused { reason });
    }
    if !offer.text.is_empty() {
        return Err(HandoverError::Unexpected {
            step: FOR_OFFER,
            what: format!(
                "an OFFER with a text of {} bytes, of a later version",
                offer.text.len()
            ),
        });
    }
    expect(FOR_OFFER, &offer, Kind::Offer, 1)?;
    let count = usize::try_from(offer.number).unwrap_or(usize::MAX);
    if count > MAX_DESCRIPTORS {
        return Err(HandoverError::TooMany { count });
    }
    // PANIC: `expect` has found one descriptor.
    let file = offer.fds.pop().expect("a descriptor");
    let (file, contents) = HandoverFile::read(file)?;
    if contents.names.len() != count {
        return Err(HandoverError::Unexpected {
            step: FOR_OFFER,
            what: format!(
                "an OFFER of {count} descriptors with a file that names {}",
                contents.names.len()
            ),
        });
    }
    let mut fds = Vec::with_capacity(count);
    while fds.len() < count {
        let wanted = (count - fds.len()).min(MAX_FDS);
        let mut some = channel.receive(FOR_DESCRIPTORS, wait)?;
        expect(FOR_DESCRIPTORS, &some, Kind::Descriptors, wanted)?;
        if some.number != number(wanted) {
            return Err(HandoverError::Unexpected {
                step: FOR_DESCRIPTORS,
                what: format!(
                    "DESCRIPTORS that count {} and have {wanted}, of {count} in all",
                    some.number
                ),
            });
        }
        fds.append(&mut some.fds);
    }
    Ok((file, contents, fds))
}

/// Returns the number of READY: the versions of the protocol.
fn versions() -> u32 {
    u32::from(*VERSIONS.start()) << 16 | u32::from(*VERSIONS.end())
}

/// Checks the kind of a message, and the number of its descriptors.
fn expect(
    step: &'static str,
    message: &Message,
    kind: Kind,
    fds: usize,
) -> Result<(), HandoverError> {
    let found = message.fds.len();
    if message.kind == kind && found == fds {
        return Ok(());
    }
    let sent = message.kind;
    Err(HandoverError::Unexpected {
        step,
        what: format!("{sent:?} with {found} descriptors; {kind:?} with {fds} was expected"),
    })
}

/// Returns a peer's text with its control characters escaped.
fn printable(text: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '"' | '\'' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

fn number(value: usize) -> u32 {
    // PANIC: there are at most MAX_DESCRIPTORS descriptors.
    u32::try_from(value).expect("a number of descriptors")
}
