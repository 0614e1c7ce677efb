//! Tests of the built-in profile files.

use super::*;

#[path = "../../tests/generations_page/mod.rs"]
mod page;

use page::keep;

/// Every built-in file describes a Mellanox device with RC and at least 2^12 queue pairs. No two files have the same
/// device number and minor firmware version.
#[test]
fn every_generation_is_a_device_of_its_own() {
    let mut ids: Vec<(u16, u16)> = Vec::new();
    for name in Profile::generations() {
        let profile = Profile::generation(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (profile.generation.as_str(), profile.vendor_id),
            (name, 0x15b3)
        );
        assert!(
            profile.general.max.rc() && profile.general.max.log_max_qp() >= 12,
            "{name}"
        );
        ids.push((profile.device_id, profile.firmware.1));
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), count), (9, 9));
}

/// A virtual function has the device number of Linux `main.c` `mlx5_core_pci_table` (rows marked MLX5_PCI_DEV_IS_VF),
/// lacks the capabilities that only a physical function may have, and has limits that are at most the physical
/// function's.
#[test]
fn the_virtual_functions_of_a_device_are_what_its_file_says() {
    for (name, id) in [
        ("connectx-4", 0x1014),
        ("connectx-4-lx-14.12", 0x1016),
        ("connectx-4-lx-14.32", 0x1016),
        ("connectx-5", 0x1018),
        ("connectx-6-ib", 0x101c),
        ("connectx-6-dx", 0x101e),
        ("connectx-7", 0x101e),
        ("bluefield-3", 0x101e),
    ] {
        let physical = Profile::generation(name).expect("a generation");
        let function = physical.virtual_function(3).expect("virtual functions");
        assert_eq!(
            (function.device_id, function.bar_bytes),
            (id, 1 << 20),
            "{name}"
        );
        assert_eq!(
            (function.msix_vectors, function.pages),
            (12, PageProfile::NONE),
            "{name}"
        );
        for caps in [&function.general.max, &function.general.current] {
            assert!(
                !caps.vport_group_manager() && !caps.eswitch_manager(),
                "{name}"
            );
            assert!(
                !caps.uplink_follow() && !caps.nic_vport_change_event(),
                "{name}"
            );
            assert_eq!((caps.log_max_l2_table(), caps.uar_sz()), (0, 0), "{name}");
            // Linux writes QETCR if `ets` is set, and a virtual function's write is refused.
            assert!(!caps.ets(), "{name}");
            assert_eq!(caps.log_max_qp(), 12, "{name}");
        }
        assert_eq!(function.virtual_functions, None, "{name}");
    }
    let mut small = Profile {
        msix_vectors: 1,
        ..Profile::default()
    };
    small.general.set(|caps| {
        caps.set_log_max_qp(3);
    });
    let function = small.virtual_function(0).expect("virtual functions");
    assert_eq!(
        (function.msix_vectors, function.general.max.log_max_qp()),
        (1, 3)
    );
}

/// A file of a virtual function applies the `vf` statements of its bases.
#[test]
fn a_file_of_a_virtual_function_is_a_virtual_function_of_its_base() {
    let physical = Profile::generation("connectx-7").expect("a generation");
    let made = physical.virtual_function(0).expect("virtual functions");
    let mut file = Profile::generation("connectx-7-vf").expect("a generation");
    assert_eq!(file.virtual_function(0).map(|profile| profile.name), None);
    assert_eq!(file.firmware, (28, 40, 1000));
    file = file.called(&made.name, made.mac);
    (file.firmware, file.psid) = (made.firmware, made.psid.clone());
    file.generation.clone_from(&made.generation);
    assert_eq!(format!("{file:?}"), format!("{made:?}"));
}

/// The default device equals the ConnectX-5 in all values except its name and its number of pages.
#[test]
fn the_default_is_the_connectx_5_with_fewer_pages() {
    let (plain, chosen) = (
        Profile::default(),
        Profile::generation("connectx-5").expect("a generation"),
    );
    assert_eq!((plain.pages.init, chosen.pages.init), (512, 4521));
    let mut chosen = chosen.called("sim0", plain.mac);
    chosen.pages.init = 512;
    assert_eq!(format!("{plain:?}"), format!("{chosen:?}"));
    for caps in [&plain.general.max, &plain.general.current] {
        assert!(caps.pg() && caps.hca_cap_2() && caps.num_vhca_ports() > 0);
    }
}

/// The major number of a firmware version depends on the generation (Linux `fw_rev_maj`, NVIDIA's release notes).
#[test]
fn firmware_of_a_generation_has_its_major_number() {
    for (name, major) in [
        ("connectx-4", 12),
        ("connectx-4-lx-14.12", 14),
        ("connectx-4-lx-14.32", 14),
        ("connectx-5", 16),
        ("connectx-6-ib", 20),
        ("connectx-6-dx", 22),
        ("connectx-7", 28),
        ("connectx-7-vf", 28),
        ("bluefield-3", 32),
    ] {
        let profile = Profile::generation(name).expect("a generation");
        assert_eq!(profile.firmware.0, major, "{name}");
    }
}

#[test]
fn a_name_that_is_no_generation_is_answered_with_those_there_are() {
    for name in ["connectx-99", "common"] {
        let error = Profile::generation(name).expect_err(name).to_string();
        assert!(
            error.contains("connectx-4-lx-14.12, connectx-4-lx-14.32, connectx-5"),
            "{error}"
        );
    }
}

