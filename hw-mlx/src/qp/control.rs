//! Queue pair commands: creation, transitions, destruction.
//!
//! The contents of the commands are in [`super::context`]. This module determines the order in which they are sent and
//! their effects on the queues. A reliable queue pair is created in INIT, so that the caller can post receives before
//! the peer knows the queue pair.
//!
//! A reset discards all outstanding work. First 2RST is sent, after which the device writes no more entries for the
//! queue pair. Then the doorbell record is set to zero, and RST2INIT is sent. Last, the completion queues are cleaned
//! and the indices start from zero, as they do in the device. The record is zero and the caller posts nothing
//! meanwhile, so the cleaning removes no entry of a new request. Linux and rdma-core clean between 2RST and RST2INIT.
//! Here cleaning is last: if RST2INIT is refused, entries and indices are still there, and the caller reports which
//! requests are done and which are lost.

use std::sync::Arc;

use rdma_types::{Path, Psn, Qpn, QueueSizes, ReadyToReceive, ReadyToSend};

use super::context::{HOP_LIMIT, QpFacts, ReceiveSource};
use super::{PathUse, Qp, RecvQueue, RecvSizes, SendQueue, SendSizes};
use crate::caps::log_reads;
use crate::cq::{Cq, Cqe};
use crate::device::Hca;
use crate::error::{CmdError, MlxError};
use crate::ring::{Lent, RingMemory};
use crate::srq::Srq;
use crate::uar::Doorbells;
use mlx_prm::{
    CmdStatus, CreateQpIn, DestroyQpIn, Init2RtrQpIn, Qpc, QueryQpIn, Rst2InitQpIn, Rtr2RtsQpIn,
    ServiceType, ToErrQpIn, ToRstQpIn,
};

/// Parameters for the creation of a queue pair.
#[derive(Debug)]
pub struct QpRequest<'a> {
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Number of the CQ for requests.
    pub cqn_send: u32,
    /// Number of the CQ for receives.
    pub cqn_receive: u32,
    /// Shared receive queue; `None` if the queue pair has its own receive queue.
    pub srq: Option<&'a Srq>,
    /// Sizes of the queues.
    pub sizes: QueueSizes,
    /// Owner number that CQEs of the queue pair carry.
    pub owner: u32,
}

/// Sends CREATE_QP for a queue pair whose memory is ready.
pub(crate) fn create_qp(
    hca: &mut Hca,
    facts: &QpFacts,
    memory: RingMemory,
) -> Result<(Qpn, Lent<RingMemory>), CmdError> {
    let mut command = CreateQpIn::new();
    command.set_qpc(&facts.create());
    let memory = memory.lend();
    match hca.exec_with(&command, &memory.get().pages()) {
        Ok(answer) => Ok((Qpn::new(answer.qpn()), memory)),
        Err(error) => Err(memory.after(error)),
    }
}

/// Sends RST2INIT.
pub(crate) fn reset_to_init(hca: &mut Hca, qpn: Qpn, context: &Qpc) -> Result<(), CmdError> {
    let mut command = Rst2InitQpIn::new();
    command.set_qpn(qpn.get()).set_qpc(context);
    hca.exec(&command).map(drop)
}

/// Sends INIT2RTR.
pub(crate) fn init_to_rtr(
    hca: &mut Hca,
    qpn: Qpn,
    context: &Qpc,
    opt_param_mask: u32,
) -> Result<(), CmdError> {
    let mut command = Init2RtrQpIn::new();
    command
        .set_qpn(qpn.get())
        .set_opt_param_mask(opt_param_mask)
        .set_qpc(context);
    hca.exec(&command).map(drop)
}

/// Sends RTR2RTS.
pub(crate) fn rtr_to_rts(hca: &mut Hca, qpn: Qpn, context: &Qpc) -> Result<(), CmdError> {
    let mut command = Rtr2RtsQpIn::new();
    command.set_qpn(qpn.get()).set_qpc(context);
    hca.exec(&command).map(drop)
}

