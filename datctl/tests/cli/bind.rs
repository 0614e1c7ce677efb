//! `datctl bind` and `datctl unbind`. Refusals are tested through the program. Writes are tested through the same
//! code with a simulated kernel that acts as sysfs is documented.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use driver::PciAddress;
use driver::pci::{BindError, Kernel, Machine, Writer};

use crate::tree::{GROUP, OTHER, PF0, PF1, Tree, VF};

/// Returns everything below a directory: files with their contents, and symbolic links with their targets.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let entry = entry.expect("an entry");
        let (path, kind) = (entry.path(), entry.file_type().expect("its type"));
        if kind.is_dir() {
            all.extend(contents(&path));
            all.insert(path, Vec::new());
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).expect("its target");
            all.insert(path, target.into_os_string().into_vec());
        } else {
            let bytes = fs::read(&path).expect("readable");
            all.insert(path, bytes);
        }
    }
    all
}

/// Checks that datctl refuses the command: the exit status is 1, there is no output, and the tree is unchanged. Returns
/// the reason.
fn refused(tree: &Tree, arguments: &[&str]) -> String {
    let before = contents(tree.root());
    let (code, out, err) = tree.human(arguments);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(contents(tree.root()) == before, "the tree changed: {err}");
    err.strip_prefix("datctl: ")
        .expect("its name")
        .trim_end()
        .to_owned()
}

#[test]
fn a_function_with_the_default_route_is_not_taken() {
    let tree = Tree::good();
    tree.write("/proc/net/tcp", "");
    let error = refused(&tree, &["bind", OTHER]);
    assert_eq!(
        error,
        format!(
            "{OTHER}: not taken from igb, because the default route goes over eno1: take the interface down first (ip link set dev eno1 down), on another way in"
        )
    );
}

#[test]
fn a_default_route_of_ipv6_counts_too() {
    let tree = Tree::good();
    tree.write(
        "/proc/net/ipv6_route",
        "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003   ens1f1\n",
    );
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.contains("the default route goes over ens1f1"),
        "{error}"
    );
}

#[test]
fn a_bond_vlan_or_bridge_on_the_function_counts_as_the_function() {
    let tree = Tree::good();
    for (lower, upper) in [("ens1f1", "bond0"), ("bond0", "bond0.7")] {
        tree.write(&format!("/sys/class/net/{lower}/upper_{upper}"), "");
    }
    tree.write(
        "/proc/net/route",
        "bond0.7\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
    );
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.contains("the default route goes over bond0.7"),
        "{error}"
    );
}

#[test]
fn a_function_with_a_login_is_not_taken() {
    let tree = Tree::good();
    // The TCP connection 10.0.2.1:22 with 10.0.2.9:50000, over the network of ens1f1.
    tree.connections("0102000A:0016 0902000A:C350");
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.contains("because the ssh session 10.0.2.1:22 with 10.0.2.9:50000 goes over ens1f1"),
        "{error}"
    );
    // Any connection from this function's address counts, even if its route uses another function.
    tree.connections("0102000A:0CEA 6300A8C0:C350");
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.contains("the TCP connection 10.0.2.1:3306 with 192.168.0.99:50000"),
        "{error}"
    );
}

#[test]
fn a_login_over_ipv6_counts_by_route_and_by_address() {
    let tree = Tree::good();
    // The TCP connection [fd00::1]:22 with [fd00::9]:50000. The words are in the order of a little-endian processor.
    tree.write(
        "/proc/net/tcp6",
        "header\n   0: 000000FD000000000000000001000000:0016 000000FD000000000000000009000000:C350 01 0:0\n",
    );
    tree.write(
        "/proc/net/ipv6_route",
        "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001   ens1f1\n",
    );
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.contains("the ssh session [fd00::1]:22 with [fd00::9]:50000"),
        "{error}"
    );
    tree.write("/proc/net/ipv6_route", "");
    tree.write(
        "/proc/net/if_inet6",
        "fd000000000000000000000000000001 03 40 00 80   ens1f1\n",
    );
    let error = refused(&tree, &["bind", PF1]);
    assert!(error.contains("goes over ens1f1"), "{error}");
}

#[test]
fn a_physical_function_with_virtual_ones_is_not_taken() {
    let tree = Tree::good();
    let error = refused(&tree, &["bind", PF0]);
    assert!(
        error.starts_with(&format!(
            "{PF0}: not taken from mlx5_core, because its 1 virtual functions would vanish ({VF})"
        )),
        "{error}"
    );
}

#[test]
fn without_the_module_or_an_iommu_nothing_is_taken_from_its_driver() {
    let tree = Tree::good();
    tree.remove("/sys/bus/pci/drivers/vfio-pci");
    let error = refused(&tree, &["bind", PF1]);
    assert_eq!(
        error,
        format!("{PF1}: there is no driver vfio-pci: modprobe vfio-pci")
    );
    let tree = Tree::good();
    tree.remove(&tree.of(PF1, "iommu_group"));
    let error = refused(&tree, &["bind", PF1]);
    assert!(
        error.starts_with(&format!("{PF1}: in no IOMMU group")),
        "{error}"
    );
}

