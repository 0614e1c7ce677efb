//! Joining the network, and opening without the network if joining fails.

use hw_mlx::random::Random;
use hw_mlx::uar::Doorbells;
use hw_mlx::{Hca, MlxError};

use super::MlxProvider;
use crate::config::Participation;
use crate::network::Network;

/// Participation of a function in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// The configuration does not request participation ([`Participation::Off`]).
    Off,
    /// The function takes part.
    Joined,
    /// The function could not join for this reason ([`Participation::IfPossible`]), or its Ethernet port was given up
    /// later. Configured neighbours and peers whose addresses contain their MACs are reachable. After a give-up, so are
    /// peers whose MACs were known.
    Without(String),
}

/// Joins the network. With [`Participation::IfPossible`] a failure that leaves the device usable is returned as text,
/// and the adapter opens without the network.
///
/// # Errors
/// The network is required and cannot be joined, or the device does not answer as it should.
pub(super) fn join(
    hca: &mut Hca,
    doorbells: &Doorbells,
    participation: Participation,
    seed: Option<u64>,
) -> Result<(Option<Network>, Option<String>), MlxError> {
    if participation == Participation::Off {
        return Ok((None, None));
    }
    let mut random = Random::of_function(seed, "network")?;
    let error = match Network::join(hca, doorbells, &mut random) {
        Ok(network) => return Ok((Some(network), None)),
        Err(error @ MlxError::TooManyGroups { .. }) => MlxError::NoNetwork(error.to_string()),
        Err(error) => error,
    };
    if participation == Participation::Required || !can_continue(hca, &error) {
        return Err(error);
    }
    let why = if let MlxError::NoNetwork(why) = error {
        why
    } else {
        error.to_string()
    };
    tracing::warn!(
        function = hca.name(),
        why,
        "no part in the network: peers are found among the configured neighbours only"
    );
    Ok((None, Some(why)))
}

/// Returns true if the function can be used after the failed attempt: the device is alive, and the device refused a
/// command or lacks a feature, or memory is short.
fn can_continue(hca: &Hca, error: &MlxError) -> bool {
    let is_harmless = if let MlxError::Cmd(error) = error {
        error.is_refusal()
    } else {
        matches!(
            error,
            MlxError::NoNetwork(_)
                | MlxError::Dma(_)
                | MlxError::Untranslatable { .. }
                | MlxError::TranslationTooLarge { .. }
                | MlxError::QueueTooLarge { .. }
                | MlxError::NoSuchGid { .. }
                | MlxError::Missing(_)
        )
    };
    is_harmless && hca.dead_cause().is_none()
}

impl MlxProvider {
    /// Returns the function's participation in the network. The call may wait while another instance repairs the port.
    #[must_use]
    pub fn network_state(&self) -> NetworkState {
        match (self.common.network(), &self.common.without_network) {
            (Some(network), _) if network.is_given_up() => {
                let why = "the device did not answer a command that repairs the Ethernet port";
                NetworkState::Without(why.to_owned())
            }
            (Some(_), _) => NetworkState::Joined,
            (None, Some(why)) => NetworkState::Without(why.clone()),
            (None, None) => NetworkState::Off,
        }
    }
}
