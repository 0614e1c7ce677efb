//! The Ethernet part of a function: queues without a queue pair, and the steering between them and the port.
//!
//! ```text
//!   SQ -> TIS -> frame -> link            link -> frame -> flow tables -> TIR -> (RQ table) -> RQ
//! ```
//!
//! A send queue's WQE describes a frame: headers inline, and data behind pointers. The device computes checksums and
//! segments the data if the WQE requests it ([`transmit`]). A received frame that is not RoCE is looked up in the flow
//! tables, starting at the root ([`flow`], [`matching`]). The TIR that the frame reaches names the receive queue, or
//! selects a receive queue by a hash ([`rss`]), and the frame is written to the queue's next WQE ([`receive`]). The
//! peer's bytes are arbitrary, so every field of a frame is checked before use ([`frame`](crate::wire::frame)).
//!
//! Each object has a module here, and a module of the same name in `cmd` with its commands. References are counted:
//! those of TIS and TIR to their transport domain, of queues to CQ, PD, UAR, TIS, counter set and umems, of a TIR to
//! its RQ or RQ table, of an RQ table to its RQs, of a flow entry to its TIRs, tables and counters, of a flow table to
//! its miss table.

pub mod checksum;
pub mod flow;
pub mod matching;
pub mod receive;
pub mod rq;
pub mod rqt;
pub mod rss;
pub mod segment;
pub mod sq;
pub mod steering;
pub mod tir;
pub mod tis;
pub mod transmit;
mod work;

use crate::capabilities::Capabilities;
use crate::cmd::refusal::{Refusal, refuse};
use crate::objects::Table;

/// First number of send queues. Queue pair numbers are lower, because a doorbell names a send queue or a queue pair by
/// its number alone.
pub const FIRST_SQN: u32 = 0x80_0003;
const LAST: u32 = 0x00ff_fffe;
/// State of a receive or send queue (PRM, RQC and SQC `state`).
///
/// ```text
///            +--------------------------------+
///            v                                |
///   RST ---> RDY ---> ERR        any -> RST, any -> ERR; ERR -> RDY only by way of RST,
///                                because the indices of a queue in error mean nothing
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The queue reads no WQE.
    #[default]
    Reset,
    /// The queue sends or receives frames.
    Ready,
    /// The queue flushes its WQEs.
    Error,
}

impl State {
    /// Returns the state for a context's code.
    pub const fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Reset),
            1 => Some(Self::Ready),
            3 => Some(Self::Error),
            _ => None,
        }
    }

    /// Returns a context's code for the state.
    pub const fn code(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Ready => 1,
            Self::Error => 3,
        }
    }

    /// Returns whether MODIFY permits this transition.
    pub const fn may_become(self, next: Self) -> bool {
        !matches!((self, next), (Self::Error, Self::Ready))
    }

    /// Returns the state after a MODIFY command, in which software names the current state and the next.
    pub(crate) fn modified(self, present: u32, next: u32) -> Result<Self, Refusal> {
        if present != self.code() {
            return Err(refuse!(
                BAD_RES_STATE,
                "queue is in another state",
                "{self:?}"
            ));
        }
        let next = Self::of(next).ok_or_else(|| refuse!(BAD_PARAM, "queue state", "{next}"))?;
        if !self.may_become(next) {
            return Err(refuse!(
                BAD_RES_STATE,
                "no such transition",
                "{self:?} to {next:?}"
            ));
        }
        Ok(next)
    }
}

/// The objects of a function's Ethernet part.
pub struct EthObjects {
    /// Transport interfaces, send.
    pub tises: Table<tis::Tis>,
    /// Transport interfaces, receive.
    pub tirs: Table<tir::Tir>,
    /// RQ tables.
    pub rqts: Table<rqt::Rqt>,
    /// Receive queues.
    pub rqs: Table<rq::RqSlot>,
    /// Send queues.
    pub sqs: Table<sq::SqSlot>,
    /// Flow tables of the receive side.
    pub flow: flow::FlowTables,
    /// Flow counters.
    pub counters: Table<flow::FlowCounter>,
    /// Number of frames that steering sent to no TIR (QUERY_VNIC_ENV `nic_receive_steering_discard`).
    pub discarded: u64,
}

