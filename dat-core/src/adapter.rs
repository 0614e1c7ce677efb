//! State shared by the instances of an adapter: the connection manager, and one arrival queue per instance.
//!
//! An [`Ia`](crate::Ia) is an instance: it belongs to one thread at a time, and has objects and queues of its own. An
//! adapter may have several instances. Its port has one connection manager, which they share behind a lock. No thread
//! holds the lock while it waits for a device or a peer. Posts and dequeues do not take the lock.
//!
//! Any instance can run the connection manager for all of them: that instance receives datagrams, handles timers, and
//! sends. It queues each resulting event for the instance concerned, and wakes that instance. A connection belongs to
//! the instance of its endpoint. A connection request goes to the instance that listens at its qualifier. If several
//! instances listen there, the one with the fewest connections gets it. If that one cannot take it, another one gets
//! it.

mod parking;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slotmap::SecondaryMap;

use crate::cm::{self, Cm, CmEvent, ConnId, InUse, ListenId};
use crate::object::cr::Cr;
use crate::object::view::{Notice, Question, Watcher};
use crate::provider::{Nanos, Waker};

/// Maximum number of questions that wait for one instance.
const QUESTIONS: usize = 16;

/// Index of an instance in the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstanceIndex(u32);

/// A message for an instance.
pub(crate) enum Arrival {
    /// An event of the connection manager.
    Event(CmEvent),
    /// A connection request that the instance `from` hands off to a service point of this instance.
    HandedOff {
        from: InstanceIndex,
        listen: ListenId,
        cr: Box<Cr>,
    },
    /// A question of an observer, which this instance answers.
    Question(Question),
    /// An observer's request to start or stop measuring.
    Measure(bool),
}

impl Arrival {
    /// Returns the connection that the message is about; `None` for a message of an observer.
    const fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Event(event) => Some(event.conn()),
            Self::HandedOff { cr, .. } => Some(cr.conn),
            Self::Question(_) | Self::Measure(_) => None,
        }
    }

    /// Returns whether the message is a connection request that no program has decided about.
    const fn is_request(&self) -> bool {
        matches!(
            self,
            Self::Event(CmEvent::Request { .. }) | Self::HandedOff { .. }
        )
    }
}

/// State shared by the instances of an adapter, behind a lock.
pub(crate) struct Adapter {
    state: Mutex<State>,
    /// Functions that are called with each event. While a watcher runs, only its own lock is held.
    watchers: Mutex<Vec<Arc<Mutex<Watcher>>>>,
}

/// State shared by the instances of an adapter.
pub(crate) struct State {
    pub(crate) cm: Cm,
    queues: Vec<Option<InstanceQueue>>,
    points: SecondaryMap<ListenId, Point>,
    /// Number of times the port has come up during the adapter's life.
    port_ups: u64,
    /// Number of observers that currently need measurements.
    measuring: u32,
}

/// Queue of an instance's arrivals.
struct InstanceQueue {
    /// Number of the instance, unique in the process.
    number: u32,
    arrivals: VecDeque<Arrival>,
    waker: Waker,
    /// Number of connections and undecided requests of the instance.
    connections: usize,
}

/// The instances that listen at one connection qualifier.
struct Point {
    instance_indices: Vec<InstanceIndex>,
    shared: bool,
}

impl InstanceQueue {
    /// Queues a question, and wakes the instance. If too many questions wait, the oldest is dropped, and this instance
    /// does not answer it.
    fn ask(&mut self, question: Question) {
        let is_question = |arrival: &Arrival| matches!(arrival, Arrival::Question(_));
        let waiting = || self.arrivals.iter().filter(|one| is_question(one));
        if waiting().count() >= QUESTIONS
            && let Some(oldest) = self.arrivals.iter().position(is_question)
        {
            self.arrivals.remove(oldest);
        }
        self.arrivals.push_back(Arrival::Question(question));
        (self.waker)();
    }

    /// Queues a request to start or stop measuring in place of an earlier one, and wakes the instance.
    fn measure(&mut self, on: bool) {
        self.arrivals
            .retain(|arrival| !matches!(arrival, Arrival::Measure(_)));
        self.arrivals.push_back(Arrival::Measure(on));
        (self.waker)();
    }
}

impl Adapter {
    pub(crate) fn new(config: cm::Config) -> Self {
        Self {
            state: Mutex::new(State {
                cm: Cm::new(config),
                queues: Vec::new(),
                points: SecondaryMap::new(),
                port_ups: 0,
                measuring: 0,
            }),
            watchers: Mutex::default(),
        }
    }

    /// Locks the state. The caller must release the lock soon.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left a datagram or a call half handled. The connection manager
        // tolerates that, as it tolerates peers that send false data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Mutex<Watcher>>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of the events of all instances.
    pub(crate) fn watch(&self, watcher: Watcher) {
        self.watchers().push(Arc::new(Mutex::new(watcher)));
    }

