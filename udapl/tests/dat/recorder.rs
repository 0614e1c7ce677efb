//! The flight recorder over a device.

use udapl::{DtoCookie, OpenOptions};

use crate::support::{A, B, NONE, Pair, PairConfig};

#[test]
fn the_text_of_a_recorder_shows_a_message_on_both_sides() {
    let mut pair = Pair::connected_with(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    for side in [A, B] {
        pair.sides[side].ia.recorder_start();
    }
    pair.send(&from, &to, 64);
    let [a, b] = [A, B].map(|side| {
        let dump = pair.sides[side].ia.recorder_dump();
        dump.expect("it records").to_string()
    });
    assert!(a.contains(": Send posted, 64 bytes"), "{a}");
    assert!(a.contains(": request done, DAT_DTO_SUCCESS"), "{a}");
    assert!(b.contains(": receive posted, "), "{b}");
    assert!(
        b.contains(": receive done, DAT_DTO_SUCCESS, 64 bytes"),
        "{b}"
    );
    pair.assert_no_complaints();
}

#[test]
fn posts_of_a_batch_are_recorded_one_by_one() {
    let mut pair = Pair::connected_with(&PairConfig::default());
    let from = pair.buffer(A, 64);
    let (ep, side) = (pair.sides[A].ep, &mut pair.sides[A]);
    side.ia.recorder_start();
    let posted = side.ia.batch(ep, |batch| {
        for cookie in 0..4 {
            batch.send(&[from.part(0, 64)], DtoCookie(cookie), NONE)?;
        }
        Ok(())
    });
    posted.expect("posts");
    let dump = side.ia.recorder_dump().expect("it records");
    assert_eq!(dump.records.len(), 4, "{dump}");
}

#[test]
fn an_adapter_records_from_its_opening_if_its_options_say_so() {
    let options = OpenOptions::default().recorder(true);
    let ia = udapl::ia_open("sim:recorded", &options).expect("opens");
    assert!(ia.recorder_dump().is_some());
    udapl::ia_close(ia, udapl::CloseFlags::Abrupt).expect("closes");
}
