//! Tests of the notation on a struct that has one field of every form.

use crate::{Layout, codes, layout};

codes! {
    /// Result of an operation.
    pub struct Outcome(u8) {
        /// Success.
        OK = 0x00,
        /// No object has this number.
        BAD_INDEX = 0x0a "BAD_INDEX(10)",
    }
}

layout! {
    /// One field of every form.
    pub struct Sample(0x20) {
        /// Bits at the top of a dword.
        top: 0x00[31:28],
        /// One bit.
        flag: 0x00[17],
        /// A whole dword as bits.
        all: 0x04[31:0],
        /// Bits with a type.
        outcome: 0x08 (Outcome[15:8]),
        small: 0x0c u8,
        middle: 0x0e u16,
        wide: 0x10 u64,
        bytes: 0x18 [u8; 3],
    }
}

fn sample() -> Sample {
    let mut sample = Sample::new();
    sample
        .set_top(0xa)
        .set_flag(true)
        .set_all(0x0102_0304)
        .set_outcome(Outcome::BAD_INDEX);
    sample
        .set_small(0x11)
        .set_middle(0x2233)
        .set_wide(0x4455_6677_8899_aabb)
        .set_bytes(&[0xcc, 0xdd, 0xee]);
    sample
}

#[test]
fn fields_stand_where_the_table_says() {
    assert_eq!(Sample::SIZE, 0x20);
    assert_eq!(
        sample().as_array(),
        &[
            0xa0, 0x02, 0, 0, 1, 2, 3, 4, 0, 0, 0x0a, 0, 0x11, 0, 0x22, 0x33, //
            0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0, 0, 0, 0, 0,
        ]
    );
}

#[test]
fn getters_give_back_what_setters_took() {
    let sample = sample();
    assert_eq!(
        (sample.top(), sample.flag(), sample.all()),
        (0xa, true, 0x0102_0304)
    );
    assert_eq!(
        (sample.outcome(), sample.small(), sample.middle()),
        (Outcome::BAD_INDEX, 0x11, 0x2233)
    );
    assert_eq!(
        (sample.wide(), sample.bytes()),
        (0x4455_6677_8899_aabb, &[0xcc, 0xdd, 0xee])
    );
    assert_eq!(sample.reencode(), sample);
}

#[test]
fn setters_leave_the_neighbours_alone() {
    let mut sample = Sample::from_array([0xff; 0x20]);
    sample.set_top(0).set_flag(false).set_outcome(Outcome::OK);
    assert_eq!(
        sample.as_array()[..0x0c],
        [
            0x0f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0xff
        ]
    );
}

#[test]
#[should_panic(expected = "top: 0x10 does not fit bits 31:28")]
fn value_wider_than_its_field_is_our_bug() {
    Sample::new().set_top(0x10);
}

#[test]
fn reserved_bits_are_found_and_lost_in_reencoding() {
    assert_eq!(sample().reserved_bits(), None);
    for (byte, dword) in [(0x03, 0x00), (0x0d, 0x0c), (0x1b, 0x18), (0x1f, 0x1c)] {
        let mut bytes = *sample().as_array();
        bytes[byte] |= 1;
        let dirty = Sample::from_array(bytes);
        assert_eq!(dirty.reserved_bits(), Some(dword));
        assert_eq!(dirty.reencode(), sample());
    }
}

#[test]
fn fields_tell_their_values_generically() {
    let sample = sample();
    let values: Vec<_> = Sample::FIELDS
        .iter()
        .map(|field| (field.name, field.value(sample.as_array())))
        .collect();
    assert_eq!(
        values,
        [
            ("top", Some(0xa)),
            ("flag", Some(1)),
            ("all", Some(0x0102_0304)),
            ("outcome", Some(0x0a)),
            ("small", Some(0x11)),
            ("middle", Some(0x2233)),
            ("wide", Some(0x4455_6677_8899_aabb)),
            ("bytes", None),
        ]
    );
    assert_eq!(
        Sample::FIELDS[6].value(&[0; 0x14]),
        None,
        "bytes too short for the field"
    );
}

#[test]
fn codes_keep_values_that_have_no_name() {
    assert_eq!(Outcome::from_bits(0x0b).bits(), 0x0b);
    assert_eq!(
        [Outcome::OK, Outcome::BAD_INDEX, Outcome(0x0b)].map(|code| format!("{code}")),
        ["OK", "BAD_INDEX(10)", "Outcome(0xb)"]
    );
    assert_eq!(Outcome::ALL, [Outcome::OK, Outcome::BAD_INDEX]);
}

#[test]
fn a_field_is_found_by_its_name() {
    const WIDE: usize = Sample::offset_of("wide");
    assert_eq!((WIDE, Sample::offset_of("flag")), (0x10, 0));
    assert!(std::panic::catch_unwind(|| Sample::offset_of("wid")).is_err());
}
