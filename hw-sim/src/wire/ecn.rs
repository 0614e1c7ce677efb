//! Explicit congestion notification (RFC 3168): two bits of IPv4's type of service and of IPv6's traffic class.

/// What the ECN bits of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Its sender does not listen to marks.
    NotCapable,
    /// Its sender does.
    Capable,
    /// Congestion was experienced.
    Marked,
}

/// The bits of ECT(0), a capable sender.
pub const ECT_0: u8 = 0b10;
/// The bits of CE, congestion experienced.
pub const CE: u8 = 0b11;

impl Ecn {
    /// What a traffic class says.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            CE => Self::Marked,
            _ => Self::Capable,
        }
    }
}
