//! Errors of calls when the device is dead, when the system has requested its release, or when the device refuses.

use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::ia::instance::Ia;
use crate::provider::{Provider, ProviderError};

impl<P: Provider> Ia<P> {
    /// Fails if the device is dead, or if the system has requested its release. Calls that need the device, or that
    /// start new work, check this first.
    pub(in crate::ia) fn alive(&self) -> DatResult<()> {
        self.health.check()
    }

    /// Converts a provider's error to the DAT error of the call, and stores the provider's text.
    pub(in crate::ia) fn device_refused(
        &mut self,
        what: &'static str,
        error: ProviderError,
        resource: Subtype,
    ) -> DatError {
        self.note_device_error(what, &error);
        match error {
            ProviderError::Resources(_) => DatError::resources(resource)
                .because("the device has no more; see last_device_error"),
            ProviderError::Limit { what, asked, limit } => {
                DatError::unsupported().because(what).over(asked, limit)
            }
            ProviderError::Unsupported(_) | ProviderError::Foreign(_) => {
                DatError::unsupported().because("not with this device; see last_device_error")
            }
            ProviderError::Unreachable { why, .. } => {
                DatError::new(ReturnType::InvalidAddress, Subtype::AddressUnreachable).because(why)
            }
            ProviderError::Device(_) | ProviderError::Dead(_) => {
                DatError::new(ReturnType::InternalError, Subtype::None)
                    .because("the device refused; see last_device_error")
            }
        }
    }

    /// Returns the error of a call whose object the device refused to stop or to destroy, and stores the provider's
    /// text. The object still exists.
    #[cold]
    pub(in crate::ia) fn not_ended(
        &mut self,
        what: &'static str,
        error: &ProviderError,
    ) -> DatError {
        self.note_device_error(what, error);
        DatError::new(ReturnType::InternalError, Subtype::None)
            .because("the device refused, and nothing has ended; see last_device_error")
    }

    pub(in crate::ia) fn note_device_error(&mut self, what: &'static str, error: &ProviderError) {
        tracing::warn!(what, %error, "device error");
        self.health.note(format!("{what}: {error}"));
    }
}
