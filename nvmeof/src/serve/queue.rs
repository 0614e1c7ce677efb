//! Queues: the connections of a worker, each of which becomes a queue of a controller by Connect.
//!
//! ```text
//!   ACCEPTED ---Up---> CONNECTED ---Attach---> ATTACHED
//!      |                   |                      |
//!      '------ End --------'--------- End --------'----> ENDING ---(nothing is outstanding)---> gone
//! ```
//!
//! *Drain* leads from CONNECTED and ATTACHED to DRAINING, when the worker stops. Pending commands are then executed and
//! answered. New commands are dropped: the host sends them again when the target is back. Then the connection ends.

use std::collections::VecDeque;
use std::sync::Arc;

use udapl::EpHandle;

use super::admission::Share;
use crate::io::{Issuer, QueueId};
use crate::model::{Connected, Moment, Party, Place, PortAccess};
use crate::nvme::Nqn;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(super) enum State {
    /// The connection is accepted. A command may come before the event that the connection is established.
    Accepted,
    /// The connection is established, and not yet a queue of a controller.
    Connected,
    /// The connection is a queue of a controller.
    Attached,
    /// The worker is stopping: pending commands are answered, new commands are dropped.
    Draining,
    /// The connection has ended, but some of its commands have not.
    Ending,
}

/// Event that changes the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(super) enum Step {
    /// The connection is established.
    Up,
    /// Connect made the connection a queue of a controller.
    Attach,
    /// The worker stops.
    Drain,
    /// The connection has ended.
    End,
}

impl State {
    pub(super) const fn next(self, step: Step) -> Option<Self> {
        Some(match (self, step) {
            (Self::Accepted, Step::Up) => Self::Connected,
            (Self::Connected, Step::Attach) => Self::Attached,
            (Self::Connected | Self::Attached, Step::Drain) => Self::Draining,
            (
                Self::Accepted | Self::Connected | Self::Attached | Self::Draining | Self::Ending,
                Step::End,
            ) => Self::Ending,
            _ => return None,
        })
    }
}

/// Properties of a queue, which Connect has set.
#[derive(Debug)]
pub(super) struct Attached {
    pub controller: u16,
    pub number: u16,
    /// See [`Connected::connection`].
    pub connection: u64,
    pub entries: u16,
    pub without_head: bool,
    pub host_id: [u8; 16],
    /// Name of the host.
    pub host: Nqn,
    /// True until the queue has authenticated; other commands are refused.
    pub must_authenticate: bool,
    /// Number of the worker's namespace list for the subsystem; `None` for discovery.
    pub list: Option<u32>,
    /// Party for which the host's queue counts.
    pub party: Party,
    pub access: Arc<PortAccess>,
}

impl Attached {
    pub(super) fn new(connected: &Connected, list: Option<u32>) -> Self {
        Self {
            controller: connected.controller,
            number: connected.queue,
            connection: connected.connection,
            entries: connected.entries,
            without_head: connected.without_head,
            host_id: connected.host_id,
            host: connected.host.clone(),
            must_authenticate: connected.must_authenticate,
            list,
            party: connected.party.clone(),
            access: Arc::clone(&connected.access),
        }
    }
}

/// A connection, which Connect makes a queue of a controller.
#[derive(Debug)]
pub(super) struct Queue {
    pub ep: EpHandle,
    /// Port, worker, address and requested queue of the connection.
    pub place: Place,
    state: State,
    pub attached: Option<Attached>,
    /// Quota that the queue uses at the worker.
    pub share: Share,
    /// Number of entries: until Connect that of the connection request, then that of Connect.
    pub entries: u16,
    /// Number of pending commands.
    pub outstanding: u32,
    /// Number of outstanding event requests, whose command slots are free already.
    pub held: u32,
    /// Number of Aborts whose commands are being looked for.
    pub aborts: u32,
    /// True while an event is being reported; only one is reported at a time.
    pub is_reporting: bool,
    /// Commands that came before the event that the connection is established.
    pub early: Vec<u32>,
    /// First command of a fused pair, which waits for the second.
    pub fused: Option<u32>,
    /// Commands whose responses wait until a posted response has been sent, oldest first.
    pub behind: VecDeque<u32>,
    /// Commands whose responses are posted, in the order of the send queue. Not every response has a completion; a
    /// completion also covers the responses before it.
    pub sending: VecDeque<u32>,
    /// Number of successive responses of which one has a completion.
    pub stretch: usize,
    /// True if a command has come or a response has been sent since the last report to the model.
    pub was_heard: bool,
    /// Head of the submission queue.
    pub head: u16,
    /// Time at which the connection was accepted.
    pub since: Moment,
    /// True once the worker has disconnected the endpoint.
    pub is_disconnecting: bool,
}

impl Queue {
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Returns the properties that the queue's I/O commands depend on; `None` if this is not an authenticated I/O queue
    /// of a subsystem.
    #[inline]
    pub(super) fn issuer(&self) -> Option<Issuer<'_>> {
        let attached = self.attached.as_ref()?;
        if attached.number == 0 || attached.must_authenticate {
            return None;
        }
        Some(Issuer {
            list: attached.list?,
            access: &attached.access,
            host_id: &attached.host_id,
            host: &attached.host,
            owner: self.share.owner,
        })
    }

    /// Changes the state by a step. Returns false if the state has no such step.
    pub(super) fn step(&mut self, step: Step) -> bool {
        let next = self.state.next(step);
        self.state = next.unwrap_or(self.state);
        next.is_some()
    }

    /// Returns whether the host has sent more commands than its queue has entries, with those that were set aside.
    /// Commands whose responses are posted do not count.
    #[inline]
    pub(super) fn is_overrun(&self, set_aside: u32) -> bool {
        // CAST: widening.
        let there = (self.outstanding + self.held + set_aside) as usize;
        there > usize::from(self.entries) + self.sending.len()
    }

    /// Returns whether the connection has ended, or is being ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_disconnecting || matches!(self.state, State::Ending | State::Draining)
    }

    /// Returns the number of responses that may be posted before one of the posted ones has been sent.
    #[inline]
    pub(super) fn answers_left(&self) -> usize {
        usize::from(self.entries).saturating_sub(self.sending.len())
    }

    /// Advances the head of the submission queue by the command that has come.
    pub(super) const fn advance(&mut self) {
        self.was_heard = true;
        if let Some(attached) = &self.attached {
            let next = self.head + 1;
            self.head = if next == attached.entries { 0 } else { next };
        }
    }
}

