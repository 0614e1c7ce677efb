//! Packets on the link, read from the simulator's event log.

use driver::Device;
use udapl::fabric::Fabric;

/// A packet of a reliable connection that has reached a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Virtual time of arrival, in nanoseconds.
    pub at: u64,
    /// Index of the side that the packet reached.
    pub to: usize,
    /// Operation, by the simulator's name for it (`hw_sim::wire::Operation`): `ReadRequest`, `WriteOnly` and so on.
    pub operation: String,
    /// Payload length, in bytes.
    pub bytes: usize,
}

/// Returns the received packets of reliable connections, oldest first.
pub fn packets(fabric: &Fabric) -> Vec<Packet> {
    let log = String::from_utf8(fabric.sim.event_log()).expect("the log is text");
    // Functions are numbered in the order of creation. With virtual functions each side has two: the physical function
    // and then its virtual function.
    let each = if fabric.function(0).name().ends_with("/vf0") {
        2
    } else {
        1
    };
    let side = |packet: Packet| Packet {
        to: packet.to / each,
        ..packet
    };
    log.lines().filter_map(parse).map(side).collect()
}

/// Returns the received packets with this operation that reached a side.
pub fn packets_to(fabric: &Fabric, to: usize, operation: &str) -> Vec<Packet> {
    let all = packets(fabric).into_iter();
    all.filter(|packet| packet.to == to && packet.operation == operation)
        .collect()
}

fn parse(line: &str) -> Option<Packet> {
    let (head, rest) = line.split_once(" packet Opcode { transport: Rc, operation: ")?;
    let (at, to) = head.split_once(" f")?;
    let (operation, rest) = rest.split_once(" }")?;
    let (_, bytes) = rest.rsplit_once("bytes=")?;
    Some(Packet {
        at: at.parse().ok()?,
        to: to.parse().ok()?,
        operation: operation.to_owned(),
        bytes: bytes.parse().ok()?,
    })
}
