//! DREQ and DREP, the end of a connection (IBTA volume 1, chapter 12, "DREQ Message Contents" and
//! "DREP Message Contents").

use layout::layout;

use super::mad::{Mad, body, put};
use super::rtu::PairLayout;
use crate::provider::Qpn;

layout! {
    /// A DREQ after the MAD header.
    pub struct DreqLayout(0xe8) {
        local_comm_id: 0x00 u32,
        remote_comm_id: 0x04 u32,
        remote_qpn: 0x08 (Qpn[31:8]),
        private_data: 0x0c [u8; 220],
    }
}

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
            local_comm_id: layout.local_comm_id(),
            remote_comm_id: layout.remote_comm_id(),
            remote_qpn: layout.remote_qpn(),
        }
    }

    /// Writes the message after the MAD header.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = DreqLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_remote_comm_id(self.remote_comm_id)
            .set_remote_qpn(self.remote_qpn);
        put(mad, layout.as_array());
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
            local_comm_id: layout.local_comm_id(),
            remote_comm_id: layout.remote_comm_id(),
        }
    }

    /// Writes the message after the MAD header.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = PairLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_remote_comm_id(self.remote_comm_id);
        put(mad, layout.as_array());
    }
}
