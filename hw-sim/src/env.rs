//! The part of the world that functions use: time, randomness, the log, cards, and the queues of everything that can
//! happen.

use crate::card::{Card, CardEvent};
use crate::event_log::EventLog;
use crate::subnet::Manager;
use crate::threads::Threads;
use crate::wire::{Frame, seal};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Number of spare buffers kept, of long frames and of short ones.
const SPARE: usize = 64;
/// Longest short frame in bytes: an acknowledgement, and a little more.
const SHORT: usize = 256;

/// A queued register write.
#[derive(Clone, Copy, Debug)]
pub enum Doorbell {
    /// Command doorbell: bit n = slot n.
    Command(u32),
    /// A write to a UAR page.
    Uar {
        /// Offset in BAR 0.
        offset: u64,
        /// The bytes, from the front.
        value: [u8; 8],
        /// Number of bytes.
        length: usize,
    },
}

/// An event of a function at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The firmware has booted.
    Booted,
    /// The command in this slot is to be executed.
    Command(u8),
    /// The link of the function's card may have trained.
    Trained,
    /// The link of the function's card goes down, and trains again.
    Retrain,
}

/// The part of the world that functions work with.
pub struct Env {
    /// Virtual time, nanoseconds.
    pub now: u64,
    /// The seeded random stream.
    pub rng: ChaCha8Rng,
    /// The log.
    pub log: EventLog,
    /// Register writes arrive after software has gone on: host memory may be newer than they are.
    pub posted_writes: bool,
    /// The cards the functions sit on.
    pub cards: Vec<Card>,
    /// Manager of the subnet of InfiniBand ports.
    pub subnet_manager: Manager,
    /// Events of cards for functions, by function.
    pub card_events: VecDeque<(usize, CardEvent)>,
    /// Eventfds signalled so far.
    pub signals: u64,
    /// Threads of the program, waiting and running.
    pub threads: Threads,
    /// Register writes.
    pub doorbells: VecDeque<(usize, Doorbell)>,
    /// Frames leaving a function.
    pub(crate) frames: VecDeque<(usize, Frame)>,
    /// Queue pairs and send queues with work.
    pub runnable: VecDeque<(usize, u32)>,
    /// Timers of queue pairs: time, function, queue pair.
    pub qp_timers: BTreeSet<(u64, usize, u32)>,
    /// Bytes that queue pairs have sent.
    pub sent_bytes: u64,
    /// True if frames carry an ICRC that is checked.
    seals: bool,
    /// True if frames on links still lack theirs.
    links_wait: bool,
    /// Spare buffers of delivered frames: short ones, long ones.
    spare: [Vec<Vec<u8>>; 2],
    pub(crate) arrivals: VecDeque<(usize, Vec<u8>, Origin)>,
    pub(crate) timers: BTreeMap<(u64, u64), (usize, Timer)>,
    sequence: u64,
}

impl Env {
    /// Returns an empty part at time 0.
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

    /// Returns whether frames carry an ICRC that is checked. While frames stay between functions of this world,
    /// unobserved, the ICRC would only cost time.
    pub(crate) const fn seals(&self) -> bool {
        self.seals
    }

    /// Seals frames from now on: they may be observed, brought in from outside, or damaged.
    pub(crate) fn seal(&mut self) {
        if self.seals {
            return;
        }
        (self.seals, self.links_wait) = (true, true);
        self.frames.iter_mut().for_each(|(_, frame)| frame.seal());
        let arrivals = self.arrivals.iter_mut();
        arrivals.for_each(|(_, frame, _)| seal(frame));
    }

    /// Returns true once, if frames on links are to be sealed.
    pub(crate) fn seal_links(&mut self) -> bool {
        std::mem::take(&mut self.links_wait)
    }

    /// Returns a buffer of `bytes` bytes with arbitrary contents. It held a frame of about that length before, so
    /// that hardly any of it is zeroed here.
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

    /// Loops a copy of a send queue's frame back to its own function.
    pub(crate) fn loop_back_within(&mut self, function: usize, frame: Vec<u8>, domain: u32) {
        let arrivals = &mut self.arrivals;
        arrivals.push_back((function, frame, Origin::Domain(domain)));
    }

    /// Delivers a frame to a function's port.
    pub(crate) fn arrives(&mut self, function: usize, frame: Vec<u8>) {
        self.arrivals.push_back((function, frame, Origin::Another));
    }

    /// Removes a reset function from all queues.
    pub fn forget(&mut self, function: usize) {
        self.doorbells.retain(|&(of, _)| of != function);
        self.card_events.retain(|&(of, _)| of != function);
        // A link trains independently of its functions.
        self.timers.retain(|_, &mut (of, timer)| {
            of != function || matches!(timer, Timer::Trained | Timer::Retrain)
        });
        self.forget_queues(function);
    }

    /// Removes a function's data path from all queues.
    pub fn forget_queues(&mut self, function: usize) {
        self.frames.retain(|&(of, _)| of != function);
        self.arrivals.retain(|&(of, ..)| of != function);
        self.runnable.retain(|&(of, _)| of != function);
        self.qp_timers.retain(|&(_, of, _)| of != function);
    }
}

/// Source of a frame that arrives inside a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The function itself.
    Itself,
    /// A send queue of the function, of this transport domain.
    Domain(u32),
    /// Another function, or a sender outside of this world.
    Another,
}

impl Origin {
    /// Returns whether the function itself is the source.
    pub fn is_itself(self) -> bool {
        self != Self::Another
    }
}
