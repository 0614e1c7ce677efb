//! The adapter in its network: addresses and MACs of stations on its links, and datagrams that wait for a MAC.
//!
//! The crate `neighbour` implements the protocols and does no I/O. The [`Ethernet`] port sends and receives frames and
//! has no protocols. This module connects them. All instances of a function share both. `progress` of any instance
//! receives and sends frames and runs due timers.
//!
//! ```text
//!   a datagram to leave --+-- MAC known --------------------------------> QP1
//!                         '-- not yet --> outgoing -- found ------------> QP1
//!                                                  '- nobody answers ---> ProviderEvent::Unreachable
//!   QP1 --> arrived ------+-- its sender's MAC known -------------------> the connection manager
//!                         '-- not yet --> incoming -- found ------------> the connection manager
//!                                                  '- nobody answers ---> dropped: it could not be answered
//! ```
//!
//! So the connection manager never deals with MACs. It can answer the sender of each datagram that it gets, and the MAC
//! of the peer is known when a queue pair is connected.
//!
//! The queues of waiting datagrams are bounded, since unknown hosts can fill them. If a queue is full, a datagram is
//! dropped; a copy of a datagram that already waits is dropped too. The protocol above repeats lost datagrams.

mod parking;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dat_core::Echo;
use dat_core::log_budget::LogBudget;
use dat_core::provider::MadAddress;
use driver::Instant;
use hw_mlx::error::Mac;
use hw_mlx::ethernet::{BROADCAST, Ethernet, SEND_BYTES};
use hw_mlx::gid::address_of;
use hw_mlx::gsi::ReceivedMad;
use hw_mlx::mad::MAD_BYTES;
use hw_mlx::random::Random;
use hw_mlx::recorder::Recorder;
use hw_mlx::uar::Doorbells;
use hw_mlx::{Address, Hca, MlxError, NetworkEvent};
use neighbour::{Event, Need, Neighbours, Reason, Resolution};
pub(crate) use parking::CheckedNetwork;
pub use parking::{NetworkSnapshot, PendingMadSnapshot};

/// Maximum number of datagrams in each of the queues `outgoing`, `incoming` and `found`.
const WAITING: usize = 256;
/// Period after which the peers of all queue pairs are marked as in use again. It is half of the time for which a
/// neighbour counts as reachable without being probed (REACHABLE_TIME, RFC 4861, 10).
const REFRESH: Duration = Duration::from_secs(15);
/// Maximum number of peers that one call of [`Network::refresh`] marks.
const MAX_REFRESHED: usize = 64;

/// Time that a link may take to train after the function was brought up. Until then, a port that is down is expected to
/// come up, and repeating a connection request is useful. Real links take a tenth of a second to ten seconds.
pub(crate) const LINK_TRAINING: Duration = Duration::from_secs(10);

/// Result of resolving a destination.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// The MAC to which packets for the destination are sent: the destination's or the gateway's.
    Known([u8; 6]),
    /// The MAC is being resolved.
    Pending,
    /// The destination cannot be reached, for this reason.
    Unreachable(String),
}

/// A datagram that is sent when its destination is resolved.
struct PendingMad {
    to: MadAddress,
    source: IpAddr,
    mad: Box<[u8; MAD_BYTES]>,
}

/// Result of one call of [`Network::run_once`]: datagrams that no longer wait, and events.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Datagrams that can be sent now, each with its destination MAC.
    pub(crate) resolved: Vec<(MadAddress, [u8; 6], Box<[u8; MAD_BYTES]>)>,
    /// Destination GIDs of datagrams that were dropped because their destination cannot be reached.
    pub(crate) nobody: Vec<[u8; 16]>,
    /// Events on the network that instances must report.
    pub(crate) heard: Vec<NetworkEvent>,
}

/// Source and destination address of each queue pair. An entry is valid as long as a queue pair holds its `Arc`.
type Peers = BTreeMap<(IpAddr, IpAddr), Weak<()>>;

/// A copy of the counters of the network protocols' frames. A reader does not wait for the lock of the [`Network`],
/// whose holder may wait for the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountersCopy(Arc<Mutex<neighbour::Counters>>);

