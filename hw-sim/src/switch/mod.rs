//! An Ethernet switch: frames arrive at a port, wait in a queue, and leave through another port.
//!
//! ```text
//!   port in        learned addresses       memory            port out
//!   frame ------> source learned,   ----> admitted, or ----> queue of its priority, marked by its depth
//!                 destination found       dropped            one frame at a time, at the port's rate
//!                                            |
//!                 pause <-- above XOFF, of the port and the priority it came in at
//! ```
//!
//! The switch is store-and-forward: it accepts a frame when the last byte has arrived, and a frame has left when its
//! last byte has left. The links at the ports ([`crate::link`]) model flight times and faults; the switch models
//! queues. Like a link, the switch does no I/O and has no clock: the caller passes in frames and the time, and takes
//! departing frames with their time in ns from `Switch::take_departure`. The switch decides about marks with its own
//! random generator, so that a run with the same seed gives the same result.
//!
//! Addresses are learned per VLAN, up to [`MAX_ADDRESSES`], and never age out. Frames that a bridge must not forward
//! (01:80:c2:00:00:0x) are dropped.
//!
//! Lossy and lossless priorities have separate memory. Frames of lossy priorities share a buffer, either of the whole
//! switch or of their egress port, and are dropped when it is full. Frames of lossless priorities ([`Pfc::priorities`])
//! are counted at their ingress port. Above XOFF the switch pauses the sender; frames in flight at that time use the
//! headroom. If the headroom is full, such a frame is dropped and counted separately. Pauses can form a cycle in which
//! each port waits for the next. A watchdog, if configured, has a time limit. It drops the frames of a queue that has
//! waited that long, and all new frames for the queue until as much time has passed again.
//!
//! Absent on purpose: spanning tree, VLAN membership, link aggregation, cut-through, bandwidth shares in a switch (the
//! highest priority goes first; a card's port has shares: `ets`), pauses of a whole port (802.3x).

pub mod classify;
mod config;
pub(crate) mod egress;
pub(crate) mod ets;
pub(crate) mod pfc;
pub(crate) mod stored;

use std::collections::{BTreeMap, VecDeque};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use self::classify::Classes;
use self::classify::{PRIORITIES, ecn, mark};
pub use self::config::{
    Buffer, MAX_BYTES, MAX_PORTS, Pfc, Red, SwitchConfig, SwitchError, Unknown,
};
use self::egress::{Credit, Egress};
pub use self::ets::{RateLimit, TrafficClass, TrafficClasses};
use crate::time::nanoseconds;
use crate::wire::Ecn;
use crate::wire::frame::Headers;

/// Maximum number of learned addresses, and maximum number of fixed addresses.
pub const MAX_ADDRESSES: usize = 8192;
/// Maximum length of an accepted frame, in bytes. A wire between processes has the same limit.
const LONGEST_FRAME: usize = 16 << 10;

/// Counters of a port of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Number of frames received, not counting control frames.
    pub received: u64,
    /// Number of bytes of the frames received, not counting control frames.
    pub received_bytes: u64,
    /// Number of frames sent, control frames included. A frame counts when its transmission begins.
    pub sent: u64,
    /// Number of bytes of the frames sent.
    pub sent_bytes: u64,
    /// Number of frames for this egress port that were dropped because the buffer was full.
    pub dropped_full: u64,
    /// Number of frames of lossless priorities that arrived here and were dropped because the headroom was full.
    pub dropped_headroom: u64,
    /// Number of frames that arrived here and were dropped because they were too long.
    pub dropped_long: u64,
    /// Number of frames that arrived here and were dropped because their destination was unknown ([`Unknown::Drop`]).
    pub dropped_unknown: u64,
    /// Number of frames for this egress port that the watchdog dropped.
    pub dropped_watchdog: u64,
    /// Number of frames that arrived here and were flooded.
    pub flooded: u64,
    /// Number of packets that were marked when they were queued at this egress port.
    pub marked: u64,
    /// Number of pause frames sent, not counting those that end a pause.
    pub pauses_sent: u64,
    /// Number of pause frames received, including those that end a pause.
    pub pauses_received: u64,
    /// Number of times that the watchdog fired.
    pub watchdog: u64,
    /// Maximum number of bytes that have been queued at this egress port.
    pub deepest_bytes: usize,
}

