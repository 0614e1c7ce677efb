//! Settings with which a function is opened as an adapter.

use hw_mlx::HcaConfig;

/// Whether a function takes part in the network: finds peers by ARP and neighbour discovery, is found by them, and
/// answers `ping`. That takes an Ethernet port with steering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Participation {
    /// It does not. Peers have to be among the configured neighbours or have an address made of their MAC, and need
    /// an entry for us in their own tables.
    #[default]
    Off,
    /// It does if the device allows it; otherwise the adapter opens without ([`NetworkState::Without`]).
    ///
    /// [`NetworkState::Without`]: crate::NetworkState::Without
    IfPossible,
    /// It does; if it cannot, the adapter does not open.
    Required,
}

/// Settings of the function, and its part in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderConfig {
    /// The function.
    pub hca: HcaConfig,
    /// Participation in the network.
    pub network: Participation,
}

/// Opens the function without a part in the network.
impl From<HcaConfig> for ProviderConfig {
    fn from(hca: HcaConfig) -> Self {
        Self {
            hca,
            network: Participation::Off,
        }
    }
}
