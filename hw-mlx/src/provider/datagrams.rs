//! The connection manager's datagrams as `tracing` events, with what it takes to write down the frames they travel in.
//!
//! A card shows nobody the frames it sends. What we gave it, and what it gave us, is known here: one event at TRACE
//! level for each datagram, target `hw_mlx::mad`. Nothing is formatted unless somebody listens.

use std::fmt;
use std::net::Ipv6Addr;

use dat_core::provider::MadAddress;

use crate::device::Hca;
use crate::error::Mac;
use crate::gsi::ReceivedMad;
use crate::qp::context::udp_source_port;

/// Target of the events.
const TARGET: &str = "hw_mlx::mad";
/// The queue pair that sends and receives them, on the wire.
const GSI: u32 = 1;

/// A datagram that was handed to the device.
pub(super) fn sent(hca: &Hca, to: &MadAddress, mac: [u8; 6], mad: &[u8]) {
    if !wanted() {
        return;
    }
    let path = &to.path;
    let source = hca
        .gid_at(path.source_gid_index)
        .map_or([0; 16], |entry| entry.gid);
    let port = udp_source_port(path.flow_label, GSI, to.qpn & 0xff_ffff);
    tracing::trace!(
        target: TARGET,
        way = "sent",
        adapter = hca.name(),
        source_mac = %Mac(hca.mac()),
        mac = %Mac(mac),
        source = %Ipv6Addr::from(source),
        destination = %Ipv6Addr::from(path.gid),
        traffic_class = path.traffic_class,
        port,
        source_qpn = GSI,
        qpn = to.qpn,
        mad = %Hex(mad)
    );
}

/// A datagram that arrived. The device says neither its sender's MAC nor its port; both are 0 here.
pub(super) fn received(hca: &Hca, received: &ReceivedMad) {
    if !wanted() {
        return;
    }
    let route = &received.route;
    tracing::trace!(
        target: TARGET,
        way = "received",
        adapter = hca.name(),
        source_mac = %Mac([0; 6]),
        mac = %Mac(hca.mac()),
        source = %Ipv6Addr::from(route.source),
        destination = %Ipv6Addr::from(route.destination),
        traffic_class = route.traffic_class,
        port = 0_u16,
        source_qpn = received.qpn,
        qpn = GSI,
        mad = %Hex(&received.mad)
    );
}

fn wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// Bytes as digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
