//! Tests of the notation on tables of this device, in cases that an invented struct does not have.

use zerocopy::IntoBytes;

use super::{
    Ads, CmdHcaCap, CmdStatus, CommandOutput, Cqc, CreateCqIn, CtrlSeg, EnableHcaOut,
    KNOWN_SYNDROMES, Layout, Opcode, Qpc, known_syndrome,
};

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
fn debug_shows_fields_that_are_not_zero() {
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
    let mut page = CmdHcaCap::new();
    for (name, value, too_much) in [
        ("rc", 1, 2),
        ("log_max_qp", 31, 32),
        ("gid_table_size", 0xffff, 0x1_0000),
        ("device_frequency_khz", 0xffff_ffff, 0x1_0000_0000),
    ] {
        let fields = <CmdHcaCap as Layout>::FIELDS;
        let field = fields.iter().find(|field| field.name == name).unwrap();
        assert!(!field.store(page.as_mut_bytes(), too_much), "{name}");
        assert_eq!(field.value(page.as_bytes()), Some(0), "{name}");
        assert!(field.store(page.as_mut_bytes(), value), "{name}");
        assert_eq!(field.value(page.as_bytes()), Some(value), "{name}");
    }
    assert!(page.rc() && page.log_max_qp() == 31 && page.gid_table_size() == 0xffff);
    assert_eq!(page.log_max_srq_sz(), 0);
}

#[test]
fn syndromes_are_sorted_and_unique_beside_a_command_and_each_names_its_source() {
    let places: Vec<_> = KNOWN_SYNDROMES
        .iter()
        .map(|known| (known.syndrome, known.opcode.bits()))
        .collect();
    assert!(places.is_sorted_by(|one, next| one < next), "{places:x?}");
    for known in KNOWN_SYNDROMES {
        let at = format!("{:#08x} beside {:?}", known.syndrome, known.opcode);
        assert!(known.syndrome != 0, "{at}: zero says nothing");
        assert!(known.opcode.name().is_some(), "{at}: no command");
        assert!(
            known.status.name().is_some() && known.status != CmdStatus::OK,
            "{at}"
        );
        for text in [known.means, known.card, known.source] {
            assert!(!text.is_empty() && text.trim() == text, "{at}: {text:?}");
        }
        // The source is a mailing list, a repository's issue, or a commit, so that a reader can find it.
        let places = ["mailing list", "github.com/", "Linux commit"];
        assert!(
            places.iter().any(|place| known.source.contains(place)),
            "{at}"
        );
        assert_eq!(known_syndrome(known.opcode, known.syndrome), Some(known));
    }
    assert_eq!(
        known_syndrome(Opcode::NOP, 0x00d6_1c0b),
        None,
        "another command"
    );
}
