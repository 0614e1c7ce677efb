//! Writing the completion queue entries of a queue pair.

use super::core::Core;
use super::scatter_to_cqe;
use crate::host::{Host, XrcSource};
use crate::q_counters::QCounter;
use crate::wire::Vlan;
use mlx_prm::{Cqe64, CqeOpcode, ErrCqe, Syndrome, WqeOpcode};

/// User index with which the device writes CQEs as for CQE version 0.
const NO_USER_INDEX: u32 = 0xff_ffff;
/// `rq_type` of a queue pair that receives from a shared receive queue.
pub(super) const RQ_TYPE_SRQ: u32 = 1;

/// The facts about a successful receive that its CQE reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt<'a> {
    pub(super) opcode: CqeOpcode,
    /// 16-bit receive counter, or index of the entry in the shared receive queue.
    pub(super) counter: u16,
    pub(super) bytes: u32,
    /// Immediate data, invalidated key, or P_Key of a datagram, depending on the opcode.
    pub(super) immediate: u32,
    pub(super) solicited: bool,
    pub(super) flags_rqpn: u32,
    /// Source LID of an InfiniBand datagram; 0 otherwise.
    pub(super) slid: u16,
    /// VLAN tag of the frame of a datagram on Ethernet.
    pub(super) vlan: Option<Vlan>,
    /// XRC SRQ that the WQE came from, if any.
    pub(super) xrc: Option<XrcSource>,
    /// Data of the message if it is scattered to the CQE; empty otherwise.
    pub(super) in_entry: &'a [u8],
}

impl Core {
    fn user_index(&self, host: &dyn Host) -> u32 {
        let user_index = self.context.user_index();
        if host.cqe_version() == 1 && user_index != NO_USER_INDEX {
            user_index
        } else if self.context.rq_type() == RQ_TYPE_SRQ {
            self.context.srqn_rmpn_xrqn()
        } else {
            0
        }
    }

    /// Returns the completion queue and the user index for a receive. If the WQE came from an XRC SRQ, both are the
    /// SRQ's.
    fn receiver(&self, host: &dyn Host, xrc: Option<XrcSource>) -> (u32, u32) {
        match xrc {
            None => (self.context.cqn_rcv(), self.user_index(host)),
            Some(xrc) if host.cqe_version() == 1 && xrc.user_index != NO_USER_INDEX => {
                (xrc.cqn, xrc.user_index)
            }
            Some(xrc) => (xrc.cqn, xrc.number),
        }
    }

    /// Writes the CQE that completes a send WQE and all WQEs before it. `bytes` is the number of bytes read, and
    /// `in_entry` the data that is scattered to the CQE.
    pub(super) fn complete_send(
        &self,
        host: &mut dyn Host,
        index: u16,
        opcode: WqeOpcode,
        bytes: u32,
        in_entry: &[u8],
        event: bool,
    ) {
        let mut cqe = Cqe64::new();
        cqe.set_srqn_uidx(self.user_index(host))
            .set_byte_cnt(bytes)
            .set_timestamp(host.now())
            .set_send_wqe_opcode(opcode.bits())
            .set_qpn(self.qpn)
            .set_wqe_counter(index)
            .set_op_own_parts(CqeOpcode::REQ, 0, event, false);
        let (cqn, most) = (self.context.cqn_snd(), self.in_entry.answers);
        scatter_to_cqe::complete(host, cqn, cqe, in_entry, most, event);
    }

    /// Writes the error CQE of a send WQE that failed or is flushed.
    pub(super) fn fail_send(
        &self,
        host: &mut dyn Host,
        index: u16,
        opcode: WqeOpcode,
        syndrome: Syndrome,
    ) {
        self.count(host, QCounter::ReqCqeError);
        if let Some(what) = QCounter::of_send(syndrome) {
            self.count(host, what);
        }
        let user_index = self.user_index(host);
        let cqe = self.error(user_index, CqeOpcode::REQ_ERR, index, opcode, syndrome);
        host.complete(self.context.cqn_snd(), cqe, true);
    }

    /// Writes the CQE of a received message.
    pub(super) fn complete_receive(&self, host: &mut dyn Host, receipt: &Receipt<'_>) {
        let (cqn, user_index) = self.receiver(host, receipt.xrc);
        let mut cqe = Cqe64::new();
        cqe.set_flags_rqpn(receipt.flags_rqpn)
            .set_slid(receipt.slid)
            // Bit 0: the frame had a VLAN tag (Linux `drivers/infiniband/hw/mlx5/cq.c` `handle_responder`).
            .set_l4_l3_hdr_type(u8::from(receipt.vlan.is_some()))
            .set_vlan_info(receipt.vlan.map_or(0, Vlan::control))
            .set_srqn_uidx(user_index)
            .set_imm_inval_pkey(receipt.immediate)
            .set_byte_cnt(receipt.bytes)
            .set_timestamp(host.now())
            .set_qpn(self.qpn)
            .set_wqe_counter(self.rings.cqe_counter(host, receipt.counter))
            .set_op_own_parts(receipt.opcode, 0, receipt.solicited, false);
        let (data, most) = (receipt.in_entry, self.in_entry.receives);
        scatter_to_cqe::complete(host, cqn, cqe, data, most, receipt.solicited);
    }

    /// Writes the error CQE of a receive WQE that failed or is flushed.
    pub(super) fn fail_receive(
        &self,
        host: &mut dyn Host,
        counter: u16,
        xrc: Option<XrcSource>,
        syndrome: Syndrome,
    ) {
        self.count(host, QCounter::RespCqeError);
        if let Some(what) = QCounter::of_receive(syndrome) {
            self.count(host, what);
        }
        let (cqn, user_index) = self.receiver(host, xrc);
        let opcode = WqeOpcode::NOP;
        let counter = self.rings.cqe_counter(host, counter);
        let cqe = self.error(user_index, CqeOpcode::RESP_ERR, counter, opcode, syndrome);
        host.complete(cqn, cqe, true);
    }

    fn error(
        &self,
        user_index: u32,
        side: CqeOpcode,
        counter: u16,
        opcode: WqeOpcode,
        syndrome: Syndrome,
    ) -> Cqe64 {
        let mut cqe = ErrCqe::new();
        cqe.set_srqn_uidx(user_index)
            .set_syndrome(syndrome.0)
            .set_send_wqe_opcode(opcode.bits())
            .set_qpn(self.qpn)
            .set_wqe_counter(counter)
            .set_op_own(side.0 << 4);
        cqe.into()
    }
}
