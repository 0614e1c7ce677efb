//! Switches in the simulation, and the ports of the cards connected to them.
//!
//! ```text
//!   card: frames of functions -> queue of their priority, at the port's rate -> link -> switch -> link -> card
//!                                   ^ paused while the switch requests a pause
//! ```
//!
//! A card on a switch has a port with a rate. A card on a bare link, or on a link to the outside, has no port with a
//! rate, and sends frames without delay. So nothing here has an effect on a simulation without switches.
//!
//! Such a port never drops a frame. When a priority has [`PORT_BYTES`] queued, the queue pairs of that priority wait,
//! as on a card, which fetches no more than it can send. The port obeys pauses of the priorities enabled in register
//! PFCC. It sends no pauses, since a card here accepts every frame. Packets of priorities in which the card reacts to
//! congestion are marked ECT, as the firmware of a card does; Linux leaves those bits unchanged.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::card::{Card, PauseCounters};
use crate::link::Port as Side;
use crate::switch::classify::{PRIORITIES, make_capable, roce_v2};
use crate::switch::egress::Egress;
use crate::switch::{Switch, Unknown, pfc};

/// Queue pairs of a priority wait while at least this number of bytes is queued in it: a few of the largest packets.
const PORT_BYTES: usize = 32 << 10;

/// Reason for which a cable cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotConnected {
    /// A port does not exist or has a cable already, or neither end is a switch.
    #[error("no such port, or it has a cable already, or neither end is a switch")]
    Port,
    /// The cable would connect an InfiniBand port to an Ethernet switch.
    #[error("an InfiniBand port cannot be on an Ethernet switch")]
    InfiniBand,
    /// The cable would connect an Ethernet port to an InfiniBand switch.
    #[error("an Ethernet port cannot be on an InfiniBand switch")]
    Ethernet,
    /// The cable would close a loop of switches, and at least one of the switches connected to the loop floods.
    #[error(
        "in a loop of switches a flood would never end: make all of them drop frames to unknown addresses, or leave the loop open"
    )]
    Circle,
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The port of the card with this index.
    Card(usize),
    /// A port of an Ethernet switch.
    Switch {
        /// Number of the switch.
        switch: usize,
        /// Number of the port.
        port: usize,
    },
    /// A port of an InfiniBand switch.
    Subnet {
        /// Number of the switch.
        switch: usize,
        /// Number of the port, from 1.
        port: usize,
    },
    /// A program outside of this simulation.
    Outside,
}

/// The port of a card that is connected to a switch.
#[derive(Debug)]
struct CardPort {
    egress: Egress,
    cable: usize,
    side: Side,
}

/// A frame that enters a cable: index of the cable, end of the cable, virtual time at which the last byte leaves,
/// frame.
pub(crate) type Sent = (usize, Side, u64, Vec<u8>);

/// All switches, and the cards on them.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub switches: Vec<Switch>,
    cards: BTreeMap<usize, CardPort>,
    /// Cable at each port of a switch, and the end of the cable that is at that port.
    cables: BTreeMap<(usize, usize), (usize, Side)>,
    /// Cables between switches, as pairs of switch numbers.
    trunks: Vec<(usize, usize)>,
}

impl Network {
    /// Returns whether a port of a switch cannot get a cable, because it has one already or does not exist.
    pub(crate) fn is_taken(&self, switch: usize, port: usize) -> bool {
        let there = self
            .switches
            .get(switch)
            .is_some_and(|switch| port < switch.config().ports);
        !there || self.cables.contains_key(&(switch, port))
    }

    /// Returns whether a cable between these ends would close a loop of switches, while at least one of the switches
    /// connected to the loop floods. A flooded frame would circulate forever.
    pub(crate) fn would_flood(&self, ends: [End; 2]) -> bool {
        let [
            End::Switch { switch: one, .. },
            End::Switch { switch: other, .. },
        ] = ends
        else {
            return false;
        };
        let (mut reached, mut todo) = (BTreeSet::from([one]), vec![one]);
        while let Some(at) = todo.pop() {
            for &(a, b) in self.trunks.iter().filter(|(a, b)| *a == at || *b == at) {
                for next in [a, b] {
                    if reached.insert(next) {
                        todo.push(next);
                    }
                }
            }
        }
        let floods = |at: &usize| self.switches[*at].config().unknown == Unknown::Flood;
        reached.contains(&other) && reached.iter().any(floods)
    }

    /// Registers a new cable between these ends.
    pub(crate) fn laid(&mut self, cable: usize, ends: [End; 2]) {
        if let [
            End::Switch { switch: one, .. },
            End::Switch { switch: other, .. },
        ] = ends
        {
            self.trunks.push((one, other));
        }
        for (end, other, side) in [(ends[0], ends[1], Side::A), (ends[1], ends[0], Side::B)] {
            match end {
                End::Switch { switch, port } => {
                    self.cables.insert((switch, port), (cable, side));
                }
                End::Card(card) => {
                    if let End::Switch { switch, .. } = other {
                        let rate = self.switches[switch].config().rate_bps;
                        let egress = Egress::new(rate);
                        let port = CardPort {
                            egress,
                            cable,
                            side,
                        };
                        self.cards.insert(card, port);
                    }
                }
                End::Subnet { .. } | End::Outside => {}
            }
        }
    }