impl EthObjects {
    /// Returns empty tables, with the limits of the current capabilities.
    pub fn new(caps: &Capabilities) -> Self {
        let general = &caps.general;
        let some = |log: u32| 1_u32.checked_shl(log).unwrap_or(u32::MAX);
        Self {
            tises: Table::new("TIS", 0x91, LAST, some(general.log_max_tis())),
            tirs: Table::new("TIR", 0xa1, LAST, some(general.log_max_tir())),
            rqts: Table::new("RQ table", 0xb1, LAST, some(general.log_max_rqt())),
            rqs: Table::new("RQ", 0xc1, LAST, some(general.log_max_rq())),
            sqs: Table::new("SQ", FIRST_SQN, LAST, some(general.log_max_sq())),
            flow: flow::FlowTables::new(),
            counters: Table::new("flow counter", 0x104, LAST, flow::MOST_COUNTERS),
            discarded: 0,
        }
    }

    /// Returns the name of each kind of object, and the number of its objects.
    pub fn census(&self) -> [(&'static str, usize); 7] {
        [
            (self.tises.kind(), self.tises.len()),
            (self.tirs.kind(), self.tirs.len()),
            (self.rqts.kind(), self.rqts.len()),
            (self.rqs.kind(), self.rqs.len()),
            (self.sqs.kind(), self.sqs.len()),
            (self.flow.tables.kind(), self.flow.tables.len()),
            (self.counters.kind(), self.counters.len()),
        ]
    }

    /// Sets the owner of the objects that the next commands create.
    pub fn act_for(&mut self, owner: u16) {
        self.tises.act_for(owner);
        self.tirs.act_for(owner);
        self.rqts.act_for(owner);
        self.rqs.act_for(owner);
        self.sqs.act_for(owner);
        self.flow.tables.act_for(owner);
        self.counters.act_for(owner);
    }

    /// Returns the kind and number of each object that a user context owns.
    pub fn owned_by(&self, owner: u16) -> impl Iterator<Item = (&'static str, u32)> {
        self.tises
            .owned_by(owner)
            .chain(self.tirs.owned_by(owner))
            .chain(self.rqts.owned_by(owner))
            .chain(self.rqs.owned_by(owner))
            .chain(self.sqs.owned_by(owner))
            .chain(self.flow.tables.owned_by(owner))
            .chain(self.counters.owned_by(owner))
    }

    /// Removes every object.
    pub fn clear(&mut self) {
        self.tises.clear();
        self.tirs.clear();
        self.rqts.clear();
        self.rqs.clear();
        self.sqs.clear();
        self.flow.clear();
        self.counters.clear();
        self.discarded = 0;
    }

    /// Applies limits that SET_HCA_CAP may have lowered.
    pub fn set_limits(&mut self, caps: &Capabilities) {
        let general = &caps.general;
        let some = |log: u32| 1_u32.checked_shl(log).unwrap_or(u32::MAX);
        self.tises.set_limit(some(general.log_max_tis()));
        self.tirs.set_limit(some(general.log_max_tir()));
        self.rqts.set_limit(some(general.log_max_rqt()));
        self.rqs.set_limit(some(general.log_max_rq()));
        self.sqs.set_limit(some(general.log_max_sq()));
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_queue_in_error_becomes_ready_only_by_way_of_reset() {
        use State::{Error, Ready, Reset};
        for present in [Reset, Ready, Error] {
            for next in [Reset, Ready, Error] {
                let allowed = (present, next) != (Error, Ready);
                assert_eq!(present.may_become(next), allowed, "{present:?} {next:?}");
                assert_eq!(
                    present.modified(present.code(), next.code()).is_ok(),
                    allowed
                );
            }
        }
        assert!(Reset.modified(Ready.code(), Ready.code()).is_err());
        assert!(Reset.modified(Reset.code(), 2).is_err());
    }
}
