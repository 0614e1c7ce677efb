//! Expected state of the adapters: a small model of DAT beside the real handles.
//!
//! The model has neither time nor a wire: after each call both sides run until they are idle, so every call has its
//! whole effect before the next call. Events are expected per stream. Streams are an endpoint's receives, its requests
//! and its connection, binds, the connection requests of service points, and the consumer's software events. The events
//! of one stream are ordered. Events of different streams have no order between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use udapl::connection::{CrHandle, PspHandle, RspHandle};
use udapl::endpoint::EpState;
use udapl::event::AsyncEvent;
use udapl::memory::{LmrCreated, PzHandle, RmrHandle};
use udapl::srq::SrqHandle;
use udapl::wait::CnoHandle;
use udapl::{ConnectionEventKind, DtoStatus, EpHandle, EvdHandle, Event};

use super::op::{PLACES, QUALIFIERS};

/// Number of receives, and of requests, that an endpoint may have outstanding.
pub const DTOS: u32 = 8;

/// A slot for an object of one kind.
#[derive(Clone)]
pub enum Place<T> {
    Empty,
    Taken(T),
    /// The object was freed, and its handle is kept for further calls.
    Gone(T),
}

impl<T> Place<T> {
    /// Returns the object if it exists.
    pub fn live(&self) -> Option<&T> {
        match self {
            Self::Taken(object) => Some(object),
            Self::Empty | Self::Gone(_) => None,
        }
    }

    pub fn live_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Taken(object) => Some(object),
            Self::Empty | Self::Gone(_) => None,
        }
    }

    /// Returns the object that a call can name: it exists, or it was freed and its handle is kept.
    pub fn any(&self) -> Option<&T> {
        match self {
            Self::Taken(object) | Self::Gone(object) => Some(object),
            Self::Empty => None,
        }
    }

    pub fn end(&mut self) {
        if let Self::Taken(object) = std::mem::replace(self, Self::Empty) {
            *self = Self::Gone(object);
        }
    }
}

pub struct Pz {
    pub handle: PzHandle,
    pub users: u32,
}

pub struct Lmr {
    pub created: LmrCreated,
    pub memory: udapl::DmaMemory,
    pub pz: usize,
    pub rights: u32,
    /// Unique number of the region.
    pub number: u64,
}

pub struct Evd {
    pub handle: EvdHandle,
    pub flags: u32,
    pub qlen: u32,
    pub waitable: bool,
    pub enabled: bool,
    pub cno: Option<usize>,
    /// Number of streams of endpoints and service points that feed this EVD.
    pub feeders: u32,
    pub queue: Vec<Queued>,
}

impl Evd {
    /// Returns whether another event would be lost. Completions are never lost.
    pub fn is_full(&self) -> bool {
        self.is_full_but_for(0)
    }

    /// Returns whether the EVD refuses a connection request. One entry is reserved for each endpoint whose connection
    /// events arrive here, up to half of the queue.
    pub fn refuses_requests(&self, endpoints: usize) -> bool {
        self.is_full_but_for(endpoints.min(self.qlen as usize / 2))
    }

    fn is_full_but_for(&self, kept: usize) -> bool {
        let completion =
            |queued: &&Queued| matches!(queued.what, Expected::Dto { .. } | Expected::Bind { .. });
        let completions = self.queue.iter().filter(completion).count();
        self.queue.len() - completions + kept >= self.qlen as usize
    }
}

/// An expected event.
pub struct Queued {
    pub what: Expected,
    /// SRQ that counts this event among its completions that are not dequeued.
    pub srq: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    Dto {
        ep: EpHandle,
        request: bool,
        cookie: u64,
        /// Number of bytes, compared only if the status is success.
        bytes: u64,
        status: DtoStatus,
    },
    Bind {
        rmr: RmrHandle,
        cookie: u64,
        status: DtoStatus,
    },
    /// A connection event of one of these kinds.
    Connection {
        ep: EpHandle,
        kinds: Vec<ConnectionEventKind>,
    },
    /// A request, by its index on this side.
    Request(usize),
    Software(u64),
}