#[test]
fn a_function_without_a_driver_here_is_not_taken() {
    let tree = Tree::good();
    tree.write(&tree.of(OTHER, "class"), "0x030000\n");
    let error = refused(&tree, &["bind", OTHER]);
    assert!(
        error.contains("class 0x030000 is neither a network controller nor an NVMe controller"),
        "{error}"
    );
}

#[test]
fn a_function_that_is_not_there_is_an_error_with_its_path() {
    let tree = Tree::good();
    for command in ["bind", "unbind"] {
        let (code, _, err) = tree.human(&[command, "0000:ff:1f.7"]);
        assert_eq!(code, 1);
        assert!(err.contains("0000:ff:1f.7: no such PCI function"), "{err}");
        assert_eq!(tree.human(&[command]).0, 2, "no address is usage");
        assert_eq!(tree.human(&[command, "eth0"]).0, 2, "a name is usage");
    }
}

#[test]
fn a_function_that_is_bound_already_is_left_alone() {
    let tree = Tree::good();
    let (code, out, _) = tree.human(&["bind", VF]);
    assert_eq!(
        (code, out.trim_end()),
        (0, format!("{VF}: bound to vfio-pci already").as_str())
    );
}

#[test]
fn only_what_vfio_has_and_nobody_uses_is_given_back() {
    let tree = Tree::good();
    let error = refused(&tree, &["unbind", PF1]);
    assert_eq!(
        error,
        format!("{PF1}: bound to mlx5_core, not to vfio-pci: there is nothing to give back")
    );
    tree.process(4711, "storaged", GROUP);
    let error = refused(&tree, &["unbind", VF]);
    assert_eq!(
        error,
        format!("{VF}: process 4711 (storaged) has its IOMMU group {GROUP} open: end it first")
    );
}

/// With iommufd, a process opens the function's own file in place of the group's. All functions of the group count. The
/// file of a group without an IOMMU has another name.
#[test]
fn a_process_that_has_a_function_of_the_group_open_holds_it_too() {
    for (function, file) in [
        (VF, "/dev/vfio/devices/vfio3"),
        (PF1, "/dev/vfio/devices/vfio3"),
        (VF, "/dev/vfio/noiommu-71"),
    ] {
        let tree = Tree::good();
        tree.member(GROUP, PF1);
        tree.write(&tree.of(function, "vfio-dev/vfio3/dev"), "511:3\n");
        tree.write("/proc/4711/comm", "storaged\n");
        let open = tree.path(file).display().to_string();
        tree.link("/proc/4711/fd/7", &open);
        let error = refused(&tree, &["unbind", VF]);
        assert!(error.contains("process 4711 (storaged)"), "{error}");
    }
    let tree = Tree::good();
    tree.write(&tree.of(VF, "vfio-dev/vfio3/dev"), "511:3\n");
    let other = tree.path("/dev/vfio/devices/vfio4").display().to_string();
    tree.link("/proc/4711/fd/7", &other);
    let machine = Machine::at(tree.root());
    assert_eq!(machine.holders(GROUP), []);
}

#[test]
fn an_error_is_an_object_for_a_program() {
    let tree = Tree::good();
    let (code, value) = tree.json(&["unbind", PF1]);
    assert_eq!(code, 1);
    assert!(
        value["error"]
            .as_str()
            .expect("text")
            .contains("nothing to give back")
    );
}

/// A simulated kernel that acts on writes to sysfs, and keeps a list of them.
struct Bus<'a> {
    tree: &'a Tree,
    writes: RefCell<Vec<(String, String)>>,
    /// The driver that binds the function unless another driver is set.
    native: &'static str,
    /// True if vfio-pci does not bind the function.
    unwilling: bool,
    /// Name of a file that cannot be written.
    forbidden: Option<&'static str>,
}

impl<'a> Bus<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            writes: RefCell::default(),
            native: "mlx5_core",
            unwilling: false,
            forbidden: None,
        }
    }

    fn writes(&self) -> Vec<(String, String)> {
        self.writes.take()
    }
}

