//! A provider with a connection: its traffic goes on.

use super::*;

/// Two functions are connected, and one of them is parked again and again. Each message comes once, in both directions.
#[test]
fn traffic_goes_on_after_one_of_two_connected_providers_was_parked() {
    let world = World::new();
    let mut a = Node::new(world.open(1));
    let mut b = Node::new(world.open(2));
    connect(&mut a, &mut b);
    let before = world.resets();
    for round in 0..4 {
        for slot in 0..2 {
            a.receive(slot);
            b.receive(slot);
        }
        (0..2).for_each(|slot| a.send(slot));
        (0..2).for_each(|slot| b.send(slot));
        assert_eq!(cookies(&b.wait_for(4)), [0, 1, 1000, 1001]);
        assert_eq!(cookies(&a.wait_for(4)), [0, 1, 1000, 1001], "round {round}");
        a.check(0..2);
        b.check(0..2);
        a = a.park().resume();
    }
    assert_eq!(world.resets(), before);
    drop((a, b));
    world.finish();
}
