//! What the switch knows of a function's port, and what the card's administrator says of it.

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
    /// Up, whatever the wire is.
    Up,
    /// As the wire is.
    #[default]
    Follow,
}

impl LinkState {
    /// As a command codes it.
    pub const fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Down),
            1 => Some(Self::Up),
            2 => Some(Self::Follow),
            _ => None,
        }
    }

    /// As a command codes it.
    pub const fn code(self) -> u32 {
        match self {
            Self::Down => 0,
            Self::Up => 1,
            Self::Follow => 2,
        }
    }
}

/// What `ip link set … vf N` says of a virtual function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfSettings {
    /// Its MAC address; without one its driver invents one.
    pub mac: Option<[u8; 6]>,
    /// It may be promiscuous.
    pub trust: bool,
    /// What it sends comes from its MAC address, or nowhere. Without an address it is mute (Linux warns of it:
    /// `eswitch.c` `mlx5_eswitch_set_vport_spoofchk`).
    pub spoof_check: bool,
    /// The switch puts this tag on what it sends, and takes it off what it receives (VST).
    pub vlan: Option<Vlan>,
    /// Its link.
    pub state: LinkState,
}

/// What of a vport's context may change: bits of the NIC vport context's dword at 0x04.
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
    /// What the switch's rules are made of.
    pub const LISTS: Self = Self(0b1011);

    /// Whether there is none.
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

/// What a virtual function's manager has made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Not enabled: it waits in pre-initialization.
    Disabled,
    /// Enabled, and its memory is still to come from the manager.
    Starving,
    /// It boots and runs.
    Running,
}

/// A vport.
pub struct Vport {
    /// Its number.
    pub number: u16,
    /// The function behind it, by its place in the world.
    pub function: usize,
    /// What the function keeps of its port, until it is reset.
    pub port: Port,
    /// What the administrator says. A physical function trusts itself.
    pub settings: VfSettings,
    /// GUIDs: system image, port, node.
    pub guids: [u64; 3],
    /// What the function could do at most, for its manager to ask.
    pub capabilities: CmdHcaCap,
    /// What the manager has made of it.
    pub life: Life,
    /// Its memory went back to the manager when it was reset.
    pub hungry: bool,
    /// Its driver has enabled it.
    pub driven: bool,
    /// Access list of what it sends.
    pub ingress: FlowTables,
    /// Access list of what it is sent.
    pub egress: FlowTables,
    /// Frames lost since it was down: received, transmitted.
    pub lost_while_down: [u64; 2],
    /// What the function was last told of its port.
    pub told_up: bool,
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
            capabilities: profile.general.max.clone(),
            life: Life::Running,
            hungry: false,
            driven: false,
            ingress: FlowTables::new(),
            egress: FlowTables::new(),
            lost_while_down: [0; 2],
            told_up: false,
            armed: Interest::default(),
            missed: Interest::default(),
        };
        vport.settings.trust = number == super::seat::PHYSICAL;
        vport.identify(profile);
        vport
    }

    /// What the factory gave. A virtual function has no address and no GUID of its own; the system image is the card's.
    fn identify(&mut self, profile: &Profile) {
        if self.number == super::seat::PHYSICAL {
            self.settings.mac = Some(profile.mac);
            self.guids = [profile.port_guid(); 3];
        } else {
            self.guids = [profile.port_guid(), 0, 0];
        }
    }

    /// Its permanent address; zero if it has none.
    pub fn mac(&self) -> [u8; 6] {
        self.settings.mac.unwrap_or_default()
    }

    /// The function was reset: its part of the port is forgotten, what the administrator said is not. Whether there was
    /// something in it that the manager's rules may be made of.
    pub(super) fn reset(&mut self, profile: &Profile) -> bool {
        let listed = self.port.is_listed();
        self.driven = false;
        self.port = Port::new(profile).in_place_of(&self.port);
        if self.number == super::seat::PHYSICAL {
            self.settings.state = LinkState::Follow;
            self.identify(profile);
        }
        listed
    }

    /// The manager arms: it is told of one change of these. True if it is to be told at once, of a change it has not
    /// seen.
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

    /// What the manager is armed for.
    pub const fn armed(&self) -> Interest {
        self.armed
    }

    /// Its driver changed something. True if the manager is to be told; then it has to arm again.
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

    /// The administrator says something new. The node's GUID follows the address, as Linux has it (`eswitch.c`
    /// `node_guid_gen_from_mac`: the local bit is not flipped).
    pub fn set(&mut self, settings: VfSettings) {
        if settings.mac != self.settings.mac {
            let [a, b, c, d, e, f] = settings.mac.unwrap_or_default();
            let guid = u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f]);
            self.guids[2] = settings.mac.map_or(0, |_| guid);
        }
        self.settings = settings;
    }

    /// Whether the switch knows it.
    pub fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    /// Whether promiscuity has effect.
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

    /// Linux `eswitch.c` `arm_vport_context_events_cmd` arms again after each event.
    #[test]
    fn an_armed_manager_is_told_once() {
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
