//! Explicit congestion notification (RFC 3168): two bits of IPv4's type of service and of IPv6's traffic class.

/// ECN state of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECT: the sender does not react to congestion marks.
    NotCapable,
    /// ECT(0) or ECT(1): the sender reacts to congestion marks.
    Capable,
    /// CE: a switch or router marked the packet because of congestion.
    Marked,
}

/// Bits of ECT(0): the sender is ECN-capable.
pub const ECT_0: u8 = 0b10;
/// Bits of CE: congestion experienced.
pub const CE: u8 = 0b11;

impl Ecn {
    /// Returns the ECN state in a traffic class byte.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            CE => Self::Marked,
            _ => Self::Capable,
        }
    }
}
