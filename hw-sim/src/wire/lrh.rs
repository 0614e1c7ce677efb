//! Local route header (LRH; IBTA volume 1, section 7.7) and variant CRC. In an InfiniBand packet they replace the
//! Ethernet header and the FCS.

use super::WireError;
use super::bytes::{array, be16, put};

/// LNH code for a BTH.
const LOCAL: u8 = 2;
/// LNH code for a GRH.
const GLOBAL: u8 = 3;
/// Polynomial of the variant CRC, x^16 + x^12 + x^3 + x + 1, bit-reversed (IBTA volume 1, section 7.8.2).
const VCRC_POLYNOMIAL: u16 = 0xd008;

/// Length in bytes of the variant CRC at the end of every packet.
pub const VCRC_BYTES: usize = 2;

/// View of an LRH.
#[derive(Clone, Copy, Debug)]
pub struct LrhPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> LrhPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < LrhRepr::BYTES {
            return Err(WireError::Truncated("LRH"));
        }
        Ok(Self { buffer })
    }

    /// Returns the virtual lane.
    pub fn vl(&self) -> u8 {
        self.buffer.as_ref()[0] >> 4
    }

    /// Returns the link version.
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[0] & 0x0f
    }

    /// Returns the service level.
    pub fn sl(&self) -> u8 {
        self.buffer.as_ref()[1] >> 4
    }

    /// Returns the code of the next header.
    pub fn next_header(&self) -> u8 {
        self.buffer.as_ref()[1] & 3
    }

    /// Returns the destination LID.
    pub fn dlid(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Returns the length of the packet without its variant CRC, in bytes.
    pub fn packet_len(&self) -> usize {
        usize::from(be16(self.buffer.as_ref(), 4) & 0x7ff) * 4
    }

    /// Returns the source LID.
    pub fn slid(&self) -> u16 {
        let [high, low] = array(self.buffer.as_ref(), 6);
        u16::from_be_bytes([high, low])
    }
}

/// An LRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LrhRepr {
    /// Virtual lane, 4 bits. VL 15 is reserved for subnet management.
    pub vl: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Source LID.
    pub slid: u16,
    /// True if a GRH follows, false if a BTH follows.
    pub global: bool,
    /// Length in bytes from the LRH to the ICRC, both included. The length is a multiple of four.
    pub packet_len: usize,
}

impl LrhRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 8;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the link version is not 0. [`WireError::NotRoce`] if the packet is raw.
    pub fn parse<T: AsRef<[u8]>>(packet: &LrhPacket<T>) -> Result<Self, WireError> {
        if packet.version() != 0 {
            return Err(WireError::Malformed("LRH version"));
        }
        let global = match packet.next_header() {
            LOCAL => false,
            GLOBAL => true,
            _ => return Err(WireError::NotRoce),
        };
        Ok(Self {
            vl: packet.vl(),
            sl: packet.sl(),
            dlid: packet.dlid(),
            slid: packet.slid(),
            global,
            packet_len: packet.packet_len(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        let next = if self.global { GLOBAL } else { LOCAL };
        put(out, 0, [self.vl << 4, self.sl << 4 | next]);
        put(out, 2, self.dlid.to_be_bytes());
        // CAST: the length fits into 11 bits of words, because the caller segments by path MTU.
        let words = u16::try_from(self.packet_len / 4).unwrap_or(u16::MAX) & 0x7ff;
        put(out, 4, words.to_be_bytes());
        put(out, 6, self.slid.to_be_bytes());
    }
}

/// Returns the variant CRC over everything from the LRH to the ICRC, in wire order.
pub fn vcrc(packet: &[u8]) -> [u8; VCRC_BYTES] {
    let crc = packet.iter().fold(0xffff_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ VCRC_POLYNOMIAL
            } else {
                crc >> 1
            }
        })
    });
    #[expect(
        clippy::little_endian_bytes,
        reason = "as the ICRC, it travels least significant byte first"
    )]
    let wire = (!crc).to_le_bytes();
    wire
}