    /// Calls all watchers. The caller must not hold the lock of the state, since a watcher may take it.
    pub(crate) fn notice(&self, notice: &Notice) {
        let all = self.watchers().clone();
        for watcher in all {
            let watcher = watcher.lock().unwrap_or_else(PoisonError::into_inner);
            watcher(notice);
        }
    }
}

impl State {
    /// Adds an instance. Returns its index, and the number of times the port has come up before.
    pub(crate) fn add_instance(&mut self, number: u32, waker: Waker) -> (InstanceIndex, u64) {
        let free = self.queues.iter().position(Option::is_none);
        let at = free.unwrap_or(self.queues.len());
        if free.is_none() {
            self.queues.push(None);
        }
        self.queues[at] = Some(InstanceQueue {
            number,
            arrivals: VecDeque::new(),
            waker,
            connections: 0,
        });
        // CAST: 2^32 instances do not fit into memory.
        #[expect(clippy::cast_possible_truncation, reason = "a handful")]
        let instance_index = InstanceIndex(at as u32);
        (instance_index, self.port_ups)
    }

    /// Removes an instance, and handles the arrivals that it has not handled. A connection request goes to another
    /// instance that listens there, if there is one; otherwise it is declined. All other connections with such an
    /// arrival are released.
    pub(crate) fn remove_instance(&mut self, instance_index: InstanceIndex, now: Nanos) {
        self.sort(instance_index);
        let listening: Vec<ListenId> = self
            .points
            .iter()
            .filter(|(_, point)| point.instance_indices.contains(&instance_index))
            .map(|(listen, _)| listen)
            .collect();
        for listen in listening {
            self.unlisten(instance_index, listen);
        }
        let queue = self
            .queues
            .get_mut(instance_index.0 as usize)
            .and_then(Option::take);
        for arrival in queue.into_iter().flat_map(|queue| queue.arrivals) {
            // Questions of observers get no answer from an instance that is removed.
            let Some(conn) = arrival.conn() else { continue };
            let others = match &arrival {
                Arrival::Event(CmEvent::Request { request, .. }) => {
                    self.least_loaded(request.listen, None)
                }
                // The instance that handed the request off does not take it back.
                Arrival::HandedOff { from, listen, .. } => self.least_loaded(*listen, Some(*from)),
                Arrival::Event(_) | Arrival::Question(_) | Arrival::Measure(_) => None,
            };
            // If another instance listens, it gets the request. Otherwise the request is declined for lack of
            // resources, because no program has rejected it. Other connections are released.
            let Some(to) = others else {
                if arrival.is_request() {
                    self.cm.decline(now, conn, cm::RejectReason::NoResources);
                } else {
                    self.cm.release(now, conn);
                }
                continue;
            };
            self.own(conn, to);
            if let Some(queue) = self.queue(to) {
                queue.arrivals.push_back(arrival);
                (queue.waker)();
            }
        }
    }

    /// Returns the number of instances.
    pub(crate) fn instances(&self) -> usize {
        self.queues.iter().flatten().count()
    }

    /// Directs requests for `service_id` to this instance. If other instances listen there already and all of them
    /// share the listener, each request goes to one of them.
    pub(crate) fn listen(
        &mut self,
        instance_index: InstanceIndex,
        service_id: u64,
        shared: bool,
    ) -> Result<ListenId, InUse> {
        if let Some(listen) = self.cm.listener(service_id)
            && let Some(point) = self.points.get_mut(listen)
            && shared
            && point.shared
            && !point.instance_indices.contains(&instance_index)
        {
            point.instance_indices.push(instance_index);
            return Ok(listen);
        }
        let listen = self.cm.listen(service_id)?;
        self.points.insert(
            listen,
            Point {
                instance_indices: vec![instance_index],
                shared,
            },
        );
        Ok(listen)
    }

    /// Stops an instance from listening at a listener. The listener is removed when no instance listens there any more.
    pub(crate) fn unlisten(&mut self, instance_index: InstanceIndex, listen: ListenId) {
        let Some(point) = self.points.get_mut(listen) else {
            return;
        };
        point
            .instance_indices
            .retain(|other| *other != instance_index);
        if point.instance_indices.is_empty() {
            self.points.remove(listen);
            self.cm.unlisten(listen);
        }
    }

    /// Assigns a connection, or an undecided request, to an instance.
    pub(crate) fn own(&mut self, conn: ConnId, instance_index: InstanceIndex) {
        self.cm.set_owner(conn, instance_index.0);
        if let Some(queue) = self.queue(instance_index) {
            queue.connections += 1;
        }
    }

    fn queue(&mut self, instance_index: InstanceIndex) -> Option<&mut InstanceQueue> {
        self.queues.get_mut(instance_index.0 as usize)?.as_mut()
    }

