//! IPv4 header (RFC 791), without options.

use super::WireError;
use super::bytes::{array, be16, ones_complement_sum, put};

/// Protocol number of UDP.
pub(super) const UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// Bits that are non-zero in a fragment: More Fragments and the fragment offset.
const FRAGMENT: u16 = 0x3fff;

/// View of an IPv4 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Ipv4Packet<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole fixed header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < Ipv4Repr::BYTES {
            return Err(WireError::Truncated("IPv4 header"));
        }
        Ok(Self { buffer })
    }

    /// Returns the version, 4 in a valid header.
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[0] >> 4
    }

    /// Returns the header length in bytes, options included.
    pub fn header_len(&self) -> usize {
        usize::from(self.buffer.as_ref()[0] & 0x0f) * 4
    }

    /// Returns the type of service: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.buffer.as_ref()[1]
    }

    /// Returns the length of header and payload in bytes.
    pub fn total_len(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Returns the identification.
    pub fn ident(&self) -> u16 {
        be16(self.buffer.as_ref(), 4)
    }

    /// Returns the flags and fragment offset.
    pub fn flags(&self) -> u16 {
        be16(self.buffer.as_ref(), 6)
    }

    /// Returns the time to live.
    pub fn ttl(&self) -> u8 {
        self.buffer.as_ref()[8]
    }

    /// Returns the protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.buffer.as_ref()[9]
    }

    /// Returns whether the checksum over the fixed header is right.
    pub fn checksum_holds(&self) -> bool {
        ones_complement_sum(&self.buffer.as_ref()[..Ipv4Repr::BYTES]) == 0xffff
    }

    /// Returns the source address.
    pub fn src(&self) -> [u8; 4] {
        array(self.buffer.as_ref(), 12)
    }

    /// Returns the destination address.
    pub fn dst(&self) -> [u8; 4] {
        array(self.buffer.as_ref(), 16)
    }
}

/// An IPv4 header that a UDP header follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Type of service: DSCP in 7:2, ECN in 1:0.
    pub tos: u8,
    /// Identification.
    pub ident: u16,
    /// True if routers may not fragment.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Number of bytes that follow the header.
    pub payload_len: u16,
}

impl Ipv4Repr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 20;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::NotRoce`] if the protocol is not UDP. [`WireError::Malformed`] if the version is not 4, if there
    /// are options, if the packet is a fragment, or if a length is shorter than the header. [`WireError::Checksum`] if
    /// the checksum is wrong.
    pub fn parse<T: AsRef<[u8]>>(packet: &Ipv4Packet<T>) -> Result<Self, WireError> {
        if packet.version() != 4 {
            return Err(WireError::Malformed("IPv4 version"));
        }
        if packet.protocol() != UDP {
            return Err(WireError::NotRoce);
        }
        if packet.header_len() != Self::BYTES {
            return Err(WireError::Malformed("IPv4 options"));
        }
        if packet.flags() & FRAGMENT != 0 {
            return Err(WireError::Malformed("IPv4 fragment"));
        }
        if !packet.checksum_holds() {
            return Err(WireError::Checksum);
        }
        let payload_len = packet
            .total_len()
            .checked_sub(20)
            .ok_or(WireError::Malformed("IPv4 total length"))?;
        Ok(Self {
            src: packet.src(),
            dst: packet.dst(),
            tos: packet.tos(),
            ident: packet.ident(),
            dont_fragment: packet.flags() & DONT_FRAGMENT != 0,
            ttl: packet.ttl(),
            payload_len,
        })
    }

    /// Writes the header, checksum included.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, [0x45, self.tos]);
        put(out, 2, self.payload_len.saturating_add(20).to_be_bytes());
        put(out, 4, self.ident.to_be_bytes());
        put(
            out,
            6,
            if self.dont_fragment { DONT_FRAGMENT } else { 0 }.to_be_bytes(),
        );
        put(out, 8, [self.ttl, UDP, 0, 0]);
        put(out, 12, self.src);
        put(out, 16, self.dst);
        let checksum = !ones_complement_sum(&out[..Self::BYTES]);
        put(out, 10, checksum.to_be_bytes());
    }
}
