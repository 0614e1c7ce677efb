//! What the instances of an adapter share: the connection manager, and who is told of what.
//!
//! An [`Ia`](crate::Ia) is an instance: one thread's at a time, with objects and queues of its own. Several of them may
//! stand on one adapter. Its port has one connection manager, so they share that, behind a lock that nobody holds while
//! he waits for a device or a peer, and that no post and no dequeue takes.
//!
//! Whoever has time runs it for all: takes in datagrams, lets timers go off, sends what there is to send. What came of
//! it is put into the tray of the instance it is for, and that instance is woken. A connection is its endpoint's
//! instance's; a request to connect is for who listens at its qualifier, and where several do, for the one with the
//! fewest connections.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slotmap::SecondaryMap;

use crate::cm::{self, Cm, CmEvent, ConnId, InUse, ListenId};
use crate::object::cr::Cr;
use crate::object::view::{Notice, Question, Watcher};
use crate::provider::{Nanos, Waker};

/// The place of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat(u32);

/// What an instance is told.
pub(crate) enum Arrival {
    /// By the connection manager.
    Event(CmEvent),
    /// By another instance: a request that is handed off to a service point here.
    HandedOff(ListenId, Box<Cr>),
    /// By who looks from outside.
    Question(Question),
    /// By who looks from outside: whether to measure.
    Measure(bool),
}

impl Arrival {
    /// The connection it is about.
    const fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Event(event) => Some(event.conn()),
            Self::HandedOff(_, cr) => Some(cr.conn),
            Self::Question(_) | Self::Measure(_) => None,
        }
    }
}

/// What instances share.
pub(crate) struct Adapter {
    state: Mutex<State>,
}

/// What instances share, in the hands of one of them.
pub(crate) struct State {
    pub(crate) cm: Cm,
    trays: Vec<Option<Tray>>,
    points: SecondaryMap<ListenId, Point>,
    /// How often the port has come up since there is an adapter.
    port_ups: u64,
    /// Who is told of what happens.
    watchers: Vec<Watcher>,
    /// How many want to know how long things take.
    measuring: u32,
}

/// An instance, as others know it.
struct Tray {
    /// The number of the instance.
    number: u32,
    arrivals: VecDeque<Arrival>,
    waker: Waker,
    /// Connections and undecided requests.
    connections: usize,
}

/// Who listens at a qualifier.
struct Point {
    seats: Vec<Seat>,
    shared: bool,
}

impl Adapter {
    pub(crate) fn new(config: cm::Config) -> Self {
        Self {
            state: Mutex::new(State {
                cm: Cm::new(config),
                trays: Vec::new(),
                points: SecondaryMap::new(),
                port_ups: 0,
                watchers: Vec::new(),
                measuring: 0,
            }),
        }
    }

    /// Has it for oneself, a short time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Who panicked in it was half-way through a datagram or a call; the connection manager is one that peers lie
        // to.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One more instance; and how often the port had come up before it.
    pub(crate) fn join(&mut self, number: u32, waker: Waker) -> (Seat, u64) {
        let free = self.trays.iter().position(Option::is_none);
        let at = free.unwrap_or(self.trays.len());
        if free.is_none() {
            self.trays.push(None);
        }
        self.trays[at] = Some(Tray {
            number,
            arrivals: VecDeque::new(),
            waker,
            connections: 0,
        });
        // CAST: nobody has room for 2^32 instances.
        #[expect(clippy::cast_possible_truncation, reason = "a handful")]
        let seat = Seat(at as u32);
        (seat, self.port_ups)
    }

    /// An instance ends. What it has not been told of is over; what it has taken in for others they are told.
    pub(crate) fn leave(&mut self, seat: Seat, now: Nanos) {
        self.sort(seat);
        let listening: Vec<ListenId> = self
            .points
            .iter()
            .filter(|(_, point)| point.seats.contains(&seat))
            .map(|(listen, _)| listen)
            .collect();
        for listen in listening {
            self.unlisten(seat, listen);
        }
        let tray = self.trays.get_mut(seat.0 as usize).and_then(Option::take);
        for arrival in tray.into_iter().flat_map(|tray| tray.arrivals) {
            // Who asked is not answered.
            let Some(conn) = arrival.conn() else { continue };
            let others = match &arrival {
                Arrival::Event(CmEvent::Request { listen, .. }) => self.least_loaded(*listen, None),
                Arrival::Event(_)
                | Arrival::HandedOff(..)
                | Arrival::Question(_)
                | Arrival::Measure(_) => None,
            };
            // Where others listen too a request is theirs.
            let Some(to) = others else {
                self.cm.release(now, conn);
                continue;
            };
            self.own(conn, to);
            if let Some(tray) = self.tray(to) {
                tray.arrivals.push_back(arrival);
                (tray.waker)();
            }
        }
    }

