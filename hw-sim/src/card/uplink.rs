//! The physical port: cable, administrative state, training, MTU.
//!
//! ```text
//!   light and PAOS up ---- link training ----> up
//!   either gone       ------------------------> down, at once
//! ```
//!
//! A card that is powered on with a cable plugged in is already trained when the simulation starts, because the link
//! stays up while no driver is loaded (firmware option KEEP_ETH_LINK_UP, on by default). The administrative state
//! (register PAOS) is up until the physical function's driver changes it, and survives resets of the function.

use super::vport::LinkState;
use super::{CongestionCounters, PauseCounters, PortQos};
use crate::port::{ETHERNET_OVERHEAD, FCS_BYTES};
use crate::profile::Profile;

/// MTU of the port after a reset, in bytes, including header, tag and check sequence.
const USUAL_MTU: u16 = 1500 + ETHERNET_OVERHEAD;

/// Rate of a port that is not on a switch, in bits per second: the 100 Gb/s that register PTYS reports.
const USUAL_RATE: u64 = 100_000_000_000;

/// Administrative state (register PAOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// Up. The port also comes up again after a fault.
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
    /// State that the driver set for the switch's connection to the wire (MODIFY_VPORT_STATE, op_mod 2).
    pub switch_state: LinkState,
    /// True if the port has a carrier: it receives light from a peer. A profile may give the port a carrier without a
    /// cable.
    pub light: bool,
    /// Longest frame that may pass, in bytes, including Ethernet header, VLAN tag and check sequence.
    pub mtu: u16,
    /// Settings for priorities and congestion.
    pub qos: PortQos,
    /// Settings that the host made. A reset of the physical function restores them.
    qos_of_host: PortQos,
    /// Pauses requested by the peer, by priority.
    pub pauses: [PauseCounters; 8],
    /// Congestion counters.
    pub congestion: CongestionCounters,
    /// Rate of the port in bits per second: that of the switch it is on, or 100 Gb/s without a switch.
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

    /// Resets the port when the physical function is reset. Restores the default MTU, the host's settings for
    /// priorities and congestion, and the default state of the switch's connection to the wire. Keeps the
    /// administrative state `admin`.
    pub fn reset(&mut self) {
        self.mtu = USUAL_MTU;
        self.qos = self.qos_of_host.clone();
        self.switch_state = LinkState::Follow;
    }

    /// Returns whether frames pass.
    pub fn is_up(&self) -> bool {
        self.training == Training::Done && self.switch_state != LinkState::Down
    }

    /// Returns whether the link is training.
    pub fn is_training(&self) -> bool {
        matches!(self.training, Training::Until(_))
    }

    /// Returns the longest frame that passes, in bytes, without the check sequence, because simulated frames have none.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_BYTES))
    }

    /// Starts or ends training. If training starts now, returns the time in ns at which it will end.
    pub fn update_training(&mut self, now: u64, training: u64) -> Option<u64> {
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
        uplink.update_training(0, 0);
        assert!(!uplink.is_up());
        uplink.admin = AdminState::Up;
        uplink.light = false;
        uplink.update_training(0, 0);
        assert!(!uplink.is_up());
        uplink.light = true;
        uplink.update_training(0, 0);
        uplink.switch_state = LinkState::Down;
        assert!(!uplink.is_up());
    }

    #[test]
    fn a_link_trains_before_it_is_up_and_goes_down_at_once() {
        let mut uplink = Uplink::new(&Profile::default());
        uplink.admin = AdminState::Down;
        assert_eq!(uplink.update_training(5, TRAINING), None);
        assert!(!uplink.is_up());
        uplink.admin = AdminState::Up;
        assert_eq!(uplink.update_training(5, TRAINING), Some(5 + TRAINING));
        assert_eq!(
            uplink.update_training(6, TRAINING),
            None,
            "it is on its way"
        );
        assert!(!uplink.is_up());
        uplink.update_training(5 + TRAINING, TRAINING);
        assert!(uplink.is_up());
    }
}
