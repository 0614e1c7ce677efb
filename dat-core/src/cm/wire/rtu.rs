//! RTU, ready to use: the third message of the handshake (IBTA volume 1, chapter 12, "RTU Message
//! Contents").

use layout::layout;

use super::mad::{Mad, body, put};

layout! {
    /// An RTU or a DREP after the MAD header: two communication IDs and private data.
    pub struct PairLayout(0xe8) {
        local_comm_id: 0x00 u32,
        remote_comm_id: 0x04 u32,
        private_data: 0x08 [u8; 224],
    }
}

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