impl Writer for Bus<'_> {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let file = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a file");
        if self.forbidden == Some(file) {
            return Err(io::Error::from_raw_os_error(13));
        }
        assert!(path.exists(), "{}", path.display());
        let shown = if text == "\n" { "(null)\n" } else { text };
        fs::write(path, shown)?;
        self.writes
            .borrow_mut()
            .push((file.to_owned(), text.to_owned()));
        match file {
            "unbind" => self.tree.driver(text, None),
            "bind" => self.tree.driver(text, Some(self.native)),
            "drivers_probe" => {
                let wanted = self.tree.read(&self.tree.of(text, "driver_override"));
                match wanted.trim() {
                    "vfio-pci" if self.unwilling => {}
                    "(null)" => self.tree.driver(text, Some(self.native)),
                    driver => self.tree.driver(text, Some(driver)),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn address(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

fn pairs(writes: &[(&str, &str)]) -> Vec<(String, String)> {
    writes
        .iter()
        .map(|&(file, text)| (file.to_owned(), text.to_owned()))
        .collect()
}

#[test]
fn binding_names_the_driver_lets_go_and_probes_and_tells_what_undoes_it() {
    let tree = Tree::good();
    let (machine, bus) = (Machine::at(tree.root()), Bus::new(&tree));
    let bound = machine.bind(address(PF1), &bus).expect("it is bound");
    assert_eq!(
        bus.writes(),
        pairs(&[
            ("driver_override", "vfio-pci"),
            ("unbind", PF1),
            ("drivers_probe", PF1)
        ])
    );
    assert_eq!(
        (bound.before.as_deref(), bound.now.as_deref()),
        (Some("mlx5_core"), Some("vfio-pci"))
    );
    let root = tree.root().display();
    assert_eq!(
        bound.undo,
        [
            format!("echo '' > {root}/sys/bus/pci/devices/{PF1}/driver_override"),
            format!("echo {PF1} > {root}/sys/bus/pci/drivers/vfio-pci/unbind"),
            format!("echo {PF1} > {root}/sys/bus/pci/drivers/mlx5_core/bind"),
        ]
    );
    assert_eq!(machine.usable(address(PF1)).expect("usable"), 70);
}

#[test]
fn a_function_without_a_driver_is_bound_and_its_undo_gives_it_to_nobody() {
    let tree = Tree::good();
    tree.driver(PF1, None);
    let (machine, bus) = (Machine::at(tree.root()), Bus::new(&tree));
    let bound = machine.bind(address(PF1), &bus).expect("it is bound");
    assert_eq!(
        bus.writes(),
        pairs(&[("driver_override", "vfio-pci"), ("drivers_probe", PF1)])
    );
    assert_eq!((bound.before, bound.undo.len()), (None, 2));
}

#[test]
fn unbinding_clears_the_name_lets_go_and_probes() {
    let tree = Tree::good();
    let (machine, bus) = (Machine::at(tree.root()), Bus::new(&tree));
    let bound = machine.unbind(address(VF), &bus).expect("it is given back");
    assert_eq!(
        bus.writes(),
        pairs(&[
            ("driver_override", "\n"),
            ("unbind", VF),
            ("drivers_probe", VF)
        ])
    );
    assert_eq!(bound.now.as_deref(), Some("mlx5_core"));
    assert_eq!(bound.undo, [format!("datctl bind {VF}")]);
}

#[test]
fn a_function_that_vfio_does_not_take_goes_back_to_whom_it_was_taken_from() {
    let tree = Tree::good();
    let machine = Machine::at(tree.root());
    let bus = Bus {
        unwilling: true,
        ..Bus::new(&tree)
    };
    let error = machine
        .bind(address(PF1), &bus)
        .expect_err("nobody took it");
    assert_eq!(
        error.to_string(),
        format!(
            "{PF1}: bound to no driver, not to vfio-pci, after all was written (see dmesg); it was given back"
        )
    );
    let function = machine.function(address(PF1)).expect("the function");
    assert_eq!(function.driver.as_deref(), Some("mlx5_core"));
    assert_eq!(function.driver_override, None);
}

#[test]
fn a_write_that_is_refused_names_the_file_and_the_function_goes_back() {
    for forbidden in ["driver_override", "unbind", "drivers_probe"] {
        let tree = Tree::good();
        let machine = Machine::at(tree.root());
        let bus = Bus {
            forbidden: Some(forbidden),
            ..Bus::new(&tree)
        };
        let before = machine.function(address(PF1));
        let error = machine.bind(address(PF1), &bus).expect_err("refused");
        assert!(matches!(error, BindError::Write { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(forbidden) && text.contains("only root may"),
            "{text}"
        );
        assert_eq!(machine.function(address(PF1)), before, "{forbidden}");
    }
}

#[test]
fn a_function_that_cannot_be_given_back_is_an_error_with_both_reasons() {
    let tree = Tree::good();
    let machine = Machine::at(tree.root());
    let bus = Bus {
        unwilling: true,
        forbidden: Some("bind"),
        ..Bus::new(&tree)
    };
    let error = machine.bind(address(PF1), &bus).expect_err("stranded");
    let text = error.to_string();
    assert!(matches!(error, BindError::Stranded { .. }), "{text}");
    assert!(
        text.contains("bound to no driver") && text.contains("mlx5_core/bind"),
        "{text}"
    );
}

#[test]
fn the_machines_own_kernel_makes_no_file_that_is_not_there() {
    let tree = Tree::good();
    let path = tree.path("/sys/bus/pci/no_such_file");
    assert!(Kernel.write(&path, "x").is_err());
    assert!(!path.exists());
}