    /// Releases a connection that its instance no longer uses.
    pub(crate) fn release(&mut self, now: Nanos, conn: ConnId, instance_index: InstanceIndex) {
        self.let_go(conn, instance_index);
        self.cm.release(now, conn);
    }

    /// Drops an instance's queued arrivals about a connection, and no longer counts the connection for that instance.
    fn let_go(&mut self, conn: ConnId, instance_index: InstanceIndex) {
        let counted = self.cm.owner(conn) == Some(instance_index.0);
        if let Some(queue) = self.queue(instance_index) {
            queue.connections = queue.connections.saturating_sub(usize::from(counted));
            queue
                .arrivals
                .retain(|arrival| arrival.conn() != Some(conn));
        }
    }

    /// Declines a request because its instance has no capacity for it.
    pub(crate) fn decline(
        &mut self,
        now: Nanos,
        conn: ConnId,
        instance_index: InstanceIndex,
        reason: cm::RejectReason,
    ) {
        self.let_go(conn, instance_index);
        self.cm.decline(now, conn, reason);
    }

    /// Returns whether an instance other than `but` listens at `service_id`.
    pub(crate) fn is_listened_to(&self, service_id: u64, but: InstanceIndex) -> bool {
        let at = self.cm.listener(service_id);
        at.is_some_and(|listen| self.least_loaded(listen, Some(but)).is_some())
    }

    /// Hands an undecided request to another instance that listens at `service_id`. If there is none, the error
    /// returns the request.
    pub(crate) fn hand_off(
        &mut self,
        from: InstanceIndex,
        service_id: u64,
        cr: Box<Cr>,
    ) -> Result<(), Box<Cr>> {
        let at = self.cm.listener(service_id);
        let Some((listen, to)) =
            at.and_then(|listen| Some((listen, self.least_loaded(listen, Some(from))?)))
        else {
            return Err(cr);
        };
        let conn = cr.conn;
        self.let_go(conn, from);
        self.own(conn, to);
        if let Some(queue) = self.queue(to) {
            let arrival = Arrival::HandedOff { from, listen, cr };
            queue.arrivals.push_back(arrival);
            (queue.waker)();
        }
        Ok(())
    }

    /// Returns the listening instance with the fewest connections, except `but`.
    fn least_loaded(&self, listen: ListenId, but: Option<InstanceIndex>) -> Option<InstanceIndex> {
        let load = |instance_index: &InstanceIndex| {
            let queue = self.queues.get(instance_index.0 as usize);
            queue
                .and_then(Option::as_ref)
                .map_or(usize::MAX, |queue| queue.connections)
        };
        let point = self.points.get(listen)?;
        let others = point
            .instance_indices
            .iter()
            .filter(|instance_index| Some(**instance_index) != but);
        others.copied().min_by_key(load)
    }

    /// Returns the next arrival for this instance, and queues those for others.
    pub(crate) fn next_arrival(&mut self, instance_index: InstanceIndex) -> Option<Arrival> {
        if let Some(arrival) = self.queue(instance_index)?.arrivals.pop_front() {
            return Some(arrival);
        }
        self.sort(instance_index);
        self.queue(instance_index)?.arrivals.pop_front()
    }

    /// Queues the connection manager's events by instance, and wakes the instances other than `here`.
    fn sort(&mut self, here: InstanceIndex) {
        while let Some(event) = self.cm.poll_event() {
            let conn = event.conn();
            let to = if let CmEvent::Request { request, .. } = &event {
                let to = self.least_loaded(request.listen, None);
                if let Some(to) = to {
                    self.own(conn, to);
                }
                // If no instance listens any more, the current instance gets the request and declines it.
                to.unwrap_or(here)
            } else {
                self.cm.owner(conn).map_or(here, InstanceIndex)
            };
            let to = if self.queue(to).is_some() { to } else { here };
            if let Some(queue) = self.queue(to) {
                queue.arrivals.push_back(Arrival::Event(event));
                if to != here {
                    (queue.waker)();
                }
            }
        }
    }

    /// Queues a question for every instance. Returns the numbers of the instances.
    pub(crate) fn ask(&mut self, question: &Question) -> Vec<u32> {
        let queues = self.queues.iter_mut().flatten();
        queues
            .map(|queue| {
                queue.ask(question.clone());
                queue.number
            })
            .collect()
    }

    /// Counts the observers that need measurements. The instances are notified when the first observer starts, and when
    /// the last one stops.
    pub(crate) fn measure(&mut self, on: bool) {
        let was = self.is_measured();
        self.measuring = if on {
            self.measuring.saturating_add(1)
        } else {
            self.measuring.saturating_sub(1)
        };
        let now = self.is_measured();
        for queue in self.queues.iter_mut().flatten().filter(|_| was != now) {
            queue.measure(now);
        }
    }

