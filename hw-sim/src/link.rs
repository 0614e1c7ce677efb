//! A link between two ports, and its faults.
//!
//! A link does no I/O and reads no clock. [`Link::send`] accepts a frame and the current virtual time,
//! [`Link::pop_due`] returns a frame once its delivery time has come, and [`Link::next_due`] returns that time. The
//! frames in flight are in one queue, ordered by delivery time and, among equal times, by order of sending. So a link
//! without faults keeps the order of frames, and a delay of zero delivers in the same instant.
//!
//! Each direction has its own [`Faults`]. They apply to a frame in a fixed order. First the frame may be lost. A frame
//! that is not lost may be damaged, is delayed, may be held back so that later frames overtake it, and may be
//! duplicated. Every decision is drawn from one ChaCha stream seeded at construction. Each frame draws the same number
//! of times whatever the rates are, so changing one rate does not shift the decisions about the others. A direction
//! without random faults draws nothing.
//!
//! [`Link::heal`] ends all faults for frames sent from then on. Frames in flight arrive as already decided.
//!
//! Absent on purpose: bandwidth. Frames on a link do not queue behind each other for a line rate. They do on a
//! [switch](crate::switch), and in the ports of cards connected to a switch.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Denominator of fault rates: a rate is a number of frames per million.
const MILLION: u32 = 1_000_000;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The first port passed to `connect`.
    A,
    /// The second port passed to `connect`.
    B,
}

impl Port {
    /// Returns the port at the other end of the link.
    pub const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// Faults of one direction. Rates are per million frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Rate of frames that never arrive.
    pub loss_ppm: u32,
    /// Rate of frames that arrive twice.
    pub duplicate_ppm: u32,
    /// Rate of frames that are held back by up to [`Faults::reorder_ns`] while later frames pass.
    pub reorder_ppm: u32,
    /// Rate of frames that arrive with one bit flipped.
    pub corrupt_ppm: u32,
    /// Flight time of every frame in nanoseconds.
    pub delay_ns: u64,
    /// Maximum additional flight time in nanoseconds, drawn per frame from `0..=jitter_ns`. Jitter does not reorder.
    pub jitter_ns: u64,
    /// Maximum time in nanoseconds for which a reordered frame is held back.
    pub reorder_ns: u64,
}

impl Faults {
    /// No faults and no delay.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        corrupt_ppm: 0,
        delay_ns: 0,
        jitter_ns: 0,
        reorder_ns: 0,
    };

    /// Returns whether the direction has no random faults.
    const fn is_certain(&self) -> bool {
        (self.loss_ppm | self.duplicate_ppm | self.reorder_ppm | self.corrupt_ppm) == 0
            && self.jitter_ns == 0
    }

    fn draw(rng: &mut ChaCha8Rng) -> Self {
        // Each rate is zero with probability 1/2, so that the other faults are also tested without this one. A rate up
        // to 10 % is far above any real network and still lets work finish.
        let rate = |rng: &mut ChaCha8Rng| {
            let rate = rng.random_range(1_000..=100_000);
            if rng.random_bool(0.5) { rate } else { 0 }
        };
        Self {
            loss_ppm: rate(rng),
            duplicate_ppm: rate(rng),
            reorder_ppm: rate(rng),
            corrupt_ppm: rate(rng),
            delay_ns: rng.random_range(0..=5_000),
            jitter_ns: rng.random_range(0..=5_000),
            reorder_ns: rng.random_range(1_000..=50_000),
        }
    }
}

/// Faults of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFaults {
    /// Faults of frames from [`Port::A`] to [`Port::B`].
    pub a_to_b: Faults,
    /// Faults of frames from [`Port::B`] to [`Port::A`].
    pub b_to_a: Faults,
}

impl LinkFaults {
    /// No faults and no delay, in both directions.
    pub const NONE: Self = Self {
        a_to_b: Faults::NONE,
        b_to_a: Faults::NONE,
    };

    /// Returns link faults with `faults` in both directions.
    pub const fn both(faults: Faults) -> Self {
        Self {
            a_to_b: faults,
            b_to_a: faults,
        }
    }

    /// Returns rates and delays drawn from a seed, separately for each direction. About half of the rates are zero.
    pub fn swarm(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self {
            a_to_b: Faults::draw(&mut rng),
            b_to_a: Faults::draw(&mut rng),
        }
    }

    /// Returns whether frames may be damaged.
    pub(crate) const fn corrupts(&self) -> bool {
        self.a_to_b.corrupt_ppm > 0 || self.b_to_a.corrupt_ppm > 0
    }

    const fn from(&self, port: Port) -> &Faults {
        match port {
            Port::A => &self.a_to_b,
            Port::B => &self.b_to_a,
        }
    }
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Number of frames passed to [`Link::send`].
    pub sent: u64,
    /// Number of frames that [`Link::pop_due`] returned, duplicates included.
    pub delivered: u64,
    /// Number of frames lost.
    pub lost: u64,
    /// Number of frames duplicated.
    pub duplicated: u64,
    /// Number of frames held back.
    pub reordered: u64,
    /// Number of frames damaged.
    pub corrupted: u64,
}

/// A frame that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Port at which the frame arrives.
    pub to: Port,
    /// Virtual time in nanoseconds at which the frame was due.
    pub at: u64,
    /// The frame.
    pub frame: Vec<u8>,
}

