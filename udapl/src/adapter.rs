//! An open adapter: configuration, attributes, and the report of its close.
//!
//! [`ia_open`](crate::ia_open) opens a function and returns its first instance, an [`Ia`]. An
//! [`Adapter`](crate::Adapter) represents the function: it opens an instance for each further thread, and starts a
//! [`BackgroundThread`]. [`OpenOptions`](crate::OpenOptions) consists of [`IaConfig`], [`HcaConfig`], and [`HandedIn`]
//! or [`Simulated`]. [`Ia::query`] returns an [`IaParam`]: the limits of the adapter and the properties of the
//! provider. [`ia_close`](crate::ia_close) returns a [`CloseReport`], which names the resources that the device did not
//! return. [`hca`] returns the card's driver. It answers queries that DAT has no call for: identity, firmware,
//! capabilities, the vport.
//!
//! A device can die while it is open ([`dead_cause`]). Every [handle](AnyHandle) stays valid until its object is freed.
//! A handle of a freed object, or of another instance, is refused and never names a wrong object.

pub use dat_core::{
    AnyHandle, HandleType, IaAttr, IaConfig, IaParam, NamedAttr, ProviderAttr, TransportConfig,
};
pub use driver::Function;
pub use hw_mlx::bringup::BringupReport;
pub use hw_mlx::{CloseReport, DeadCause, Hca, HcaConfig};

use crate::Ia;
pub use crate::background::BackgroundThread;
pub use crate::open::{HandedIn, Simulated, function_open};

/// Returns the function of an adapter. [`LentMemory::new`](crate::memory::LentMemory::new) takes it.
#[must_use]
pub fn function(ia: &Ia) -> &Function {
    ia.provider().hca().function()
}

/// Returns the driver of the adapter's card. It answers queries that DAT has no call for: identity, firmware version,
/// capabilities, clock.
#[must_use]
pub fn hca(ia: &Ia) -> &Hca {
    ia.provider().hca()
}

/// Returns the driver of the adapter's card for queries that ask the device: the state of the vport, the counters.
#[must_use]
pub fn hca_mut(ia: &mut Ia) -> &mut Hca {
    ia.provider_mut().hca_mut()
}

/// Returns the report of the bring-up: its steps and their times, and the optional features that the function lacks.
#[must_use]
pub fn bringup_report(ia: &Ia) -> &BringupReport {
    ia.provider().hca().bringup_report()
}

/// Returns the cause of the device's death; `None` while the device works.
#[must_use]
pub fn dead_cause(ia: &Ia) -> Option<DeadCause> {
    ia.provider().hca().dead_cause()
}
