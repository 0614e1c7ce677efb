//! Datagrams on their way to the wire.

use std::collections::VecDeque;

use super::wire::Mad;
use crate::provider::MadAddress;

/// What may wait. Peers decide how much we have to answer: more than this is dropped, and asked for again.
const ROOM: usize = 4096;

/// Datagrams to send, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<(MadAddress, Mad)>);

impl Outbox {
    /// Whether there was room.
    pub(super) fn push(&mut self, to: MadAddress, mad: Mad) -> bool {
        let has_room = self.0.len() < ROOM;
        if has_room {
            self.0.push_back((to, mad));
        } else {
            tracing::debug!("a management datagram found no room; dropped");
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<(MadAddress, Mad)> {
        self.0.pop_front()
    }

    pub(super) fn put_back(&mut self, to: MadAddress, mad: Mad) {
        self.0.push_front((to, mad));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