#[derive(Debug)]
struct InFlight {
    due: u64,
    sequence: u64,
    delivery: Delivery,
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for InFlight {}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlight {
    /// Compares in reverse, because `BinaryHeap` yields its greatest element and the earliest frame must come first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

/// A link between two ports.
#[derive(Debug)]
pub struct Link {
    faults: LinkFaults,
    rng: ChaCha8Rng,
    queue: BinaryHeap<InFlight>,
    sequence: u64,
    /// Latest due time of an in-order frame, per direction. No frame that is sent later in order is due before this
    /// time, so jitter cannot reorder frames.
    horizon: [u64; 2],
    counters: [LinkCounters; 2],
}

impl Link {
    /// Returns a link on which every fault decision follows from `seed`.
    pub fn new(seed: u64, faults: LinkFaults) -> Self {
        Self {
            faults,
            rng: ChaCha8Rng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            sequence: 0,
            horizon: [0; 2],
            counters: [LinkCounters::default(); 2],
        }
    }

    /// Changes the faults for frames sent from now on.
    pub fn set_faults(&mut self, faults: LinkFaults) {
        self.faults = faults;
    }

    /// Returns the current faults.
    pub const fn faults(&self) -> LinkFaults {
        self.faults
    }

    /// Ends all faults; the flight time stays.
    pub fn heal(&mut self) {
        for faults in [&mut self.faults.a_to_b, &mut self.faults.b_to_a] {
            *faults = Faults {
                delay_ns: faults.delay_ns,
                ..Faults::NONE
            };
        }
    }

    /// Returns the counters of frames sent from `port`.
    pub const fn counters(&self, port: Port) -> LinkCounters {
        self.counters[port.index()]
    }

    /// Sends a frame into the link at port `from`.
    pub fn send(&mut self, now: u64, from: Port, mut frame: Vec<u8>) {
        let faults = *self.faults.from(from);
        let side = from.index();
        if faults.is_certain() {
            self.counters[side].sent += 1;
            let due = now.saturating_add(faults.delay_ns).max(self.horizon[side]);
            self.horizon[side] = due;
            self.enqueue(due, from, frame);
            return;
        }
        // All random numbers are drawn first, so that each frame takes the same number of draws, whatever happens to
        // it.
        let lose = self.chance(faults.loss_ppm);
        let corrupt = self.chance(faults.corrupt_ppm);
        let reorder = self.chance(faults.reorder_ppm);
        let duplicate = self.chance(faults.duplicate_ppm);
        let (bit, jitter, held) = (
            self.rng.next_u64(),
            self.rng.next_u64(),
            self.rng.next_u64(),
        );

        let counters = &mut self.counters[side];
        counters.sent += 1;
        if lose {
            counters.lost += 1;
            return;
        }
        if corrupt && !frame.is_empty() {
            counters.corrupted += 1;
            flip_bit(&mut frame, bit);
        }
        let flight = faults
            .delay_ns
            .saturating_add(within(jitter, faults.jitter_ns));
        let mut due = now.saturating_add(flight).max(self.horizon[side]);
        self.horizon[side] = due;
        if reorder {
            counters.reordered += 1;
            due = due
                .saturating_add(1)
                .saturating_add(within(held, faults.reorder_ns));
        }
        if duplicate {
            counters.duplicated += 1;
            self.enqueue(due, from, frame.clone());
        }
        self.enqueue(due, from, frame);
    }

    /// Returns the number of frames in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.queue.len()
    }

    /// Returns the total number of bytes of the frames in flight.
    pub(crate) fn bytes(&self) -> usize {
        let frames = self.queue.iter();
        frames.map(|one| one.delivery.frame.len()).sum()
    }

    /// Returns whether a frame that is sent now arrives at once and unchanged.
    pub(crate) fn is_free(&self, now: u64, from: Port) -> bool {
        let faults = self.faults.from(from);
        faults.is_certain()
            && faults.delay_ns == 0
            && self.queue.is_empty()
            && self.horizon[from.index()] <= now
    }

    /// Counts a frame as sent and delivered. The frame passes outside the queue, because the link
    /// [is free](Self::is_free).
    pub(crate) fn pass(&mut self, now: u64, from: Port) {
        let side = from.index();
        self.horizon[side] = now;
        self.counters[side].sent += 1;
        self.counters[side].delivered += 1;
    }

    /// Returns the arrival time of the next frame, in virtual nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        self.queue.peek().map(|next| next.due)
    }

    /// Removes and returns the next frame that has arrived by `now`.
    pub fn pop_due(&mut self, now: u64) -> Option<Delivery> {
        if self.next_due()? > now {
            return None;
        }
        let delivery = self.queue.pop()?.delivery;
        self.counters[delivery.to.peer().index()].delivered += 1;
        Some(delivery)
    }

    /// Applies `change` to every frame in flight.
    pub(crate) fn in_flight(&mut self, change: impl Fn(&mut [u8])) {
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        queue
            .iter_mut()
            .for_each(|one| change(&mut one.delivery.frame));
        self.queue = queue.into();
    }

    fn enqueue(&mut self, due: u64, from: Port, frame: Vec<u8>) {
        let delivery = Delivery {
            to: from.peer(),
            at: due,
            frame,
        };
        self.queue.push(InFlight {
            due,
            sequence: self.sequence,
            delivery,
        });
        self.sequence += 1;
    }

    fn chance(&mut self, ppm: u32) -> bool {
        self.rng.random_range(0..MILLION) < ppm
    }
}

/// Maps a random word to a value in `0..=most`.
const fn within(random: u64, most: u64) -> u64 {
    match most.checked_add(1) {
        Some(count) => random % count,
        None => random,
    }
}

fn flip_bit(frame: &mut [u8], random: u64) {
    // PANIC: the frame is not empty (the caller checks), and the remainder is below its length.
    let at = usize::try_from((random >> 3) % frame.len() as u64).unwrap_or(0);
    frame[at] ^= 1 << (random & 7);
}
