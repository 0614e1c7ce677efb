//! Ethernet II header with at most one 802.1Q tag.

use super::WireError;
use super::bytes::{array, be16, put};
use serde::{Deserialize, Serialize};

/// Ethertype of an 802.1Q tag.
const VLAN: u16 = 0x8100;
const PLAIN_BYTES: usize = 14;
const TAGGED_BYTES: usize = 18;

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// VLAN identifier, 12 bits.
    pub id: u16,
    /// Priority code point, 3 bits.
    pub priority: u8,
}

impl Vlan {
    /// Tag control information (IEEE 802.1Q): the priority, no drop eligibility, the identifier.
    #[must_use]
    pub fn control(self) -> u16 {
        u16::from(self.priority & 7) << 13 | (self.id & 0x0fff)
    }
}

/// View of an Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct EthPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> EthPacket<T> {
    /// Checks that the header, tag included, is there.
    ///
    /// # Errors
    /// [`WireError::Truncated`]: fewer bytes than the header has.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        let packet = Self { buffer };
        let bytes = packet.buffer.as_ref();
        if bytes.len() < PLAIN_BYTES || bytes.len() < packet.header_len() {
            return Err(WireError::Truncated("Ethernet header"));
        }
        Ok(packet)
    }

    /// 14, or 18 with a tag.
    pub fn header_len(&self) -> usize {
        if be16(self.buffer.as_ref(), 12) == VLAN {
            TAGGED_BYTES
        } else {
            PLAIN_BYTES
        }
    }

    /// Destination address.
    pub fn dst(&self) -> [u8; 6] {
        array(self.buffer.as_ref(), 0)
    }

    /// Source address.
    pub fn src(&self) -> [u8; 6] {
        array(self.buffer.as_ref(), 6)
    }

    /// The tag.
    pub fn vlan(&self) -> Option<Vlan> {
        if self.header_len() == PLAIN_BYTES {
            return None;
        }
        let [high, low] = array(self.buffer.as_ref(), 14);
        Some(Vlan {
            id: u16::from_be_bytes([high & 0x0f, low]),
            priority: high >> 5,
        })
    }

    /// Ethertype of what follows, behind the tag.
    pub fn ethertype(&self) -> u16 {
        be16(self.buffer.as_ref(), self.header_len() - 2)
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthRepr {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// 802.1Q tag.
    pub vlan: Option<Vlan>,
    /// Ethertype of what follows.
    pub ethertype: u16,
}

impl EthRepr {
    /// Reads the header; there is no such thing as a malformed one.
    pub fn parse<T: AsRef<[u8]>>(packet: &EthPacket<T>) -> Self {
        Self {
            dst: packet.dst(),
            src: packet.src(),
            vlan: packet.vlan(),
            ethertype: packet.ethertype(),
        }
    }

    /// Length of the header in bytes.
    pub const fn buffer_len(&self) -> usize {
        if self.vlan.is_some() {
            TAGGED_BYTES
        } else {
            PLAIN_BYTES
        }
    }

    /// Writes the header to the start of `out`, which must have room for it.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.dst);
        put(out, 6, self.src);
        if let Some(vlan) = self.vlan {
            put(out, 12, VLAN.to_be_bytes());
            put(out, 14, vlan.control().to_be_bytes());
        }
        put(out, self.buffer_len() - 2, self.ethertype.to_be_bytes());
    }
}
