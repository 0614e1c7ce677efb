//! Properties of every object: its kind, and one word of the consumer (`dat_get_handle_type`,
//! `dat_set_consumer_context`, `dat_get_consumer_context`).
//!
//! The words are kept beside the objects, not in them: most objects never get one, and the data that a post reads
//! stays small. A word is dropped with its object.

use crate::error::DatResult;
use crate::handle::{AnyHandle, HandleType};
use crate::ia::instance::Ia;
use crate::provider::Provider;

impl<P: Provider> Ia<P> {
    /// Stores a word of the program for an object, replacing the former one. 0 means none. The library does not
    /// interpret it.
    ///
    /// Page: dat_set_consumer_context.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind.
    pub fn set_consumer_context(
        &mut self,
        handle: impl Into<AnyHandle>,
        context: u64,
    ) -> DatResult<()> {
        let handle = handle.into();
        self.check_any(handle)?;
        if context == 0 {
            self.contexts.remove(&handle);
        } else {
            self.contexts.insert(handle, context);
        }
        Ok(())
    }

    /// Returns the word stored for an object, 0 if none.
    ///
    /// Page: dat_get_consumer_context.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind.
    pub fn get_consumer_context(&self, handle: impl Into<AnyHandle>) -> DatResult<u64> {
        let handle = handle.into();
        self.check_any(handle)?;
        Ok(self.contexts.get(&handle).copied().unwrap_or(0))
    }

    /// Returns the kind of an object.
    ///
    /// Page: dat_get_handle_type.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind that the handle claims: no such object exists.
    pub fn get_handle_type(&self, handle: impl Into<AnyHandle>) -> DatResult<HandleType> {
        let handle = handle.into();
        self.check_any(handle)?;
        Ok(handle.handle_type())
    }
}
