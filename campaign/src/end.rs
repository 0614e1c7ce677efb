//! An endpoint, and what is known of it.

use std::collections::VecDeque;

use udapl::EpHandle;

/// An endpoint that will hear of its peer's end.
pub struct Farewell {
    /// Side, its opening, and the endpoint's place.
    pub to: (usize, u64, usize),
    pub link: usize,
    /// In the world's time.
    pub by: u64,
    pub turns: u32,
}

/// DTOs of an endpoint that are not known to be done, each way.
pub const WINDOW: usize = 4;

/// What was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Message of the number.
    Send,
    /// The same, and it takes this context of the peer's away.
    Invalidate(u32),
    /// To the peer's slot.
    Write,
    /// From the peer's slot.
    Read,
    /// Of one more, at the peer's counter.
    Count,
    /// A Write of no bytes.
    Empty,
    /// To memory of the peer's that may be gone, and with keys that may be void.
    Attack,
    /// Of a memory window: which of the adapter's.
    Bind(usize),
}

/// A request that has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub cookie: u64,
    pub kind: Kind,
    pub slot: usize,
    pub bytes: usize,
    /// The key it names, if that was void when it was posted, or nobody's to take away who is told to take it.
    pub void: Option<(u64, u32)>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// None, and none is asked for.
    Idle,
    /// A reserved service point has it.
    Reserved,
    /// Asked for: an event will say what came of it.
    Pending,
    /// There: its number.
    Up,
    /// Its end was asked for or told; what was posted comes back.
    Over,
}

/// An endpoint.
pub struct End {
    /// `None`: it was freed, and no other could be made yet.
    pub ep: Option<EpHandle>,
    pub phase: Phase,
    /// The connection, by its place in the world's list, and which end of it this is.
    pub link: Option<(usize, usize)>,
    pub requests: VecDeque<Work>,
    /// Cookies of receives; the slot is the cookie's rest.
    pub receives: VecDeque<u64>,
    /// Slots are taken in turn.
    pub next_request: usize,
    pub next_receive: usize,
    /// Its buffers come from the adapter's shared receive queue.
    pub shares: bool,
    /// It was asked to end gracefully: its requests up to this number are done first.
    pub drains: Option<u64>,
}

impl End {
    /// Requests that hold a slot.
    pub fn holding(&self) -> usize {
        let holds = |work: &&Work| work.kind != Kind::Empty;
        self.requests.iter().filter(holds).count()
    }
}

impl End {
    /// One that is made just now.
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

/// A connection as it is told by the private data of the request: who asked, and for the how manieth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub side: usize,
    pub end: usize,
    pub number: u64,
}

impl Name {
    /// As private data.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let place = (self.side as u64) << 32 | self.end as u64;
        bytes[..8].copy_from_slice(&place.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Read back, if private data begins so.
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

/// What has happened to a connection that its one end has asked to be over once all it has posted is done.
pub const GRACEFUL: &str = "a graceful disconnect";

impl Link {
    /// Something happens to it that may end it. The first thing counts, unless that lets what is posted be done.
    pub fn spoil(&mut self, why: &'static str) {
        if self.spoiled.is_none_or(|before| before == GRACEFUL) {
            self.spoiled = Some(why);
        }
    }
}

impl Link {
    /// Whether it is, or may become, one of a side's.
    pub fn concerns(&self, side: usize, place: usize) -> bool {
        self.anybody == Some(place) || self.ends.iter().any(|&(other, ..)| other == side)
    }
}

impl Kind {
    /// Whether it takes a receive of the peer's.
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Invalidate(_))
    }
}

/// A message under way.
pub struct Sent {
    pub number: u64,
    pub bytes: usize,
    /// The context that it takes away.
    pub takes: Option<u32>,
}

/// A connection.
pub struct Link {
    /// Side, its opening, and the endpoint's place: of who asked, and of who accepted.
    pub ends: [(usize, u64, usize); 2],
    /// Messages under way from each end.
    pub sent: [VecDeque<Sent>; 2],
    /// The function of which any instance may accept, until one does.
    pub anybody: Option<usize>,
    /// Which ends have heard that it is there.
    pub up: [bool; 2],
    /// What has happened that may end it, if anything has.
    pub spoiled: Option<&'static str>,
}
