//! Management datagrams in the flight recorder and as `tracing` events, with the data needed to reconstruct their
//! frames.
//!
//! A card does not report the frames that it sends, so this module records the datagrams exchanged with the card. Each
//! datagram becomes an entry of the recorder, if recording is on, and one event at TRACE level with the target
//! `hw_mlx::mad`. Nothing is formatted unless a subscriber is interested. Module `provider` of `dat-mlx`, which sends
//! and receives through QP1 ([`crate::gsi`]), calls this module, because it knows the MAC of the peer.

use std::fmt;
use std::net::Ipv6Addr;

use rdma_types::{MadAddress, Qpn};

use crate::device::Hca;
use crate::error::Mac;
use crate::gsi::{ReceivedMad, traffic_class};
use crate::mad::MAD_BYTES;
use crate::qp::context::udp_source_port;
use crate::recorder::Datagram;

/// Target of the `tracing` events.
const TARGET: &str = "hw_mlx::mad";

/// Records a datagram that was posted to the device.
pub fn sent(hca: &Hca, to: &MadAddress, mac: [u8; 6], mad: &[u8; MAD_BYTES]) {
    if !wanted(hca) {
        return;
    }
    let path = &to.path;
    let source = hca.gid_at(path.source_gid_index);
    let datagram = Datagram {
        source_mac: hca.mac(),
        mac,
        source: source.map_or([0; 16], |entry| entry.gid),
        destination: path.gid,
        traffic_class: traffic_class(path),
        port: udp_source_port(path.flow_label, Qpn::GSI, to.qpn),
        source_qpn: Qpn::GSI,
        qpn: to.qpn,
        mad: *mad,
    };
    record(hca, true, datagram);
}

/// Records a datagram that arrived. The device does not report the sender's MAC and UDP port; both are recorded as 0.
pub fn received(hca: &Hca, received: &ReceivedMad) {
    if !wanted(hca) {
        return;
    }
    let route = &received.route;
    let datagram = Datagram {
        source_mac: [0; 6],
        mac: hca.mac(),
        source: route.source,
        destination: route.destination,
        traffic_class: route.traffic_class,
        port: 0,
        source_qpn: received.qpn,
        qpn: Qpn::GSI,
        mad: received.mad,
    };
    record(hca, false, datagram);
}

fn record(hca: &Hca, sent: bool, datagram: Datagram) {
    tracing::trace!(
        target: TARGET,
        way = if sent { "sent" } else { "received" },
        adapter = hca.name(),
        source_mac = %Mac(datagram.source_mac),
        mac = %Mac(datagram.mac),
        source = %Ipv6Addr::from(datagram.source),
        destination = %Ipv6Addr::from(datagram.destination),
        traffic_class = datagram.traffic_class,
        port = datagram.port,
        source_qpn = datagram.source_qpn.get(),
        qpn = datagram.qpn.get(),
        mad = %Hex(&datagram.mad)
    );
    if hca.recorder().is_on() {
        hca.recorder().datagram(hca.now(), sent, datagram);
    }
}

fn wanted(hca: &Hca) -> bool {
    hca.recorder().is_on() || tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// Bytes that are formatted as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
