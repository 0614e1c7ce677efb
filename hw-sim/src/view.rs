//! Implementation of [`Host`], by which a queue pair accesses its function.

use crate::cq::Completed;
use crate::env::Env;
use crate::eq::COUNTER_MASK;
use crate::host::{DmaFault, GidEntry, Host, KeyError, KeyScope, SrqWqe, UmrRequest, XrcTarget};
use crate::init_segment::device_ticks;
use crate::iommu::Who;
use crate::mkey::{KEY_MEMORY, Memory, Mkey, Piece, Use, resolve};
use crate::nic::Nic;
use crate::objects::Table;
use crate::profile::{Habits, PortType};
use crate::q_counters::QCounter;
use crate::qp::Qp;
use crate::srq::Taken;
use crate::wire::{Frame, Link, Outline};
use mlx_prm::{Cqe64, CqeOpcode, EventType};
use rand::RngCore;
use zerocopy::IntoBytes;

/// Syndrome of a CQ error event: CQ overrun (PRM "CQ Error Event").
const CQ_OVERRUN: u8 = 1;
/// Value of `umr_fence` for a function that executes the WQEs after a UMR in order.
const UMR_FENCE_NONE: u32 = 2;

/// A queue pair's access to its function.
pub struct View<'a> {
    /// Function of the queue pair.
    pub nic: &'a mut Nic,
    /// State that all functions of the simulator have in common.
    pub env: &'a mut Env,
    /// Number of the queue pair, send queue or receive queue.
    pub qpn: u32,
}