impl Expected {
    /// Returns whether `event` belongs to the same stream as this expected event.
    pub fn is_of_stream(&self, event: &Event) -> bool {
        match (self, event) {
            (Self::Dto { ep, request, .. }, Event::Dto(done)) => {
                (*ep, *request) == (done.ep, done.request)
            }
            (Self::Connection { ep, .. }, Event::Connection(event)) => *ep == event.ep,
            (Self::Bind { .. }, Event::RmrBind(_)) => true,
            (Self::Request(_), Event::ConnectionRequest(_)) => true,
            (Self::Software(_), Event::Software(_)) => true,
            _ => false,
        }
    }

    /// Returns whether `event`, which is of the same stream, is this expected event.
    pub fn is(&self, event: &Event) -> bool {
        match (self, event) {
            (
                Self::Dto {
                    cookie,
                    bytes,
                    status,
                    ..
                },
                Event::Dto(done),
            ) => {
                (*cookie, *status) == (done.cookie.0, done.status)
                    && (*status != DtoStatus::Success || *bytes == done.transferred_length)
            }
            (
                Self::Bind {
                    rmr,
                    cookie,
                    status,
                },
                Event::RmrBind(done),
            ) => (*rmr, *cookie, *status) == (done.rmr, done.cookie.0, done.status),
            (Self::Connection { kinds, .. }, Event::Connection(event)) => {
                kinds.contains(&event.kind)
            }
            (Self::Request(_), Event::ConnectionRequest(_)) => true,
            (Self::Software(word), Event::Software(event)) => *word == event.0,
            _ => false,
        }
    }
}

pub struct Cno {
    pub handle: CnoHandle,
    pub evds: u32,
    pub triggered: bool,
    /// True if an agent is set and has not been called.
    pub agent: bool,
    /// Number of agent calls that are expected.
    pub calls: u32,
    pub agent_calls: Arc<AtomicU32>,
}

impl Cno {
    /// Handles a notification event on one of the CNO's EVDs.
    fn trigger(&mut self) {
        if !self.triggered {
            self.triggered = true;
            self.call();
        }
    }

    /// Calls the agent, if there is one.
    fn call(&mut self) {
        self.calls += u32::from(std::mem::take(&mut self.agent));
    }

    /// Records that one of the CNO's EVDs has ended.
    pub fn evd_ended(&mut self) {
        self.evds -= 1;
        if self.evds == 0 {
            self.dissolve();
        }
    }

    /// Applies the end of all EVDs to the CNO: clears the trigger, and calls the agent if one is set.
    pub fn dissolve(&mut self) {
        self.triggered = false;
        self.call();
    }
}

/// A posted receive.
#[derive(Clone)]
pub struct Buffer {
    pub cookie: u64,
    pub quiet: bool,
    pub segments: Vec<Piece>,
}

/// A part of a region, which is given by the region's number.
#[derive(Clone, Copy)]
pub struct Piece {
    pub bytes: u64,
    pub region: u64,
}

impl Buffer {
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|piece| piece.bytes).sum()
    }

    /// Returns the numbers of the regions in which the first `bytes` bytes of the buffer are.
    pub fn touched(&self, bytes: u64) -> impl Iterator<Item = u64> {
        let mut left = bytes;
        self.segments
            .iter()
            .take_while(move |piece| {
                let more = left > 0;
                left = left.saturating_sub(piece.bytes);
                more
            })
            .map(|piece| piece.region)
    }
}

pub struct Srq {
    pub handle: SrqHandle,
    pub pz: usize,
    pub length: u32,
    pub buffers: VecDeque<Buffer>,
    /// Number of completed receives that are not dequeued yet.
    pub undequeued: u32,
    pub users: u32,
    pub low_watermark: u32,
    /// True while the low watermark event may still be sent.
    pub armed: bool,
}

