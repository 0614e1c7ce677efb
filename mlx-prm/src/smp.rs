//! The subnet management packet, which MAD_IFC carries (IBTA volume 1, section 14.2).

use layout::layout;

layout! {
    /// Subnet management packet, LID routed (IBTA volume 1, figure "SMP Format - LID Routed").
    pub struct Smp(0x100) {
        base_version: 0x00 u8,
        mgmt_class: 0x01 u8,
        class_version: 0x02 u8,
        method: 0x03 u8,
        status: 0x04 u16,
        transaction_id: 0x08 u64,
        attribute_id: 0x10 u16,
        attribute_modifier: 0x14 u32,
        m_key: 0x18 u64,
        data: 0x40 [u8; 64],
    }
}
