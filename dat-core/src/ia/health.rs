//! Whether the device is there for an IA, and what it said when it last refused something.

use crate::error::{DatError, DatResult, ReturnType, Subtype};

/// Why nothing new is begun.
const WANTED: &str = "the system wants the device back: close the adapter";

#[derive(Default)]
pub(in crate::ia) struct Health {
    dead: bool,
    /// The device is wanted back.
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

    /// The device is dead from now on. False: it has been before.
    pub(in crate::ia) const fn die(&mut self) -> bool {
        !core::mem::replace(&mut self.dead, true)
    }

    /// The device is wanted back from now on. False: it has been before, or is dead.
    pub(in crate::ia) fn leave(&mut self) -> bool {
        if self.dead || core::mem::replace(&mut self.leaving, true) {
            return false;
        }
        self.note(WANTED.to_owned());
        true
    }

    /// Keeps what the device said.
    pub(in crate::ia) fn note(&mut self, said: String) {
        self.said = Some(said);
    }

    pub(in crate::ia) fn last_word(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Calls that need the device fail once it is dead, and those that start something once it is wanted back.
    pub(in crate::ia) fn check(&self) -> DatResult<()> {
        let why = match (self.dead, self.leaving) {
            (true, _) => "the device is dead",
            (false, true) => WANTED,
            (false, false) => return Ok(()),
        };
        Err(DatError::new(ReturnType::InternalError, Subtype::None).because(why))
    }
}
