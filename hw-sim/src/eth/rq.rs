//! Receive queues: a ring of WQEs that frames are scattered into.

use super::rss::Hash;
use super::{State, must_exist, queue_memory};
use crate::cmd::{Cmd, Refusal, refuse};
use crate::host::{Host, KeyScope};
use crate::nic::Nic;
use crate::qp::receive_queue::{ReceiveQueue, ScatterError, TakeError};
use crate::qp::ring::{Ring, Rings};
use crate::umem::Places;
use crate::view::View;
use crate::world::Env;
use mlx_prm::{Cqe64, CqeOpcode, CreateRqIn, ErrCqe, ModifyRqBitmask, ModifyRqIn, Rqc, Syndrome};

/// log2 of the bytes of the shortest WQE: one data segment.
const LOG_MIN_STRIDE: u32 = 4;
/// `mem_rq_type` of a queue with WQEs of its own.
const OWN_QUEUE: u32 = 0;
/// User index that means "as CQE version 0".
const NO_USER_INDEX: u32 = 0xff_ffff;

/// A receive queue's place in the table.
pub struct RqSlot {
    /// `None` while one of its methods runs.
    pub rq: Option<Box<Rq>>,
    /// Its completion queue.
    pub cqn: u32,
    /// Its protection domain; none where no memory is ever touched.
    pub pd: Option<u32>,
    /// User memory it lies in.
    pub places: Places,
}

/// A receive queue.
#[derive(Debug)]
pub struct Rq {
    number: u32,
    state: State,
    context: Rqc,
    rings: Rings,
    queue: ReceiveQueue,
}

/// What a CQE says of a frame besides its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The hash.
    pub hash: Hash,
    /// One's complement sum.
    pub check_sum: u16,
    /// `hds_ip_ext`.
    pub ok: u8,
    /// `l4_l3_hdr_type`, without the VLAN bit.
    pub header_types: u8,
    /// A VLAN tag that may be stripped.
    pub vlan: Option<u16>,
    /// Of the flow table entry.
    pub flow_tag: u32,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is in memory.
    Whole,
    /// There was no WQE.
    Starved,
    /// The queue is not ready.
    Idle,
    /// A WQE was used up and the frame lost.
    Failed,
}

/// Where a VLAN tag lies in a frame.
const TAG: std::ops::Range<usize> = 12..16;

impl Rq {
    fn scope(&self) -> KeyScope {
        KeyScope {
            pd: self.context.wq().pd(),
            qpn: self.number,
            remote: false,
            atomic: false,
            rlky: self.context.rlky(),
        }
    }

