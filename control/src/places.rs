//! Whose place a newcomer has where all are taken.
//!
//! A listener that turns newcomers away belongs to whoever came first and says nothing. Here a client makes room: one
//! of the owner who has the most, with the newcomer among his, so that nobody loses places to an owner who has more;
//! and of his clients the one that has been of use the longest ago.

use std::cmp::Reverse;

/// Which of these clients makes room, each by its owner and when it was last of use; none if there are none.
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

/// Whether the log has a line of something that has happened so often: the first time, the second, the fourth, and so
/// on. Whoever causes it for hours fills no disk, and each line says how often it was.
pub(crate) const fn is_told(times: u64) -> bool {
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
            // Never the one of whom has fewer, however long it was idle.
            (&mixed, 'b', Some(2)),
            (&mixed, 'c', Some(2)),
            // At a tie the newcomer's own.
            (&even, 'b', Some(1)),
            (&even, 'a', Some(0)),
        ] {
            let found = makes_room(clients, &newcomer);
            assert_eq!(found, expected, "{clients:?} {newcomer}");
        }
    }

    #[test]
    fn a_million_events_are_twenty_lines() {
        assert_eq!((1..=1_000_000).filter(|times| is_told(*times)).count(), 20);
        assert!(is_told(1), "the first of them is one");
    }
}
