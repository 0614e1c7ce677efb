//! Unreliable datagrams, and the management interfaces, which send datagrams as QP 0 and QP 1.
//!
//! A datagram is one packet and completes when it has left. A received datagram is dropped if its Q_Key is wrong (not
//! checked on QP 0) or if no receive WQE is posted. The first forty bytes of the receive buffer are for the network
//! header: a GRH, an IPv6 header, or an IPv4 header in the last 20 of these bytes. The payload follows.

use super::completion::Receipt;
use super::core::{Broken, Core, Outgoing};
use super::path::Path;
use super::receive_queue::{ReceiveQueue, ScatterError, TakeError};
use super::send_queue::{BadWqe, SendQueue};
use super::state::Service;
use super::wqe::{Action, SendWqe, Signal};
use crate::host::Host;
use crate::q_counters::QCounter;
use crate::subnet::MANAGEMENT_LANE;
use crate::wire::{DEFAULT_PKEY, DethRepr, Headers, Link, Network, Opcode, Packet, Psn, Qpn};
use mlx_prm::{Av, CqeOpcode, EventType, Syndrome, WqeOpcode};

/// Top bit of a WQE's Q_Key. If it is set, the device uses the Q_Key of the context.
const CONTROLLED_QKEY: u32 = 1 << 31;
/// Bit of `flags_rqpn`: the network header is in the receive buffer.
const GRH_IN_BUFFER: u32 = 1 << 28;

/// The sending side of a datagram queue pair.
#[derive(Debug)]
pub(super) struct Datagrams {
    psn: Psn,
}

impl Datagrams {
    pub(super) const fn new() -> Self {
        Self {
            psn: Psn::masked(0),
        }
    }

    /// Sets the first PSN, when the queue pair enters RTS.
    pub(super) fn start(&mut self, core: &Core) {
        self.psn = Psn::masked(core.context.next_send_psn());
    }

    /// Returns the value of `next_send_psn` for QUERY_QP.
    pub(super) const fn next_psn(&self) -> u32 {
        self.psn.get()
    }

    /// Sends the next posted datagram.
    pub(super) fn step(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        if !queue.has_more() {
            return Ok(());
        }
        let wqe = match queue.fetch(core, host) {
            Ok(wqe) => wqe,
            Err(bad) => return refuse(core, queue, host, bad),
        };
        queue.complete(wqe.index, wqe.blocks);
        let sent = match &wqe.action {
            Action::Datagram { av, immediate } => self.send(core, host, &wqe, av, *immediate),
            Action::Nop
            | Action::Send { .. }
            | Action::Write { .. }
            | Action::Read { .. }
            | Action::CompareSwap { .. }
            | Action::FetchAdd { .. }
            | Action::Umr { .. } => Ok(()),
        };
        if let Err(syndrome) = sent {
            core.fail_send(host, wqe.index, wqe.opcode, syndrome);
            return Err(Broken);
        }
        if wqe.signal != Signal::OnError {
            let event = wqe.signal == Signal::AlwaysWithEvent;
            core.complete_send(host, wqe.index, wqe.opcode, 0, &[], event);
        }
        Ok(())
    }

    fn send(
        &mut self,
        core: &Core,
        host: &mut dyn Host,
        wqe: &SendWqe,
        av: &Av,
        immediate: Option<[u8; 4]>,
    ) -> Result<(), Syndrome> {
        let bytes = usize::try_from(wqe.length).unwrap_or(usize::MAX);
        if bytes > core.mtu() {
            return Err(Syndrome::LOCAL_LENGTH_ERR);
        }
        if !av.ext() && host.lid().is_none() {
            host.driver_bug(format!(
                "QP {:#x}: address vector without its extension",
                core.qpn
            ));
            return Err(Syndrome::LOCAL_QP_OP_ERR);
        }
        let mut payload = vec![0; bytes];
        wqe.gather(host, core.local_scope(), 0, &mut payload)
            .map_err(|_| Syndrome::LOCAL_PROT_ERR)?;
        let path = Path::of_vector(av, core.entropy(av.dqp()));
        let Some((mut link, network)) = path.headers(host) else {
            host.driver_bug(format!(
                "QP {:#x}: address vector names an unused GID",
                core.qpn
            ));
            return Err(Syndrome::LOCAL_QP_OP_ERR);
        };
        if core.service == Service::Smi
            && let Link::InfiniBand(lrh) = &mut link
        {
            lrh.vl = MANAGEMENT_LANE;
        }
        let qkey = av.q_key();
        let deth = DethRepr {
            qkey: if qkey & CONTROLLED_QKEY != 0 {
                core.context.q_key()
            } else {
                qkey
            },
            src_qpn: source_qpn(core),
        };
        let outgoing = Outgoing {
            opcode: Opcode::ud(immediate.is_some()),
            psn: self.psn,
            ack_request: false,
            solicited: wqe.solicited,
            headers: Headers {
                deth: Some(deth),
                immediate,
                ..Headers::NONE
            },
            payload: &payload,
        };
        let bth = core.bth(&outgoing, Qpn::new(av.dqp()));
        let packet = Packet {
            link,
            network,
            bth,
            headers: outgoing.headers,
            payload: &payload,
        };
        host.transmit(packet.emit());
        self.psn = self.psn.advance(1);
        Ok(())
    }
}