    /// Instances there are.
    pub(crate) fn instances(&self) -> usize {
        self.trays.iter().flatten().count()
    }

    /// Requests for `service_id` are this instance's, or one of several instances' who all say that they share it.
    pub(crate) fn listen(
        &mut self,
        seat: Seat,
        service_id: u64,
        shared: bool,
    ) -> Result<ListenId, InUse> {
        if let Some(listen) = self.cm.listener(service_id)
            && let Some(point) = self.points.get_mut(listen)
            && shared
            && point.shared
            && !point.seats.contains(&seat)
        {
            point.seats.push(seat);
            return Ok(listen);
        }
        let listen = self.cm.listen(service_id)?;
        self.points.insert(
            listen,
            Point {
                seats: vec![seat],
                shared,
            },
        );
        Ok(listen)
    }

    /// This instance listens no more; the last one ends the listening.
    pub(crate) fn unlisten(&mut self, seat: Seat, listen: ListenId) {
        let Some(point) = self.points.get_mut(listen) else {
            return;
        };
        point.seats.retain(|other| *other != seat);
        if point.seats.is_empty() {
            self.points.remove(listen);
            self.cm.unlisten(listen);
        }
    }

    /// A connection, or an undecided request, is this instance's.
    pub(crate) fn own(&mut self, conn: ConnId, seat: Seat) {
        self.cm.set_owner(conn, seat.0);
        if let Some(tray) = self.tray(seat) {
            tray.connections += 1;
        }
    }

    fn tray(&mut self, seat: Seat) -> Option<&mut Tray> {
        self.trays.get_mut(seat.0 as usize)?.as_mut()
    }

    /// Its instance has done with a connection.
    pub(crate) fn release(&mut self, now: Nanos, conn: ConnId, seat: Seat) {
        self.let_go(conn, seat);
        self.cm.release(now, conn);
    }

    /// An instance is told nothing more of a connection.
    fn let_go(&mut self, conn: ConnId, seat: Seat) {
        let counted = self.cm.owner(conn) == Some(seat.0);
        if let Some(tray) = self.tray(seat) {
            tray.connections = tray.connections.saturating_sub(usize::from(counted));
            tray.arrivals.retain(|arrival| arrival.conn() != Some(conn));
        }
    }

    /// There is no room for a request in its instance.
    pub(crate) fn decline(
        &mut self,
        now: Nanos,
        conn: ConnId,
        seat: Seat,
        reason: cm::RejectReason,
    ) {
        self.let_go(conn, seat);
        self.cm.decline(now, conn, reason);
    }

    /// Whether an instance but this one listens there.
    pub(crate) fn is_listened_to(&self, service_id: u64, but: Seat) -> bool {
        let at = self.cm.listener(service_id);
        at.is_some_and(|listen| self.least_loaded(listen, Some(but)).is_some())
    }

    /// Hands an undecided request to who listens at `service_id` in another instance. An error gives it back: nobody
    /// does.
    pub(crate) fn hand_off(&mut self, from: Seat, service_id: u64, cr: Cr) -> Result<(), Cr> {
        let at = self.cm.listener(service_id);
        let Some((listen, to)) =
            at.and_then(|listen| Some((listen, self.least_loaded(listen, Some(from))?)))
        else {
            return Err(cr);
        };
        let conn = cr.conn;
        self.let_go(conn, from);
        self.own(conn, to);
        if let Some(tray) = self.tray(to) {
            tray.arrivals
                .push_back(Arrival::HandedOff(listen, Box::new(cr)));
            (tray.waker)();
        }
        Ok(())
    }

