//! A function's part in congestion control: as a receiver of marked packets it notifies their senders, and as a
//! sender it slows down the queue pair that was notified ([`crate::dcqcn`]).
//!
//! The port enables both per priority (QUERY_CONG_STATUS) and counts both (QUERY_CONG_STATISTICS). A card on a bare
//! wire never receives a mark. Packets and notifications from outside of the simulator are handled like those from
//! inside.

use crate::env::Env;
use crate::nic::Nic;
use crate::qp::{Notice, Qp};
use crate::switch::Classes;
use crate::wire::{Qpn, parse_cnp};

impl Nic {
    /// Returns the priority of a queue pair's packets, if all have the same.
    pub(crate) fn priority_of(&self, qpn: u32, classes: impl FnOnce() -> Classes) -> Option<usize> {
        let qp = self.objects.qps.get(qpn)?.qp.as_ref()?;
        let (tag, class) = qp.marking()?;
        Some(classes().of_headers(Some(tag), Some(class)))
    }

    /// Handles a marked packet that was passed to a queue pair: counts it, and notifies its sender if the port does so
    /// for the packet's priority.
    pub(crate) fn marked_packet_received(&mut self, env: &mut Env, qpn: u32) {
        let seat = self.seat;
        let uplink = &mut env.card_mut(seat).uplink;
        uplink.congestion.marked_received += 1;
        let qos = &uplink.qos;
        let notice = Notice {
            dscp: qos.cnp.0,
            priority: qos.cnp.1,
            interval: qos.cnp_interval,
        };
        let (classes, notifies) = (qos.classes(), qos.congestion.1);
        let priority = self.priority_of(qpn, || classes).unwrap_or(0);
        if notifies >> priority & 1 == 1
            && self.with_qp(env, qpn, |qp, view| qp.notify_sender(notice, view)) == Some(true)
        {
            env.note(self.index, format_args!("cnp sent for qp={qpn:#x}"));
            env.card_mut(seat).uplink.congestion.cnps_sent += 1;
        }
    }

    /// Handles a frame that may be a notification: slows down the queue pair, if the port reacts to congestion in its
    /// priority. Returns whether the frame was a notification.
    pub(crate) fn cnp_received(&mut self, env: &mut Env, frame: &[u8]) -> bool {
        let Ok(qpn) = parse_cnp(frame).map(Qpn::get) else {
            return false;
        };
        let uplink = &env.card(self.seat).uplink;
        let (qos, line) = (&uplink.qos, uplink.rate_bps);
        let (rules, reacts) = (qos.reaction, qos.congestion.0);
        let classes = qos.classes();
        let priority = self.priority_of(qpn, || classes);
        let reacts = priority.is_some_and(|priority| reacts >> priority & 1 == 1);
        if reacts {
            self.with_qp(env, qpn, |qp, view| qp.slow_down(rules, line, view));
            let rate = self.rate_of(qpn).unwrap_or(0.0) / 1e6;
            env.note(
                self.index,
                format_args!("cnp for qp={qpn:#x}: {rate:.0} Mb/s"),
            );
        }
        let counters = &mut env.card_mut(self.seat).uplink.congestion;
        if reacts {
            counters.cnps_handled += 1;
        } else {
            counters.cnps_ignored += 1;
        }
        true
    }

    /// Returns the rate of a queue pair in bits per second; `None` if the queue pair was not slowed down.
    pub(crate) fn rate_of(&self, qpn: u32) -> Option<f64> {
        self.objects
            .qps
            .get(qpn)?
            .qp
            .as_deref()
            .and_then(Qp::rate_bps)
    }

    /// Returns the number of queue pairs that were slowed down.
    pub(crate) fn slowed_down(&self) -> usize {
        let qps = self.objects.qps.iter();
        qps.filter(|(_, slot)| slot.qp.as_deref().is_some_and(|qp| qp.rate_bps().is_some()))
            .count()
    }
}
