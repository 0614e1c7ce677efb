//! Combinations that are refused before any message to the peer. `tests/vfio_user/perftest.rs` tests the exchange.

use std::time::Duration;

use super::*;

#[test]
fn what_a_program_does_not_do_is_refused_before_anything_is_asked() {
    let asked = Plan::brief(None);
    let refused = |change: fn(&mut Plan), program| {
        let mut asked = asked.clone();
        change(&mut asked);
        plan(&asked, program).err()
    };
    for (change, program, said) in [
        (
            (|plan| plan.bytes = vec![64, 128]) as fn(&mut Plan),
            Program::ReadBw,
            "ib_read_bw measures one size",
        ),
        (
            |plan| plan.duration = Some(Duration::from_secs(1)),
            Program::SendLat,
            "both ends count what ib_send_lat measures",
        ),
        (
            |plan| plan.warm_up = Some(Amount::Operations(1)),
            Program::WriteLat,
            "both ends count what ib_write_lat measures",
        ),
        (
            |plan| plan.endpoints = 2,
            Program::SendBw,
            "ib_send_bw counts on each queue pair",
        ),
    ] {
        let error = refused(change, program).expect("a reason");
        assert!(error.starts_with(said), "{error}");
    }
    assert!(refused(|plan| plan.endpoints = 2, Program::WriteBw).is_none());
    assert_eq!((port(None), port(Some(7000))), (Ok(18_515), Ok(7000)));
    assert!(port(Some(1 << 16)).is_err());
}
