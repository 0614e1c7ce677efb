//! Queue of datagrams to send.

use std::collections::VecDeque;

use super::wire::Mad;
use crate::provider::MadAddress;

/// Maximum number of queued datagrams. Peers determine how many answers we have to send. Answers over the limit are
/// dropped; the peer then repeats its message, and the repetition is answered.
const ROOM: usize = 4096;
/// Maximum length of the queue: a full queue, and one datagram that was put back.
pub(super) const MOST: usize = ROOM + 1;

/// Datagrams to send, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<(MadAddress, Mad)>);

impl Outbox {
    /// Queues a datagram. Returns false if the queue was full; the datagram is dropped then.
    pub(super) fn push(&mut self, to: MadAddress, mad: Mad) -> bool {
        let has_room = self.0.len() < ROOM;
        if has_room {
            self.0.push_back((to, mad));
        } else {
            tracing::debug!("the queue of management datagrams is full: one was dropped");
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<(MadAddress, Mad)> {
        self.0.pop_front()
    }

    pub(super) fn put_back(&mut self, to: MadAddress, mad: Mad) {
        self.0.push_front((to, mad));
    }

    /// Returns the datagrams, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(MadAddress, Mad)> {
        self.0.iter()
    }

    /// Makes the queue of datagrams again. The caller has checked that there are at most [`MOST`].
    pub(super) fn resume(datagrams: &[(MadAddress, Mad)]) -> Self {
        Self(datagrams.iter().copied().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
