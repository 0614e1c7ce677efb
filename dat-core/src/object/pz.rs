//! The protection zone: a label that endpoints, SRQs and LMRs share, and the device's protection domain.

use crate::provider::Provider;

pub(crate) struct Pz<P: Provider> {
    pub(crate) pd: P::Pd,
    /// Number of endpoints, SRQs, LMRs and RMRs in it.
    pub(crate) users: u32,
}