/// Sends 2RST.
pub(crate) fn to_reset(hca: &mut Hca, qpn: Qpn) -> Result<(), CmdError> {
    let mut command = ToRstQpIn::new();
    command.set_qpn(qpn.get());
    hca.exec(&command).map(drop)
}

/// Sends 2RST before DESTROY_QP, or before a repair of QP1. A refusal because of the queue pair's state is no error: in
/// RESET, DESTROY_QP works without this step (Linux `destroy_qp_common` omits it there), and so does the repair. QP1 is
/// in RESET if its repair failed half-way. [`Qp::destroy`] knows that state and omits the step itself. Returns whether
/// the device accepted the step.
pub(crate) fn to_reset_at_last(hca: &mut Hca, qpn: Qpn) -> Result<bool, CmdError> {
    match to_reset(hca, qpn) {
        Err(error)
            if matches!(
                error.status(),
                Some(CmdStatus::BAD_QP_STATE | CmdStatus::BAD_RES_STATE)
            ) =>
        {
            tracing::debug!(qpn = qpn.get(), %error, "a queue pair that is in RESET already");
            Ok(false)
        }
        answer => answer.map(|()| true),
    }
}

/// Sends 2ERR.
pub(crate) fn to_error(hca: &mut Hca, qpn: Qpn) -> Result<(), CmdError> {
    let mut command = ToErrQpIn::new();
    command.set_qpn(qpn.get());
    hca.exec(&command).map(drop)
}

/// Sends DESTROY_QP.
pub(crate) fn destroy_qp(hca: &mut Hca, qpn: Qpn) -> Result<(), CmdError> {
    let mut command = DestroyQpIn::new();
    command.set_qpn(qpn.get());
    hca.exec(&command).map(drop)
}

/// Reads a queue pair's context from the device: state, PSNs, counters.
///
/// # Errors
/// Device refusal.
pub fn query(hca: &mut Hca, qpn: Qpn) -> Result<Qpc, CmdError> {
    let mut command = QueryQpIn::new();
    command.set_qpn(qpn.get());
    hca.exec(&command).map(|answer| answer.qpc().clone())
}

/// Parameters of a queue pair that come from the device.
pub(crate) struct DeviceFacts {
    pub(crate) uar: u32,
    pub(crate) ts_format: u32,
    pub(crate) log_max_message: u32,
    pub(crate) log_max_reads_in: u32,
    pub(crate) log_max_reads_out: u32,
    pub(crate) atomics: bool,
    pub(crate) counter_set: u32,
}

impl DeviceFacts {
    pub(crate) fn of(hca: &Hca) -> Self {
        let general = hca.caps().general();
        // If the capability `qp_ts_format` is not 0, `ts_format` 1 selects the device's default. Else 1 is reserved.
        let ts_format = u32::from(
            hca.caps()
                .roce()
                .is_some_and(|roce| roce.qp_ts_format() != 0),
        );
        Self {
            uar: hca.uar_index().get(),
            ts_format,
            log_max_message: general.log_max_msg(),
            log_max_reads_in: log_reads(general.log_max_ra_req_qp()),
            log_max_reads_out: log_reads(general.log_max_ra_res_qp()),
            atomics: hca.caps().atomics(),
            counter_set: hca.counter_set().unwrap_or(0),
        }
    }

    /// Returns the parameters of a reliable queue pair. The numbers are its protection domain, its CQs for requests and
    /// for receives, and its owner.
    pub(super) fn with(
        &self,
        (pd, cqn_send, cqn_receive, user_index): (u32, u32, u32, u32),
        receive: ReceiveSource,
        send: &SendSizes,
        memory: &RingMemory,
    ) -> QpFacts {
        QpFacts {
            service: ServiceType::RC,
            pd,
            uar: self.uar,
            cqn_send,
            cqn_receive,
            user_index,
            receive,
            log_send_blocks: send.ring_blocks.ilog2(),
            log_page: memory.log_page,
            record: memory.record_address(),
            ts_format: self.ts_format,
            log_max_message: self.log_max_message,
            log_max_reads_in: self.log_max_reads_in,
            log_max_reads_out: self.log_max_reads_out,
            atomics: self.atomics,
            counter_set: self.counter_set,
        }
    }
}

