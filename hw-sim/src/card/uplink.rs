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

/// Bytes the port's MTU is after a reset, header, tag and check sequence included.
const USUAL_MTU: u16 = 1500 + ETHERNET_OVERHEAD;

/// What register PTYS says: 100 Gb/s.
const USUAL_RATE: u64 = 100_000_000_000;

/// Administrative state (register PAOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// Up, and up again after a fault.
    Up,
    /// Down.
    Down,
}

/// Where the link is on its way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Training {
    /// There is nothing to train.
    Idle,
    /// It will be up at this time.
    Until(u64),
    /// It is up.
    Done,
}

/// The physical port of a card.
#[derive(Clone, Debug)]
pub struct Uplink {
    /// What the physical function's driver asked for by register.
    pub admin: AdminState,
    /// What it asked for the switch's side of the wire (MODIFY_VPORT_STATE, op_mod 2).
    pub switch_state: LinkState,
    /// Whether there is light on the fibre.
    pub light: bool,
    /// Frames that may pass, bytes, Ethernet header, VLAN tag and check sequence included.
    pub mtu: u16,
    /// What it does with priorities and about congestion.
    pub qos: PortQos,
    /// What the host has said of that: a driver's changes are gone with its reset.
    qos_of_host: PortQos,
    /// Pauses it was asked for, by priority.
    pub pauses: [PauseCounters; 8],
    /// What it met of congestion.
    pub congestion: CongestionCounters,
    /// Its rate on a switch, bits each second.
    pub rate_bps: u64,
    training: Training,
}

impl Uplink {
    /// The port at power-on.
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

    /// The host says what it does with priorities and about congestion.
    pub fn set_qos(&mut self, qos: PortQos) {
        self.qos_of_host = qos.clone();
        self.qos = qos;
    }

    /// The physical function was reset: its driver's MTU and parameters of congestion are gone, the administrative
    /// state stays.
    pub fn reset(&mut self) {
        self.mtu = USUAL_MTU;
        self.qos = self.qos_of_host.clone();
        self.switch_state = LinkState::Follow;
    }

    /// Whether frames pass.
    pub fn is_up(&self) -> bool {
        self.training == Training::Done && self.switch_state != LinkState::Down
    }

    /// Whether the link is on its way up.
    pub fn is_training(&self) -> bool {
        matches!(self.training, Training::Until(_))
    }

    /// Longest frame that passes, in bytes without a check sequence, which no frame here has.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_BYTES))
    }

    /// Lets training begin or end; when it will be over, if it began now.
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
    fn a_port_is_up_when_everybody_agrees() {
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
    fn a_link_that_comes_back_trains_and_one_that_goes_is_gone_at_once() {
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
