//! Parties, and how much of a pool each may have.

use std::net::IpAddr;

use crate::nvme::Nqn;

/// The owner that resources are counted for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// All hosts at this address that have no key and that the subsystem does not list by name. They are not counted by
    /// name, because a host without a key can use any number of names.
    Source(IpAddr),
    /// A host that the subsystem lists by its name, or that has a key.
    Host(Nqn),
}

/// Returns whether a party that has `own` units gets `asked` more, when `left` are free. Afterwards the party may have
/// at most as many units as are left for others, or at most `first` units, which every party gets.
#[must_use]
pub fn is_fair(own: u32, asked: u32, left: u32, first: u32) -> bool {
    let after = own.saturating_add(asked);
    asked <= left && (after <= left - asked || after <= first)
}
