//! What functions have of the world: time, randomness, the log, cards, and the queues in which everything waits that
//! can happen.

use crate::card::{Card, Happening};
use crate::event_log::EventLog;
use crate::subnet::Manager;
use crate::threads::Threads;
use crate::wire::{Frame, seal};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// How many frames' memory is kept, of long ones and of short ones.
const SPARE: usize = 64;
/// What an acknowledgement needs, and a little more.
const SHORT: usize = 256;

/// A register write that waits for its turn.
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
        /// How many of them.
        length: usize,
    },
}

/// Something of a function that is due at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The firmware has booted.
    Booted,
    /// The command in this slot is to be executed.
    Command(u8),
    /// The link of the function's card may be up now.
    Trained,
    /// The link of the function's card goes down, and trains again.
    Retrain,
}

/// The part of the world that functions work with.
pub struct Env {
    /// Virtual time, nanoseconds.
    pub now: u64,
    /// The seeded stream.
    pub rng: ChaCha8Rng,
    /// The log.
    pub log: EventLog,
    /// Register writes arrive when software has gone on: host memory may be newer than they are.
    pub posted_writes: bool,
    /// The cards the functions sit on.
    pub cards: Vec<Card>,
    /// Who manages the subnet of InfiniBand ports.
    pub subnet_manager: Manager,
    /// What cards have to tell functions.
    pub happenings: VecDeque<(usize, Happening)>,
    /// Eventfds signalled so far.
    pub signals: u64,
    /// Who waits for what, and who does not.
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
    /// Whether frames have their ICRC, and it is checked.
    seals: bool,
    /// Those on links are still without.
    links_wait: bool,
    /// Memory of frames that are over, for those that come: of short ones, of long ones.
    spare: [Vec<Vec<u8>>; 2],
    pub(crate) arrivals: VecDeque<(usize, Vec<u8>, Origin)>,
    pub(crate) timers: BTreeMap<(u64, u64), (usize, Timer)>,
    sequence: u64,
}

impl Env {
    /// Time 0, and nothing in it.
    pub fn new(seed: u64, log: bool) -> Self {
        Self {
            now: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            log: EventLog::new(log),
            posted_writes: false,
            cards: Vec::new(),
            subnet_manager: Manager::Preset,
            happenings: VecDeque::new(),
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

    /// Whether frames have their ICRC, and it is checked. While they stay between functions of this world, and nobody
    /// looks at them, nothing would come of it but work.
    pub(crate) const fn seals(&self) -> bool {
        self.seals
    }

    /// From now on somebody may look at frames, bring others in, or damage them.
    pub(crate) fn seal(&mut self) {
        if self.seals {
            return;
        }
        (self.seals, self.links_wait) = (true, true);
        self.frames.iter_mut().for_each(|(_, frame)| frame.seal());
        let arrivals = self.arrivals.iter_mut();
        arrivals.for_each(|(_, frame, _)| seal(frame));
    }

    /// Whether those on links are to be sealed, once.
    pub(crate) fn seal_links(&mut self) -> bool {
        std::mem::take(&mut self.links_wait)
    }

    /// Memory for a frame of so many bytes, with anything in it. It was a frame of about that length before, so that
    /// hardly any of it is set to zero here.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare[usize::from(bytes > SHORT)]
            .pop()
            .unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// A frame is over.
    pub(crate) fn over(&mut self, frame: Vec<u8>) {
        let spare = &mut self.spare[usize::from(frame.len() > SHORT)];
        if spare.len() < SPARE {
            spare.push(frame);
        }
    }

    /// A frame comes back into the function that sent it.
    pub fn loop_back(&mut self, function: usize, frame: Vec<u8>) {
        self.arrivals.push_back((function, frame, Origin::Itself));
    }

    /// A copy of a send queue's frame comes back into the function.
    pub(crate) fn loop_back_within(&mut self, function: usize, frame: Vec<u8>, domain: u32) {
        let arrivals = &mut self.arrivals;
        arrivals.push_back((function, frame, Origin::Domain(domain)));
    }

    /// A frame arrives at a function's port.
    pub(crate) fn arrives(&mut self, function: usize, frame: Vec<u8>) {
        self.arrivals.push_back((function, frame, Origin::Another));
    }

    /// A function was reset: nothing of it is left in any queue.
    pub fn forget(&mut self, function: usize) {
        self.doorbells.retain(|&(of, _)| of != function);
        self.happenings.retain(|&(of, _)| of != function);
        // A link trains on whatever its functions do.
        self.timers.retain(|_, &mut (of, timer)| {
            of != function || matches!(timer, Timer::Trained | Timer::Retrain)
        });
        self.forget_queues(function);
    }

    /// A function's queues are gone: nothing of its data path is left.
    pub fn forget_queues(&mut self, function: usize) {
        self.frames.retain(|&(of, _)| of != function);
        self.arrivals.retain(|&(of, ..)| of != function);
        self.runnable.retain(|&(of, _)| of != function);
        self.qp_timers.retain(|&(_, of, _)| of != function);
    }
}

/// Who sent what arrives inside a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The function itself.
    Itself,
    /// A send queue of the function, of this transport domain.
    Domain(u32),
    /// Another function, or who is on the wire.
    Another,
}

impl Origin {
    /// The function itself, one way or the other.
    pub fn is_itself(self) -> bool {
        self != Self::Another
    }
}
