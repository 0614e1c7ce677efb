//! Places: where a function sits, and the sides of a switch.

/// The physical function's vport.
pub const PHYSICAL: u16 = 0;

/// Where a function sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// The card, by its place in the world.
    pub card: usize,
    /// Its vport.
    pub vport: u16,
}

impl Seat {
    /// Whether it is a virtual function's.
    pub const fn is_virtual(self) -> bool {
        self.vport != PHYSICAL
    }
}

/// The wire, as flow tables number it (Linux `MLX5_VPORT_UPLINK`).
pub const WIRE: u16 = 0xffff;

/// A side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A function.
    Vport(u16),
    /// The wire.
    Wire,
}
