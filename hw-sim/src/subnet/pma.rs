//! The performance management agent (PMA): counts the packets and bytes of a port (IBTA volume 1, section 16.1).
//!
//! Error counters are always zero, because the simulated link loses no symbols. 32-bit counters stop at their maximum,
//! 64-bit counters wrap. A Set clears the selected counters, whatever values it carries; it cannot set another value.

use mlx_prm::{
    ClassPortInfo, MadMethod, PerformanceAttribute, PerformanceMad, PortCounters,
    PortCountersExtended,
};

use super::mad::{
    ATTRIBUTE_NOT_SUPPORTED, BASE_VERSION, CLASS_VERSION, INVALID_VALUE, Method, Status,
};
use crate::traffic::Traffic;
use crate::wire::VCRC_BYTES;

/// Bits of ClassPortInfo's CapabilityMask: the agent accepts PortSelect 0xff, and it has extended counters.
const ALL_PORTS: u16 = 1 << 8;
const EXTENDED: u16 = 1 << 9;
/// PortSelect value that selects all ports.
const EVERY_PORT: u8 = 0xff;
/// RespTimeValue of ClassPortInfo: the agent answers within 4.096 us * 2^this.
const RESPONSE_TIME: u32 = 8;
/// CounterSelect bits of PortCounters: data sent, data received, packets sent, packets received.
const XMIT_DATA: u16 = 1 << 12;
const RCV_DATA: u16 = 1 << 13;
const XMIT_PKTS: u16 = 1 << 14;
const RCV_PKTS: u16 = 1 << 15;
/// CounterSelect bits of PortCountersExtended: data sent, packets sent, data received, packets received.
const EXTENDED_SELECT: [u16; 4] = [1 << 0, 1 << 2, 1 << 1, 1 << 3];

/// Traffic counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub sent: Traffic,
    pub received: Traffic,
}

impl Counted {
    fn since(self, cleared: Self) -> Self {
        Self {
            sent: self.sent.without(cleared.sent),
            received: self.received.without(cleared.received),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent.and(other.sent),
            received: self.received.and(other.received),
        }
    }
}

/// Returns the counts without the variant CRCs, which the PMA does not count. The subtraction saturates, because a
/// frame from the wire may be shorter than a CRC.
const fn without_crcs(traffic: Traffic) -> Traffic {
    Traffic {
        octets: traffic
            .octets
            .saturating_sub(traffic.packets * VCRC_BYTES as u64),
        ..traffic
    }
}

/// Returns the octets in units of four bytes, as the PMA reports them.
const fn words(traffic: Traffic) -> u64 {
    traffic.octets / 4
}

/// Number of a port, its counts since the start, and its counts at the last clear.
pub type Counter<'a> = (u8, Counted, &'a mut Counted);

/// Answers a Get or Set of the performance class for the given ports of a node.
pub fn answer(request: &PerformanceMad, ports: &mut [Counter<'_>]) -> PerformanceMad {
    let mut mad = request.clone();
    mad.set_method(MadMethod::GET_RESP.0);
    match attribute(request, ports) {
        Ok(data) => mad.set_status(0).set_data(&data),
        Err(Status(status)) => mad.set_status(status),
    };
    mad
}

fn attribute(request: &PerformanceMad, ports: &mut [Counter<'_>]) -> Result<[u8; 192], Status> {
    let method = Method::of(
        request.base_version(),
        request.class_version(),
        request.method(),
    )?;
    let asked = request.data();
    let mut data = [0; 192];
    match PerformanceAttribute(request.attribute_id()) {
        PerformanceAttribute::CLASS_PORT_INFO => {
            method.only_get()?;
            let mut info = ClassPortInfo::new();
            info.set_base_version(BASE_VERSION)
                .set_class_version(CLASS_VERSION)
                .set_capability_mask(ALL_PORTS | EXTENDED)
                .set_resp_time_value(RESPONSE_TIME);
            put(&mut data, info.as_array());
        }
        PerformanceAttribute::PORT_COUNTERS => {
            let asked = PortCounters::from_array(*asked.first_chunk().ok_or(INVALID_VALUE)?);
            let (port, select) = (asked.port_select(), asked.counter_select());
            let clears = [XMIT_DATA, XMIT_PKTS, RCV_DATA, RCV_PKTS].map(|bit| select & bit != 0);
            let counted = counted(ports, port, method, clears)?;
            let mut out = PortCounters::new();
            out.set_port_select(port)
                .set_port_xmit_data(at_most(words(counted.sent)))
                .set_port_rcv_data(at_most(words(counted.received)))
                .set_port_xmit_pkts(at_most(counted.sent.packets))
                .set_port_rcv_pkts(at_most(counted.received.packets));
            put(&mut data, out.as_array());
        }
        PerformanceAttribute::PORT_COUNTERS_EXTENDED => {
            let asked =
                PortCountersExtended::from_array(*asked.first_chunk().ok_or(INVALID_VALUE)?);
            let (port, select) = (asked.port_select(), asked.counter_select());
            let clears = EXTENDED_SELECT.map(|bit| select & bit != 0);
            let counted = counted(ports, port, method, clears)?;
            let mut out = PortCountersExtended::new();
            out.set_port_select(port)
                .set_port_xmit_data(words(counted.sent))
                .set_port_rcv_data(words(counted.received))
                .set_port_xmit_pkts(counted.sent.packets)
                .set_port_rcv_pkts(counted.received.packets);
            put(&mut data, out.as_array());
        }
        _ => return Err(ATTRIBUTE_NOT_SUPPORTED),
    }
    Ok(data)
}

fn put(data: &mut [u8; 192], attribute: &[u8]) {
    data[..attribute.len()].copy_from_slice(attribute);
}

/// Clears the counters that a Set selects. `selected` has the order bytes sent, packets sent, bytes received, packets
/// received.
const fn clear(counted: Counted, cleared: &mut Counted, selected: [bool; 4]) {
    let [sent_bytes, sent_packets, received_bytes, received_packets] = selected;
    if sent_bytes {
        cleared.sent.octets = counted.sent.octets;
    }
    if sent_packets {
        cleared.sent.packets = counted.sent.packets;
    }
    if received_bytes {
        cleared.received.octets = counted.received.octets;
    }
    if received_packets {
        cleared.received.packets = counted.received.packets;
    }
}

/// Returns the counters of the selected port, or the sum over all ports. A Set clears the selected counters first.
fn counted(
    ports: &mut [Counter<'_>],
    select: u8,
    method: Method,
    selected: [bool; 4],
) -> Result<Counted, Status> {
    let mut sum = None;
    for (number, counted, cleared) in ports {
        if select == EVERY_PORT || select == *number {
            let counted = Counted {
                sent: without_crcs(counted.sent),
                received: without_crcs(counted.received),
            };
            if method == Method::Set {
                clear(counted, cleared, selected);
            }
            sum = Some(counted.since(**cleared).and(sum.unwrap_or_default()));
        }
    }
    sum.ok_or(INVALID_VALUE)
}

fn at_most(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
