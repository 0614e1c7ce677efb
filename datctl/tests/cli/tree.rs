//! A machine in a directory: the files of sysfs, procfs and dev that `datctl` reads.
//!
//! [`Tree::good`] is a machine without a fault: a card with two ports, one of them with a virtual function that is
//! bound to vfio-pci, and another card that carries the login. Each test breaks one thing.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Addresses of the two physical functions and the virtual function.
pub const PF0: &str = "0000:3b:00.0";
pub const PF1: &str = "0000:3b:00.1";
pub const VF: &str = "0000:3b:00.2";
/// Address of another vendor's card, whose network interface carries the login.
pub const OTHER: &str = "0000:01:00.0";
/// Address of the root port above the card.
pub const PORT: &str = "0000:3a:00.0";
/// Output of `ip -json link show` for the virtual function (iproute2 `ipaddress.c`, `print_vfinfo`) without a fault.
pub const VF_SETTINGS: &str = r#""link_type":"ether","address":"02:00:00:00:00:01","broadcast":"ff:ff:ff:ff:ff:ff","vlan_list":[{}],"rate":{"max_tx":0,"min_tx":0},"spoofchk":false,"link_state":"auto","trust":false,"query_rss_en":false"#;
/// IOMMU group of the virtual function.
pub const GROUP: u32 = 71;

pub struct Tree {
    directory: TempDir,
}