/// Memory use of one lossless priority: frames that arrived at a port and have not left the switch.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    bytes: usize,
    /// Time in ns at which the switch repeats the pause, while it pauses the sender.
    again: Option<u64>,
}

#[derive(Debug)]
struct Port {
    egress: Egress,
    ingress: [Ingress; PRIORITIES],
    /// Time in ns until which the watchdog drops new frames for the queue, per priority.
    drop_until: [u64; PRIORITIES],
    counters: PortCounters,
}

/// A frame whose transmission begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub port: usize,
    /// Time in ns at which the frame has left, including the gap after it.
    pub out: u64,
    pub frame: Vec<u8>,
}

/// An Ethernet switch.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    /// Source address of the pause frames that the switch sends.
    mac: [u8; 6],
    ports: Vec<Port>,
    /// Port of each learned address, per VLAN. VLAN 0 stands for untagged frames.
    learned: BTreeMap<(u16, [u8; 6]), usize>,
    fixed: BTreeMap<[u8; 6], usize>,
    rng: ChaCha8Rng,
    /// Number of queued bytes of lossy priorities, over all ports.
    lossy_bytes: usize,
    departures: VecDeque<Departure>,
}

impl Switch {
    /// Creates an empty switch. `mac` is the address of the switch itself.
    ///
    /// # Errors
    /// [`SwitchError`] if the configuration is invalid.
    pub(crate) fn new(config: SwitchConfig, mac: [u8; 6], seed: u64) -> Result<Self, SwitchError> {
        config.check()?;
        let port = |_| Port {
            egress: Egress::new(config.rate_bps),
            ingress: [Ingress::default(); PRIORITIES],
            drop_until: [0; PRIORITIES],
            counters: PortCounters::default(),
        };
        Ok(Self {
            ports: (0..config.ports).map(port).collect(),
            mac,
            learned: BTreeMap::new(),
            fixed: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            lossy_bytes: 0,
            departures: VecDeque::new(),
            config,
        })
    }

    /// Returns the configuration of the switch.
    pub(crate) const fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Binds an address to a port permanently. Returns false if this is [not allowed](Self::may_fix).
    pub(crate) fn fix(&mut self, mac: [u8; 6], port: usize) -> bool {
        let may = self.may_fix(mac, port);
        if may {
            self.fixed.insert(mac, port);
        }
        may
    }

    /// Returns whether an address may be bound to a port: the port exists, and the table of fixed addresses is not
    /// full.
    pub(crate) fn may_fix(&self, mac: [u8; 6], port: usize) -> bool {
        let has_room = self.fixed.len() < MAX_ADDRESSES || self.fixed.contains_key(&mac);
        port < self.ports.len() && has_room
    }

    /// Returns a port's counters, if the port exists.
    pub(crate) fn counters(&self, port: usize) -> Option<PortCounters> {
        self.ports.get(port).map(|port| port.counters)
    }

    /// Returns the number of bytes queued at an egress port.
    pub(crate) fn depth(&self, port: usize) -> Option<usize> {
        Some(self.ports.get(port)?.egress.total_depth())
    }

    /// Returns the bit mask of the priorities that the peer of a port has paused.
    pub(crate) fn silenced(&self, now: u64, port: usize) -> Option<u8> {
        let egress = &self.ports.get(port)?.egress;
        let bits = (0..PRIORITIES).filter(|&priority| egress.is_paused(now, priority));
        Some(bits.fold(0, |bits, priority| bits | 1 << priority))
    }

    /// Handles a frame whose last byte has arrived.
    pub(crate) fn receive(&mut self, now: u64, from: usize, frame: Vec<u8>) {
        let Some(port) = self.ports.get_mut(from) else {
            return;
        };
        if pfc::is_control(&frame) {
            self.control(now, from, &frame);
            return;
        }
        let counters = &mut port.counters;
        counters.received += 1;
        counters.received_bytes += frame.len() as u64;
        if frame.len() > LONGEST_FRAME {
            counters.dropped_long += 1;
            return;
        }
        let Some(outs) = self.outs(from, &frame) else {
            return;
        };
        let priority = self.config.classes.of(&frame);
        let mut frame = Some(frame);
        for (left, &to) in (0..outs.len()).rev().zip(&outs) {
            let copy = if left == 0 {
                frame.take()
            } else {
                frame.clone()
            };
            self.admit(now, from, to, priority, copy.unwrap_or_default());
        }
        for to in outs {
            self.go_on(now, to);
        }
        self.go_on(now, from);
    }

