//! Fields that only some commands have, or that are wider than their value. Reserved bits, and bits that only other
//! commands use, are ignored.

use super::*;

const ONES: u32 = u32::MAX;

/// Property Set of a four-byte property uses only the lower four bytes of the value: nvme-cli sets all bits of the
/// upper half.
#[test]
fn a_property_of_four_bytes_is_set_to_the_four_bytes_of_its_size() {
    for upper in [0, ONES] {
        let mut m = model(true);
        let id = admin(&mut m, &disks(), HOST);
        let on = sqe(0x7f, 0, [0, 0x14, 0x0046_0001, upper]);
        assert_eq!(command(&mut m, id, &on).status, Status::SUCCESS);
        assert_eq!(get(&mut m, id, 0x14, false).result, 0x0046_0001);
        assert_eq!(get(&mut m, id, 0x1c, false).result, 1);
    }
    let mut m = model(true);
    let id = admin(&mut m, &disks(), HOST);
    // No property of eight bytes can be set. Reserved bits of ATTRIB are ignored.
    for (attributes, offset, expected) in [
        (1, 0x14, 0x002 | DNR),
        (0, 0x00, 0x002 | DNR),
        (0, 0x1c, 0x002 | DNR),
        (2, 0x14, 0x002 | DNR),
        (0xf8, 0x14, 0),
        (0xffff_fff8, 0x14, 0),
    ] {
        let one = sqe(0x7f, 0, [attributes, offset, 0x0046_0000, 0]);
        let status = command(&mut m, id, &one).status;
        assert_eq!(code(status), expected, "{attributes:#x} {offset:#x}");
    }
}

#[test]
fn an_entry_of_the_error_log_has_the_fields_that_its_command_has() {
    const NSID: u64 = 0x0102_0304;
    const BLOCK: u64 = 0x22_0000_0011;
    let (none, namespace, both) = ((0, 0), (0, NSID), (BLOCK, NSID));
    let mut m = model(true);
    let id = ready(&mut m, &disks(), HOST);
    for (queue, opcode, expected) in [
        (0, 0x02, namespace),
        (0, 0x06, namespace),
        (0, 0x08, none),
        (0, 0x09, namespace),
        (0, 0x0a, namespace),
        (0, 0x0c, none),
        (0, 0x18, none),
        (0, 0xc1, none),
        (0, 0x7f, none),
        (1, 0x7f, none),
        (1, 0x00, namespace),
        (1, 0x01, both),
        (1, 0x02, both),
        (1, 0x05, both),
        (1, 0x08, both),
        (1, 0x09, namespace),
        (1, 0x0c, both),
        (1, 0x0d, namespace),
        (1, 0x0e, namespace),
        (1, 0x11, namespace),
        (1, 0x15, namespace),
        (1, 0x19, namespace),
        (1, 0xc1, namespace),
    ] {
        let mut bad = sqe(opcode, 0x0102_0304, [0x11, 0x22, 0, 0]);
        bad.cid = 0x1234.into();
        m.note_error(id, queue, &bad, Status::LBA_RANGE.dnr());
        let page = log(&mut m, id, 1, 64, 0).data;
        let fields =
            [(8, 2), (10, 2), (12, 2), (14, 2)].map(|(from, bytes)| at(&page, from, bytes));
        let of = format!("queue {queue}, opcode {opcode:#04x}");
        assert_eq!(fields, [queue.into(), 0x1234, 0x8100, 0xffff], "{of}");
        assert_eq!((at(&page, 16, 8), at(&page, 24, 4)), expected, "{of}");
        assert!(page[28..].iter().all(|byte| *byte == 0), "{of}");
    }
}

