//! The sending side of a port: a queue for each priority, a line rate, and the pauses requested by the peer.
//!
//! One frame is on the wire at a time, for the time its bytes take at the port's rate. Then the port sends the next
//! frame. Control frames go first. Otherwise the port considers the priorities that have a frame and are not paused,
//! and takes the one that [`super::ets`] selects: the highest priority, unless a card's driver sets traffic classes. A
//! pause (802.1Qbb) has an end time. A pause does not interrupt a frame that is being sent.
//!
//! Both ends of a cable use an egress: each port of a switch, and a card that is connected to a switch. They treat a
//! full queue differently, so an egress accepts every frame.

use std::collections::VecDeque;

use super::classify::PRIORITIES;
use super::ets::{Selection, TrafficClasses};

/// Number of bytes on the wire in addition to the frame: check sequence, preamble and gap (IEEE 802.3).
const OVERHEAD_BYTES: usize = 24;
/// Minimum frame length in bytes, check sequence included.
const SHORTEST_BYTES: usize = 64;

/// Record of the buffer memory that a frame occupies. The switch frees this memory when the frame has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Ingress port of the frame.
    pub from: usize,
    /// Priority of the frame.
    pub priority: usize,
    /// Length of the frame in bytes.
    pub bytes: usize,
    /// Egress port of the frame.
    pub to: usize,
}

/// A frame whose transmission begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub frame: Vec<u8>,
    /// Time at which the wire is free again: the end of the gap after the frame, in ns.
    pub out: u64,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Vec<u8>, Option<Credit>)>,
    bytes: usize,
    /// End of the peer's pause of this queue, in ns.
    paused_until: u64,
    /// Time in ns at which [`Egress::stuck`] first found the queue stuck: it has frames, but is paused.
    stuck_since: Option<u64>,
}

impl Queue {
    fn is_paused(&self, now: u64) -> bool {
        self.paused_until > now
    }
}

/// The sending side of a port.
#[derive(Debug)]
pub(crate) struct Egress {
    rate_bps: u64,
    control: VecDeque<Vec<u8>>,
    queues: [Queue; PRIORITIES],
    selection: Selection,
    /// Time in ns at which the frame on the wire has left, and the credit to return at that time.
    busy: Option<(u64, Option<Credit>)>,
}

impl Egress {
    /// Creates an idle port. The rate is in bits per second.
    pub(crate) fn new(rate_bps: u64) -> Self {
        Self {
            rate_bps: rate_bps.max(1),
            control: VecDeque::new(),
            queues: Default::default(),
            selection: Selection::default(),
            busy: None,
        }
    }

    pub(crate) const fn rate_bps(&self) -> u64 {
        self.rate_bps
    }

    /// Sets the traffic classes of the priorities.
    pub(crate) fn set_classes(&mut self, classes: &TrafficClasses) {
        self.selection.set(classes);
    }

    /// Returns the time that a frame of `bytes` occupies the wire, in ns.
    fn wire_ns(&self, bytes: usize) -> u64 {
        let ns = u128::from(wire_bytes(bytes)) * 8 * 1_000_000_000 / u128::from(self.rate_bps);
        u64::try_from(ns).unwrap_or(u64::MAX).max(1)
    }

    /// Queues a control frame, which is sent before all other frames and is never paused.
    pub(crate) fn push_control(&mut self, frame: Vec<u8>) {
        self.control.push_back(frame);
    }

    pub(crate) fn push(&mut self, priority: usize, frame: Vec<u8>, credit: Option<Credit>) {
        let queue = &mut self.queues[priority];
        queue.bytes += frame.len();
        queue.frames.push_back((frame, credit));
    }

    /// Returns the number of bytes queued in a priority.
    pub(crate) const fn depth(&self, priority: usize) -> usize {
        self.queues[priority].bytes
    }

    pub(crate) fn total_depth(&self) -> usize {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }

    /// Returns whether a priority is paused.
    pub(crate) fn is_paused(&self, now: u64, priority: usize) -> bool {
        self.queues[priority].is_paused(now)
    }