    /// Learns the source address of a frame, and returns its egress ports. Returns `None` if the frame is not
    /// forwarded.
    fn outs(&mut self, from: usize, frame: &[u8]) -> Option<Vec<usize>> {
        let headers = Headers::of(frame)?;
        let (dst, src) = (headers.dst, headers.src);
        let vlan = headers.vlan().map_or(0, |tag| tag.id);
        if let [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f] = dst {
            return None;
        }
        if src[0] & 1 == 0
            && (self.learned.len() < MAX_ADDRESSES || self.learned.contains_key(&(vlan, src)))
        {
            self.learned.insert((vlan, src), from);
        }
        let known = (dst[0] & 1 == 0)
            .then(|| {
                self.fixed
                    .get(&dst)
                    .or_else(|| self.learned.get(&(vlan, dst)))
            })
            .flatten();
        let counters = &mut self.ports[from].counters;
        match (known, self.config.unknown) {
            (Some(&to), _) => (to != from).then(|| vec![to]),
            (None, Unknown::Flood) => {
                counters.flooded += 1;
                Some((0..self.ports.len()).filter(|&to| to != from).collect())
            }
            (None, Unknown::Drop) => {
                counters.dropped_unknown += 1;
                None
            }
        }
    }

    fn is_lossless(&self, priority: usize) -> bool {
        self.config
            .pfc
            .is_some_and(|pfc| pfc.priorities >> priority & 1 == 1)
    }

    /// Queues a frame at an egress port, or drops it if the memory is full.
    fn admit(&mut self, now: u64, from: usize, to: usize, priority: usize, mut frame: Vec<u8>) {
        let bytes = frame.len();
        if self.ports[to].drop_until[priority] > now {
            self.ports[to].counters.dropped_watchdog += 1;
            return;
        }
        if self.is_lossless(priority) {
            let room = self
                .config
                .pfc
                .map_or(0, |pfc| pfc.xoff_bytes + pfc.headroom_bytes);
            let port = &mut self.ports[from];
            if port.ingress[priority].bytes + bytes > room {
                port.counters.dropped_headroom += 1;
                return;
            }
            port.ingress[priority].bytes += bytes;
            self.pause_if_full(now, from, priority);
        } else {
            let (waiting, room) = match self.config.buffer {
                Buffer::Shared(room) => (self.lossy_bytes, room),
                Buffer::PerPort(room) => (self.lossy_depth(to), room),
            };
            if waiting + bytes > room {
                self.ports[to].counters.dropped_full += 1;
                return;
            }
            self.lossy_bytes += bytes;
        }
        let depth = self.ports[to].egress.depth(priority);
        if let Some(red) = self.config.ecn
            && ecn(&frame) == Ecn::Capable
            && self.rng.random_bool(red.probability(depth))
        {
            mark(&mut frame);
            self.ports[to].counters.marked += 1;
        }
        let credit = Credit {
            from,
            priority,
            bytes,
            to,
        };
        let port = &mut self.ports[to];
        port.egress.push(priority, frame, Some(credit));
        port.counters.deepest_bytes = port.counters.deepest_bytes.max(port.egress.total_depth());
    }

    fn lossy_depth(&self, port: usize) -> usize {
        let lossy = (0..PRIORITIES).filter(|&priority| !self.is_lossless(priority));
        lossy
            .map(|priority| self.ports[port].egress.depth(priority))
            .sum()
    }

    /// Pauses the sender at a port if its queued frames exceed XOFF, and repeats a pause that is due.
    fn pause_if_full(&mut self, now: u64, at: usize, priority: usize) {
        let Some(pfc) = self.config.pfc else {
            return;
        };
        let port = &mut self.ports[at];
        let ingress = &mut port.ingress[priority];
        let is_due = ingress
            .again
            .map_or(ingress.bytes > pfc.xoff_bytes, |again| again <= now);
        if is_due {
            let pause = pfc::pause_ns(pfc::LONGEST, self.config.rate_bps);
            ingress.again = Some(now.saturating_add((pause / 2).max(1)));
            port.egress
                .push_control(pfc::emit(self.mac, priority, pfc::LONGEST));
            port.counters.pauses_sent += 1;
        }
    }

