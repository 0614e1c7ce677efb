//! MRA, the message receipt acknowledgement: its sender has received a message and will take longer to answer (IBTA
//! volume 1, chapter 12, "MRA Message Contents").

use layout::layout;

use super::mad::{Mad, body, narrow, put};
use super::rej::Rejected;

layout! {
    /// An MRA after the MAD header.
    pub struct MraLayout(0xe8) {
        local_comm_id: 0x00 u32,
        remote_comm_id: 0x04 u32,
        message_mraed: 0x08 (Rejected[31:30]),
        service_timeout: 0x08[23:19],
        private_data: 0x0a [u8; 222],
    }
}

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
            local_comm_id: layout.local_comm_id(),
            remote_comm_id: layout.remote_comm_id(),
            acknowledged: layout.message_mraed(),
            service_timeout: narrow(layout.service_timeout()),
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = MraLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_remote_comm_id(self.remote_comm_id)
            .set_message_mraed(self.acknowledged)
            .set_service_timeout(self.service_timeout.into());
        put(mad, layout.as_array());
    }
}
