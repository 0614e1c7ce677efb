//! Calls on memory, events and notification objects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use udapl::adapter::AnyHandle;
use udapl::error::ReturnType;
use udapl::event::SoftwareEvent;
use udapl::memory::LmrTriplet;
use udapl::srq::SrqAttr;
use udapl::wait::Agent;
use udapl::{EvdFlags, MemPrivFlags, Timeout};

use super::model::{Cno, Evd, Expected, Lmr, Piece, Place, Pz, Rmr, Srq};
use super::op::{EVD_LENGTH, Op, Parts, REGION, SEGMENTS};
use super::world::{Verdict, World, compare, equal, kind, named};

const INVALID_HANDLE: Verdict = Err(ReturnType::InvalidHandle);
const INVALID_STATE: Verdict = Err(ReturnType::InvalidState);
const INVALID_PARAMETER: Verdict = Err(ReturnType::InvalidParameter);

/// Local buffers of a call: triplets, pieces of regions, and the expected result of a post with these buffers.
pub struct Local {
    pub iov: Vec<LmrTriplet>,
    pub pieces: Vec<Piece>,
    pub verdict: Verdict,
}

impl Local {
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

impl World {
    /// Returns the local buffers of a post. `pz` is the PZ of the endpoint or SRQ, `right` is the access right that the
    /// post needs. Returns `None` if one of the slots has never had a region.
    pub fn local(&self, side: usize, parts: Parts, pz: Option<usize>, right: u32) -> Option<Local> {
        let mut local = Local {
            iov: Vec::new(),
            pieces: Vec::new(),
            verdict: Ok(()),
        };
        for part in parts.into_iter().flatten().filter(|part| part.bytes != 0) {
            let place = &self.sides[side].lmrs[part.lmr];
            let lmr = place.any()?;
            local.verdict = local.verdict.and(if place.live().is_none() {
                Err(ReturnType::PrivilegesViolation)
            } else if part.at + part.bytes > REGION {
                INVALID_PARAMETER
            } else if Some(lmr.pz) != pz {
                Err(ReturnType::ProtectionViolation)
            } else if lmr.rights & right == 0 {
                Err(ReturnType::PrivilegesViolation)
            } else {
                Ok(())
            });
            local.iov.push(LmrTriplet {
                lmr_context: lmr.created.lmr_context,
                virtual_address: lmr.created.registered_address + part.at,
                segment_length: part.bytes,
            });
            local.pieces.push(Piece {
                bytes: part.bytes,
                region: lmr.number,
            });
        }
        if local.iov.len() > SEGMENTS as usize {
            local.verdict = INVALID_PARAMETER;
        }
        Some(local)
    }

