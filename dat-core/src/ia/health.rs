//! State of the device as an IA knows it, and the device's last error.

use crate::error::{DatError, DatResult, ReturnType, Subtype};

/// Reason why no new work is started.
const WANTED: &str = "the system wants the device back: close the adapter";

#[derive(Default)]
pub(in crate::ia) struct Health {
    dead: bool,
    /// True if the device is wanted back.
    leaving: bool,
    said: Option<String>,
}

impl Health {
    pub(in crate::ia) const fn is_dead(&self) -> bool {
        self.dead
    }

    pub(in crate::ia) const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Marks the device as dead. Returns false if it was dead before.
    pub(in crate::ia) const fn die(&mut self) -> bool {
        !core::mem::replace(&mut self.dead, true)
    }

    /// Marks the device as wanted back. Returns false if it was before, or is dead.
    pub(in crate::ia) fn leave(&mut self) -> bool {
        if self.dead || core::mem::replace(&mut self.leaving, true) {
            return false;
        }
        self.note(WANTED.to_owned());
        true
    }

    /// Stores the device's error.
    pub(in crate::ia) fn note(&mut self, said: String) {
        self.said = Some(said);
    }

    pub(in crate::ia) fn last_word(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Fails for calls that need the device once it is dead, and for calls that start something once it is wanted
    /// back.
    pub(in crate::ia) fn check(&self) -> DatResult<()> {
        let why = match (self.dead, self.leaving) {
            (true, _) => "the device is dead",
            (false, true) => WANTED,
            (false, false) => return Ok(()),
        };
        Err(DatError::new(ReturnType::InternalError, Subtype::None).because(why))
    }
}
