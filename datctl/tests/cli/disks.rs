//! NVMe SSDs for `datctl devices`, `doctor` and `bind`: what they are, and that none is taken from the kernel while its
//! disks are in use.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::tree::{PF0, PF1, Tree, VF};

/// Address of an SSD that the kernel's driver has.
const SSD: &str = "0000:5e:00.0";
/// IOMMU group of the SSD.
const SSD_GROUP: u32 = 80;

/// Returns the good machine with an SSD whose namespace has two partitions, and nothing in use.
fn with_ssd() -> Tree {
    let tree = Tree::good();
    tree.device(SSD, "0xa80a", "nvme", SSD_GROUP);
    tree.write(&tree.of(SSD, "vendor"), "0x144d\n");
    tree.write(&tree.of(SSD, "class"), "0x010802\n");
    tree.write(&tree.of(SSD, "nvme/nvme0/model"), "An SSD\n");
    namespace(&tree, &tree.of(SSD, "nvme/nvme0"), "nvme0n1", 259);
    // As the kernel shows the mounts of a machine that was booted from another disk.
    tree.write(
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
         23 22 0:21 / /proc rw,nosuid - proc proc rw\n",
    );
    tree
}

/// Adds the block device of a namespace, with two partitions, below a folder of sysfs.
fn namespace(tree: &Tree, folder: &str, name: &str, major: u32) {
    for (minor, device) in [
        name.to_owned(),
        format!("{name}/{name}p1"),
        format!("{name}/{name}p2"),
    ]
    .iter()
    .enumerate()
    {
        tree.write(
            &format!("{folder}/{device}/dev"),
            format!("{major}:{minor}\n"),
        );
        let short = device.rsplit('/').next().expect("a name");
        tree.write(&format!("/dev/{short}"), "");
        tree.link(
            &format!("/sys/class/block/{short}"),
            &tree
                .path(&format!("{folder}/{device}"))
                .display()
                .to_string(),
        );
        if minor > 0 {
            tree.write(
                &format!("{folder}/{device}/partition"),
                format!("{minor}\n"),
            );
        }
    }
}