    /// Pauses a priority until `until`; a time in the past ends the pause. Returns the change of the remaining pause
    /// time, in ns.
    pub(crate) fn pause(&mut self, now: u64, priority: usize, until: u64) -> i64 {
        let queue = &mut self.queues[priority];
        let before = queue.paused_until.max(now);
        queue.paused_until = until.max(now);
        // CAST: the difference fits, because a pause lasts a fraction of a second.
        i64::try_from(queue.paused_until).unwrap_or(i64::MAX)
            - i64::try_from(before).unwrap_or(i64::MAX)
    }

    /// Frees the wire if the current frame has left, and returns that frame's credit.
    pub(crate) fn finish(&mut self, now: u64) -> Option<Credit> {
        let (out, credit) = self.busy?;
        if out > now {
            return None;
        }
        self.busy = None;
        credit
    }

    /// Starts to send the next frame, if the wire is free.
    pub(crate) fn begin(&mut self, now: u64) -> Option<Begun> {
        if self.busy.is_some_and(|(out, _)| out > now) {
            return None;
        }
        let (frame, credit) = match self.control.pop_front() {
            Some(frame) => (frame, None),
            None => self.next(now)?,
        };
        let out = now.saturating_add(self.wire_ns(frame.len()));
        self.busy = Some((out, credit));
        Some(Begun { frame, out })
    }

    fn next(&mut self, now: u64) -> Option<(Vec<u8>, Option<Credit>)> {
        let ready = |queue: &Queue| !queue.is_paused(now) && !queue.frames.is_empty();
        let priorities = (0..PRIORITIES).filter(|&at| ready(&self.queues[at]));
        let priority = self.selection.next(now, priorities)?;
        let queue = &mut self.queues[priority];
        let (frame, credit) = queue.frames.pop_front()?;
        self.selection.sent(now, priority, wire_bytes(frame.len()));
        queue.bytes -= frame.len();
        queue.stuck_since = None;
        Some((frame, credit))
    }

    /// Returns the time of the port's next event.
    pub(crate) fn next_due(&self) -> Option<u64> {
        if let Some((out, _)) = self.busy {
            return Some(out);
        }
        let queues = self.queues.iter().enumerate();
        let waiting = queues.filter(|(_, queue)| !queue.frames.is_empty());
        waiting
            .map(|(priority, queue)| {
                let silent_until = self.selection.silent_until(priority);
                queue.paused_until.max(silent_until)
            })
            .min()
    }

    /// Updates `stuck_since` of every queue. Returns the first priority that has been stuck since `since` or earlier.
    pub(crate) fn stuck(&mut self, now: u64, since: u64) -> Option<usize> {
        for queue in &mut self.queues {
            let is_held = queue.is_paused(now) && !queue.frames.is_empty();
            queue.stuck_since = is_held.then(|| queue.stuck_since.unwrap_or(now));
        }
        let is_old = |queue: &Queue| queue.stuck_since.is_some_and(|stuck| stuck <= since);
        self.queues.iter().position(is_old)
    }

    /// Returns the earliest `stuck_since` of all queues, or `None` if no queue is stuck.
    pub(crate) fn stuck_since(&self) -> Option<u64> {
        self.queues
            .iter()
            .filter_map(|queue| queue.stuck_since)
            .min()
    }

    /// Drops all frames of a priority. Returns the credits of the dropped frames.
    pub(crate) fn discard(&mut self, priority: usize) -> Vec<Option<Credit>> {
        let queue = &mut self.queues[priority];
        (queue.bytes, queue.stuck_since) = (0, None);
        queue.frames.drain(..).map(|(_, credit)| credit).collect()
    }
}

