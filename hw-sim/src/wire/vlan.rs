//! Content of a VLAN tag (IEEE 802.1Q).

use serde::{Deserialize, Serialize};

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// VLAN identifier, 12 bits.
    pub id: u16,
    /// Priority code point, 3 bits.
    pub priority: u8,
}

impl Vlan {
    /// Returns the priority and the VLAN identifier in a tag control field.
    #[must_use]
    pub const fn of_control(control: u16) -> Self {
        let [high, _] = control.to_be_bytes();
        Self {
            id: control & 0x0fff,
            priority: high >> 5,
        }
    }

    /// Returns the tag control field (IEEE 802.1Q) with this priority and identifier. The drop eligible bit is 0.
    #[must_use]
    pub fn control(self) -> u16 {
        u16::from(self.priority & 7) << 13 | (self.id & 0x0fff)
    }
}
