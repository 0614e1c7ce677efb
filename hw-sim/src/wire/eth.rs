//! Ethernet II header with at most one 802.1Q tag.

use super::bytes::put;
use super::frame::{CUSTOMER_TAG, Headers as FrameHeaders};
use super::{Vlan, WireError};

const PLAIN_BYTES: usize = 14;
const TAGGED_BYTES: usize = 18;

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthRepr {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// 802.1Q tag, if any.
    pub vlan: Option<Vlan>,
    /// Ethertype of the payload.
    pub ethertype: u16,
}

impl EthRepr {
    /// Reads the Ethernet header of a RoCE frame, which has at most one 802.1Q tag.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if the frame is shorter than the header. [`WireError::NotRoce`] if the frame has more
    /// tags or tags of another type.
    pub fn parse(frame: &[u8]) -> Result<Self, WireError> {
        let truncated = WireError::Truncated("Ethernet header");
        let headers = FrameHeaders::of(frame).ok_or(truncated)?;
        if headers.tag.is_none() && headers.ethertype == CUSTOMER_TAG {
            return Err(truncated);
        }
        let repr = Self {
            dst: headers.dst,
            src: headers.src,
            vlan: headers.vlan(),
            ethertype: headers.ethertype,
        };
        if repr.buffer_len() == headers.payload_at {
            Ok(repr)
        } else {
            Err(WireError::NotRoce)
        }
    }

    /// Returns the length of the header in bytes.
    pub const fn buffer_len(&self) -> usize {
        if self.vlan.is_some() {
            TAGGED_BYTES
        } else {
            PLAIN_BYTES
        }
    }

    /// Writes the header to the start of `out`, which must be long enough.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.dst);
        put(out, 6, self.src);
        if let Some(vlan) = self.vlan {
            put(out, 12, CUSTOMER_TAG.to_be_bytes());
            put(out, 14, vlan.control().to_be_bytes());
        }
        put(out, self.buffer_len() - 2, self.ethertype.to_be_bytes());
    }
}
