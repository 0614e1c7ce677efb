//! Queue pairs of a function that is handed over to another process.
//!
//! The device keeps the connection: it acknowledges, fills posted receives, retransmits, and writes CQEs. The driver
//! keeps what it has to report: the cookies of the outstanding work.
//!
//! The rings' address is not checked if the device returns no page list. A ConnectX-6 Dx returned none for a CQ.
//!
//! A snapshot that lacks the oldest requests or receives, and counts accordingly, is not detected: their CQEs then
//! count as unmatched. The layer that writes a snapshot out protects it by a checksum.

use std::sync::Arc;

use mlx_prm::{Opcode, QpState, Qpc, QueryQpIn, QueryQpOut, ServiceType};
use rdma_types::Qpn;
use zerocopy::IntoBytes;

use super::context::{QpFacts, ReceiveSource};
use super::control::{DeviceFacts, send_base};
use super::{PathUse, Qp, RecvQueue, RecvQueueSnapshot, SendQueue, SendQueueSnapshot};
use crate::bounds::MAX_COUNT;
use crate::device::{Hca, ParkingHca};
use crate::error::{MlxError, ResumeError, ask_twice};
use crate::ring::{RingMemory, RingSnapshot};
use crate::srq::Srq;
use crate::uar::Doorbells;
use crate::window;

/// Name of the table in errors.
const TABLE: &str = "a queue pair";
/// Values of `rq_type`: the queue pair's own ring, a shared receive queue.
const OWN_RECEIVES: u32 = 0;
const SHARED_RECEIVES: u32 = 1;
/// Offset of the page list in the answer to QUERY_QP.
const PAGE_LIST: usize = 0x110;
/// Mask of numbers of 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct QpSnapshot {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Protection domain.
    pub pd: u32,
    /// Number of the CQ for requests.
    pub cqn_send: u32,
    /// Number of the CQ for receives.
    pub cqn_receive: u32,
    /// RMP number of the shared receive queue, if it has one.
    pub rmpn: Option<u32>,
    /// Owner number that CQEs of the queue pair carry.
    pub owner: u32,
    /// Rings and doorbell record.
    pub memory: RingSnapshot,
    /// The send queue.
    pub send: SendQueueSnapshot,
    /// The receive queue.
    pub recv: RecvQueueSnapshot,
    /// True if the queue pair was left in RESET.
    pub in_reset: bool,
    /// Index of our address from which it sends; `None` before RTR, and after it was stopped.
    pub source_gid_index: Option<u8>,
    /// Number of CQEs with its number that matched neither a request nor a receive.
    pub unmatched: u64,
}

impl Qp {
    /// Describes the queue pair for another process. Its memory is the other process's from then on.
    #[must_use]
    pub fn park(mut self, _at_quiet_point: &ParkingHca) -> QpSnapshot {
        let snapshot = self.snapshot();
        self.memory.returned();
        snapshot
    }

    fn snapshot(&self) -> QpSnapshot {
        let memory = self.memory.get();
        QpSnapshot {
            qpn: self.qpn.get(),
            pd: self.facts.pd,
            cqn_send: self.facts.cqn_send,
            cqn_receive: self.facts.cqn_receive,
            rmpn: match self.facts.receive {
                ReceiveSource::Shared(rmpn) => Some(rmpn),
                ReceiveSource::Own { .. } | ReceiveSource::None => None,
            },
            owner: self.facts.user_index,
            memory: memory.snapshot(),
            send: self.send.snapshot(&memory.record),
            recv: self.recv.snapshot(&memory.record),
            in_reset: self.in_reset,
            source_gid_index: self.path.as_ref().map(|path| path.index),
            unmatched: self.unmatched_entries,
        }
    }

