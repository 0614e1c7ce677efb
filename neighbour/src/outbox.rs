//! Queues of frames and events for the caller; both have a maximum length.

mod parking;

use std::collections::VecDeque;

use crate::config::Config;
use crate::counters::Counters;
use crate::event::Event;

/// Purpose of a frame, which limits its use of the queue. Replies to others must not keep us from sending our own
/// frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Our own frame: queued while the queue is not full.
    Ours,
    /// A reply: queued while the queue is less than half full.
    Answer,
    /// An echo reply: queued while the queue is less than a quarter full.
    Echo,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    frames: VecDeque<Vec<u8>>,
    most_frames: usize,
    events: VecDeque<Event>,
    most_events: usize,
}

impl Outbox {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            frames: VecDeque::new(),
            most_frames: config.frames,
            events: VecDeque::new(),
            most_events: config.events,
        }
    }

    /// Returns whether the queue can take a frame of that purpose.
    pub(crate) fn has_space(&self, share: Share) -> bool {
        let most = match share {
            Share::Ours => self.most_frames,
            Share::Answer => self.most_frames / 2,
            Share::Echo => self.most_frames / 4,
        };
        self.frames.len() < most
    }

    /// Queues a frame of our own. Counts the frame as lost if the queue is full.
    pub(crate) fn send(&mut self, frame: Vec<u8>, counters: &mut Counters) {
        if self.has_space(Share::Ours) {
            self.frames.push_back(frame);
        } else {
            counters.frames_lost += 1;
        }
    }

    pub(crate) fn push_event(&mut self, event: Event, counters: &mut Counters) {
        if self.events.len() >= self.most_events {
            counters.events_lost += 1;
            self.events.pop_front();
        }
        if self.most_events > 0 {
            self.events.push_back(event);
        }
    }

    /// Drops queued frames because the link is down: they would be outdated when the link is up again.
    pub(crate) fn drop_frames(&mut self, counters: &mut Counters) {
        counters.frames_lost += self.frames.len() as u64;
        self.frames.clear();
    }

    /// Removes the next frame that fits in `out`, copies it to `out`, and returns its length.
    pub(crate) fn take_frame(&mut self, out: &mut [u8], counters: &mut Counters) -> Option<usize> {
        while let Some(frame) = self.frames.pop_front() {
            if let Some(place) = out.get_mut(..frame.len()) {
                place.copy_from_slice(&frame);
                return Some(frame.len());
            }
            counters.frames_lost += 1;
        }
        None
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.frames.len(), self.events.len())
    }
}
