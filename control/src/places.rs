//! Eviction of a client when the number of clients has reached its limit.
//!
//! If a listener refused new clients then, idle clients could block it. Therefore an existing client is evicted. It
//! belongs to the owner with the most clients, counting the new client, so that no owner loses a client to an owner
//! with more clients. Of that owner's clients, the one that was used least recently is evicted.

use std::cmp::Reverse;

/// Returns the index of the client to evict, or `None` if there are no clients. `clients` has the owner and the time of
/// the last use of each client.
pub(crate) fn eviction_index<O: PartialEq, T: Ord>(
    clients: &[(O, T)],
    new_owner: &O,
) -> Option<usize> {
    let places = |owner: &O| {
        let there = clients.iter().filter(|(other, _)| other == owner).count();
        there + usize::from(owner == new_owner)
    };
    let ranked = clients.iter().enumerate();
    let ranked = ranked.max_by_key(|(_, (owner, used))| (places(owner), Reverse(used)));
    ranked.map(|(at, _)| at)
}

/// Returns whether to log an event that has happened `times` times: true for powers of two. So a repeated event does
/// not fill the disk, and each logged line has the count.
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
            // The owner with fewer clients loses none, even if its client was idle for longer.
            (&mixed, 'b', Some(2)),
            (&mixed, 'c', Some(2)),
            // If the owners have equally many clients, the new client's owner loses one.
            (&even, 'b', Some(1)),
            (&even, 'a', Some(0)),
        ] {
            let found = eviction_index(clients, &newcomer);
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
