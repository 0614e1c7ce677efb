//! `datctl doctor`: every line, in the cases ok and not ok.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::tree::{GROUP, OTHER, PF0, PF1, PORT, Tree, VF, VF_SETTINGS};

struct Line {
    ok: bool,
    unknown: bool,
    required: bool,
    found: String,
    mend: String,
}

/// Returns the line with this name, the overall result, and the exit status.
fn line_of(tree: &Tree, arguments: &[&str], check: &str) -> (Line, bool, i32) {
    let (code, value) = tree.json(&[&["doctor"], arguments].concat());
    let ok = value["ok"].as_bool().expect("a verdict");
    (line_in(&value, check), ok, code)
}

fn line_in(value: &Value, check: &str) -> Line {
    let lines = value["lines"].as_array().expect("lines");
    let found: Vec<&Value> = lines.iter().filter(|line| line["check"] == check).collect();
    let [line] = found[..] else {
        panic!("{} lines {check} in {value:#}", found.len());
    };
    let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let line = Line {
        ok: line["ok"].as_bool().unwrap_or_default(),
        unknown: line["ok"].is_null(),
        required: line["required"].as_bool().expect("its weight"),
        found: text("found"),
        mend: text("mend"),
    };
    assert_eq!(
        line.ok,
        line.mend.is_empty(),
        "only what is not ok is mended"
    );
    line
}

/// Checks that a line is ok on the good machine and not ok after `harm`, and that it then counts for the exit status.
fn harmed(check: &str, harm: impl FnOnce(&Tree)) -> Line {
    let (line, ok, code) = harmed_line(check, harm);
    assert!(line.required, "{check}");
    assert_eq!((ok, code), (false, 1), "{check} counts");
    line
}

/// Like `harmed`, for a line that does not count.
fn slowed(check: &str, harm: impl FnOnce(&Tree)) -> Line {
    let (line, ok, code) = harmed_line(check, harm);
    assert!(!line.required, "{check}");
    assert_eq!((ok, code), (true, 0), "{check} does not count");
    line
}

fn harmed_line(check: &str, harm: impl FnOnce(&Tree)) -> (Line, bool, i32) {
    let tree = Tree::good();
    let (line, ..) = line_of(&tree, &[], check);
    assert!(line.ok, "{check}: {}", line.found);
    harm(&tree);
    let (line, ok, code) = line_of(&tree, &[], check);
    assert!(!line.ok, "{check}: {}", line.found);
    (line, ok, code)
}