    /// Of the instances that listen, but one, the one with the fewest connections.
    fn least_loaded(&self, listen: ListenId, but: Option<Seat>) -> Option<Seat> {
        let load = |seat: &Seat| {
            let tray = self.trays.get(seat.0 as usize);
            tray.and_then(Option::as_ref)
                .map_or(usize::MAX, |tray| tray.connections)
        };
        let point = self.points.get(listen)?;
        let others = point.seats.iter().filter(|seat| Some(**seat) != but);
        others.copied().min_by_key(load)
    }

    /// The next thing this instance should know. What is for others goes into their trays.
    pub(crate) fn next_arrival(&mut self, seat: Seat) -> Option<Arrival> {
        if let Some(arrival) = self.tray(seat)?.arrivals.pop_front() {
            return Some(arrival);
        }
        self.sort(seat);
        self.tray(seat)?.arrivals.pop_front()
    }

    /// Puts what the connection manager has to say where it belongs, and wakes whoever is not here.
    fn sort(&mut self, here: Seat) {
        while let Some(event) = self.cm.poll_event() {
            let conn = event.conn();
            let to = if let CmEvent::Request { listen, .. } = &event {
                let to = self.least_loaded(*listen, None);
                if let Some(to) = to {
                    self.own(conn, to);
                }
                // Nobody listens any more: whoever is here declines it.
                to.unwrap_or(here)
            } else {
                self.cm.owner(conn).map_or(here, Seat)
            };
            let to = if self.tray(to).is_some() { to } else { here };
            if let Some(tray) = self.tray(to) {
                tray.arrivals.push_back(Arrival::Event(event));
                if to != here {
                    (tray.waker)();
                }
            }
        }
    }

    /// Asks every instance, and wakes those that sleep. Their numbers.
    pub(crate) fn ask(&mut self, question: &Question) -> Vec<u32> {
        let trays = self.trays.iter_mut().flatten();
        trays
            .map(|tray| {
                tray.arrivals.push_back(Arrival::Question(question.clone()));
                (tray.waker)();
                tray.number
            })
            .collect()
    }

    /// Somebody wants to know how long things take, or no longer. Instances are told of the first and the last.
    pub(crate) fn measure(&mut self, on: bool) {
        let was = self.is_measured();
        self.measuring = if on {
            self.measuring.saturating_add(1)
        } else {
            self.measuring.saturating_sub(1)
        };
        let now = self.is_measured();
        for tray in self.trays.iter_mut().flatten().filter(|_| was != now) {
            tray.arrivals.push_back(Arrival::Measure(now));
            (tray.waker)();
        }
    }

    pub(crate) const fn is_measured(&self) -> bool {
        self.measuring != 0
    }

    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        self.watchers.iter().for_each(|watcher| watcher(notice));
    }

    /// An instance has been told for the `times`-th time that the port came up. The first that is told of it has what
    /// waits for an answer sent again.
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

    use super::*;
    use crate::cm::wire::Mad;
    use crate::cm::{Config, ConnectParams};
    use crate::provider::{MadAddress, Path};

    const SERVICE: u64 = 0x1000_0000_0000_0042;
    const PEER: Path = Path {
        source_gid_index: 0,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        priority: 0,
    };

    /// The datagram of a peer's request.
    fn request() -> Mad {
        let mut cm = Cm::new(Config::default());
        let params = ConnectParams {
            service_id: SERVICE,
            source: PEER.gid,
            path: PEER,
            qpn: 0x66,
            psn: 0x66,
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

    /// Closing an instance takes in datagrams until its own last words are out.
    #[test]
    fn what_an_instance_has_taken_in_for_another_is_told_when_it_leaves() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let adapter = Adapter::new(Config::default());
        let mut state = adapter.lock();
        let (stays, _) = state.join(
            0,
            Arc::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
        );
        let (leaves, _) = state.join(0, Arc::new(|| {}));
        assert!(state.listen(stays, SERVICE, false).is_ok());
        let from = MadAddress { path: PEER, qpn: 1 };
        state.cm.handle_mad(0, &from, &request(), 1);
        state.leave(leaves, 0);
        assert_eq!(woken.load(Ordering::Relaxed), 1, "it may be asleep");
        let arrival = state.next_arrival(stays);
        assert!(matches!(
            arrival,
            Some(Arrival::Event(CmEvent::Request { .. }))
        ));
    }
}
