//! A CNO that is parked and resumed. Nothing waits on it, and it has no agent.

use super::Cno;
use crate::handle::{CnoHandle, CnoKey, EvdHandle, EvdKey, Handle};
use crate::object::snapshot::CnoSnapshot;
use crate::round_robin::RoundRobin;

impl Cno {
    /// Returns the number of waiters.
    pub(crate) const fn waiters(&self) -> u32 {
        self.waiters
    }

    /// Writes the CNO out.
    pub(crate) fn park(self, key: CnoKey, ia: u32) -> CnoSnapshot {
        let Self {
            triggered,
            agent: _,
            evds: _,
            unarmed: _,
            waiters: _,
            released,
        } = self;
        CnoSnapshot {
            cno: CnoHandle { key, ia },
            triggered: triggered.map(|evd| EvdHandle::new(evd, ia)),
            released,
        }
    }

    /// Makes a CNO without EVDs.
    pub(crate) fn resume(triggered: Option<EvdKey>, released: u64) -> Self {
        Self {
            triggered,
            agent: None,
            evds: RoundRobin::new(),
            unarmed: RoundRobin::new(),
            waiters: 0,
            released,
        }
    }
}
