//! `datctl devices`.

use serde_json::{Value, json};

use crate::tree::{GROUP, PF0, PF1, Tree, VF};

fn device(tree: &Tree, address: &str) -> Value {
    let (code, value) = tree.json(&["devices"]);
    assert_eq!(code, 0);
    let devices = value["devices"].as_array().expect("a list");
    let found = devices.iter().find(|device| device["address"] == address);
    found.expect(address).clone()
}

#[test]
fn every_function_of_a_known_id_is_listed_in_order_of_address_and_no_other() {
    let tree = Tree::good();
    let (code, value) = tree.json(&["devices"]);
    assert_eq!(code, 0);
    let listed: Vec<(&str, &str)> = value["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|device| {
            let text = |field: &str| device[field].as_str().expect("text");
            (text("address"), text("product"))
        })
        .collect();
    assert_eq!(
        listed,
        [
            (PF0, "ConnectX-5"),
            (PF1, "ConnectX-5"),
            (VF, "ConnectX-5 VF")
        ]
    );
}

#[test]
fn a_device_says_who_has_it_where_it_is_and_what_it_could_do() {
    let tree = Tree::good();
    tree.write(&tree.of(PF0, "current_link_width"), "8\n");
    assert_eq!(
        device(&tree, PF0),
        json!({
            "address": PF0,
            "product": "ConnectX-5",
            "vendor_id": "0x15b3",
            "device_id": "0x1017",
            "driver": "mlx5_core",
            "driver_override": null,
            "iommu_group": 69,
            "role": "physical",
            "physical_function": null,
            "virtual_functions": [1, 8],
            "link": {"speed": "8.0 GT/s PCIe", "width": 8, "max_speed": "8.0 GT/s PCIe", "max_width": 16},
            "numa_node": 0,
            "netdevs": ["ens1f0"],
            "disks": [],
            "reset_methods": ["flr", "bus"],
            "usable": false,
            "why_not": format!("{PF0}: bound to mlx5_core, not to vfio-pci: echo vfio-pci > /sys/bus/pci/devices/{PF0}/driver_override, unbind it, and echo {PF0} > /sys/bus/pci/drivers_probe"),
        })
    );
    let virtual_function = device(&tree, VF);
    assert_eq!(virtual_function["role"], "virtual");
    assert_eq!(virtual_function["physical_function"], PF0);
    assert_eq!(virtual_function["link"], Value::Null);
    assert_eq!(virtual_function["usable"], true);
}

#[test]
fn a_function_that_cannot_be_had_says_why() {
    let reason = |tree: &Tree| {
        let device = device(tree, VF);
        assert_eq!(device["usable"], false);
        device["why_not"].as_str().expect("a reason").to_owned()
    };
    let tree = Tree::good();
    tree.process(4711, "storaged", GROUP);
    assert_eq!(
        reason(&tree),
        format!("{VF}: process 4711 (storaged) has its IOMMU group {GROUP} open")
    );

    let tree = Tree::good();
    tree.member(GROUP, PF1);
    let why = reason(&tree);
    assert!(
        why.contains(&format!(
            "group {GROUP} is not viable, because {PF1} is bound to mlx5_core"
        )),
        "{why}"
    );

    let tree = Tree::good();
    tree.remove(&tree.of(VF, "iommu_group"));
    assert!(reason(&tree).contains("in no IOMMU group"));

    let tree = Tree::good();
    tree.driver(VF, None);
    assert!(reason(&tree).contains("bound to no driver"));
}

#[test]
fn a_person_gets_a_table_with_a_line_for_each_function_and_the_reasons_below() {
    let tree = Tree::good();
    tree.write(&tree.of(PF1, "current_link_speed"), "2.5 GT/s PCIe\n");
    let (code, out, err) = tree.human(&["devices"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let line = |start: &str| {
        let found = out.lines().find(|line| line.trim().starts_with(start));
        let line = found.unwrap_or_else(|| panic!("{start} in {out}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        line("address"),
        "address product role driver group link node name usable"
    );
    assert_eq!(
        line(PF0),
        format!("{PF0} ConnectX-5 PF, 1 of 8 VFs mlx5_core 69 8.0 GT/s x16 0 ens1f0 no")
    );
    assert_eq!(
        line(PF1),
        format!(
            "{PF1} ConnectX-5 PF, 0 of 8 VFs mlx5_core 70 2.5 GT/s x16 of 8.0 GT/s x16 0 ens1f1 no"
        )
    );
    assert_eq!(
        line(VF),
        format!("{VF} ConnectX-5 VF VF of {PF0} vfio-pci 71 - 0 - yes")
    );
    assert!(
        out.contains(&format!("{PF1}: bound to mlx5_core, not to vfio-pci")),
        "{out}"
    );
}

#[test]
fn a_machine_without_such_a_card_is_no_error() {
    let tree = Tree::empty();
    let (code, out, _) = tree.human(&["devices"]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with("no ConnectX function and no NVMe SSD on this machine"),
        "{out}"
    );
    assert_eq!(tree.json(&["devices"]), (0, json!({"devices": []})));
}
