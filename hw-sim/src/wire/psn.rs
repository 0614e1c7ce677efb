//! Packet sequence numbers.

/// A packet sequence number (PSN): 24 bits, ordered modulo 2^24 (IBTA volume 1, PSN rules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = (1 << 24) - 1;

    /// Returns the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// Returns the PSN as a number below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `n` packets later.
    #[must_use]
    pub const fn advance(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MASK)
    }

    /// Returns the PSN of the preceding packet.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & Self::MASK)
    }

    /// Returns how far `self` is ahead of `base`, as a signed distance in `-2^23..2^23`.
    pub const fn ahead_of(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }

    /// Returns how far `self` is ahead of `base`, as an unsigned distance in `0..2^24`.
    pub const fn distance_from(self, base: Self) -> u32 {
        self.0.wrapping_sub(base.0) & Self::MASK
    }
}