impl CountersCopy {
    /// Returns the counters as of the last change.
    pub(crate) fn get(&self) -> neighbour::Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, counters: neighbour::Counters) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }
}

/// Network side of a function: its Ethernet port, its addresses and its neighbours.
pub(crate) struct Network {
    ethernet: Ethernet,
    neighbours: Neighbours,
    outgoing: VecDeque<PendingMad>,
    /// Received datagrams whose senders' MACs are being resolved.
    incoming: VecDeque<ReceivedMad>,
    /// Received datagrams whose sender was resolved, ready to be passed on.
    found: VecDeque<ReceivedMad>,
    /// Time at which the neighbours' timers or the refresh of the peers are due next, as of the last change.
    due: Option<Duration>,
    /// Our address and the peer's, for each queue pair. The crate `neighbour` does not see the packets of queue pairs,
    /// and probes only neighbours that are in use. So these peers are marked as in use periodically.
    peers: Peers,
    /// The last peer that was marked as in use, and the time of the next marking.
    refreshed: Option<(IpAddr, IpAddr)>,
    refresh_at: Duration,
    /// Time until which the link may still train, if it was down when the function came up. Until then, destinations
    /// that are unreachable because the link is down count as pending.
    training_until: Option<Duration>,
    /// True if the link counts as up for `neighbours`.
    is_up: bool,
    /// Time of the last echo request, and its answer until the caller fetches the answer.
    echo_at: Duration,
    echo: Option<Echo>,
    /// Buffer for the frame that is sent next.
    frame: Box<[u8; SEND_BYTES]>,
    recorder: Arc<Recorder>,
    counters: CountersCopy,
    log: Log,
}

/// Rate limits, by kind, for log lines that other hosts on the network can cause.
#[derive(Default)]
struct Log {
    unreachable: LogBudget,
    moved: LogBudget,
    duplicate: LogBudget,
}

/// Queues a received datagram. A full queue drops the oldest one.
fn push_bounded(queue: &mut VecDeque<ReceivedMad>, received: ReceivedMad) {
    if queue.len() == WAITING {
        queue.pop_front();
    }
    queue.push_back(received);
}

/// Converts a time of the function's clock to a time of the crate `neighbour`.
const fn since_start(now: Instant) -> Duration {
    Duration::from_nanos(now.0)
}

impl Network {
    /// Joins the network with the addresses of the function.
    ///
    /// # Errors
    /// The function has no Ethernet port or too few multicast groups, memory is short, or the device refused a command
    /// or does not answer. The created objects are then destroyed; a failure of that is logged.
    pub(crate) fn join(
        hca: &mut Hca,
        doorbells: &Doorbells,
        random: &mut Random,
    ) -> Result<Self, MlxError> {
        let ethernet = Ethernet::create(hca, doorbells)?;
        let now = since_start(hca.now());
        let config = neighbour::Config::new(hca.mac(), random.number());
        let mut network = Self {
            ethernet,
            neighbours: Neighbours::new(config, now),
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
            found: VecDeque::new(),
            due: None,
            peers: Peers::new(),
            refreshed: None,
            refresh_at: now,
            training_until: None,
            is_up: true,
            echo_at: now,
            echo: None,
            frame: Box::new([0; SEND_BYTES]),
            recorder: Arc::clone(hca.recorder()),
            counters: CountersCopy::default(),
            log: Log::default(),
        };
        if !hca.link_is_up() {
            network.neighbours.link(false, now);
            network.is_up = false;
            network.training_until = Some(now + LINK_TRAINING);
        }
        for (address, mac) in hca.neighbours() {
            if let Err(error) = network.neighbours.add_static(*address, *mac) {
                tracing::warn!(%address, mac = %Mac(*mac), %error, "a configured neighbour is not valid");
            }
        }
        for entry in hca.gids().iter() {
            if let Err(error) = network.neighbours.add(entry.address, now) {
                tracing::warn!(address = %entry.address.address, %error, "an address is not announced on the network");
            }
        }
        if let Err(error) = network.hear(hca) {
            if let Err(second) = network.destroy(hca) {
                tracing::warn!(%second, "could not destroy the Ethernet queues; their memory is kept");
            }
            return Err(error);
        }
        network.changed();
        Ok(network)
    }