/// The simulator reports on-demand paging and other newer features for a ConnectX-5, but not for a ConnectX-4 Lx of
/// 2016, which lacks them.
#[test]
fn a_connectx_5_is_not_a_connectx_4_lx() {
    let (newer, old) = ["connectx-5", "connectx-4-lx-14.12"]
        .map(|name| Profile::generation(name).expect("a generation"))
        .into();
    assert_eq!(newer.device_id, Profile::default().device_id);
    for (profile, new) in [(&newer, true), (&old, false)] {
        let caps = &profile.general.max;
        assert_eq!(
            (
                caps.pg(),
                caps.hca_cap_2(),
                caps.imaicl(),
                caps.num_vhca_ports() > 0
            ),
            (new, new, new, new)
        );
    }
    assert_eq!(old.pages.init, 12868);
}

/// The simulator does not report a stated feature that it does not implement, but it returns a recorded page unchanged.
#[test]
fn a_feature_without_an_implementation_is_stated_but_not_reported() {
    let document = Profile::document("connectx-6-dx").expect("a generation");
    assert!(document.statement("general", "dct").is_some());
    let dx = Profile::generation("connectx-6-dx").expect("a generation");
    assert!(!dx.general.max.dct() && !dx.general.max.striding_rq());
    let recorded = Profile::generation("connectx-4-lx-14.12").expect("a generation");
    assert!(recorded.general.max.striding_rq() && recorded.general.max.bf());
}

#[test]
fn every_statement_of_a_file_is_known() {
    let with = |line: &str| {
        let text = format!("name = \"x\"\ntitle = \"X\"\nbase = \"connectx-5\"\n{line}");
        Profile::load(&text).expect_err(line).to_string()
    };
    for (line, part) in [
        (
            "[general]\nwings = { is = 1 }",
            "general.wings: CmdHcaCap has no such field",
        ),
        (
            "[general]\nrc = { is = 2 }",
            "general.rc: 0x2 or 0x2 does not fit",
        ),
        (
            "[pci]\nwings = { is = 1 }",
            "pci.wings: is nothing of a profile",
        ),
        (
            "[wings]\nspan = { is = 1 }",
            "wings.span: is nothing of a profile",
        ),
        (
            "[vf]\ngeneral.wings = { is = 1 }",
            "vf.general.wings: is nothing of a profile",
        ),
        (
            "[vf]\ngeneral.rc = { is = 2 }",
            "vf.general.rc: 0x2 or 0x2 does not fit",
        ),
        ("[pci]\nbar_bytes = { is = 12345 }", "not a power of two"),
        ("[pci]\nmsix_vectors = { is = 0 }", "0 is not 1 to 2048"),
        (
            "[segment]\nlog_cmdq_size = { is = 6 }",
            "is 6; the simulator's command queue has 5",
        ),
        ("[firmware]\nversion = { is = \"16\" }", "not a version"),
        (
            "[port]\ntype = { is = \"token ring\" }",
            "neither ethernet nor infiniband",
        ),
        (
            "[general]\nrc = { is = 1 }\n[[page]]\ntype = 0\nmax = \"\"\ncurrent = \"\"",
            "general.rc: is 1 and 1, the page has (Some(0), Some(0))",
        ),
    ] {
        let error = with(line);
        assert!(error.contains(part), "{line}: {error}");
    }
    let error = Profile::load("name = \"x\"\ntitle = \"X\"")
        .expect_err("empty")
        .to_string();
    assert!(error.contains("pci.device_id: is missing"), "{error}");
}

/// `docs/generations.md` states for each generation the same evidence as its file.
#[test]
fn the_page_about_generations_agrees_with_the_files() {
    let mut evidence = String::from(
        "| profile | device | device id | firmware | known | derived | unknown | recorded pages | announced |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut unknown = String::from("| profile | what | chosen |\n|---|---|---|\n");
    // A value that is unknown for several generations is listed once.
    let mut said = std::collections::BTreeSet::new();
    for name in Profile::generations() {
        let document = Profile::document(name).expect("a generation");
        let profile = Profile::generation(name).expect("a generation");
        let (mut known, mut derived, mut chosen, mut stated, mut shown) = (0, 0, 0, 0, 0);
        for ((section, field), statement) in &document.statements {
            match &statement.evidence {
                Evidence::Recorded | Evidence::Known(_) => known += 1,
                Evidence::Derived(_) => derived += 1,
                Evidence::Unknown(why) => {
                    chosen += 1;
                    if said.insert(format!("{section}.{field} {why}")) {
                        unknown += &format!(
                            "| {name} | `{section}.{field}` | {}: {why} |\n",
                            shape(&statement.value)
                        );
                    }
                }
            }
            if let (Stated::Number { max, .. }, true) =
                (&statement.value, super::build::is_page(section))
            {
                stated += usize::from(*max != 0);
                shown += usize::from(Profile::announced(section, field, *max) != 0);
            }
        }
        let (major, minor, sub) = profile.firmware;
        let pages = document.pages.len();
        let announced = if pages == 0 {
            format!("{shown} of {stated}")
        } else {
            "all".to_owned()
        };
        evidence += &format!(
            "| `{name}` | {} | {:04x} | {major}.{minor}.{sub} | {known} | {derived} | {chosen} | {pages} | {announced} |\n",
            document.title, profile.device_id
        );
    }
    keep("evidence", &evidence);
    keep("unknown", &unknown);
}

fn shape(value: &Stated) -> String {
    match value {
        Stated::Word(word) => word.clone(),
        Stated::Number { max, current } if max == current => max.to_string(),
        Stated::Number { max, current } => format!("{max}, in force {current}"),
    }
}
