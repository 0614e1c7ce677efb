//! MRA, the message receipt acknowledgement: its sender has received a message and will take longer to answer (IBTA
//! volume 1, chapter 12, "MRA Message Contents").

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{HEADER_BYTES, MAD_BYTES, Mad, bits, body, body_mut};
use super::rej::Rejected;

/// Private data bytes of an MRA.
pub const PRIVATE_DATA_BYTES: usize = 222;

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MraLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message MRAed, bits 7:6.
    message_mraed: u8,
    /// Service timeout, bits 7:3.
    service_timeout: u8,
    private_data: [u8; PRIVATE_DATA_BYTES],
}
const_assert_eq!(size_of::<MraLayout>(), MAD_BYTES - HEADER_BYTES);
const_assert_eq!(offset_of!(MraLayout, remote_comm_id), 4);
const_assert_eq!(offset_of!(MraLayout, message_mraed), 8);
const_assert_eq!(offset_of!(MraLayout, service_timeout), 9);
const_assert_eq!(offset_of!(MraLayout, private_data), 10);

/// A message receipt acknowledgement. Its private data is not used: it is ignored, and sent as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MraRepr {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// Kind of the message that was received.
    pub acknowledged: Rejected,
    /// Time that the answer may take (5 bits, 4.096 us * 2^n).
    pub service_timeout: u8,
}

impl MraRepr {
    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &MraLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id.get(),
            remote_comm_id: layout.remote_comm_id.get(),
            acknowledged: Rejected::from_bits(layout.message_mraed >> 6),
            service_timeout: layout.service_timeout >> 3,
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let layout: &mut MraLayout = body_mut(mad);
        layout.local_comm_id.set(self.local_comm_id);
        layout.remote_comm_id.set(self.remote_comm_id);
        layout.message_mraed = bits(self.acknowledged.code(), 2, 6);
        layout.service_timeout = bits(self.service_timeout, 5, 3);
        layout.private_data = [0; PRIVATE_DATA_BYTES];
    }
}