    /// Returns the rate of a card's port in bits per second, if the card is on a switch.
    pub(crate) fn rate_bps(&self, card: usize) -> Option<u64> {
        self.cards.get(&card).map(|port| port.egress.rate_bps())
    }

    /// Returns whether queue pairs of a card have to wait. If `priority` is `None`, the bytes of all priorities count.
    pub(crate) fn is_full(&self, card: usize, priority: Option<usize>) -> bool {
        self.cards.get(&card).is_some_and(|port| match priority {
            Some(priority) => port.egress.depth(priority) >= PORT_BYTES,
            None => port.egress.total_depth() >= PORT_BYTES,
        })
    }

    /// Queues a frame that a card sends.
    pub(crate) fn enqueue(
        &mut self,
        now: u64,
        card: usize,
        uplink: &Card,
        mut frame: Vec<u8>,
        sent: &mut Vec<Sent>,
    ) {
        let Some(port) = self.cards.get_mut(&card) else {
            return;
        };
        let qos = &uplink.uplink.qos;
        let priority = match roce_v2(&frame) {
            Some(true) => usize::from(qos.cnp.1 & 7),
            is_roce => {
                let priority = qos.classes().of(&frame);
                if is_roce.is_some() && qos.congestion.0 >> priority & 1 == 1 {
                    make_capable(&mut frame);
                }
                priority
            }
        };
        port.egress.set_classes(&qos.traffic);
        port.egress.push(priority, frame, None);
        port.go_on(now, sent);
    }

    /// Handles a frame that has reached a switch.
    pub(crate) fn reach(
        &mut self,
        now: u64,
        switch: usize,
        port: usize,
        frame: Vec<u8>,
        sent: &mut Vec<Sent>,
    ) {
        if let Some(switch) = self.switches.get_mut(switch) {
            switch.receive(now, port, frame);
        }
        self.collect(switch, sent);
    }

    /// Handles a frame that has reached a card. Returns whether it was a control frame, which functions do not receive.
    pub(crate) fn control(
        &mut self,
        now: u64,
        at: usize,
        card: &mut Card,
        frame: &[u8],
        sent: &mut Vec<Sent>,
    ) -> bool {
        if !pfc::is_control(frame) {
            return false;
        }
        let (Some(port), Some(pauses)) = (self.cards.get_mut(&at), pfc::parse(frame)) else {
            return true;
        };
        let uplink = &mut card.uplink;
        for (priority, quanta) in pauses.iter().enumerate() {
            let Some(quanta) = *quanta else { continue };
            let counters: &mut PauseCounters = &mut uplink.pauses[priority];
            counters.received += 1;
            if uplink.qos.paused_priorities.1 >> priority & 1 == 0 {
                continue;
            }
            let was_paused = port.egress.is_paused(now, priority);
            let until = now.saturating_add(pfc::pause_ns(quanta, port.egress.rate_bps()));
            let longer = port.egress.pause(now, priority, until);
            counters.silent_ns = counters.silent_ns.saturating_add_signed(longer);
            counters.transitions += u64::from(was_paused != port.egress.is_paused(now, priority));
        }
        port.go_on(now, sent);
        true
    }

    /// Returns the virtual time of the next event in ns.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let cards = self
            .cards
            .values()
            .filter_map(|port| port.egress.next_due());
        let switches = self.switches.iter().filter_map(Switch::next_due);
        cards.chain(switches).min()
    }

    /// Processes everything that is due at `now`.
    pub(crate) fn run(&mut self, now: u64, sent: &mut Vec<Sent>) {
        for port in self.cards.values_mut() {
            port.go_on(now, sent);
        }
        for switch in 0..self.switches.len() {
            self.switches[switch].run(now);
            self.collect(switch, sent);
        }
    }

    /// Puts departing frames of a switch onto its cables. A frame that departs from a port without a cable is lost.
    fn collect(&mut self, switch: usize, sent: &mut Vec<Sent>) {
        while let Some(departure) = self
            .switches
            .get_mut(switch)
            .and_then(Switch::take_departure)
        {
            if let Some(&(cable, side)) = self.cables.get(&(switch, departure.port)) {
                sent.push((cable, side, departure.out, departure.frame));
            }
        }
    }
}

impl CardPort {
    fn go_on(&mut self, now: u64, sent: &mut Vec<Sent>) {
        // A card's own frames have no buffer credit to return.
        let _ = self.egress.finish(now);
        if let Some(begun) = self.egress.begin(now) {
            sent.push((self.cable, self.side, begun.out, begun.frame));
        }
    }
}

/// Returns the source address of the frames that a switch itself sends. The address is locally administered and
/// contains the switch's index in the simulation.
pub(crate) fn switch_mac(number: usize) -> [u8; 6] {
    let [.., high, low] = number.to_be_bytes();
    [0x02, 0x00, 0x5e, 0x5c, high, low]
}

const _: () = assert!(PRIORITIES == 8, "a byte has a bit for each");
