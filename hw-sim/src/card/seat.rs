//! Positions: where a function sits, and the sides of a switch.

/// The physical function's vport.
pub const PHYSICAL: u16 = 0;

/// Position of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Index of the card in the world.
    pub card: usize,
    /// Number of its vport on the card.
    pub vport: u16,
}

impl Seat {
    /// Returns whether the function is virtual.
    pub const fn is_virtual(self) -> bool {
        self.vport != PHYSICAL
    }
}

/// The wire's number in flow tables (Linux `MLX5_VPORT_UPLINK`).
pub const WIRE: u16 = 0xffff;

/// A side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A function.
    Vport(u16),
    /// The wire.
    Wire,
}
