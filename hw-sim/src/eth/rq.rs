//! Receive queues: a ring of WQEs into which frames are scattered.

use super::State;
use super::rss::Hash;
use crate::host::{Host, KeyScope};
use crate::qp::receive_queue::{ReceiveQueue, ScatterError, TakeError};
use crate::qp::ring::{Ring, Rings};
use crate::umem::Places;
use crate::wire::frame::TAG;
use mlx_prm::{Cqe64, CqeOpcode, ErrCqe, Rqc, Syndrome};

/// User index that means that the CQE has the format of CQE version 0.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Entry of the receive queue table.
pub struct RqSlot {
    /// The queue; `None` while one of its methods runs.
    pub rq: Option<Box<Rq>>,
    /// Number of the queue's completion queue.
    pub cqn: u32,
    /// Protection domain; `None` for a queue that drops all frames.
    pub pd: Option<u32>,
    /// User memory that contains ring and record.
    pub places: Places,
}

/// A receive queue.
#[derive(Debug)]
pub struct Rq {
    pub(crate) number: u32,
    pub(crate) state: State,
    pub(crate) context: Rqc,
    pub(crate) rings: Rings,
    pub(crate) queue: ReceiveQueue,
}

/// Fields of a received frame's CQE besides its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of the frame.
    pub hash: Hash,
    /// One's complement sum of the IP packet, or of everything after the Ethernet header (`cqe_checksum_full`).
    pub check_sum: u16,
    /// `hds_ip_ext`.
    pub ok: u8,
    /// `l4_l3_hdr_type`, without the VLAN bit.
    pub header_types: u8,
    /// VLAN tag of the frame, which may be stripped.
    pub vlan: Option<u16>,
    /// Flow tag of the flow table entry.
    pub flow_tag: u32,
}

/// Result of receiving a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The frame was written to memory.
    Whole,
    /// The frame is lost, because no WQE was posted.
    NoWqe,
    /// The frame is lost, because the queue is not ready.
    Idle,
    /// The frame is lost, because the doorbell record or the WQE is invalid, or the frame does not fit.
    Failed,
}

impl Rq {
    fn scope(&self) -> KeyScope {
        KeyScope {
            pd: self.context.wq().pd(),
            qpn: self.number,
            remote: false,
            atomic: false,
            rlky: self.context.rlky(),
        }
    }

    /// Scatters a frame into the next WQE.
    pub fn receive(&mut self, frame: &[u8], report: &Report, host: &mut dyn Host) -> Taken {
        if self.state != State::Ready {
            return Taken::Idle;
        }
        let scope = self.scope();
        let mut wqe = match self.queue.take_own(&self.rings, scope, host) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return Taken::NoWqe,
            Err(error) => {
                if error == TakeError::Record {
                    host.driver_bug(format!(
                        "RQ {:#x}: doorbell record beyond the ring",
                        self.number
                    ));
                }
                self.fail(host);
                return Taken::Failed;
            }
        };
        let stripped = report.vlan.filter(|_| !self.context.vsd());
        let written = if stripped.is_some() {
            wqe.append(host, &frame[..TAG.start])
                .and_then(|()| wqe.append(host, &frame[TAG.end..]))
        } else {
            wqe.append(host, frame)
        };
        match written {
            Ok(()) => {
                // CAST: a frame is at most the port's MTU.
                let bytes = u32::try_from(wqe.written).unwrap_or(u32::MAX);
                self.complete(wqe.counter, bytes, stripped, report, host);
                Taken::Whole
            }
            Err(ScatterError::TooLong) => {
                // The frame does not fit. The queue stays ready (Linux recovers the queue after other syndromes only,
                // `cqe_syndrome_needs_recover`).
                self.error(wqe.counter, Syndrome::LOCAL_LENGTH_ERR, host);
                Taken::Failed
            }
            Err(ScatterError::Key(error)) => {
                host.driver_bug(format!("RQ {:#x}: {error}", self.number));
                self.error(wqe.counter, Syndrome::LOCAL_PROT_ERR, host);
                self.fail(host);
                Taken::Failed
            }
        }
    }

    fn user_index(&self, host: &dyn Host) -> u32 {
        let index = self.context.user_index();
        if host.cqe_version() == 1 && index != NO_USER_INDEX {
            index
        } else {
            0
        }
    }

    fn complete(
        &self,
        counter: u16,
        bytes: u32,
        stripped: Option<u16>,
        report: &Report,
        host: &mut dyn Host,
    ) {
        let mut cqe = Cqe64::new();
        cqe.set_rx_hash_result(report.hash.value)
            .set_rx_hash_type(report.hash.kind)
            .set_check_sum(report.check_sum)
            .set_hds_ip_ext(report.ok)
            .set_l4_l3_hdr_type(report.header_types | u8::from(stripped.is_some()))
            .set_vlan_info(stripped.unwrap_or(0))
            .set_srqn_uidx(self.user_index(host))
            .set_byte_cnt(bytes)
            .set_timestamp(host.now())
            .set_qpn(report.flow_tag)
            .set_wqe_counter(self.rings.cqe_counter(host, counter))
            .set_op_own_parts(CqeOpcode::RESP_SEND, 0, false, false);
        host.complete(self.context.cqn(), cqe, false);
    }

    fn error(&self, counter: u16, syndrome: Syndrome, host: &mut dyn Host) {
        let mut cqe = ErrCqe::new();
        cqe.set_srqn_uidx(self.user_index(host))
            .set_syndrome(syndrome.0)
            .set_qpn(self.number)
            .set_wqe_counter(self.rings.cqe_counter(host, counter))
            .set_op_own(CqeOpcode::RESP_ERR.0 << 4);
        host.complete(self.context.cqn(), cqe.into(), true);
    }

    /// Moves the queue to ERR. Flushes posted WQEs if the context has `flush_in_error_en`.
    pub fn fail(&mut self, host: &mut dyn Host) {
        self.state = State::Error;
        if !self.context.flush_in_error_en() {
            return;
        }
        // At most one full ring is flushed, even if software keeps advancing the record.
        let most = self.rings.receive.map_or(0, Ring::entries);
        for _ in 0..most {
            let Ok(Some(counter)) = self.queue.skip(&self.rings, host) else {
                return;
            };
            self.error(counter, Syndrome::WR_FLUSH_ERR, host);
        }
    }

    pub(crate) fn query(&self) -> Rqc {
        let (taken, posted) = self.queue.counters();
        let mut context = self.context.clone();
        context.set_state(self.state.code());
        context
            .wq_mut()
            .set_hw_counter(u32::from(taken))
            .set_sw_counter(u32::from(posted));
        context
    }
}

impl Rq {
    /// Returns the counter set in which frames without a WQE are counted.
    pub fn counter_set(&self) -> u32 {
        self.context.counter_set_id()
    }
}
