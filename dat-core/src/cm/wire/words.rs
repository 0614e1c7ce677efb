//! Text of a message, and its communication IDs.

use core::fmt;

use super::{Mad, Message};
use crate::provider::Qpn;

/// The communication IDs in a message, which identify its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// The sender's communication ID; 0 in a refusal by a sender without one.
    pub local: u32,
    /// The receiver's communication ID; `None` in a REQ, whose sender does not know it.
    pub remote: Option<u32>,
}

impl Message {
    /// Returns the communication IDs.
    #[must_use]
    pub const fn comm_ids(&self) -> CommIds {
        let (local, remote) = match self {
            Self::Req(req) => (req.local_comm_id, None),
            Self::Mra(mra) => (mra.local_comm_id, Some(mra.remote_comm_id)),
            Self::Rej(rej) => (rej.local_comm_id, Some(rej.remote_comm_id)),
            Self::Rep(rep) => (rep.local_comm_id, Some(rep.remote_comm_id)),
            Self::Rtu(rtu) => (rtu.local_comm_id, Some(rtu.remote_comm_id)),
            Self::Dreq(dreq) => (dreq.local_comm_id, Some(dreq.remote_comm_id)),
            Self::Drep(drep) => (drep.local_comm_id, Some(drep.remote_comm_id)),
        };
        CommIds { local, remote }
    }

    /// Returns the sender's queue pair, which only REQ and REP contain.
    #[must_use]
    pub const fn queue_pair(&self) -> Option<Qpn> {
        match self {
            Self::Req(req) => Some(req.local_qpn),
            Self::Rep(rep) => Some(rep.local_qpn),
            Self::Mra(_) | Self::Rej(_) | Self::Rtu(_) | Self::Dreq(_) | Self::Drep(_) => None,
        }
    }

    /// Returns the message's name in IBTA volume 1, chapter 12.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Req(req) => write!(
                f,
                " of queue pair {} for service {:#x}",
                req.local_qpn, req.service_id
            ),
            Self::Rep(rep) => write!(f, " of queue pair {}", rep.local_qpn),
            Self::Rej(rej) => write!(f, ", {:?} (reason {})", rej.reason, rej.reason.code()),
            Self::Dreq(dreq) => write!(f, " to queue pair {}", dreq.remote_qpn),
            Self::Mra(_) | Self::Rtu(_) | Self::Drep(_) => Ok(()),
        }?;
        let ids = self.comm_ids();
        write!(f, ", communication {:#010x}", ids.local)?;
        ids.remote
            .map_or(Ok(()), |remote| write!(f, " to {remote:#010x}"))
    }
}

/// Returns the description of a datagram. The datagram may have any contents.
#[must_use]
pub fn in_words(mad: &Mad) -> String {
    match Message::parse(mad) {
        Ok((_, message)) => message.to_string(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DreqRepr, MAD_BYTES, RtuRepr};
    use super::*;

    #[test]
    fn a_message_says_its_name_and_whose_it_is() {
        let dreq = Message::Dreq(DreqRepr {
            local_comm_id: 7,
            remote_comm_id: 9,
            remote_qpn: Qpn::new(0x4a),
        });
        assert_eq!(
            in_words(&dreq.to_mad(1)),
            "DREQ to queue pair 0x4a, communication 0x00000007 to 0x00000009"
        );
        let rtu = Message::Rtu(RtuRepr {
            local_comm_id: 1,
            remote_comm_id: 2,
        });
        let ids = rtu.comm_ids();
        assert_eq!((ids.local, ids.remote), (1, Some(2)));
    }

    #[test]
    fn a_datagram_that_is_no_message_says_why() {
        let text = in_words(&[0; MAD_BYTES]);
        assert!(text.contains("not connection management"), "{text}");
    }
}
