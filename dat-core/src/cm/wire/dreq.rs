//! DREQ and DREP, the end of a connection (IBTA volume 1, chapter 12, "DREQ Message Contents" and
//! "DREP Message Contents").

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{HEADER_BYTES, MAD_BYTES, Mad, U24, body, body_mut};
use super::rtu::{self, PairLayout};
use crate::provider::Qpn;

/// Private data bytes of a DREQ.
pub const PRIVATE_DATA_BYTES: usize = 220;

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DreqLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    remote_qpn: U24,
    rsvd_0b: u8,
    private_data: [u8; PRIVATE_DATA_BYTES],
}
const_assert_eq!(size_of::<DreqLayout>(), MAD_BYTES - HEADER_BYTES);
const_assert_eq!(offset_of!(DreqLayout, remote_comm_id), 4);
const_assert_eq!(offset_of!(DreqLayout, remote_qpn), 8);
const_assert_eq!(offset_of!(DreqLayout, private_data), 12);

/// A request for disconnection. Its private data is ignored and sent as zeros: DAT has none here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DreqRepr {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
}

impl DreqRepr {
    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &DreqLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id.get(),
            remote_comm_id: layout.remote_comm_id.get(),
            remote_qpn: Qpn::new(layout.remote_qpn.get()),
        }
    }

    /// Writes the message after the MAD header.
    pub fn emit(&self, mad: &mut Mad) {
        let layout: &mut DreqLayout = body_mut(mad);
        layout.local_comm_id.set(self.local_comm_id);
        layout.remote_comm_id.set(self.remote_comm_id);
        layout.remote_qpn.set(self.remote_qpn.get());
        layout.rsvd_0b = 0;
        layout.private_data = [0; PRIVATE_DATA_BYTES];
    }
}

/// The reply to a request for disconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrepRepr {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
}

impl DrepRepr {
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
        layout.private_data = [0; rtu::PRIVATE_DATA_BYTES];
    }
}
