//! A small flood of connection requests, run with every `cargo test`; `cargo xtask campaign --flood` sends a large one.

use std::time::Duration;

use campaign::{Flood, flood};

#[test]
fn an_honest_client_connects_in_a_flood_and_an_established_connection_carries_on() {
    let flood_result = flood(Flood {
        requests: 2_048,
        per_turn: 64,
    });
    // The server has handled all but the most recent requests.
    assert!(flood_result.flood.handled > 1_900, "{flood_result:?}");
    assert_eq!(
        flood_result.flood.refused, 0,
        "honest requests are accepted: {flood_result:?}"
    );
    let ((peace, _), (longest, datagrams)) =
        (flood_result.peace.longest(), flood_result.flood.longest());
    assert!(longest <= 2 * peace, "{longest:?}, and {peace:?} in peace");
    assert!(
        datagrams < 1_024,
        "{datagrams} datagrams are ahead of an honest one"
    );
    assert!(
        flood_result.flood.per_turn() >= flood_result.peace.per_turn() * 0.9,
        "{} messages a turn, and {} in peace",
        flood_result.flood.per_turn(),
        flood_result.peace.per_turn()
    );
    let [before, most, after] = flood_result.connections;
    assert!(most <= before + 2_048, "{most} connections are held");
    assert!(after <= before && flood_result.gone_after < Duration::from_secs(180));
}