    pub(crate) const fn is_measured(&self) -> bool {
        self.measuring != 0
    }

    /// Handles an instance's report that the port came up for the `times`-th time. The first report of each number
    /// makes the connection manager repeat its unanswered messages.
    pub(crate) fn port_came_up(&mut self, now: Nanos, times: u64) {
        if times > self.port_ups {
            self.port_ups = times;
            self.cm.port_came_up(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;
    use crate::cm::wire::{Mad, Message};
    use crate::cm::{Config, ConnectParams};
    use crate::object::view::Wanted;
    use crate::provider::{MadAddress, Path, Psn, Qpn};

    const SERVICE: u64 = 0x1000_0000_0000_0042;
    const PEER: Path = Path {
        source_gid_index: 0,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        priority: 0,
    };

    /// Returns the datagram of a connection request, as a peer would send it.
    fn request() -> Mad {
        let mut cm = Cm::new(Config::default());
        let params = ConnectParams {
            service_id: SERVICE,
            source: PEER.gid,
            path: PEER,
            qpn: Qpn::new(0x66),
            psn: Psn::masked(0x66),
            reads_out: 1,
            reads_in: 1,
            mtu: 3,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            private_data: b"",
            timeout: None,
            srq: false,
            random: 1,
        };
        cm.connect(0, params).expect("sound parameters");
        cm.poll_transmit().expect("a REQ").1
    }

    /// An instance that is removed may have received datagrams for other instances. The other instances still get the
    /// events, and are woken.
    #[test]
    fn what_an_instance_has_taken_in_for_another_is_told_when_it_leaves() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let adapter = Adapter::new(Config::default());
        let mut state = adapter.lock();
        let (stays, _) = state.add_instance(
            0,
            Arc::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
        );
        let (leaves, _) = state.add_instance(0, Arc::new(|| {}));
        request_arrives(&mut state, stays);
        state.remove_instance(leaves, 0);
        assert_eq!(woken.load(Ordering::Relaxed), 1, "it may be asleep");
        let arrival = state.next_arrival(stays);
        assert!(matches!(
            arrival,
            Some(Arrival::Event(CmEvent::Request { .. }))
        ));
    }

    /// Lets a peer's request arrive at `SERVICE`, at which this instance listens.
    fn request_arrives(state: &mut State, listens: InstanceIndex) {
        assert!(state.listen(listens, SERVICE, false).is_ok());
        let from = MadAddress {
            path: PEER,
            qpn: Qpn::GSI,
        };
        state.cm.handle_mad(0, &from, &request(), 1);
    }

    /// Observers ask an instance again and again, and start and stop measuring, while it makes no call. The last
    /// questions and the last request about measuring wait, beside other arrivals.
    #[test]
    fn an_instance_that_makes_no_call_keeps_few_questions_and_one_word_about_measuring() {
        let adapter = Adapter::new(Config::default());
        let mut state = adapter.lock();
        let (silent, _) = state.add_instance(7, Arc::new(|| {}));
        request_arrives(&mut state, silent);
        state.sort(silent);
        let asked = 3 * QUESTIONS;
        for objects in 0..asked {
            let what = Wanted { objects, events: 0 };
            let to = channel().0;
            assert_eq!(state.ask(&Question { what, to }), [7]);
            state.measure(true);
            state.measure(false);
        }
        state.measure(true);
        let (mut questions, mut measures, mut requests) = (Vec::new(), Vec::new(), 0);
        while let Some(arrival) = state.next_arrival(silent) {
            match arrival {
                Arrival::Question(question) => questions.push(question.what.objects),
                Arrival::Measure(on) => measures.push(on),
                Arrival::Event(_) | Arrival::HandedOff { .. } => requests += 1,
            }
        }
        let last: Vec<usize> = (asked - QUESTIONS..asked).collect();
        assert_eq!(questions, last);
        assert_eq!(measures, [true]);
        assert_eq!(requests, 1);
    }

    /// An instance is removed while a request waits that it has not seen, and no other instance listens. No program has
    /// rejected the request, so the peer is told that resources are missing.
    #[test]
    fn a_request_that_no_program_has_seen_is_not_rejected_as_if_one_had() {
        let adapter = Adapter::new(Config::default());
        let mut state = adapter.lock();
        let (leaves, _) = state.add_instance(0, Arc::new(|| {}));
        request_arrives(&mut state, leaves);
        state.remove_instance(leaves, 0);
        let (_, sent) = state.cm.poll_transmit().expect("an answer");
        let (_, message) = Message::parse(&sent).expect("a message");
        let Message::Rej(rej) = message else {
            panic!("{message:?}")
        };
        assert_eq!(rej.reason, cm::RejectReason::NoResources);
        assert_eq!(state.cm.poll_transmit(), None);
    }
}
