//! Notification of a close: the peers of an adapter that is closed or dropped must soon be notified that their
//! connections have ended.
//!
//! Without a notification, a peer would detect the close only by a request that is not acknowledged, or never. If the
//! adapter and the wire have no fault, every peer must get the event within [`SOON`].

use std::time::Duration;

use crate::end::{CloseNotice, Phase};
use crate::world::World;

/// Time within which the notification must arrive.
const SOON: Duration = Duration::from_millis(20);
/// Number of checks after the deadline until a missing event is a failure. There is one check per loop iteration.
const TURNS: u32 = 2;

/// Returns [`SOON`] in ns.
fn soon() -> u64 {
    u64::try_from(SOON.as_nanos()).expect("20 ms")
}

impl World {
    /// Returns the endpoints that are connected to a side which is about to close: each must get an event. Returns none
    /// if the side's adapter or the wire has a fault.
    pub fn peers_to_notify(&self, side: usize) -> Vec<CloseNotice> {
        let one = &self.sides[side];
        let well = one.open.as_ref().is_some_and(|open| !open.dead) && !one.tampered;
        if !well || self.until.is_some() || self.now() < self.trained {
            return Vec::new();
        }
        let of_link = |(link, it): (usize, &crate::end::Link)| {
            let own = it
                .ends
                .iter()
                .position(|end| (end.0, end.1) == (side, one.openings))?;
            let to = it.ends[1 - own];
            let lives = it.up == [true, true] && it.spoiled.is_none() && to.0 != side;
            lives.then_some(CloseNotice {
                to,
                link,
                by: 0,
                turns: TURNS,
            })
        };
        self.links.iter().enumerate().filter_map(of_link).collect()
    }

    /// Records that the side has closed, and sets the deadline for the events.
    pub fn gone(&mut self, peers_to_notify: Vec<CloseNotice>) {
        let by = self.now() + soon();
        let timed = peers_to_notify
            .into_iter()
            .map(|one| CloseNotice { by, ..one });
        self.close_notices.extend(timed);
    }

    /// Records that an endpoint's program has got the event for the end of its connection.
    pub fn close_notice_arrived(&mut self, side: usize, at: usize) {
        let to = (side, self.sides[side].openings, at);
        let heard = self.close_notices.iter().position(|one| one.to == to);
        let Some(notice) = heard.map(|index| self.close_notices.swap_remove(index)) else {
            return;
        };
        let when = if notice.turns == TURNS {
            "in time"
        } else {
            "a turn later"
        };
        self.cover.count("notice of a close", when);
    }

    /// Checks that no program has waited too long for the event about its peer's close.
    pub fn check_close_notices(&mut self) {
        let now = self.now();
        let mut left = std::mem::take(&mut self.close_notices);
        left.retain_mut(|notice| {
            let (side, opening, at) = notice.to;
            let one = &self.sides[side];
            // A side that is parked gets the event when it goes on.
            if one.parked && one.openings == opening {
                notice.by = now + soon();
                notice.turns = TURNS;
                return true;
            }
            let open = one.open.as_ref().filter(|_| one.openings == opening);
            let waits = open.is_some_and(|open| {
                let end = &open.ends[at];
                let same = end.link.is_some_and(|(link, _)| link == notice.link);
                same && end.phase == Phase::Up && !open.dead
            });
            if !waits || one.tampered || one.asleep > 0 {
                self.cover.count("notice of a close", "not judged");
                return false;
            }
            if now >= notice.by {
                notice.turns -= 1;
            }
            assert!(
                notice.turns > 0,
                "side {side}, endpoint {at} is connected still, and its peer has gone: {:?}",
                self.links[notice.link].ends
            );
            true
        });
        self.close_notices = left;
    }
}
