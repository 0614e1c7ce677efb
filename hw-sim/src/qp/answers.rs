//! A responder's answers to its requester, in PSN order.
//!
//! An answer is one packet, except the answer to an RDMA Read. That answer is a stream, which stays at the head of the
//! queue until its last packet has left. Successive acknowledgements merge into the last of them, and so do successive
//! NAKs. Answers to duplicates are inserted by PSN. They do not count against the responder's resources, because the
//! requester has given up the original request. A duplicate read that replaces the original's unfinished answer does
//! count.

use super::core::{Core, Outgoing};
use super::state::Service;
use crate::host::{Host, KeyError, KeyScope};
use crate::wire::{AckSyndrome, AethRepr, AtomicAckEthRepr, Headers, Opcode, Operation, Psn};
use std::collections::VecDeque;

/// Maximum number of duplicates that wait for an answer, in addition to the responder's resources.
const MAX_DUPLICATES: usize = 8;

/// An answer to the requester.
#[derive(Debug)]
enum Answer {
    Acknowledge {
        psn: Psn,
        syndrome: AckSyndrome,
        msn: u32,
    },
    Read(ReadStream),
    Atomic {
        psn: Psn,
        original: u64,
        msn: u32,
        is_duplicate: bool,
    },
}

/// A read response of which packets are still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadStream {
    /// PSN of the next packet.
    pub(super) psn: Psn,
    /// PSN that follows the PSN of the last packet.
    pub(super) end: Psn,
    pub(super) rkey: u32,
    pub(super) scope: KeyScope,
    pub(super) va: u64,
    pub(super) left: u32,
    pub(super) is_first: bool,
    /// True for a repetition of a read whose first answer was sent completely. Such an answer uses no resource, and
    /// ends without a NAK if its key is invalid.
    pub(super) is_duplicate: bool,
}

impl Answer {
    const fn psn(&self) -> Psn {
        match self {
            Self::Acknowledge { psn, .. } | Self::Atomic { psn, .. } => *psn,
            Self::Read(stream) => stream.psn,
        }
    }

    const fn uses_resource(&self) -> bool {
        match self {
            Self::Acknowledge { .. } => false,
            Self::Atomic { is_duplicate, .. } => !*is_duplicate,
            Self::Read(stream) => !stream.is_duplicate,
        }
    }

    /// Returns whether this answer still has to send the packet of `psn`.
    fn covers(&self, psn: Psn) -> bool {
        match self {
            Self::Acknowledge { .. } => false,
            Self::Atomic { psn: own, .. } => *own == psn,
            Self::Read(stream) => {
                psn.distance_from(stream.psn) < stream.end.distance_from(stream.psn)
            }
        }
    }
}

/// A read's key became invalid during the first answer to it. The value is the PSN of the packet that could not be
/// sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupted(pub(super) Psn);

