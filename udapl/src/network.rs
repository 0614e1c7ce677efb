//! The port, its addresses, and the network around it.
//!
//! An adapter has a link-local address and those of its options ([`Address`], with prefix, gateway and [`Vlan`]);
//! [`Ia::address_add`](crate::Ia::address_add) adds an address while the adapter is open. The adapter finds the MAC of
//! a peer by ARP and neighbour discovery, if its [`Participation`] and the device allow that; [`state`] returns whether
//! they do. Otherwise it reaches only configured neighbours ([`OpenOptions::neighbour`](crate::OpenOptions::neighbour))
//! and addresses that contain the peer's MAC. [`port`] returns the [`Port`], with MAC, MTU and GUID. Changes of the
//! network arrive as [`NetworkEvent`](crate::event::NetworkEvent)s.

pub use dat_core::{Address, Echo, Vlan};
pub use dat_mlx::{NetworkState, Participation};
pub use hw_mlx::Port;

use crate::Ia;

/// Returns the port of an adapter, as it was at bring-up.
#[must_use]
pub fn port(ia: &Ia) -> &Port {
    ia.provider().hca().port()
}

/// Returns whether an adapter uses ARP and neighbour discovery, and if not, the reason.
///
/// [`NetworkState::Joined`] becomes [`NetworkState::Without`], and each instance gets
/// [`NetworkEvent::NotJoined`](crate::event::NetworkEvent::NotJoined), if the device does not answer a command that
/// repairs the Ethernet port: the port is then given up. Instances that are opened later are in the same state.
/// Connections stay, and known MACs stay in use. Configured neighbours and addresses that contain the peer's MAC are
/// reached as before. A peer whose MAC would have to be asked for is unreachable at once.
#[must_use]
pub fn state(ia: &Ia) -> NetworkState {
    ia.provider().network_state()
}
