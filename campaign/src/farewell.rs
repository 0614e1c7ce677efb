//! Notification of a close: the peers of an adapter that is closed or dropped must soon learn that their connections
//! are over.
//!
//! Without a notification, a peer would learn of the close only from a request that is not acknowledged, or never. So
//! every peer of a healthy adapter, over a healthy wire, must get the event within [`SOON`].

use std::time::Duration;

use crate::end::{Farewell, Phase};
use crate::world::World;

/// Time within which the notification must arrive.
const SOON: Duration = Duration::from_millis(20);
/// Number of loop iterations of the peer's program after `SOON` before the end of which the event must arrive.
const TURNS: u32 = 2;

impl World {
    /// Returns the endpoints that are connected to a side which is about to close. Their programs must get an event.
    pub fn bereaved(&self, side: usize) -> Vec<Farewell> {
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
            lives.then_some(Farewell {
                to,
                link,
                by: 0,
                turns: TURNS,
            })
        };
        self.links.iter().enumerate().filter_map(of_link).collect()
    }

    /// Records that the side has closed, and sets the deadline for the events.
    pub fn gone(&mut self, bereaved: Vec<Farewell>) {
        let by = self.now() + u64::try_from(SOON.as_nanos()).expect("a moment");
        let timed = bereaved.into_iter().map(|one| Farewell { by, ..one });
        self.farewells.extend(timed);
    }

    /// Records that an endpoint's program has got the event for the end of its connection.
    pub fn farewell_heard(&mut self, side: usize, at: usize) {
        let to = (side, self.sides[side].openings, at);
        let heard = self.farewells.iter().position(|one| one.to == to);
        let Some(farewell) = heard.map(|index| self.farewells.swap_remove(index)) else {
            return;
        };
        let when = if farewell.turns == TURNS {
            "in time"
        } else {
            "a turn later"
        };
        self.cover.count("notice of a close", when);
    }

    /// Checks that no program has waited too long for the event about its peer's close.
    pub fn check_farewells(&mut self) {
        let now = self.now();
        let mut left = std::mem::take(&mut self.farewells);
        left.retain_mut(|farewell| {
            let (side, opening, at) = farewell.to;
            let one = &self.sides[side];
            let open = one.open.as_ref().filter(|_| one.openings == opening);
            let waits = open.is_some_and(|open| {
                let end = &open.ends[at];
                let same = end.link.is_some_and(|(link, _)| link == farewell.link);
                same && end.phase == Phase::Up && !open.dead
            });
            if !waits || one.tampered || one.asleep > 0 {
                self.cover.count("notice of a close", "not judged");
                return false;
            }
            if now >= farewell.by {
                farewell.turns -= 1;
            }
            assert!(
                farewell.turns > 0,
                "side {side}, endpoint {at} is connected still, and its peer has gone: {:?}",
                self.links[farewell.link].ends
            );
            true
        });
        self.farewells = left;
    }
}
