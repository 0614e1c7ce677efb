//! A queue: a connection, and what it is to a controller.
//!
//! ```text
//!   ACCEPTED ---Up---> CONNECTED ---Attach---> ATTACHED
//!      |                   |                      |
//!      '------ End --------'--------- End --------'----> ENDING ---(nothing is outstanding)---> gone
//! ```
//!
//! *Drain* leads from CONNECTED and ATTACHED to DRAINING: the worker stops. Commands that are here are carried out and
//! answered, those that come are not looked at: their host sends them again when the target is back. Then it is left.

use std::collections::VecDeque;
use std::sync::Arc;

use udapl::EpHandle;

use super::admission::Share;
use crate::model::{Connected, Moment, Party, Place, PortAccess};

/// Which queue: a place of the worker's table, and how often that was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId {
    place: u32,
    generation: u32,
}

impl QueueId {
    /// A place that was not given out twice.
    #[cfg(test)]
    pub(super) const fn of(place: u32) -> Self {
        Self {
            place,
            generation: 0,
        }
    }

    /// None.
    pub(super) const NONE: Self = Self {
        place: u32::MAX,
        generation: 0,
    };
}

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is accepted. A command may come before it is known to be there.
    Accepted,
    /// It is there, and no queue of a controller yet.
    Connected,
    /// It is a queue of a controller.
    Attached,
    /// What is here is answered, and nothing else.
    Draining,
    /// It has ended; I/Os of it are still somewhere.
    Ending,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The connection is there.
    Up,
    /// Connect made it a queue.
    Attach,
    /// The worker stops.
    Drain,
    /// It is over.
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

/// What Connect made of it.
#[derive(Debug)]
pub(super) struct Attached {
    pub controller: u16,
    pub number: u16,
    /// See [`Connected::connection`].
    pub connection: u64,
    pub entries: u16,
    pub without_head: bool,
    pub host_id: [u8; 16],
    /// Nothing else is carried out before it is authenticated.
    pub must_authenticate: bool,
    /// Which of the worker's shelves its namespaces are on; none for discovery.
    pub shelf: Option<usize>,
    /// Whose it is.
    pub party: Party,
    pub access: Arc<PortAccess>,
}

impl Attached {
    pub(super) fn new(connected: &Connected, shelf: Option<usize>) -> Self {
        Self {
            controller: connected.controller,
            number: connected.queue,
            connection: connected.connection,
            entries: connected.entries,
            without_head: connected.without_head,
            host_id: connected.host_id,
            must_authenticate: connected.must_authenticate,
            shelf,
            party: connected.party.clone(),
            access: Arc::clone(&connected.access),
        }
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub ep: EpHandle,
    /// Where the connection came in.
    pub place: Place,
    state: State,
    pub attached: Option<Attached>,
    /// Its part in what the worker has.
    pub share: Share,
    /// Entries: those of the connection, and since Connect those that it named.
    pub entries: u16,
    /// I/Os that are here, wherever they are.
    pub outstanding: u32,
    /// Event requests that wait; their places have gone back.
    pub held: u32,
    /// An event is being told: one at a time.
    pub is_telling: bool,
    /// Commands that came before the connection was known to be there.
    pub early: Vec<u32>,
    /// The first of a fused pair, which waits for the second.
    pub fused: Option<u32>,
    /// I/Os whose answers found the send queue full, the oldest first.
    pub behind: VecDeque<u32>,
    /// I/Os whose answers are posted, the oldest first: the send queue's order. Not each of them is told when it has
    /// left; one that is told has those before it behind it.
    pub leaving: VecDeque<u32>,
    /// Of so many answers that are posted one after the other, one is told when it has left.
    pub stretch: usize,
    /// A command has come or an answer has left since the model was told so.
    pub was_heard: bool,
    /// Head of the submission queue.
    pub head: u16,
    /// When it was accepted.
    pub since: Moment,
    /// The endpoint is told to disconnect.
    pub is_leaving: bool,
}

impl Queue {
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Takes a step, if it is one of its state.
    pub(super) fn step(&mut self, step: Step) -> bool {
        let next = self.state.next(step);
        self.state = next.unwrap_or(self.state);
        next.is_some()
    }

    /// The host has sent more than its queue has entries: beside those it has commands here whose answers it may have
    /// and whose leaving is not known yet.
    #[inline]
    pub(super) fn is_overrun(&self) -> bool {
        // CAST: widening.
        let there = (self.outstanding + self.held) as usize;
        there > usize::from(self.entries) + self.leaving.len()
    }

    /// Answers that may be posted before one of those that leave has left.
    #[inline]
    pub(super) fn answers_left(&self) -> usize {
        usize::from(self.entries).saturating_sub(self.leaving.len())
    }

    /// A command is taken in; the head of the submission queue after it.
    pub(super) const fn advance(&mut self) {
        self.was_heard = true;
        if let Some(attached) = &self.attached {
            self.head = (self.head + 1) % attached.entries;
        }
    }
}

/// The queues of a worker.
#[derive(Debug, Default)]
pub(super) struct Queues {
    places: Vec<(u32, Option<Queue>)>,
    free: Vec<u32>,
    /// By the place of the endpoint in its instance's table.
    by_ep: Vec<QueueId>,
}

/// Where an endpoint's handle says that it is in its table.
fn place_of(ep: EpHandle) -> usize {
    // CAST: the lower half, which is the place.
    (ep.to_raw().0 & 0xffff_ffff) as usize
}

impl Queues {
    /// A connection begins. `room`: requests that its send queue holds.
    pub(super) fn add(
        &mut self,
        ep: EpHandle,
        (place, share): (Place, Share),
        room: u32,
        now: Moment,
    ) -> QueueId {
        // The places of those that are not told are missed for longer. Where a send queue can be full, answers wait for
        // the next one that is told, so each is.
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
            is_telling: false,
            early: Vec::new(),
            fused: None,
            behind: VecDeque::new(),
            leaving: VecDeque::with_capacity(usize::from(place.entries)),
            stretch,
            was_heard: false,
            head: 0,
            since: now,
            is_leaving: false,
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

    /// The queue of an endpoint.
    #[inline]
    pub(super) fn of(&self, ep: EpHandle) -> Option<QueueId> {
        let id = *self.by_ep.get(place_of(ep))?;
        (self.get(id)?.ep == ep).then_some(id)
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

    /// It is gone.
    pub(super) fn remove(&mut self, id: QueueId) -> Option<Queue> {
        self.get(id)?;
        let (generation, queue) = &mut self.places[id.place as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(id.place);
        queue.take()
    }

    /// All of them.
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

    /// The controllers of which something was heard since this was asked.
    pub(super) fn heard(&mut self) -> impl Iterator<Item = u16> {
        let there = self.places.iter_mut().filter_map(|(_, it)| it.as_mut());
        there.filter_map(|queue| {
            let was_heard = core::mem::take(&mut queue.was_heard);
            let attached = queue.attached.as_ref();
            let attached = attached.filter(|one| was_heard && !one.must_authenticate)?;
            Some(attached.controller)
        })
    }

    /// How many there are.
    #[inline]
    pub(super) const fn count(&self) -> u64 {
        (self.places.len() - self.free.len()) as u64 // CAST: widening.
    }

    /// Whether there is none.
    pub(super) const fn is_empty(&self) -> bool {
        self.count() == 0
    }
}
