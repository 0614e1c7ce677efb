//! Tests of the notation in [`super::layout`], on a struct with one field of every form.

use zerocopy::IntoBytes;

use super::layout::layout;
use super::{
    Ads, CmdStatus, CommandOutput, Cqc, CreateCqIn, CtrlSeg, EnableHcaOut, Layout, Opcode, Qpc,
};

layout! {
    /// One field of every form.
    pub struct Sample(0x20) {
        /// At the top of a dword.
        top: 0x00[31:28],
        /// One bit.
        flag: 0x00[17],
        /// A whole dword as bits.
        all: 0x04[31:0],
        /// Typed.
        outcome: 0x08 (CmdStatus[15:8]),
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
        .set_outcome(CmdStatus::BAD_INDEX);
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
        (CmdStatus::BAD_INDEX, 0x11, 0x2233)
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
    sample.set_top(0).set_flag(false).set_outcome(CmdStatus::OK);
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
fn nested_layouts_change_in_place_and_keep_their_own_reserved_bits() {
    let mut qpc = Qpc::new();
    qpc.primary_address_path_mut()
        .set_hop_limit(64)
        .set_rmac_31_0(0x0102_0304);
    assert_eq!(qpc.as_array()[0x18 + 0x0b], 64);
    assert_eq!(qpc.as_array()[0x18 + 0x28..0x18 + 0x2c], [1, 2, 3, 4]);
    assert_eq!((qpc.reserved_bits(), &Layout::reencode(&qpc)), (None, &qpc));
    let mut path = [0; Ads::SIZE];
    path[1] = 0x80; // between free_ar and pkey_index
    qpc.set_secondary_address_path(&Ads::from_array(path));
    assert_eq!(qpc.reserved_bits(), Some(0x44));
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
fn debug_shows_what_is_not_zero() {
    let mut input = CreateCqIn::new();
    input
        .cq_context_mut()
        .set_log_cq_size(7)
        .set_dbr_addr(0x1000);
    assert_eq!(
        format!("{input:?}"),
        "CreateCqIn { opcode: 0x400, cq_context: Cqc { log_cq_size: 0x7, dbr_addr: 0x1000 } }"
    );
    assert_eq!(format!("{:?}", Cqc::new()), "Cqc");
}

#[test]
fn commands_begin_with_the_common_headers() {
    let input = CreateCqIn::new();
    assert_eq!(input.as_array()[..8], [0x04, 0x00, 0, 0, 0, 0, 0, 0]);
    assert_eq!(input.opcode(), Opcode::CREATE_CQ);
    let mut output = EnableHcaOut::new();
    CommandOutput::set_outcome(&mut output, CmdStatus::BAD_SYS_STATE, 0x1234_5678);
    assert_eq!(
        output.as_array(),
        &[4, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0]
    );
}

#[test]
fn control_segment_packs_as_documented() {
    let mut ctrl = CtrlSeg::new();
    ctrl.set_opcode(0x0a)
        .set_wqe_index(0x1234)
        .set_qp_or_sq(0xab_cdef)
        .set_ds(3)
        .set_ce(2)
        .set_se(true);
    assert_eq!(
        ctrl.as_array(),
        &[
            0, 0x12, 0x34, 0x0a, 0xab, 0xcd, 0xef, 3, 0, 0, 0, 0x0a, 0, 0, 0, 0
        ]
    );
}

#[test]
fn a_field_stores_what_it_reads_and_nothing_that_does_not_fit() {
    let mut page = super::CmdHcaCap::new();
    for (name, value, too_much) in [
        ("rc", 1, 2),
        ("log_max_qp", 31, 32),
        ("gid_table_size", 0xffff, 0x1_0000),
        ("device_frequency_khz", 0xffff_ffff, 0x1_0000_0000),
    ] {
        let fields = <super::CmdHcaCap as Layout>::FIELDS;
        let field = fields.iter().find(|field| field.name == name).unwrap();
        assert!(!field.store(page.as_mut_bytes(), too_much), "{name}");
        assert_eq!(field.value(page.as_bytes()), Some(0), "{name}");
        assert!(field.store(page.as_mut_bytes(), value), "{name}");
        assert_eq!(field.value(page.as_bytes()), Some(value), "{name}");
    }
    assert!(page.rc() && page.log_max_qp() == 31 && page.gid_table_size() == 0xffff);
    assert_eq!(page.log_max_srq_sz(), 0);
}