pub struct Rmr {
    pub handle: RmrHandle,
    pub pz: usize,
    /// Present and previous RMR context.
    pub contexts: [Option<u32>; 2],
    pub bound: Option<Bound>,
}

/// Target of a bound RMR.
#[derive(Clone, Copy)]
pub struct Bound {
    /// Slot of the region, which cannot be freed while the RMR is bound.
    pub lmr: usize,
    pub at: u64,
    pub bytes: u64,
    pub rights: u32,
}

pub struct Psp {
    pub handle: PspHandle,
    pub qualifier: u64,
    pub evd: usize,
    pub provider: bool,
}

pub struct Rsp {
    pub handle: RspHandle,
    pub qualifier: u64,
    pub evd: usize,
    pub ep: Option<usize>,
    pub spent: bool,
}

pub struct Ep {
    pub handle: EpHandle,
    pub state: EpState,
    pub pz: Option<usize>,
    /// EVDs for receives, requests and connection events.
    pub evds: [Option<usize>; 3],
    pub srq: Option<usize>,
    pub recvs: VecDeque<Buffer>,
    /// Slot of the other side's endpoint, while this endpoint is CONNECTED.
    pub peer: Option<usize>,
    /// Qualifier to which this side sent the connection request.
    pub qualifier: Option<u64>,
    pub context: u64,
    /// Soft and hard high watermark. The soft watermark is `None` once its event was sent.
    pub soft: Option<u32>,
    pub hard: Option<u32>,
    /// Completion flags of receives and requests, as in `Op::EpCreate`.
    pub modes: [u32; 2],
}

/// A connection request.
pub struct Cr {
    /// Handle of the request, known once its event was dequeued.
    pub handle: Option<CrHandle>,
    /// Slot of the other side's endpoint that sent the request, while it waits for the decision.
    pub from: Option<usize>,
    /// Slot of the request's endpoint. A lent endpoint gets a slot when the request's event is dequeued.
    pub ep: Option<usize>,
    pub lent: bool,
    pub decided: bool,
}

/// The streams whose events an EVD gets.
#[derive(Default)]
pub struct Streams {
    modes: Vec<u32>,
    pub others: bool,
}

impl Streams {
    /// Adds the streams of an endpoint that go to this EVD.
    pub fn add(&mut self, evd: usize, evds: [Option<usize>; 3], modes: [u32; 2]) {
        for (at, mode) in evds.into_iter().zip(modes) {
            self.modes.extend((at == Some(evd)).then_some(mode));
        }
        self.others |= evds[2] == Some(evd);
    }

    /// Returns whether these streams may share an EVD. All DTOs must have one completion mode. If it is not
    /// EVD_THRESHOLD, the EVD must have no other stream.
    pub fn may_share(&self) -> bool {
        let equal = self.modes.windows(2).all(|pair| pair[0] == pair[1]);
        equal && !(self.others && self.chosen())
    }

    /// Returns the completion mode that all DTOs have in common.
    pub fn mode(&self) -> u32 {
        self.modes.first().copied().unwrap_or_default()
    }

    /// Returns whether a DTO stream has another completion mode than EVD_THRESHOLD, so that flags select the
    /// completions that notify.
    pub fn chosen(&self) -> bool {
        self.modes.iter().any(|mode| *mode != 0)
    }
}

/// Objects of one side.
pub struct Side {
    pub pzs: Vec<Place<Pz>>,
    pub lmrs: Vec<Place<Lmr>>,
    pub rmrs: Vec<Place<Rmr>>,
    pub evds: Vec<Place<Evd>>,
    pub cnos: Vec<Place<Cno>>,
    pub srqs: Vec<Place<Srq>>,
    /// Endpoints. Lent endpoints follow the consumer's.
    pub eps: Vec<Place<Ep>>,
    pub psps: Vec<Place<Psp>>,
    pub rsps: Vec<Place<Rsp>>,
    pub crs: Vec<Cr>,
    /// Qualifier that the last `psp_create_any` returned for each slot.
    pub found: [Option<u64>; PLACES],
    /// Events expected next on the asynchronous EVD, in any order.
    pub async_events: Vec<AsyncEvent>,
}

