//! Whether a function takes part in the network, and what becomes of one that cannot.

use hw_mlx::random::Random;
use hw_mlx::uar::Doorbells;
use hw_mlx::{Hca, MlxError};

use super::MlxProvider;
use crate::config::Participation;
use crate::network::Network;

/// Whether a function takes part in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// It was not asked to ([`Participation::Off`]).
    Off,
    /// It does.
    Joined,
    /// It was to if it could, and cannot, for this reason. Peers are found among the configured neighbours, and by
    /// addresses made of their MACs.
    Without(String),
}

/// Joins the network. With [`Participation::IfPossible`] a refusal is returned as text, and the adapter opens without.
///
/// # Errors
/// The network is required and cannot be joined; or the device does not answer as it should.
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
    if participation == Participation::Required || !is_well(hca, &error) {
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

/// Whether the device is as well as it was before an attempt that failed so: it refused a command, lacks what is
/// asked for, or memory is short.
fn is_well(hca: &Hca, error: &MlxError) -> bool {
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
    /// Whether the function takes part in the network.
    #[must_use]
    pub fn network_state(&self) -> NetworkState {
        match (&self.common.network, &self.common.without_network) {
            (Some(_), _) => NetworkState::Joined,
            (None, Some(why)) => NetworkState::Without(why.clone()),
            (None, None) => NetworkState::Off,
        }
    }
}
