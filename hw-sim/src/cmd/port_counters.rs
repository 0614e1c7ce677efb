//! Register PPCNT: the port's frames and bytes, in the groups that make up a network device's statistics.
//!
//! Counters of events that are not simulated stay zero: bit errors, collisions, pauses sent by a card. Pauses requested
//! by a switch are counted by priority. All frames count as priority 0.

use super::{Refusal, refuse};
use crate::card::PauseCounters;
use crate::port::Port;
use crate::traffic::EthTraffic;
use mlx_prm::{
    Ieee8023Counters, PortCounterGroup, Ppcnt, PriorityCounters, Rfc2819Counters, Rfc2863Counters,
};

/// Number of priorities, and of traffic classes, of a port.
const PRIORITIES: u32 = 8;
const NS_PER_US: u64 = 1_000;

/// Returns the counters of a group.
pub(super) fn group(
    port: &Port,
    pauses: &[PauseCounters; 8],
    asked: &Ppcnt,
) -> Result<[u8; 0xf8], Refusal> {
    let group = PortCounterGroup::from_bits(asked.grp());
    if asked.prio_tc() >= PRIORITIES {
        return Err(refuse!(
            BAD_PARAM,
            "no such priority",
            "{}",
            asked.prio_tc()
        ));
    }
    Ok(match group {
        PortCounterGroup::IEEE_802_3 => ieee_802_3(port),
        PortCounterGroup::RFC_2863 => rfc_2863(port),
        PortCounterGroup::RFC_2819 => rfc_2819(port),
        PortCounterGroup::PER_PRIORITY => {
            let number = asked.prio_tc() as usize;
            let frames = (number == 0).then_some(port);
            priority(frames, pauses.get(number).copied().unwrap_or_default())
        }
        _ => [0; 0xf8],
    })
}

/// Returns the number of unicast frames, Ethernet and RoCE together; all RoCE packets count as unicast.
fn unicast(ethernet: &EthTraffic, rdma_packets: u64) -> u64 {
    ethernet.unicast.packets + rdma_packets
}

fn ieee_802_3(port: &Port) -> [u8; 0xf8] {
    let mut out = Ieee8023Counters::new();
    let (received, transmitted) = (&port.ethernet.received, &port.ethernet.transmitted);
    out.set_a_frames_transmitted_ok(port.transmitted.packets)
        .set_a_octets_transmitted_ok(port.transmitted.octets)
        .set_a_multicast_frames_xmitted_ok(transmitted.multicast.packets)
        .set_a_broadcast_frames_xmitted_ok(transmitted.broadcast.packets);
    out.set_a_frames_received_ok(port.received.packets)
        .set_a_octets_received_ok(port.received.octets)
        .set_a_multicast_frames_received_ok(received.multicast.packets)
        .set_a_broadcast_frames_received_ok(received.broadcast.packets);
    *out.as_array()
}

fn rfc_2863(port: &Port) -> [u8; 0xf8] {
    let mut out = Rfc2863Counters::new();
    let (received, transmitted) = (&port.ethernet.received, &port.ethernet.transmitted);
    out.set_if_in_octets(port.received.octets)
        .set_if_in_ucast_pkts(unicast(received, port.rdma_received().packets))
        .set_if_in_multicast_pkts(received.multicast.packets)
        .set_if_in_broadcast_pkts(received.broadcast.packets);
    out.set_if_out_octets(port.transmitted.octets)
        .set_if_out_ucast_pkts(unicast(transmitted, port.rdma_transmitted().packets))
        .set_if_out_multicast_pkts(transmitted.multicast.packets)
        .set_if_out_broadcast_pkts(transmitted.broadcast.packets);
    *out.as_array()
}

fn rfc_2819(port: &Port) -> [u8; 0xf8] {
    let mut out = Rfc2819Counters::new();
    out.set_ether_stats_octets(port.received.octets)
        .set_ether_stats_pkts(port.received.packets)
        .set_ether_stats_multicast_pkts(port.ethernet.received.multicast.packets)
        .set_ether_stats_broadcast_pkts(port.ethernet.received.broadcast.packets);
    *out.as_array()
}

