//! The lines about the state that a virtual function gets from its physical one.
//!
//! A virtual function reaches no peer unless its physical function permits it. The physical function's driver gives it
//! its memory; the physical function's interface, when up, gives it its link; the card's switch decides which frames
//! it may send and receive. All of this is set on the physical function's side, usually by other people than the
//! users of the virtual function, so each line names the command. sysfs shows the interface; `ip`, `devlink` and `dcb`
//! of iproute2 show the rest. If one of these is missing, or reports nothing about this function, the line is unknown.

use driver::PciAddress;
use driver::pci::{Machine, Netdev, PciFunction, Role};
use hw_mlx::{ids, vport};
use serde::Deserialize;
use serde_json::Value;

use super::{Line, lossless};

/// Driver of a physical function that has virtual functions.
const DRIVER: &str = "mlx5_core";
/// MAC that `ip` prints for a virtual function without a MAC of its own.
const NO_MAC: &str = "00:00:00:00:00:00";
/// Smallest MTU at which a packet with all its headers carries 4096 bytes of payload (Linux `iboe_get_mtu`).
const LARGEST_PATH_MTU_TAKES: u32 = 4192;

/// Returns the lines of a virtual function; no lines for a physical function.
pub(super) fn lines(machine: &Machine, function: &PciFunction) -> Vec<Line> {
    let of = match function.role {
        Role::Virtual { of } => of.and_then(|of| machine.function(of)),
        // In a guest, a virtual function has no physical function beside it.
        Role::Physical { .. } if ids::is_virtual(function.device_id) => None,
        Role::Physical { .. } => return Vec::new(),
    };
    let Some(physical) = of else {
        return vec![Line::unknown(
            "pf driver",
            "the physical function is not on this machine: whether it gives link, MAC and memory cannot be seen from here",
            "where it is: datctl doctor, or ip link show dev PF",
        )];
    };
    let side = Side::of(machine, function, physical);
    vec![
        side.driver(),
        side.interface(),
        side.mtu(),
        side.eswitch_mode(),
        side.link_state(),
        side.mac(),
        side.spoof_check(),
        side.trust(),
        side.vlan(),
        lossless::priorities(machine, side.name()),
        lossless::trust(machine, side.name()),
        lossless::congestion(machine, side.physical.address),
    ]
}

/// State of the physical function's side, as far as it is known.
struct Side {
    physical: PciFunction,
    /// Number of the virtual function among those of the physical function.
    number: Option<u32>,
    /// The physical function's own interface.
    interface: Option<Netdev>,
    /// Interface of the virtual function's port of the switch (its representor), in switchdev mode.
    representor: Option<Netdev>,
    mode: Option<Mode>,
    /// The settings that `ip` prints for the virtual function.
    settings: Option<Settings>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Legacy,
    Switchdev,
}

/// One entry of `vfinfo_list` in `ip -json link show`. A field is `None` if this version of `ip`, or the driver,
/// lacks it.
#[derive(Clone, Debug, Deserialize)]
struct Settings {
    vf: u32,
    #[serde(alias = "mac")]
    address: Option<String>,
    spoofchk: Option<bool>,
    link_state: Option<String>,
    trust: Option<bool>,
    #[serde(default)]
    vlan_list: Vec<Vlan>,
}

/// A VLAN of a virtual function. For a function without a VLAN, `ip` prints an entry without values.
#[derive(Clone, Debug, Deserialize)]
struct Vlan {
    #[serde(default)]
    vlan: u16,
}

#[derive(Deserialize)]
struct IpLink {
    #[serde(default)]
    vfinfo_list: Vec<Settings>,
}

impl Side {
    fn of(machine: &Machine, function: &PciFunction, physical: PciFunction) -> Self {
        let number = machine.virtual_function_number(physical.address, function.address);
        let (representors, interfaces): (Vec<Netdev>, Vec<Netdev>) = machine
            .netdevs(&physical)
            .into_iter()
            .partition(|netdev| netdev.represents().is_some());
        let interface = interfaces.into_iter().next();
        let settings = interface
            .as_ref()
            .zip(number)
            .and_then(|(interface, number)| settings(machine, &interface.name, number));
        Self {
            mode: mode(machine, physical.address, interface.as_ref())
                .or((!representors.is_empty()).then_some(Mode::Switchdev)),
            representor: representors
                .into_iter()
                .find(|netdev| netdev.represents() == number),
            number,
            interface,
            settings,
            physical,
        }
    }