/// Each command succeeds with all unused bits set: reserved bits and dwords, and NSID of commands that have none.
#[test]
fn what_a_command_does_not_have_says_nothing() {
    let mut m = model(true);
    let id = ready(&mut m, &disks(), HOST);
    for (what, opcode, nsid, dwords) in [
        (
            "Identify, controller",
            0x06,
            ONES,
            [0xffff_ff01, 0x00ff_ffff, ONES, ONES],
        ),
        (
            "Identify, namespace",
            0x06,
            1,
            [0xffff_ff00, 0x00ff_ffff, ONES, ONES],
        ),
        (
            "Identify, active namespaces",
            0x06,
            0,
            [0xffff_ff02, 0x00ff_ffff, ONES, ONES],
        ),
        (
            "Identify, descriptors",
            0x06,
            1,
            [0xffff_ff03, 0x00ff_ffff, ONES, ONES],
        ),
        ("Abort", 0x08, ONES, [ONES; 4]),
        ("Keep Alive", 0x18, ONES, [ONES; 4]),
        (
            "Get Features, arbitration",
            0x0a,
            ONES,
            [0xffff_f801, ONES, ONES, ONES],
        ),
        (
            "Get Features, events",
            0x0a,
            ONES,
            [0xffff_f80b, ONES, ONES, ONES],
        ),
        (
            "Get Features, host identifier",
            0x0a,
            ONES,
            [0xffff_f881, ONES, ONES, ONES],
        ),
        (
            "Get Features, protection",
            0x0a,
            1,
            [0xffff_f884, ONES, ONES, ONES],
        ),
        (
            "Set Features, arbitration",
            0x09,
            0,
            [0x7fff_ff01, ONES, ONES, ONES],
        ),
        (
            "Set Features, power",
            0x09,
            0,
            [0x7fff_ff02, 0xffff_ffe0, ONES, ONES],
        ),
        (
            "Set Features, temperature",
            0x09,
            0,
            [0x7fff_ff04, 0xffc0_ffff, ONES, ONES],
        ),
        (
            "Set Features, queues",
            0x09,
            0,
            [0x7fff_ff07, 0x0001_0001, ONES, ONES],
        ),
        (
            "Set Features, atomicity",
            0x09,
            0,
            [0x7fff_ff0a, ONES, ONES, ONES],
        ),
        (
            "Set Features, keep-alive",
            0x09,
            0,
            [0x7fff_ff0f, 5000, ONES, ONES],
        ),
        (
            "Get Log Page, errors",
            0x02,
            ONES,
            [0x000f_7f01, 0xffff_0000, 0, 0],
        ),
        (
            "Get Log Page, health",
            0x02,
            ONES,
            [0x007f_7f02, 0xffff_0000, 0, 0],
        ),
        (
            "Property Get",
            0x7f,
            0xffff_ff04,
            [0xffff_fff8, 0x1c, ONES, ONES],
        ),
    ] {
        let mut one = sqe(opcode, nsid, dwords);
        (one.cdw14, one.cdw15, one.mptr) = (ONES.into(), ONES.into(), u64::MAX.into());
        let status = command(&mut m, id, &one).status;
        assert_eq!(status, Status::SUCCESS, "{what}");
    }
}

/// Get Features with Select 1 returns the default of every feature, also after a host has set another value.
#[test]
fn a_feature_has_a_default_that_no_host_changes() {
    let mut m = model(true);
    let id = ready(&mut m, &disks(), HOST);
    for (feature, nsid, value, usual) in [
        (0x01, 0, 3, 7),
        (0x02, 0, 0x40, 0),
        (0x04, 0, 300, 0xffff),
        (0x05, 1, 77, 0),
        (0x0a, 0, 1, 0),
        (0x0b, 0, 0x100, 0),
        (0x82, 1, 2, 0),
        (0x84, 1, 1, 0),
    ] {
        let set = command(&mut m, id, &sqe(0x09, nsid, [feature, value, 0, 0]));
        assert_eq!(set.status, Status::SUCCESS, "{feature:#x}");
        let mut read = |select: u32| {
            let get = sqe(0x0a, nsid, [feature | select << 8, 0, 0, 0]);
            command(&mut m, id, &get).result
        };
        let told = [read(0), read(1), read(2)];
        assert_eq!(told, [value.into(), usual, usual], "{feature:#x}");
    }
}