fn places<T>() -> Vec<Place<T>> {
    (0..PLACES).map(|_| Place::Empty).collect()
}

impl Side {
    pub fn new() -> Self {
        Self {
            pzs: places(),
            lmrs: places(),
            rmrs: places(),
            evds: places(),
            cnos: places(),
            srqs: places(),
            eps: places(),
            psps: places(),
            rsps: places(),
            crs: Vec::new(),
            found: [None; PLACES],
            async_events: Vec::new(),
        }
    }

    /// Returns the qualifier with this number. The numbers of `QUALIFIERS` come first, then a number for each slot of
    /// `found`.
    pub fn qualifier(&self, number: usize) -> Option<u64> {
        match number.checked_sub(QUALIFIERS.len()) {
            None => Some(QUALIFIERS[number]),
            Some(found) => self.found[found],
        }
    }

    /// Returns the streams that feed an EVD, except those of endpoint `without`: the completion mode of each DTO stream
    /// (as in [`Op::EpCreate`]), and whether other streams feed the EVD.
    ///
    /// [`Op::EpCreate`]: super::op::Op::EpCreate
    pub fn streams(&self, evd: usize, without: Option<usize>) -> Streams {
        let mut streams = Streams::default();
        if let Some(evd) = self.evds[evd].live() {
            streams.others = evd.flags & 1 != 0;
        }
        for (at, ep) in self.eps.iter().enumerate() {
            if let Some(ep) = ep.live().filter(|_| Some(at) != without) {
                streams.add(evd, ep.evds, ep.modes);
            }
        }
        let psps = self.psps.iter().filter_map(Place::live);
        let rsps = self.rsps.iter().filter_map(Place::live);
        let rsps = rsps.filter(|rsp| !rsp.spent).map(|rsp| rsp.evd);
        streams.others |= psps.map(|psp| psp.evd).chain(rsps).any(|at| at == evd);
        streams
    }

    /// Returns the number of RMRs bound to a region.
    pub fn bound_to(&self, lmr: usize) -> usize {
        let rmrs = self.rmrs.iter().filter_map(Place::live);
        rmrs.filter(|rmr| rmr.bound.is_some_and(|bound| bound.lmr == lmr))
            .count()
    }

    /// Ends all objects, as a close of the adapter does. Forgets regions and RMRs, since the device may use their
    /// contexts again.
    pub fn end_all(&mut self) {
        fn end<T>(places: &mut [Place<T>]) {
            places.iter_mut().for_each(Place::end);
        }
        self.lmrs = places();
        self.rmrs = places();
        end(&mut self.pzs);
        end(&mut self.evds);
        end(&mut self.cnos);
        end(&mut self.srqs);
        end(&mut self.eps);
        end(&mut self.psps);
        end(&mut self.rsps);
        for cr in &mut self.crs {
            cr.decided = true;
            cr.from = None;
        }
        self.async_events.clear();
    }

    /// Returns the service point that listens at a qualifier: its EVD, whether the provider lends the endpoint, the
    /// endpoint of an RSP, and the slot of an RSP.
    pub fn listener(&self, qualifier: u64) -> Option<(usize, bool, Option<usize>, Option<usize>)> {
        let psp = self.psps.iter().filter_map(Place::live);
        let psp = psp
            .filter(|psp| psp.qualifier == qualifier)
            .map(|psp| (psp.evd, psp.provider, None, None));
        let rsps = self.rsps.iter().enumerate();
        let rsp = rsps
            .filter_map(|(at, rsp)| Some((at, rsp.live()?)))
            .filter(|(_, rsp)| rsp.qualifier == qualifier && !rsp.spent)
            .map(|(at, rsp)| (rsp.evd, rsp.ep.is_none(), rsp.ep, Some(at)));
        psp.chain(rsp).next()
    }

