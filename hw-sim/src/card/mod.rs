//! A card: one physical port, the functions behind it, and the e-switch between them.
//!
//! ```text
//!   driver     driver    driver
//!     |          |         |
//!   function   function  function        Nic: registers, commands, objects
//!     |          |         |
//!   vport 0    vport 1   vport 2         Vport: what the switch knows of a function's port
//!     '----------+---------'
//!            e-switch                    rules made of address lists, or a manager's flow tables
//!                |
//!         forwarding table (MPFS)        which unicast addresses may come in from the wire
//!                |
//!             uplink                     cable, administrative state, training, MTU
//! ```
//!
//! Vport 0 is the physical function, vports 1 to N are the virtual functions (Linux `include/linux/mlx5/vport.h`). A
//! function that was added by itself is the physical function of a card of its own: there is one mechanism.
//!
//! State of a port is split by what erases it. A function-level reset empties the `Port` (lists, promiscuity, MTU,
//! RoCE addresses). The card administrator's settings of a virtual function (address, GUID, trust, VLAN, link state)
//! are in the [`Vport`] and survive its resets.
//!
//! The virtual functions are managed in one of two ways. While the physical function's driver has an FDB of its own,
//! its flow tables decide ([`Card::fdb`]), as Linux writes them. Otherwise the card makes the same rules itself from
//! the lists, and [`SimCard::set_vf`](crate::SimCard::set_vf) stands for `ip link set … vf`.
//!
//! The state of a port is never set: it follows from the settings of administrator and drivers. `Env::settle`
//! notifies the functions whose port has changed since their last notification.

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

/// Card behaviour that no public source settles, or that is its user's choice. The defaults are the strict side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRules {
    /// Time from light and an administrative state of up to a link. Real cards take a tenth of a second to ten; a
    /// card that was cabled when it was switched on has trained before its first driver comes.
    pub link_training: Duration,
    /// A change of a vport's lists while its manager was not armed is reported when the manager arms again. Linux
    /// reads the lists before it arms (`eswitch.c` `esw_vport_change_handle_locked`), so a change in between would be
    /// lost.
    pub remembers_changes: bool,
    /// The physical function's factory address is let in without an entry of the forwarding table.
    pub factory_address_passes: bool,
    /// Unicast from the wire to unannounced addresses is let in (firmware option UNKNOWN_UPLINK_MAC_FLOOD, off by
    /// default).
    pub unknown_unicast_passes: bool,
    /// A function may write its own `permanent_address`. No known driver does.
    pub own_permanent_address: bool,
    /// Frames longer than a vport's MTU are dropped. Linux writes it together with the port's (`en_main.c`
    /// `mlx5e_set_mtu`); that each vport drops is inferred.
    pub vport_mtu_limits: bool,
    /// Virtual functions stay in pre-initialization until the physical function's driver enables them.
    pub virtual_functions_wait: bool,
    /// Pages that the firmware requests from the physical function's driver when that enables a virtual function.
    /// When real firmware requests them is not known; here the function boots once it has them. A reset of the
    /// function returns them (the commit that brought Linux' `release_all_pages` measures it by resetting four), and
    /// its next INIT_HCA waits for new ones.
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
    /// The physical function.
    pub physical: Profile,
    /// Number of virtual functions; each is of the physical one's kind ([`Profile::virtual_function`]).
    pub virtual_functions: u16,
    /// The card's behaviour.
    pub rules: CardRules,
}

impl CardConfig {
    /// Returns a card with this physical function and `virtual_functions` virtual ones.
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

/// A card.
pub struct Card {
    /// Behaviour.
    pub rules: CardRules,
    /// The physical port.
    pub uplink: Uplink,
    /// Unicast addresses let in from the wire (SET_L2_TABLE_ENTRY), by index.
    pub forwarding: BTreeMap<u32, [u8; 6]>,
    /// True if the physical function may write the forwarding table. Where it may not, as on a BlueField seen from
    /// its host, the card enters the addresses that the function lists.
    managed: bool,
    /// The manager's flow tables; while they are empty the card makes the rules.
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

    /// Adds the next function, the first of which is the physical one. Returns the number of its vport.
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

    /// Hands the subnet of the card's InfiniBand ports to a program, which manages it.
    pub fn unmanage(&mut self) {
        let ports = self.vports.iter_mut().map(|vport| &mut vport.port);
        ports
            .filter_map(|port| port.subnet.as_mut())
            .for_each(Subnet::unmanage);
    }

    /// Clears the manager's tables: its driver is gone.
    pub fn forget_manager(&mut self) {
        self.fdb.clear();
        for vport in &mut self.vports {
            vport.ingress.clear();
            vport.egress.clear();
        }
    }

    /// Returns whether frames pass a vport. A virtual function's may be up while the wire is down: the other
    /// functions of the card can be reached (the netdev ABI's `IFLA_VF_LINK_STATE_ENABLE`).
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
    /// A vport's driver changed something that the manager had armed for.
    VportChange {
        /// Number of the vport.
        vport: u16,
    },
    /// A virtual function was enabled or disabled by its manager.
    Enabled(bool),
    /// To the manager: a virtual function was reset, and its firmware returns its memory.
    VfReset {
        /// Number of its vport.
        vport: u16,
    },
    /// To the manager: the firmware of a virtual function needs its memory again.
    VfNeedsPages {
        /// Number of its vport.
        vport: u16,
    },
    /// To a virtual function: its manager gave the memory, or reported that it cannot.
    PagesAnswered(bool),
    /// To a virtual function: number of interrupt vectors its manager gave it.
    Vectors(u16),
}