    /// Puts a frame into the next WQE.
    pub fn receive(&mut self, frame: &[u8], report: &Report, host: &mut dyn Host) -> Taken {
        if self.state != State::Ready {
            return Taken::Idle;
        }
        let scope = self.scope();
        let mut wqe = match self.queue.take_own(&self.rings, scope, host) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return Taken::Starved,
            Err(error) => {
                if error == TakeError::Record {
                    host.driver_bug(format!(
                        "RQ {:#x}: doorbell record beyond the ring",
                        self.number
                    ));
                }
                self.fail(host);
                return Taken::Failed;
            }
        };
        let stripped = report.vlan.filter(|_| !self.context.vsd());
        let written = if stripped.is_some() {
            wqe.append(host, &frame[..TAG.start])
                .and_then(|()| wqe.append(host, &frame[TAG.end..]))
        } else {
            wqe.append(host, frame)
        };
        match written {
            Ok(()) => {
                // CAST: a frame is at most the port's MTU.
                let bytes = u32::try_from(wqe.written).unwrap_or(u32::MAX);
                self.complete(wqe.counter, bytes, stripped, report, host);
                Taken::Whole
            }
            Err(ScatterError::TooLong) => {
                // The frame does not fit; the queue goes on (Linux recovers from others only,
                // `cqe_syndrome_needs_recover`).
                self.error(wqe.counter, Syndrome::LOCAL_LENGTH_ERR, host);
                Taken::Failed
            }
            Err(ScatterError::Key(error)) => {
                host.driver_bug(format!("RQ {:#x}: {error}", self.number));
                self.error(wqe.counter, Syndrome::LOCAL_PROT_ERR, host);
                self.fail(host);
                Taken::Failed
            }
        }
    }

    fn user_index(&self, host: &dyn Host) -> u32 {
        let index = self.context.user_index();
        if host.cqe_version() == 1 && index != NO_USER_INDEX {
            index
        } else {
            0
        }
    }

    fn complete(
        &self,
        counter: u16,
        bytes: u32,
        stripped: Option<u16>,
        report: &Report,
        host: &mut dyn Host,
    ) {
        let mut cqe = Cqe64::new();
        cqe.set_rx_hash_result(report.hash.value)
            .set_rx_hash_type(report.hash.kind)
            .set_check_sum(report.check_sum)
            .set_hds_ip_ext(report.ok)
            .set_l4_l3_hdr_type(report.header_types | u8::from(stripped.is_some()))
            .set_vlan_info(stripped.unwrap_or(0))
            .set_srqn_uidx(self.user_index(host))
            .set_byte_cnt(bytes)
            .set_timestamp(host.now())
            .set_qpn(report.flow_tag)
            .set_wqe_counter(self.rings.told(host, counter))
            .set_op_own_parts(CqeOpcode::RESP_SEND, 0, false, false);
        host.complete(self.context.cqn(), cqe, false);
    }

    fn error(&self, counter: u16, syndrome: Syndrome, host: &mut dyn Host) {
        let mut cqe = ErrCqe::new();
        cqe.set_srqn_uidx(self.user_index(host))
            .set_syndrome(syndrome.0)
            .set_qpn(self.number)
            .set_wqe_counter(self.rings.told(host, counter))
            .set_op_own(CqeOpcode::RESP_ERR.0 << 4);
        host.complete(self.context.cqn(), cqe.into(), true);
    }

    /// Goes to ERR and flushes what is posted.
    pub fn fail(&mut self, host: &mut dyn Host) {
        self.state = State::Error;
        if !self.context.flush_in_error_en() {
            return;
        }
        // At most one ring full, however often software writes the record meanwhile.
        let most = self.rings.receive.map_or(0, Ring::entries);
        for _ in 0..most {
            let Ok(Some(counter)) = self.queue.skip(&self.rings, host) else {
                return;
            };
            self.error(counter, Syndrome::WR_FLUSH_ERR, host);
        }
    }

    fn query(&self) -> Rqc {
        let (taken, posted) = self.queue.counters();
        let mut context = self.context.clone();
        context.set_state(self.state.code());
        context
            .wq_mut()
            .set_hw_counter(u32::from(taken))
            .set_sw_counter(u32::from(posted));
        context
    }
}

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

/// CREATE_RQ.
///
/// # Errors
/// What the device does not have, an object that does not exist, a ring that is not all there.
pub fn create(cmd: &mut Cmd<'_>, input: &CreateRqIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    let wq = context.wq();
    if context.mem_rq_type() != OWN_QUEUE || context.hairpin() || context.delay_drop_en() {
        return Err(refuse!(BAD_PARAM, "RQ of an RMP, hairpin or delay drop"));
    }
    fcs(cmd, context)?;
    created_in_reset(context.state())?;
    let objects = &cmd.nic.objects;
    must_exist(&objects.cqs, context.cqn())?;
    // A queue that only drops never looks at memory and may have none (Linux
    // `mlx5e_build_drop_rq_param` gives 0).
    let pd = Some(wq.pd()).filter(|&pd| pd != 0);
    if let Some(pd) = pd {
        must_exist(&objects.pds, pd)?;
    }
    counter_set(cmd, context)?;
    let log_most = cmd.nic.caps.general.max_wqe_sz_rq().max(1).ilog2();
    let (memory, places) = queue_memory(cmd, wq, [LOG_MIN_STRIDE, log_most])?;
    let rings = Rings::of_receive_queue(wq, memory);
    let objects = &mut cmd.nic.objects;
    let number = objects.eth.rqs.reserve()?;
    let cqn = context.cqn();
    objects.cqs.hold(cqn)?;
    if let Some(pd) = pd {
        objects.pds.hold(pd)?;
    }
    places.hold(&mut objects.umems)?;
    let rq = Rq {
        number,
        state: State::Reset,
        context: context.clone(),
        rings,
        queue: ReceiveQueue::default(),
    };
    objects.eth.rqs.insert(
        number,
        RqSlot {
            rq: Some(Box::new(rq)),
            cqn,
            pd,
            places,
        },
    );
    Ok(number)
}

