//! A card with a physical function and two virtual functions, and a second card at the far end of its wire. Each
//! function is a [`Side`] with Ethernet queues; the rig adds the card, the wire and the counts of received frames.

use crate::bench::{Bench, modest};
use crate::eth_support::{BUFFER, SendOptions, Side};
use hw_sim::{CardConfig, CardRules, LinkFaults, Profile, Sim, SimCard, SimConfig, VfSettings};
use mlx_prm::*;

/// Address of the physical function.
pub const PF_MAC: [u8; 6] = [2, 0, 0, 0, 1, 0];
/// Addresses that the drivers of the virtual functions use.
pub const VF_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
/// Address of the function at the other end of the wire.
pub const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0];
/// Address that no function has.
pub const UNKNOWN_MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];
pub const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// A card with all functions up, each steering every frame to a receive queue. Only the far end has announced its
/// address.
pub struct Rig {
    pub sim: Sim,
    pub card: SimCard,
    pub pf: Side,
    pub vfs: [Side; 2],
    pub far: Side,
}

pub fn profile(name: &str, mac: [u8; 6]) -> Profile {
    modest().ethernet().called(name, mac)
}

pub fn card(sim: &Sim, rules: CardRules) -> SimCard {
    let mut physical = profile("card", PF_MAC);
    physical.general.set(|caps| {
        caps.set_uplink_follow(true)
            .set_receive_discard_vport_down(true)
            .set_transmit_discard_vport_down(true);
    });
    sim.add_card(&CardConfig::new(physical, 2).with_rules(rules))
}

impl Rig {
    pub fn new() -> Self {
        Self::with(CardRules::default())
    }

    pub fn with(rules: CardRules) -> Self {
        let sim = Sim::new(SimConfig::seeded(1));
        let card = card(&sim, rules);
        let far = Side::new(&sim, profile("far", FAR_MAC));
        sim.connect(&card.physical(), &far.bench.function, LinkFaults::NONE);
        let pf = Side::on(Bench::of(&sim, card.physical()));
        let vfs = [0, 1].map(|index| {
            let function = card.virtual_function(index).expect("two of them");
            Side::on(Bench::of(&sim, function))
        });
        let mut rig = Self {
            sim,
            card,
            pf,
            vfs,
            far,
        };
        for side in rig.sides() {
            side.steer_everything();
            side.post_receives(16);
        }
        rig
    }

    /// Creates a rig in which every function has announced its address.
    pub fn announced() -> Self {
        let mut rig = Self::new();
        rig.pf.bench.announce(PF_MAC);
        for (vf, mac) in rig.vfs.iter_mut().zip(VF_MACS) {
            vf.bench.announce(mac);
        }
        rig
    }

    pub fn sides(&mut self) -> [&mut Side; 4] {
        let [vf0, vf1] = &mut self.vfs;
        [&mut self.pf, vf0, vf1, &mut self.far]
    }

    pub fn set_vf(&self, index: usize, settings: VfSettings) {
        assert!(self.card.set_vf(index, settings));
    }

    /// Returns the number of frames received since the last call by the physical function, VF 0, VF 1 and the far end.
    pub fn received(&mut self) -> [usize; 4] {
        self.sides().map(|side| {
            let frames = std::iter::from_fn(|| side.received()).count();
            side.post_receives(frames);
            frames
        })
    }
}

/// Returns a frame from one address to another.
pub fn frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    frame_of(from, to, 64)
}

pub fn frame_of(from: [u8; 6], to: [u8; 6], payload: usize) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(from);
    frame.extend([0x88, 0xb5]);
    frame.resize(14 + payload, 0x5a);
    frame
}

/// Returns a frame from one address to another with a VLAN tag.
pub fn tagged(from: [u8; 6], to: [u8; 6], vlan: u16, priority: u16) -> Vec<u8> {
    let mut frame = frame(from, to);
    let [a, b] = (priority << 13 | vlan).to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, a, b]);
    frame
}

pub fn send(side: &mut Side, frame: &[u8]) {
    assert!(frame.len() < BUFFER);
    side.send(frame, SendOptions::default());
    while side.sent().is_some() {}
}

/// Sets promiscuity for unicast, for multicast and for all frames.
pub fn set_promiscuity(side: &mut Side, [unicast, multicast, all]: [bool; 3]) {
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_promisc(true);
    modify
        .nic_vport_context_mut()
        .set_promisc_uc(unicast)
        .set_promisc_mc(multicast)
        .set_promisc_all(all);
    side.bench.exec(&modify).unwrap();
}

pub fn link_is_up(side: &mut Side) -> bool {
    side.bench.exec(&QueryVportStateIn::new()).unwrap().state() == 1
}

/// Returns the port events since the last call.
pub fn port_events(side: &mut Side) -> Vec<PortChange> {
    let events = side.bench.take_events(&mut side.resources.eq).into_iter();
    events
        .filter(|eqe| eqe.event_type() == EventType::PORT_CHANGE.0)
        .map(|eqe| PortChange(eqe.event_sub_type()))
        .collect()
}
