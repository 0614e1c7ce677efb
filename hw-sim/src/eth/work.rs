//! Execution of queues: their methods run with the function as their host, and send queues run alternately.

use super::rq::Rq;
use super::sq::Sq;
use super::transmit::{Inline, Rules, Sent};
use crate::env::Env;
use crate::nic::Nic;
use crate::view::View;

/// Maximum number of WQEs that a queue executes before another queue runs.
const BURST: usize = 16;
/// Number of frames after which another queue runs, because one WQE may be thousands of frames.
const BURST_FRAMES: usize = 64;
/// `wqe_inline_mode` in which Ethernet headers are always inline.
const INLINE_L2: u32 = 0;

impl Nic {
    /// Runs a receive queue's method with the function as its host.
    pub fn with_rq<R>(
        &mut self,
        env: &mut Env,
        rqn: u32,
        call: impl FnOnce(&mut Rq, &mut View<'_>) -> R,
    ) -> Option<R> {
        let mut rq = self.objects.eth.rqs.get_mut(rqn)?.rq.take()?;
        let result = call(
            &mut rq,
            &mut View {
                nic: self,
                env,
                qpn: rqn,
            },
        );
        if let Some(slot) = self.objects.eth.rqs.get_mut(rqn) {
            slot.rq = Some(rq);
        }
        self.fail_attached(env);
        Some(result)
    }
}

impl Nic {
    /// Runs a send queue's method with the function as its host.
    pub fn with_sq<R>(
        &mut self,
        env: &mut Env,
        sqn: u32,
        call: impl FnOnce(&mut Sq, &mut View<'_>) -> R,
    ) -> Option<R> {
        let mut sq = self.objects.eth.sqs.get_mut(sqn)?.sq.take()?;
        let result = call(
            &mut sq,
            &mut View {
                nic: self,
                env,
                qpn: sqn,
            },
        );
        if let Some(slot) = self.objects.eth.sqs.get_mut(sqn) {
            if sq.pending() && !slot.queued {
                slot.queued = true;
                env.runnable.push_back((self.index, sqn));
            }
            slot.sq = Some(sq);
        }
        self.fail_attached(env);
        Some(result)
    }

    /// Runs a send queue for one burst.
    pub fn run_sq(&mut self, env: &mut Env, sqn: u32) {
        if let Some(slot) = self.objects.eth.sqs.get_mut(sqn) {
            slot.queued = false;
        }
        let rules = self.send_rules(env);
        let bursts = self.with_sq(env, sqn, |sq, view| {
            let (mut bursts, mut frames) = (Vec::new(), 0);
            while bursts.len() < BURST && frames < BURST_FRAMES && sq.pending() {
                let sent = sq.run(&rules, view);
                frames += sent.frames.len();
                bursts.push(sent);
            }
            bursts
        });
        for Sent { frames, oversize } in bursts.into_iter().flatten() {
            for _ in 0..oversize {
                self.count_drop(env, "larger than the MTU");
            }
            for frame in frames {
                self.frame_sent(env, sqn, frame);
            }
        }
    }

    fn send_rules(&self, env: &Env) -> Rules {
        let caps = &self.caps.eth_offloads;
        Rules {
            longest: env.card(self.seat).uplink.longest_frame(),
            insert_tag: caps.wqe_vlan_insert(),
            inline: if caps.wqe_inline_mode() == INLINE_L2 {
                Inline::Ethernet
            } else {
                Inline::None
            },
            large: match caps.max_lso_cap() {
                0 => 0,
                log => 1 << log,
            },
        }
    }
}
