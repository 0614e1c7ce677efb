//! Extension headers between BTH and payload.

use super::bytes::{array, be32, put};
use super::{
    AethPacket, AethRepr, AtomicAckEthRepr, AtomicEthPacket, AtomicEthRepr, DethPacket, DethRepr,
    Opcode, Operation, RethPacket, RethRepr, Transport, WireError,
};

/// Length of an ImmDt, IETH or XRCETH header in bytes.
const WORD: usize = 4;

/// Extension headers of a packet, in wire order. The opcode determines which of them exist; [`Headers::fit`] checks
/// that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// DETH, the datagram header.
    pub deth: Option<DethRepr>,
    /// XRCETH: number of the XRC SRQ, in a request of the XRC transport (IBTA volume 1, annex A14).
    pub xrc_srq: Option<u32>,
    /// RETH, the RDMA header.
    pub reth: Option<RethRepr>,
    /// AtomicETH, the header of an atomic request.
    pub atomic: Option<AtomicEthRepr>,
    /// AETH, the acknowledge header.
    pub aeth: Option<AethRepr>,
    /// AtomicAckETH, the header of an atomic response.
    pub atomic_ack: Option<AtomicAckEthRepr>,
    /// ImmDt: immediate data, in wire order.
    pub immediate: Option<[u8; 4]>,
    /// IETH: key that the responder is to invalidate.
    pub invalidate: Option<u32>,
}

impl Headers {
    /// No extension headers.
    pub const NONE: Self = Self {
        deth: None,
        xrc_srq: None,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        immediate: None,
        invalidate: None,
    };

    /// Returns whether these are exactly the headers of `opcode`.
    pub fn fit(&self, opcode: Opcode) -> bool {
        let operation = opcode.operation();
        self.deth.is_some() == (opcode.transport() == Transport::Ud)
            && self.xrc_srq.is_some() == has_xrceth(opcode)
            && self.reth.is_some() == operation.has_reth()
            && self.atomic.is_some() == operation.has_atomic()
            && self.aeth.is_some() == operation.has_aeth()
            && self.atomic_ack.is_some() == (operation == Operation::AtomicAcknowledge)
            && self.immediate.is_some() == operation.has_immediate()
            && self.invalidate.is_some() == operation.has_invalidate()
    }

    /// Reads the headers of `opcode` from the start of `bytes`. Also returns the bytes after them.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `bytes` ends inside a header. [`WireError::Malformed`] if an AETH has a reserved
    /// syndrome.
    pub fn parse(opcode: Opcode, mut bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let operation = opcode.operation();
        let mut headers = Self::NONE;
        if opcode.transport() == Transport::Ud {
            headers.deth = Some(DethRepr::parse(&DethPacket::new_checked(bytes)?));
            bytes = &bytes[DethRepr::BYTES..];
        }
        if has_xrceth(opcode) {
            if bytes.len() < WORD {
                return Err(WireError::Truncated("XRCETH"));
            }
            // The upper byte is reserved: senders write zero, receivers ignore it.
            headers.xrc_srq = Some(be32(bytes, 0) & 0x00ff_ffff);
            bytes = &bytes[WORD..];
        }
        if operation.has_reth() {
            headers.reth = Some(RethRepr::parse(&RethPacket::new_checked(bytes)?));
            bytes = &bytes[RethRepr::BYTES..];
        }
        if operation.has_atomic() {
            headers.atomic = Some(AtomicEthRepr::parse(&AtomicEthPacket::new_checked(bytes)?));
            bytes = &bytes[AtomicEthRepr::BYTES..];
        }
        if operation.has_aeth() {
            headers.aeth = Some(AethRepr::parse(&AethPacket::new_checked(bytes)?)?);
            bytes = &bytes[AethRepr::BYTES..];
        }
        if operation == Operation::AtomicAcknowledge {
            headers.atomic_ack = Some(AtomicAckEthRepr::parse(bytes)?);
            bytes = &bytes[AtomicAckEthRepr::BYTES..];
        }
        if operation.has_immediate() || operation.has_invalidate() {
            if bytes.len() < WORD {
                return Err(WireError::Truncated("ImmDt or IETH"));
            }
            if operation.has_immediate() {
                headers.immediate = Some(array(bytes, 0));
            } else {
                headers.invalidate = Some(be32(bytes, 0));
            }
            bytes = &bytes[WORD..];
        }
        Ok((headers, bytes))
    }

    /// Returns the length of all headers in bytes.
    pub fn buffer_len(&self) -> usize {
        self.deth.map_or(0, |_| DethRepr::BYTES)
            + self.xrc_srq.map_or(0, |_| WORD)
            + self.reth.map_or(0, |_| RethRepr::BYTES)
            + self.atomic.map_or(0, |_| AtomicEthRepr::BYTES)
            + self.aeth.map_or(0, |_| AethRepr::BYTES)
            + self.atomic_ack.map_or(0, |_| AtomicAckEthRepr::BYTES)
            + self.immediate.map_or(0, |_| WORD)
            + self.invalidate.map_or(0, |_| WORD)
    }

    /// Writes the headers to the start of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        if let Some(deth) = self.deth {
            deth.emit(&mut out[at..]);
            at += DethRepr::BYTES;
        }
        if let Some(srqn) = self.xrc_srq {
            put(out, at, srqn.to_be_bytes());
            at += WORD;
        }
        if let Some(reth) = self.reth {
            reth.emit(&mut out[at..]);
            at += RethRepr::BYTES;
        }
        if let Some(atomic) = self.atomic {
            atomic.emit(&mut out[at..]);
            at += AtomicEthRepr::BYTES;
        }
        if let Some(aeth) = self.aeth {
            aeth.emit(&mut out[at..]);
            at += AethRepr::BYTES;
        }
        if let Some(atomic_ack) = self.atomic_ack {
            atomic_ack.emit(&mut out[at..]);
            at += AtomicAckEthRepr::BYTES;
        }
        if let Some(immediate) = self.immediate {
            put(out, at, immediate);
            at += WORD;
        }
        if let Some(key) = self.invalidate {
            put(out, at, key.to_be_bytes());
        }
    }
}

/// Returns whether packets with this opcode have an XRCETH. XRC requests have one, because they name a shared receive
/// queue.
const fn has_xrceth(opcode: Opcode) -> bool {
    matches!(opcode.transport(), Transport::Xrc) && !opcode.operation().is_response()
}
