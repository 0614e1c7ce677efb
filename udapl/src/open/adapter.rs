//! An open adapter, from which instances are opened.

use dat_core::{IaConfig, Opened, ReturnType};
use dat_mlx::OpenedProvider;

use super::error::OpenError;
use crate::ia::Ia;

/// An open adapter, from which each thread opens an instance of its own. It can also start a background thread for
/// times when the program's threads are busy ([`Adapter::background_thread`]).
///
/// An [`Ia`] is used by one thread at a time, and can be sent to another. Each instance has its own queues, objects
/// and descriptor to sleep on: a post, a poll and a dequeue share nothing with another instance. The instances share
/// the port and its addresses, memory (memory allocated through one can be registered in all), and the connection
/// manager. The adapter is closed with its last instance.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    device: OpenedProvider,
    dat: Opened,
}

impl Adapter {
    /// Returns the adapter of an instance.
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
    /// [`OpenError::Closed`]. [`OpenError::BringUp`]: the device lacks the resources for another instance. Errors of
    /// DAT about `config`.
    pub fn instance(&self, config: IaConfig) -> Result<Ia, OpenError> {
        let closed = || OpenError::Closed {
            name: self.name.clone(),
        };
        let provider = self.device.instance().map_err(|error| OpenError::BringUp {
            name: self.name.clone(),
            error,
        })?;
        let made = self.dat.instance(provider.ok_or_else(closed)?, config);
        made.map(with_recorder_folder).map_err(|error| {
            // The last instance was closed in the meantime.
            if error.return_type() == ReturnType::InvalidHandle {
                closed()
            } else {
                error.into()
            }
        })
    }
}

/// Makes an instance write dumps of its flight recorder to the recorder folder of its adapter, if there is one.
pub(super) fn with_recorder_folder(ia: Ia) -> Ia {
    #[cfg(feature = "control")]
    let ia = crate::recorder::with_folder(ia);
    ia
}
