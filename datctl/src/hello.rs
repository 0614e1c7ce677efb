//! What the two ends of `ping` and `perf` tell each other in the private data of a connection.
//!
//! The active end says what the passive one is to do, so that a listener needs no options; the passive end says where
//! its memory is. Both fit the 56 bytes that an RDMA-CM port leaves. Numbers are big-endian. What comes from the peer
//! is checked here and by whoever uses it.
//!
//! ```text
//! request:  magic 8 | role 1 | connections to follow 1 | 0 2 | depth 4 | bytes of a message 8
//! accept:   magic 8 | 0 4 | RMR context 4 | address 8 | bytes 8
//! ```

use udapl::RmrTriplet;

const MAGIC: [u8; 8] = *b"datctl 1";
/// The longest message.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// What the passive end does on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends every message back.
    Echo = 0,
    /// Takes messages and forgets them.
    Sink = 1,
    /// Gives memory to write to and read from.
    Memory = 2,
}

/// What the active end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) role: Role,
    /// Connections that follow this one.
    pub(crate) more: u8,
    /// Messages under way at a time.
    pub(crate) depth: u32,
    /// Bytes of the longest message.
    pub(crate) bytes: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut data = MAGIC.to_vec();
        data.extend([self.role as u8, self.more, 0, 0]);
        data.extend(self.depth.to_be_bytes());
        data.extend(self.bytes.to_be_bytes());
        data
    }

    /// Nothing for what no datctl of this version says.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (&[role, more, 0, 0], rest) = rest.split_first_chunk()? else {
            return None;
        };
        let (&depth, rest) = rest.split_first_chunk()?;
        let (&bytes, _) = rest.split_first_chunk()?;
        let (depth, bytes) = (u32::from_be_bytes(depth), u64::from_be_bytes(bytes));
        let role = match role {
            0 => Role::Echo,
            1 => Role::Sink,
            2 => Role::Memory,
            _ => return None,
        };
        let sane = *magic == MAGIC && depth > 0 && (1..=MAX_BYTES).contains(&bytes);
        sane.then_some(Self {
            role,
            more,
            depth,
            bytes,
        })
    }
}

/// What the passive end says: its memory.
pub(crate) fn encode_memory(memory: &RmrTriplet) -> Vec<u8> {
    let mut data = MAGIC.to_vec();
    data.extend([0; 4]);
    data.extend(memory.rmr_context.to_be_bytes());
    data.extend(memory.target_address.to_be_bytes());
    data.extend(memory.segment_length.to_be_bytes());
    data
}

/// Nothing for what no datctl of this version says.
pub(crate) fn decode_memory(data: &[u8]) -> Option<RmrTriplet> {
    let (magic, rest) = data.split_first_chunk()?;
    let (&[0, 0, 0, 0], rest) = rest.split_first_chunk()? else {
        return None;
    };
    let (&context, rest) = rest.split_first_chunk()?;
    let (&address, rest) = rest.split_first_chunk()?;
    let (&bytes, _) = rest.split_first_chunk()?;
    (*magic == MAGIC).then_some(RmrTriplet {
        rmr_context: u32::from_be_bytes(context),
        target_address: u64::from_be_bytes(address),
        segment_length: u64::from_be_bytes(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        role: Role::Memory,
        more: 3,
        depth: 16,
        bytes: 65_536,
    };
    const MEMORY: RmrTriplet = RmrTriplet {
        rmr_context: 0x1234_5678,
        target_address: 0x7f00_0000_1000,
        segment_length: 65_536,
    };

    #[test]
    fn what_is_said_is_understood_even_with_the_zeros_a_port_appends() {
        let mut data = HELLO.encode();
        assert_eq!(Hello::decode(&data), Some(HELLO));
        data.resize(56, 0);
        assert_eq!(Hello::decode(&data), Some(HELLO));
        let mut data = encode_memory(&MEMORY);
        data.resize(56, 0);
        assert_eq!(decode_memory(&data), Some(MEMORY));
    }

    #[test]
    fn what_is_cut_short_or_somebody_elses_is_not_understood() {
        let (hello, memory) = (HELLO.encode(), encode_memory(&MEMORY));
        for length in 0..hello.len() {
            assert_eq!(Hello::decode(&hello[..length]), None, "{length} bytes");
        }
        for length in 0..memory.len() {
            assert_eq!(decode_memory(&memory[..length]), None, "{length} bytes");
        }
        for at in 0..12 {
            let mut other = hello.clone();
            other[at] ^= 0x80;
            assert!(Hello::decode(&other).is_none_or(|hello| hello.more & 0x80 != 0));
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
