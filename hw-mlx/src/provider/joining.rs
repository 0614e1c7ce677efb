//! Whether a function takes part in the network, and what becomes of one that cannot.

use super::MlxProvider;
use crate::config::Participation;
use crate::device::Hca;
use crate::error::MlxError;
use crate::network::Network;
use crate::random::Random;
use crate::uar::Doorbells;

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

/// Joins the network as far as that was asked for; or else why not, if it was asked for and is not essential.
///
/// # Errors
/// It is essential and cannot be; or the device answers no more.
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

/// Whether the device is as well as it was before an attempt that failed so.
fn is_well(hca: &Hca, error: &MlxError) -> bool {
    let is_refusal = if let MlxError::Cmd(error) = error {
        error.is_refusal()
    } else {
        true
    };
    is_refusal && hca.dead_cause().is_none()
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