impl Tree {
    pub fn empty() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for folder in ["sys", "proc", "dev"] {
            fs::create_dir(directory.path().join(folder)).expect("a folder");
        }
        Self { directory }
    }

    pub fn good() -> Self {
        let tree = Self::empty();
        tree.port(PORT, 0x1d);
        tree.device(PF0, "0x1017", "mlx5_core", 69);
        tree.device(PF1, "0x1017", "mlx5_core", 70);
        tree.device(VF, "0x1018", "vfio-pci", GROUP);
        tree.device(OTHER, "0x1533", "igb", 20);
        tree.write(&tree.of(OTHER, "vendor"), "0x8086\n");
        for port in [PF0, PF1] {
            tree.write(&tree.of(port, "sriov_totalvfs"), "8\n");
            tree.write(&tree.of(port, "sriov_numvfs"), "0\n");
        }
        tree.write(&tree.of(PF0, "sriov_numvfs"), "1\n");
        tree.link(&tree.of(PF0, "virtfn0"), &format!("../{VF}"));
        tree.link(&tree.of(VF, "physfn"), &format!("../{PF0}"));
        tree.write(&tree.of(VF, "current_link_width"), "0\n");
        tree.netdev(PF0, "ens1f0");
        tree.netdev(PF1, "ens1f1");
        tree.netdev(OTHER, "eno1");
        // Programs that print the settings of the first port and its virtual function.
        for program in [
            "ip",
            "devlink",
            "dcb",
            "mlxconfig",
            "dmesg",
            "lspci",
            "ethtool",
        ] {
            let answer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/machine/answer");
            tree.link(&format!("/usr/sbin/{program}"), answer);
        }
        tree.settings(VF_SETTINGS);
        tree.eswitch("legacy");
        tree.pfc("false,false,false,true,false,false,false,false");
        tree.priorities("\"dscp_prio\":[[26,3]]");
        tree.write(&tree.congestion(), "1");
        tree.setup(&[("ROCE_CONTROL", "DEVICE_DEFAULT(0)")]);
        tree.write(&tree.of(PF0, "sriov_drivers_autoprobe"), "1\n");
        tree.write("/sys/devices/system/node/node0/cpulist", "0-63\n");
        // Files of the machine as a whole.
        fs::create_dir_all(tree.path("/sys/class/iommu/dmar0")).expect("a folder");
        tree.write("/proc/cmdline", "root=/dev/sda1 intel_iommu=on quiet\n");
        tree.write("/proc/cpuinfo", "vendor_id : GenuineIntel\n");
        tree.write(
            "/proc/interrupts",
            "  0: 9 IR-IO-APIC 2-edge timer\n 24: 1 IR-PCI-MSI 0-edge eth0\n",
        );
        fs::create_dir_all(tree.path("/sys/module/vfio_iommu_type1/parameters")).expect("a folder");
        tree.write(
            "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
            "N\n",
        );
        tree.write(
            "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit",
            "65535\n",
        );
        tree.write("/dev/vfio/vfio", "");
        tree.write(&format!("/dev/vfio/{GROUP}"), "");
        tree.write(
            "/proc/self/status",
            "Name:\tdatctl\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-63\n",
        );
        tree.memlock("unlimited");
        tree.huge_pages(512, 512);
        tree.network();
        tree
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root().join(absolute.trim_start_matches('/'))
    }

    /// Returns the path of a file of a PCI device in sysfs.
    pub fn of(&self, address: &str, file: &str) -> String {
        format!("/sys/bus/pci/devices/{address}/{file}")
    }

    pub fn write(&self, absolute: &str, text: impl AsRef<[u8]>) {
        let path = self.path(absolute);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    pub fn read(&self, absolute: &str) -> String {
        fs::read_to_string(self.path(absolute)).expect(absolute)
    }

    pub fn link(&self, absolute: &str, target: &str) {
        let path = self.path(absolute);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let _ = fs::remove_file(&path);
        symlink(target, &path).expect("a link");
    }

    pub fn remove(&self, absolute: &str) {
        let path = self.path(absolute);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        }
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Adds a network function below the root port, in the IOMMU group `group`.
    pub fn device(&self, address: &str, device_id: &str, driver: &str, group: u32) {
        let real = format!("/sys/devices/pci0000:3a/{PORT}/{address}");
        fs::create_dir_all(self.path(&real)).expect("a folder");
        self.link(
            &format!("/sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:3a/{PORT}/{address}"),
        );
        for (file, text) in [
            ("vendor", "0x15b3\n"),
            ("device", device_id),
            ("class", "0x020000\n"),
            ("driver_override", "(null)\n"),
            ("numa_node", "0\n"),
            ("reset_method", "flr bus\n"),
            ("current_link_speed", "8.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "8.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            self.write(&self.of(address, file), text);
        }
        self.driver(address, Some(driver));
        self.link(
            &self.of(address, "iommu_group"),
            &format!("../../../../kernel/iommu_groups/{group}"),
        );
        self.member(group, address);
    }

    pub fn member(&self, group: u32, address: &str) {
        self.link(
            &format!("/sys/kernel/iommu_groups/{group}/devices/{address}"),
            &format!("../../../../bus/pci/devices/{address}"),
        );
    }

    /// Sets the links of sysfs as after a bind of the function to a driver, or after an unbind.
    pub fn driver(&self, address: &str, driver: Option<&str>) {
        let link = self.of(address, "driver");
        if self.path(&link).is_symlink() {
            self.remove(&link);
        }
        if let Some(driver) = driver {
            for file in ["bind", "unbind"] {
                self.write(&format!("/sys/bus/pci/drivers/{driver}/{file}"), "");
            }
            self.link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
        }
        self.write("/sys/bus/pci/drivers_probe", "");
    }

    /// Adds a root port with an ACS capability whose control register has this value.
    pub fn port(&self, address: &str, acs_control: u8) {
        let mut config = vec![0; 4096];
        config[0x06] = 0x10; // There are capabilities.
        config[0x34] = 0x40;
        config[0x40] = 0x10; // PCI Express,
        config[0x42] = 0x42; // a root port.
        config[0x100] = 0x01; // Advanced Error Reporting,
        config[0x102..0x104].copy_from_slice(&[0x01, 0x14]); // then, at 0x140,
        config[0x140] = 0x0d; // Access Control Services.
        config[0x144] = 0x5f;
        config[0x146] = acs_control;
        let real = format!("/sys/devices/pci0000:3a/{address}");
        self.write(&format!("{real}/config"), config);
        self.write(&format!("{real}/class"), "0x060400\n");
        self.write(&format!("{real}/vendor"), "0x8086\n");
        self.write(&format!("{real}/device"), "0x2030\n");
        self.link(
            &format!("/sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:3a/{address}"),
        );
    }

    /// Adds a network interface that is up.
    pub fn netdev(&self, address: &str, name: &str) {
        for (file, text) in [
            ("flags", "0x1003\n"),
            ("operstate", "up\n"),
            ("mtu", "9000\n"),
        ] {
            self.write(&self.of(address, &format!("net/{name}/{file}")), text);
        }
        fs::create_dir_all(self.path(&format!("/sys/class/net/{name}"))).expect("a folder");
    }

    /// Sets the settings that `ip` prints for the first port's virtual function.
    pub fn settings(&self, settings: &str) {
        self.write(
            "/answers/ip -json link show dev ens1f0",
            format!(r#"[{{"ifname":"ens1f0","vfinfo_list":[{{"vf":0,{settings}}}]}}]"#),
        );
    }

    /// Sets the output of `dcb` for the port's priorities (iproute2 `dcb_pfc.c`): `true` for each paused priority.
    pub fn pfc(&self, paused: &str) {
        self.write(
            "/answers/dcb -j pfc show dev ens1f0",
            format!(r#"{{"pfc_cap":8,"macsec_bypass":false,"delay":0,"prio_pfc":[{paused}]}}"#),
        );
    }

    /// Sets the rules that `dcb` prints for priorities (iproute2 `dcb_app.c`).
    pub fn priorities(&self, rules: &str) {
        self.write(
            "/answers/dcb -j app show dev ens1f0",
            format!("{{{rules}}}"),
        );
    }

    /// Returns the path of a congestion control parameter of the port in debugfs (Linux
    /// `drivers/infiniband/hw/mlx5/cong.c`).
    pub fn congestion(&self) -> String {
        format!("/sys/kernel/debug/mlx5/{PF0}/cc_params/np_cnp_dscp")
    }

    /// Sets the output of `mlxconfig -e query` for the card: the same value as default, current and next boot.
    pub fn setup(&self, settings: &[(&str, &str)]) {
        let mut text = format!(
            "\nDevice #1:\n----------\n\nDevice type:    ConnectX5\nDevice:         {PF0}\n\n{:<53}{:<16}{:<16}Next Boot\n",
            "Configurations:", "Default", "Current"
        );
        for (name, value) in settings {
            text += &format!("         {name:<44}{value:<16}{value:<16}{value:<16}\n");
        }
        self.write(&format!("/answers/mlxconfig -d {PF0} -e query"), text);
    }

    /// Sets the output of `devlink` for the first port's switch.
    pub fn eswitch(&self, mode: &str) {
        self.write(
            &format!("/answers/devlink -j dev eswitch show pci_{PF0}"),
            format!(r#"{{"dev":{{"pci/{PF0}":{{"mode":"{mode}","inline-mode":"none"}}}}}}"#),
        );
    }

    pub fn memlock(&self, soft: &str) {
        self.limits(soft, "1024");
    }

    pub fn limits(&self, memlock: &str, files: &str) {
        self.write(
            "/proc/self/limits",
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            {files}           1048576           files\n\
                 Max locked memory         {memlock}           {memlock}           bytes\n"
            ),
        );
    }

    pub fn huge_pages(&self, free: u64, total: u64) {
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        self.write(&format!("{pool}/free_hugepages"), format!("{free}\n"));
        self.write(&format!("{pool}/nr_hugepages"), format!("{total}\n"));
    }

    /// Sets the default route and the login over `eno1`. `ens1f0` and `ens1f1` each have a network of their own.
    fn network(&self) {
        self.write(
            "/proc/net/route",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eno1\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
             eno1\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
             ens1f0\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             ens1f1\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        );
        self.write(
            "/proc/net/ipv6_route",
            "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n",
        );
        self.write("/proc/net/if_inet6", "");
        self.write("/proc/net/tcp6", "header\n");
        // The login: 192.168.0.10:22 with 192.168.0.99:50000.
        self.connections("0A00A8C0:0016 6300A8C0:C350");
    }

    /// Writes one established IPv4 connection, and a listening socket on every address.
    pub fn connections(&self, ends: &str) {
        self.write(
            "/proc/net/tcp",
            format!(
                "  sl  local_address rem_address   st tx_queue\n   \
                 0: 00000000:0016 00000000:0000 0A 00000000:00000000\n   \
                 1: {ends} 01 00000000:00000000\n"
            ),
        );
    }

    /// Adds a process that has an IOMMU group open.
    pub fn process(&self, pid: u32, name: &str, group: u32) {
        self.write(&format!("/proc/{pid}/comm"), format!("{name}\n"));
        let file = self.path(&format!("/dev/vfio/{group}"));
        self.link(&format!("/proc/{pid}/fd/7"), &file.display().to_string());
    }

    /// Runs datctl on this machine (`--machine-root`).
    pub fn datctl(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_datctl"))
            .arg("--machine-root")
            .arg(self.root())
            .args(arguments)
            .output()
            .expect("datctl runs")
    }

    /// Runs datctl with `--json`. Returns its exit status and the object it prints.
    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.datctl(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (output.status.code().expect("an exit status"), value)
    }

    /// Runs datctl with `--json` as the user `nobody`, and returns the object it prints. Without root it runs as the
    /// user of the test.
    pub fn json_as_nobody(&self, arguments: &[&str]) -> Value {
        /// User ID and group ID of `nobody`.
        const NOBODY: u32 = 65_534;
        // The program is copied to a place from which that user may run it.
        let program = self.path("/datctl");
        fs::copy(env!("CARGO_BIN_EXE_datctl"), &program).expect("a copy");
        let mut command = Command::new(program);
        command.arg("--machine-root").arg(self.root());
        command.arg("--json").args(arguments);
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().expect("datctl runs");
        serde_json::from_slice(&output.stdout).expect("an object")
    }

    /// Runs datctl without `--json`. Returns its exit status, its output and its error stream.
    pub fn human(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.datctl(arguments);
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
        (output.status.code().expect("an exit status"), out, err)
    }
}

/// Returns the names of the files in a directory.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("readable");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("text"))
        .collect();
    names.sort();
    names
}
