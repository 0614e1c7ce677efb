//! What whoever opens a function as an adapter may choose.

use hw_mlx::HcaConfig;

/// Whether a function takes part in the network: finds peers by ARP and neighbour discovery, is found by them, and
/// answers `ping`. That takes an Ethernet port with steering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Participation {
    /// It does not. Peers have to be among the neighbours or have an address made of their MAC, and need an entry for
    /// us in their own tables.
    #[default]
    Off,
    /// It does if the device lets it, and opens without otherwise ([`NetworkState::Without`]).
    ///
    /// [`NetworkState::Without`]: crate::NetworkState::Without
    IfPossible,
    /// It does, or does not open.
    Required,
}

/// How to open a function as an adapter: the function itself, and its part in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderConfig {
    /// The function.
    pub hca: HcaConfig,
    /// Whether it takes part in the network.
    pub network: Participation,
}

/// Without a part in the network.
impl From<HcaConfig> for ProviderConfig {
    fn from(hca: HcaConfig) -> Self {
        Self {
            hca,
            network: Participation::Off,
        }
    }
}
