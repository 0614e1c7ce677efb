//! Packets and doorbell writes that neither the simulator nor the driver produces.

use std::net::IpAddr;

use driver::Be64;
use hw_sim::wire::{
    AckSyndrome, AethRepr, BthRepr, EthRepr, Headers, Ipv4Repr, Network, Opcode, Operation, Packet,
    Psn, UdpRepr,
};
use udapl::fabric::Fabric;

use super::Pair;

/// Returns the bytes of a side's IPv4 address.
fn ipv4(side: usize) -> [u8; 4] {
    match Fabric::ipv4(side) {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => panic!("{address} is no IPv4 address"),
    }
}

impl Pair {
    /// Delivers a forged response to the side's oldest unanswered request: a complete packet with a correct ICRC, with
    /// this operation and payload.
    pub fn forge_response(&mut self, side: usize, operation: Operation, payload: &[u8]) {
        let (qpn, context) = self.connected_qp(side);
        let [own, peer] =
            [side, 1 - side].map(|side| self.sides[side].ia.provider_mut().hca_mut().mac());
        let aeth = AethRepr {
            syndrome: AckSyndrome::ACK,
            msn: 1,
        };
        let packet = Packet {
            link: EthRepr {
                dst: own,
                src: peer,
                vlan: None,
                ethertype: 0,
            }
            .into(),
            network: Network::Ipv4(
                Ipv4Repr {
                    src: ipv4(1 - side),
                    dst: ipv4(side),
                    tos: 0,
                    ident: 0,
                    dont_fragment: true,
                    ttl: 64,
                    payload_len: 0,
                },
                UdpRepr {
                    src_port: 0xc000,
                    payload_len: 0,
                },
            ),
            bth: BthRepr::new(
                Opcode::rc(operation),
                qpn,
                Psn::masked(context.last_acked_psn()).advance(1),
            ),
            headers: Headers {
                aeth: operation.has_aeth().then_some(aeth),
                ..Headers::NONE
            },
            payload,
        };
        let function = self.fabric.function(side);
        self.fabric.sim.deliver(&function, &packet.emit());
    }

    /// Rings the send doorbell of the side's connected queue pair for one WQE that the driver has not written yet.
    pub fn forge_doorbell(&mut self, side: usize) {
        let (qpn, _) = self.connected_qp(side);
        let hca = self.sides[side].ia.provider_mut().hca_mut();
        hca.uar().write(
            |page| &page.send_doorbell,
            Be64::new(u64::from(qpn.get()) << 8 | 1),
        );
    }
}
