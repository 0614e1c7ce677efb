//! An endpoint, and its known state.

use std::collections::VecDeque;

use udapl::EpHandle;

/// An endpoint that must get an event when its peer's adapter is gone.
pub struct Farewell {
    /// Side, its opening, and the endpoint's index.
    pub to: (usize, u64, usize),
    pub link: usize,
    /// Deadline, in the world's time.
    pub by: u64,
    pub turns: u32,
}

/// Most DTOs of an endpoint that are not known to be done, in each direction.
pub const WINDOW: usize = 4;

/// Kind of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Send of the message of this number.
    Send,
    /// A Send that also invalidates this context of the peer.
    Invalidate(u32),
    /// A Write to the peer's slot.
    Write,
    /// A Read from the peer's slot.
    Read,
    /// An atomic Fetch and Add of one, at the peer's counter.
    Count,
    /// A Write of no bytes.
    Empty,
    /// A Write to memory of the peer that may be gone, with a key that may be void.
    Attack,
    /// A bind of the adapter's memory window with this index.
    Bind(usize),
}

/// A request that has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub cookie: u64,
    pub kind: Kind,
    pub slot: usize,
    pub bytes: usize,
    /// The key it names, if that key was void when the request was posted, or if the request tries to invalidate a
    /// key that peers may not invalidate.
    pub void: Option<(u64, u32)>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected, and no connection requested.
    Idle,
    /// Reserved for a service point.
    Reserved,
    /// Requested: an event will report the result.
    Pending,
    /// Connected, with the connection's number.
    Up,
    /// The end was requested or reported; posted requests are flushed.
    Over,
}

/// An endpoint.
pub struct End {
    /// `None`: it was freed, and no other could be made yet.
    pub ep: Option<EpHandle>,
    pub phase: Phase,
    /// The connection, by its index in the world's list, and which end of it this endpoint is.
    pub link: Option<(usize, usize)>,
    pub requests: VecDeque<Work>,
    /// Cookies of receives; the low byte of a cookie is its slot.
    pub receives: VecDeque<u64>,
    /// Number of the next request, from which its slot follows.
    pub next_request: usize,
    pub next_receive: usize,
    /// The endpoint takes receive buffers from the adapter's shared receive queue.
    pub shares: bool,
    /// A graceful disconnect was requested: the endpoint's requests up to this number must complete first.
    pub drains: Option<u64>,
}

impl End {
    /// Returns the number of requests that hold a slot.
    pub fn holding(&self) -> usize {
        let holds = |work: &&Work| work.kind != Kind::Empty;
        self.requests.iter().filter(holds).count()
    }
}

impl End {
    /// Returns a newly made endpoint.
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

/// The identity of a connection, as sent in the private data of the request: the requester, and the number of its
/// attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub side: usize,
    pub end: usize,
    pub number: u64,
}

impl Name {
    /// Returns the private data.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let place = (self.side as u64) << 32 | self.end as u64;
        bytes[..8].copy_from_slice(&place.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Parses private data that begins with a name.
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
    /// Records an event that may end the connection. The first one counts, unless it lets posted requests complete.
    pub fn spoil(&mut self, why: &'static str) {
        if self.spoiled.is_none_or(|before| before == GRACEFUL) {
            self.spoiled = Some(why);
        }
    }
}

impl Link {
    /// Returns whether the connection is, or may become, one of this side.
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

/// A message under way.
pub struct Sent {
    pub number: u64,
    pub bytes: usize,
    /// The context that it invalidates.
    pub takes: Option<u32>,
}

/// A connection.
pub struct Link {
    /// Side, its opening, and the endpoint's index: of the requester, and of the acceptor.
    pub ends: [(usize, u64, usize); 2],
    /// Messages under way from each end.
    pub sent: [VecDeque<Sent>; 2],
    /// The function of which any instance may accept, until one accepts.
    pub anybody: Option<usize>,
    /// Ends that have got the event that the connection is established.
    pub up: [bool; 2],
    /// The first event that may end the connection, if any.
    pub spoiled: Option<&'static str>,
}