/// Returns the offset of the send ring: behind a receive ring of this many bytes, if the queue pair has one.
pub(super) fn send_base(own_receives: bool, recv_bytes: usize) -> usize {
    if own_receives {
        recv_bytes.next_multiple_of(64)
    } else {
        0
    }
}

impl ReceiveSource {
    /// Returns the source of a queue pair without a shared receive queue.
    pub(super) fn own(own_receives: bool, sizes: &RecvSizes) -> Self {
        if !own_receives {
            return Self::None;
        }
        Self::Own {
            log_entries: sizes.entries.ilog2(),
            log_stride: sizes.stride.ilog2(),
        }
    }
}

/// Returns the sizes of the rings of a queue pair. `has_srq` is true if it takes its receives from a shared receive
/// queue.
///
/// # Errors
/// [`MlxError::QueueTooLarge`]: a WQE or a ring is too large for its format.
pub fn ring_sizes(sizes: &QueueSizes, has_srq: bool) -> Result<(SendSizes, RecvSizes), MlxError> {
    let send_sizes = SendSizes::new(
        sizes.max_requests,
        sizes.max_request_segments,
        sizes.max_read_segments,
    )
    .and_then(|ring| {
        if sizes.binds {
            ring.with_binds()
        } else {
            Some(ring)
        }
    })
    .ok_or(MlxError::QueueTooLarge {
        queue: "send queue",
        entries: sizes.max_requests,
        segments: Some(sizes.max_request_segments.max(sizes.max_read_segments)),
    })?;
    // Without own receives there is no receive ring, and the send ring is at offset 0. The software still has a receive
    // queue: its capacity is 0, so it is always full and accesses no memory.
    let (max_recvs, recv_segments) = if !has_srq && sizes.max_recvs > 0 {
        (sizes.max_recvs, sizes.max_recv_segments)
    } else {
        (0, 1)
    };
    let recv_sizes = RecvSizes::new(max_recvs, recv_segments).ok_or(MlxError::QueueTooLarge {
        queue: "receive queue",
        entries: max_recvs,
        segments: Some(recv_segments),
    })?;
    Ok((send_sizes, recv_sizes))
}

