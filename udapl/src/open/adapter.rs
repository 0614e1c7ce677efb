//! An adapter that is open, for those who have no instance of it.

use dat_core::{IaConfig, Opened, ReturnType};
use dat_mlx::OpenedProvider;

use super::error::OpenError;
use crate::ia::Ia;

/// An adapter that is open, for threads that want an instance of it each, and for a thread that looks after it while
/// they are busy ([`Adapter::attended`]).
///
/// An [`Ia`] is one thread's at a time, and it can be sent to another. The instances of an adapter have queues, objects
/// and a descriptor to sleep on of their own; a post, a poll and a dequeue share nothing with another instance. They
/// have in common the port and its addresses, memory (what was allocated through one can be registered in all), and the
/// connection manager. An adapter is closed with its last instance.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    device: OpenedProvider,
    dat: Opened,
}

impl Adapter {
    /// The adapter of an instance.
    #[must_use]
    pub fn of(ia: &Ia) -> Self {
        Self {
            name: ia.provider().hca().name().to_owned(),
            device: ia.provider().opened(),
            dat: ia.opened(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn device(&self) -> &OpenedProvider {
        &self.device
    }

    pub(crate) const fn dat(&self) -> &Opened {
        &self.dat
    }

    /// Opens one more instance.
    ///
    /// # Errors
    /// [`OpenError::Closed`]; [`OpenError::BringUp`]: the device has no room for one more; DAT's refusal of `config`.
    pub fn instance(&self, config: IaConfig) -> Result<Ia, OpenError> {
        let closed = || OpenError::Closed {
            name: self.name.clone(),
        };
        let provider = self.device.instance().map_err(|error| OpenError::BringUp {
            name: self.name.clone(),
            error,
        })?;
        let made = self.dat.instance(provider.ok_or_else(closed)?, config);
        made.map(kept).map_err(|error| {
            // Its last instance was closed meanwhile.
            if error.return_type() == ReturnType::InvalidHandle {
                closed()
            } else {
                error.into()
            }
        })
    }
}

/// Has an instance keep what it records, if its adapter does.
pub(super) fn kept(ia: Ia) -> Ia {
    #[cfg(feature = "control")]
    let ia = crate::recorder::kept_by(ia);
    ia
}
