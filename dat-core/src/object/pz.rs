//! The protection zone: a set to which endpoints, SRQs, LMRs and RMRs belong, and the device's protection domain.

use crate::provider::Provider;

pub(crate) struct Pz<P: Provider> {
    pub(crate) pd: P::Pd,
    /// Number of endpoints, SRQs, LMRs and RMRs that belong to the PZ.
    pub(crate) users: u32,
}
