//! The part of the simulator that functions use: time, random numbers, the log, cards, and the queues of all pending
//! events.

use crate::card::{Card, CardEvent};
use crate::event_log::EventLog;
use crate::subnet::Manager;
use crate::threads::Threads;
use crate::wire::{Frame, seal};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Maximum number of spare buffers kept, for long frames and for short frames each.
const SPARE: usize = 64;
/// Maximum length of a short frame in bytes: that of an acknowledgement, with some reserve.
const SHORT: usize = 256;

/// A queued register write.
#[derive(Clone, Copy, Debug)]
pub enum Doorbell {
    /// Command doorbell. Bit n stands for slot n.
    Command(u32),
    /// A write to a UAR page.
    Uar {
        /// Offset in BAR 0.
        offset: u64,
        /// The bytes written, starting with the first.
        value: [u8; 8],
        /// Number of bytes.
        length: usize,
    },
}

/// An event of a function at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A boot phase of the function ends. After the last phase the firmware has booted.
    Booted,
    /// The command in this slot is executed.
    Command(u8),
    /// Link training of the function's card ends, unless training was restarted meanwhile.
    Trained,
    /// The link of the function's card goes down and trains again.
    Retrain,
}

/// The part of the simulator that functions work with.
pub struct Env {
    /// Virtual time, in nanoseconds.
    pub now: u64,
    /// The seeded random stream.
    pub rng: ChaCha8Rng,
    /// The log.
    pub log: EventLog,
    /// True if register writes arrive only after software has continued. Host memory may then be newer than the write.
    pub posted_writes: bool,
    /// The cards of all functions.
    pub cards: Vec<Card>,
    /// Manager of the InfiniBand ports' subnet.
    pub subnet_manager: Manager,
    /// Pending events of cards, each with the index of its function.
    pub card_events: VecDeque<(usize, CardEvent)>,
    /// Number of eventfd signals so far.
    pub signals: u64,
    /// Threads of the program that use virtual time.
    pub threads: Threads,
    /// Pending register writes.
    pub doorbells: VecDeque<(usize, Doorbell)>,
    /// Frames that a function sends.
    pub(crate) frames: VecDeque<(usize, Frame)>,
    /// Queue pairs and send queues that have work.
    pub runnable: VecDeque<(usize, u32)>,
    /// Timers of queue pairs: time, function, queue pair.
    pub qp_timers: BTreeSet<(u64, usize, u32)>,
    /// Number of bytes that the queue pairs of all functions have sent.
    pub sent_bytes: u64,
    /// True if frames carry an ICRC that is checked.
    seals: bool,
    /// True if frames on links still lack their ICRC.
    links_wait: bool,
    /// Spare buffers of delivered frames: of short frames, and of long frames.
    spare: [Vec<Vec<u8>>; 2],
    pub(crate) arrivals: VecDeque<(usize, Vec<u8>, Origin)>,
    pub(crate) timers: BTreeMap<(u64, u64), (usize, Timer)>,
    sequence: u64,
}

impl Env {
    /// Returns the empty state at time 0.
    pub fn new(seed: u64, log: bool) -> Self {
        Self {
            now: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            log: EventLog::new(log),
            posted_writes: false,
            cards: Vec::new(),
            subnet_manager: Manager::Preset,
            card_events: VecDeque::new(),
            signals: 0,
            threads: Threads::default(),
            doorbells: VecDeque::new(),
            frames: VecDeque::new(),
            runnable: VecDeque::new(),
            qp_timers: BTreeSet::new(),
            sent_bytes: 0,
            seals: false,
            links_wait: false,
            spare: [const { Vec::new() }; 2],
            arrivals: VecDeque::new(),
            timers: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Adds a line to the log.
    pub fn note(&mut self, function: usize, text: fmt::Arguments<'_>) {
        self.log.line(self.now, function, text);
    }

    /// Sets a timer; timers due at the same time run in the order they were set.
    pub fn schedule(&mut self, due: u64, function: usize, timer: Timer) {
        self.timers.insert((due, self.sequence), (function, timer));
        self.sequence += 1;
    }

    /// Returns whether frames carry an ICRC that is checked. No ICRC is computed while frames pass only between
    /// functions of the simulator and nothing observes them.
    pub(crate) const fn seals(&self) -> bool {
        self.seals
    }

    /// Adds an ICRC to all frames from now on, because they may be observed, come from outside, or be damaged.
    pub(crate) fn seal(&mut self) {
        if self.seals {
            return;
        }
        (self.seals, self.links_wait) = (true, true);
        self.frames.iter_mut().for_each(|(_, frame)| frame.seal());
        let arrivals = self.arrivals.iter_mut();
        arrivals.for_each(|(_, frame, _)| seal(frame));
    }

    /// Returns whether the frames on links must get their ICRC now. Returns true only once.
    pub(crate) fn seal_links(&mut self) -> bool {
        std::mem::take(&mut self.links_wait)
    }

    /// Returns a buffer of `bytes` bytes with arbitrary contents. Reuses a buffer that held a frame of similar length,
    /// if there is one, so that few bytes need to be zeroed.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare[usize::from(bytes > SHORT)]
            .pop()
            .unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Keeps the buffer of a delivered frame for reuse.
    pub(crate) fn recycle(&mut self, frame: Vec<u8>) {
        let spare = &mut self.spare[usize::from(frame.len() > SHORT)];
        if spare.len() < SPARE {
            spare.push(frame);
        }
    }

    /// Loops a frame back to the function that sent it.
    pub fn loop_back(&mut self, function: usize, frame: Vec<u8>) {
        self.arrivals.push_back((function, frame, Origin::Itself));
    }

    /// Loops a copy of a send queue's frame back to the function that sent it. `domain` is the queue's transport
    /// domain.
    pub(crate) fn loop_back_within(&mut self, function: usize, frame: Vec<u8>, domain: u32) {
        let arrivals = &mut self.arrivals;
        arrivals.push_back((function, frame, Origin::Domain(domain)));
    }

    /// Delivers a frame to a function's port.
    pub(crate) fn arrives(&mut self, function: usize, frame: Vec<u8>) {
        self.arrivals.push_back((function, frame, Origin::Another));
    }

    /// Removes all entries of a reset function from all queues.
    pub fn forget(&mut self, function: usize) {
        self.doorbells.retain(|&(of, _)| of != function);
        self.card_events.retain(|&(of, _)| of != function);
        // A link trains independently of the card's functions.
        self.timers.retain(|_, &mut (of, timer)| {
            of != function || matches!(timer, Timer::Trained | Timer::Retrain)
        });
        self.forget_queues(function);
    }

    /// Removes the data path entries of a function from all queues.
    pub fn forget_queues(&mut self, function: usize) {
        self.frames.retain(|&(of, _)| of != function);
        self.arrivals.retain(|&(of, ..)| of != function);
        self.runnable.retain(|&(of, _)| of != function);
        self.qp_timers.retain(|&(_, of, _)| of != function);
    }
}

/// Source of a frame that arrives at a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The function itself.
    Itself,
    /// A send queue of the function, with this transport domain.
    Domain(u32),
    /// Another function, or a sender outside of the simulator.
    Another,
}

impl Origin {
    /// Returns whether the function itself is the source.
    pub fn is_itself(self) -> bool {
        self != Self::Another
    }
}
