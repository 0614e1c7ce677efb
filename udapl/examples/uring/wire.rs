//! Messages between client and target.

use anyhow::{Context, Result, bail};
use udapl::ConnQual;
use udapl::memory::RmrTriplet;

/// Service ID of the target.
pub const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0009);
/// Size of a command and of a response, in bytes.
pub const MESSAGE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// A command, which moves a block from or to the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub kind: Kind,
    /// The client's identifier of the command; the response repeats it.
    pub tag: u16,
    pub block: u64,
    pub place: RmrTriplet,
}

/// A response: success or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    pub tag: u16,
    /// An `errno`: of the disk, or of the target, which refuses the command; 0 is success.
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
