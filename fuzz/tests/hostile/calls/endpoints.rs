//! Calls on endpoints, service points and connection requests.

use udapl::endpoint::{EpAttr, EpChange, EpState as S};
use udapl::error::ReturnType;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, EpEvds, Ia,
    PspFlags, Qos, Timeout,
};

use super::model::{Cr, DTOS, Ep, Evd, Expected, Place, Psp, Rsp};
use super::op::{Op, QUALIFIERS, SEGMENTS};
use super::world::{Verdict, World, compare, equal, named};

const INVALID_HANDLE: Verdict = Err(ReturnType::InvalidHandle);
const INVALID_STATE: Verdict = Err(ReturnType::InvalidState);
const INVALID_PARAMETER: Verdict = Err(ReturnType::InvalidParameter);
/// Kinds of the connection event after an error. Each side gets one event of either kind.
pub const BROKEN: &[Kind] = &[Kind::Broken, Kind::Disconnected];
/// A connect timeout longer than any sequence runs.
const PATIENCE: Timeout = Timeout::from_micros(u32::MAX - 1);
/// EVD flags that an endpoint needs in its receive, request and connection EVD.
const NEEDS: [u32; 3] = [0x020, 0x020, 0x040];

/// Returns the attributes of an endpoint. Only the completion flags `modes` (receives, requests) differ between
/// endpoints.
fn attributes(ia: &Ia, modes: [u32; 2]) -> EpAttr {
    let [recv, request] = modes.map(CompletionFlags::from_bits_retain);
    EpAttr {
        recv_completion_flags: recv,
        request_completion_flags: request,
        max_recv_dtos: DTOS,
        max_request_dtos: DTOS,
        max_recv_iov: SEGMENTS,
        max_request_iov: SEGMENTS,
        max_rdma_read_in: 4,
        max_rdma_read_out: 4,
        ..EpAttr::defaults(ia.query().ia)
    }
}

impl World {
    /// Returns the handles with which an endpoint is created or modified, and whether they are valid. Returns `None` if
    /// one of the named slots has never had an object.
    fn setup(
        &self,
        side: usize,
        pz: Option<usize>,
        evds: [Option<usize>; 3],
    ) -> Option<(
        Option<udapl::memory::PzHandle>,
        [Option<udapl::EvdHandle>; 3],
        Verdict,
    )> {
        let model = &self.sides[side];
        let mut verdict = Ok(());
        let zone = match pz {
            Some(at) => {
                verdict = verdict.and(named(&model.pzs[at]));
                Some(model.pzs[at].any()?.handle)
            }
            None => None,
        };
        let mut handles = [None; 3];
        for (which, evd) in evds.into_iter().enumerate() {
            let Some(at) = evd else { continue };
            let object = model.evds[at].any()?;
            verdict = verdict.and(named(&model.evds[at]));
            if object.flags & NEEDS[which] == 0 {
                verdict = verdict.and(INVALID_HANDLE);
            }
            handles[which] = Some(object.handle);
        }
        Some((zone, handles, verdict))
    }

    /// Returns whether an endpoint may use these EVDs instead of its present ones.
    fn may_feed(
        &self,
        side: usize,
        ep: Option<usize>,
        evds: [Option<usize>; 3],
        modes: [u32; 2],
    ) -> Verdict {
        let may = evds.into_iter().flatten().all(|at| {
            let mut streams = self.sides[side].streams(at, ep);
            streams.add(at, evds, modes);
            streams.may_share()
        });
        if may { Ok(()) } else { INVALID_PARAMETER }
    }

    /// Adds or removes an endpoint's references to its PZ and EVDs.
    fn hold(&mut self, side: usize, pz: Option<usize>, evds: [Option<usize>; 3], take: bool) {
        let change = |count: &mut u32| {
            if take {
                *count += 1;
            } else {
                *count -= 1;
            }
        };
        let model = &mut self.sides[side];
        if let Some(pz) = pz.and_then(|at| model.pzs[at].live_mut()) {
            change(&mut pz.users);
        }
        for evd in evds.into_iter().flatten() {
            if let Some(evd) = model.evds[evd].live_mut() {
                change(&mut evd.feeders);
            }
        }
    }