    /// Frees the memory of a frame that has left, and ends the sender's pause if the memory use is down to XON.
    fn give_back(&mut self, credit: Credit) {
        let Credit {
            from,
            priority,
            bytes,
            ..
        } = credit;
        if !self.is_lossless(priority) {
            self.lossy_bytes -= bytes;
            return;
        }
        let xon = self.config.pfc.map_or(0, |pfc| pfc.xon_bytes);
        let port = &mut self.ports[from];
        let ingress = &mut port.ingress[priority];
        ingress.bytes -= bytes;
        if ingress.again.is_some() && ingress.bytes <= xon {
            ingress.again = None;
            port.egress.push_control(pfc::emit(self.mac, priority, 0));
        }
    }

    /// Handles a MAC control frame.
    fn control(&mut self, now: u64, at: usize, frame: &[u8]) {
        let Some(pauses) = pfc::parse(frame) else {
            return;
        };
        let named = self.config.pfc.map_or(0, |pfc| pfc.priorities);
        let port = &mut self.ports[at];
        port.counters.pauses_received += 1;
        for (priority, quanta) in pauses.iter().enumerate() {
            if let Some(quanta) = *quanta
                && named >> priority & 1 == 1
                && port.drop_until[priority] <= now
            {
                let until = now.saturating_add(pfc::pause_ns(quanta, port.egress.rate_bps()));
                port.egress.pause(now, priority, until);
            }
        }
        self.go_on(now, at);
    }

    /// Processes a port: frees the memory of a frame that has left, runs the watchdog, and begins the next frame. Also
    /// processes the other ports that are affected.
    fn go_on(&mut self, now: u64, at: usize) {
        let mut touched = vec![at];
        while let Some(at) = touched.pop() {
            if let Some(credit) = self.ports[at].egress.finish(now) {
                self.give_back(credit);
                if credit.from != at {
                    touched.push(credit.from);
                }
            }
            touched.extend(self.watch(now, at));
            let port = &mut self.ports[at];
            if let Some(begun) = port.egress.begin(now) {
                port.counters.sent += 1;
                port.counters.sent_bytes += begun.frame.len() as u64;
                self.departures.push_back(Departure {
                    port: at,
                    out: begun.out,
                    frame: begun.frame,
                });
            }
        }
    }

    /// Runs the watchdog of a port. Returns the other ports that the caller has to process as a result.
    fn watch(&mut self, now: u64, at: usize) -> Vec<usize> {
        let Some(limit) = self.config.pfc.and_then(|pfc| pfc.watchdog) else {
            return Vec::new();
        };
        let (limit, mut touched) = (nanoseconds(limit).max(1), Vec::new());
        let since = now.saturating_sub(limit);
        // Before the time `limit`, no frame can have waited for `limit`; `since` is saturated to 0 then.
        while let Some(priority) = self.ports[at]
            .egress
            .stuck(now, since)
            .filter(|_| now >= limit)
        {
            let port = &mut self.ports[at];
            port.egress.pause(now, priority, now);
            port.drop_until[priority] = now.saturating_add(limit);
            port.counters.watchdog += 1;
            let lost = port.egress.discard(priority);
            port.counters.dropped_watchdog += lost.len() as u64;
            for credit in lost.into_iter().flatten() {
                self.give_back(credit);
                if credit.from != at {
                    touched.push(credit.from);
                }
            }
        }
        touched.dedup();
        touched
    }

    /// Processes everything that is due: repeats of pauses, departures and the watchdogs.
    pub(crate) fn run(&mut self, now: u64) {
        for at in 0..self.ports.len() {
            for priority in 0..PRIORITIES {
                if self.ports[at].ingress[priority]
                    .again
                    .is_some_and(|again| again <= now)
                {
                    self.pause_if_full(now, at, priority);
                }
            }
            self.go_on(now, at);
        }
    }

    /// Returns the time of the next event.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let limit = self
            .config
            .pfc
            .and_then(|pfc| pfc.watchdog)
            .map(nanoseconds);
        let of_port = |port: &Port| {
            let again = port.ingress.iter().filter_map(|ingress| ingress.again);
            let watchdog = limit.zip(port.egress.stuck_since());
            let watchdog = watchdog.map(|(limit, since)| since.saturating_add(limit.max(1)));
            again.chain(port.egress.next_due()).chain(watchdog).min()
        };
        self.ports.iter().filter_map(of_port).min()
    }

    /// Returns the next departing frame.
    pub(crate) fn take_departure(&mut self) -> Option<Departure> {
        self.departures.pop_front()
    }
}

#[cfg(test)]
mod tests;