/// Returns the number of bytes that a frame occupies on the wire.
fn wire_bytes(frame: usize) -> u64 {
    (frame.max(SHORTEST_BYTES - 4) + OVERHEAD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::super::ets::RateLimit;
    use super::*;

    /// Creates a port of 1 Gb/s: 8 ns per byte. A frame of 976 bytes occupies 1,000 bytes on the wire.
    fn port() -> Egress {
        Egress::new(1_000_000_000)
    }

    #[test]
    fn a_frame_takes_its_bytes_on_the_wire_and_the_shortest_takes_eighty_four() {
        let mut port = port();
        port.push(0, vec![0; 976], None);
        port.push(0, vec![1; 14], None);
        assert_eq!(port.begin(0).map(|begun| begun.out), Some(8_000));
        assert_eq!(port.begin(7_999), None, "one at a time");
        assert_eq!(port.next_due(), Some(8_000));
        assert_eq!(port.finish(8_000), None);
        assert_eq!(port.begin(8_000).map(|begun| begun.out), Some(8_672));
    }

    #[test]
    fn control_goes_first_then_the_highest_priority_that_may() {
        let mut port = port();
        for priority in [0, 3, 6] {
            port.push(
                priority,
                vec![u8::try_from(priority).expect("small"); 60],
                None,
            );
        }
        port.push_control(vec![9; 60]);
        assert_eq!(port.pause(0, 6, 2_000), 2_000);
        let mut sent = Vec::new();
        let mut now = 0;
        while let Some(due) = port.begin(now).map(|begun| {
            sent.push((begun.frame[0], begun.out));
            begun.out
        }) {
            now = due;
        }
        assert_eq!(sent, [(9, 672), (3, 1_344), (0, 2_016), (6, 2_688)]);
    }

    /// Sends all queued frames. Returns the first byte of each frame and the time at which the frame has left.
    fn drain(port: &mut Egress) -> Vec<(u8, u64)> {
        let (mut sent, mut now) = (Vec::new(), 0);
        loop {
            if let Some(begun) = port.begin(now) {
                sent.push((begun.frame[0], begun.out));
            }
            let Some(due) = port.next_due() else {
                return sent;
            };
            now = due;
            let _ = port.finish(now);
        }
    }

    #[test]
    fn classes_of_a_group_share_by_percent_below_a_strict_one() {
        let mut port = port();
        let mut classes = TrafficClasses::default();
        for (class, share) in [(1, 25), (2, 75)] {
            (classes.classes[class].group, classes.classes[class].share) = (0, share);
        }
        port.set_classes(&classes);
        for _ in 0..40 {
            port.push(1, vec![1; 976], None);
            port.push(2, vec![2; 976], None);
        }
        port.push(5, vec![5; 976], None);
        let sent = drain(&mut port);
        assert_eq!(sent[0].0, 5, "a group above goes first");
        let of_first = sent[1..41].iter().filter(|(class, _)| *class == 1).count();
        assert_eq!(of_first, 10, "a quarter of forty");
        assert_eq!(sent.len(), 81, "what is left has the port alone");
    }

    #[test]
    fn priorities_of_one_class_have_one_share() {
        let mut port = port();
        let mut classes = TrafficClasses::default();
        classes.of_priority[2] = 1;
        (classes.classes[1].group, classes.classes[1].share) = (0, 50);
        (classes.classes[0].group, classes.classes[0].share) = (0, 50);
        port.set_classes(&classes);
        for priority in [0, 1, 2] {
            for _ in 0..20 {
                port.push(
                    priority,
                    vec![u8::try_from(priority).expect("small"); 976],
                    None,
                );
            }
        }
        let sent = drain(&mut port);
        let of_first = sent[..20].iter().filter(|(class, _)| *class == 0).count();
        assert_eq!(of_first, 10);
    }

    /// A class with a rate limit pauses between its frames. At 1 Gb/s a frame of 976 bytes takes 8 us; at the limit of
    /// 100 Mb/s the next frame starts after 80 us.
    #[test]
    fn a_class_with_a_largest_rate_is_silent_between_its_frames() {
        let mut port = port();
        let mut classes = TrafficClasses::default();
        classes.classes[3].limit = Some(RateLimit::HundredMegabits(1));
        port.set_classes(&classes);
        port.push(3, vec![3; 976], None);
        port.push(3, vec![3; 976], None);
        port.push(0, vec![0; 976], None);
        assert_eq!(drain(&mut port), [(3, 8_000), (0, 16_000), (3, 88_000)]);
    }

    #[test]
    fn a_pause_ends_by_itself_or_by_another_frame() {
        let mut port = port();
        port.push(1, vec![0; 60], None);
        assert_eq!(port.pause(100, 1, 1_100), 1_000);
        assert_eq!(port.begin(100), None);
        assert_eq!(port.next_due(), Some(1_100));
        assert_eq!(port.stuck(150, 0), None);
        assert_eq!(port.stuck(900, 150), Some(1));
        assert_eq!(port.pause(600, 1, 0), -500);
        assert!(port.begin(600).is_some());
        assert_eq!(port.stuck(700, 700), None);
    }
}
