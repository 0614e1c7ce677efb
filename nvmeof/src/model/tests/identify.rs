//! Identify, field by field (Base specification, "Identify Controller data structure"; NVM Command Set, "Identify
//! Namespace data structure").

use super::*;

fn identify(model: &mut Model, id: u16, cns: u32, nsid: u32, set: u32) -> Answer {
    command(model, id, &sqe(0x06, nsid, [cns, set << 24, 0, 0]))
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes)
        .expect("text")
        .trim_end_matches([' ', '\0'])
}

#[test]
fn the_controller_says_what_linux_checks() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let said = identify(&mut model, id, 1, 0, 0).data;
    assert_eq!(said.len(), 4096);
    assert_eq!((text(&said[4..24]), text(&said[24..64])), ("S1", "M1"));
    assert_eq!(text(&said[768..1024]), disks().as_str());
    for (offset, length, value, field) in [
        (76, 1, 0x0b, "CMIC"),
        (77, 1, 5, "MDTS"),
        (78, 2, u64::from(id), "CNTLID"),
        (80, 4, 0x0002_0000, "VER"),
        (92, 4, 0x900, "OAES"),
        (96, 4, 0x41, "CTRATT"),
        (111, 1, 1, "CNTRLTYPE"),
        (256, 2, 0, "OACS"),
        (258, 1, 3, "ACL"),
        (259, 1, 3, "AERL"),
        (260, 1, 3, "FRMW"),
        (261, 1, 7, "LPA"),
        (262, 1, 127, "ELPE"),
        (320, 2, 10, "KAS"),
        (342, 1, 10, "ANATT"),
        (343, 1, 0x5f, "ANACAP"),
        (344, 4, 16, "ANAGRPMAX"),
        (348, 4, 16, "NANAGRPID"),
        (512, 1, 0x66, "SQES"),
        (513, 1, 0x44, "CQES"),
        (514, 2, 128, "MAXCMD"),
        (516, 4, 1024, "NN"),
        (525, 1, 7, "VWC"),
        (531, 1, 1, "NWPC"),
        (534, 2, 1, "OCFS"),
        (536, 4, 0x0010_0005, "SGLS"),
        (540, 4, 1024, "MNAN"),
        (1792, 4, 260, "IOCCSZ"),
        (1796, 4, 1, "IORCSZ"),
        (1800, 2, 0, "ICDOFF"),
        (1802, 1, 0, "FCATT"),
        (1803, 1, 1, "MSDBD"),
        (1804, 2, 0, "OFCS"),
    ] {
        assert_eq!(at(&said, offset, length), value, "{field}");
    }
    // Compare, Dataset Management, Write Zeroes, Save and Select of features, reservations, Verify, Copy.
    assert_eq!(at(&said, 520, 2), 0x1bd, "ONCS");
}

#[test]
fn a_discovery_controller_is_one_and_has_nothing_else() {
    let mut model = model(true);
    let id = ready(&mut model, &name(DISCOVERY), HOST);
    let said = identify(&mut model, id, 1, 0, 0).data;
    assert_eq!(text(&said[768..1024]), DISCOVERY);
    assert_eq!(
        (at(&said, 111, 1), at(&said, 92, 4), at(&said, 536, 4)),
        (2, 1 << 31, 0x0010_0005)
    );
    for cns in (0..=0xff).filter(|cns| *cns != 1) {
        assert_eq!(
            code(identify(&mut model, id, cns, 1, 0).status),
            0x002 | DNR,
            "{cns:#x}"
        );
    }
}

#[test]
fn a_namespace_says_its_size_and_its_identity() {
    let mut model = model(true);
    let id = ready(&mut model, &disks(), HOST);
    let said = identify(&mut model, id, 0, 1, 0).data;
    for (offset, length, value, field) in [
        (0, 8, 2048, "NSZE"),
        (8, 8, 2048, "NCAP"),
        (16, 8, 2048, "NUSE"),
        (25, 1, 0, "NLBAF"),
        (26, 1, 0, "FLBAS"),
        (27, 3, 0, "MC, DPC, DPS"),
        (30, 1, 1, "NMIC"),
        (33, 1, 9, "DLFEAT"),
        (64, 2, 7, "NPWG"),
        (74, 2, 1 << 15, "MSSRL"),
        (76, 4, 1 << 15, "MCL"),
        (80, 1, 127, "MSRC"),
        (92, 4, 1, "ANAGRPID"),
        (99, 1, 0, "NSATTR"),
        (128, 4, 9 << 16, "LBAF0"),
    ] {
        assert_eq!(at(&said, offset, length), value, "{field}");
    }
    let list = identify(&mut model, id, 3, 1, 0).data;
    assert_eq!(
        (&list[..4], &list[4..20]),
        (&[2, 16, 0, 0][..], &said[104..120])
    );
    assert_eq!(
        (&list[20..24], &list[24..40]),
        (&[3, 16, 0, 0][..], &said[104..120])
    );
    assert_eq!(&list[40..48], [4, 1, 0, 0, 0, 0, 0, 0]);
    let independent = identify(&mut model, id, 8, 1, 0).data;
    assert_eq!(
        (independent[1], at(&independent, 4, 4), independent[14]),
        (1, 1, 1)
    );
}

#[test]
fn namespaces_are_listed_by_number_and_those_that_are_not_there_are_empty() {
    let mut model = model(true);
    for nsid in [3, 1024] {
        let config = NamespaceConfig {
            nsid: Some(nsid),
            ..disk()
        };
        assert_eq!(model.add_namespace(&disks(), config), Ok(nsid));
    }
    let id = ready(&mut model, &disks(), HOST);
    for (above, listed) in [(0, [1, 3, 1024]), (1, [3, 1024, 0]), (1024, [0; 3])] {
        for (cns, set) in [(2, 0), (7, 0)] {
            let list = identify(&mut model, id, cns, above, set).data;
            assert_eq!(
                [at(&list, 0, 4), at(&list, 4, 4), at(&list, 8, 4)],
                listed,
                "above {above}"
            );
        }
    }
    assert_eq!(
        identify(&mut model, id, 0, 2, 0),
        Answer::data(vec![0; 4096])
    );
    for (cns, nsid) in [
        (0, 0),
        (0, u32::MAX),
        (0, 1025),
        (2, u32::MAX),
        (2, u32::MAX - 1),
        (3, 2),
        (8, 0),
        (0x12, 2),
    ] {
        assert_eq!(
            code(identify(&mut model, id, cns, nsid, 0).status),
            0x00b | DNR,
            "{cns:#x} {nsid}"
        );
    }
    for (cns, set) in [
        (4, 0),
        (6, 1),
        (5, 2),
        (7, 2),
        (0x10, 0),
        (0x16, 0),
        (0x1c, 0),
        (0xff, 0),
    ] {
        assert_eq!(
            code(identify(&mut model, id, cns, 0, set).status),
            0x002 | DNR,
            "{cns:#x} {set}"
        );
    }
    assert_eq!(
        identify(&mut model, id, 6, 0, 0),
        Answer::data(vec![0; 4096])
    );
    let other = ready(&mut model, &disks(), OTHER);
    let list = identify(&mut model, id, 0x13, 0, 0).data;
    assert_eq!(&list[..8], [2, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(
        (
            id,
            other,
            &identify(&mut model, id, 0x12 | 2 << 16, 1, 0).data[..4]
        ),
        (1, 2, &[1, 0, 2, 0][..])
    );
}
