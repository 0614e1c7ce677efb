//! Positions of functions in the simulator, and the ports of the e-switch.

/// Number of the physical function's vport.
pub const PHYSICAL: u16 = 0;

/// Position of a function in the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Index of the card in the simulator.
    pub card: usize,
    /// Number of the function's vport on the card.
    pub vport: u16,
}

impl Seat {
    /// Returns whether the function is virtual.
    pub const fn is_virtual(self) -> bool {
        self.vport != PHYSICAL
    }
}

/// Number of the wire in flow tables (Linux `MLX5_VPORT_UPLINK`).
pub const WIRE: u16 = 0xffff;

/// A port of the e-switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The vport with this number.
    Vport(u16),
    /// The wire.
    Wire,
}