#[test]
fn a_machine_on_which_all_is_well_is_ready() {
    let tree = Tree::good();
    let (code, out, err) = tree.human(&["doctor"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.ends_with("ready\n"), "{out}");
    assert!(!out.contains("not ok"), "{out}");
    // Of the three functions only the one that is bound to vfio-pci is checked.
    let (code, value) = tree.json(&["doctor"]);
    assert_eq!((code, &value["ok"]), (0, &Value::Bool(true)));
    for line in value["lines"].as_array().expect("lines") {
        assert!(line["device"].is_null() || line["device"] == VF, "{line}");
    }
}

#[test]
fn the_checklist_in_the_documentation_has_every_line_in_order() {
    let tree = Tree::good();
    let (_, value) = tree.json(&["doctor"]);
    let lines: Vec<&str> = value["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| line["check"].as_str().expect("a name"))
        .collect();
    let documentation = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hardware.md");
    let documentation = fs::read_to_string(documentation).expect("the documentation");
    let documented: Vec<&str> = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(documented, lines);
}

#[test]
fn iommu_says_whether_firmware_or_kernel_is_to_be_told() {
    let off = |tree: &Tree| {
        tree.remove("/sys/kernel/iommu_groups");
        tree.remove("/sys/class/iommu");
    };
    let line = harmed("iommu", off);
    assert!(
        line.found.contains("the firmware describes none"),
        "{}",
        line.found
    );
    assert!(line.mend.contains("firmware's setup"), "{}", line.mend);

    let line = harmed("iommu", |tree| {
        off(tree);
        tree.write("/sys/firmware/acpi/tables/DMAR", "");
        tree.write("/proc/cmdline", "quiet\n");
    });
    assert!(line.mend.contains("intel_iommu=on"), "{}", line.mend);

    let line = harmed("iommu", |tree| {
        off(tree);
        tree.write("/sys/firmware/acpi/tables/IVRS", "");
        tree.write("/proc/cmdline", "amd_iommu=off quiet\n");
    });
    assert!(line.found.contains("amd_iommu=off"), "{}", line.found);
    assert!(
        line.mend.contains("take that parameter out"),
        "{}",
        line.mend
    );

    let line = harmed("iommu", |tree| {
        off(tree);
        tree.write("/sys/firmware/acpi/tables/DMAR", "");
    });
    assert!(line.mend.contains("dmesg"), "{}", line.mend);
}

/// On Red Hat's systems, which keep the parameters with each kernel, the remedy is a grubby command.
#[test]
fn a_system_with_grubby_is_told_its_command() {
    let off = |tree: &Tree, parameters: &str| {
        tree.remove("/sys/kernel/iommu_groups");
        tree.remove("/sys/class/iommu");
        tree.write("/sys/firmware/acpi/tables/DMAR", "");
        tree.write("/proc/cmdline", parameters);
        tree.write("/usr/sbin/grubby", "");
    };
    let line = harmed("iommu", |tree| off(tree, "quiet\n"));
    assert_eq!(
        line.mend,
        "grubby --update-kernel=ALL --args=intel_iommu=on && reboot"
    );
    let line = harmed("iommu", |tree| off(tree, "intel_iommu=off quiet\n"));
    assert!(
        line.mend
            .contains("grubby --update-kernel=ALL --remove-args"),
        "{}",
        line.mend
    );
}

#[test]
fn a_port_in_a_bond_is_told_and_one_in_a_bridge_is_not() {
    let net = format!("/sys/bus/pci/devices/{PF0}/net/ens1f0");
    let line = slowed("pf lag", |tree| {
        tree.link(&format!("{net}/master"), "../../../../../virtual/net/bond0");
        tree.write(&format!("{net}/bonding_slave/state"), "active\n");
    });
    assert!(
        line.found.starts_with("ens1f0 is in bond0"),
        "{}",
        line.found
    );
    assert_eq!(line.mend, "ip link set dev ens1f0 nomaster");
    let tree = Tree::good();
    tree.link(&format!("{net}/master"), "../../../../../virtual/net/br0");
    assert!(line_of(&tree, &[], "pf lag").0.ok);
}

#[test]
fn the_firmwares_setup_says_whether_a_card_has_roce_and_who_is_its_switch() {
    let line = harmed("pf setup", |tree| {
        tree.setup(&[("ROCE_CONTROL", "ROCE_DISABLE(1)")])
    });
    assert!(
        line.found.starts_with("RoCE is switched off"),
        "{}",
        line.found
    );
    assert!(line.mend.contains("ROCE_CONTROL=2"), "{}", line.mend);

    let line = slowed("pf setup", |tree| {
        tree.setup(&[("INTERNAL_CPU_OFFLOAD_ENGINE", "ENABLED(0)")])
    });
    assert!(
        line.found.starts_with("DPU mode: the Arm is the switch"),
        "{}",
        line.found
    );
    assert!(line.mend.contains("ovs-vsctl"), "{}", line.mend);

    let tree = Tree::good();
    tree.setup(&[
        ("INTERNAL_CPU_OFFLOAD_ENGINE", "DISABLED(1)"),
        ("REAL_TIME_CLOCK_ENABLE", "True(1)"),
    ]);
    let (line, ok, _) = line_of(&tree, &[], "pf setup");
    assert!(line.ok && ok);
    assert_eq!(
        line.found,
        "INTERNAL_CPU_OFFLOAD_ENGINE DISABLED(1), REAL_TIME_CLOCK_ENABLE True(1)"
    );
    // Without the tools the settings are unknown. For a BlueField, the line also names DPU mode.
    tree.remove("/usr/sbin/mlxconfig");
    tree.write(&tree.of(PF0, "device"), "0xa2d6\n");
    let (line, ok, _) = line_of(&tree, &[], "pf setup");
    assert!(line.unknown && ok, "{}", line.found);
    assert!(line.found.contains("DPU mode"), "{}", line.found);
}

#[test]
fn who_takes_new_virtual_functions_is_told() {
    let tree = Tree::good();
    let (line, ..) = line_of(&tree, &[], "vf probing");
    assert!(line.found.contains("mlx5_core's first"), "{}", line.found);
    tree.write(&tree.of(PF0, "sriov_drivers_autoprobe"), "0\n");
    let (line, ..) = line_of(&tree, &[], "vf probing");
    assert!(
        line.ok && line.found.contains("no driver"),
        "{}",
        line.found
    );
}

#[test]
fn a_process_that_may_not_run_near_the_card_is_told() {
    let line = slowed("numa", |tree| {
        tree.write(&tree.of(VF, "numa_node"), "1\n");
        tree.write("/sys/devices/system/node/node1/cpulist", "64-127\n");
    });
    assert!(line.found.contains("may use none (0-63)"), "{}", line.found);
    assert!(
        line.mend.contains("--cpunodebind=1 --membind=1"),
        "{}",
        line.mend
    );
}

#[test]
fn interrupts_that_pass_no_iommu_are_told_with_the_choice_there_is() {
    let plain = "  0: 9 IO-APIC 2-edge timer\n";
    let line = harmed("interrupt remapping", |tree| {
        tree.write("/proc/interrupts", plain)
    });
    assert!(
        line.mend.contains("allow_unsafe_interrupts=1"),
        "{}",
        line.mend
    );

    let tree = Tree::good();
    tree.write("/proc/interrupts", plain);
    tree.write(
        "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
        "Y\n",
    );
    let (line, ok, _) = line_of(&tree, &[], "interrupt remapping");
    assert!(line.ok && ok);
    assert!(line.found.contains("any interrupt"), "{}", line.found);
}

#[test]
fn modules_that_are_not_there_are_named() {
    let line = harmed("modules", |tree| {
        tree.remove("/sys/module/vfio_iommu_type1")
    });
    assert_eq!(line.found, "not there: vfio_iommu_type1");
    assert!(
        line.mend.contains("modprobe -a vfio-pci vfio_iommu_type1"),
        "{}",
        line.mend
    );
    let line = harmed("modules", |tree| tree.remove("/dev/vfio/vfio"));
    assert_eq!(line.found, "not there: /dev/vfio/vfio");
    let line = harmed("modules", |tree| {
        tree.remove("/sys/bus/pci/drivers/vfio-pci")
    });
    assert_eq!(line.found, "not there: vfio-pci");
}

#[test]
fn io_uring_that_is_switched_off_is_told() {
    let tree = Tree::good();
    tree.write("/proc/sys/kernel/io_uring_disabled", "2\n");
    let (line, ok, _) = line_of(&tree, &[], "io_uring");
    assert!(!line.ok && ok, "adapters work without: {}", line.found);
    assert!(line.found.contains("disks are refused"), "{}", line.found);
    assert_eq!(line.mend, "sysctl -w kernel.io_uring_disabled=0");
    assert!(line.found.contains('2'), "{}", line.found);
    // The user of this test can create a ring although the switch is 1.
    let tree = Tree::good();
    tree.write("/proc/sys/kernel/io_uring_disabled", "1\n");
    let (line, ok, _) = line_of(&tree, &[], "io_uring");
    assert!(
        line.ok && ok && line.found.contains("is 1"),
        "{}",
        line.found
    );
    tree.write("/proc/sys/kernel/io_uring_disabled", "0\n");
    assert!(line_of(&tree, &[], "io_uring").0.ok);
}

#[test]
fn memlock_is_compared_with_what_is_going_to_be_registered() {
    let line = harmed("memlock", |tree| tree.memlock("8388608"));
    assert!(
        line.found
            .starts_with("8192 KiB may be locked, 1114112 are needed"),
        "{}",
        line.found
    );
    assert!(line.mend.starts_with("ulimit -l 1114112;"), "{}", line.mend);

    let tree = Tree::good();
    // The limit is 100 MiB and the memory that the firmware borrows.
    tree.memlock("171966464");
    assert!(line_of(&tree, &["--memory-mib", "100"], "memlock").0.ok);
    assert!(!line_of(&tree, &["--memory-mib", "101"], "memlock").0.ok);
    // With CAP_IPC_LOCK, the only capability that VFIO checks, the limit does not apply.
    tree.write("/proc/self/status", "CapEff:\t0000000000004000\n");
    assert!(line_of(&tree, &["--memory-mib", "101"], "memlock").0.ok);
}

#[test]
fn limits_that_are_too_low_are_told_with_their_numbers() {
    let line = harmed("limits", |tree| tree.limits("unlimited", "256"));
    assert_eq!(line.found, "65535 DMA mappings, 256 open files");
    assert!(line.mend.starts_with("ulimit -n 1024"), "{}", line.mend);
    let line = harmed("limits", |tree| {
        tree.write(
            "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit",
            "64\n",
        );
    });
    assert!(line.mend.contains("dma_entry_limit"), "{}", line.mend);
    // A limit that cannot be read makes the line not ok.
    let line = harmed("limits", |tree| tree.write("/proc/self/limits", ""));
    assert!(line.found.ends_with("0 open files"), "{}", line.found);
}

#[test]
fn too_few_huge_pages_cost_speed_and_nothing_else() {
    let line = slowed("huge pages", |tree| tree.huge_pages(2, 10));
    assert_eq!(line.found, "2 of 2 MiB are free, 512 are wanted");
    assert!(
        line.mend
            .starts_with("echo 520 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
        "{}",
        line.mend
    );
}

#[test]
fn a_machine_without_a_function_is_not_ready() {
    let line = harmed("function", |tree| {
        for address in [PF0, PF1, VF] {
            tree.remove(&format!("/sys/bus/pci/devices/{address}"));
        }
    });
    assert!(line.mend.contains("lspci -d 15b3:"), "{}", line.mend);
}

#[test]
fn a_function_with_another_driver_is_to_be_bound() {
    let tree = Tree::good();
    assert!(line_of(&tree, &[VF], "driver").0.ok);
    let (line, ok, code) = line_of(&tree, &[PF1], "driver");
    assert_eq!((line.ok, ok, code), (false, false, 1));
    assert_eq!(line.found, "bound to mlx5_core, not to vfio-pci");
    assert_eq!(line.mend, format!("datctl bind {PF1}"));
}

#[test]
fn without_a_bound_function_all_of_them_are_looked_at() {
    let tree = Tree::good();
    tree.driver(VF, Some("mlx5_core"));
    let (code, out, _) = tree.human(&["doctor"]);
    assert_eq!(code, 1);
    for address in [PF0, PF1, VF] {
        assert!(
            out.contains(&format!("mend: datctl bind {address}")),
            "{out}"
        );
    }
}

#[test]
fn a_group_with_strangers_in_use_says_who_they_are_and_how_to_get_them_out() {
    let line = harmed("group", |tree| {
        tree.member(GROUP, PF1);
        tree.member(GROUP, OTHER);
        tree.write(&tree.of(OTHER, "class"), "0x030000\n");
        // A bridge with its driver does not make the group unusable.
        tree.member(GROUP, PORT);
        tree.driver(PORT, Some("pcieport"));
    });
    assert_eq!(
        line.found,
        format!("{GROUP} is not viable: {OTHER} is bound to igb, {PF1} is bound to mlx5_core")
    );
    assert!(
        line.mend.contains(&format!("datctl bind {PF1}")),
        "{}",
        line.mend
    );
    assert!(
        line.mend.contains(&format!("echo {OTHER} > ")),
        "{}",
        line.mend
    );

    let line = harmed("group", |tree| tree.remove(&tree.of(VF, "iommu_group")));
    assert_eq!(line.found, "in no IOMMU group");
}

#[test]
fn a_shared_group_names_the_port_that_does_not_isolate() {
    let shared = |tree: &Tree| {
        tree.member(GROUP, PF1);
        tree.driver(PF1, Some("vfio-pci"));
    };
    let acs = |harm: &dyn Fn(&Tree)| {
        let tree = Tree::good();
        shared(&tree);
        harm(&tree);
        let (line, ok, _) = line_of(&tree, &[VF], "acs");
        assert!(!line.ok && !line.required && ok, "{}", line.found);
        line.found
    };
    let found = acs(&|tree| tree.port(PORT, 0));
    assert_eq!(
        found,
        format!("shares group {GROUP} with {PF1}: port {PORT} has ACS, switched off")
    );
    let found = acs(&|tree| {
        let path = tree.path(&format!("/sys/devices/pci0000:3a/{PORT}/config"));
        let mut config = fs::read(&path).expect("its space");
        config[0x140] = 0x03;
        fs::write(path, config).expect("its space");
    });
    assert!(
        found.ends_with(&format!("port {PORT} has no ACS")),
        "{found}"
    );
    let found = acs(&|tree| {
        let file = format!("/sys/devices/pci0000:3a/{PORT}/config");
        tree.write(&file, [0; 64]);
    });
    assert!(found.ends_with("shows its ACS to root only"), "{found}");
    let found = acs(&|_| {});
    assert!(
        found.contains("the functions of the card themselves do not"),
        "{found}"
    );
    // A function that is alone in its group is ok, whatever the port reports.
    let tree = Tree::good();
    tree.port(PORT, 0);
    assert!(line_of(&tree, &[VF], "acs").0.ok);
}

#[test]
fn a_port_with_garbage_for_a_capability_list_is_looked_at_for_a_bounded_time() {
    let tree = Tree::good();
    tree.member(GROUP, PF1);
    let file = format!("/sys/devices/pci0000:3a/{PORT}/config");
    // Both capability lists have an entry that points at itself.
    let mut config = vec![0; 4096];
    config[0x06] = 0x10;
    config[0x34] = 0x40;
    config[0x40] = 0x05;
    config[0x41] = 0x40;
    tree.write(&file, &config);
    line_of(&tree, &[VF], "acs");
    config[0x40] = 0x10;
    config[0x42] = 0x42;
    config[0x100] = 0x01;
    config[0x102..0x104].copy_from_slice(&[0x01, 0x10]);
    tree.write(&file, &config);
    line_of(&tree, &[VF], "acs");
    config.fill(0xff);
    tree.write(&file, &config);
    line_of(&tree, &[VF], "acs");
}

#[test]
fn a_group_file_that_is_not_there_or_not_ours_is_told() {
    let file = format!("/dev/vfio/{GROUP}");
    let line = harmed("access", |tree| tree.remove(&file));
    assert_eq!(line.found, format!("there is no {file}"));
    // A user without rights gets the error. Root could open the file.
    let tree = Tree::good();
    let mode = |path: &str, mode| {
        fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode("/", 0o755);
    mode(&file, 0o444);
    let line = line_in(&tree.json_as_nobody(&["doctor"]), "access");
    assert!(!line.ok);
    assert_eq!(line.found, format!("{file} is not ours to read and write"));
    assert_eq!(line.mend, format!("chown $USER {file} (as root)"));
}

#[test]
fn a_process_that_has_the_group_is_named() {
    let line = harmed("in use", |tree| tree.process(4711, "storaged", GROUP));
    assert_eq!(
        line.found,
        format!("process 4711 (storaged) has group {GROUP} open")
    );
    assert_eq!(line.mend, "kill 4711");
}

#[test]
fn a_function_that_cannot_be_reset_is_told() {
    let line = harmed("reset", |tree| {
        tree.write(&tree.of(VF, "reset_method"), "\n")
    });
    assert!(line.mend.starts_with("echo default > "), "{}", line.mend);
    let line = harmed("reset", |tree| tree.remove(&tree.of(VF, "reset_method")));
    assert!(line.mend.contains("sriov_numvfs"), "{}", line.mend);
    // Older kernels have the file `reset` but no `reset_method`.
    let tree = Tree::good();
    tree.remove(&tree.of(VF, "reset_method"));
    tree.write(&tree.of(VF, "reset"), "");
    assert!(line_of(&tree, &[VF], "reset").0.ok);
}

#[test]
fn a_link_below_what_the_card_can_do_costs_speed_and_nothing_else() {
    let line = slowed("pcie link", |tree| {
        tree.write(&tree.of(PF0, "current_link_width"), "4\n")
    });
    assert_eq!(line.found, "8.0 GT/s x4 of 8.0 GT/s x16");
}

/// Checks that a line is unknown after `harm`, and that it does not count.
fn hidden(check: &str, harm: impl FnOnce(&Tree)) -> Line {
    let (line, ok, code) = harmed_line(check, harm);
    assert!(line.unknown, "{check}: {}", line.found);
    assert_eq!((ok, code), (true, 0), "{check} does not count");
    line
}

/// Changes one part of the good virtual function's settings.
fn setting(tree: &Tree, from: &str, to: &str) {
    let changed = VF_SETTINGS.replace(from, to);
    assert_ne!(changed, VF_SETTINGS, "{from} is in it");
    tree.settings(&changed);
}

/// While the physical function's interface is down, its port is down, and the virtual functions follow the port (Linux
/// mlx5 `en_main.c` `mlx5e_close`).
#[test]
fn an_interface_that_is_down_takes_the_virtual_functions_with_it() {
    let of = |file: &str| format!("/sys/bus/pci/devices/{PF0}/net/ens1f0/{file}");
    let line = harmed("pf interface", |tree| tree.write(&of("flags"), "0x1002\n"));
    assert_eq!(line.mend, "ip link set dev ens1f0 up");
    let line = harmed("pf interface", |tree| {
        tree.write(&of("operstate"), "down\n")
    });
    assert_eq!(line.found, "ens1f0 is set up but has no link (down)");
    assert!(line.mend.contains("vf 0 state enable"), "{}", line.mend);
    // Functions of one card reach each other without a cable, if their link state is set to enable.
    let line = slowed("pf interface", |tree| {
        tree.write(&of("operstate"), "down\n");
        setting(tree, "\"auto\"", "\"enable\"");
    });
    assert!(line.found.contains("no link"), "{}", line.found);
    hidden("pf interface", |tree| tree.remove(&of("flags")));
    hidden("pf interface", |tree| {
        tree.write(&of("operstate"), "unknown\n")
    });
    // The interface is in another network namespace.
    hidden("pf interface", |tree| {
        tree.remove(&format!("/sys/bus/pci/devices/{PF0}/net"));
    });
}

#[test]
fn a_physical_function_without_its_driver_gives_its_virtual_ones_nothing() {
    let line = harmed("pf driver", |tree| tree.driver(PF0, None));
    assert_eq!(
        line.mend,
        format!("echo {PF0} > /sys/bus/pci/drivers/mlx5_core/bind")
    );
    // `VF` is named, because the physical function is bound to VFIO as well.
    let tree = Tree::good();
    tree.driver(PF0, Some("vfio-pci"));
    let (line, ok, code) = line_of(&tree, &[VF], "pf driver");
    assert_eq!((line.ok, ok, code), (false, false, 1));
    assert_eq!(line.mend, format!("datctl unbind {PF0}"));
    assert!(line.found.contains("vf_token"), "{}", line.found);
}

#[test]
fn a_virtual_function_without_its_physical_one_is_unknown_and_a_physical_one_has_no_such_lines() {
    let line = hidden("pf driver", |tree| tree.remove(&tree.of(VF, "physfn")));
    assert!(line.found.contains("not on this machine"), "{}", line.found);
    let tree = Tree::good();
    tree.remove(&tree.of(VF, "physfn"));
    let (_, out, _) = tree.human(&["doctor"]);
    assert!(out.contains("  unknown pf driver"), "{out}");
    assert!(
        out.ends_with("ready as far as can be seen: 1 line is unknown\n"),
        "{out}"
    );
    let (_, value) = tree.json(&["doctor", PF1]);
    let lines = value["lines"].as_array().expect("lines");
    assert!(
        lines.iter().all(|line| line["check"] != "pf driver"),
        "{value:#}"
    );
}

#[test]
fn a_small_mtu_of_the_port_costs_speed_and_says_what_a_packet_carries() {
    let mtu = format!("/sys/bus/pci/devices/{PF0}/net/ens1f0/mtu");
    let line = slowed("pf mtu", |tree| tree.write(&mtu, "1500\n"));
    assert_eq!(
        line.found,
        "ens1f0 has MTU 1500: a packet carries 1024 bytes of 4096"
    );
    slowed("pf mtu", |tree| tree.write(&mtu, "4191\n"));
    let tree = Tree::good();
    tree.write(&mtu, "4192\n");
    assert!(line_of(&tree, &[], "pf mtu").0.ok);
    hidden("pf mtu", |tree| tree.remove(&mtu));
}

#[test]
fn switchdev_needs_the_functions_port_up_and_is_told_from_legacy_without_devlink_too() {
    let port = |tree: &Tree, name: &str| {
        tree.netdev(PF0, "ens1f0_0");
        let file = format!("/sys/bus/pci/devices/{PF0}/net/ens1f0_0/phys_port_name");
        tree.write(&file, format!("{name}\n"));
    };
    let line = slowed("eswitch mode", |tree| tree.eswitch("switchdev"));
    assert!(
        line.mend
            .contains(&format!("eswitch set pci/{PF0} mode legacy")),
        "{}",
        line.mend
    );
    let line = slowed("eswitch mode", |tree| {
        tree.eswitch("switchdev");
        port(tree, "pf0vf0");
    });
    assert!(line.found.contains("port is ens1f0_0"), "{}", line.found);
    let line = harmed("eswitch mode", |tree| {
        tree.remove("/usr/sbin/devlink");
        port(tree, "pf0vf0");
        let flags = format!("/sys/bus/pci/devices/{PF0}/net/ens1f0_0/flags");
        tree.write(&flags, "0x1002\n");
    });
    assert!(line.found.contains("ens1f0_0 is down"), "{}", line.found);
    hidden("eswitch mode", |tree| tree.remove("/usr/sbin/devlink"));
    hidden("eswitch mode", |tree| {
        tree.remove(&format!("/answers/devlink -j dev eswitch show pci_{PF0}"));
    });
    // Without devlink, the mode is read from the file of NVIDIA's out-of-tree driver.
    let tree = Tree::good();
    tree.remove("/usr/sbin/devlink");
    tree.write(&tree.of(PF0, "net/ens1f0/compat/devlink/mode"), "legacy\n");
    assert!(line_of(&tree, &[], "eswitch mode").0.ok);
}

#[test]
fn what_the_switch_lets_a_virtual_function_do_is_told_with_the_command() {
    let line = harmed("vf link state", |tree| setting(tree, "auto", "disable"));
    assert_eq!(line.mend, "ip link set dev ens1f0 vf 0 state auto");
    let without = |tree: &Tree| setting(tree, "02:00:00:00:00:01", "00:00:00:00:00:00");
    let line = slowed("vf mac", without);
    assert!(
        line.mend.starts_with("ip link set dev ens1f0 vf 0 mac 02:"),
        "{}",
        line.mend
    );
    // In this case the rule that admits frames has the zero address (Linux mlx5 `esw/acl/ingress_lgcy.c`).
    let line = harmed("vf spoof check", |tree| {
        let changed = VF_SETTINGS
            .replace("02:00:00:00:00:01", "00:00:00:00:00:00")
            .replace("\"spoofchk\":false", "\"spoofchk\":true");
        tree.settings(&changed);
    });
    assert!(line.mend.ends_with("spoofchk off"), "{}", line.mend);
    let tree = Tree::good();
    setting(&tree, "\"spoofchk\":false", "\"spoofchk\":true");
    let (line, ..) = line_of(&tree, &[], "vf spoof check");
    assert_eq!(line.found, "on: only 02:00:00:00:00:01 may send");
    setting(&tree, "[{}]", r#"[{"vlan":100,"qos":3}]"#);
    let (line, ..) = line_of(&tree, &[], "vf vlan");
    assert_eq!(line.found, "100: its peers are those in this VLAN");
    setting(&tree, "\"trust\":false", "\"trust\":true");
    assert_eq!(line_of(&tree, &[], "vf trust").0.found, "on");
}

#[test]
fn what_ip_does_not_say_is_unknown_and_never_ok() {
    let checks = [
        "vf link state",
        "vf mac",
        "vf spoof check",
        "vf trust",
        "vf vlan",
    ];
    for check in checks {
        let line = hidden(check, |tree| tree.remove("/usr/sbin/ip"));
        assert_eq!(line.mend, "ip link show dev ens1f0");
        // `ip` fails, prints the settings of another function, or prints invalid JSON.
        let answers = "/answers/ip -json link show dev ens1f0";
        hidden(check, |tree| tree.remove(answers));
        hidden(check, |tree| {
            tree.write(answers, r#"[{"vfinfo_list":[{"vf":1}]}]"#)
        });
        hidden(check, |tree| tree.write(answers, "ens1f0: up"));
        // The physical function does not list this virtual function.
        hidden(check, |tree| tree.remove(&tree.of(PF0, "virtfn0")));
    }
    for (check, field) in checks
        .iter()
        .zip(["link_state", "address", "spoofchk", "trust"])
    {
        hidden(check, |tree| {
            setting(tree, &format!("\"{field}\""), "\"something\"");
        });
    }
}

#[test]
fn a_function_that_is_not_there_is_an_error_and_an_address_that_is_none_is_usage() {
    let tree = Tree::good();
    let (code, out, err) = tree.human(&["doctor", "0000:ff:1f.7"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.starts_with("datctl: 0000:ff:1f.7: no such PCI function"),
        "{err}"
    );
    let (code, _, err) = tree.human(&["doctor", "sim:a"]);
    assert_eq!(code, 2);
    assert!(err.contains("is no PCI address"), "{err}");
}

#[test]
fn what_the_port_does_with_priorities_is_told_with_what_mends_it() {
    let line = slowed("pf pfc", |tree| {
        tree.pfc("false,false,false,false,false,false,false,false");
    });
    assert!(
        line.mend
            .starts_with("dcb pfc set dev ens1f0 prio-pfc all:off 3:on"),
        "{}",
        line.mend
    );
    let line = slowed("pf priority", |tree| tree.priorities(""));
    assert_eq!(line.mend, "dcb app add dev ens1f0 dscp-prio 26:3");
    for (check, object) in [("pf pfc", "pfc"), ("pf priority", "app")] {
        hidden(check, |tree| tree.remove("/usr/sbin/dcb"));
        hidden(check, |tree| {
            tree.write(&format!("/answers/dcb -j {object} show dev ens1f0"), "?");
        });
    }
    hidden("pf congestion", |tree| {
        tree.remove("/sys/kernel/debug/mlx5");
    });
    let (line, ..) = line_of(&Tree::good(), &[], "pf priority");
    assert_eq!(line.found, "ens1f0 goes by DSCP: 26 is 3");
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const ENTRIES: &str = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";

/// Returns a machine with every fault that `--fix` can fix, and with a `modprobe` that writes its arguments to a file.
fn broken() -> Tree {
    let tree = Tree::good();
    tree.write(ENTRIES, "64\n");
    tree.huge_pages(2, 10);
    tree.write("/proc/meminfo", "MemAvailable:    4194304 kB\n");
    tree.write(&tree.of(VF, "reset_method"), "\n");
    let asked = tree.path("/asked").display().to_string();
    tree.write(
        "/usr/sbin/modprobe",
        format!("#!/bin/sh\necho \"$@\" >> {asked}\n"),
    );
    let program = tree.path("/usr/sbin/modprobe");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("a program");
    tree.remove("/dev/vfio/vfio");
    tree
}

#[test]
fn each_fix_is_printed_before_it_is_run_and_the_lines_are_looked_at_again() {
    let tree = broken();
    let (_, out, err) = tree.human(&["doctor", "--fix"]);
    assert_eq!(err, "");
    let commands: Vec<&str> = out.lines().filter(|line| line.starts_with("$ ")).collect();
    assert_eq!(
        commands,
        [
            "$ modprobe -a vfio-pci vfio_iommu_type1",
            &format!("$ echo 65535 > {ENTRIES}"),
            &format!("$ echo 520 > {POOL}"),
            &format!("$ echo default > /sys/bus/pci/devices/{VF}/reset_method"),
        ]
    );
    assert_eq!(tree.read("/asked"), "-a vfio-pci vfio_iommu_type1\n");
    assert_eq!(tree.read(ENTRIES), "65535");
    assert_eq!(tree.read(POOL), "520");
    assert!(out.contains("65535 DMA mappings"), "looked at again: {out}");
    assert!(tree.read(&tree.of(VF, "reset_method")).contains("default"));
}

#[test]
fn a_dry_run_prints_the_same_and_changes_nothing() {
    let tree = broken();
    let before = [tree.read(ENTRIES), tree.read(POOL)];
    let (_, out, _) = tree.human(&["doctor", "--fix", "--dry-run"]);
    let commands = out.lines().filter(|line| line.starts_with("$ "));
    assert_eq!(
        commands.filter(|line| line.ends_with("(not run)")).count(),
        4
    );
    assert!(!tree.path("/asked").exists());
    assert_eq!([tree.read(ENTRIES), tree.read(POOL)], before);
    let (code, ..) = tree.human(&["doctor", "--dry-run"]);
    assert_eq!(code, 2, "it says how --fix is done");
}

#[test]
fn only_functions_that_are_named_are_given_to_vfio() {
    let tree = Tree::good();
    tree.driver(VF, Some("mlx5_core"));
    let (_, out, _) = tree.human(&["doctor", "--fix"]);
    assert!(!out.contains("$ "), "{out}");
    let (_, out, _) = tree.human(&["doctor", VF, "--fix"]);
    assert!(out.starts_with(&format!("$ datctl bind {VF}\n")), "{out}");
    // No kernel acts on the writes in this directory, so the bind fails. But it was tried.
    assert!(out.contains("  failed: "), "{out}");
}

#[test]
fn a_fix_that_fails_is_told_and_the_others_are_tried() {
    let tree = broken();
    tree.remove("/usr/sbin/modprobe");
    let (code, out, _) = tree.human(&["doctor", "--fix"]);
    assert_eq!(code, 1);
    assert!(out.contains("  failed: modprobe is not there"), "{out}");
    assert_eq!(tree.read(ENTRIES), "65535");
}

#[test]
fn huge_pages_are_reserved_only_where_half_of_the_memory_stays() {
    let tree = broken();
    tree.write("/proc/meminfo", "MemAvailable:    2000000 kB\n");
    let (_, out, _) = tree.human(&["doctor", "--fix"]);
    assert!(!out.contains(&format!("$ echo 520 > {POOL}")), "{out}");
}
