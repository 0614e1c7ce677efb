//! Send queues: the object and its commands. [`super::transmit`] executes what is posted.

use super::rq::created_in_reset;
use super::transmit::{Inline, Rules, Sent};
use super::{State, must_exist, queue_memory};
use crate::cmd::{Cmd, Refusal, refuse};
use crate::host::{Host, KeyScope};
use crate::nic::Nic;
use crate::qp::ring::Rings;
use crate::qp::send_queue::SendQueue;
use crate::umem::Places;
use crate::view::View;
use crate::world::Env;
use mlx_prm::{CreateSqIn, ModifySqIn, Sqc};

/// log2 of a WQEBB.
const LOG_WQEBB: u32 = 6;
/// User index that means "as CQE version 0".
const NO_USER_INDEX: u32 = 0xff_ffff;
/// WQEs a queue executes before another one has its turn.
const BURST: usize = 16;
/// `wqe_inline_mode`: Ethernet headers are inline always.
const INLINE_L2: u32 = 0;

/// A send queue's place in the table.
pub struct SqSlot {
    /// `None` while one of its methods runs.
    pub sq: Option<Box<Sq>>,
    /// Its completion queue.
    pub cqn: u32,
    /// UAR page whose doorbells it listens to.
    pub uar: u32,
    /// It is in the world's run queue.
    pub queued: bool,
    pd: u32,
    tis: Option<u32>,
    places: Places,
}

/// A send queue.
#[derive(Debug)]
pub struct Sq {
    pub(super) number: u32,
    pub(super) state: State,
    pub(super) context: Sqc,
    pub(super) rings: Rings,
    pub(super) queue: SendQueue,
}

impl Sq {
    pub(super) fn scope(&self) -> KeyScope {
        KeyScope {
            pd: self.context.wq().pd(),
            qpn: self.number,
            remote: false,
            atomic: false,
            rlky: self.context.rlky(),
        }
    }

    pub(super) fn user_index(&self, host: &dyn Host) -> u32 {
        let index = self.context.user_index();
        if host.cqe_version() == 1 && index != NO_USER_INDEX {
            index
        } else {
            0
        }
    }

    /// Its completion queue failed.
    pub fn fail(&mut self) {
        self.state = State::Error;
    }

