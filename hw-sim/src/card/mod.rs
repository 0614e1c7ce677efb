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
//! What belongs to a port is split by who may forget it. A function-level reset empties the [`Port`] (lists,
//! promiscuity, MTU, RoCE addresses). What the card's administrator said of a virtual function (address, GUID, trust,
//! VLAN, link state) is the [`Vport`]'s, and outlives its resets.
//!
//! Who manages the virtual functions is decided by what is there. While the physical function's driver has an FDB of
//! its own, its flow tables decide ([`Card::fdb`]), as Linux writes them. Otherwise the card makes the same rules itself from
//! the lists, and [`SimCard::set_vf`](crate::SimCard::set_vf) says what `ip link set … vf` would.
//!
//! The state of a port is never set: it follows from what everybody asked for, and [`Env::settle`] tells the functions
//! whose port has changed since they were last told.

pub mod switch;
pub mod uplink;
pub mod vport;

use crate::eth::flow::FlowTables;
use crate::port::Port;
use crate::profile::Profile;
use crate::world::{Env, Timer};
use std::collections::BTreeMap;
use std::time::Duration;
pub use uplink::AdminState;
use uplink::Uplink;
pub use vport::{Interest, Life, LinkState, VfSettings, Vport};

/// The physical function's vport.
pub const PHYSICAL: u16 = 0;

/// Where a function sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// The card, by its place in the world.
    pub card: usize,
    /// Its vport.
    pub vport: u16,
}

impl Seat {
    /// Whether it is a virtual function's.
    pub const fn is_virtual(self) -> bool {
        self.vport != PHYSICAL
    }
}

/// What no public source settles about a card, or what is its user's choice. The defaults are the strict side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardRules {
    /// From light and an administrative state of up to a link. Real ones take a tenth of a second to ten; a card that was
    /// cabled when it was switched on has trained before its first driver comes.
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
    /// firmware asks is not known; here the function boots once it has them. A reset of the function gives them back (the commit
    /// that brought Linux' `release_all_pages` measures it by resetting four), and its next INIT_HCA waits for new ones.
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
    /// The physical function may write the forwarding table; where it may not, as that of a BlueField seen from its host,
    /// the card puts in what it lists.
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

impl Env {
    /// The card a function sits on.
    ///
    /// # Panics
    /// There is none: functions and their cards are made together.
    pub fn card(&self, seat: Seat) -> &Card {
        &self.cards[seat.card]
    }

    /// The card a function sits on, to change it; [`Env::settle`] tells whom it concerns.
    ///
    /// # Panics
    /// As [`Env::card`].
    pub fn card_mut(&mut self, seat: Seat) -> &mut Card {
        &mut self.cards[seat.card]
    }

    /// A function's vport.
    ///
    /// # Panics
    /// There is none: functions and their vports are made together, and whoever names another's looks first.
    pub fn vport(&self, seat: Seat) -> &Vport {
        &self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// A function's vport, to change it.
    ///
    /// # Panics
    /// As [`Env::vport`].
    pub fn vport_mut(&mut self, seat: Seat) -> &mut Vport {
        &mut self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// What a function itself keeps of its port.
    pub fn port(&self, seat: Seat) -> &Port {
        &self.vport(seat).port
    }

    /// What a function itself keeps of its port, to change it.
    pub fn port_mut(&mut self, seat: Seat) -> &mut Port {
        &mut self.vport_mut(seat).port
    }

    /// Whether frames pass a function's port.
    pub fn is_up(&self, seat: Seat) -> bool {
        self.card(seat).is_up(self.vport(seat))
    }

    /// A function was reset: what it kept of its port is gone.
    pub fn reset_port(&mut self, seat: Seat, profile: &Profile) {
        let card = self.card_mut(seat);
        if !seat.is_virtual() {
            card.forget_manager();
            card.forwarding.clear();
            card.uplink.reset();
        }
        let vport = self.vport_mut(seat);
        let listed = vport.reset(profile);
        // Its next driver asks for the state; no event is owed.
        let up = self.is_up(seat);
        self.vport_mut(seat).told_up = up;
        if listed {
            self.vport_changed(seat, Interest::LISTS);
        }
    }

    /// Something that the state of ports follows from has changed: training begins or ends, functions are told.
    pub fn settle(&mut self, seat: Seat) {
        let now = self.now;
        let card = self.card_mut(seat);
        let training = crate::nic::nanoseconds(card.rules.link_training);
        let due = card.uplink.settle(now, training);
        let states: Vec<bool> = card.vports.iter().map(|vport| card.is_up(vport)).collect();
        let mut changed = Vec::new();
        for (vport, up) in card.vports.iter_mut().zip(states) {
            if vport.told_up != up {
                vport.told_up = up;
                changed.push((vport.function, Happening::Port { up }));
            }
        }
        let physical = card.vports.first().map(|vport| vport.function);
        self.happenings.extend(changed);
        if let (Some(due), Some(function)) = (due, physical) {
            self.schedule(due, function, Timer::Trained);
        }
    }

    /// The manager's function, by its place in the world.
    pub fn manager(&self, seat: Seat) -> Option<usize> {
        self.card(seat).vport(PHYSICAL).map(|vport| vport.function)
    }

    /// The manager arms for changes of a vport. It is told at once of one it has not seen.
    pub fn arm(&mut self, seat: Seat, what: Interest) {
        let manager = self.card(seat).vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).arm(what)
            && let Some(manager) = manager
        {
            self.happenings
                .push_back((manager, Happening::VportChange { vport: seat.vport }));
        }
    }

    /// A driver changed what the manager may want to know of its vport.
    pub fn vport_changed(&mut self, seat: Seat, what: Interest) {
        let card = self.card_mut(seat);
        let remembers = card.rules.remembers_changes;
        let manager = card.vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).change(what, remembers)
            && let Some(manager) = manager
        {
            self.happenings
                .push_back((manager, Happening::VportChange { vport: seat.vport }));
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
