//! Packets and doorbell writes that neither the simulator nor the driver produces.

use driver::Be64;
use hw_sim::wire::{
    AckSyndrome, AethRepr, BthRepr, EthRepr, Headers, Ipv4Repr, Network, Opcode, Operation, Packet,
    Psn, UdpRepr,
};

use super::Pair;

impl Pair {
    /// Delivers a forged response to the side's oldest unanswered request: a complete packet with a correct ICRC, with
    /// this operation and payload.
    pub fn forge_answer(&mut self, side: usize, operation: Operation, payload: &[u8]) {
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
                    src: [192, 0, 2, 2],
                    dst: [192, 0, 2, 1],
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
                Psn::new(context.last_acked_psn()).advance(1),
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

    /// Rings the send doorbell of the side's connected queue pair for one WQE before the driver has written a WQE.
    pub fn forge_doorbell(&mut self, side: usize) {
        let (qpn, _) = self.connected_qp(side);
        let hca = self.sides[side].ia.provider_mut().hca_mut();
        hca.uar().write(
            |page| &page.send_doorbell,
            Be64::new(u64::from(qpn.get()) << 8 | 1),
        );
    }
}
