//! Properties of every object: its kind, and its consumer context, a 64-bit number (`dat_get_handle_type`,
//! `dat_set_consumer_context`, `dat_get_consumer_context`).
//!
//! The contexts are kept in a separate table, not in the objects: most objects have none, and the data that a post
//! reads stays small. A context is dropped when its object is freed.

use crate::error::DatResult;
use crate::handle::{AnyHandle, HandleType};
use crate::ia::instance::Ia;
use crate::provider::Provider;

impl<P: Provider> Ia<P> {
    /// Sets the consumer context of an object, and replaces the former one. 0 means none. The library does not
    /// interpret the context.
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

    /// Returns the consumer context of an object; 0 if it has none.
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
    /// DAT_INVALID_HANDLE, with the subtype of the handle's kind: no such object exists.
    pub fn get_handle_type(&self, handle: impl Into<AnyHandle>) -> DatResult<HandleType> {
        let handle = handle.into();
        self.check_any(handle)?;
        Ok(handle.handle_type())
    }
}