impl Nic {
    /// Calls a method of a queue pair, with the function as its host. Returns `None` if the queue pair does not exist
    /// or one of its methods is running.
    pub fn with_qp<R>(
        &mut self,
        env: &mut Env,
        qpn: u32,
        call: impl FnOnce(&mut Qp, &mut View<'_>) -> R,
    ) -> Option<R> {
        let mut qp = self.objects.qps.get_mut(qpn)?.qp.take()?;
        let result = call(
            &mut qp,
            &mut View {
                nic: self,
                env,
                qpn,
            },
        );
        self.put_back_qp(env, qpn, qp);
        self.fail_attached(env);
        Some(result)
    }

    /// Puts a queue pair back into its table, queues it if it has work to do, and updates its timer.
    fn put_back_qp(&mut self, env: &mut Env, qpn: u32, qp: Box<Qp>) {
        let Some(slot) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        if qp.pending() && !slot.queued {
            slot.queued = true;
            env.runnable.push_back((self.index, qpn));
        }
        let due = qp.timer_due();
        if due != slot.timer {
            if let Some(old) = slot.timer {
                env.qp_timers.remove(&(old, self.index, qpn));
            }
            if let Some(new) = due {
                env.qp_timers.insert((new, self.index, qpn));
            }
            slot.timer = due;
        }
        slot.qp = Some(qp);
    }

    /// Moves to ERR every queue that is attached to a failed CQ.
    #[inline]
    pub(crate) fn fail_attached(&mut self, env: &mut Env) {
        if !self.failed_cqs.is_empty() {
            self.fail_all_attached(env);
        }
    }

    fn fail_all_attached(&mut self, env: &mut Env) {
        while let Some(cqn) = self.failed_cqs.pop() {
            let attached: Vec<u32> = self
                .objects
                .qps
                .iter()
                .filter(|(_, slot)| slot.refs.cqn_snd == cqn || slot.refs.cqn_rcv == cqn)
                .map(|(qpn, _)| qpn)
                .collect();
            for qpn in attached {
                self.with_qp(env, qpn, |qp, view| qp.fail(view));
            }
            let eth = &self.objects.eth;
            let of = |(number, attached): (u32, u32)| (attached == cqn).then_some(number);
            let sqs = eth.sqs.iter().map(|(sqn, slot)| (sqn, slot.cqn));
            let rqs = eth.rqs.iter().map(|(rqn, slot)| (rqn, slot.cqn));
            let (sqs, rqs): (Vec<_>, Vec<_>) =
                (sqs.filter_map(of).collect(), rqs.filter_map(of).collect());
            for sqn in sqs {
                self.with_sq(env, sqn, |sq, _| sq.fail());
            }
            for rqn in rqs {
                self.with_rq(env, rqn, |rq, view| rq.fail(view));
            }
        }
    }
}

impl View<'_> {
    /// Resolves an access to the pieces of memory that it reaches. The caller puts the list back into `Nic::pieces`, so
    /// that the allocation is reused.
    fn pieces(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(Vec<Piece>, Memory), KeyError> {
        let access = Use {
            key,
            scope,
            va,
            bytes,
            write,
        };
        let mut pieces = std::mem::take(&mut self.nic.pieces);
        pieces.clear();
        let (keys, rules) = (&self.nic.objects.mkeys, self.nic.key_rules());
        let memory = resolve(keys, rules, access, &mut pieces)?;
        // The pieces must cover the whole access: a reader's buffer has arbitrary contents, all of which must be
        // overwritten.
        let found: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        if found != bytes {
            return Err(KeyError::Range { key, va, bytes });
        }
        Ok((pieces, memory))
    }

    /// Writes a CQE. `first` is the first half of a 128-byte CQE.
    fn write_entry(&mut self, cqn: u32, first: Option<&[u8; 64]>, mut cqe: Cqe64, solicited: bool) {
        let now = self.env.now;
        // An error CQE has its syndrome in the low half of the timestamp field.
        if !matches!(cqe.opcode(), CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR) {
            cqe.set_timestamp(device_ticks(
                now,
                self.nic.caps.general.device_frequency_khz(),
            ));
        }
        let mut bytes = [0; 64];
        bytes.copy_from_slice(cqe.as_bytes());
        if self.nic.faults.loses_completion() {
            self.env
                .note(self.nic.index, format_args!("cqe cq={cqn:#x} lost"));
            return;
        }
        let Some(cq) = self.nic.objects.cqs.get_mut(cqn) else {
            // This does not happen: a queue pair holds references to its CQs.
            self.env.note(
                self.nic.index,
                format_args!("completion for CQ {cqn:#x}, which does not exist"),
            );
            return;
        };
        let eqn = cq.eqn;
        let completed = cq.complete(&mut self.nic.iommu, first, &bytes, solicited);
        self.env.note(
            self.nic.index,
            format_args!(
                "cqe cq={cqn:#x} op={:#x} qp={:02x}{:02x}{:02x} wqe={:02x}{:02x} synd={:#04x} {completed:?}",
                bytes[63] >> 4,
                bytes[57],
                bytes[58],
                bytes[59],
                bytes[60],
                bytes[61],
                if bytes[63] >> 4 >= 13 { bytes[55] } else { 0 },
            ),
        );
        match completed {
            Completed::Written { event: true } => self.nic.completion_event(self.env, eqn, cqn),
            Completed::Written { event: false } | Completed::Dead => {}
            Completed::Failed { syndrome } => {
                if syndrome == CQ_OVERRUN {
                    let slot = self.nic.objects.qps.get(self.qpn);
                    let set = slot.and_then(|slot| slot.refs.counter).unwrap_or(0);
                    self.nic.objects.count(set, QCounter::CqOverflow);
                }
                self.nic.cq_failed(self.env, cqn, syndrome);
            }
        }
    }
}

impl Host for View<'_> {
    fn now(&self) -> u64 {
        self.env.now
    }

    fn dma_read(&mut self, iova: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.nic.iommu.read(iova, out, Who::Qp(self.qpn))
    }

    fn dma_write(&mut self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.nic.iommu.write(iova, data, Who::Qp(self.qpn))
    }