    fn query(&self) -> Sqc {
        let (fetched, posted) = self.queue.counters();
        let mut context = self.context.clone();
        context.set_state(self.state.code());
        context
            .wq_mut()
            .set_hw_counter(u32::from(fetched))
            .set_sw_counter(u32::from(posted));
        context
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

    /// It is a send queue's turn.
    pub fn run_sq(&mut self, env: &mut Env, sqn: u32) {
        if let Some(slot) = self.objects.eth.sqs.get_mut(sqn) {
            slot.queued = false;
        }
        let rules = self.send_rules(env);
        let bursts = self.with_sq(env, sqn, |sq, view| {
            let mut bursts = Vec::new();
            for _ in 0..BURST {
                if !sq.pending() {
                    break;
                }
                bursts.push(sq.run(&rules, view));
            }
            bursts
        });
        for Sent { frames, oversize } in bursts.into_iter().flatten() {
            for _ in 0..oversize {
                self.count_drop(env, "larger than the MTU");
            }
            for frame in frames {
                self.frame_sent(env, frame);
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

/// CREATE_SQ.
///
/// # Errors
/// What the device does not have, an object that does not exist, a ring that is not all there.
pub fn create(cmd: &mut Cmd<'_>, input: &CreateSqIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    let wq = context.wq();
    if context.hairpin() || context.cd_master() || context.non_wire() || context.reg_umr() {
        return Err(refuse!(BAD_PARAM, "SQ for hairpin, waiting or UMR"));
    }
    if context.allow_multi_pkt_send_wqe() || context.allow_swp() {
        return Err(refuse!(
            BAD_PARAM,
            "SQ with multi-packet WQEs or software parser"
        ));
    }
    if context.ts_cqe_to_dest_cqn() != 0 || context.packet_pacing_rate_limit_index() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "SQ with timestamps elsewhere, or a rate"
        ));
    }
    if Inline::of(context.min_wqe_inline_mode()).is_none() {
        return Err(refuse!(
            BAD_PARAM,
            "inline mode",
            "{}",
            context.min_wqe_inline_mode()
        ));
    }
    created_in_reset(context.state())?;
    let objects = &cmd.nic.objects;
    must_exist(&objects.cqs, context.cqn())?;
    must_exist(&objects.pds, wq.pd())?;
    must_exist(&objects.uars, wq.uar_page())?;
    let tis = match context.tis_lst_sz() {
        0 => None,
        1 => Some(context.tis_num_0()),
        other => return Err(refuse!(BAD_PARAM, "TISes of an SQ", "{other}")),
    };
    if let Some(tis) = tis {
        must_exist(&objects.eth.tises, tis)?;
    }
    let (memory, places) = queue_memory(cmd, wq, [LOG_WQEBB, LOG_WQEBB])?;
    let rings = Rings::of_send_queue(wq, memory);
    let objects = &mut cmd.nic.objects;
    let number = objects.eth.sqs.reserve()?;
    let (cqn, pd, uar) = (context.cqn(), wq.pd(), wq.uar_page());
    objects.cqs.hold(cqn)?;
    objects.pds.hold(pd)?;
    objects.uars.hold(uar)?;
    if let Some(tis) = tis {
        objects.eth.tises.hold(tis)?;
    }
    places.hold(&mut objects.umems)?;
    let sq = Sq {
        number,
        state: State::Reset,
        context: context.clone(),
        rings,
        queue: SendQueue::default(),
    };
    objects.eth.sqs.insert(
        number,
        SqSlot {
            sq: Some(Box::new(sq)),
            cqn,
            uar,
            queued: false,
            pd,
            tis,
            places,
        },
    );
    Ok(number)
}

/// MODIFY_SQ: the state, and nothing else this device has.
///
/// # Errors
/// No such queue, not in the state that software believes, no such transition.
pub fn modify(cmd: &mut Cmd<'_>, input: &ModifySqIn) -> Result<(), Refusal> {
    let (number, wanted) = (input.sqn(), input.ctx());
    let select = input.modify_bitmask();
    if select.packet_pacing_rate_limit_index() && wanted.packet_pacing_rate_limit_index() != 0 {
        return Err(refuse!(BAD_PARAM, "packet pacing is not supported"));
    }
    if select.qos_queue_group_id() && wanted.qos_queue_group_id() != 0 {
        return Err(refuse!(BAD_PARAM, "queue groups are not supported"));
    }
    let sq = find(cmd, number)?;
    let next = sq.state.modified(input.sq_state(), wanted.state())?;
    cmd.nic.with_sq(cmd.env, number, |sq, view| {
        match next {
            State::Ready => {}
            State::Reset => sq.queue = SendQueue::default(),
            State::Error => {
                // What was posted and not looked at is flushed, too; a bad record is found there.
                let _ = sq.queue.read_record(&sq.rings, view);
            }
        }
        sq.state = next;
    });
    Ok(())
}

/// QUERY_SQ: the live context.
///
/// # Errors
/// No such queue.
pub fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Sqc, Refusal> {
    Ok(find(cmd, number)?.query())
}

/// DESTROY_SQ.
///
/// # Errors
/// No such queue.
pub fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let slot = objects.eth.sqs.remove(number)?;
    objects.cqs.release(slot.cqn);
    objects.pds.release(slot.pd);
    objects.uars.release(slot.uar);
    if let Some(tis) = slot.tis {
        objects.eth.tises.release(tis);
    }
    slot.places.release(&mut objects.umems);
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Sq, Refusal> {
    let slot = cmd.nic.objects.eth.sqs.get_mut(number);
    slot.and_then(|slot| slot.sq.as_deref_mut())
        .ok_or_else(|| refuse!(BAD_RESOURCE, "no such SQ", "{number:#x}"))
}
