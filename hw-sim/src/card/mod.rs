//! A card: one physical port, the functions behind it, and the e-switch between them.
//!
//! ```text
//!   driver     driver    driver
//!     |          |         |
//!   function   function  function        Nic: registers, commands, objects
//!     |          |         |
//!   vport 0    vport 1   vport 2         Vport: the e-switch's state of a function's port
//!     '----------+---------'
//!            e-switch                    rules made of address lists, or a manager's flow tables
//!                |
//!         forwarding table (MPFS)        which unicast addresses may come in from the wire
//!                |
//!             uplink                     cable, administrative state, training, MTU
//! ```
//!
//! Vport 0 is the physical function, vports 1 to N are the virtual functions (Linux `include/linux/mlx5/vport.h`). A
//! function that was added without a card becomes the physical function of a new card.
//!
//! The state of a port is divided by the event that erases it. A function-level reset erases the `Port` (lists,
//! promiscuity, MTU, RoCE addresses). The card administrator's settings of a virtual function (address, GUID, trust,
//! VLAN, link state) are in the [`Vport`] and survive resets of the function.
//!
//! The virtual functions are managed in one of two ways. While the physical function's driver has an FDB, the flow
//! tables of this FDB decide ([`Card::fdb`]). Otherwise the card derives the rules from the address lists, as Linux
//! does, and [`SimCard::set_vf`](crate::SimCard::set_vf) replaces `ip link set … vf`.
//!
//! The link state of a port is never set directly. It follows from the settings of administrator and drivers.
//! `Env::update_ports` notifies the functions whose port has changed since their last notification.

mod ports;
mod qos;
pub mod seat;
pub mod switch;
pub mod uplink;
pub mod vport;

use crate::eth::flow::FlowTables;
use crate::profile::Profile;
use crate::subnet::Subnet;
pub use qos::{CongestionCounters, PauseCounters, PortQos};
use seat::PHYSICAL;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
pub use uplink::AdminState;
use uplink::Uplink;
pub use vport::{Interest, Life, LinkState, VfSettings, Vport};

/// Card behaviour that no public source specifies, or that the card's user chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRules {
    /// Time from the moment when the cable is plugged and the port is administratively up until the link is up. Real
    /// cards take 0.1 s to 10 s. A card that was cabled at power-on has trained before its first driver starts.
    pub link_training: Duration,
    /// True if a change of a vport's lists, made while the manager's event is not armed, is reported when the manager
    /// arms the event again. Linux reads the lists before it arms the event (`eswitch.c`
    /// `esw_vport_change_handle_locked`), so it would otherwise miss a change in between.
    pub remembers_changes: bool,
    /// True if frames to the physical function's factory address pass without an entry of the forwarding table.
    pub factory_address_passes: bool,
    /// True if unicast frames from the wire to unknown addresses pass (firmware option UNKNOWN_UPLINK_MAC_FLOOD, off by
    /// default).
    pub unknown_unicast_passes: bool,
    /// True if a function may write its own `permanent_address`. No known driver does.
    pub own_permanent_address: bool,
    /// True if frames longer than a vport's MTU are dropped. Linux writes a vport's MTU together with the port's
    /// (`en_main.c` `mlx5e_set_mtu`). It is inferred that each vport drops such frames.
    pub vport_mtu_limits: bool,
    /// True if virtual functions stay in pre-initialization until the physical function's driver enables them.
    pub virtual_functions_wait: bool,
    /// Number of pages that the firmware requests from the physical function's driver when the driver enables a virtual
    /// function. It is not known when real firmware requests these pages. Here the virtual function boots when it has
    /// them. A reset of the virtual function returns the pages to the manager (measured with resets of four functions
    /// in the commit that introduced Linux' `release_all_pages`). The function's next INIT_HCA then waits for new
    /// pages.
    pub virtual_function_pages: u16,
}

impl Default for CardRules {
    fn default() -> Self {
        Self {
            link_training: Duration::from_millis(100),
            remembers_changes: true,
            factory_address_passes: false,
            unknown_unicast_passes: false,
            own_permanent_address: false,
            vport_mtu_limits: true,
            virtual_functions_wait: false,
            virtual_function_pages: 16,
        }
    }
}

/// Configuration of a new card.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// Profile of the physical function.
    pub physical: Profile,
    /// Number of virtual functions. Each has the profile derived from the physical one's
    /// ([`Profile::virtual_function`]).
    pub virtual_functions: u16,
    /// The card's behaviour.
    pub rules: CardRules,
}