    /// Leaves the network.
    ///
    /// # Errors
    /// As [`Ethernet::destroy`].
    pub(crate) fn destroy(self, hca: &mut Hca) -> Result<(), MlxError> {
        self.ethernet.destroy(hca)
    }

    /// Adds one of our addresses.
    ///
    /// # Errors
    /// The network refuses the address, or the device refused to admit its multicast groups. Nothing has changed.
    pub(crate) fn add(&mut self, hca: &mut Hca, address: Address) -> Result<(), MlxError> {
        let now = since_start(hca.now());
        self.neighbours.add(address, now).map_err(|error| {
            tracing::warn!(address = %address.address, %error, "no address for the network");
            MlxError::Address {
                address,
                why: "the network takes no such address, or no more of them",
            }
        })?;
        let heard = self.hear(hca);
        if heard.is_err() {
            self.neighbours.remove(address.address, now);
        }
        self.changed();
        heard
    }

    /// Removes one of our addresses.
    pub(crate) fn remove(&mut self, hca: &mut Hca, address: IpAddr) {
        self.neighbours.remove(address, since_start(hca.now()));
        if let Err(error) = self.hear(hca) {
            tracing::warn!(%address, %error, "its group is still heard");
        }
        self.changed();
    }

    /// Marks a peer as in use by a queue pair until the returned value is dropped.
    pub(crate) fn peer(&mut self, source: IpAddr, destination: IpAddr, now: Instant) -> Arc<()> {
        if self.peers.is_empty() {
            self.refresh_at = since_start(now) + REFRESH;
        }
        let peer = self.peers.entry((source, destination)).or_default();
        if let Some(known) = peer.upgrade() {
            return known;
        }
        let new = Arc::new(());
        *peer = Arc::downgrade(&new);
        self.changed();
        new
    }

    /// Marks the next peers as in use, so that the crate `neighbour` probes peers that were silent for long, and
    /// notices a changed MAC.
    fn refresh(&mut self, now: Duration) {
        self.peers.retain(|_, peer| peer.strong_count() > 0);
        let behind = self.refreshed.map_or(Bound::Unbounded, Bound::Excluded);
        let mut next: Vec<_> = self
            .peers
            .range((behind, Bound::Unbounded))
            .map(|(peer, _)| *peer)
            .take(MAX_REFRESHED)
            .collect();
        if next.is_empty() {
            next.extend(self.peers.keys().take(MAX_REFRESHED).copied());
        }
        for (source, destination) in &next {
            // The result is not needed, because the queue pair has its own copy of the MAC. A change is reported as an
            // event.
            let _known = self.neighbours.resolve(*source, *destination, now);
        }
        self.refreshed = next.last().copied();
        let rounds = self.peers.len().div_ceil(MAX_REFRESHED).max(1);
        // CAST: no more peers than queue pairs, which are fewer than 2^24.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^18")]
        let rounds = rounds as u32;
        self.refresh_at = now + REFRESH / rounds;
    }

    /// Makes the device admit broadcasts and the multicast groups that the addresses need.
    fn hear(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        let mut groups = vec![BROADCAST];
        groups.extend(self.neighbours.groups());
        self.ethernet.hear(hca, &groups)
    }

    /// Returns the copy of the counters of the network protocols' frames. It follows each change.
    pub(crate) const fn counters(&self) -> &CountersCopy {
        &self.counters
    }

    /// Returns the number of the completion queue whose events report received frames.
    pub(crate) fn cqn(&self) -> u32 {
        self.ethernet.cqn()
    }

    /// Records that the Ethernet port's completion queue has entries.
    pub(crate) fn notified(&mut self) {
        self.ethernet.notified();
    }

    /// Returns the time by which [`Network::run_once`] must be called even if no frame arrives; `None` if no timer
    /// runs.
    pub(crate) fn due(&self) -> Option<Duration> {
        // After a give-up only the refresh would be due. It probes nothing then.
        self.due.filter(|_| !self.is_given_up())
    }

