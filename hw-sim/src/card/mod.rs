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
//! What belongs to a port is split by who may forget it. A function-level reset empties the `Port` (lists,
//! promiscuity, MTU, RoCE addresses). What the card's administrator said of a virtual function (address, GUID, trust,
//! VLAN, link state) is the [`Vport`]'s, and outlives its resets.
//!
//! Who manages the virtual functions is decided by what is there. While the physical function's driver has an FDB of
//! its own, its flow tables decide ([`Card::fdb`]), as Linux writes them. Otherwise the card makes the same rules
//! itself from the lists, and [`SimCard::set_vf`](crate::SimCard::set_vf) says what `ip link set … vf` would.
//!
//! The state of a port is never set: it follows from what everybody asked for, and `Env::settle` tells the functions
//! whose port has changed since they were last told.

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

/// What no public source settles about a card, or what is its user's choice. The defaults are the strict side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRules {
    /// From light and an administrative state of up to a link. Real ones take a tenth of a second to ten; a card that
    /// was cabled when it was switched on has trained before its first driver comes.
    pub link_training: Duration,
    /// A change of a vport's lists that its manager had not armed for is told when it arms again. Linux reads the
    /// lists before it arms (`eswitch.c` `esw_vport_change_handle_locked`), so one in between would be lost.
    pub remembers_changes: bool,
    /// The factory address of the physical function comes in without an entry of the forwarding table.
    pub factory_address_passes: bool,
    /// Unicast from the wire to addresses nobody announced comes in (firmware option UNKNOWN_UPLINK_MAC_FLOOD, off by
    /// default).
    pub unknown_unicast_passes: bool,
    /// A function may write its own `permanent_address`. No known driver does.
    pub own_permanent_address: bool,
    /// A vport's MTU loses frames that are longer. Linux writes it together with the port's (`en_main.c`
    /// `mlx5e_set_mtu`); that each vport drops is inferred.
    pub vport_mtu_limits: bool,
    /// Virtual functions stay in pre-initialization until the physical function's driver enables them.
    pub virtual_functions_wait: bool,
    /// Pages that the firmware asks the physical function's driver for when it enables a virtual one. When real
    /// firmware asks is not known; here the function boots once it has them. A reset of the function gives them back
    /// (the commit that brought Linux' `release_all_pages` measures it by resetting four), and its next INIT_HCA waits
    /// for new ones.
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

/// How a card is made.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// The physical function.
    pub physical: Profile,
    /// How many virtual functions there are; each is the physical one's kind ([`Profile::virtual_function`]).
    pub virtual_functions: u16,
    /// The card's habits.
    pub rules: CardRules,
}

impl CardConfig {
    /// A card with a physical function of this kind and so many virtual ones.
    pub fn new(physical: Profile, virtual_functions: u16) -> Self {
        Self {
            physical,
            virtual_functions,
            rules: CardRules::default(),
        }
    }

    /// Gives the card other habits.
    #[must_use]
    pub const fn with_rules(mut self, rules: CardRules) -> Self {
        self.rules = rules;
        self
    }
}

/// A card.
pub struct Card {
    /// Its habits.
    pub rules: CardRules,
    /// The physical port.
    pub uplink: Uplink,
    /// What the manager let in from the wire (SET_L2_TABLE_ENTRY), by index.
    pub forwarding: BTreeMap<u32, [u8; 6]>,
    /// The physical function may write the forwarding table; where it may not, as that of a BlueField seen from its
    /// host, the card puts in what it lists.
    managed: bool,
    /// The manager's rules; without a table in it the card makes them.
    pub fdb: FlowTables,
    vports: Vec<Vport>,
}

impl Card {
    /// A card without functions.
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

    /// The next function is put in: the first is the physical one. Its vport's number.
    pub fn add(&mut self, function: usize, profile: &Profile) -> u16 {
        let number = u16::try_from(self.vports.len()).unwrap_or(u16::MAX);
        let mut vport = Vport::new(number, function, profile);
        if number != PHYSICAL && self.rules.virtual_functions_wait {
            vport.life = Life::Disabled;
        }
        self.vports.push(vport);
        number
    }

    /// A vport.
    pub fn vport(&self, number: u16) -> Option<&Vport> {
        self.vports.get(usize::from(number))
    }

    /// A vport, to change it.
    pub fn vport_mut(&mut self, number: u16) -> Option<&mut Vport> {
        self.vports.get_mut(usize::from(number))
    }

    /// All of them.
    pub fn vports(&self) -> &[Vport] {
        &self.vports
    }

    /// A program manages the subnet of its InfiniBand ports.
    pub fn unmanage(&mut self) {
        let ports = self.vports.iter_mut().map(|vport| &mut vport.port);
        ports
            .filter_map(|port| port.subnet.as_mut())
            .for_each(Subnet::unmanage);
    }

    /// The manager's driver is gone, and its tables with it.
    pub fn forget_manager(&mut self) {
        self.fdb.clear();
        for vport in &mut self.vports {
            vport.ingress.clear();
            vport.egress.clear();
        }
    }

    /// Whether frames pass a vport. A virtual function's may be up while the wire is down: its neighbours on the card
    /// can be reached (the netdev ABI's `IFLA_VF_LINK_STATE_ENABLE`).
    pub fn is_up(&self, vport: &Vport) -> bool {
        match vport.settings.state {
            LinkState::Down => false,
            LinkState::Up if vport.number != PHYSICAL => true,
            LinkState::Up | LinkState::Follow => self.uplink.is_up(),
        }
    }
}

/// What a function's card has to tell its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The port came up or went down.
    Port {
        /// Which.
        up: bool,
    },
    /// A vport's driver changed what the manager had armed for.
    VportChange {
        /// Whose.
        vport: u16,
    },
    /// A virtual function was enabled or disabled by its manager.
    Enabled(bool),
    /// To the manager: a virtual function was reset, and what memory its firmware held goes back.
    Emptied {
        /// Whose.
        vport: u16,
    },
    /// To the manager: the firmware of a virtual function needs its memory again.
    Hungry {
        /// Whose.
        vport: u16,
    },
    /// To a virtual function: its manager gave what it needs, or said that it cannot.
    Fed(bool),
    /// To a virtual function: its manager gave it so many interrupt vectors.
    Vectors(u16),
}
