//! What the adapters should hold: a small model of DAT, kept beside the real handles.
//!
//! It knows no time and no wire: after each call both sides run until nothing is left to do, so every call has
//! its whole effect before the next. Events are expected per stream (an endpoint's receives, its requests, its connection,
//! the requests of service points, the consumer's own): streams keep their order, and have none among each other.

use std::collections::VecDeque;

use dat::{
    CnoHandle, ConnectionEventKind, CrHandle, DtoStatus, EpHandle, EpState, EvdHandle, Event,
    LmrCreated, PspHandle, PzHandle, RmrHandle, RspHandle, SrqHandle,
};

use super::op::PLACES;

/// DTOs an endpoint may have outstanding each way.
pub const DTOS: u32 = 8;

/// A place for an object.
#[derive(Clone)]
pub enum Place<T> {
    Empty,
    Taken(T),
    /// What the handle named is gone.
    Gone(T),
}

impl<T> Place<T> {
    /// The object, if it is there.
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

    /// The object, there or gone: what a call can name.
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
    pub memory: dat::DmaMemory,
    pub pz: usize,
    pub rights: u32,
    /// No two regions ever have the same.
    pub number: u64,
}

pub struct Evd {
    pub handle: EvdHandle,
    pub flags: u32,
    pub qlen: u32,
    pub waitable: bool,
    pub enabled: bool,
    pub cno: Option<usize>,
    /// Streams of endpoints and service points.
    pub feeders: u32,
    pub queue: Vec<Queued>,
}

/// An event that should be there.
pub struct Queued {
    pub what: Expected,
    /// The SRQ whose slot it holds.
    pub srq: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    Dto {
        ep: EpHandle,
        request: bool,
        cookie: u64,
        /// Bytes, if it succeeds.
        bytes: u64,
        status: DtoStatus,
    },
    /// One of these.
    Connection {
        ep: EpHandle,
        kinds: Vec<ConnectionEventKind>,
    },
    /// Which of the side's requests.
    Request(usize),
    Software(u64),
}

impl Expected {
    /// Whether an event is of this one's stream.
    pub fn is_of_stream(&self, event: &Event) -> bool {
        match (self, event) {
            (Self::Dto { ep, request, .. }, Event::Dto(done)) => {
                (*ep, *request) == (done.ep, done.request)
            }
            (Self::Connection { ep, .. }, Event::Connection(event)) => *ep == event.ep,
            (Self::Request(_), Event::ConnectionRequest(_)) => true,
            (Self::Software(_), Event::Software(_)) => true,
            _ => false,
        }
    }

    /// Whether an event of its stream is this one.
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
                (*cookie, *status) == (done.cookie, done.status)
                    && (*status != DtoStatus::Success || *bytes == done.transferred_length)
            }
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
}

/// A posted receive.
#[derive(Clone)]
pub struct Buffer {
    pub cookie: u64,
    pub bytes: u64,
    /// The region it is in, if it has any bytes.
    pub region: Option<u64>,
}

pub struct Srq {
    pub handle: SrqHandle,
    pub pz: usize,
    pub length: u32,
    pub buffers: VecDeque<Buffer>,
    /// Completed and not dequeued.
    pub undequeued: u32,
    pub users: u32,
}

pub struct Rmr {
    pub handle: RmrHandle,
    pub pz: usize,
}

pub struct Psp {
    pub handle: PspHandle,
    pub qualifier: usize,
    pub evd: usize,
    pub provider: bool,
}

pub struct Rsp {
    pub handle: RspHandle,
    pub qualifier: usize,
    pub evd: usize,
    pub ep: Option<usize>,
    pub spent: bool,
}

pub struct Ep {
    pub handle: EpHandle,
    pub state: EpState,
    pub pz: Option<usize>,
    /// Receives, requests, connection.
    pub evds: [Option<usize>; 3],
    pub srq: Option<usize>,
    pub recvs: VecDeque<Buffer>,
    /// The other side's endpoint, while CONNECTED.
    pub peer: Option<usize>,
    /// Where a connection went that this side began.
    pub qualifier: Option<usize>,
    pub context: u64,
}

/// A connection request.
pub struct Cr {
    /// Known once its event was dequeued.
    pub handle: Option<CrHandle>,
    /// The other side's endpoint, while it still waits.
    pub from: Option<usize>,
    /// The endpoint it came with; a lent one has a place once the request is known.
    pub ep: Option<usize>,
    pub lent: bool,
    pub decided: bool,
}

/// What one side holds.
pub struct Side {
    pub pzs: Vec<Place<Pz>>,
    pub lmrs: Vec<Place<Lmr>>,
    pub rmrs: Vec<Place<Rmr>>,
    pub evds: Vec<Place<Evd>>,
    pub cnos: Vec<Place<Cno>>,
    pub srqs: Vec<Place<Srq>>,
    /// Lent ones come behind the others.
    pub eps: Vec<Place<Ep>>,
    pub psps: Vec<Place<Psp>>,
    pub rsps: Vec<Place<Rsp>>,
    pub crs: Vec<Cr>,
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
        }
    }

    /// Who listens at a qualifier: its EVD, whether an endpoint is lent, that of an RSP, and which RSP.
    pub fn listener(
        &self,
        qualifier: usize,
    ) -> Option<(usize, bool, Option<usize>, Option<usize>)> {
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

    /// An event should be on an EVD now; a null EVD drops it. What it does to the EVD's CNO is done.
    pub fn expect(&mut self, evd: Option<usize>, what: Expected, srq: Option<usize>) {
        let Some(evd) = evd.and_then(|at| self.evds[at].live_mut()) else {
            return;
        };
        evd.queue.push(Queued { what, srq });
        if evd.enabled
            && let Some(cno) = evd.cno
            && let Some(cno) = self.cnos[cno].live_mut()
        {
            cno.triggered = true;
        }
    }

    /// The receives of an endpoint are flushed, if they are its own.
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

    /// An endpoint's attempt or connection is over, and told of in one of these ways.
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

    /// Whether a region with this number is there still.
    pub fn has_region(&self, number: u64) -> bool {
        let mut lmrs = self.lmrs.iter().filter_map(Place::live);
        lmrs.any(|lmr| lmr.number == number)
    }
}
