//! Names in a snapshot: handles, which must be of the instance, and connections, each of which has one user.

use core::fmt::Debug;
use std::collections::BTreeMap;

use crate::cm::{CmSnapshot, ConnId, ConnSnapshot};
use crate::error::DatError;
use crate::error::parking::ResumeError;
use crate::handle::Handle;
use crate::ia::snapshot::IaTables;
use crate::object::snapshot::TableSnapshot;
use crate::provider::ParkProvider;

/// Limit of the empty slots of all tables of all instances. Each needs memory for an object, and is a few bytes of the
/// snapshot. Few programs free so many objects.
const MOST_EMPTY: u64 = 1 << 20;

/// Returns the text with which errors name an object: a handle, or the name of a table as `format_args`.
pub(super) fn text(object: impl Debug) -> String {
    format!("{object:?}")
}

/// Returns the key in a handle of the IA with the number `ia`.
pub(super) fn key_of<H: Handle>(
    object: impl Debug,
    handle: H,
    ia: u32,
) -> Result<H::Key, ResumeError> {
    let foreign = || ResumeError::snapshot(text(object), format!("{handle:?} is of another IA"));
    handle.of(ia).ok_or_else(foreign)
}

/// Checks the number of empty slots.
pub(super) fn check_empty<P: ParkProvider>(instances: &[IaTables<P>]) -> Result<(), ResumeError> {
    let empty = |it: &IaTables<P>| {
        [
            it.pzs.free.len(),
            it.lmrs.free.len(),
            it.cnos.free.len(),
            it.evds.free.len(),
            it.srqs.free.len(),
            it.rmrs.free.len(),
            it.eps.free.len(),
            it.psps.free.len(),
            it.rsps.free.len(),
            it.crs.free.len(),
        ]
        .into_iter()
        .map(|count| count as u64) // CAST: widening.
        .sum::<u64>()
    };
    let empty = instances.iter().map(empty).sum();
    ResumeError::check_range("tables", [("empty slots", empty, MOST_EMPTY)])
}

/// Returns the keys of the next objects in the empty slots of a table.
pub(super) fn free_keys<T, H: Handle>(
    table: &'static str,
    snapshot: &TableSnapshot<T, H>,
    ia: u32,
) -> Result<Vec<H::Key>, ResumeError> {
    let keys = snapshot.free.iter();
    keys.map(|handle| key_of(format_args!("{table}"), *handle, ia))
        .collect()
}

/// Returns a function that makes the error of an object from the error of a DAT check.
pub(super) fn refused(object: impl Debug) -> impl Fn(DatError) -> ResumeError {
    move |error| ResumeError::snapshot(text(&object), error.to_string())
}

/// Checks that counters can go on counting.
pub(super) fn check_counters<const N: usize>(
    object: impl Debug,
    counters: [(&'static str, u64); N],
) -> Result<(), ResumeError> {
    ResumeError::check_counters(text(object), counters)
}

/// The connections of a snapshot that have no user yet.
pub(super) struct Conns<'a>(BTreeMap<ConnId, &'a ConnSnapshot>);

impl<'a> Conns<'a> {
    pub(super) fn new(cm: &'a CmSnapshot) -> Self {
        Self(cm.conns.iter().map(|conn| (conn.id, conn)).collect())
    }

    /// Returns the connection of an object of the instance `owner`.
    ///
    /// # Errors
    /// There is no such connection, or it is another instance's, or the instance has released it, or another object has
    /// it.
    pub(super) fn take(
        &mut self,
        object: impl Debug,
        id: ConnId,
        owner: u32,
    ) -> Result<&'a ConnSnapshot, ResumeError> {
        let conn = self.0.remove(&id);
        conn.filter(|conn| conn.owner == Some(owner) && !conn.released && !conn.silent)
            .ok_or_else(|| {
                let what = format!("{id:?} does not exist, or has another user");
                ResumeError::snapshot(text(object), what)
            })
    }

    /// Checks that each connection without a user was released. One that was not would stay for ever.
    pub(super) fn check_left(&self) -> Result<(), ResumeError> {
        self.0
            .values()
            .find(|conn| !conn.released)
            .map_or(Ok(()), |conn| {
                let what = format!(
                    "{:?} is in state {:?}, and has no user",
                    conn.id, conn.state
                );
                Err(ResumeError::snapshot("connections", what))
            })
    }
}