    fn driver(&self) -> Line {
        const CHECK: &str = "pf driver";
        let address = self.physical.address;
        match self.physical.driver.as_deref() {
            Some(DRIVER) => Line::ok(CHECK, format!("{DRIVER} has {address}")),
            Some(other) => Line::not_ok(
                CHECK,
                format!(
                    "{other} has {address}: nobody gives the virtual function the memory its firmware asks for{}",
                    if self.physical.is_bound_to_vfio() {
                        ", and VFIO then opens the virtual function only with the physical function's VF token (vf_token), which this library does not pass"
                    } else {
                        ""
                    }
                ),
                format!("datctl unbind {address}"),
            ),
            None => Line::not_ok(
                CHECK,
                format!(
                    "nobody drives {address}: nobody gives the virtual function the memory its firmware asks for"
                ),
                format!("echo {address} > /sys/bus/pci/drivers/{DRIVER}/bind"),
            ),
        }
    }

    fn interface(&self) -> Line {
        const CHECK: &str = "pf interface";
        let Some(interface) = &self.interface else {
            return Line::unknown(
                CHECK,
                format!(
                    "no interface of {} is in this network namespace",
                    self.physical.address
                ),
                "ip netns; in each: ip link show",
            );
        };
        let name = &interface.name;
        let forced_up = self.state() == Some("enable");
        match (interface.is_up, interface.operstate.as_deref()) {
            (Some(false), _) => Line::not_ok(
                CHECK,
                format!("{name} is down, and its virtual functions with it"),
                format!("ip link set dev {name} up"),
            ),
            (Some(true), Some("up")) => Line::ok(CHECK, format!("{name} is up")),
            (Some(true), Some(state @ ("down" | "lowerlayerdown" | "dormant"))) => {
                let line = Line::not_ok(
                    CHECK,
                    format!("{name} is set up but has no link ({state})"),
                    format!(
                        "the cable, the port of the switch: ethtool {name}; between functions of this card alone: {} state enable",
                        self.set("vf")
                    ),
                );
                if forced_up { line.optional() } else { line }
            }
            (is_up, state) => Line::unknown(
                CHECK,
                format!(
                    "{name}: flags {}, operstate {}",
                    if is_up.is_some() {
                        "with IFF_UP"
                    } else {
                        "unknown"
                    },
                    state.unwrap_or("unknown")
                ),
                format!("ip link show dev {name}"),
            ),
        }
    }

    fn mtu(&self) -> Line {
        const CHECK: &str = "pf mtu";
        let known = self
            .interface
            .as_ref()
            .and_then(|interface| Some((&interface.name, interface.mtu?)));
        let Some((name, mtu)) = known else {
            return Line::unknown(CHECK, "the MTU of the port is unknown", self.show());
        };
        // The code is 1..=5 for a payload of 256..=4096 bytes.
        let payload = 128 << vport::path_mtu_code(mtu + vport::FRAME_BYTES);
        let found = format!("{name} has MTU {mtu}: a packet carries {payload} bytes");
        if mtu >= LARGEST_PATH_MTU_TAKES {
            return Line::ok(CHECK, found);
        }
        Line::not_ok(
            CHECK,
            format!("{found} of 4096"),
            format!("ip link set dev {name} mtu 9000, at the switch and the other end as well"),
        )
        .optional()
    }

    fn eswitch_mode(&self) -> Line {
        const CHECK: &str = "eswitch mode";
        let device = format!("pci/{}", self.physical.address);
        match (self.mode, &self.representor) {
            (Some(Mode::Legacy), _) => Line::ok(CHECK, "legacy: the card switches by MAC"),
            (Some(Mode::Switchdev), Some(port)) if port.is_up == Some(false) => Line::not_ok(
                CHECK,
                format!("switchdev, and the function's port {} is down", port.name),
                format!("ip link set dev {} up, in a bridge with the others; or devlink dev eswitch set {device} mode legacy", port.name),
            ),
            (Some(Mode::Switchdev), port) => Line::not_ok(
                CHECK,
                format!(
                    "switchdev: frames pass only where a bridge or a rule lets them ({})",
                    port.as_ref().map_or_else(
                        || "the function's port is not in this network namespace".to_owned(),
                        |port| format!("the function's port is {}", port.name)
                    )
                ),
                format!("bridge link, tc filter or ovs-vsctl show what passes; or devlink dev eswitch set {device} mode legacy"),
            )
            .optional(),
            (None, _) => Line::unknown(
                CHECK,
                "whether the card switches by itself (legacy) or by the kernel's rules (switchdev) is unknown",
                format!("devlink dev eswitch show {device} (as root)"),
            ),
        }
    }

    fn link_state(&self) -> Line {
        const CHECK: &str = "vf link state";
        match self.state() {
            Some("auto") => Line::ok(CHECK, "auto: that of the physical function"),
            Some("enable") => Line::ok(CHECK, "enable: up, whatever the cable says"),
            Some("disable") => Line::not_ok(
                CHECK,
                "disable: down, whatever the cable says",
                format!("{} state auto", self.set("vf")),
            ),
            Some(other) => Line::unknown(CHECK, format!("{other:?}"), self.show()),
            None => self.unknown(CHECK),
        }
    }

