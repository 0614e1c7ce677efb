//! Settings for opening a function as an adapter.

use hw_mlx::HcaConfig;

/// Participation of a function in the network protocols: the function resolves peers by ARP and neighbour discovery,
/// answers such requests of peers, and answers `ping`. Participation needs an Ethernet port with steering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Participation {
    /// The function does not take part. Peers must be among the configured neighbours or have an address made of their
    /// MAC, and need an entry for us in their own tables.
    #[default]
    Off,
    /// The function takes part if the device allows it. Otherwise the adapter opens without the network
    /// ([`NetworkState::Without`]).
    ///
    /// [`NetworkState::Without`]: crate::NetworkState::Without
    IfPossible,
    /// The function takes part. If it cannot, the adapter does not open.
    Required,
}

/// Settings of a function and of its participation in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Settings of the function.
    pub hca: HcaConfig,
    /// Participation in the network.
    pub network: Participation,
}

/// Makes settings for a function that does not take part in the network.
impl From<HcaConfig> for ProviderConfig {
    fn from(hca: HcaConfig) -> Self {
        Self {
            hca,
            network: Participation::Off,
        }
    }
}