    fn key_read(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), KeyError> {
        let mut rest = out;
        let (pieces, memory) = self.pieces(key, scope, va, rest.len() as u64, false)?;
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(usize::try_from(piece.bytes).unwrap_or(0));
            match memory {
                Memory::Host => self.nic.iommu.read(piece.iova, now, Who::Key(key))?,
                Memory::Device => {
                    let memory = &self.nic.objects.device_memory;
                    if !memory.read(piece.iova, now) {
                        let bytes = piece.bytes;
                        return Err(KeyError::Range { key, va, bytes });
                    }
                }
            }
            rest = later;
        }
        self.nic.pieces = pieces;
        Ok(())
    }

    fn key_write(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        data: &[u8],
    ) -> Result<(), KeyError> {
        let (pieces, memory) = self.pieces(key, scope, va, data.len() as u64, true)?;
        let damaged = self.nic.faults.damages_data().then(|| damaged(data));
        let mut rest = damaged.as_deref().unwrap_or(data);
        for piece in &pieces {
            let (now, later) = rest.split_at(usize::try_from(piece.bytes).unwrap_or(0));
            match memory {
                Memory::Host => self.nic.iommu.write(piece.iova, now, Who::Key(key))?,
                Memory::Device => {
                    let memory = &mut self.nic.objects.device_memory;
                    if !memory.write(piece.iova, now) {
                        let bytes = piece.bytes;
                        return Err(KeyError::Range { key, va, bytes });
                    }
                    // PANIC: `write_bytes` stays in range, because device memory is inside of the BAR.
                    self.nic.bar.write_bytes(piece.bar_offset(), now);
                }
            }
            rest = later;
        }
        self.nic.pieces = pieces;
        Ok(())
    }

    fn key_check(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), KeyError> {
        (self.nic.pieces, _) = self.pieces(key, scope, va, bytes, write)?;
        Ok(())
    }

    fn complete(&mut self, cqn: u32, cqe: Cqe64, solicited: bool) {
        self.write_entry(cqn, None, cqe, solicited);
    }

    fn complete_wide(&mut self, cqn: u32, first: [u8; 64], cqe: Cqe64, solicited: bool) {
        self.write_entry(cqn, Some(&first), cqe, solicited);
    }

    fn qp_event(&mut self, event: EventType, qpn: u32) {
        self.nic.queue_event(self.env, event, qpn & COUNTER_MASK);
    }

    fn srq_take(&mut self, srqn: u32) -> Result<Option<SrqWqe>, DmaFault> {
        let Some(srq) = self.nic.objects.rmps.get_mut(srqn) else {
            return Ok(None);
        };
        match srq.take(&mut self.nic.iommu)? {
            Taken::Wqe { wqe, limit } => {
                if limit {
                    self.nic
                        .queue_event(self.env, EventType::SRQ_RQ_LIMIT, srqn);
                }
                Ok(Some(wqe))
            }
            Taken::Broken { event } => {
                if event {
                    self.nic
                        .driver_bug(self.env, format!("RMP {srqn:#x}: broken list or counter"));
                    self.nic
                        .queue_event(self.env, EventType::SRQ_CATAS_ERROR, srqn);
                }
                Ok(None)
            }
            Taken::Empty => Ok(None),
        }
    }

    fn xrc_srq(&self, srqn: u32) -> Option<XrcTarget> {
        let srq = self.nic.objects.rmps.get(srqn)?;
        let part = srq.xrc?;
        Some(XrcTarget {
            xrcd: part.xrcd,
            pd: srq.pd,
        })
    }

    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.env.buffer(bytes)
    }

    fn seals(&self) -> bool {
        self.env.seals()
    }

    fn sent_bytes(&self) -> u64 {
        self.env.sent_bytes
    }

    fn transmit(&mut self, frame: Vec<u8>) {
        self.env.sent_bytes += frame.len() as u64;
        self.nic.replicate(self.env, &frame);
        self.env.frames.push_back((self.nic.index, frame.into()));
    }

    fn transmit_outlined(&mut self, outline: &Outline, mut frame: Vec<u8>) {
        if self.env.seals() || !matches!(outline.link(), Link::Ethernet(_)) || self.nic.has_groups()
        {
            outline.write(&mut frame, self.env.seals());
            self.transmit(frame);
            return;
        }
        self.env.sent_bytes += outline.frame_len() as u64;
        let frame = Frame::outlined(*outline, frame);
        self.env.frames.push_back((self.nic.index, frame));
    }

    fn addresses(&self) -> Option<u64> {
        self.env.port(self.nic.seat).addresses()
    }

    fn lid(&self) -> Option<u16> {
        self.env.port(self.nic.seat).lid()
    }

    fn gid(&self, index: u8) -> Option<GidEntry> {
        let port = self.env.port(self.nic.seat);
        if let Some(subnet) = &port.subnet {
            let gid = *subnet.gids.get(usize::from(index))?;
            return (gid != [0; 16]).then_some(GidEntry {
                gid,
                mac: [0; 6],
                roce_version: 0,
                l3_type: 0,
                vlan: None,
            });
        }
        port.gids().get(usize::from(index)).cloned().flatten()
    }

    fn cqe_version(&self) -> u8 {
        u8::try_from(self.nic.caps.general.cqe_version()).unwrap_or(0)
    }

    fn count(&mut self, set: u32, what: QCounter) {
        self.nic.objects.count(set, what);
    }

    fn driver_bug(&mut self, what: String) {
        // Without bus mastering, a function cannot check its queues in memory, so this may not be a driver bug. A
        // driver that shuts its device down disables bus mastering while queues are active (PCI, "Bus Master Enable").
        if !self.nic.iommu.bus_master() {
            self.env
                .note(self.nic.index, format_args!("not a bus master: {what}"));
            return;
        }
        self.nic.driver_bug(self.env, what);
    }

    fn random(&mut self) -> u64 {
        self.env.rng.next_u64()
    }

    fn umr(&mut self, request: UmrRequest<'_>) -> Result<(), KeyError> {
        let objects = &mut self.nic.objects;
        let key = request.key;
        let is_indirect = objects.mkeys.get(key >> 8).is_some_and(Mkey::is_indirect);
        let caps = &self.nic.caps.general;
        let done = if is_indirect && caps.umr_indirect_mkey_disabled()
            || crate::umr::is_disabled(caps, request.control)
        {
            Err(KeyError::Unsupported)
        } else {
            let memory = |keys: &Table<Mkey>| keys.get(key >> 8).map_or(0, Mkey::memory);
            let others = objects.key_memory - memory(&objects.mkeys);
            let room = KEY_MEMORY.saturating_sub(objects.key_memory);
            let done = crate::umr::apply(&mut objects.mkeys, &mut objects.pds, &request, room);
            objects.key_memory = others + memory(&objects.mkeys);
            done
        };
        if let Err(error) = &done {
            tracing::debug!(function = %self.nic.profile.name, "UMR refused: {error}");
        }
        self.env.note(
            self.nic.index,
            format_args!("umr key={key:#010x} {}", outcome(&done)),
        );
        done
    }

    fn habits(&self) -> Habits {
        self.nic.profile.habits
    }

    fn umr_keeps_order(&self) -> bool {
        self.nic.caps.general.umr_fence() == UMR_FENCE_NONE
    }

    fn retransmits_early(&self) -> bool {
        self.nic.profile.port_type == PortType::Ethernet && self.nic.caps.general.roce_accl()
    }

    fn invalidate(&mut self, key: u32, scope: KeyScope) -> Result<(), KeyError> {
        let done = crate::umr::invalidate(&mut self.nic.objects.mkeys, key, scope);
        self.env.note(
            self.nic.index,
            format_args!("invalidate key={key:#010x} {}", outcome(&done)),
        );
        done
    }

    fn port_mtu(&self) -> u8 {
        let wire = self.env.card(self.nic.seat).uplink.mtu;
        self.env.port(self.nic.seat).rdma_mtu(wire)
    }

    fn has_atomics(&self) -> bool {
        let caps = &self.nic.caps;
        caps.general.atomic()
            && caps.atomic.atomic_operations() & 0b11 == 0b11
            && caps.atomic.atomic_size_qp() & 8 != 0
    }

    fn atomic_reply_big_endian(&self) -> bool {
        self.nic.caps.atomic.atomic_req_8B_endianness_mode() == 0
    }
}

/// Returns data whose first byte is inverted ([`Fault::DamagedData`](crate::Fault::DamagedData)).
fn damaged(data: &[u8]) -> Vec<u8> {
    let mut damaged = data.to_vec();
    if let Some(first) = damaged.first_mut() {
        *first = !*first;
    }
    damaged
}

/// Returns the result in a form for the log, which contains no addresses.
const fn outcome(done: &Result<(), KeyError>) -> &'static str {
    match done {
        Ok(()) => "ok",
        Err(_) => "refused",
    }
}
