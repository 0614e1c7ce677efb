//! State of a function's port on the e-switch, with the card administrator's settings.

use crate::eth::flow::FlowTables;
use crate::port::Port;
use crate::profile::Profile;
use crate::wire::Vlan;
use mlx_prm::CmdHcaCap;
use serde::{Deserialize, Serialize};
use std::ops::{BitAnd, BitOr};

/// Administrative state of a vport, as MODIFY_VPORT_STATE codes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkState {
    /// No frame passes.
    Down,
    /// Up, whatever the state of the wire.
    Up,
    /// Follows the wire.
    #[default]
    Follow,
}

impl LinkState {
    /// Returns the state for a command's code.
    pub const fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Down),
            1 => Some(Self::Up),
            2 => Some(Self::Follow),
            _ => None,
        }
    }

    /// Returns a command's code for the state.
    pub const fn code(self) -> u32 {
        match self {
            Self::Down => 0,
            Self::Up => 1,
            Self::Follow => 2,
        }
    }
}

/// Settings of a virtual function by `ip link set … vf N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfSettings {
    /// MAC address. If there is none, the function's driver chooses one.
    pub mac: Option<[u8; 6]>,
    /// True if promiscuous mode of the function has effect.
    pub trust: bool,
    /// True if the switch drops frames whose source is not the function's MAC address. A function without an address
    /// then cannot send (Linux warns of that: `eswitch.c` `mlx5_eswitch_set_vport_spoofchk`).
    pub spoof_check: bool,
    /// VLAN tag that the switch adds to the function's frames and removes from frames sent to the function (VST).
    pub vlan: Option<Vlan>,
    /// Link state.
    pub state: LinkState,
}

/// Parts of a vport's context. The manager can arm an event for changes of these parts. The bits are those of the NIC
/// vport context's dword at 0x04.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest(pub u8);

impl Interest {
    /// Unicast list.
    pub const UNICAST: Self = Self(1 << 0);
    /// Multicast list.
    pub const MULTICAST: Self = Self(1 << 1);
    /// VLAN list.
    pub const VLAN: Self = Self(1 << 2);
    /// Promiscuity.
    pub const PROMISCUITY: Self = Self(1 << 3);
    /// MTU.
    pub const MTU: Self = Self(1 << 4);
    /// The parts that decide the switch's rules: unicast and multicast lists, and promiscuity.
    pub const LISTS: Self = Self(0b1011);

    /// Returns whether no part is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitAnd for Interest {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// State of a virtual function that its manager controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Not enabled. The function stays in pre-initialization.
    Disabled,
    /// Enabled. The function waits for memory from the manager.
    WaitingForPages,
    /// Booting or running.
    Running,
}

/// A vport.
pub struct Vport {
    /// Number of the vport on the card.
    pub number: u16,
    /// Index of the vport's function in the simulator.
    pub function: usize,
    /// The part of the state that belongs to the function and that its reset erases.
    pub port: Port,
    /// The administrator's settings. A physical function is always trusted.
    pub settings: VfSettings,
    /// GUIDs of the system image, the port and the node, in this order.
    pub guids: [u64; 3],
    /// Headers that send queues must have inline (`min_wqe_inline_mode`). The manager sets it for a virtual function.
    pub min_inline: u8,
    /// Maximum capabilities of the function, which its manager can query.
    pub capabilities: CmdHcaCap,
    /// State that the manager controls.
    pub life: Life,
    /// True if a reset returned the function's memory to the manager, which has not given new memory since.
    pub needs_pages: bool,
    /// True if the function's driver has enabled the function.
    pub driven: bool,
    /// Access list for the frames that the function sends.
    pub ingress: FlowTables,
    /// Access list for the frames sent to the function.
    pub egress: FlowTables,
    /// Frames lost while the vport was down: received and transmitted.
    pub lost_while_down: [u64; 2],
    /// Port state last reported to the function.
    pub reported_up: bool,
    armed: Interest,
    missed: Interest,
}

impl Vport {
    pub(super) fn new(number: u16, function: usize, profile: &Profile) -> Self {
        let mut vport = Self {
            number,
            function,
            port: Port::new(profile),
            settings: VfSettings::default(),
            guids: [0; 3],
            min_inline: 0,
            capabilities: profile.general.max.clone(),
            life: Life::Running,
            needs_pages: false,
            driven: false,
            ingress: FlowTables::new(),
            egress: FlowTables::new(),
            lost_while_down: [0; 2],
            reported_up: false,
            armed: Interest::default(),
            missed: Interest::default(),
        };
        vport.settings.trust = number == super::seat::PHYSICAL;
        vport.identify(profile);
        vport
    }

