//! Health of the device from the view of an IA, and the text of the last error of the device, of the network or of the
//! connection manager.

use crate::error::{DatError, DatResult, ReturnType, Subtype};

/// Text of the error of calls that start new work after the system has requested the device's release.
const WANTED: &str = "the system wants the device back: close the adapter";

#[derive(Default)]
pub(in crate::ia) struct Health {
    dead: bool,
    /// True if the system has requested that the device be released.
    release_requested: bool,
    said: Option<String>,
}

impl Health {
    pub(in crate::ia) const fn is_dead(&self) -> bool {
        self.dead
    }

    pub(in crate::ia) const fn is_release_requested(&self) -> bool {
        self.release_requested
    }

    /// Marks the device as dead. Returns false if it was dead before.
    pub(in crate::ia) const fn mark_dead(&mut self) -> bool {
        !core::mem::replace(&mut self.dead, true)
    }

    /// Records that the system has requested the device's release. Returns false if this was recorded before, or if the
    /// device is dead.
    pub(in crate::ia) fn mark_release_requested(&mut self) -> bool {
        if self.dead || core::mem::replace(&mut self.release_requested, true) {
            return false;
        }
        self.note(WANTED.to_owned());
        true
    }

    /// Stores the text of the last error.
    pub(in crate::ia) fn note(&mut self, said: String) {
        self.said = Some(said);
    }

    pub(in crate::ia) fn last_error(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Fails if the device is dead, or if the system has requested its release. Calls that need the device, or that
    /// start new work, check this first.
    pub(in crate::ia) fn check(&self) -> DatResult<()> {
        let why = match (self.dead, self.release_requested) {
            (true, _) => "the device is dead",
            (false, true) => WANTED,
            (false, false) => return Ok(()),
        };
        Err(DatError::new(ReturnType::InternalError, Subtype::None).because(why))
    }
}