/// Fails a datagram whose WQE could not be fetched, with an error CQE.
pub(super) fn refuse(
    core: &Core,
    queue: &mut SendQueue,
    host: &mut dyn Host,
    bad: BadWqe,
) -> Result<(), Broken> {
    let index = queue.next_index();
    let (opcode, why) = match bad {
        BadWqe::Malformed(opcode, why) => (opcode, why.0.to_owned()),
        BadWqe::Fault(fault) => (WqeOpcode::NOP, fault.to_string()),
    };
    host.driver_bug(format!("QP {:#x}, WQE {index:#06x}: {why}", core.qpn));
    queue.skip(&core.rings, host);
    core.fail_send(host, index, opcode, Syndrome::LOCAL_QP_OP_ERR);
    Err(Broken)
}

/// Returns the source QPN of datagrams. The management interfaces send as QP 0 and QP 1, whatever their numbers in the
/// device. Queue pairs that send on behalf of QP 1 have the source QPN in `deth_sqpn` of their context.
fn source_qpn(core: &Core) -> Qpn {
    match (core.service, core.context.deth_sqpn()) {
        (Service::Gsi, _) => Qpn::GSI,
        (Service::Smi, _) => Qpn::SMI,
        (_, 0) => Qpn::new(core.qpn),
        (_, qpn) => Qpn::new(qpn),
    }
}

/// Handles a received datagram.
pub(super) fn receive(
    core: &Core,
    queue: &mut ReceiveQueue,
    host: &mut dyn Host,
    packet: &Packet<'_>,
) -> Result<(), Broken> {
    let Some(deth) = packet.headers.deth else {
        return Ok(());
    };
    if packet.bth.pkey != DEFAULT_PKEY
        || core.service != Service::Smi && deth.qkey != core.context.q_key()
        || packet.payload.len() > core.mtu()
    {
        return Ok(());
    }
    let mut wqe = match queue.take(core, host, None) {
        Ok(Some(wqe)) => wqe,
        Ok(None) => {
            core.count(host, QCounter::OutOfBuffer);
            return Ok(());
        }
        Err(error) => {
            // A refused access is recorded as a DMA fault and is no driver bug: a function that was just closed still
            // receives datagrams.
            if !matches!(error, TakeError::Fault(_)) {
                host.driver_bug(format!("QP {:#x}: receive queue: {error:?}", core.qpn));
            }
            host.qp_event(EventType::WQ_CATAS_ERROR, core.qpn);
            return Err(Broken);
        }
    };
    let area = packet.network.grh_area();
    let appended = wqe
        .append(host, &area)
        .and_then(|()| wqe.append(host, packet.payload));
    if let Err(error) = appended {
        let syndrome = match error {
            ScatterError::TooLong => Syndrome::LOCAL_LENGTH_ERR,
            ScatterError::Key(_) => Syndrome::LOCAL_PROT_ERR,
        };
        core.fail_receive(host, wqe.counter, None, syndrome);
        return Err(Broken);
    }
    let immediate = packet.headers.immediate.map(u32::from_be_bytes);
    let receipt = Receipt {
        opcode: if immediate.is_some() {
            CqeOpcode::RESP_SEND_IMM
        } else {
            CqeOpcode::RESP_SEND
        },
        counter: wqe.counter,
        // CAST: `written` is forty bytes and at most one MTU.
        bytes: u32::try_from(wqe.written).unwrap_or(u32::MAX),
        immediate: immediate.unwrap_or(u32::from(packet.bth.pkey)),
        solicited: packet.bth.solicited,
        flags_rqpn: deth.src_qpn.get() | route_flags(packet),
        slid: match packet.link {
            Link::Ethernet(_) => 0,
            Link::InfiniBand(lrh) => lrh.slid,
        },
        vlan: match packet.link {
            Link::Ethernet(ethernet) => ethernet.vlan,
            Link::InfiniBand(_) => None,
        },
        xrc: None,
        in_entry: &[],
    };
    core.complete_receive(host, &receipt);
    Ok(())
}

/// Returns the route bits of `flags_rqpn`, and the bit that says whether the network header is in the buffer. The route
/// bits are the L3 type (0 GRH, 1 IPv6, 2 IPv4) on Ethernet, and the service level on InfiniBand.
fn route_flags(packet: &Packet<'_>) -> u32 {
    match (&packet.link, &packet.network) {
        (Link::InfiniBand(lrh), Network::Local) => u32::from(lrh.sl) << 24,
        (Link::InfiniBand(lrh), _) => u32::from(lrh.sl) << 24 | GRH_IN_BUFFER,
        (Link::Ethernet(_), Network::Local | Network::Grh(_)) => GRH_IN_BUFFER,
        (Link::Ethernet(_), Network::Ipv6(..)) => GRH_IN_BUFFER | 1 << 24,
        (Link::Ethernet(_), Network::Ipv4(..)) => GRH_IN_BUFFER | 2 << 24,
    }
}