    /// Sets the factory's identifiers. A virtual function has no address and no GUID of its own. Its system image GUID
    /// is the card's.
    fn identify(&mut self, profile: &Profile) {
        if self.number == super::seat::PHYSICAL {
            self.settings.mac = Some(profile.mac);
            self.guids = [profile.port_guid(); 3];
        } else {
            self.guids = [profile.port_guid(), 0, 0];
        }
    }

    /// Returns the permanent address; zero if there is none.
    pub fn mac(&self) -> [u8; 6] {
        self.settings.mac.unwrap_or_default()
    }

    /// Resets the function's part of the port. Keeps the administrator's settings of a virtual function. Returns
    /// whether the lists were in use before, so that the manager's rules may change.
    pub(super) fn reset(&mut self, profile: &Profile) -> bool {
        let listed = self.port.is_listed();
        self.driven = false;
        self.port = Port::new(profile).in_place_of(&self.port);
        if self.number == super::seat::PHYSICAL {
            self.settings.state = LinkState::Follow;
            self.min_inline = 0;
            self.identify(profile);
        }
        listed
    }

    /// Arms the manager's event for one change of `what`. Returns true if a change that the manager missed must be
    /// reported at once.
    pub fn arm(&mut self, what: Interest) -> bool {
        self.armed = what;
        let missed = self.missed & what;
        self.missed = Interest::default();
        if missed.is_empty() {
            return false;
        }
        self.armed = Interest::default();
        true
    }

    /// Returns the parts for which the manager's event is armed.
    pub const fn armed(&self) -> Interest {
        self.armed
    }

    /// Records that the vport's driver changed the parts `what`. Returns true if the manager must be notified; the
    /// manager then has to arm again.
    pub(super) fn change(&mut self, what: Interest, remember: bool) -> bool {
        if (self.armed & what).is_empty() {
            if remember {
                self.missed = self.missed | what;
            }
            return false;
        }
        self.armed = Interest::default();
        true
    }

    /// Sets the administrator's settings. The node GUID is derived from the MAC address as in Linux (`eswitch.c`
    /// `node_guid_gen_from_mac`: the local bit is not flipped).
    pub fn set(&mut self, settings: VfSettings) {
        if settings.mac != self.settings.mac {
            let [a, b, c, d, e, f] = settings.mac.unwrap_or_default();
            let guid = u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f]);
            self.guids[2] = settings.mac.map_or(0, |_| guid);
        }
        self.settings = settings;
    }

    /// Returns whether the switch forwards frames of the vport.
    pub fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    /// Returns whether promiscuous mode of the vport has effect.
    pub const fn is_trusted(&self) -> bool {
        self.settings.trust
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vport() -> Vport {
        Vport::new(1, 0, &Profile::default())
    }

    /// An armed manager is notified of one change only, since Linux `eswitch.c` `arm_vport_context_events_cmd` arms
    /// again after each event.
    #[test]
    fn an_armed_manager_is_notified_once() {
        let mut vport = vport();
        assert!(!vport.change(Interest::UNICAST, true), "nobody armed");
        assert!(vport.arm(Interest::LISTS), "the change it has not seen");
        assert!(!vport.change(Interest::UNICAST, false), "it is not armed");
        assert!(!vport.arm(Interest::LISTS), "that change is lost");
        assert!(!vport.change(Interest::VLAN, false), "not armed for that");
        assert!(vport.change(Interest::MULTICAST, false));
        assert!(!vport.change(Interest::MULTICAST, false), "once");
    }

    #[test]
    fn the_node_guid_follows_the_address_and_both_outlive_a_reset() {
        let mut vport = vport();
        assert_eq!((vport.mac(), vport.guids[2]), ([0; 6], 0));
        vport.set(VfSettings {
            mac: Some([0x52, 0x54, 0, 0, 0, 1]),
            state: LinkState::Up,
            ..VfSettings::default()
        });
        vport.reset(&Profile::default());
        assert_eq!(vport.mac(), [0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(vport.guids[2], 0x5254_00ff_fe00_0001);
        assert_eq!(vport.settings.state, LinkState::Up);
    }
}