    /// Makes calls on endpoints.
    pub fn call_ep(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        match *op {
            Op::EpCreate {
                ep,
                pz,
                evds,
                srq,
                modes,
            } => {
                let Some((zone, handles, mut want)) = self.setup(side, pz, evds) else {
                    return Ok(None);
                };
                if self.sides[side].eps[ep].live().is_some() {
                    return Ok(None);
                }
                let pool = match srq {
                    Some(at) => match self.sides[side].srqs[at].any() {
                        Some(object) => Some(object.handle),
                        None => return Ok(None),
                    },
                    None => None,
                };
                if let Some(at) = srq {
                    want = want.and(named(&self.sides[side].srqs[at]));
                }
                // Only receives may use SOLICITED_WAIT, because the peer's flag does not affect requests.
                if want.is_ok() && modes[1] == 2 {
                    want = INVALID_PARAMETER;
                }
                let want = want.and(self.may_feed(side, None, evds, modes));
                let ia = &mut self.ias[side];
                let attr = attributes(ia, modes);
                let [recv, request, connect] = handles;
                let made = match pool {
                    Some(pool) => ia.ep_create_with_srq(
                        zone,
                        EpEvds {
                            recv,
                            request,
                            connect,
                        },
                        pool,
                        &attr,
                    ),
                    None => ia.ep_create(
                        zone,
                        EpEvds {
                            recv,
                            request,
                            connect,
                        },
                        Some(&attr),
                    ),
                };
                if let Some(handle) = compare(made, want)? {
                    self.hold(side, pz, evds, true);
                    let model = &mut self.sides[side];
                    if let Some(srq) = srq.and_then(|at| model.srqs[at].live_mut()) {
                        srq.users += 1;
                    }
                    model.eps[ep] = Place::Taken(Ep {
                        handle,
                        state: S::Unconnected,
                        pz,
                        evds,
                        srq,
                        recvs: Default::default(),
                        peer: None,
                        qualifier: None,
                        context: 0,
                        soft: None,
                        hard: None,
                        modes,
                    });
                }
            }
            Op::EpSetWatermark { ep, soft, hard } => {
                let place = &self.sides[side].eps[ep];
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let mut want = named(place);
                if want.is_ok() && object.srq.is_some() && (soft == Some(0) || hard == Some(0)) {
                    want = Err(ReturnType::ModelNotSupported);
                }
                let got = self.ias[side].ep_set_watermark(object.handle, soft, hard);
                compare(got, want)?;
                if want.is_ok() {
                    if let Some(object) = self.sides[side].eps[ep].live_mut() {
                        (object.soft, object.hard) = (soft, hard);
                    }
                    self.check_watermarks(side, ep);
                }
            }
            Op::EpModify { ep, pz, evds } => {
                let Some((zone, handles, verdict)) = self.setup(side, pz, evds) else {
                    return Ok(None);
                };
                let Some(place) = self.sides[side].eps.get(ep) else {
                    return Ok(None);
                };
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let mut want = named(place);
                if want.is_ok() {
                    want = match object.state {
                        S::Unconnected | S::TentativeConnectionPending => verdict,
                        _ => INVALID_STATE,
                    };
                }
                // The endpoint's streams in its old EVDs do not count: it is about to move to the new EVDs.
                want = want.and(self.may_feed(side, Some(ep), evds, [0, 0]));
                let posted = !object.recvs.is_empty();
                if want.is_ok() && posted && (pz.is_none() || object.modes[0] != 0) {
                    want = INVALID_STATE;
                }
                let change = EpChange {
                    pz: Some(zone),
                    recv_evd: Some(handles[0]),
                    request_evd: Some(handles[1]),
                    connect_evd: Some(handles[2]),
                    // Until this call, a lent endpoint has the attributes that the provider chose.
                    attr: Some(attributes(&self.ias[side], [0, 0])),
                    ..EpChange::default()
                };
                let (handle, old_pz, old_evds) = (object.handle, object.pz, object.evds);
                compare(self.ias[side].ep_modify(handle, &change), want)?;
                if want.is_ok() {
                    self.hold(side, old_pz, old_evds, false);
                    self.hold(side, pz, evds, true);
                    let moved = old_pz != pz;
                    if let Some(object) = self.sides[side].eps[ep].live_mut() {
                        (object.pz, object.evds, object.modes) = (pz, evds, [0, 0]);
                        if moved {
                            // The posted receives have keys of the old PZ, so they fail when a message arrives, like
                            // buffers in a freed region.
                            for piece in object
                                .recvs
                                .iter_mut()
                                .flat_map(|buffer| &mut buffer.segments)
                            {
                                piece.region = 0;
                            }
                        }
                    }
                }
            }
            Op::EpQuery(at) | Op::EpGetStatus(at) | Op::EpRecvQuery(at) => {
                let place = &self.sides[side].eps[at];
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let (handle, want) = (object.handle, named(place));
                let ia = &mut self.ias[side];
                let count = u32::try_from(object.recvs.len()).expect("few");
                match op {
                    Op::EpQuery(_) => {
                        if let Some(param) = compare(ia.ep_query(handle), want)? {
                            equal("state", param.state, object.state)?;
                            let connected = object.state == S::Connected;
                            let known = param.remote_ia_address.is_some();
                            equal("a peer", known || !connected, true)?;
                        }
                    }
                    Op::EpGetStatus(_) => {
                        if let Some(status) = compare(ia.ep_get_status(handle), want)? {
                            equal("state", status.state, object.state)?;
                        }
                    }
                    _ => {
                        if let Some(held) = compare(ia.ep_recv_query(handle), want)? {
                            let known = object.srq.is_none().then_some(count);
                            equal("nbufs_allocated", held.nbufs_allocated, known)?;
                        }
                    }
                }
            }
            Op::EpConnect { ep, qualifier } => {
                let place = &self.sides[side].eps[ep];
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let want = Self::may_begin(place);
                let Some(qualifier) = self.sides[1 - side].qualifier(qualifier) else {
                    return Ok(None);
                };
                let address = self.ias[1 - side].query().ia.ia_address;
                let got = self.ias[side].ep_connect(
                    object.handle,
                    address,
                    ConnQual(qualifier),
                    PATIENCE,
                    b"hello",
                    Qos::BEST_EFFORT,
                    ConnectFlags::empty(),
                );
                compare(got, want)?;
                if want.is_ok() {
                    self.begin(side, ep, Some(qualifier));
                }
            }
            Op::EpDupConnect { ep, dup } => {
                let model = &self.sides[side];
                let (Some(one), Some(other)) = (model.eps[ep].any(), model.eps[dup].any()) else {
                    return Ok(None);
                };
                let handles = named(&model.eps[ep]).and(named(&model.eps[dup]));
                let connected = match other.state {
                    S::Connected => Ok(()),
                    _ => INVALID_STATE,
                };
                let want = handles.and(connected).and(Self::may_begin(&model.eps[ep]));
                let (handle, qualifier) = (one.handle, other.qualifier);
                let got = self.ias[side].ep_dup_connect(
                    handle,
                    other.handle,
                    PATIENCE,
                    b"",
                    Qos::BEST_EFFORT,
                );
                compare(got, want)?;
                if want.is_ok() {
                    // An endpoint of the active side knows the qualifier to which it connected. An endpoint of the
                    // passive side has none: no service point listens at the port from which its peer connected.
                    self.begin(side, ep, qualifier);
                }
            }
            Op::EpDisconnect { ep, graceful } => {
                let place = &self.sides[side].eps[ep];
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let state = object.state;
                let mut want = named(place);
                if want.is_ok()
                    && matches!(
                        state,
                        S::Unconnected
                            | S::Reserved
                            | S::PassiveConnectionPending
                            | S::TentativeConnectionPending
                    )
                {
                    want = INVALID_STATE;
                }
                let flags = if graceful {
                    CloseFlags::Graceful
                } else {
                    CloseFlags::Abrupt
                };
                compare(self.ias[side].ep_disconnect(object.handle, flags), want)?;
                if want.is_ok() && state != S::Disconnected {
                    self.abandon(side, ep);
                    self.disconnect(side, ep, &[Kind::Disconnected], &[Kind::Disconnected]);
                }
            }
            Op::EpReset(ep) => {
                let place = &self.sides[side].eps[ep];
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let mut want = named(place);
                if want.is_ok() && !matches!(object.state, S::Unconnected | S::Disconnected) {
                    want = INVALID_STATE;
                }
                compare(self.ias[side].ep_reset(object.handle), want)?;
                if want.is_ok()
                    && let Some(object) = self.sides[side].eps[ep].live_mut()
                {
                    object.state = S::Unconnected;
                    object.qualifier = None;
                }
            }
            Op::EpFree(ep) => {
                let Some(place) = self.sides[side].eps.get(ep) else {
                    return Ok(None);
                };
                let Some(object) = place.any() else {
                    return Ok(None);
                };
                let mut want = named(place);
                if want.is_ok()
                    && matches!(
                        object.state,
                        S::Reserved | S::PassiveConnectionPending | S::TentativeConnectionPending
                    )
                {
                    want = INVALID_STATE;
                }
                let (pz, evds, srq, peer) = (object.pz, object.evds, object.srq, object.peer);
                compare(self.ias[side].ep_free(object.handle), want)?;
                if want.is_ok() {
                    self.abandon(side, ep);
                    self.hold(side, pz, evds, false);
                    let model = &mut self.sides[side];
                    if let Some(srq) = srq.and_then(|at| model.srqs[at].live_mut()) {
                        srq.users -= 1;
                    }
                    model.eps[ep].end();
                    if let Some(peer) = peer {
                        self.sides[1 - side].end(peer, &[Kind::Disconnected]);
                    }
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Returns whether an endpoint may start to connect.
    fn may_begin(place: &Place<Ep>) -> Verdict {
        match place.live() {
            None => INVALID_HANDLE,
            Some(ep) if ep.state != S::Unconnected || ep.pz.is_none() => INVALID_STATE,
            Some(_) => Ok(()),
        }
    }

    /// Records that an endpoint has sent a connection request to a qualifier of the other side.
    fn begin(&mut self, side: usize, ep: usize, qualifier: Option<u64>) {
        if let Some(object) = self.sides[side].eps[ep].live_mut() {
            object.state = S::ActiveConnectionPending;
            object.qualifier = qualifier;
        }
        let there = &self.sides[1 - side];
        match qualifier.filter(|&at| there.listener(at).is_some()) {
            Some(qualifier) => self.arrive(1 - side, Some(ep), qualifier),
            None => self.sides[side].end(ep, &[Kind::NonPeerRejected]),
        }
    }

    /// Records that a request has arrived at a service point of a side.
    fn arrive(&mut self, side: usize, from: Option<usize>, qualifier: u64) {
        let model = &mut self.sides[side];
        let Some((evd, lent, ep, rsp)) = model.listener(qualifier) else {
            return;
        };
        let reports_here = |ep: &&Ep| ep.evds[2] == Some(evd);
        let endpoints = model.eps.iter().filter_map(Place::live);
        let endpoints = endpoints.filter(reports_here).count();
        let refuses = |evd: &Evd| evd.refuses_requests(endpoints);
        if model.evds[evd].live().is_some_and(refuses) {
            // The EVD has no space for the request's event, so the provider rejects the request.
            if let Some(from) = from {
                self.sides[1 - side].end(from, &[Kind::NonPeerRejected]);
            }
            return;
        }
        if let Some(rsp) = rsp.and_then(|at| model.rsps[at].live_mut()) {
            rsp.spent = true;
            if let Some(evd) = model.evds[evd].live_mut() {
                evd.feeders -= 1;
            }
        }
        if let Some(ep) = ep.and_then(|at| model.eps[at].live_mut()) {
            ep.state = S::PassiveConnectionPending;
        }
        model.crs.push(Cr {
            handle: None,
            from,
            ep,
            lent,
            decided: false,
        });
        let request = Expected::Request(model.crs.len() - 1);
        model.expect(Some(evd), request, None);
    }

    /// Returns the endpoint of a decided request to its owner: the consumer's endpoint becomes UNCONNECTED, a lent
    /// endpoint ends.
    fn give_back(&mut self, side: usize, cr: usize) {
        let request = &self.sides[side].crs[cr];
        let (ep, lent) = (request.ep, request.lent);
        let Some(ep) = ep else { return };
        if !lent {
            if let Some(ep) = self.sides[side].eps[ep].live_mut() {
                ep.state = S::Unconnected;
            }
        } else if let Some(object) = self.sides[side].eps[ep].live() {
            let (pz, evds) = (object.pz, object.evds);
            self.hold(side, pz, evds, false);
            self.sides[side].eps[ep].end();
        }
    }

    /// Records that a request was rejected. The requesting endpoint gets an event of kind `how`.
    pub fn refuse(&mut self, side: usize, cr: usize, how: Kind) {
        self.give_back(side, cr);
        let request = &mut self.sides[side].crs[cr];
        request.decided = true;
        if let Some(from) = request.from.take() {
            self.sides[1 - side].end(from, &[how]);
        }
    }

    /// Makes calls on service points.
    pub fn call_listener(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        let (ia, model) = (&mut self.ias[side], &mut self.sides[side]);
        let in_use = |taken: bool| {
            if taken {
                Err(ReturnType::ConnQualInUse)
            } else {
                Ok(())
            }
        };
        match *op {
            Op::PspCreate {
                psp,
                qualifier,
                evd,
                provider,
            } => {
                let Some(object) = model.evds[evd].any() else {
                    return Ok(None);
                };
                // No service point may ever listen at the last qualifier.
                if model.psps[psp].live().is_some() || qualifier + 1 == QUALIFIERS.len() {
                    return Ok(None);
                }
                let mut want = named(&model.evds[evd]);
                if object.flags & 0x010 == 0 {
                    want = INVALID_HANDLE;
                }
                if want.is_ok() && model.streams(evd, None).chosen() {
                    want = INVALID_PARAMETER;
                }
                let qualifier = QUALIFIERS[qualifier];
                let want = want.and(in_use(model.listener(qualifier).is_some()));
                let flags = if provider {
                    PspFlags::PROVIDER
                } else {
                    PspFlags::CONSUMER
                };
                let made = ia.psp_create(ConnQual(qualifier), object.handle, flags);
                if let Some(handle) = compare(made, want)? {
                    if let Some(evd) = model.evds[evd].live_mut() {
                        evd.feeders += 1;
                    }
                    model.psps[psp] = Place::Taken(Psp {
                        handle,
                        qualifier,
                        evd,
                        provider,
                    });
                }
            }
            Op::PspCreateAny { psp, evd, provider } => {
                let Some(object) = model.evds[evd].any() else {
                    return Ok(None);
                };
                if model.psps[psp].live().is_some() {
                    return Ok(None);
                }
                let mut want = named(&model.evds[evd]);
                if object.flags & 0x010 == 0 {
                    want = INVALID_HANDLE;
                }
                if want.is_ok() && model.streams(evd, None).chosen() {
                    want = INVALID_PARAMETER;
                }
                let flags = if provider {
                    PspFlags::PROVIDER
                } else {
                    PspFlags::CONSUMER
                };
                let made = ia.psp_create_any(object.handle, flags);
                if let Some((ConnQual(qualifier), handle)) = compare(made, want)? {
                    equal("used", model.listener(qualifier).is_some(), false)?;
                    equal("usual", QUALIFIERS.contains(&qualifier), false)?;
                    if let Some(evd) = model.evds[evd].live_mut() {
                        evd.feeders += 1;
                    }
                    model.found[psp] = Some(qualifier);
                    model.psps[psp] = Place::Taken(Psp {
                        handle,
                        qualifier,
                        evd,
                        provider,
                    });
                }
            }
            Op::PspQuery(at) => {
                let Some(psp) = model.psps[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.psp_query(psp.handle), named(&model.psps[at]))? {
                    equal("conn_qual", param.conn_qual, ConnQual(psp.qualifier))?;
                }
            }
            Op::PspFree(at) => {
                let Some(psp) = model.psps[at].any() else {
                    return Ok(None);
                };
                let (want, evd) = (named(&model.psps[at]), psp.evd);
                compare(ia.psp_free(psp.handle), want)?;
                if want.is_ok() {
                    model.psps[at].end();
                    if let Some(evd) = model.evds[evd].live_mut() {
                        evd.feeders -= 1;
                    }
                }
            }
            Op::RspCreate {
                rsp,
                qualifier,
                ep,
                evd,
            } => {
                let Some(object) = model.evds[evd].any() else {
                    return Ok(None);
                };
                if model.rsps[rsp].live().is_some() || qualifier + 1 == QUALIFIERS.len() {
                    return Ok(None);
                }
                let mut want = named(&model.evds[evd]);
                if object.flags & 0x010 == 0 {
                    want = INVALID_HANDLE;
                }
                if want.is_ok() && model.streams(evd, None).chosen() {
                    want = INVALID_PARAMETER;
                }
                let reserved = match ep {
                    Some(at) => match model.eps[at].any() {
                        Some(ep) => {
                            want = want.and(named(&model.eps[at]));
                            if ep.state != S::Unconnected {
                                want = want.and(INVALID_STATE);
                            }
                            Some(ep.handle)
                        }
                        None => return Ok(None),
                    },
                    None => None,
                };
                let qualifier = QUALIFIERS[qualifier];
                let want = want.and(in_use(model.listener(qualifier).is_some()));
                let made = ia.rsp_create(ConnQual(qualifier), reserved, object.handle);
                if let Some(handle) = compare(made, want)? {
                    if let Some(evd) = model.evds[evd].live_mut() {
                        evd.feeders += 1;
                    }
                    if let Some(ep) = ep.and_then(|at| model.eps[at].live_mut()) {
                        ep.state = S::Reserved;
                    }
                    model.rsps[rsp] = Place::Taken(Rsp {
                        handle,
                        qualifier,
                        evd,
                        ep,
                        spent: false,
                    });
                }
            }
            Op::RspQuery(at) => {
                let Some(rsp) = model.rsps[at].any() else {
                    return Ok(None);
                };
                if let Some(param) = compare(ia.rsp_query(rsp.handle), named(&model.rsps[at]))? {
                    equal("conn_qual", param.conn_qual, ConnQual(rsp.qualifier))?;
                }
            }
            Op::RspFree(at) => {
                let Some(rsp) = model.rsps[at].any() else {
                    return Ok(None);
                };
                let (want, evd, ep, spent) = (named(&model.rsps[at]), rsp.evd, rsp.ep, rsp.spent);
                compare(ia.rsp_free(rsp.handle), want)?;
                if want.is_ok() {
                    model.rsps[at].end();
                    if !spent {
                        if let Some(evd) = model.evds[evd].live_mut() {
                            evd.feeders -= 1;
                        }
                        if let Some(ep) = ep.and_then(|at| model.eps[at].live_mut()) {
                            ep.state = S::Unconnected;
                        }
                    }
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Makes calls on connection requests.
    pub fn call_cr(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        let (Op::CrQuery(at) | Op::CrReject(at)) = *op else {
            return self.call_decision(side, op);
        };
        let crs = &self.sides[side].crs;
        let Some((index, handle)) = Self::pick(crs.len(), at, crs) else {
            return Ok(None);
        };
        let request = &self.sides[side].crs[index];
        let want = if request.decided {
            INVALID_HANDLE
        } else {
            Ok(())
        };
        if let Op::CrQuery(_) = op {
            if let Some(param) = compare(self.ias[side].cr_query(handle), want)? {
                equal(
                    "an endpoint",
                    param.local_ep.is_some(),
                    request.ep.is_some(),
                )?;
            }
            return Ok(Some(()));
        }
        compare(self.ias[side].cr_reject(handle), want)?;
        if want.is_ok() {
            self.refuse(side, index, Kind::PeerRejected);
        }
        Ok(Some(()))
    }

    /// Returns the index and the handle of a request. `at` counts from the newest request, which is 0. Returns `None`
    /// if there is no such request, or if its handle is not known yet.
    fn pick(count: usize, at: usize, crs: &[Cr]) -> Option<(usize, udapl::connection::CrHandle)> {
        let index = count.checked_sub(at + 1)?;
        Some((index, crs[index].handle?))
    }

    fn call_decision(&mut self, side: usize, op: &Op) -> Result<Option<()>, String> {
        match *op {
            Op::CrAccept { cr, ep } => {
                let model = &self.sides[side];
                let Some((index, handle)) = Self::pick(model.crs.len(), cr, &model.crs) else {
                    return Ok(None);
                };
                let request = &model.crs[index];
                let given = match ep {
                    Some(at) => match model.eps[at].any() {
                        Some(object) => Some(object.handle),
                        None => return Ok(None),
                    },
                    None => None,
                };
                let want = if request.decided || ep.is_some() == request.ep.is_some() {
                    INVALID_HANDLE
                } else {
                    let target = ep.or(request.ep).map(|at| &model.eps[at]);
                    match target.and_then(Place::live) {
                        None => INVALID_HANDLE,
                        Some(target) => {
                            let right = match (ep, request.lent) {
                                (Some(_), _) => S::Unconnected,
                                (None, true) => S::TentativeConnectionPending,
                                (None, false) => S::PassiveConnectionPending,
                            };
                            if target.state == right && target.pz.is_some() {
                                Ok(())
                            } else {
                                INVALID_STATE
                            }
                        }
                    }
                };
                let (target, from) = (ep.or(request.ep), request.from);
                compare(self.ias[side].cr_accept(handle, given, b"welcome"), want)?;
                if want.is_ok()
                    && let Some(target) = target
                {
                    self.accepted(side, index, target, from);
                }
            }
            Op::CrHandoff { cr, qualifier } => {
                let model = &self.sides[side];
                let Some((index, handle)) = Self::pick(model.crs.len(), cr, &model.crs) else {
                    return Ok(None);
                };
                let qualifier = QUALIFIERS[qualifier];
                let want = if model.crs[index].decided {
                    INVALID_HANDLE
                } else if model.listener(qualifier).is_none() {
                    Err(ReturnType::InvalidParameter)
                } else {
                    Ok(())
                };
                compare(self.ias[side].cr_handoff(handle, ConnQual(qualifier)), want)?;
                if want.is_ok() {
                    self.give_back(side, index);
                    let request = &mut self.sides[side].crs[index];
                    request.decided = true;
                    let from = request.from.take();
                    self.arrive(side, from, qualifier);
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Records that a request was accepted. Both ends are connected, unless the requester has given up.
    fn accepted(&mut self, side: usize, cr: usize, target: usize, from: Option<usize>) {
        let request = &mut self.sides[side].crs[cr];
        request.decided = true;
        request.from = None;
        let Some(from) = from else {
            self.sides[side].end(target, &[Kind::AcceptCompletionError]);
            return;
        };
        for (side, ep, peer) in [(side, target, from), (1 - side, from, target)] {
            let model = &mut self.sides[side];
            let Some(object) = model.eps[ep].live_mut() else {
                continue;
            };
            object.state = S::Connected;
            object.peer = Some(peer);
            let (ep, evd) = (object.handle, object.evds[2]);
            let kinds = vec![Kind::Established];
            model.expect(evd, Expected::Connection { ep, kinds }, None);
        }
        self.check_watermarks(side, target);
        self.check_watermarks(1 - side, from);
    }

    /// Checks the high watermarks after new receives, new watermarks or a connection, and disconnects if the hard
    /// watermark is exceeded.
    pub fn check_watermarks(&mut self, side: usize, ep: usize) {
        if self.sides[side].check_high_watermarks(ep) {
            self.disconnect(side, ep, BROKEN, BROKEN);
        }
    }
}
