//! Congestion control of a queue pair. As a receiver it notifies the sender of marked packets; as a sender it reduces
//! its rate.
//!
//! Only connected queue pairs take part. Each datagram has its own destination, so a datagram queue pair has no peer to
//! notify. Only the requester's packets are slowed down; read responses and acknowledgements are not.

use std::time::Duration;

use super::Qp;
use crate::dcqcn::{Reaction, ReactionPoint};
use crate::host::Host;
use crate::time::nanoseconds;
use crate::wire::{Network, Qpn, Vlan, emit_cnp, ethernet};

/// Parameters of the notifications that a receiver sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// DSCP code point and priority of the notification packet.
    pub dscp: u8,
    pub priority: u8,
    /// Minimum time between two notifications.
    pub interval: Duration,
}

/// Congestion state of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Rate limiter of the queue pair. Exists from the first notification that the peer sent.
    reaction: Option<Box<ReactionPoint>>,
    /// Virtual time until which the next packet must wait, in ns.
    held_until: Option<u64>,
    /// Virtual time from which on the queue pair may notify its peer again, in ns.
    next_notice_ns: u64,
}

impl Congestion {
    pub(super) const fn held_until(&self) -> Option<u64> {
        self.held_until
    }

    /// Ends the wait if its time has passed.
    pub(super) fn release(&mut self, now: u64) {
        self.held_until = self.held_until.filter(|&until| until > now);
    }

    /// Charges bytes that the requester has sent to the rate limiter.
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
    /// Returns the VLAN priority and the traffic class of the packets of a connected queue pair. Datagrams have no
    /// common values, so a datagram queue pair returns `None`.
    pub(crate) fn marking(&self) -> Option<(u8, u8)> {
        self.core.path.as_ref().map(super::path::Path::marking)
    }

    /// Reduces the rate, because the peer has notified this queue pair of marked packets.
    pub(crate) fn slow_down(&mut self, rules: Reaction, line_bps: u64, host: &mut dyn Host) {
        let now = host.now();
        let point = self
            .congestion
            .reaction
            .get_or_insert_with(|| Box::new(ReactionPoint::new(rules, line_bps, now)));
        point.follow(rules);
        point.notified(now);
    }

    /// Returns the queue pair's rate in bits per second, or `None` before the first notification.
    pub(crate) fn rate_bps(&self) -> Option<f64> {
        self.congestion
            .reaction
            .as_ref()
            .map(|point| point.rate_bps())
    }

    /// Notifies the sender of a marked packet, if the minimum interval since the last notification has passed. Returns
    /// whether a notification was sent.
    pub(crate) fn notify_sender(&mut self, notice: Notice, host: &mut dyn Host) -> bool {
        let now = host.now();
        if now < self.congestion.next_notice_ns {
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
            // RoCE v1 defines no notification packet.
            Network::Grh(_) | Network::Local => return false,
        }
        eth.vlan = eth.vlan.map(|Vlan { id, .. }| Vlan {
            id,
            priority: notice.priority,
        });
        self.congestion.next_notice_ns = now.saturating_add(nanoseconds(notice.interval));
        host.transmit(emit_cnp(
            &eth,
            &network,
            Qpn::new(self.core.context.remote_qpn()),
        ));
        true
    }
}

/// ECN bits ECT(0), which a ConnectX-4 Lx sets in its notifications (Scapy `test/contrib/roce.uts`).
const CAPABLE: u8 = 0b10;
