//! BTH opcodes (IBTA volume 1, section 9.2.1): the upper three bits are the transport, the other bits the operation.

/// The transport service of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (IBTA volume 1, annex A14).
    Xrc,
}

impl Transport {
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
        }
    }
}

/// Operation of a packet: the part of the opcode that does not depend on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the specification's names say it")]
#[repr(u8)]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
}

impl Operation {
    const ALL: [Self; 23] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImmediate,
        Self::SendOnly,
        Self::SendOnlyImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
    ];

    /// Returns whether the packet is a response, which the responder sends to the requester.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns whether the packet is an RDMA WRITE or a part of one.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImmediate
                | Self::WriteOnly
                | Self::WriteOnlyImmediate
        )
    }

    /// Returns whether the packet is a request whose response carries data.
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::ReadRequest | Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the packet is a request that may arrive while no message is in progress.
    pub const fn begins_message(self) -> bool {
        self.is_read_or_atomic()
            || matches!(
                self,
                Self::SendFirst
                    | Self::SendOnly
                    | Self::SendOnlyImmediate
                    | Self::SendOnlyInvalidate
                    | Self::WriteFirst
                    | Self::WriteOnly
                    | Self::WriteOnlyImmediate
            )
    }

    /// Returns whether the packet is the second or a later packet of a SEND.
    pub const fn continues_send(self) -> bool {
        matches!(
            self,
            Self::SendMiddle | Self::SendLast | Self::SendLastImmediate | Self::SendLastInvalidate
        )
    }

    /// Returns whether the packet is the second or a later packet of an RDMA WRITE.
    pub const fn continues_write(self) -> bool {
        matches!(
            self,
            Self::WriteMiddle | Self::WriteLast | Self::WriteLastImmediate
        )
    }

    /// Returns whether the packet is the last packet of a request message.
    pub const fn ends_message(self) -> bool {
        !self.is_response()
            && !matches!(
                self,
                Self::SendFirst | Self::SendMiddle | Self::WriteFirst | Self::WriteMiddle
            )
    }

    /// Returns whether the packet carries immediate data.
    pub const fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::SendLastImmediate
                | Self::SendOnlyImmediate
                | Self::WriteLastImmediate
                | Self::WriteOnlyImmediate
        )
    }

    /// Returns whether the packet carries a key to invalidate.
    pub const fn has_invalidate(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Returns whether the packet has an AETH.
    pub const fn has_aeth(self) -> bool {
        self.is_response() && !matches!(self, Self::ReadResponseMiddle)
    }

    /// Returns whether the packet has a RETH.
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImmediate | Self::ReadRequest
        )
    }

    /// Returns whether the packet has an AtomicETH.
    pub const fn has_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// A defined BTH opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    transport: Transport,
    operation: Operation,
}

impl Opcode {
    /// Returns the opcode of an operation on a reliable connection.
    pub const fn rc(operation: Operation) -> Self {
        Self {
            transport: Transport::Rc,
            operation,
        }
    }

    /// Returns the opcode of an operation on an extended reliable connection.
    pub const fn xrc(operation: Operation) -> Self {
        Self {
            transport: Transport::Xrc,
            operation,
        }
    }

    /// Returns the opcode of an operation on an unreliable connection. Returns `None` for all but a SEND without
    /// invalidation and an RDMA WRITE.
    pub fn uc(operation: Operation) -> Option<Self> {
        Self::new(Transport::Uc, operation)
    }

    /// Returns the opcode of UD SEND Only, with or without immediate data.
    pub const fn ud(immediate: bool) -> Self {
        let operation = if immediate {
            Operation::SendOnlyImmediate
        } else {
            Operation::SendOnly
        };
        Self {
            transport: Transport::Ud,
            operation,
        }
    }

    fn new(transport: Transport, operation: Operation) -> Option<Self> {
        let exists = match transport {
            Transport::Rc | Transport::Xrc => true,
            Transport::Uc => operation as u8 <= Operation::WriteOnlyImmediate as u8,
            Transport::Ud => {
                matches!(
                    operation,
                    Operation::SendOnly | Operation::SendOnlyImmediate
                )
            }
        };
        exists.then_some(Self {
            transport,
            operation,
        })
    }

    /// Returns the opcode with this encoding, if it is defined for a supported transport.
    pub fn from_bits(bits: u8) -> Option<Self> {
        let transport = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc]
            .into_iter()
            .find(|transport| transport.bits() == bits & 0xe0)?;
        let operation = Operation::ALL
            .into_iter()
            .find(|&operation| operation as u8 == bits & 0x1f)?;
        Self::new(transport, operation)
    }

    /// Returns the encoding of the opcode in the BTH.
    pub const fn bits(self) -> u8 {
        self.transport.bits() | self.operation as u8
    }

    /// Returns the transport service.
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// Returns the operation.
    pub const fn operation(self) -> Operation {
        self.operation
    }
}
