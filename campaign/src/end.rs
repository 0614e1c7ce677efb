//! Endpoints and connections, with their known state.

use std::collections::VecDeque;

use udapl::EpHandle;

/// An endpoint that must get an event because its peer's adapter was closed or dropped.
pub struct CloseNotice {
    /// Endpoint that must get the event: its side, the number of that side's opening, and the endpoint's index.
    pub to: (usize, u64, usize),
    pub link: usize,
    /// Deadline for the event, in virtual time (nanoseconds).
    pub by: u64,
    pub turns: u32,
}

/// Number of slots of an endpoint in each direction: the maximum number of outstanding DTOs with data.
pub const WINDOW: usize = 4;

/// Kind of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Send; the request's cookie is the number of the message.
    Send,
    /// A Send that also invalidates this RMR context of the peer.
    Invalidate(u32),
    /// A Write to a slot of the peer.
    Write,
    /// A Read from a slot of the peer.
    Read,
    /// An atomic Fetch and Add of one, at the peer's counter.
    Count,
    /// A Write of no bytes.
    Empty,
    /// A Write with a key that may be void, to memory of the peer that may be freed.
    Attack,
    /// A bind of the adapter's memory window with this index.
    Bind(usize),
}

/// A posted request that has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub cookie: u64,
    pub kind: Kind,
    pub slot: usize,
    pub bytes: usize,
    /// Address and context of the key that the request names, if the key was void when the request was posted, or if
    /// the request tries to invalidate a key that peers may not invalidate.
    pub void: Option<(u64, u32)>,
}

/// State of an endpoint's connection, as the program knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected, and no connection requested.
    Idle,
    /// Reserved for a service point.
    Reserved,
    /// A connection is requested or accepted; an event will report the result.
    Pending,
    /// Connected.
    Up,
    /// The end of the connection was reported, or a request has failed; posted requests are flushed.
    Over,
}

/// An endpoint of an open adapter.
pub struct End {
    /// Handle of the endpoint; `None` if the endpoint was freed and the creation of another has failed so far.
    pub ep: Option<EpHandle>,
    pub phase: Phase,
    /// Index of the connection in the simulation's list, and which end of the connection this endpoint is (0 or 1).
    pub link: Option<(usize, usize)>,
    pub requests: VecDeque<Work>,
    /// Cookies of the posted receives. The low byte of a cookie is the slot.
    pub receives: VecDeque<u64>,
    /// Number of the next request, which determines the slot of the request.
    pub next_request: usize,
    pub next_receive: usize,
    /// True if the endpoint takes receive buffers from the adapter's shared receive queue.
    pub shares: bool,
    /// Number drawn at a graceful disconnect. The endpoint's requests with lower cookies must complete before the
    /// connection ends.
    pub drains: Option<u64>,
}

impl End {
    /// Returns the number of posted requests that occupy a slot.
    pub fn holding(&self) -> usize {
        let holds = |work: &&Work| work.kind != Kind::Empty;
        self.requests.iter().filter(holds).count()
    }
}

impl End {
    /// Returns the record of a newly made endpoint.
    pub const fn new(ep: Option<EpHandle>, shares: bool) -> Self {
        Self {
            ep,
            shares,
            drains: None,
            phase: Phase::Idle,
            link: None,
            requests: VecDeque::new(),
            receives: VecDeque::new(),
            next_request: 0,
            next_receive: 0,
        }
    }
}

/// The identity of a connection, which the private data of its request contains: the requester, and the number of the
/// attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub side: usize,
    pub end: usize,
    pub number: u64,
}

impl Name {
    /// Returns the identity as private data.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let place = (self.side as u64) << 32 | self.end as u64;
        bytes[..8].copy_from_slice(&place.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Parses private data that begins with an identity.
    pub fn read(data: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_be_bytes(data.get(at..at + 8)?.try_into().ok()?));
        let (place, number) = (word(0)?, word(8)?);
        Some(Self {
            side: usize::try_from(place >> 32).ok()?,
            end: usize::try_from(place & 0xffff_ffff).ok()?,
            number,
        })
    }
}

/// The reason recorded for a connection that one end disconnects gracefully.
pub const GRACEFUL: &str = "a graceful disconnect";

impl Link {
    /// Records an event that may end the connection. The first event is kept, but a graceful disconnect, which lets
    /// posted requests complete, is replaced by a later event.
    pub fn spoil(&mut self, why: &'static str) {
        if self.spoiled.is_none_or(|before| before == GRACEFUL) {
            self.spoiled = Some(why);
        }
    }
}

impl Link {
    /// Returns whether the side is an end of the connection, or may become one.
    pub fn concerns(&self, side: usize, place: usize) -> bool {
        self.anybody == Some(place) || self.ends.iter().any(|&(other, ..)| other == side)
    }
}

impl Kind {
    /// Returns whether the request consumes a receive of the peer.
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Invalidate(_))
    }
}

/// A message that was sent and not yet received.
pub struct Sent {
    pub number: u64,
    pub bytes: usize,
    /// RMR context that the message invalidates, if any.
    pub takes: Option<u32>,
}

/// A connection, or an attempt to connect.
pub struct Link {
    /// The requester and the acceptor: side, number of the side's opening, and index of the endpoint.
    pub ends: [(usize, u64, usize); 2],
    /// Messages that each end has sent and the other has not yet received.
    pub sent: [VecDeque<Sent>; 2],
    /// Index of a function of which any instance may accept the request, until one accepts.
    pub anybody: Option<usize>,
    /// True for each end that knows that the connection is established: from the event, or from the endpoint's state
    /// if the event was lost.
    pub up: [bool; 2],
    /// Recorded event that may end the connection ([`Link::spoil`]); `None` if there is none.
    pub spoiled: Option<&'static str>,
}
