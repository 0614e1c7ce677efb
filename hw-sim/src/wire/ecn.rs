//! Explicit congestion notification (RFC 3168): two bits of IPv4's type of service and of IPv6's traffic class.

/// Meaning of a packet's ECN bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not react to marks.
    NotCapable,
    /// The sender reacts to marks.
    Capable,
    /// The packet was marked: congestion experienced.
    Marked,
}

/// The bits of ECT(0), a capable sender.
pub const ECT_0: u8 = 0b10;
/// The bits of CE, congestion experienced.
pub const CE: u8 = 0b11;

impl Ecn {
    /// Returns the meaning of a traffic class.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            CE => Self::Marked,
            _ => Self::Capable,
        }
    }
}
