//! Management datagrams as packets to QP 0 and QP 1, and answers to them.

use super::mad::MAD_BYTES;
use super::port_info::PERMISSIVE_LID;
use crate::wire::{
    BthPacket, BthRepr, DethRepr, GrhRepr, Headers, Link, LrhPacket, LrhRepr, Network, Opcode,
    Packet, Psn,
};

/// Queue pairs of subnet management and of general services.
pub const SMI_QPN: u32 = 0;
pub const GSI_QPN: u32 = 1;
/// The virtual lane reserved to subnet management.
pub const MANAGEMENT_LANE: u8 = 15;
/// Next header of an LRH (IBTA volume 1, table "LNH").
const NEXT_IS_BTH: u8 = 2;
const NEXT_IS_GRH: u8 = 3;
/// Q_Key of QP 1 (IBTA volume 1, section 10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;

/// Returns the datagram in a packet to one of the two queue pairs.
pub fn datagram<'p>(packet: &Packet<'p>) -> Option<&'p [u8; MAD_BYTES]> {
    let is_managed = [SMI_QPN, GSI_QPN].contains(&packet.dest_qpn());
    packet
        .headers
        .deth
        .filter(|_| is_managed)
        .and_then(|_| packet.payload.try_into().ok())
}

/// The link's header, which every packet here has.
pub const fn lrh(packet: &Packet<'_>) -> Option<LrhRepr> {
    match packet.link {
        Link::InfiniBand(lrh) => Some(lrh),
        Link::Ethernet(_) => None,
    }
}

/// Returns whether a frame is on the lane that is open before a port is active.
pub fn is_of_management_lane(frame: &[u8]) -> bool {
    LrhPacket::new_checked(frame).is_ok_and(|lrh| lrh.vl() == MANAGEMENT_LANE)
}

/// Returns the reason for which a port drops a frame because of its lane: subnet management has lane 15 for itself,
/// goes to QP 0 there, and crosses no router (IBTA volume 1, sections 3.5.10 and 14.2.1; 9.6.1.2 for the check of QP
/// 0).
pub fn wrong_lane(frame: &[u8]) -> Option<&'static str> {
    let lrh = LrhPacket::new_checked(frame).ok()?;
    let is_management = lrh.vl() == MANAGEMENT_LANE;
    let headers = match lrh.next_header() {
        NEXT_IS_BTH => LrhRepr::BYTES,
        NEXT_IS_GRH if is_management => return Some("lane 15 with a global route"),
        NEXT_IS_GRH => LrhRepr::BYTES + GrhRepr::BYTES,
        // Raw packets have no queue pair.
        _ => return is_management.then_some("lane 15 without a transport header"),
    };
    let bth = frame.get(headers..).map(BthPacket::new_checked);
    match (bth?.ok()?.dest_qpn() == SMI_QPN, is_management) {
        (true, false) => Some("QP 0 outside of lane 15"),
        (false, true) => Some("lane 15 to another queue pair than QP 0"),
        _ => None,
    }
}

/// Returns the packet with an answer, from a port with this LID (0: it has none yet).
pub fn reply(request: &Packet<'_>, lid: u16, datagram: &[u8; MAD_BYTES]) -> Option<Vec<u8>> {
    let (asked, deth) = (lrh(request)?, request.headers.deth?);
    let is_unaddressed = lid == 0 || asked.dlid == PERMISSIVE_LID;
    let link = LrhRepr {
        dlid: asked.slid,
        slid: if is_unaddressed { PERMISSIVE_LID } else { lid },
        ..asked
    };
    let network = match request.network {
        Network::Grh(grh) => Network::Grh(GrhRepr {
            src: grh.dst,
            dst: grh.src,
            ..grh
        }),
        Network::Local | Network::Ipv4(..) | Network::Ipv6(..) => request.network,
    };
    let qpn = request.dest_qpn();
    let packet = Packet {
        link: Link::InfiniBand(link),
        network,
        bth: BthRepr {
            pkey: request.bth.pkey,
            ..BthRepr::new(Opcode::ud(false), deth.src_qpn, Psn::new(0))
        },
        headers: Headers {
            deth: Some(DethRepr {
                qkey: if qpn == GSI_QPN { GSI_QKEY } else { 0 },
                src_qpn: qpn,
            }),
            ..Headers::NONE
        },
        payload: datagram,
    };
    Some(packet.emit())
}

/// Returns the packet with another datagram, as a switch forwards it.
pub fn forwarded(packet: &Packet<'_>, datagram: &[u8; MAD_BYTES]) -> Vec<u8> {
    Packet {
        payload: datagram,
        ..*packet
    }
    .emit()
}
