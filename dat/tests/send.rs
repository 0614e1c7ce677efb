//! `ep_post_send`, clause by clause.

mod support;

use support::{A, B, Pair};

/// Clauses: SEND-15, SEND-25, SEND-30.
#[test]
fn send_arrives_whole_and_completes_on_both_sides() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 10_000), pair.buffer(B, 10_000));
    let data = support::pattern(1, 10_000);
    from.write(0, &data);
    pair.send(&from, &to, 10_000);
    assert_eq!(to.read(0, 10_000), data);
    pair.assert_no_complaints();
}
