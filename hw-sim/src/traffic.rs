//! Counts of frames and bytes.

/// Broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Number of frames and of bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub packets: u64,
    /// Number of bytes.
    pub octets: u64,
}

impl Traffic {
    /// Counts a frame of `bytes` bytes.
    pub fn count(&mut self, bytes: usize) {
        self.packets += 1;
        self.octets += bytes as u64;
    }

    /// Returns this traffic minus `part`, which is contained in it.
    pub fn without(self, part: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(part.packets),
            octets: self.octets.saturating_sub(part.octets),
        }
    }

    /// Returns the sum of this traffic and `other`.
    pub fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            octets: self.octets + other.octets,
        }
    }
}

/// Counters of Ethernet frames in one direction, by kind of destination address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthTraffic {
    /// Frames with a unicast destination address.
    pub unicast: Traffic,
    /// Frames with a multicast destination address.
    pub multicast: Traffic,
    /// Frames with the broadcast destination address.
    pub broadcast: Traffic,
}

impl EthTraffic {
    /// Counts a frame by its destination address.
    pub fn count(&mut self, dst: [u8; 6], bytes: usize) {
        let traffic = match dst {
            BROADCAST => &mut self.broadcast,
            [first, ..] if first & 1 == 1 => &mut self.multicast,
            _ => &mut self.unicast,
        };
        traffic.count(bytes);
    }

    /// Returns the sum of all kinds.
    pub const fn total(&self) -> Traffic {
        Traffic {
            packets: self.unicast.packets + self.multicast.packets + self.broadcast.packets,
            octets: self.unicast.octets + self.multicast.octets + self.broadcast.octets,
        }
    }
}

/// Counters of the Ethernet queues. All other traffic of a port is RDMA traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthCounters {
    /// Received frames that are for this port.
    pub received: EthTraffic,
    /// Frames from send queues that left the port.
    pub transmitted: EthTraffic,
    /// Frames that reached the port but had no receiver in this function.
    pub unwanted: Traffic,
}
