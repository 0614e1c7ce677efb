//! Deadlines of connections.
//!
//! Every connection has at most one deadline of each [`Kind`]. The set is ordered by time and then by connection, so
//! that the same calls always give the same order of events.

use std::collections::BTreeSet;

use super::name::ConnId;
use crate::provider::Nanos;

/// Unit of IBTA's timeout codes, in nanoseconds.
const CODE_UNIT: Nanos = 4_096;
/// Upper limit for timeout codes: 4.096 us * 2^25 is 137 s. Larger codes, up to 2.4 hours, are legal on the wire, but
/// are treated as this one.
const MAX_CODE: u8 = 25;

/// Returns the time that a 5-bit timeout code stands for, in nanoseconds: 4.096 us * 2^code, at most 137 s.
#[must_use]
pub fn code_nanos(code: u8) -> Nanos {
    CODE_UNIT << code.min(MAX_CODE)
}

/// Kind of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// End of the state's time: a message is repeated, an MRA is sent, the attempt is given up, or the connection is
    /// forgotten.
    State,
    /// End of the time that the consumer allows for establishing the connection.
    Consumer,
}

/// Queue of the deadlines of all connections.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Nanos, ConnId, Kind)>,
}

/// The deadlines of one connection, which are also the keys of its entries in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deadlines {
    state: Option<Nanos>,
    consumer: Option<Nanos>,
}

impl Deadlines {
    /// Returns the deadline of this kind.
    pub(super) const fn get(&self, kind: Kind) -> Option<Nanos> {
        match kind {
            Kind::State => self.state,
            Kind::Consumer => self.consumer,
        }
    }

    fn of(&mut self, kind: Kind) -> &mut Option<Nanos> {
        match kind {
            Kind::State => &mut self.state,
            Kind::Consumer => &mut self.consumer,
        }
    }
}

impl Timers {
    /// Sets, moves or (with `None`) clears a deadline.
    pub(super) fn set(
        &mut self,
        conn: ConnId,
        deadlines: &mut Deadlines,
        kind: Kind,
        at: Option<Nanos>,
    ) {
        let slot = deadlines.of(kind);
        if let Some(old) = slot.take() {
            self.queue.remove(&(old, conn, kind));
        }
        if let Some(at) = at {
            self.queue.insert((at, conn, kind));
            *slot = Some(at);
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.queue.first().map(|&(at, ..)| at)
    }

    /// Returns the earliest deadline that has passed. The deadline stays set until the caller moves or clears it.
    pub(super) fn due(&self, now: Nanos) -> Option<(ConnId, Kind)> {
        self.queue
            .first()
            .filter(|&&(at, ..)| at <= now)
            .map(|&(_, conn, kind)| (conn, kind))
    }
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;

    #[test]
    fn timers_come_due_in_order_and_only_while_set() {
        let mut names = SlotMap::<ConnId, ()>::with_key();
        let (a, b) = (names.insert(()), names.insert(()));
        let (mut of_a, mut of_b) = (Deadlines::default(), Deadlines::default());
        let mut timers = Timers::default();
        timers.set(a, &mut of_a, Kind::State, Some(30));
        timers.set(b, &mut of_b, Kind::State, Some(20));
        timers.set(b, &mut of_b, Kind::Consumer, Some(10));
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(10), Some((b, Kind::Consumer)));
        timers.set(b, &mut of_b, Kind::Consumer, None);
        assert_eq!(timers.due(25), Some((b, Kind::State)));
        timers.set(b, &mut of_b, Kind::State, Some(40));
        assert_eq!(timers.due(35), Some((a, Kind::State)));
        timers.set(a, &mut of_a, Kind::State, None);
        assert_eq!(timers.due(39), None);
        assert_eq!(timers.next(), Some(40));
    }

    #[test]
    fn timeout_codes_double_and_stop_at_137_seconds() {
        assert_eq!(code_nanos(0), 4_096);
        assert_eq!(code_nanos(18), 1_073_741_824);
        assert_eq!(code_nanos(25), code_nanos(31));
    }
}