    /// Expects a notification event on an EVD and triggers the EVD's CNO. Without an EVD the event is dropped.
    pub fn expect(&mut self, evd: Option<usize>, what: Expected, srq: Option<usize>) {
        self.expect_one(evd, what, srq, true);
    }

    /// Expects an event on an EVD, which is a notification event if `notify` is set.
    pub fn expect_one(
        &mut self,
        evd: Option<usize>,
        what: Expected,
        srq: Option<usize>,
        notify: bool,
    ) {
        let Some(evd) = evd.and_then(|at| self.evds[at].live_mut()) else {
            return;
        };
        if !matches!(what, Expected::Dto { .. } | Expected::Bind { .. }) && evd.is_full() {
            self.async_events.push(AsyncEvent::EvdOverflow(evd.handle));
            return;
        }
        evd.queue.push(Queued { what, srq });
        if notify
            && evd.enabled
            && let Some(cno) = evd.cno
            && let Some(cno) = self.cnos[cno].live_mut()
        {
            cno.trigger();
        }
    }

    /// Flushes the receives that are posted to the endpoint itself, not to an SRQ.
    pub fn flush(&mut self, ep: usize) {
        let Some(target) = self.eps[ep].live_mut() else {
            return;
        };
        let (handle, evd) = (target.handle, target.evds[0]);
        for buffer in std::mem::take(&mut target.recvs) {
            let flushed = Expected::Dto {
                ep: handle,
                request: false,
                cookie: buffer.cookie,
                bytes: 0,
                status: DtoStatus::ErrFlushed,
            };
            self.expect(evd, flushed, None);
        }
    }

    /// Ends an endpoint's connection or its attempt to connect. The endpoint gets an event of one of these kinds.
    pub fn end(&mut self, ep: usize, kinds: &[ConnectionEventKind]) {
        let Some(target) = self.eps[ep].live_mut() else {
            return;
        };
        target.state = EpState::Disconnected;
        target.peer = None;
        let (handle, evd) = (target.handle, target.evds[2]);
        self.flush(ep);
        let ended = Expected::Connection {
            ep: handle,
            kinds: kinds.to_vec(),
        };
        self.expect(evd, ended, None);
    }

    /// Expects the low watermark event of an SRQ if it is due. Called after the SRQ lost a buffer or got a new
    /// watermark.
    pub fn check_low_watermark(&mut self, srq: usize) {
        if let Some(srq) = self.srqs[srq].live_mut()
            && srq.armed
            && srq.buffers.len() < srq.low_watermark as usize
        {
            srq.armed = false;
            self.async_events
                .push(AsyncEvent::SrqLowWatermark(srq.handle));
        }
    }

    /// Expects the soft high watermark event of an endpoint if it is due. Called after new receives, new watermarks or
    /// a connection. Returns whether the hard watermark breaks the connection.
    pub fn check_high_watermarks(&mut self, ep: usize) -> bool {
        let Some(target) = self.eps[ep].live_mut() else {
            return false;
        };
        if target.srq.is_some() {
            return false;
        }
        let exceeded =
            |mark: Option<u32>| mark.is_some_and(|mark| target.recvs.len() > mark as usize);
        let breaks = exceeded(target.hard) && target.state == EpState::Connected;
        if exceeded(target.soft) {
            target.soft = None;
            self.async_events
                .push(AsyncEvent::EpSoftHighWatermark(target.handle));
        }
        breaks
    }

    /// Returns whether the region with this number still exists.
    pub fn has_region(&self, number: u64) -> bool {
        let mut lmrs = self.lmrs.iter().filter_map(Place::live);
        lmrs.any(|lmr| lmr.number == number)
    }
}
