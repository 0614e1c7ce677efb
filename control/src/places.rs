//! Eviction of a client when all places are taken.
//!
//! A listener that refuses new clients can be blocked by idle ones. Here an existing client is evicted: one of the
//! owner who has the most, counting the new client, so that no owner loses places to one who has more. Of that
//! owner's clients it is the one whose last use is the longest ago.

use std::cmp::Reverse;

/// Returns the client to evict, given each client's owner and last use; `None` if there are none.
pub(crate) fn makes_room<O: PartialEq, T: Ord>(
    clients: &[(O, T)],
    newcomers_owner: &O,
) -> Option<usize> {
    let places = |owner: &O| {
        let there = clients.iter().filter(|(other, _)| other == owner).count();
        there + usize::from(owner == newcomers_owner)
    };
    let ranked = clients.iter().enumerate();
    let ranked = ranked.max_by_key(|(_, (owner, used))| (places(owner), Reverse(used)));
    ranked.map(|(at, _)| at)
}

/// Returns whether to log something that has happened so often: the first time, the second, the fourth, and so on. So
/// a repeated cause does not fill the disk, and each line has the count.
pub(crate) const fn is_logged(times: u64) -> bool {
    times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_most_places_gives_up_the_one_that_was_idle_longest() {
        let alone = [('a', 3), ('a', 1), ('a', 2)];
        let mixed = [('a', 5), ('b', 1), ('a', 4), ('a', 6)];
        let even = [('a', 1), ('b', 2)];
        for (clients, newcomer, expected) in [
            (&[][..], 'a', None),
            (&alone, 'a', Some(1)),
            (&alone, 'b', Some(1)),
            // Never a client of the owner who has fewer, even if it was idle for longer.
            (&mixed, 'b', Some(2)),
            (&mixed, 'c', Some(2)),
            // At a tie, one of the new client's owner.
            (&even, 'b', Some(1)),
            (&even, 'a', Some(0)),
        ] {
            let found = makes_room(clients, &newcomer);
            assert_eq!(found, expected, "{clients:?} {newcomer}");
        }
    }

    #[test]
    fn a_million_events_are_twenty_lines() {
        assert_eq!(
            (1..=1_000_000).filter(|times| is_logged(*times)).count(),
            20
        );
        assert!(is_logged(1), "the first of them is one");
    }
}