    /// Returns whether the Ethernet port was given up. Then the link counts as down for the crate `neighbour`: no
    /// neighbour is searched, probed or found lost. MACs that are known stay in use.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.ethernet.is_given_up()
    }

    /// Returns the time from which the Ethernet port is to be repaired; `None` if it works.
    pub(crate) fn repair_due(&self) -> Option<Instant> {
        self.ethernet.repair_due()
    }

    /// Updates the time of the next timer and the copy of the counters after a call of the crate `neighbour`.
    fn changed(&mut self) {
        self.counters.set(self.neighbours.counters());
        let refresh = (!self.peers.is_empty()).then_some(self.refresh_at);
        self.due = [self.neighbours.due(), refresh].into_iter().flatten().min();
    }

    /// Records that the link is up or down. If the Ethernet port was given up, no frame is sent, as if the link were
    /// down.
    pub(crate) fn link(&mut self, up: bool, now: Instant) {
        self.training_until = None;
        let up = up && !self.is_given_up();
        self.is_up = up;
        self.neighbours.link(up, since_start(now));
        self.changed();
    }

    /// Updates the state of the link, if no instance has processed the event of its last change. An instance that is
    /// dropped takes its events along.
    pub(crate) fn update_link(&mut self, up: bool, now: Instant) {
        if self.is_up != (up && !self.is_given_up()) {
            self.link(up, now);
        }
    }

    /// Resolves a destination for packets from one of our addresses. If the MAC is unknown, requests it.
    pub(crate) fn way(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        need: Need,
        now: Instant,
    ) -> NextHop {
        let time = since_start(now);
        let resolution = self.neighbours.resolve_for(source, destination, need, time);
        let trains = self.training_until.is_some_and(|until| time < until);
        self.changed();
        match resolution {
            Resolution::Known(mac) => NextHop::Known(mac),
            Resolution::Pending => NextHop::Pending,
            Resolution::Unreachable(Reason::LinkDown) if self.is_given_up() => {
                NextHop::Unreachable(format!(
                    "{destination} from {source}: the Ethernet port was given up"
                ))
            }
            // When the link comes up, our addresses are announced and all waiting datagrams are tried again.
            Resolution::Unreachable(Reason::LinkDown) if trains => NextHop::Pending,
            Resolution::Unreachable(reason) => {
                NextHop::Unreachable(format!("{destination} from {source}: {reason}"))
            }
        }
    }

    /// Queues an echo request if its destination is resolved, and then discards the answer to an earlier request. The
    /// next [`Network::run_once`] sends the frame.
    pub(crate) fn echo(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        sequence: u16,
        now: Instant,
    ) -> NextHop {
        if self.is_given_up() {
            return NextHop::Unreachable("the Ethernet port was given up".to_owned());
        }
        let way = self.way(source, destination, Need::Own, now);
        // The MAC may follow from the address itself even while the link is still down.
        if self.training_until.is_some() {
            return match way {
                NextHop::Known(_) => NextHop::Pending,
                NextHop::Pending | NextHop::Unreachable(_) => way,
            };
        }
        if let NextHop::Known(_) = way {
            (self.echo_at, self.echo) = (since_start(now), None);
            let _known = self
                .neighbours
                .echo(source, destination, sequence, self.echo_at);
            self.changed();
        }
        way
    }

    /// Takes the answer to the last echo request.
    pub(crate) fn take_echo(&mut self) -> Option<Echo> {
        self.echo.take()
    }

    /// Queues a datagram whose destination is being resolved. Drops it if the queue is full or has a copy.
    pub(crate) fn queue_outgoing(&mut self, to: MadAddress, source: IpAddr, mad: &[u8; MAD_BYTES]) {
        let is_copy = |pending: &PendingMad| pending.to == to && *pending.mad == *mad;
        if self.outgoing.len() < WAITING && !self.outgoing.iter().any(is_copy) {
            let mad = Box::new(*mad);
            self.outgoing.push_back(PendingMad { to, source, mad });
        }
    }

    /// Queues a received datagram whose sender is being resolved, unless the queue has a copy. A full queue drops the
    /// oldest one.
    pub(crate) fn queue_incoming(&mut self, received: ReceivedMad) {
        if !self.incoming.contains(&received) {
            push_bounded(&mut self.incoming, received);
        }
    }

    /// Takes a received datagram whose sender was resolved.
    pub(crate) fn found(&mut self) -> Option<ReceivedMad> {
        self.found.pop_front()
    }

    /// Receives frames, runs due timers, sends frames, and resolves the waiting datagrams again after a relevant event.
    pub(crate) fn run_once(&mut self, now: Instant) -> Outcome {
        let time = since_start(now);
        let mut heard = false;
        let (neighbours, recorder) = (&mut self.neighbours, &self.recorder);
        self.ethernet.take_in(|frame| {
            heard = true;
            recorder.frame(now, false, frame);
            neighbours.received(frame, time);
        });
        if self.due().is_some_and(|due| due <= time) {
            if self.refresh_at <= time {
                self.refresh(time);
            }
            self.neighbours.tick(time);
            heard = true;
        }
        while let Some(bytes) = self.neighbours.next_frame(&mut *self.frame) {
            heard = true;
            if self.ethernet.send(&self.frame[..bytes]).is_ok() {
                self.recorder.frame(now, true, &self.frame[..bytes]);
            } else {
                // The frame is lost. The protocol repeats the request or answer.
                tracing::debug!(bytes, "no room for a frame");
            }
        }
        if heard {
            self.changed();
        }
        // After a give-up nothing is found any more, so datagrams that wait end at once.
        let (mut retries, mut reported) = (self.is_given_up(), Vec::new());
        while let Some(event) = self.neighbours.next_event() {
            if let Event::Echoed {
                address,
                sequence,
                bytes,
            } = event
            {
                self.echo = Some(Echo {
                    address,
                    sequence,
                    bytes,
                    took: time.saturating_sub(self.echo_at),
                });
            }
            let needed = self.is_needed(&event);
            if let Event::Unreachable {
                address,
                reason: Reason::TableFull,
                ..
            } = event
            {
                self.forget_incoming(address);
            }
            let (waited_for, event) = self.log.note(&event, needed, now);
            retries |= waited_for;
            reported.extend(event);
        }
        let outcome = if retries {
            self.retry_waiting(now)
        } else {
            Outcome::default()
        };
        Outcome {
            heard: reported,
            ..outcome
        }
    }

    /// Drops the received datagrams whose next hop was evicted. Resolved again, they would evict each other in turn,
    /// and none would ever be given up. The senders repeat them.
    fn forget_incoming(&mut self, evicted: IpAddr) {
        let neighbours = &self.neighbours;
        self.incoming.retain(|received| {
            let [source, destination] =
                [received.route.destination, received.route.source].map(address_of);
            neighbours.next_hop(source, destination) != Ok(evicted)
        });
    }

    /// Returns whether an event is about a neighbour through which a queue pair or a datagram of ours reaches its
    /// destination. Other neighbours were requested for unknown senders, which no consumer is told about.
    fn is_needed(&self, event: &Event) -> bool {
        let (Event::Unreachable { address, .. } | Event::Moved { address, .. }) = *event else {
            return false;
        };
        // A neighbour that was evicted is not lost: it is requested again.
        if let Event::Unreachable {
            reason: Reason::TableFull,
            ..
        } = event
        {
            return false;
        }
        let is_gateway = self
            .neighbours
            .addresses()
            .any(|own| own.gateway == Some(address));
        let through_it = |source, destination| {
            destination == address
                || is_gateway && self.neighbours.next_hop(source, destination) == Ok(address)
        };
        let mut peers = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.strong_count() > 0);
        let mut outgoing = self.outgoing.iter();
        peers.any(|(&(source, destination), _)| through_it(source, destination))
            || outgoing.any(|mad| through_it(mad.source, address_of(mad.to.path.gid)))
    }

    /// Resolves the addresses of all waiting datagrams again. Only datagrams that are still pending stay in the queues.
    fn retry_waiting(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for pending in core::mem::take(&mut self.outgoing) {
            match self.way(
                pending.source,
                address_of(pending.to.path.gid),
                Need::Datagram,
                now,
            ) {
                NextHop::Known(mac) => outcome.resolved.push((pending.to, mac, pending.mad)),
                NextHop::Pending => self.outgoing.push_back(pending),
                NextHop::Unreachable(why) => {
                    if let Some(unlogged) = self.log.unreachable.take(now.0) {
                        tracing::info!(why, unlogged, "nobody to send a datagram to");
                    }
                    outcome.nobody.push(pending.to.path.gid);
                }
            }
        }
        for received in core::mem::take(&mut self.incoming) {
            let [source, destination] =
                [received.route.destination, received.route.source].map(address_of);
            match self.way(source, destination, Need::Sender, now) {
                NextHop::Known(_) => push_bounded(&mut self.found, received),
                NextHop::Pending => self.incoming.push_back(received),
                NextHop::Unreachable(why) => {
                    tracing::debug!(why, "a datagram that cannot be answered")
                }
            }
        }
        outcome
    }

    /// Restores the Ethernet port if it broke. If the port is given up, the next [`Network::run_once`] ends all waiting
    /// datagrams.
    pub(crate) fn repair(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        let repaired = self.ethernet.repair(hca);
        if repaired.is_err() && self.is_given_up() {
            self.link(false, hca.now());
        }
        repaired
    }
}