    /// Makes the queue pair again, and compares it with the device's. Nothing is posted. `srq` is its shared receive
    /// queue, if it has one. `peer` is held as in [`Qp::ready_to_receive`].
    ///
    /// # Errors
    /// [`ResumeError`]: numbers of the snapshot contradict each other or what is in memory, the memory is not there, or
    /// the device's queue pair is another one or counts differently.
    pub fn resume(
        hca: &mut Hca,
        doorbells: &Doorbells,
        snapshot: &QpSnapshot,
        srq: Option<&Srq>,
        peer: Option<Arc<()>>,
    ) -> Result<Self, ResumeError> {
        let QpSnapshot {
            qpn,
            pd,
            cqn_send,
            cqn_receive,
            rmpn,
            owner,
            ref memory,
            ref send,
            ref recv,
            in_reset,
            source_gid_index,
            unmatched,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let is_possible = qpn.max(pd).max(cqn_send).max(cqn_receive).max(owner) <= NUMBER_MASK
            && rmpn == srq.map(Srq::rmpn)
            && (rmpn.is_none() || recv.sizes.max_recvs == 0)
            && unmatched <= MAX_COUNT;
        if !is_possible {
            return Err(refused(format!(
                "QPN {qpn:#x}, PD {pd:#x}, CQNs {cqn_send:#x} and {cqn_receive:#x}, owner {owner:#x}, RMP {rmpn:x?}, {unmatched} unmatched"
            )));
        }
        let memory = RingMemory::resume(hca.arena(), memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let number = Qpn::new(qpn);
        let announced = (send.announced, recv.announced);
        let recv = RecvQueue::resume(recv, ring, record, qpn)?;
        let recv_sizes = recv.sizes();
        let own_receives = recv_sizes.max_recvs > 0;
        let send_base = send_base(own_receives, recv_sizes.bytes());
        let number_and_fence = (qpn, window::needs_fence(hca));
        let send = SendQueue::resume(send, (ring, send_base), record, doorbells, number_and_fence)?;
        let receive = match srq {
            Some(srq) => ReceiveSource::Shared(srq.rmpn()),
            None => ReceiveSource::own(own_receives, &recv_sizes),
        };
        let facts = DeviceFacts::of(hca).with(
            (pd, cqn_send, cqn_receive, owner),
            receive,
            &send.sizes(),
            memory.get(),
        );
        let path = source_gid_index.map(|index| PathUse {
            _source: hca.hold_gid_again(index),
            _peer: peer,
            index,
        });
        let queue = Self {
            send,
            facts,
            returns: srq.map(Srq::returns),
            unmatched_entries: unmatched,
            qpn: number,
            in_reset,
            recv,
            memory,
            path,
        };
        check(
            hca,
            number,
            queue.memory.get(),
            (&facts, in_reset, source_gid_index),
            (&queue.send, &queue.recv),
            announced,
        )?;
        hca.count_resumed(Opcode::CREATE_QP, qpn)?;
        Ok(queue)
    }
}

/// Compares a queue pair and its queues with the device's. `facts` are its parameters, whether it is to be in RESET,
/// and the index of its source address if it is reliable and connected. `announced` are the counters of sends and
/// receives in the doorbell record.
pub(crate) fn check(
    hca: &mut Hca,
    qpn: Qpn,
    memory: &RingMemory,
    facts: (&QpFacts, bool, Option<u8>),
    queues: (&SendQueue, &RecvQueue),
    announced: (u16, u16),
) -> Result<(), ResumeError> {
    ask_twice(|| {
        let (context, pages) = query_with_pages(hca, qpn, memory.pages().len())?;
        if !memory.is_at(&pages) {
            return Err(ResumeError::changed(format!(
                "queue pair {qpn}: its rings are not at {:#x}",
                memory.ring.iova().0
            )));
        }
        compare(qpn, &context, facts, queues, announced)
    })
}

/// Reads a queue pair's context from the device, and the first `bytes` bytes of its page list. Returns fewer bytes if
/// the answer has no room for them.
fn query_with_pages(hca: &mut Hca, qpn: Qpn, bytes: usize) -> Result<(Qpc, Vec<u8>), ResumeError> {
    let mut command = QueryQpIn::new();
    command.set_qpn(qpn.get());
    let beyond = (PAGE_LIST + bytes).saturating_sub(QueryQpOut::SIZE);
    let answer = hca.exec_reading(&command, &[], beyond);
    let (answer, rest) = answer.map_err(MlxError::from)?;
    let list = answer.as_bytes()[PAGE_LIST..].iter().chain(&rest);
    let list = list.take(bytes).copied().collect();
    Ok((answer.qpc().clone(), list))
}

fn compare(
    qpn: Qpn,
    context: &Qpc,
    (facts, in_reset, source_gid_index): (&QpFacts, bool, Option<u8>),
    (send, recv): (&SendQueue, &RecvQueue),
    (announced, announced_recvs): (u16, u16),
) -> Result<(), ResumeError> {
    let different = |what: String| Err(ResumeError::changed(format!("queue pair {qpn}: {what}")));
    let created = facts.create();
    let (ours, devices) = (shape(&created), shape(context));
    if ours != devices || context.dbr_addr() != facts.record {
        return different(format!(
            "st, pd, cqn_snd, cqn_rcv, user_index, uar_page, log_sq_size, log_page_size, page_offset, rq_type, log_rq_size, log_rq_stride and srqn_rmpn_xrqn are {devices:x?}, and not {ours:x?}; dbr_addr is {:#x}, and not {:#x}",
            context.dbr_addr(),
            facts.record
        ));
    }
    // CAST: the field has four bits.
    #[expect(clippy::cast_possible_truncation, reason = "four bits")]
    let state = QpState(context.state() as u8);
    if (state == QpState::RST) != in_reset {
        return different(format!("its state is {state:?}"));
    }
    // A queue pair in error has flushed its queues, or is about to.
    let moves = [QpState::RTR, QpState::RTS].contains(&state);
    if !moves {
        return Ok(());
    }
    let source = context.primary_address_path().src_addr_index();
    let is_reliable = facts.service == ServiceType::RC;
    if is_reliable && source_gid_index.map(u32::from) != Some(source) {
        return different(format!(
            "it sends from the address at index {source}, and not {source_gid_index:?}"
        ));
    }
    let (all, _) = send.blocks_outstanding(announced);
    let (fetched, known) = (context.hw_sq_wqebb_counter(), context.sw_sq_wqebb_counter());
    let unrung = send.producer().wrapping_sub(announced.into()) & 0xffff;
    let is_right = send.are_counted(announced, known, fetched) && unrung <= u32::from(all);
    if state == QpState::RTS && !is_right {
        return different(format!(
            "it knows the send queue's blocks up to {known:#x} and has fetched those up to {fetched:#x}; the last {all} blocks up to {:#x} are outstanding, and those up to {announced:#x} are announced",
            send.producer()
        ));
    }
    let taken = context.hw_rq_counter().wrapping_sub(recv.completed()) & 0xffff;
    let is_own = matches!(facts.receive, ReceiveSource::Own { .. });
    if is_own && taken.max(recv.unannounced(announced_recvs)) > recv.outstanding() {
        return different(format!(
            "it has taken receives up to {:#x}; {} receives from {:#x} on are outstanding, and those up to {announced_recvs:#x} are announced",
            context.hw_rq_counter(),
            recv.outstanding(),
            recv.completed()
        ));
    }
    Ok(())
}

/// Returns the fields of a context that stay the same from creation on.
fn shape(context: &Qpc) -> [u32; 13] {
    let own = |field: u32| {
        if context.rq_type() == OWN_RECEIVES {
            field
        } else {
            0
        }
    };
    let shared = |field: u32| {
        if context.rq_type() == SHARED_RECEIVES {
            field
        } else {
            0
        }
    };
    [
        context.st(),
        context.pd(),
        context.cqn_snd(),
        context.cqn_rcv(),
        context.user_index(),
        context.uar_page(),
        context.log_sq_size(),
        context.log_page_size(),
        context.page_offset(),
        context.rq_type(),
        own(context.log_rq_size()),
        own(context.log_rq_stride()),
        shared(context.srqn_rmpn_xrqn()),
    ]
}