/// Queues begin in reset.
pub(super) fn created_in_reset(code: u32) -> Result<(), Refusal> {
    if State::of(code) != Some(State::Reset) {
        return Err(refuse!(BAD_PARAM, "a queue is created in reset", "{code}"));
    }
    Ok(())
}

/// Frames have no check sequence here.
fn fcs(cmd: &Cmd<'_>, context: &Rqc) -> Result<(), Refusal> {
    if context.scatter_fcs() && !cmd.nic.caps.eth_offloads.scatter_fcs() {
        return Err(refuse!(BAD_PARAM, "scatter of the FCS is not supported"));
    }
    Ok(())
}

/// Set 0 is the default one.
fn counter_set(cmd: &Cmd<'_>, context: &Rqc) -> Result<(), Refusal> {
    match context.counter_set_id() {
        0 => Ok(()),
        set => must_exist(&cmd.nic.objects.counters, set),
    }
}

/// MODIFY_RQ: fields, and the state.
///
/// # Errors
/// No such queue, not in the state that software believes, no such transition.
pub fn modify(cmd: &mut Cmd<'_>, input: &ModifyRqIn) -> Result<(), Refusal> {
    let number = input.rqn();
    let select: &ModifyRqBitmask = input.modify_bitmask();
    let wanted = input.ctx();
    if select.scatter_fcs() {
        fcs(cmd, wanted)?;
    }
    if select.counter_set_id() {
        counter_set(cmd, wanted)?;
    }
    let rq = find(cmd, number)?;
    let next = rq.state.modified(input.rq_state(), wanted.state())?;
    let context = &mut rq.context;
    if select.vsd() {
        context.set_vsd(wanted.vsd());
    }
    if select.scatter_fcs() {
        context.set_scatter_fcs(wanted.scatter_fcs());
    }
    if select.counter_set_id() {
        context.set_counter_set_id(wanted.counter_set_id());
    }
    if select.lwm() {
        context.wq_mut().set_lwm(wanted.wq().lwm());
    }
    match next {
        State::Ready => rq.state = next,
        State::Reset => {
            rq.state = next;
            rq.queue = ReceiveQueue::default();
        }
        State::Error => {
            cmd.nic.with_rq(cmd.env, number, |rq, view| rq.fail(view));
        }
    }
    Ok(())
}

/// QUERY_RQ: the live context.
///
/// # Errors
/// No such queue.
pub fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Rqc, Refusal> {
    Ok(find(cmd, number)?.query())
}

/// DESTROY_RQ.
///
/// # Errors
/// No such queue, or a TIR or RQ table names it.
pub fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let slot = objects.eth.rqs.remove(number)?;
    objects.cqs.release(slot.cqn);
    if let Some(pd) = slot.pd {
        objects.pds.release(pd);
    }
    slot.places.release(&mut objects.umems);
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Rq, Refusal> {
    let slot = cmd.nic.objects.eth.rqs.get_mut(number);
    slot.and_then(|slot| slot.rq.as_deref_mut())
        .ok_or_else(|| refuse!(BAD_RESOURCE, "no such RQ", "{number:#x}"))
}

impl Rq {
    /// Counter set of frames for which there is no WQE.
    pub fn counter_set(&self) -> u32 {
        self.context.counter_set_id()
    }
}
