//! The private data by which the two ends of `ping`, `perf` and `cmtime` set up a connection.
//!
//! The active end specifies the role of the passive one, so that a listener needs no options; the passive end replies
//! with the address of its memory. Both fit the 56 bytes that an RDMA-CM port leaves. Numbers are big-endian. Data from
//! the peer are checked here and by each user.
//!
//! ```text
//! request:  magic 8 | role 1 | flags 1 | connections to follow 2 | depth 4 | bytes of a message 8 |
//!           RMR context 4 | address 8
//! accept:   magic 8 | flags 4 | RMR context 4 | address 8 | bytes 8 | address of the count 8
//! ```
//!
//! Flags of a request: 1, the passive end continuously does the same operations towards the active end; 2, these are
//! RDMA Reads and not Writes. The passive end's Writes and Reads use the memory that the request specifies, and the
//! passive end counts them in 8 bytes of its own memory. Flags of the accept: 1, the passive end's function is
//! simulated.

use udapl::memory::RmrTriplet;

const MAGIC: [u8; 8] = *b"datctl 2";
/// Size of the longest message, in bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// Role of the passive end on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends every message back.
    Echo = 0,
    /// Receives messages and discards them.
    Sink = 1,
    /// Provides memory that the active end writes to and reads from.
    Memory = 2,
    /// Does nothing, because the active end wants only the connection.
    Nothing = 3,
}

/// Operations that the passive end continuously does towards the active end, besides its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reverse {
    /// True if the passive end reads, false if it writes. A sink sends in either case.
    pub(crate) reads: bool,
    pub(crate) memory: RmrTriplet,
}

/// Private data of the active end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) role: Role,
    /// Number of connections that the active end will request after this one.
    pub(crate) more: u16,
    /// Number of messages outstanding at a time.
    pub(crate) depth: u32,
    /// Size of the longest message, in bytes.
    pub(crate) bytes: u64,
    pub(crate) reverse: Option<Reverse>,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (flags, context, address) = match self.reverse {
            None => (0, 0, 0),
            Some(Reverse { reads, memory }) => (
                1 | u8::from(reads) << 1,
                memory.rmr_context,
                memory.target_address,
            ),
        };
        let mut data = MAGIC.to_vec();
        data.extend([self.role as u8, flags]);
        data.extend(self.more.to_be_bytes());
        data.extend(self.depth.to_be_bytes());
        data.extend(self.bytes.to_be_bytes());
        data.extend(context.to_be_bytes());
        data.extend(address.to_be_bytes());
        data
    }

    /// Decodes the private data of a request. Returns `None` if it is too short, or if a field has a value that this
    /// version does not send.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (&[role, flags], rest) = rest.split_first_chunk()?;
        let (&more, rest) = rest.split_first_chunk()?;
        let (&depth, rest) = rest.split_first_chunk()?;
        let (&bytes, rest) = rest.split_first_chunk()?;
        let (&context, rest) = rest.split_first_chunk()?;
        let (&address, _) = rest.split_first_chunk()?;
        let (depth, bytes) = (u32::from_be_bytes(depth), u64::from_be_bytes(bytes));
        let role = match role {
            0 => Role::Echo,
            1 => Role::Sink,
            2 => Role::Memory,
            3 => Role::Nothing,
            _ => return None,
        };
        let reverse = match (flags, role) {
            (0, _) => None,
            (1 | 3, Role::Sink | Role::Memory) => Some(Reverse {
                reads: flags & 2 != 0,
                memory: RmrTriplet {
                    rmr_context: u32::from_be_bytes(context),
                    target_address: u64::from_be_bytes(address),
                    segment_length: bytes,
                },
            }),
            _ => return None,
        };
        let sane = *magic == MAGIC && depth > 0 && (1..=MAX_BYTES).contains(&bytes);
        sane.then_some(Self {
            role,
            more: u16::from_be_bytes(more),
            depth,
            bytes,
            reverse,
        })
    }
}

/// Private data of the passive end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelloReply {
    pub(crate) memory: RmrTriplet,
    /// Address of the count of the passive end's own operations.
    pub(crate) count: u64,
    /// True if the passive end's function is simulated.
    pub(crate) simulated: bool,
}

impl HelloReply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut data = MAGIC.to_vec();
        data.extend(u32::from(self.simulated).to_be_bytes());
        data.extend(self.memory.rmr_context.to_be_bytes());
        data.extend(self.memory.target_address.to_be_bytes());
        data.extend(self.memory.segment_length.to_be_bytes());
        data.extend(self.count.to_be_bytes());
        data
    }

    /// Decodes the private data of an accept. Returns `None` if it is too short, or if its magic or flags are wrong.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (&[0, 0, 0, flags @ (0 | 1)], rest) = rest.split_first_chunk()? else {
            return None;
        };
        let (&context, rest) = rest.split_first_chunk()?;
        let (&address, rest) = rest.split_first_chunk()?;
        let (&bytes, rest) = rest.split_first_chunk()?;
        let (&count, _) = rest.split_first_chunk()?;
        (*magic == MAGIC).then_some(Self {
            memory: RmrTriplet {
                rmr_context: u32::from_be_bytes(context),
                target_address: u64::from_be_bytes(address),
                segment_length: u64::from_be_bytes(bytes),
            },
            count: u64::from_be_bytes(count),
            simulated: flags == 1,
        })
    }

    /// Returns a triplet of the 8 bytes that hold the count.
    pub(crate) fn count(&self) -> RmrTriplet {
        RmrTriplet {
            target_address: self.count,
            segment_length: 8,
            ..self.memory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        role: Role::Memory,
        more: 3,
        depth: 16,
        bytes: 65_536,
        reverse: Some(Reverse {
            reads: true,
            memory: MEMORY,
        }),
    };
    const MEMORY: RmrTriplet = RmrTriplet {
        rmr_context: 0x1234_5678,
        target_address: 0x7f00_0000_1000,
        segment_length: 65_536,
    };
    const REPLY: HelloReply = HelloReply {
        memory: MEMORY,
        count: 0x7f00_0002_0000,
        simulated: true,
    };

    #[test]
    fn what_is_said_is_understood_even_with_the_zeros_a_port_appends() {
        let mut data = HELLO.encode();
        assert_eq!(Hello::decode(&data), Some(HELLO));
        data.resize(56, 0);
        assert_eq!(Hello::decode(&data), Some(HELLO));
        let mut data = REPLY.encode();
        data.resize(56, 0);
        assert_eq!(HelloReply::decode(&data), Some(REPLY));
    }

    #[test]
    fn what_is_cut_short_or_somebody_elses_is_not_understood() {
        let (hello, memory) = (HELLO.encode(), REPLY.encode());
        for length in 0..hello.len() {
            assert_eq!(Hello::decode(&hello[..length]), None, "{length} bytes");
        }
        for length in 0..memory.len() {
            assert_eq!(
                HelloReply::decode(&memory[..length]),
                None,
                "{length} bytes"
            );
        }
        for at in 0..10 {
            let mut other = hello.clone();
            other[at] ^= 0x80;
            assert_eq!(Hello::decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn messages_of_no_bytes_of_too_many_or_none_at_a_time_are_not_understood() {
        for hello in [
            Hello { depth: 0, ..HELLO },
            Hello { bytes: 0, ..HELLO },
            Hello {
                bytes: MAX_BYTES + 1,
                ..HELLO
            },
        ] {
            assert_eq!(Hello::decode(&hello.encode()), None);
        }
    }
}
