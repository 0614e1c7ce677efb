//! What client and target send each other.

use anyhow::{Context, Result, bail};
use udapl::{ConnQual, RmrTriplet};

/// Where the target listens.
pub const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0009);
/// Bytes of either message.
pub const MESSAGE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// "Move this block", with where it is or goes in the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub kind: Kind,
    /// The client's name for it, which comes back.
    pub tag: u16,
    pub block: u64,
    pub place: RmrTriplet,
}

/// "It is done", or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    pub tag: u16,
    /// An `errno` of the disk's; 0 is success.
    pub error: u32,
}

impl Command {
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[0] = u8::from(self.kind == Kind::Write);
        bytes[2..4].copy_from_slice(&self.tag.to_be_bytes());
        bytes[4..24].copy_from_slice(&self.place.to_bytes());
        bytes[24..].copy_from_slice(&self.block.to_be_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().context("the length of a command")?;
        let kind = match bytes[0] {
            0 => Kind::Read,
            1 => Kind::Write,
            other => bail!("command {other}: there is 0, read, and 1, write"),
        };
        Ok(Self {
            kind,
            tag: u16::from_be_bytes([bytes[2], bytes[3]]),
            block: u64::from_be_bytes(bytes[24..].try_into()?),
            place: RmrTriplet::from_bytes(&bytes[4..24]).context("a place")?,
        })
    }
}

impl Response {
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..2].copy_from_slice(&self.tag.to_be_bytes());
        bytes[2..6].copy_from_slice(&self.error.to_be_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().context("the length of a response")?;
        Ok(Self {
            tag: u16::from_be_bytes([bytes[0], bytes[1]]),
            error: u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
        })
    }
}
