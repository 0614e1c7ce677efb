//! Authentications that are parked between any two messages.

use super::super::authenticate::{hear, keyed, negotiation, right_reply, say, wrong_reply};
use super::*;

#[test]
fn an_authentication_goes_on_between_any_two_messages() {
    let mut old = keyed();
    let id = admin(&mut old, &disks(), HOST);
    let queue = (id, 0);
    let mut next = moved(&old, secs(1), secs(1));
    assert_eq!(say(&mut next, queue, &negotiation(0)), Answer::done());
    let mut next = moved(&next, secs(1), secs(1));
    let challenge = hear(&mut next, queue).data;
    let mut next = moved(&next, secs(1), secs(1));
    let reply = right_reply(&challenge);
    assert_eq!(say(&mut next, queue, &reply), Answer::done());
    let mut next = moved(&next, secs(1), secs(1));
    assert!(!next.is_authenticated(id, 0));
    assert_eq!(hear(&mut next, queue).data[1], 3, "SUCCESS1");
    let mut next = moved(&next, secs(1), secs(1));
    assert!(next.is_authenticated(id, 0));
    set(&mut next, id, 0x14, 0x0046_0001);
    // An I/O queue authenticates on its own.
    io(&mut next, id, HOST);
    let mut next = moved(&next, secs(1), secs(1));
    assert!(!next.is_authenticated(id, 1) && next.is_authenticated(id, 0));
    next.expire(secs(4));
    assert_eq!(next.take_notices(), []);
    command(&mut next, id, &sqe(0x09, 0, [0x0f, 0, 0, 0]));
    next.expire(secs(61));
    assert_eq!(next.take_notices(), [Notice::Queue { connection: 2 }]);
    let mut next = moved(&next, secs(61), secs(61));
    next.expire(secs(62));
    assert_eq!(next.take_notices(), [], "the worker was told");
    assert!(next.controller(id).is_some());
}

#[test]
fn a_host_has_the_rest_of_its_minute_after_any_pause() {
    let mut old = keyed();
    let id = admin(&mut old, &disks(), HOST);
    let mut next = moved(&old, secs(50), secs(5000));
    assert_eq!(next.expire(secs(5009)), Some(secs(5010)));
    assert!(next.controller(id).is_some());
    next.expire(secs(5010));
    assert!(next.controller(id).is_none());
}

#[test]
fn a_failure_and_its_reason_stay() {
    let mut old = keyed();
    let queue = (admin(&mut old, &disks(), HOST), 0);
    say(&mut old, queue, &negotiation(1));
    hear(&mut old, queue);
    say(&mut old, queue, &wrong_reply(1));
    let mut next = moved(&old, secs(1), secs(1));
    let said = hear(&mut next, queue).data;
    assert_eq!((said[1], said[7]), (0xf1, 1), "FAILURE1");
    let mut next = moved(&next, secs(1), secs(1));
    assert_eq!(hear(&mut next, queue).status, Status::SEQUENCE.dnr());
    next.expire(secs(2));
    assert!(next.controller(queue.0).is_none());
}

#[test]
fn a_host_whose_key_has_gone_meanwhile_connects_again() {
    let mut old = keyed();
    let id = admin(&mut old, &disks(), HOST);
    let snapshot = old.park(secs(1)).expect("parked");
    let mut next = like(&old);
    next.set_keys(name(HOST), None);
    next.resume(&snapshot, secs(1)).expect("resumed");
    assert_eq!(hear(&mut next, (id, 0)).status, Status::SEQUENCE.dnr());
    next.expire(secs(2));
    assert_eq!(next.take_notices(), [Notice::Over { controller: id }]);
    let id = ready(&mut next, &disks(), HOST);
    assert!(next.controller(id).is_some_and(Controller::is_ready));
}

#[test]
fn a_step_that_is_computed_is_not_parked_and_a_snapshot_has_no_key() {
    let (mut m, id, receive) = authenticating(1);
    let step = m.begin_step(id, 0, &receive, &[], 4096).expect("a step");
    let (controller, queue) = (id, 0);
    let error = ModelParkError::Authentication { controller, queue };
    assert_eq!((m.is_quiet(), m.park(secs(1))), (false, Err(error)));
    m.abandon_step(step);
    let bytes = postcard::to_stdvec(&m.park(secs(1)).expect("parked")).expect("bytes");
    // The key is the bytes 0 to 31.
    let key: Vec<u8> = (0..32).collect();
    assert!(bytes.windows(8).all(|one| one != &key[8..16]));
    let mut step = m.begin_step(id, 0, &receive, &[], 4096).expect("a step");
    step.work();
    m.finish_step(step, secs(1));
    moved(&m, secs(1), secs(1));
}