impl CardConfig {
    /// Returns the configuration of a card with this physical function and `virtual_functions` virtual functions.
    pub fn new(physical: Profile, virtual_functions: u16) -> Self {
        Self {
            physical,
            virtual_functions,
            rules: CardRules::default(),
        }
    }

    /// Replaces the card's behaviour.
    #[must_use]
    pub const fn with_rules(mut self, rules: CardRules) -> Self {
        self.rules = rules;
        self
    }
}

/// The state of a card.
pub struct Card {
    /// The card's behaviour.
    pub rules: CardRules,
    /// The physical port.
    pub uplink: Uplink,
    /// Unicast addresses admitted from the wire (SET_L2_TABLE_ENTRY), by index.
    pub forwarding: BTreeMap<u32, [u8; 6]>,
    /// True if the physical function may write the forwarding table. If it may not, as on a BlueField seen from its
    /// host, the card admits the addresses that the function lists.
    managed: bool,
    /// The manager's flow tables. While they are empty, the card derives the rules.
    pub fdb: FlowTables,
    vports: Vec<Vport>,
}

impl Card {
    /// Returns a card without functions.
    pub fn new(physical: &Profile, rules: CardRules) -> Self {
        Self {
            rules,
            uplink: Uplink::new(physical),
            forwarding: BTreeMap::new(),
            managed: physical.general.current.eswitch_manager(),
            fdb: FlowTables::new(),
            vports: Vec::new(),
        }
    }

    /// Adds the next function; the first one is the physical function. Returns the number of its vport.
    pub fn add(&mut self, function: usize, profile: &Profile) -> u16 {
        let number = u16::try_from(self.vports.len()).unwrap_or(u16::MAX);
        let mut vport = Vport::new(number, function, profile);
        if number != PHYSICAL && self.rules.virtual_functions_wait {
            vport.life = Life::Disabled;
        }
        self.vports.push(vport);
        number
    }

    /// Returns a vport.
    pub fn vport(&self, number: u16) -> Option<&Vport> {
        self.vports.get(usize::from(number))
    }

    /// Returns a vport, to change it.
    pub fn vport_mut(&mut self, number: u16) -> Option<&mut Vport> {
        self.vports.get_mut(usize::from(number))
    }

    /// Returns all vports.
    pub fn vports(&self) -> &[Vport] {
        &self.vports
    }

    /// Makes an external subnet manager responsible for the InfiniBand ports: the ports lose their LIDs and start in
    /// Init.
    pub fn unmanage(&mut self) {
        let ports = self.vports.iter_mut().map(|vport| &mut vport.port);
        ports
            .filter_map(|port| port.subnet.as_mut())
            .for_each(Subnet::unmanage);
    }

    /// Clears the FDB and the access lists of all vports, because the manager's function is reset or torn down.
    pub fn forget_manager(&mut self) {
        self.fdb.clear();
        for vport in &mut self.vports {
            vport.ingress.clear();
            vport.egress.clear();
        }
    }

    /// Returns whether frames pass a vport. A virtual function's vport may be up while the wire is down, because the
    /// other functions of the card are reachable (the netdev ABI's `IFLA_VF_LINK_STATE_ENABLE`).
    pub fn is_up(&self, vport: &Vport) -> bool {
        match vport.settings.state {
            LinkState::Down => false,
            LinkState::Up if vport.number != PHYSICAL => true,
            LinkState::Up | LinkState::Follow => self.uplink.is_up(),
        }
    }
}

/// An event of the card for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// The port came up or went down.
    Port {
        /// True if the port came up.
        up: bool,
    },
    /// A vport's driver changed something for which the manager had armed an event.
    VportChange {
        /// Number of the vport.
        vport: u16,
    },
    /// A virtual function was enabled or disabled by its manager.
    Enabled(bool),
    /// To the manager: a virtual function was reset, and the firmware returns the memory of this function.
    VfReset {
        /// Number of the virtual function's vport.
        vport: u16,
    },
    /// To the manager: the firmware of a virtual function requests memory again, after a reset returned its memory.
    VfNeedsPages {
        /// Number of the virtual function's vport.
        vport: u16,
    },
    /// To a virtual function: the manager's answer to its request for memory. True if the manager gave the memory,
    /// false if the manager reported that it cannot.
    PagesAnswered(bool),
    /// To a virtual function: number of interrupt vectors that its manager assigned to it.
    Vectors(u16),
}