    /// Makes calls on memory. Returns `None` if the call is of another kind, if a slot that it names has never had an
    /// object, or if the slot for the new object is taken.
    pub fn call_memory(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        let (ia, model) = (&mut self.ias[side], &mut self.sides[side]);
        match *op {
            Op::PzCreate(at) => {
                if model.pzs[at].live().is_some() {
                    return Ok(None);
                }
                if let Some(handle) = compare(ia.pz_create(), Ok(()))? {
                    model.pzs[at] = Place::Taken(Pz { handle, users: 0 });
                }
            }
            Op::PzQuery(at) => {
                let Some(pz) = model.pzs[at].any() else {
                    return Ok(None);
                };
                compare(ia.pz_query(pz.handle), named(&model.pzs[at]))?;
            }
            Op::PzFree(at) => {
                let Some(pz) = model.pzs[at].any() else {
                    return Ok(None);
                };
                let mut want = named(&model.pzs[at]);
                if want.is_ok() && pz.users != 0 {
                    want = INVALID_STATE;
                }
                compare(ia.pz_free(pz.handle), want)?;
                if want.is_ok() {
                    model.pzs[at].end();
                }
            }
            Op::LmrCreate { lmr, pz, rights } => {
                let Some(zone) = model.pzs[pz].any().map(|zone| zone.handle) else {
                    return Ok(None);
                };
                if model.lmrs[lmr].live().is_some() {
                    return Ok(None);
                }
                let mut want = named(&model.pzs[pz]);
                if want.is_ok() && rights & !0x33 != 0 {
                    want = INVALID_PARAMETER;
                }
                let bytes = usize::try_from(REGION).expect("small");
                let memory = udapl::alloc(ia, bytes).map_err(|error| format!("alloc: {error}"))?;
                let rights_asked = MemPrivFlags::from_bits_retain(rights);
                let created = compare(ia.lmr_create(memory.clone(), zone, rights_asked), want)?;
                if let Some(created) = created {
                    if let Some(zone) = model.pzs[pz].live_mut() {
                        zone.users += 1;
                    }
                    equal("rmr_context", created.rmr_context != 0, rights & 0x22 != 0)?;
                    self.regions += 1;
                    model.lmrs[lmr] = Place::Taken(Lmr {
                        created,
                        memory,
                        pz,
                        rights,
                        number: self.regions,
                    });
                }
            }
            Op::LmrCreateFromLmr {
                lmr,
                source,
                pz,
                rights,
            } => {
                let (Some(zone), Some(from)) = (model.pzs[pz].any(), model.lmrs[source].any())
                else {
                    return Ok(None);
                };
                if model.lmrs[lmr].live().is_some() {
                    return Ok(None);
                }
                let (zone, handle, memory) = (zone.handle, from.created.lmr, from.memory.clone());
                let mut want = named(&model.lmrs[source]).and(named(&model.pzs[pz]));
                if want.is_ok() && rights & !0x33 != 0 {
                    want = INVALID_PARAMETER;
                }
                let rights_asked = MemPrivFlags::from_bits_retain(rights);
                let created = ia.lmr_create_from_lmr(handle, zone, rights_asked);
                if let Some(created) = compare(created, want)? {
                    if let Some(zone) = model.pzs[pz].live_mut() {
                        zone.users += 1;
                    }
                    self.regions += 1;
                    model.lmrs[lmr] = Place::Taken(Lmr {
                        created,
                        memory,
                        pz,
                        rights,
                        number: self.regions,
                    });
                }
            }
            Op::LmrQuery(at) => {
                let Some(lmr) = model.lmrs[at].any() else {
                    return Ok(None);
                };
                let got = ia.lmr_query(lmr.created.lmr);
                if let Some(param) = compare(got, named(&model.lmrs[at]))? {
                    equal("privileges", param.privileges.bits(), lmr.rights)?;
                    let size = lmr.created.registered_size;
                    equal("registered_size", param.registered_size, size)?;
                    equal("memory", lmr.memory.len() as u64 <= size, true)?;
                }
            }
            Op::LmrFree(at) => {
                let Some(lmr) = model.lmrs[at].any() else {
                    return Ok(None);
                };
                let zone = lmr.pz;
                let mut want = named(&model.lmrs[at]);
                if want.is_ok() && model.bound_to(at) != 0 {
                    want = INVALID_STATE;
                }
                compare(ia.lmr_free(lmr.created.lmr), want)?;
                if want.is_ok() {
                    model.lmrs[at].end();
                    if let Some(zone) = model.pzs[zone].live_mut() {
                        zone.users -= 1;
                    }
                }
            }
            Op::LmrSync { part, write } => {
                let Some(local) = self.local(side, [Some(part), None, None], None, 0) else {
                    return Ok(None);
                };
                // A sync checks neither PZ nor access rights, and every error is DAT_INVALID_PARAMETER.
                let there = self.sides[side].lmrs[part.lmr].live().is_some();
                let fits = part.at + part.bytes <= REGION;
                let want = if part.bytes == 0 || (there && fits) {
                    Ok(())
                } else {
                    INVALID_PARAMETER
                };
                let ia = &self.ias[side];
                let got = if write {
                    ia.lmr_sync_rdma_write(&local.iov)
                } else {
                    ia.lmr_sync_rdma_read(&local.iov)
                };
                compare(got, want)?;
            }
            Op::RmrCreate { rmr, pz } => {
                let Some(zone) = model.pzs[pz].any().map(|zone| zone.handle) else {
                    return Ok(None);
                };
                if model.rmrs[rmr].live().is_some() {
                    return Ok(None);
                }
                if let Some(handle) = compare(ia.rmr_create(zone), named(&model.pzs[pz]))? {
                    if let Some(zone) = model.pzs[pz].live_mut() {
                        zone.users += 1;
                    }
                    model.rmrs[rmr] = Place::Taken(Rmr {
                        handle,
                        pz,
                        contexts: [None; 2],
                        bound: None,
                    });
                }
            }
            Op::RmrQuery(at) => {
                let Some(rmr) = model.rmrs[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.rmr_query(rmr.handle), named(&model.rmrs[at]))? {
                    let got = param.binding.map(|binding| {
                        let triplet = binding.lmr_triplet;
                        (
                            triplet.lmr_context,
                            triplet.virtual_address,
                            triplet.segment_length,
                            binding.rmr_context,
                        )
                    });
                    let want = rmr.bound.and_then(|bound| {
                        let lmr = model.lmrs[bound.lmr].live()?.created;
                        let address = lmr.registered_address + bound.at;
                        Some((lmr.lmr_context, address, bound.bytes, rmr.contexts[0]?))
                    });
                    equal("binding", got, want)?;
                }
            }
            Op::RmrFree(at) => {
                let Some(rmr) = model.rmrs[at].any() else {
                    return Ok(None);
                };
                let (want, zone) = (named(&model.rmrs[at]), rmr.pz);
                compare(ia.rmr_free(rmr.handle), want)?;
                if want.is_ok() {
                    model.rmrs[at].end();
                    if let Some(zone) = model.pzs[zone].live_mut() {
                        zone.users -= 1;
                    }
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Makes calls on EVDs and CNOs.
    pub fn call_events(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        let (ia, model) = (&mut self.ias[side], &mut self.sides[side]);
        let longest = ia.query().ia.max_evd_qlen;
        match *op {
            Op::EvdCreate {
                evd,
                qlen,
                flags,
                cno,
            } => {
                if model.evds[evd].live().is_some() {
                    return Ok(None);
                }
                let notifies = match cno {
                    Some(at) => match model.cnos[at].any() {
                        Some(object) => Some((object.handle, named(&model.cnos[at]))),
                        None => return Ok(None),
                    },
                    None => None,
                };
                let want = if qlen == 0 || flags & !0x1f1 != 0 {
                    INVALID_PARAMETER
                } else {
                    notifies.map_or(Ok(()), |(_, verdict)| verdict)
                };
                let streams = EvdFlags::from_bits_retain(flags);
                let handle = notifies.map(|(handle, _)| handle);
                let made = compare(ia.evd_create_with_cno(qlen, handle, streams), want)?;
                if let Some(handle) = made {
                    if let Some(cno) = cno.and_then(|at| model.cnos[at].live_mut()) {
                        cno.evds += 1;
                    }
                    let param = ia.evd_query(handle).map_err(|error| error.to_string())?;
                    equal("length", param.qlen >= qlen, true)?;
                    model.evds[evd] = Place::Taken(Evd {
                        handle,
                        flags,
                        qlen: param.qlen,
                        waitable: true,
                        enabled: true,
                        cno,
                        feeders: 0,
                        queue: Vec::new(),
                    });
                }
            }
            Op::EvdQuery(at) => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.evd_query(evd.handle), named(&model.evds[at]))? {
                    let streams = model.streams(at, None);
                    let config = match streams.mode() {
                        4 => 0x10,
                        2 => 0x20,
                        _ => 0x30,
                    };
                    let bits = if evd.enabled { 0x01 } else { 0x02 }
                        | if evd.waitable { 0x04 } else { 0x08 }
                        | config;
                    equal("evd_state", param.state.bits(), bits)?;
                    equal("qlen", param.qlen, evd.qlen)?;
                    let cno = evd.cno.and_then(|at| model.cnos[at].live());
                    equal("cno", param.cno, cno.map(|cno| cno.handle))?;
                }
            }
            Op::EvdResize { evd: at, qlen } => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                // An EVD that is too short for its streams would overflow, and the model cannot predict which events
                // are lost.
                if evd.flags & 0x020 != 0 && (1..EVD_LENGTH).contains(&qlen) {
                    return Ok(None);
                }
                let want = if named(&model.evds[at]).is_err() {
                    INVALID_HANDLE
                } else if qlen == 0 {
                    INVALID_PARAMETER
                } else if qlen > longest {
                    Err(ReturnType::InsufficientResources)
                } else if evd.queue.len() > qlen as usize {
                    INVALID_STATE
                } else {
                    Ok(())
                };
                let handle = evd.handle;
                if compare(ia.evd_resize(handle, qlen), want)?.is_some() {
                    let param = ia.evd_query(handle).map_err(|error| error.to_string())?;
                    equal("length", param.qlen >= qlen, true)?;
                    if let Some(evd) = model.evds[at].live_mut() {
                        evd.qlen = param.qlen;
                    }
                }
            }
            Op::EvdPostSe { evd: at, word } => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let want = if named(&model.evds[at]).is_err() {
                    INVALID_HANDLE
                } else if evd.flags & 1 == 0 {
                    INVALID_PARAMETER
                } else if evd.is_full() {
                    Err(ReturnType::QueueFull)
                } else {
                    Ok(())
                };
                compare(ia.evd_post_se(evd.handle, SoftwareEvent(word)), want)?;
                if want.is_ok() {
                    model.expect(Some(at), Expected::Software(word), None);
                }
            }
            Op::EvdDequeue(at) => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let (got, want) = (ia.evd_dequeue(evd.handle), named(&model.evds[at]));
                match (got, want) {
                    (got, Err(_)) => drop(compare(got, want)?),
                    (Ok(event), Ok(())) => self.taken(side, at, event)?,
                    (Err(error), Ok(())) => return Err(format!("refused: {error}")),
                }
            }
            Op::EvdWait {
                evd: at,
                threshold,
                micros,
            } => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let count = evd.queue.len();
                let want = if named(&model.evds[at]).is_err() {
                    INVALID_HANDLE
                } else if threshold == 0 || threshold > evd.qlen {
                    INVALID_PARAMETER
                } else if !evd.waitable || (threshold != 1 && model.streams(at, None).chosen()) {
                    INVALID_STATE
                } else if count < threshold as usize {
                    Err(ReturnType::TimeoutExpired)
                } else {
                    Ok(())
                };
                let got = ia.evd_wait(evd.handle, Timeout::from_micros(micros), threshold);
                if let Err(error) = &got
                    && kind(error.error) == ReturnType::TimeoutExpired
                {
                    equal("nmore", error.nmore as usize, count)?;
                }
                if let Some((event, nmore)) = compare(got.map_err(|error| error.error), want)? {
                    equal("nmore", nmore as usize, count - 1)?;
                    self.taken(side, at, Some(event))?;
                }
            }
            Op::EvdEnable(at)
            | Op::EvdDisable(at)
            | Op::EvdSetUnwaitable(at)
            | Op::EvdClearUnwaitable(at) => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let got = match op {
                    Op::EvdEnable(_) => ia.evd_enable(evd.handle),
                    Op::EvdDisable(_) => ia.evd_disable(evd.handle),
                    Op::EvdSetUnwaitable(_) => ia.evd_set_unwaitable(evd.handle),
                    _ => ia.evd_clear_unwaitable(evd.handle),
                };
                compare(got, named(&model.evds[at]))?;
                if let Some(evd) = model.evds[at].live_mut() {
                    match op {
                        Op::EvdEnable(_) => evd.enabled = true,
                        Op::EvdDisable(_) => evd.enabled = false,
                        Op::EvdSetUnwaitable(_) => evd.waitable = false,
                        _ => evd.waitable = true,
                    }
                }
            }
            Op::EvdModifyCno { evd: at, cno } => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let new = match cno {
                    Some(at) => match model.cnos[at].any() {
                        Some(object) => Some(object.handle),
                        None => return Ok(None),
                    },
                    None => None,
                };
                let exists = cno.map_or(Ok(()), |at| named(&model.cnos[at]));
                let want = named(&model.evds[at]).and(exists);
                compare(ia.evd_modify_cno(evd.handle, new), want)?;
                if want.is_ok() {
                    let before = model.evds[at]
                        .live_mut()
                        .and_then(|evd| std::mem::replace(&mut evd.cno, cno));
                    if let Some(old) = before.and_then(|at| model.cnos[at].live_mut()) {
                        old.evds -= 1;
                    }
                    if let Some(new) = cno.and_then(|at| model.cnos[at].live_mut()) {
                        new.evds += 1;
                    }
                }
            }
            Op::EvdFree(at) => {
                let Some(evd) = model.evds[at].any() else {
                    return Ok(None);
                };
                let mut want = named(&model.evds[at]);
                if want.is_ok() && evd.feeders != 0 {
                    want = INVALID_STATE;
                }
                compare(ia.evd_free(evd.handle), want)?;
                if want.is_ok() {
                    self.evd_ended(side, at);
                }
            }
            Op::CnoCreate(at) => {
                if model.cnos[at].live().is_some() {
                    return Ok(None);
                }
                if let Some(handle) = compare(ia.cno_create(None), Ok(()))? {
                    model.cnos[at] = Place::Taken(Cno {
                        handle,
                        evds: 0,
                        triggered: false,
                        agent: false,
                        calls: 0,
                        agent_calls: Arc::default(),
                    });
                }
            }
            Op::CnoQuery(at) => {
                let Some(cno) = model.cnos[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.cno_query(cno.handle), named(&model.cnos[at]))? {
                    equal("has_agent", param.has_agent, cno.agent)?;
                }
            }
            Op::CnoModifyAgent { cno: at, agent } => {
                let Some(cno) = model.cnos[at].any() else {
                    return Ok(None);
                };
                let agent_calls = Arc::clone(&cno.agent_calls);
                let new = agent.then(|| {
                    Agent::new(move |_evd| {
                        agent_calls.fetch_add(1, Ordering::Relaxed);
                    })
                });
                let got = ia.cno_modify_agent(cno.handle, new);
                compare(got, named(&model.cnos[at]))?;
                if let Some(cno) = model.cnos[at].live_mut() {
                    cno.agent = agent;
                }
            }
            Op::CnoWait { cno: at, micros } => {
                let Some(cno) = model.cnos[at].any() else {
                    return Ok(None);
                };
                let mut want = named(&model.cnos[at]);
                if want.is_ok() && !cno.triggered {
                    want = Err(ReturnType::QueueEmpty);
                }
                let got = ia.cno_wait(cno.handle, Timeout::from_micros(micros));
                if let Some(evd) = compare(got, want)? {
                    equal("an EVD", evd.is_some(), true)?;
                }
                if let Some(cno) = model.cnos[at].live_mut() {
                    cno.triggered = false;
                }
            }
            Op::CnoFree(at) => {
                let Some(cno) = model.cnos[at].any() else {
                    return Ok(None);
                };
                let mut want = named(&model.cnos[at]);
                if want.is_ok() && cno.evds != 0 {
                    want = INVALID_STATE;
                }
                compare(ia.cno_free(cno.handle), want)?;
                if want.is_ok() {
                    model.cnos[at].end();
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Records that an EVD was freed: its queued events end, and the requests among them are rejected.
    fn evd_ended(&mut self, side: usize, at: usize) {
        let model = &mut self.sides[side];
        let Some(evd) = model.evds[at].live_mut() else {
            return;
        };
        let (queue, cno) = (std::mem::take(&mut evd.queue), evd.cno);
        model.evds[at].end();
        if let Some(cno) = cno.and_then(|at| model.cnos[at].live_mut()) {
            cno.evd_ended();
        }
        for queued in queue {
            if let Some(srq) = queued
                .srq
                .and_then(|srq| self.sides[side].srqs[srq].live_mut())
            {
                srq.undequeued -= 1;
            }
            if let Expected::Request(cr) = queued.what {
                self.refuse(side, cr, udapl::ConnectionEventKind::NonPeerRejected);
            }
        }
    }

    /// Makes calls on SRQs.
    pub fn call_srq(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        let (ia, model) = (&mut self.ias[side], &mut self.sides[side]);
        let most = ia.query().ia.max_recv_per_srq;
        match *op {
            Op::SrqCreate { srq, pz, length } => {
                let Some(zone) = model.pzs[pz].any().map(|zone| zone.handle) else {
                    return Ok(None);
                };
                if model.srqs[srq].live().is_some() {
                    return Ok(None);
                }
                let mut want = named(&model.pzs[pz]);
                if want.is_ok() && length == 0 {
                    want = INVALID_PARAMETER;
                }
                let attr = SrqAttr {
                    max_recv_dtos: length,
                    max_recv_iov: SEGMENTS,
                    low_watermark: 0,
                };
                if let Some(handle) = compare(ia.srq_create(zone, attr), want)? {
                    if let Some(zone) = model.pzs[pz].live_mut() {
                        zone.users += 1;
                    }
                    model.srqs[srq] = Place::Taken(Srq {
                        handle,
                        pz,
                        length,
                        buffers: Default::default(),
                        undequeued: 0,
                        users: 0,
                        low_watermark: 0,
                        armed: false,
                    });
                }
            }
            Op::SrqQuery(at) => {
                let Some(srq) = model.srqs[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.srq_query(srq.handle), named(&model.srqs[at]))? {
                    let there = u32::try_from(srq.buffers.len()).expect("few");
                    equal("available", param.available_dto_count, there)?;
                    let outstanding = there + srq.undequeued;
                    equal("outstanding", param.outstanding_dto_count, outstanding)?;
                    equal("max_recv_dtos", param.max_recv_dtos, srq.length)?;
                    equal("low_watermark", param.low_watermark, srq.low_watermark)?;
                }
            }
            Op::SrqResize { srq: at, length } => {
                let Some(srq) = model.srqs[at].any() else {
                    return Ok(None);
                };
                let outstanding = u32::try_from(srq.buffers.len()).expect("few") + srq.undequeued;
                let want = if named(&model.srqs[at]).is_err() {
                    INVALID_HANDLE
                } else if length == 0 {
                    INVALID_PARAMETER
                } else if length > most {
                    Err(ReturnType::InsufficientResources)
                } else if length < outstanding || length < srq.low_watermark {
                    INVALID_STATE
                } else {
                    Ok(())
                };
                compare(ia.srq_resize(srq.handle, length), want)?;
                if want.is_ok()
                    && let Some(srq) = model.srqs[at].live_mut()
                {
                    srq.length = length;
                }
            }
            Op::SrqSetLw { srq: at, mark } => {
                let Some(srq) = model.srqs[at].any() else {
                    return Ok(None);
                };
                let mut want = named(&model.srqs[at]);
                if want.is_ok() && mark > srq.length {
                    want = INVALID_PARAMETER;
                }
                compare(ia.srq_set_lw(srq.handle, mark), want)?;
                if want.is_ok() {
                    if let Some(srq) = model.srqs[at].live_mut() {
                        srq.low_watermark = mark;
                        srq.armed = true;
                    }
                    model.check_low_watermark(at);
                }
            }
            Op::SrqFree(at) => {
                let Some(srq) = model.srqs[at].any() else {
                    return Ok(None);
                };
                let zone = srq.pz;
                let mut want = named(&model.srqs[at]);
                if want.is_ok() && srq.users != 0 {
                    want = INVALID_STATE;
                }
                compare(ia.srq_free(srq.handle), want)?;
                if want.is_ok() {
                    model.srqs[at].end();
                    if let Some(zone) = model.pzs[zone].live_mut() {
                        zone.users -= 1;
                    }
                    // The queued events belong to the freed SRQ, not to a later SRQ in this slot.
                    for evd in &mut model.evds {
                        for queued in evd.live_mut().into_iter().flat_map(|evd| &mut evd.queue) {
                            queued.srq = queued.srq.filter(|srq| *srq != at);
                        }
                    }
                }
            }
            Op::SetContext { ep, word } => {
                let Some(object) = model.eps[ep].any() else {
                    return Ok(None);
                };
                let handle = AnyHandle::from(object.handle);
                compare(ia.set_consumer_context(handle, word), named(&model.eps[ep]))?;
                if let Some(object) = model.eps[ep].live_mut() {
                    object.context = word;
                }
            }
            Op::GetContext(ep) => {
                let Some(object) = model.eps[ep].any() else {
                    return Ok(None);
                };
                let got = ia.get_consumer_context(object.handle);
                if let Some(word) = compare(got, named(&model.eps[ep]))? {
                    equal("context", word, object.context)?;
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }
}