/// The queue of answers, and the message sequence number that they carry.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// Number of completed messages, 24 bits.
    msn: u32,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(super) const fn msn(&self) -> u32 {
        self.msn
    }

    /// Counts a completed message.
    pub(super) fn count_message(&mut self) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Returns the number of reads and atomics accepted and not completely answered.
    pub(super) fn resources_in_use(&self) -> usize {
        self.queue
            .iter()
            .filter(|answer| answer.uses_resource())
            .count()
    }

    /// Returns whether a duplicate needs no answer of its own, because the answer to the original is still to be sent
    /// or because too many answers wait already.
    pub(super) fn will_cover(&self, psn: Psn, resources: usize) -> bool {
        self.queue.len() >= resources + MAX_DUPLICATES
            || self.queue.iter().any(|answer| answer.covers(psn))
    }

    /// Queues an acknowledgement, which replaces a waiting acknowledgement at the end of the queue. A NAK also replaces
    /// a waiting NAK. So the queue does not grow while the port is blocked.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: AckSyndrome) {
        let refuses = !matches!(syndrome, AckSyndrome::Ack(_));
        while let Some(Answer::Acknowledge { syndrome, .. }) = self.queue.back()
            && (refuses || matches!(syndrome, AckSyndrome::Ack(_)))
        {
            self.queue.pop_back();
        }
        self.queue.push_back(Answer::Acknowledge {
            psn,
            syndrome,
            msn: self.msn,
        });
    }

    /// Queues the answer to a read. A duplicate replaces the rest of an answer that is still being sent. If the
    /// replaced answer is the original's, the new answer counts as the original.
    pub(super) fn read(&mut self, mut stream: ReadStream) {
        if stream.is_duplicate {
            self.queue.retain(|answer| {
                let Answer::Read(other) = answer else {
                    return true;
                };
                let is_replaced = other.end == stream.end;
                if is_replaced && !other.is_duplicate {
                    stream.is_duplicate = false;
                }
                !is_replaced
            });
        }
        self.insert(Answer::Read(stream));
    }

    pub(super) fn atomic(&mut self, psn: Psn, original: u64, is_duplicate: bool) {
        self.insert(Answer::Atomic {
            psn,
            original,
            msn: self.msn,
            is_duplicate,
        });
    }

    /// Inserts an answer by its PSN. That place is the end of the queue, except for an answer to a duplicate.
    fn insert(&mut self, answer: Answer) {
        let psn = answer.psn();
        let at = self
            .queue
            .partition_point(|other| other.psn().ahead_of(psn) <= 0);
        self.queue.insert(at, answer);
    }

    /// Sends the next packet of the first answer.
    pub(super) fn send_one(&mut self, core: &Core, host: &mut dyn Host) -> Result<(), Interrupted> {
        let is_done = match self.queue.front_mut() {
            None => return Ok(()),
            Some(Answer::Acknowledge { psn, syndrome, msn }) => {
                let aeth = AethRepr {
                    syndrome: *syndrome,
                    msn: *msn,
                };
                let headers = Headers {
                    aeth: Some(aeth),
                    ..Headers::NONE
                };
                core.transmit(host, &answer(core, Operation::Acknowledge, *psn, headers));
                true
            }
            Some(Answer::Atomic {
                psn, original, msn, ..
            }) => {
                let headers = Headers {
                    aeth: Some(AethRepr {
                        syndrome: AckSyndrome::ACK,
                        msn: *msn,
                    }),
                    atomic_ack: Some(AtomicAckEthRepr {
                        original: *original,
                    }),
                    ..Headers::NONE
                };
                core.transmit(
                    host,
                    &answer(core, Operation::AtomicAcknowledge, *psn, headers),
                );
                true
            }
            Some(Answer::Read(stream)) => {
                let psn = stream.psn;
                match stream.send_one(core, host, self.msn) {
                    Ok(is_done) => is_done,
                    // The whole first answer was sent before, and the key may have become invalid since.
                    Err(_) if stream.is_duplicate => true,
                    Err(_) => return Err(Interrupted(psn)),
                }
            }
        };
        if is_done {
            self.queue.pop_front();
        }
        Ok(())
    }
}

impl ReadStream {
    /// Sends the next packet. Returns true if it was the last.
    fn send_one(&mut self, core: &Core, host: &mut dyn Host, msn: u32) -> Result<bool, KeyError> {
        let bytes = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(core.mtu());
        // CAST: `bytes` is at most the MTU.
        let sent = u32::try_from(bytes).unwrap_or(self.left);
        let is_last = sent == self.left;
        let operation = match (self.is_first, is_last) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, true) => Operation::ReadResponseLast,
            (false, false) => Operation::ReadResponseMiddle,
        };
        let mut headers = Headers::NONE;
        if operation.has_aeth() {
            headers.aeth = Some(AethRepr {
                syndrome: AckSyndrome::ACK,
                msn,
            });
        }
        let outgoing = answer(core, operation, self.psn, headers);
        core.transmit_filled(host, &outgoing, bytes, |host, out| {
            if out.is_empty() {
                return Ok(());
            }
            host.key_read(self.rkey, self.scope, self.va, out)
        })?;
        self.psn = self.psn.advance(1);
        self.va = self.va.wrapping_add(u64::from(sent));
        self.left -= sent;
        self.is_first = false;
        Ok(is_last)
    }
}

/// Returns the packet of an answer. The payload is empty.
fn answer(core: &Core, operation: Operation, psn: Psn, headers: Headers) -> Outgoing<'static> {
    let opcode = match core.service {
        Service::Xrc => Opcode::xrc(operation),
        Service::Rc | Service::Uc | Service::Ud | Service::Gsi | Service::Smi | Service::Umr => {
            Opcode::rc(operation)
        }
    };
    let (ack_request, solicited) = (false, false);
    Outgoing {
        opcode,
        psn,
        ack_request,
        solicited,
        headers,
        payload: &[],
    }
}