    fn mac(&self) -> Line {
        const CHECK: &str = "vf mac";
        match self.settings.as_ref().and_then(|it| it.address.as_deref()) {
            Some(NO_MAC) => Line::not_ok(
                CHECK,
                "none is given: the function takes another one each time it is opened",
                format!(
                    "{} mac 02:00:00:00:00:01 (any address with 02 in front), then bind it anew",
                    self.set("vf")
                ),
            )
            .optional(),
            Some(mac) => Line::ok(CHECK, mac),
            None => self.unknown(CHECK),
        }
    }

    fn spoof_check(&self) -> Line {
        const CHECK: &str = "vf spoof check";
        let mac = self.settings.as_ref().and_then(|it| it.address.as_deref());
        match (self.settings.as_ref().and_then(|it| it.spoofchk), mac) {
            (Some(false), _) => Line::ok(CHECK, "off"),
            (Some(true), Some(NO_MAC)) => Line::not_ok(
                CHECK,
                "on, and no MAC is given: nothing the function sends leaves it",
                format!(
                    "{} mac 02:00:00:00:00:01; or {} spoofchk off",
                    self.set("vf"),
                    self.set("vf")
                ),
            ),
            (Some(true), Some(mac)) => Line::ok(CHECK, format!("on: only {mac} may send")),
            (Some(true), None) | (None, _) => self.unknown(CHECK),
        }
    }

    /// Checks the trust setting. Only promiscuous mode needs it, and nothing here uses that mode.
    fn trust(&self) -> Line {
        const CHECK: &str = "vf trust";
        match self.settings.as_ref().and_then(|it| it.trust) {
            Some(true) => Line::ok(CHECK, "on"),
            Some(false) => Line::ok(CHECK, "off, which is enough: only promiscuity takes more"),
            None => self.unknown(CHECK),
        }
    }

    fn vlan(&self) -> Line {
        const CHECK: &str = "vf vlan";
        let Some(settings) = &self.settings else {
            return self.unknown(CHECK);
        };
        match settings.vlan_list.iter().find(|entry| entry.vlan != 0) {
            None => Line::ok(CHECK, "none"),
            Some(entry) => Line::ok(
                CHECK,
                format!("{}: its peers are those in this VLAN", entry.vlan),
            ),
        }
    }

    fn state(&self) -> Option<&str> {
        self.settings.as_ref()?.link_state.as_deref()
    }

    fn unknown(&self, check: &'static str) -> Line {
        let why = if self.interface.is_none() {
            "the physical function's interface is not here"
        } else if self.number.is_none() {
            "the physical function does not list this one"
        } else {
            "ip (of iproute2) is not there or says nothing of it"
        };
        Line::unknown(check, why, self.show())
    }

    /// Returns the command that prints the settings.
    fn show(&self) -> String {
        format!("ip link show dev {}", self.name())
    }

    /// Returns the beginning of a command that sets `what` on the virtual function.
    fn set(&self, what: &str) -> String {
        let number = self
            .number
            .map_or_else(|| "N".to_owned(), |number| number.to_string());
        format!("ip link set dev {} {what} {number}", self.name())
    }

    fn name(&self) -> &str {
        self.interface
            .as_ref()
            .map_or("PF", |interface| interface.name.as_str())
    }
}

/// Returns the link state that is set for a virtual function at its physical function, as `ip` prints it. `None` if
/// `ip` does not report it.
pub(crate) fn link_state(machine: &Machine, interface: &str, number: u32) -> Option<String> {
    settings(machine, interface, number)?.link_state
}

fn settings(machine: &Machine, interface: &str, number: u32) -> Option<Settings> {
    let text = machine.ask("ip", &["-json", "link", "show", "dev", interface])?;
    let links: Vec<IpLink> = serde_json::from_str(&text).ok()?;
    links
        .into_iter()
        .flat_map(|link| link.vfinfo_list)
        .find(|settings| settings.vf == number)
}

/// Returns the mode of the switch, from `devlink` or from a file of NVIDIA's out-of-tree driver. `None` if neither
/// shows it.
fn mode(machine: &Machine, physical: PciAddress, interface: Option<&Netdev>) -> Option<Mode> {
    let device = format!("pci/{physical}");
    let word = machine
        .ask("devlink", &["-j", "dev", "eswitch", "show", &device])
        .and_then(|text| serde_json::from_str(&text).ok())
        .and_then(|answer: Value| {
            let mode = answer.get("dev")?.get(&device)?.get("mode")?;
            Some(mode.as_str()?.to_owned())
        })
        .or_else(|| {
            let file = format!("net/{}/compat/devlink/mode", interface?.name);
            let text = std::fs::read_to_string(machine.device(physical).join(file)).ok()?;
            Some(text.trim().to_owned())
        });
    match word.as_deref() {
        Some("legacy") => Some(Mode::Legacy),
        Some("switchdev") => Some(Mode::Switchdev),
        Some(_) | None => None,
    }
}