impl Log {
    /// Logs an event. Returns true if datagrams may wait for this event, and the event for consumers, if there is one.
    /// `needed` is the result of [`Network::is_needed`].
    fn note(&mut self, event: &Event, needed: bool, now: Instant) -> (bool, Option<NetworkEvent>) {
        match *event {
            Event::Resolved { address, vlan, mac } => {
                tracing::debug!(%address, ?vlan, mac = %Mac(mac), "a neighbour was found");
                (true, None)
            }
            Event::Unreachable {
                address,
                vlan,
                reason,
            } if !needed => {
                tracing::debug!(%address, ?vlan, %reason, "a sender was not found");
                (true, None)
            }
            Event::Moved { address, vlan, .. } if !needed => {
                tracing::debug!(%address, ?vlan, "a sender has another MAC");
                (false, None)
            }
            Event::Unreachable {
                address,
                vlan,
                reason,
            } => {
                if let Some(unlogged) = self.unreachable.take(now.0) {
                    tracing::info!(%address, ?vlan, %reason, unlogged, "a neighbour was not found");
                }
                (true, Some(NetworkEvent::NeighbourLost(address)))
            }
            Event::Moved {
                address,
                vlan,
                old,
                new,
            } => {
                if let Some(unlogged) = self.moved.take(now.0) {
                    tracing::warn!(%address, ?vlan, old = %Mac(old), new = %Mac(new), unlogged, "a neighbour has another MAC: its connections go on to the old one, new ones go to the new one");
                }
                (
                    false,
                    Some(NetworkEvent::NeighbourMoved { address, mac: new }),
                )
            }
            Event::Duplicate {
                address,
                vlan,
                mac,
                detecting,
            } => {
                if let Some(unlogged) = self.duplicate.take(now.0) {
                    tracing::error!(%address, ?vlan, mac = %Mac(mac), detecting, unlogged, "somebody else uses an address of ours");
                }
                let lost = detecting;
                (
                    false,
                    Some(NetworkEvent::AddressDuplicate { address, mac, lost }),
                )
            }
            Event::Echoed { .. } => (false, None),
            Event::Announced { address, vlan } => {
                tracing::debug!(%address, ?vlan, "an address of ours was announced");
                (true, None)
            }
        }
    }
}

impl core::fmt::Debug for Network {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Network")
            .field("ethernet", &self.ethernet)
            .field("outgoing", &self.outgoing.len())
            .field("incoming", &self.incoming.len())
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use dat_core::provider::Qpn;
    use hw_mlx::gsi::{ReceivedMad, Route};

    use super::{WAITING, push_bounded};

    /// A snapshot with more datagrams is refused.
    #[test]
    fn a_full_queue_of_received_datagrams_drops_the_oldest_one() {
        let received = |n: usize| ReceivedMad {
            route: Route {
                source: [0; 16],
                destination: [0; 16],
                traffic_class: 0,
            },
            qpn: Qpn::GSI,
            // CAST: modulo 256 on purpose.
            #[expect(clippy::cast_possible_truncation, reason = "modulo 256")]
            mad: [n as u8; 256],
        };
        let mut queue = VecDeque::new();
        for n in 0..WAITING + 2 {
            push_bounded(&mut queue, received(n));
        }
        assert_eq!(queue.len(), WAITING);
        assert_eq!(queue.front(), Some(&received(2)));
        assert_eq!(queue.back(), Some(&received(1)));
    }
}
