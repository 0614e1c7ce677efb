//! Base transport header (IBTA volume 1, section 9.2).

use super::bytes::{be16, be24, low24, put};
use super::{Opcode, Psn, Qpn, WireError};

/// P_Key of the default partition, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// View of a BTH.
#[derive(Clone, Copy, Debug)]
pub struct BthPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> BthPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < BthRepr::BYTES {
            return Err(WireError::Truncated("BTH"));
        }
        Ok(Self { buffer })
    }

    /// Returns the opcode byte, which may be an undefined opcode.
    pub fn opcode(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// Returns the solicited event bit.
    pub fn solicited(&self) -> bool {
        self.buffer.as_ref()[1] & 0x80 != 0
    }

    /// Returns the migration request bit.
    pub fn migrated(&self) -> bool {
        self.buffer.as_ref()[1] & 0x40 != 0
    }

    /// Returns the number of padding bytes between payload and ICRC.
    pub fn pad(&self) -> u8 {
        self.buffer.as_ref()[1] >> 4 & 3
    }

    /// Returns the transport header version.
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[1] & 0x0f
    }

    /// Returns the partition key.
    pub fn pkey(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Returns the forward congestion notification bit.
    pub fn fecn(&self) -> bool {
        self.buffer.as_ref()[4] & 0x80 != 0
    }

    /// Returns the backward congestion notification bit.
    pub fn becn(&self) -> bool {
        self.buffer.as_ref()[4] & 0x40 != 0
    }

    /// Returns the number of the destination queue pair.
    pub fn dest_qpn(&self) -> Qpn {
        Qpn::new(be24(self.buffer.as_ref(), 5))
    }

    /// Returns the acknowledge request bit.
    pub fn ack_request(&self) -> bool {
        self.buffer.as_ref()[8] & 0x80 != 0
    }

    /// Returns the packet sequence number.
    pub fn psn(&self) -> Psn {
        Psn::masked(be24(self.buffer.as_ref(), 9))
    }
}

/// A BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BthRepr {
    /// Operation and transport of the packet.
    pub opcode: Opcode,
    /// Solicited event: requests an event at the peer's completion queue.
    pub solicited: bool,
    /// Migration request bit. True means migrated, which is the state of all simulated queue pairs.
    pub migrated: bool,
    /// Number of padding bytes between payload and ICRC, 0..=3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// Acknowledge request: the requester requests an acknowledgement of this packet.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl BthRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 12;

    /// Returns a header with the given fields, and defaults for the others: no solicited event, no acknowledge request,
    /// migrated, default partition, no congestion. [`Packet::emit`](super::Packet::emit) sets the padding, because it
    /// depends on the payload.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header. Ignores reserved bits, as the specification requires of receivers.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the version is not 0. [`WireError::Opcode`] if the opcode is undefined.
    pub fn parse<T: AsRef<[u8]>>(packet: &BthPacket<T>) -> Result<Self, WireError> {
        if packet.version() != 0 {
            return Err(WireError::Malformed("BTH version"));
        }
        let opcode =
            Opcode::from_bits(packet.opcode()).ok_or(WireError::Opcode(packet.opcode()))?;
        Ok(Self {
            opcode,
            solicited: packet.solicited(),
            migrated: packet.migrated(),
            pad: packet.pad(),
            pkey: packet.pkey(),
            fecn: packet.fecn(),
            becn: packet.becn(),
            dest_qpn: packet.dest_qpn(),
            ack_request: packet.ack_request(),
            psn: packet.psn(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        let flags =
            u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        put(out, 0, [self.opcode.bits(), flags]);
        put(out, 2, self.pkey.to_be_bytes());
        out[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        put(out, 5, low24(self.dest_qpn.get()));
        out[8] = u8::from(self.ack_request) << 7;
        put(out, 9, low24(self.psn.get()));
    }
}
