//! What a function does about congestion: as a receiver of marked packets it tells their senders, and as a sender it
//! has the queue pair that was told of them slow down ([`crate::dcqcn`]).
//!
//! Both happen in the priorities that the port names for each (QUERY_CONG_STATUS), and are counted by the port
//! (QUERY_CONG_STATISTICS). A card on a bare wire never meets a mark; packets and notifications that come from outside
//! of this world are treated alike.

use crate::env::Env;
use crate::nic::Nic;
use crate::qp::{Notice, Qp};
use crate::switch::Classes;
use crate::wire::parse_cnp;

impl Nic {
    /// The priority of what a queue pair sends, if all of it has the same.
    pub(crate) fn priority_of(&self, qpn: u32, classes: impl FnOnce() -> Classes) -> Option<usize> {
        let qp = self.objects.qps.get(qpn)?.qp.as_ref()?;
        let (tag, class) = qp.marking()?;
        Some(classes().of_headers(Some(tag), Some(class)))
    }

    /// A marked packet was taken in by one of our queue pairs.
    pub(crate) fn congestion_met(&mut self, env: &mut Env, qpn: u32) {
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
            && self.with_qp(env, qpn, |qp, view| qp.tell(notice, view)) == Some(true)
        {
            env.note(self.index, format_args!("cnp sent for qp={qpn:#x}"));
            env.card_mut(seat).uplink.congestion.cnps_sent += 1;
        }
    }

    /// A frame with the opcode of a notification has come: whether it was one.
    pub(crate) fn congestion_told(&mut self, env: &mut Env, frame: &[u8]) -> bool {
        let Ok(qpn) = parse_cnp(frame) else {
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

    /// The rate of a queue pair that was told to slow down, bits each second.
    pub(crate) fn rate_of(&self, qpn: u32) -> Option<f64> {
        self.objects
            .qps
            .get(qpn)?
            .qp
            .as_deref()
            .and_then(Qp::rate_bps)
    }

    /// Queue pairs that were told to slow down.
    pub(crate) fn slowed_down(&self) -> usize {
        let qps = self.objects.qps.iter();
        qps.filter(|(_, slot)| slot.qp.as_deref().is_some_and(|qp| qp.rate_bps().is_some()))
            .count()
    }
}