fn priority(frames: Option<&Port>, pauses: PauseCounters) -> [u8; 0xf8] {
    let mut out = PriorityCounters::new();
    if let Some(port) = frames {
        out.set_rx_octets(port.received.octets)
            .set_rx_frames(port.received.packets)
            .set_tx_octets(port.transmitted.octets)
            .set_tx_frames(port.transmitted.packets);
    }
    out.set_rx_pause(pauses.received)
        .set_rx_pause_duration(pauses.silent_ns / NS_PER_US)
        .set_rx_pause_transition(pauses.transitions);
    *out.as_array()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    /// Returns a port that received one Ethernet frame of each kind, and one of RoCE. It sent three broadcasts, two
    /// multicasts and a packet of RoCE.
    fn port() -> Port {
        let mut port = Port::new(&Profile::default());
        for dst in [[2, 0, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0xff; 6]] {
            port.ethernet.received.count(dst, 100);
            port.received.count(100);
        }
        port.received.count(300);
        for dst in [
            [0xff; 6],
            [0xff; 6],
            [0xff; 6],
            [0x33, 0x33, 0, 0, 0, 1],
            [0x33, 0x33, 0, 0, 0, 1],
        ] {
            port.ethernet.transmitted.count(dst, 10);
            port.transmitted.count(10);
        }
        port.transmitted.count(20);
        port
    }

    fn pauses() -> [PauseCounters; 8] {
        let mut pauses = [PauseCounters::default(); 8];
        pauses[3] = PauseCounters {
            received: 5,
            silent_ns: 7_999,
            transitions: 4,
        };
        pauses
    }

    #[test]
    fn pauses_are_counted_by_priority_and_their_time_in_microseconds() {
        let mut asked = Ppcnt::new();
        asked.set_grp(PortCounterGroup::PER_PRIORITY.bits());
        for (priority, expected) in [(0, [0; 3]), (3, [5, 7, 4])] {
            asked.set_prio_tc(priority);
            let bytes = group(&port(), &pauses(), &asked).expect("a group");
            // Offsets of Linux `struct mlx5_ifc_eth_per_prio_grp_data_layout_bits`.
            let told = [0x50, 0x58, 0x70].map(|at: usize| {
                u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
            });
            assert_eq!(told, expected);
        }
    }

    fn counters(grp: PortCounterGroup) -> [u8; 0xf8] {
        let mut asked = Ppcnt::new();
        asked.set_grp(grp.bits());
        group(&port(), &pauses(), &asked).expect("a group")
    }

    /// Ethernet and RoCE frames are counted at the offsets of Linux `struct
    /// mlx5_ifc_eth_802_3_cntrs_grp_data_layout_bits`, `mlx5_ifc_eth_2863_cntrs_grp_data_layout_bits`,
    /// `mlx5_ifc_eth_2819_cntrs_grp_data_layout_bits` and `mlx5_ifc_eth_per_prio_grp_data_layout_bits`.
    #[test]
    fn frames_of_both_halves_are_counted_in_every_group_at_its_place() {
        let at = |bytes: &[u8; 0xf8], offset: usize| {
            u64::from_be_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
        };
        let ieee = counters(PortCounterGroup::IEEE_802_3);
        let places = [0x08, 0x28, 0x40, 0x48].map(|offset| at(&ieee, offset));
        assert_eq!(
            places,
            [4, 600, 1, 1],
            "frames, bytes, multicast, broadcast"
        );
        let places = [0x00, 0x20, 0x30, 0x38].map(|offset| at(&ieee, offset));
        assert_eq!(places, [6, 70, 2, 3], "the same, transmitted");
        let rfc = counters(PortCounterGroup::RFC_2863);
        let places = [0x00, 0x08, 0x48, 0x50].map(|offset| at(&rfc, offset));
        assert_eq!(
            places,
            [600, 2, 1, 1],
            "bytes, unicast, multicast, broadcast"
        );
        let places = [0x28, 0x30, 0x58, 0x60].map(|offset| at(&rfc, offset));
        assert_eq!(places, [70, 1, 2, 3], "the same, transmitted");
        let rfc = counters(PortCounterGroup::RFC_2819);
        let places = [0x08, 0x10, 0x18, 0x20].map(|offset| at(&rfc, offset));
        assert_eq!(
            places,
            [600, 4, 1, 1],
            "bytes, frames, broadcast, multicast"
        );
        let priority = counters(PortCounterGroup::PER_PRIORITY);
        let places = [0x00, 0x20, 0x28, 0x48].map(|offset| at(&priority, offset));
        assert_eq!(
            places,
            [600, 4, 70, 6],
            "bytes and frames of priority 0, received, then transmitted"
        );
    }

    #[test]
    fn a_priority_that_a_port_does_not_have_is_refused() {
        let mut asked = Ppcnt::new();
        asked.set_grp(PortCounterGroup::PER_PRIORITY.bits());
        asked.set_prio_tc(8);
        assert!(group(&port(), &pauses(), &asked).is_err());
    }
}
