//! Snapshots as bytes: a file in the form of this version is read, and other bytes are refused.
//!
//! A process of module `restarted` has written the file (`RESTARTED_INSTANCES=2 SNAPSHOT_BLESS=FILE`). The snapshot
//! can be read, and is then refused, because its descriptors do not exist any more. A form that changes has a new
//! version and a new file.

use udapl::handover::{FormatError, Parked, ResumeFailure, resume, resume_all};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

/// Form 2.
const FORM_2: &[u8] = include_bytes!("snapshots/form-2.bin");
const HEADER_BYTES: usize = 28;
const LAYER_BYTES: usize = 20;
const LAYERS: usize = 5;

fn refusal(snapshot: Vec<u8>) -> ResumeFailure {
    let descriptors = Vec::new();
    let parked = Parked {
        snapshot,
        descriptors,
    };
    resume_all(parked).expect_err("no descriptors").error
}

fn form_error(snapshot: Vec<u8>) -> FormatError {
    match refusal(snapshot) {
        ResumeFailure::Format(error) => error,
        other @ (ResumeFailure::Instance(_) | _) => panic!("read, and refused later: {other}"),
    }
}

/// Returns the snapshot with the checksum that its bytes have.
fn sealed(mut snapshot: Vec<u8>) -> Vec<u8> {
    snapshot[24..28].fill(0);
    let checksum = crc32fast::hash(&snapshot);
    snapshot[24..28].copy_from_slice(U32::new(checksum).as_bytes());
    snapshot
}

#[test]
fn a_snapshot_of_form_2_is_read_and_refused_only_for_what_is_not_there_any_more() {
    let error = refusal(FORM_2.to_vec());
    // Its descriptors are missing; before that, its time may be later than that of a machine that was started later,
    // and an IA of another test may have its number.
    assert!(matches!(error, ResumeFailure::Instance(_)), "{error}");
}

#[test]
fn a_snapshot_of_several_instances_is_refused_by_a_call_that_resumes_one() {
    let parked = Parked {
        snapshot: FORM_2.to_vec(),
        descriptors: Vec::new(),
    };
    let error = resume(parked).expect_err("two instances").error;
    let wanted = "the snapshot has 2 instances: resume all of them together";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn each_damaged_byte_of_a_snapshot_is_noticed() {
    for at in 0..FORM_2.len() {
        let mut damaged = FORM_2.to_vec();
        damaged[at] ^= 1 << (at % 8);
        let error = form_error(damaged);
        let is_named = match at {
            0..8 => matches!(error, FormatError::Magic { .. }),
            // The changed bit makes it form 3, which is also read, so the checksum refuses it.
            8 => matches!(error, FormatError::Checksum { .. }),
            9..12 => matches!(error, FormatError::Version { .. }),
            12..24 => matches!(error, FormatError::Length { .. }),
            _ => matches!(error, FormatError::Checksum { .. }),
        };
        assert!(is_named, "byte {at}: {error}");
    }
}

#[test]
fn a_snapshot_of_any_other_length_is_refused() {
    for bytes in 0..FORM_2.len() {
        let error = form_error(FORM_2[..bytes].to_vec());
        assert!(
            matches!(error, FormatError::Length { .. }),
            "{bytes}: {error}"
        );
    }
    let longer = [FORM_2, &[0]].concat();
    assert!(matches!(form_error(longer), FormatError::Length { .. }));
}

#[test]
fn a_layer_of_another_version_is_refused_by_name() {
    for layer in 0..LAYERS {
        let mut newer = FORM_2.to_vec();
        let version = HEADER_BYTES + layer * LAYER_BYTES + 16;
        let ours = newer[version];
        newer[version] += 1;
        let name = newer[version - 16..version].split(|byte| *byte == 0).next();
        let name = String::from_utf8_lossy(name.expect("a name")).into_owned();
        let error = form_error(sealed(newer)).to_string();
        assert!(error.contains(&format!("{name} {}", ours + 1)), "{error}");
        assert!(error.contains(&format!("{name} {ours}")), "{error}");
    }
}

/// Contents that end early or go on, with a header that counts and seals them, are no snapshot.
#[test]
fn contents_that_are_cut_or_followed_by_others_are_refused() {
    let start = HEADER_BYTES + LAYERS * LAYER_BYTES;
    let with = |contents: &[u8]| {
        let mut all = [&FORM_2[..start], contents].concat();
        all[16..24].copy_from_slice(U64::new(contents.len() as u64).as_bytes());
        form_error(sealed(all))
    };
    let contents = &FORM_2[start..];
    for bytes in 0..contents.len() {
        let error = with(&contents[..bytes]);
        assert!(
            matches!(error, FormatError::Contents { .. }),
            "{bytes}: {error}"
        );
    }
    let error = with(&[contents, &[0]].concat());
    assert!(matches!(error, FormatError::Contents { .. }), "{error}");
}

/// Form 3 has a list of adapters. A list of less than two, or one that says it is longer than its bytes, is refused.
#[test]
fn a_list_of_adapters_has_at_least_two_and_the_length_that_it_says() {
    let start = HEADER_BYTES + LAYERS * LAYER_BYTES;
    let with = |contents: &[u8]| {
        let mut all = [&FORM_2[..start], contents].concat();
        all[8] = 3;
        all[16..24].copy_from_slice(U64::new(contents.len() as u64).as_bytes());
        form_error(sealed(all)).to_string()
    };
    let one = &FORM_2[start..];
    assert!(with(&[0, 0]).contains("0 adapters"));
    assert!(with(&[&[1], one].concat()).contains("1 adapters"));
    // 2^63 - 1 adapters, of which the first is there.
    let endless = [&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], one].concat();
    for contents in [&endless[..], &[&[2], one].concat(), &[33]] {
        let error = with(contents);
        assert!(error.starts_with("the snapshot's contents: "), "{error}");
    }
}
