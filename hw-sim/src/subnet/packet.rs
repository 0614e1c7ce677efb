//! Extracts management datagrams (MADs) from packets to QP 0 and QP 1, and builds the reply packets.

use super::mad::MAD_BYTES;
use super::port_info::PERMISSIVE_LID;
use crate::wire::{
    BthPacket, BthRepr, DethRepr, GrhRepr, Headers, Link, LrhPacket, LrhRepr, Network, Opcode,
    Packet, Psn, Qpn,
};

/// Virtual lane that is reserved for subnet management (VL 15).
pub const MANAGEMENT_LANE: u8 = 15;
/// LNH codes: the header that follows an LRH (IBTA volume 1, table "LNH").
const NEXT_IS_BTH: u8 = 2;
const NEXT_IS_GRH: u8 = 3;
/// Q_Key of QP 1 (IBTA volume 1, section 10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;

/// Returns the MAD in a packet to QP 0 or QP 1. Returns `None` for any other packet.
pub fn datagram<'p>(packet: &Packet<'p>) -> Option<&'p [u8; MAD_BYTES]> {
    let is_managed = [Qpn::SMI, Qpn::GSI].contains(&packet.dest_qpn());
    packet
        .headers
        .deth
        .filter(|_| is_managed)
        .and_then(|_| packet.payload.try_into().ok())
}

/// Returns the packet's LRH. Every packet of this module has one.
pub const fn lrh(packet: &Packet<'_>) -> Option<LrhRepr> {
    match packet.link {
        Link::InfiniBand(lrh) => Some(lrh),
        Link::Ethernet(_) => None,
    }
}

/// Returns whether a frame is on VL 15, which passes frames even before the port is Active.
pub fn is_of_management_lane(frame: &[u8]) -> bool {
    LrhPacket::new_checked(frame).is_ok_and(|lrh| lrh.vl() == MANAGEMENT_LANE)
}

/// Returns the reason why a port drops a frame because of its virtual lane, if there is one. Subnet management has VL
/// 15 exclusively; packets on VL 15 go to QP 0 and have no GRH (IBTA volume 1, sections 3.5.10 and 14.2.1; 9.6.1.2
/// for the check of QP 0).
pub fn wrong_lane(frame: &[u8]) -> Option<&'static str> {
    let lrh = LrhPacket::new_checked(frame).ok()?;
    let is_management = lrh.vl() == MANAGEMENT_LANE;
    let headers = match lrh.next_header() {
        NEXT_IS_BTH => LrhRepr::BYTES,
        NEXT_IS_GRH if is_management => return Some("lane 15 with a global route"),
        NEXT_IS_GRH => LrhRepr::BYTES + GrhRepr::BYTES,
        // Raw packets have no BTH, hence no destination queue pair.
        _ => return is_management.then_some("lane 15 without a transport header"),
    };
    let bth = frame.get(headers..).map(BthPacket::new_checked);
    match (bth?.ok()?.dest_qpn() == Qpn::SMI, is_management) {
        (true, false) => Some("QP 0 outside of lane 15"),
        (false, true) => Some("lane 15 to another queue pair than QP 0"),
        _ => None,
    }
}

/// Builds the reply packet that carries `datagram`. `lid` is the LID of the replying port, or 0 if it has none yet.
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
            ..BthRepr::new(Opcode::ud(false), deth.src_qpn, Psn::masked(0))
        },
        headers: Headers {
            deth: Some(DethRepr {
                qkey: if qpn == Qpn::GSI { GSI_QKEY } else { 0 },
                src_qpn: qpn,
            }),
            ..Headers::NONE
        },
        payload: datagram,
    };
    Some(packet.emit())
}

/// Returns the packet with its payload replaced by `datagram`. A switch forwards a directed-route MAD in this way.
pub fn forwarded(packet: &Packet<'_>, datagram: &[u8; MAD_BYTES]) -> Vec<u8> {
    Packet {
        payload: datagram,
        ..*packet
    }
    .emit()
}
