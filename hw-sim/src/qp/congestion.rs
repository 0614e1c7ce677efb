//! A queue pair's part in congestion control: as a receiver it notifies the sender of marks, as a sender it slows
//! down.
//!
//! Only connected queue pairs take part: each datagram has a destination of its own, so there is no peer to notify.
//! Only the requester is slowed down; answers to reads, and acknowledgements, are not.

use std::time::Duration;

use super::Qp;
use crate::dcqcn::{Reaction, ReactionPoint};
use crate::host::Host;
use crate::time::nanoseconds;
use crate::wire::{Network, Vlan, emit_cnp, ethernet};

/// Parameters of a receiver's notifications.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// Code point and priority of the packet.
    pub dscp: u8,
    pub priority: u8,
    /// Smallest time between two notifications.
    pub interval: Duration,
}

/// Congestion state of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Its own rate, after a first notification.
    reaction: Option<Box<ReactionPoint>>,
    /// Time until which its next packet waits, in ns.
    held_until: Option<u64>,
    /// Time at which it may notify its peer again, in ns.
    tell_again: u64,
}

impl Congestion {
    pub(super) const fn held_until(&self) -> Option<u64> {
        self.held_until
    }

    /// Ends a hold whose time has passed.
    pub(super) fn release(&mut self, now: u64) {
        self.held_until = self.held_until.filter(|&until| until > now);
    }

    /// Counts bytes that the requester has sent.
    pub(super) fn sent(&mut self, now: u64, bytes: u64) {
        if let Some(reaction) = &mut self.reaction
            && bytes > 0
        {
            let free = reaction.sent(now, bytes);
            self.held_until = Some(free).filter(|&free| free > now);
        }
    }
}

impl Qp {
    /// Returns the tag's priority and the traffic class of its packets, if all have the same.
    pub(crate) fn marking(&self) -> Option<(u8, u8)> {
        self.core.path.as_ref().map(super::path::Path::marking)
    }

    /// Slows down: the peer has notified us of marks.
    pub(crate) fn slow_down(&mut self, rules: Reaction, line_bps: u64, host: &mut dyn Host) {
        let now = host.now();
        let point = self
            .congestion
            .reaction
            .get_or_insert_with(|| Box::new(ReactionPoint::new(rules, line_bps, now)));
        point.follow(rules);
        point.notified(now);
    }

    /// Returns its rate in bits per second, after a first notification.
    pub(crate) fn rate_bps(&self) -> Option<f64> {
        self.congestion
            .reaction
            .as_ref()
            .map(|point| point.rate_bps())
    }

    /// Notifies the sender of a marked packet, unless it was notified just now. Returns whether it was notified.
    pub(crate) fn notify_sender(&mut self, notice: Notice, host: &mut dyn Host) -> bool {
        let now = host.now();
        if now < self.congestion.tell_again {
            return false;
        }
        let headers = self.core.path.as_ref().and_then(|path| path.headers(host));
        let Some((link, mut network)) = headers else {
            return false;
        };
        let Some(mut eth) = ethernet(&link).copied() else {
            return false;
        };
        let class = notice.dscp << 2 | CAPABLE;
        match &mut network {
            Network::Ipv4(ip, _) => ip.tos = class,
            Network::Ipv6(ip, _) => ip.traffic_class = class,
            // RoCE v1 has no notification packet.
            Network::Grh(_) | Network::Local => return false,
        }
        eth.vlan = eth.vlan.map(|Vlan { id, .. }| Vlan {
            id,
            priority: notice.priority,
        });
        self.congestion.tell_again = now.saturating_add(nanoseconds(notice.interval));
        host.transmit(emit_cnp(&eth, &network, self.core.context.remote_qpn()));
        true
    }
}

/// ECT(0), as in notifications sent by a ConnectX-4 Lx (Scapy `test/contrib/roce.uts`).
const CAPABLE: u8 = 0b10;
