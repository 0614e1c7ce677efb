//! Features that are mandatory for a controller of version 2.0 (Base specification 2.0, "I/O Controller Feature
//! Support"; NVM Command Set specification 1.0, "Feature Support").

use super::*;

/// Sends Get Features or Set Features; returns status and result.
fn ask(m: &mut Model, id: u16, opcode: u8, nsid: u32, dwords: [u32; 2]) -> (u16, u64) {
    let [dword10, dword11] = dwords;
    let answer = command(m, id, &sqe(opcode, nsid, [dword10, dword11, 0, 0]));
    (code(answer.status), answer.result)
}

const INVALID: (u16, u64) = (0x002 | DNR, 0);

#[test]
fn mandatory_features_are_kept_as_they_are_set_until_a_reset() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    // Feature, namespace, default, value set, value in effect.
    let table = [
        (0x01, 0, 0x0000_0007, 0x0a14_1e03, 0x0a14_1e03),
        (0x01, 0, 0x0000_0007, 0x0a14_1eff, 0x0a14_1e07),
        (0x02, 0, 0, 0x0000_0040, 0x40),
        (0x04, 0, 0xffff, 0x0000_0157, 0x157),
        (0x04, 0, 0xffff, 0x000f_0158, 0x158),
        (0x05, 1, 0, 0x0000_0032, 0x32),
        (0x0a, 0, 0, 0x0000_0001, 1),
    ];
    for (feature, nsid, default, set, kept) in table {
        let (set_id, select) = (0x09, |what: u32| [feature | what << 8, 0]);
        assert_eq!(
            ask(m, id, 0x0a, nsid, select(0)),
            (0, default),
            "{feature:#x}"
        );
        assert_eq!(
            ask(m, id, set_id, nsid, [feature, set]),
            (0, 0),
            "{feature:#x}"
        );
        assert_eq!(ask(m, id, 0x0a, nsid, select(0)), (0, kept), "{feature:#x}");
        // Select 1: the default. Select 2: the saved value; no feature can be saved, so this is the default, too.
        // Select 3: capabilities (changeable, namespace specific).
        assert_eq!(
            ask(m, id, 0x0a, nsid, select(1)),
            (0, default),
            "{feature:#x}"
        );
        assert_eq!(
            ask(m, id, 0x0a, nsid, select(2)),
            (0, default),
            "{feature:#x}"
        );
        let can = if nsid == 0 { 4 } else { 6 };
        assert_eq!(ask(m, id, 0x0a, nsid, select(3)), (0, can), "{feature:#x}");
        assert_eq!(ask(m, id, 0x0a, nsid, select(4)), INVALID, "{feature:#x}");
        let saved = [feature | 1 << 31, set];
        assert_eq!(
            ask(m, id, set_id, nsid, saved),
            (0x10d | DNR, 0),
            "{feature:#x}"
        );
        m.take_notices();
        super::set(m, id, 0x14, 0x0046_0000);
        super::set(m, id, 0x14, 0x0046_0001);
        assert_eq!(
            ask(m, id, 0x0a, nsid, select(0)),
            (0, default),
            "{feature:#x}"
        );
    }
}

#[test]
fn what_a_feature_cannot_be_is_refused() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    let no_namespace = (0x00b | DNR, 0);
    for (opcode, nsid, dwords, wanted) in [
        // There is one power state.
        (0x09, 0, [0x02, 1], INVALID),
        // There is one sensor, and only the over temperature threshold.
        (0x09, 0, [0x04, 0x0001_0157], INVALID),
        (0x09, 0, [0x04, 0x0010_0157], INVALID),
        (0x0a, 0, [0x04, 0x0001_0000], INVALID),
        (0x0a, 0, [0x04, 0x000f_0000], INVALID),
        (0x0a, 0, [0x04, 0x0010_0000], INVALID),
        // DULBE cannot be set: a read of deallocated blocks is no error (NSFEAT bit 2).
        (0x09, 1, [0x05, 0x0001_0000], INVALID),
        (0x09, 0, [0x05, 1], no_namespace),
        (0x09, 2, [0x05, 1], no_namespace),
        (0x0a, 2, [0x05, 0], no_namespace),
        (0x0a, u32::MAX, [0x05, 0], no_namespace),
        // NSID FFFFFFFFh sets the feature of all namespaces.
        (0x09, u32::MAX, [0x05, 9], (0, 0)),
        (0x0a, 1, [0x05, 0], (0, 9)),
        // The feature is not namespace specific.
        (0x09, 1, [0x01, 3], (0x10f | DNR, 0)),
        (0x09, u32::MAX, [0x01, 3], (0, 0)),
    ] {
        assert_eq!(
            ask(m, id, opcode, nsid, dwords),
            wanted,
            "{opcode:#x} {nsid} {dwords:x?}"
        );
    }
    // A discovery controller has none of these features.
    let id = ready(&mut model, &name(DISCOVERY), HOST);
    for feature in [0x01, 0x02, 0x04, 0x05, 0x0a] {
        assert_eq!(
            ask(&mut model, id, 0x0a, 1, [feature, 0]),
            INVALID,
            "{feature:#x}"
        );
    }
}

#[test]
fn a_threshold_below_the_temperature_is_a_warning() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let m = &mut model;
    let mut health = |threshold: u32| {
        ask(m, id, 0x09, 0, [0x04, threshold]);
        let page = log(m, id, 2, 512, 0).data;
        (at(&page, 0, 1), at(&page, 1, 2))
    };
    // The composite temperature is always 300 K.
    assert_eq!(health(301), (0, 300));
    assert_eq!(health(300), (1 << 1, 300));
}

#[test]
fn the_log_of_features_names_those_that_there_are_with_their_scope() {
    let mut model = model(true);
    for (subsystem, is_discovery) in [(disks(), false), (name(DISCOVERY), true)] {
        let id = ready(&mut model, &subsystem, HOST);
        let page = log(&mut model, id, 0x12, 1024, 0).data;
        for feature in 0..=0xff_u32 {
            // Get Features returns the capabilities of every feature that exists.
            let (status, can) = ask(&mut model, id, 0x0a, 1, [feature | 3 << 8, 0]);
            let effects = at(&page, feature as usize * 4, 4);
            assert_eq!(effects & 1 == 1, status == 0, "{feature:#x}");
            let scope = if can & 2 == 2 { 1 << 20 } else { 1 << 21 };
            assert_eq!(
                effects & !1,
                if status == 0 { scope } else { 0 },
                "{feature:#x}"
            );
            let mandatory = [0x01, 0x02, 0x04, 0x05, 0x07, 0x0a, 0x0b, 0x0f];
            let has_to = mandatory.contains(&feature) && !is_discovery;
            assert!(!has_to || status == 0, "{feature:#x}");
        }
    }
}
