//! A switch: frames come in at ports, wait, and leave at others.
//!
//! ```text
//!   port in        learned addresses       memory            port out
//!   frame ------> source learned,   ----> admitted, or ----> queue of its priority, marked by its depth
//!                 destination found       dropped            one frame at a time, at the port's rate
//!                                            |
//!                 pause <-- above XOFF, of the port and the priority it came in at
//! ```
//!
//! It is store-and-forward: a frame is taken in when its last byte has come, and is out when its last byte is. Flight
//! times and faults are those of the links at its ports ([`crate::link`]); queues that fill are its own. It is pure, as
//! a link is: frames and the time come in, and what begins to leave goes out by `Switch::take_departure`, to the
//! nanosecond. Whether a packet is marked is drawn from a stream of its own, so that one seed gives one run.
//!
//! Addresses are learned by VLAN, and never forgotten; there is room for [`MAX_ADDRESSES`]. What a bridge may not
//! forward (01:80:c2:00:00:0x) ends here.
//!
//! Priorities of two kinds have memory of two kinds. What may be lost shares a buffer and is dropped when that is full.
//! What may not be lost ([`Pfc::priorities`]) is counted where it came in: above XOFF the sender is paused, and what
//! was under way by then has headroom. Only if that is too small, something of such a priority is dropped, and counted
//! apart. Pauses can stand in a circle, each waiting for the next; a watchdog, if there is one, throws away what has
//! waited too long, and drops what comes for the same queue as long again.
//!
//! Absent on purpose: spanning tree, VLAN membership, trunks of several cables, cut-through, shares of bandwidth in a
//! switch (its highest priority goes first; a card's port has them: [`ets`]), pauses of a whole port.

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

/// Addresses that are learned at most; as many may be fixed.
pub const MAX_ADDRESSES: usize = 8192;
/// The longest frame that is taken in, as long as a wire between processes carries.
const LONGEST_FRAME: usize = 16 << 10;

/// What a port of a switch has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames taken in.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that began to leave, control frames among them.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames for which there was no memory where they were to leave here.
    pub dropped_full: u64,
    /// Frames of lossless priorities that found no headroom where they came in here.
    pub dropped_headroom: u64,
    /// Frames that came in here and were longer than any frame is.
    pub dropped_long: u64,
    /// Frames that came in here for an address nobody has, and were not flooded.
    pub dropped_unknown: u64,
    /// Frames to leave here that the watchdog threw away.
    pub dropped_watchdog: u64,
    /// Frames that came in here and left at every other port.
    pub flooded: u64,
    /// Packets that were marked where they were to leave here.
    pub marked: u64,
    /// Pause frames sent, those that end a pause not counted.
    pub pauses_sent: u64,
    /// Pause frames received.
    pub pauses_received: u64,
    /// Times that the watchdog fired.
    pub watchdog: u64,
    /// Most bytes that have waited to leave here.
    pub deepest_bytes: usize,
}

/// What came in at a port and has not left, of one priority.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    bytes: usize,
    /// The other end is paused, and is told so again then.
    again: Option<u64>,
}

#[derive(Debug)]
struct Port {
    egress: Egress,
    ingress: [Ingress; PRIORITIES],
    /// Until when what comes for a queue is dropped.
    shut_until: [u64; PRIORITIES],
    counters: PortCounters,
}

/// A frame that begins to leave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub port: usize,
    /// When its last byte is out.
    pub out: u64,
    pub frame: Vec<u8>,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    /// Address of the frames that it sends itself.
    mac: [u8; 6],
    ports: Vec<Port>,
    /// Where addresses are, by VLAN; 0 is none.
    learned: BTreeMap<(u16, [u8; 6]), usize>,
    fixed: BTreeMap<[u8; 6], usize>,
    rng: ChaCha8Rng,
    /// Bytes of lossy priorities that wait.
    lossy_bytes: usize,
    departures: VecDeque<Departure>,
}

impl Switch {
    /// A switch with nothing in it; `mac` is its own address.
    ///
    /// # Errors
    /// [`SwitchError`]: there can be no such switch.
    pub(crate) fn new(config: SwitchConfig, mac: [u8; 6], seed: u64) -> Result<Self, SwitchError> {
        config.check()?;
        let port = |_| Port {
            egress: Egress::new(config.rate_bps),
            ingress: [Ingress::default(); PRIORITIES],
            shut_until: [0; PRIORITIES],
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

    /// What it was told.
    pub(crate) const fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// An address is at a port, whatever comes from elsewhere. False: it [may not be](Self::may_fix).
    pub(crate) fn fix(&mut self, mac: [u8; 6], port: usize) -> bool {
        let may = self.may_fix(mac, port);
        if may {
            self.fixed.insert(mac, port);
        }
        may
    }

    /// Whether an address may be fixed at a port: there is such a port, and room for the address.
    pub(crate) fn may_fix(&self, mac: [u8; 6], port: usize) -> bool {
        let has_room = self.fixed.len() < MAX_ADDRESSES || self.fixed.contains_key(&mac);
        port < self.ports.len() && has_room
    }

    /// What a port has counted, if there is one.
    pub(crate) fn counters(&self, port: usize) -> Option<PortCounters> {
        self.ports.get(port).map(|port| port.counters)
    }

    /// Bytes that wait to leave at a port.
    pub(crate) fn depth(&self, port: usize) -> Option<usize> {
        Some(self.ports.get(port)?.egress.total_depth())
    }

    /// Priorities that the other end of a port has silenced, a bit each.
    pub(crate) fn silenced(&self, now: u64, port: usize) -> Option<u8> {
        let egress = &self.ports.get(port)?.egress;
        let bits = (0..PRIORITIES).filter(|&priority| egress.is_paused(now, priority));
        Some(bits.fold(0, |bits, priority| bits | 1 << priority))
    }

    /// A frame has come in whole.
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

    /// The ports at which a frame leaves; none if it does not.
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

    /// A frame is put where it is to leave, if there is room.
    fn admit(&mut self, now: u64, from: usize, to: usize, priority: usize, mut frame: Vec<u8>) {
        let bytes = frame.len();
        if self.ports[to].shut_until[priority] > now {
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

    /// Pauses who sends to a port, if that has taken in too much; says so again when it is time.
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

    /// What a frame took is free again.
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

    /// A MAC control frame has come.
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
                && port.shut_until[priority] <= now
            {
                let until = now.saturating_add(pfc::pause_ns(quanta, port.egress.rate_bps()));
                port.egress.pause(now, priority, until);
            }
        }
        self.go_on(now, at);
    }

    /// Does what is due at a port: what has left is free, the next frame begins.
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

    /// The watchdog looks at a port; other ports that have something to do now.
    fn watch(&mut self, now: u64, at: usize) -> Vec<usize> {
        let Some(limit) = self.config.pfc.and_then(|pfc| pfc.watchdog) else {
            return Vec::new();
        };
        let (limit, mut touched) = (nanoseconds(limit).max(1), Vec::new());
        let since = now.saturating_sub(limit);
        // What is stuck since the beginning of time is not older than that.
        while let Some(priority) = self.ports[at]
            .egress
            .stuck(now, since)
            .filter(|_| now >= limit)
        {
            let port = &mut self.ports[at];
            port.egress.pause(now, priority, now);
            port.shut_until[priority] = now.saturating_add(limit);
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

    /// Does everything that is due.
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

    /// When something is due next.
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

    /// A frame that begins to leave.
    pub(crate) fn take_departure(&mut self) -> Option<Departure> {
        self.departures.pop_front()
    }
}

#[cfg(test)]
mod tests;