/// Checks that the SSD is not taken, for this reason, and that doctor's line `disks` has it as well.
fn refused(tree: &Tree, reason: &str) {
    let (code, out, err) = tree.human(&["bind", SSD]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert_eq!(
        err.trim_end(),
        format!("datctl: {SSD}: not taken from nvme, because {reason}: end that use first")
    );
    assert_eq!(
        tree.read(&tree.of(SSD, "driver_override")),
        "(null)\n",
        "nothing is written"
    );
    let line = disks(tree);
    assert_eq!(line["found"], reason);
    assert_eq!(line["required"], true);
}

fn disks(tree: &Tree) -> Value {
    let (_, value) = tree.json(&["doctor", SSD]);
    let lines = value["lines"].as_array().expect("lines");
    let found: Vec<&Value> = lines.iter().filter(|it| it["check"] == "disks").collect();
    let [line] = found[..] else {
        panic!("{} lines disks in {value:#}", found.len());
    };
    line.clone()
}

#[test]
fn an_ssd_is_listed_with_its_disks() {
    let tree = with_ssd();
    let (code, value) = tree.json(&["devices"]);
    assert_eq!(code, 0);
    let devices = value["devices"].as_array().expect("a list");
    let addresses: Vec<&Value> = devices.iter().map(|it| &it["address"]).collect();
    assert_eq!(addresses, [PF0, PF1, VF, SSD]);
    let ssd = &devices[3];
    assert_eq!(
        (&ssd["product"], &ssd["disks"], &ssd["usable"]),
        (&json!("NVMe SSD"), &json!(["nvme0n1"]), &json!(false))
    );
    let (_, out, _) = tree.human(&["devices"]);
    let row = out.lines().find(|line| line.contains("NVMe SSD"));
    assert!(row.expect(&out).contains("nvme0n1"), "{out}");
}

#[test]
fn an_ssd_without_a_use_may_be_taken() {
    let tree = with_ssd();
    let line = disks(&tree);
    assert_eq!(
        (&line["ok"], &line["found"]),
        (&json!(true), &json!("nvme0n1, not in use"))
    );
    // The tree has no kernel that would react to the writes, so the bind is attempted, and undone.
    let (code, _, err) = tree.human(&["bind", SSD]);
    assert_eq!(code, 1);
    assert!(
        err.contains("bound to nvme, not to vfio-pci, after all was written"),
        "{err}"
    );
}

/// Only the cards and what is bound to vfio-pci are checked unless they are named: an SSD of the kernel's is most often
/// its disk.
#[test]
fn doctor_looks_at_an_ssd_if_it_is_named_or_bound() {
    let tree = with_ssd();
    let of_ssd = |tree: &Tree| {
        let (_, value) = tree.json(&["doctor"]);
        let lines = value["lines"].as_array().expect("lines");
        lines.iter().filter(|line| line["device"] == SSD).count()
    };
    assert_eq!(of_ssd(&tree), 0);
    tree.driver(SSD, Some("vfio-pci"));
    tree.remove(&tree.of(SSD, "nvme"));
    assert!(of_ssd(&tree) > 0);
    let (_, value) = tree.json(&["doctor", SSD]);
    let lines = value["lines"].as_array().expect("lines");
    let of_a_card = |line: &&Value| {
        let check = line["check"].as_str().expect("a name");
        check.starts_with("pf ") || check.starts_with("vf ") || check == "disks"
    };
    assert_eq!(lines.iter().find(of_a_card), None, "no line of a card's");
}

#[test]
fn a_mounted_disk_is_not_taken() {
    let tree = with_ssd();
    tree.write(
        "/proc/self/mountinfo",
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw\n",
    );
    refused(&tree, "nvme0n1p2 is mounted at /");
    // A file system of several devices has a number of its own, and shows one of the devices.
    tree.write(
        "/proc/self/mountinfo",
        "40 22 0:35 /@home /home rw,relatime - btrfs /dev/nvme0n1p1 rw,subvol=/@home\n",
    );
    refused(&tree, "nvme0n1p1 is mounted at /home");
}

#[test]
fn a_disk_that_is_mounted_in_another_mount_namespace_is_not_taken() {
    let tree = with_ssd();
    for process in ["self", "4711"] {
        tree.link(
            &format!("/proc/{process}/ns/mnt"),
            &format!("mnt:[{process}]"),
        );
    }
    tree.write(
        "/proc/4711/mountinfo",
        "90 80 259:0 / /data rw,relatime - xfs /dev/nvme0n1 rw\n",
    );
    refused(&tree, "nvme0n1 is mounted at /data");
}

#[test]
fn a_swap_area_is_not_taken() {
    let tree = with_ssd();
    tree.write(
        "/proc/swaps",
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/nvme0n1p1                          partition\t8388604\t\t0\t\t-2\n",
    );
    refused(&tree, "nvme0n1p1 is a swap area");
}

#[test]
fn a_disk_of_which_another_device_consists_is_not_taken() {
    let tree = with_ssd();
    tree.write(&tree.of(SSD, "nvme/nvme0/nvme0n1/holders/md127"), "");
    refused(&tree, "nvme0n1 is a part of md127");
    tree.remove(&tree.of(SSD, "nvme/nvme0/nvme0n1/holders/md127"));
    tree.write(
        &tree.of(SSD, "nvme/nvme0/nvme0n1/nvme0n1p2/holders/dm-0"),
        "",
    );
    tree.write("/sys/class/block/dm-0/dm/name", "vg0-root\n");
    refused(&tree, "nvme0n1p2 is a part of vg0-root");
    tree.remove(&tree.of(SSD, "nvme/nvme0/nvme0n1/nvme0n1p2/holders/dm-0"));
    tree.write(
        "/sys/class/block/loop0/loop/backing_file",
        "/dev/nvme0n1p1\n",
    );
    refused(&tree, "nvme0n1p1 is a part of loop0");
}

#[test]
fn a_disk_that_the_kernels_target_serves_is_not_taken() {
    let tree = with_ssd();
    let folder = "/sys/kernel/config/nvmet/subsystems/nqn.2026-11.example:a";
    let path = format!("{folder}/namespaces/1/device_path");
    tree.link("/dev/disk/by-id/nvme-example", "../../nvme0n1p1");
    for (device, is) in [
        ("/dev/nvme0n1", "nvme0n1"),
        ("/dev/disk/by-id/nvme-example", "nvme0n1p1"),
    ] {
        tree.write(&path, format!("{device}\n"));
        refused(
            &tree,
            &format!("the kernel's NVMe target serves {is} as nqn.2026-11.example:a"),
        );
    }
    // One that is not enabled is not open.
    tree.write(&format!("{folder}/namespaces/1/enable"), "0\n");
    assert_eq!(disks(&tree)["ok"], true);
    tree.write(&format!("{folder}/passthru/device_path"), "/dev/nvme0\n");
    refused(
        &tree,
        "the kernel's NVMe target serves nvme0 as nqn.2026-11.example:a",
    );
}

#[test]
fn a_disk_that_a_process_has_open_is_not_taken() {
    for file in ["nvme0n1", "nvme0n1p2", "ng0n1"] {
        let tree = with_ssd();
        tree.write("/proc/4711/comm", "storaged\n");
        let open = tree.path(&format!("/dev/{file}")).display().to_string();
        tree.link("/proc/4711/fd/7", &open);
        refused(
            &tree,
            &format!("process 4711 (storaged) has /dev/{file} open"),
        );
    }
}

/// A disk that cannot be opened counts as used. (What EBUSY means is tested with the code.)
#[test]
fn a_disk_that_cannot_be_opened_is_not_taken() {
    let tree = with_ssd();
    tree.remove("/dev/nvme0n1");
    symlink("nvme0n1", tree.path("/dev/nvme0n1")).expect("a link to itself");
    let (code, _, err) = tree.human(&["bind", SSD]);
    assert_eq!(code, 1);
    assert!(
        err.contains("whether nvme0n1 is in use is not known: /dev/nvme0n1: "),
        "{err}"
    );
    assert!(err.contains("only root may; try sudo"), "{err}");
    let line = disks(&tree);
    assert_eq!(
        (&line["ok"], line["mend"].is_string()),
        (&Value::Null, true)
    );
}

/// A namespace that several controllers may reach has its block device at the subsystem, and a hidden path at the
/// controller (Linux `drivers/nvme/host/multipath.c`).
#[test]
fn a_shared_namespace_is_found_at_its_subsystem() {
    let tree = Tree::good();
    tree.device(SSD, "0xa80a", "nvme", SSD_GROUP);
    tree.write(&tree.of(SSD, "class"), "0x010802\n");
    tree.write(&tree.of(SSD, "nvme/nvme0/nvme0c0n1/size"), "1\n");
    let subsystem = "/sys/class/nvme-subsystem/nvme-subsys0";
    tree.write(&format!("{subsystem}/nvme0/model"), "An SSD\n");
    namespace(&tree, subsystem, "nvme0n1", 259);
    let other = "/sys/class/nvme-subsystem/nvme-subsys1";
    tree.write(&format!("{other}/nvme1/model"), "Another SSD\n");
    namespace(&tree, other, "nvme1n1", 260);
    tree.write(
        "/proc/self/mountinfo",
        "22 1 259:1 / /boot rw - ext4 /dev/nvme0n1p1 rw\n\
         23 1 260:1 / / rw - ext4 /dev/nvme1n1p1 rw\n",
    );
    refused(&tree, "nvme0n1p1 is mounted at /boot");
}