/// An outstanding event request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub queue: QueueId,
    /// Command identifier.
    pub cid: u16,
    /// True once the controller was reset.
    pub is_aborted: bool,
}

/// The queues of a worker.
#[derive(Debug, Default)]
pub(super) struct Queues {
    places: Vec<(u32, Option<Queue>)>,
    free: Vec<u32>,
    /// Queue of each endpoint, by the endpoint's index in the table of its instance.
    by_ep: Vec<QueueId>,
}

/// Returns the index of an endpoint in the table of its instance, which is part of its handle.
fn place_of(ep: EpHandle) -> usize {
    // CAST: keeps the lower half, which is the index.
    (ep.to_raw().0 & 0xffff_ffff) as usize
}

impl Queues {
    /// Adds a connection. `room`: capacity of its send queue, in requests.
    pub(super) fn add(
        &mut self,
        ep: EpHandle,
        (place, share): (Place, Share),
        room: u32,
        now: Moment,
    ) -> QueueId {
        // A response without a completion keeps its slot until a later response completes. If the send queue is short,
        // other responses may wait for that slot. So in a short send queue every response has a completion.
        let stretch = if room < 4 * u32::from(place.entries) {
            1
        } else {
            usize::from(place.entries / 4).max(1)
        };
        let queue = Queue {
            ep,
            place,
            state: State::Accepted,
            attached: None,
            share,
            entries: place.entries,
            outstanding: 0,
            held: 0,
            aborts: 0,
            is_reporting: false,
            early: Vec::new(),
            fused: None,
            behind: VecDeque::new(),
            sending: VecDeque::with_capacity(usize::from(place.entries)),
            stretch,
            was_heard: false,
            head: 0,
            since: now,
            is_disconnecting: false,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let (generation, there) = &mut self.places[at as usize];
        *there = Some(queue);
        let id = QueueId {
            place: at,
            generation: *generation,
        };
        let of_ep = place_of(ep);
        if self.by_ep.len() <= of_ep {
            self.by_ep.resize(of_ep + 1, QueueId::NONE);
        }
        self.by_ep[of_ep] = id;
        id
    }

    /// Returns the queue of an endpoint.
    #[inline]
    pub(super) fn of(&mut self, ep: EpHandle) -> Option<(QueueId, &mut Queue)> {
        let id = *self.by_ep.get(place_of(ep))?;
        // A later queue in this place has another endpoint, so its generation need not be compared.
        let (_, queue) = self.places.get_mut(id.place as usize)?;
        let queue = queue.as_mut().filter(|queue| queue.ep == ep)?;
        Some((id, queue))
    }

    #[inline]
    pub(super) fn get(&self, id: QueueId) -> Option<&Queue> {
        let (generation, queue) = self.places.get(id.place as usize)?;
        queue.as_ref().filter(|_| *generation == id.generation)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        let (generation, queue) = self.places.get_mut(id.place as usize)?;
        queue.as_mut().filter(|_| *generation == id.generation)
    }

    /// Removes a queue.
    pub(super) fn remove(&mut self, id: QueueId) -> Option<Queue> {
        self.get(id)?;
        let (generation, queue) = &mut self.places[id.place as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(id.place);
        queue.take()
    }

    /// Returns the identifiers of all queues.
    pub(super) fn ids(&self) -> Vec<QueueId> {
        let places = (0..).zip(&self.places);
        let there = places.filter(|(_, (_, queue))| queue.is_some());
        there
            .map(|(place, (generation, _))| QueueId {
                place,
                generation: *generation,
            })
            .collect()
    }

    /// Returns all queues, in the order of [`Self::ids`].
    pub(super) fn all(&self) -> impl Iterator<Item = &Queue> {
        self.places.iter().filter_map(|(_, queue)| queue.as_ref())
    }

    /// Records that all hosts have shown activity.
    pub(super) fn hear_all(&mut self) {
        let there = self.places.iter_mut().filter_map(|(_, it)| it.as_mut());
        there.for_each(|queue| queue.was_heard = true);
    }

    /// Returns the controllers of authenticated queues whose hosts have shown activity since the last call.
    pub(super) fn heard(&mut self) -> impl Iterator<Item = u16> {
        let there = self.places.iter_mut().filter_map(|(_, it)| it.as_mut());
        there.filter_map(|queue| {
            let was_heard = core::mem::take(&mut queue.was_heard);
            let attached = queue.attached.as_ref();
            let attached = attached.filter(|one| was_heard && !one.must_authenticate)?;
            Some(attached.controller)
        })
    }

    /// Returns the number of queues.
    #[inline]
    pub(super) const fn count(&self) -> u64 {
        (self.places.len() - self.free.len()) as u64 // CAST: widening.
    }

    /// Returns whether there is no queue.
    pub(super) const fn is_empty(&self) -> bool {
        self.count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::assert_table;

    #[test]
    fn every_pair_of_state_and_step_is_as_the_checked_in_table_says() {
        assert_table(State::next, "refused", include_str!("queue.table"));
    }
}
