//! The physical port: cable, administrative state, training, MTU.
//!
//! ```text
//!   light and PAOS up ---- link training ----> up
//!   either gone       ------------------------> down, at once
//! ```
//!
//! A card that is powered on with a cable in it has trained long ago: the wire stays lit while no driver is there
//! (firmware option KEEP_ETH_LINK_UP, on by default). The administrative state (register PAOS) is up until the
//! physical function's driver says otherwise, and stays over its resets.

use super::vport::LinkState;
use super::{CongestionCounters, PauseCounters, PortQos};
use crate::port::{ETHERNET_OVERHEAD, FCS_BYTES};
use crate::profile::Profile;

/// The port's MTU after a reset, in bytes, header, tag and check sequence included.
const USUAL_MTU: u16 = 1500 + ETHERNET_OVERHEAD;

/// Rate that register PTYS reports: 100 Gb/s.
const USUAL_RATE: u64 = 100_000_000_000;

/// Administrative state (register PAOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// Up, and up again after a fault.
    Up,
    /// Down.
    Down,
}

/// Progress of link training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Training {
    /// No light, or administratively down.
    Idle,
    /// Training until this virtual time, in ns.
    Until(u64),
    /// Trained: the link is up.
    Done,
}

/// The physical port of a card.
#[derive(Clone, Debug)]
pub struct Uplink {
    /// Administrative state that the physical function's driver set by register.
    pub admin: AdminState,
    /// State it set for the switch's side of the wire (MODIFY_VPORT_STATE, op_mod 2).
    pub switch_state: LinkState,
    /// True if there is light on the fibre.
    pub light: bool,
    /// Longest frame that may pass, in bytes, Ethernet header, VLAN tag and check sequence included.
    pub mtu: u16,
    /// Settings for priorities and congestion.
    pub qos: PortQos,
    /// Those settings as the host made them; a reset of the driver returns to them.
    qos_of_host: PortQos,
    /// Pauses requested by the peer, by priority.
    pub pauses: [PauseCounters; 8],
    /// Congestion counters.
    pub congestion: CongestionCounters,
    /// Rate on a switch, in bits per second.
    pub rate_bps: u64,
    training: Training,
}

impl Uplink {
    /// Returns the port at power-on.
    pub fn new(physical: &Profile) -> Self {
        let light = physical.carrier_without_link;
        Self {
            admin: AdminState::Up,
            switch_state: LinkState::Follow,
            light,
            mtu: USUAL_MTU,
            qos: PortQos::default(),
            qos_of_host: PortQos::default(),
            pauses: [PauseCounters::default(); 8],
            congestion: CongestionCounters::default(),
            rate_bps: USUAL_RATE,
            training: if light {
                Training::Done
            } else {
                Training::Idle
            },
        }
    }

    /// Sets the host's settings for priorities and congestion.
    pub fn set_qos(&mut self, qos: PortQos) {
        self.qos_of_host = qos.clone();
        self.qos = qos;
    }

    /// Resets the port with the physical function: its driver's MTU and congestion parameters are gone, the
    /// administrative state stays.
    pub fn reset(&mut self) {
        self.mtu = USUAL_MTU;
        self.qos = self.qos_of_host.clone();
        self.switch_state = LinkState::Follow;
    }

    /// Returns whether frames pass.
    pub fn is_up(&self) -> bool {
        self.training == Training::Done && self.switch_state != LinkState::Down
    }

    /// True if the link is on its way up.
    pub fn is_training(&self) -> bool {
        matches!(self.training, Training::Until(_))
    }

    /// Returns the longest frame that passes, in bytes without a check sequence, which frames here do not have.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_BYTES))
    }

    /// Begins or ends training. Returns the time at which training that began now will end.
    pub fn settle(&mut self, now: u64, training: u64) -> Option<u64> {
        let wanted = self.light && self.admin == AdminState::Up;
        self.training = match self.training {
            _ if !wanted => Training::Idle,
            Training::Idle if training > 0 => {
                let due = now.saturating_add(training);
                self.training = Training::Until(due);
                return Some(due);
            }
            Training::Until(due) if due > now => Training::Until(due),
            Training::Idle | Training::Until(_) | Training::Done => Training::Done,
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: u64 = 2_000_000_000;

    #[test]
    fn a_port_is_up_when_light_and_administrative_state_are() {
        let mut uplink = Uplink::new(&Profile::default());
        assert!(uplink.is_up());
        uplink.admin = AdminState::Down;
        uplink.settle(0, 0);
        assert!(!uplink.is_up());
        uplink.admin = AdminState::Up;
        uplink.light = false;
        uplink.settle(0, 0);
        assert!(!uplink.is_up());
        uplink.light = true;
        uplink.settle(0, 0);
        uplink.switch_state = LinkState::Down;
        assert!(!uplink.is_up());
    }

    #[test]
    fn a_link_trains_before_it_is_up_and_goes_down_at_once() {
        let mut uplink = Uplink::new(&Profile::default());
        uplink.admin = AdminState::Down;
        assert_eq!(uplink.settle(5, TRAINING), None);
        assert!(!uplink.is_up());
        uplink.admin = AdminState::Up;
        assert_eq!(uplink.settle(5, TRAINING), Some(5 + TRAINING));
        assert_eq!(uplink.settle(6, TRAINING), None, "it is on its way");
        assert!(!uplink.is_up());
        uplink.settle(5 + TRAINING, TRAINING);
        assert!(uplink.is_up());
    }
}