impl Qp {
    /// Creates a queue pair and brings it to INIT.
    ///
    /// # Errors
    /// There is no memory, or the device refuses. [`MlxError::QueueTooLarge`]: a WQE or a ring is too large for its
    /// format. This function does not check the sizes against the device's limits; the caller does.
    pub fn create(
        hca: &mut Hca,
        doorbells: &Doorbells,
        request: &QpRequest<'_>,
    ) -> Result<Self, MlxError> {
        let (send_sizes, recv_sizes) = ring_sizes(&request.sizes, request.srq.is_some())?;
        let own_receives = recv_sizes.max_recvs > 0;
        let send_base = send_base(own_receives, recv_sizes.bytes());
        let memory = RingMemory::alloc_for_good(hca.arena(), send_base + send_sizes.bytes())?;
        let receive = match request.srq {
            Some(srq) => ReceiveSource::Shared(srq.rmpn()),
            None => ReceiveSource::own(own_receives, &recv_sizes),
        };
        let facts = DeviceFacts::of(hca).with(
            (
                request.pd,
                request.cqn_send,
                request.cqn_receive,
                request.owner,
            ),
            receive,
            &send_sizes,
            &memory,
        );
        let (qpn, memory) = create_qp(hca, &facts, memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let qp = Self {
            send: SendQueue::new(send_sizes, ring, send_base, record, doorbells, qpn.get()),
            recv: RecvQueue::new(recv_sizes, ring, record, qpn.get()),
            qpn,
            facts,
            memory,
            in_reset: false,
            path: None,
            returns: request.srq.map(Srq::returns),
            unmatched_entries: 0,
        };
        if let Err(error) = reset_to_init(hca, qpn, &facts.reset_to_init()) {
            match destroy_qp(hca, qpn) {
                Ok(()) => drop(qp.memory.give_back()),
                Err(second) => {
                    tracing::warn!(qpn = qpn.get(), %second, "a half-made queue pair stays")
                }
            }
            return Err(error.into());
        }
        Ok(qp)
    }

    /// Moves the queue pair from INIT to RTR. `mac` is that of the next station on the link: the peer or a gateway. The
    /// queue pair holds `peer` until it is stopped. While `peer` is held, the peer is marked as in use.
    ///
    /// # Errors
    /// Device refusal. [`MlxError::NoSuchGid`]: our address was removed.
    pub fn ready_to_receive(
        &mut self,
        hca: &mut Hca,
        attributes: &ReadyToReceive,
        mac: [u8; 6],
        peer: Option<Arc<()>>,
    ) -> Result<(), MlxError> {
        let index = attributes.path.source_gid_index;
        let source = hca.hold_gid(index)?;
        let (context, mask) = self.facts.init_to_rtr(self.qpn, attributes, mac);
        self.path = Some(PathUse {
            _source: source,
            _peer: peer,
            index,
        });
        Ok(init_to_rtr(hca, self.qpn, &context, mask)?)
    }

    /// Moves the queue pair from RTR to RTS.
    ///
    /// # Errors
    /// Device refusal.
    pub fn ready_to_send(
        &mut self,
        hca: &mut Hca,
        attributes: &ReadyToSend,
    ) -> Result<(), MlxError> {
        Ok(rtr_to_rts(
            hca,
            self.qpn,
            &self.facts.rtr_to_rts(attributes),
        )?)
    }

    /// Moves the queue pair from INIT to RTS, connected to itself. With `forced`, the device loops its packets back
    /// whatever their addresses are (capability `fl_rc_qp_when_roce_enabled`). Without `forced`, or if the device
    /// refuses forced loopback, the packets are sent to our own address at index 0. Returns whether loopback is forced.
    ///
    /// # Errors
    /// Device refusal.
    pub(crate) fn connect_to_itself(
        &mut self,
        hca: &mut Hca,
        forced: bool,
    ) -> Result<bool, MlxError> {
        let gids = hca.gids();
        let own = gids.first().ok_or(MlxError::NoSuchGid { index: 0 })?;
        let receive = ReadyToReceive {
            path: Path {
                source_gid_index: own.index,
                gid: own.gid,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
                flow_label: 0,
                priority: own.priority(),
            },
            remote_qpn: self.qpn,
            receive_psn: Psn::masked(0),
            mtu: hca.port().path_mtu,
            reads_in: 1,
            min_rnr_timer: 12,
        };
        let mut looped = false;
        if forced {
            let (context, mask) = self.facts.init_to_rtr_looped(self.qpn, &receive);
            match init_to_rtr(hca, self.qpn, &context, mask) {
                Ok(()) => looped = true,
                // The device refused the command, so the queue pair is still in INIT.
                Err(error) if error.status().is_some() => {
                    tracing::warn!(%error, "loopback is not forced: by the own address");
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !looped {
            self.ready_to_receive(hca, &receive, own.mac, None)?;
        }
        let send = ReadyToSend {
            send_psn: Psn::masked(0),
            reads_out: 1,
            retry_count: 7,
            rnr_retry: 6,
            ack_timeout: 14,
        };
        self.ready_to_send(hca, &send)?;
        Ok(looped)
    }

    /// Moves the queue pair from any state to ERR. All later requests, and those outstanding, complete as flushed.
    ///
    /// If the queue pair is in RESET, the device has discarded the outstanding requests, and this call forgets them and
    /// starts again at index 0. So the caller first polls the entries already written, and takes the rest by
    /// [`Qp::take_lost`]. An entry that is still unpolled would be taken for that of a later request.
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state.
    pub fn to_error(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if self.in_reset {
            // The device begins at index 0 after a reset.
            self.send.reset();
            self.recv.reset();
        }
        to_error(hca, self.qpn)?;
        self.path = None;
        self.in_reset = false;
        Ok(())
    }

    /// Moves the queue pair from any state to RESET and then to INIT, and discards its outstanding work.
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state or is in RESET.
    pub fn reset(
        &mut self,
        hca: &mut Hca,
        request_cq: &mut Cq,
        recv_cq: Option<&mut Cq>,
    ) -> Result<(), MlxError> {
        self.enter_reset(hca)?;
        self.enter_init(hca)?;
        self.forget_work(request_cq, recv_cq);
        Ok(())
    }

    /// Moves a queue pair that has not reached RTS back to INIT. Its receives stay posted: the device has consumed none
    /// of them, so it starts with them again. Returns `false` if the device has consumed a receive, for a packet that
    /// the peer could not have sent yet. The queue pair then stays in RESET, and the device has discarded the other
    /// receives.
    ///
    /// # Errors
    /// Device refusal; the queue pair keeps its state or is in RESET, and the call may be repeated.
    pub fn rewind(
        &mut self,
        hca: &mut Hca,
        request_cq: &Cq,
        recv_cq: Option<&Cq>,
    ) -> Result<bool, MlxError> {
        self.enter_reset(hca)?;
        let ours = |entry: &Cqe| self.owns(entry);
        let consumed = !self.recv.is_untouched() || recv_cq.unwrap_or(request_cq).holds(ours);
        if consumed {
            return Ok(false);
        }
        self.enter_init(hca)?;
        self.recv.publish();
        Ok(true)
    }

    /// Sends 2RST, unless the queue pair is in RESET already.
    fn enter_reset(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if !self.in_reset {
            to_reset(hca, self.qpn)?;
            self.path = None;
            self.in_reset = true;
        }
        Ok(())
    }

    /// Sends RST2INIT with a doorbell record of zero, so the device sees no posted work.
    fn enter_init(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        self.send.withhold();
        self.recv.withhold();
        reset_to_init(hca, self.qpn, &self.facts.reset_to_init())?;
        self.in_reset = false;
        Ok(())
    }

    /// Discards outstanding work and unpolled entries after the device has reset the queue pair.
    fn forget_work(&mut self, request_cq: &mut Cq, recv_cq: Option<&mut Cq>) {
        self.clean(request_cq, recv_cq);
        self.send.reset();
        self.recv.reset();
    }

    /// Destroys the queue pair and discards its outstanding work. A second call does nothing.
    ///
    /// # Errors
    /// Device refusal. The queue pair keeps its state, or is in RESET if only the last step was refused, and may be
    /// destroyed again. If it is dropped instead, its memory stays out of use.
    pub fn destroy(
        &mut self,
        hca: &mut Hca,
        request_cq: &mut Cq,
        recv_cq: Option<&mut Cq>,
    ) -> Result<(), MlxError> {
        if self.memory.is_returned() {
            return Ok(());
        }
        if !self.in_reset {
            // Linux, too, sends 2RST first if the queue pair is not in RESET. Nothing stays in flight afterwards.
            self.in_reset = to_reset_at_last(hca, self.qpn)?;
        }
        destroy_qp(hca, self.qpn)?;
        self.path = None;
        self.forget_work(request_cq, recv_cq);
        self.memory.returned();
        Ok(())
    }

    /// Removes unpolled entries of this queue pair from its completion queues.
    fn clean(&self, request_cq: &mut Cq, recv_cq: Option<&mut Cq>) {
        request_cq.clean(|entry| self.disown(entry));
        if let Some(cq) = recv_cq {
            cq.clean(|entry| self.disown(entry));
        }
    }
}
