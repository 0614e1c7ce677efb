//! What a queue pair does about congestion: as a receiver it tells the sender of marks, as a sender it slows down.
//!
//! Only connected queue pairs do: a datagram has a destination of its own, and nobody to be told. What is slowed down
//! is the requester; answers to reads, and acknowledgements, leave as they come.

use std::time::Duration;

use super::Qp;
use crate::dcqcn::{Reaction, ReactionPoint};
use crate::host::Host;
use crate::time::nanoseconds;
use crate::wire::{Network, Vlan, emit_cnp, ethernet};

/// How a receiver tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// Code point and priority of the packet.
    pub dscp: u8,
    pub priority: u8,
    /// At least so long after the last one.
    pub interval: Duration,
}

/// What a queue pair knows of congestion.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Its own rate, once it was told.
    reaction: Option<Box<ReactionPoint>>,
    /// Its next packet waits until then.
    held_until: Option<u64>,
    /// When it may tell its peer again.
    tell_again: u64,
}

impl Congestion {
    pub(super) const fn held_until(&self) -> Option<u64> {
        self.held_until
    }

    /// Time went on.
    pub(super) fn release(&mut self, now: u64) {
        self.held_until = self.held_until.filter(|&until| until > now);
    }

    /// The requester has sent so much.
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
    /// The tag's priority and the traffic class of its packets, if they are all of one.
    pub(crate) fn marking(&self) -> Option<(u8, u8)> {
        self.core.path.as_ref().map(super::path::Path::marking)
    }

    /// The peer has met marks: the next packets leave more slowly.
    pub(crate) fn slow_down(&mut self, rules: Reaction, line_bps: u64, host: &mut dyn Host) {
        let now = host.now();
        let point = self
            .congestion
            .reaction
            .get_or_insert_with(|| Box::new(ReactionPoint::new(rules, line_bps, now)));
        point.follow(rules);
        point.notified(now);
    }

    /// The rate that it sends at, bits each second, once it was told to slow down.
    pub(crate) fn rate_bps(&self) -> Option<f64> {
        self.congestion
            .reaction
            .as_ref()
            .map(|point| point.rate_bps())
    }

    /// A marked packet has come: tells the sender, unless it was told just now. Whether it was told.
    pub(crate) fn tell(&mut self, notice: Notice, host: &mut dyn Host) -> bool {
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
            // RoCE v1 has no such packet.
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

/// ECT(0), as a ConnectX-4 Lx has it in the notifications that it sends (Scapy `test/contrib/roce.uts`).
const CAPABLE: u8 = 0b10;
