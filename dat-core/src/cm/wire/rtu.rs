//! RTU, ready to use: the third message of the handshake (IBTA volume 1, chapter 12, "RTU Message
//! Contents").

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{HEADER_BYTES, MAD_BYTES, Mad, body, body_mut};

/// Length of the private data of an RTU, and of a DREP, in bytes.
pub const PRIVATE_DATA_BYTES: usize = 224;

/// Layout of an RTU and of a DREP: two communication IDs and private data.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct PairLayout {
    pub(super) local_comm_id: U32,
    pub(super) remote_comm_id: U32,
    pub(super) private_data: [u8; PRIVATE_DATA_BYTES],
}
const_assert_eq!(size_of::<PairLayout>(), MAD_BYTES - HEADER_BYTES);
const_assert_eq!(offset_of!(PairLayout, remote_comm_id), 4);
const_assert_eq!(offset_of!(PairLayout, private_data), 8);

/// Ready to use. Its private data is ignored and sent as zeros: DAT has none here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtuRepr {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
}

impl RtuRepr {
    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &PairLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id.get(),
            remote_comm_id: layout.remote_comm_id.get(),
        }
    }

    /// Writes the message after the MAD header.
    pub fn emit(&self, mad: &mut Mad) {
        let layout: &mut PairLayout = body_mut(mad);
        layout.local_comm_id.set(self.local_comm_id);
        layout.remote_comm_id.set(self.remote_comm_id);
        layout.private_data = [0; PRIVATE_DATA_BYTES];
    }
}
