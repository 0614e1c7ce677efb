//! The adapter's place in a network: who is where on its links, and what waits until that is known.
//!
//! The crate `neighbour` knows the protocols and does no I/O; the [`Ethernet`] port carries frames and knows no
//! protocol. Here the two meet. All instances share both, and whoever has a turn moves frames and lets timers go off,
//! as with QP1.
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
//! So the connection manager never deals with MACs: whoever it hears from can be answered, and a queue pair on its way
//! up finds the MAC of its peer known.
//!
//! What waits is bounded, since strangers can make it wait: of each kind as many as there is room for, and a copy of
//! one that waits is dropped. The protocol above repeats what gets lost.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Weak};
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
use hw_mlx::{GidEntry, Hca, MlxError, NetworkEvent};
use neighbour::{Event, Interface, Neighbours, Reason, Resolution};

/// Datagrams of each kind that wait for a MAC.
const WAITING: usize = 256;
/// Within this the peers of all queue pairs are said to be in use: half of the time for which a neighbour is taken to
/// be there without being asked (REACHABLE_TIME, RFC 4861, 10).
const REFRESH: Duration = Duration::from_secs(15);
/// Of them at a time.
const REFRESHED_AT_ONCE: usize = 64;

/// How long a link may train, when the function has just been brought up, before a port that is down is taken for one
/// that stays down. Real ones take a tenth of a second to ten; until then a connection request is worth repeating.
pub(crate) const LINK_TRAINING: Duration = Duration::from_secs(10);

/// How a destination is reached.
#[derive(Debug)]
pub(crate) enum Way {
    /// Over the station with this MAC.
    Known([u8; 6]),
    /// It is being asked for.
    Pending,
    /// Not at all, and why.
    Unreachable(String),
}

/// A datagram that leaves when its destination is found.
struct PendingMad {
    to: MadAddress,
    source: IpAddr,
    mad: Box<[u8; MAD_BYTES]>,
}

/// What became of what waited.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Datagrams that can leave now, and over whom.
    pub(crate) leave: Vec<(MadAddress, [u8; 6], Box<[u8; MAD_BYTES]>)>,
    /// Addresses for which nobody answers.
    pub(crate) nobody: Vec<[u8; 16]>,
    /// What was heard.
    pub(crate) heard: Vec<NetworkEvent>,
}

/// Whom queue pairs have to do with, as long as they have.
type Peers = BTreeMap<(IpAddr, IpAddr), Weak<()>>;

/// The network of a function.
pub(crate) struct Network {
    ethernet: Ethernet,
    neighbours: Neighbours,
    outgoing: VecDeque<PendingMad>,
    /// Datagrams that are passed on when their senders are found.
    incoming: VecDeque<ReceivedMad>,
    /// Of those that came in, the ones whose sender was found.
    found: VecDeque<ReceivedMad>,
    /// When the neighbours have something to do, as of the last change.
    due: Option<Duration>,
    /// From which of our addresses to whom packets of queue pairs go. They do not pass here, and a neighbour is asked
    /// again only if it is used.
    peers: Peers,
    /// The last of them that was looked after, and when the next ones are.
    refreshed: Option<(IpAddr, IpAddr)>,
    refresh_at: Duration,
    /// The link was down when the function came up, and may train until then: who is not known may be found yet.
    trains_until: Option<Duration>,
    /// When we asked for the last echo, and its answer until it is fetched.
    echo_at: Duration,
    echo: Option<Echo>,
    /// A frame on its way out.
    frame: Box<[u8; SEND_BYTES]>,
    recorder: Arc<Recorder>,
    log: Log,
}

/// Lines of the log that others on the network cause, by kind.
#[derive(Default)]
struct Log {
    unreachable: LogBudget,
    moved: LogBudget,
    duplicate: LogBudget,
}

/// A time of the function's clock as the neighbours' module counts it.
const fn since_start(now: Instant) -> Duration {
    Duration::from_nanos(now.0)
}

impl Network {
    /// Joins the network with the addresses of the function.
    ///
    /// # Errors
    /// The function has no Ethernet port, or the device refused what it can do, or answers no more. Nothing is left
    /// behind.
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
            trains_until: None,
            echo_at: now,
            echo: None,
            frame: Box::new([0; SEND_BYTES]),
            recorder: Arc::clone(hca.recorder()),
            log: Log::default(),
        };
        if !hca.link_is_up() {
            network.neighbours.link(false, now);
            network.trains_until = Some(now + LINK_TRAINING);
        }
        for (address, mac) in hca.neighbours() {
            if let Err(error) = network.neighbours.add_static(*address, *mac) {
                tracing::warn!(%address, mac = %Mac(*mac), %error, "a neighbour that is none");
            }
        }
        for entry in hca.gids().iter() {
            if let Err(error) = network.introduce(entry, now) {
                tracing::warn!(address = %entry.address, %error, "an address that nobody is told of");
            }
        }
        if let Err(error) = network.hear(hca) {
            if let Err(second) = network.leave(hca) {
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
    pub(crate) fn leave(self, hca: &mut Hca) -> Result<(), MlxError> {
        self.ethernet.destroy(hca)
    }

    /// One more address of ours.
    ///
    /// # Errors
    /// It cannot be one, or the device refused to let its groups through; nothing has changed.
    pub(crate) fn add(&mut self, hca: &mut Hca, entry: &GidEntry) -> Result<(), MlxError> {
        let now = since_start(hca.now());
        self.introduce(entry, now).map_err(|error| {
            tracing::warn!(address = %entry.address, %error, "no address for the network");
            MlxError::Address {
                address: entry.to_address(),
                why: "the network takes no such address, or no more of them",
            }
        })?;
        let heard = self.hear(hca);
        if heard.is_err() {
            self.neighbours.remove(entry.address, now);
        }
        self.changed();
        heard
    }

    /// An address is not ours any more.
    pub(crate) fn remove(&mut self, hca: &mut Hca, address: IpAddr) {
        self.neighbours.remove(address, since_start(hca.now()));
        if let Err(error) = self.hear(hca) {
            tracing::warn!(%address, %error, "its group is still heard");
        }
        self.changed();
    }

    fn introduce(
        &mut self,
        entry: &GidEntry,
        now: Duration,
    ) -> Result<(), neighbour::AddressError> {
        let interface = Interface {
            address: entry.address,
            prefix: entry.prefix,
            vlan: entry.vlan.map(|vlan| neighbour::Vlan {
                id: vlan.id,
                priority: vlan.priority,
            }),
            gateway: entry.gateway,
        };
        self.neighbours.add(interface, now)
    }

    /// Packets of a queue pair go to a peer, until this is dropped.
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

    /// Says of the next peers that they are in use, so that those that were silent for long are asked again, and a MAC
    /// that has moved is noticed.
    fn refresh(&mut self, now: Duration) {
        self.peers.retain(|_, peer| peer.strong_count() > 0);
        let behind = self.refreshed.map_or(Bound::Unbounded, Bound::Excluded);
        let mut next: Vec<_> = self
            .peers
            .range((behind, Bound::Unbounded))
            .map(|(peer, _)| *peer)
            .take(REFRESHED_AT_ONCE)
            .collect();
        if next.is_empty() {
            next.extend(self.peers.keys().take(REFRESHED_AT_ONCE).copied());
        }
        for (source, destination) in &next {
            // How it is reached is the queue pair's own; what comes of asking is told.
            let _known = self.neighbours.resolve(*source, *destination, now);
        }
        self.refreshed = next.last().copied();
        let rounds = self.peers.len().div_ceil(REFRESHED_AT_ONCE).max(1);
        // CAST: no more peers than queue pairs, which are fewer than 2^24.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^18")]
        let rounds = rounds as u32;
        self.refresh_at = now + REFRESH / rounds;
    }

    /// Has the device let through what the addresses need.
    fn hear(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        let mut groups = vec![BROADCAST];
        groups.extend(self.neighbours.groups());
        self.ethernet.hear(hca, &groups)
    }

    /// What frames of the protocols have come to.
    pub(crate) fn counters(&self) -> neighbour::Counters {
        self.neighbours.counters()
    }

    /// Number of the completion queue by whose events frames come.
    pub(crate) fn cqn(&self) -> u32 {
        self.ethernet.cqn()
    }

    /// That queue has something.
    pub(crate) fn notified(&mut self) {
        self.ethernet.notified();
    }

    /// When [`Network::turn`] has something to do at the latest.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    fn changed(&mut self) {
        let refresh = (!self.peers.is_empty()).then_some(self.refresh_at);
        self.due = [self.neighbours.due(), refresh].into_iter().flatten().min();
    }

    /// The link is up, or down.
    pub(crate) fn link(&mut self, up: bool, now: Instant) {
        self.trains_until = None;
        self.neighbours.link(up, since_start(now));
        self.changed();
    }

    /// How a destination is reached from one of our addresses. Who is not known is asked for.
    pub(crate) fn way(&mut self, source: IpAddr, destination: IpAddr, now: Instant) -> Way {
        let time = since_start(now);
        let trains = self.trains_until.is_some_and(|until| time < until);
        let resolution = self.neighbours.resolve(source, destination, time);
        self.changed();
        match resolution {
            Resolution::Known(mac) => Way::Known(mac),
            Resolution::Pending => Way::Pending,
            // Our addresses are announced when it is up: then all that waits is looked at again.
            Resolution::Unreachable(Reason::LinkDown) if trains => Way::Pending,
            Resolution::Unreachable(reason) => {
                Way::Unreachable(format!("{destination} from {source}: {reason}"))
            }
        }
    }

    /// Asks for an echo, if it is known how its destination is reached. That of before is not waited for any more.
    pub(crate) fn echo(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        sequence: u16,
        now: Instant,
    ) -> Way {
        let way = self.way(source, destination, now);
        // A MAC may be known from the address itself, and the link be still down.
        if self.trains_until.is_some() {
            return match way {
                Way::Known(_) => Way::Pending,
                Way::Pending | Way::Unreachable(_) => way,
            };
        }
        if let Way::Known(_) = way {
            (self.echo_at, self.echo) = (since_start(now), None);
            let _known = self
                .neighbours
                .echo(source, destination, sequence, self.echo_at);
            self.changed();
        }
        way
    }

    /// The answer to the last echo, once.
    pub(crate) fn take_echo(&mut self) -> Option<Echo> {
        self.echo.take()
    }

    /// A datagram whose destination is being asked for.
    pub(crate) fn wait_to_leave(&mut self, to: MadAddress, source: IpAddr, mad: &[u8; MAD_BYTES]) {
        let is_copy = |pending: &PendingMad| pending.to == to && *pending.mad == *mad;
        if self.outgoing.len() < WAITING && !self.outgoing.iter().any(is_copy) {
            let mad = Box::new(*mad);
            self.outgoing.push_back(PendingMad { to, source, mad });
        }
    }

    /// A datagram whose sender is being asked for.
    pub(crate) fn wait_for_sender(&mut self, received: ReceivedMad) {
        let is_copy = |other: &ReceivedMad| *other == received;
        if self.incoming.len() < WAITING && !self.incoming.iter().any(is_copy) {
            self.incoming.push_back(received);
        }
    }

    /// A datagram that waited for its sender, who was found.
    pub(crate) fn found(&mut self) -> Option<ReceivedMad> {
        self.found.pop_front()
    }

    /// Moves frames both ways and does what is due.
    pub(crate) fn turn(&mut self, now: Instant) -> Outcome {
        let time = since_start(now);
        let mut heard = false;
        let (neighbours, recorder) = (&mut self.neighbours, &self.recorder);
        self.ethernet.take_in(|frame| {
            heard = true;
            recorder.frame(now, false, frame);
            neighbours.received(frame, time);
        });
        if self.due.is_some_and(|due| due <= time) {
            if self.refresh_at <= time {
                self.refresh(time);
            }
            self.neighbours.tick(time);
            heard = true;
        }
        if heard {
            self.changed();
        }
        while let Some(bytes) = self.neighbours.next_frame(&mut *self.frame) {
            if self.ethernet.send(&self.frame[..bytes]).is_ok() {
                self.recorder.frame(now, true, &self.frame[..bytes]);
            } else {
                // It is asked or answered again.
                tracing::debug!(bytes, "no room for a frame");
            }
        }
        let (mut settled, mut told) = (false, Vec::new());
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
            let (waited_for, event) = self.log.note(&event, now);
            settled |= waited_for;
            told.extend(event);
        }
        let outcome = if settled {
            self.settle(now)
        } else {
            Outcome::default()
        };
        Outcome {
            heard: told,
            ..outcome
        }
    }

    /// Looks again at all that waits.
    fn settle(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for pending in core::mem::take(&mut self.outgoing) {
            match self.way(pending.source, address_of(pending.to.path.gid), now) {
                Way::Known(mac) => outcome.leave.push((pending.to, mac, pending.mad)),
                Way::Pending => self.outgoing.push_back(pending),
                Way::Unreachable(why) => {
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
            match self.way(source, destination, now) {
                Way::Known(_) => self.found.push_back(received),
                Way::Pending => self.incoming.push_back(received),
                Way::Unreachable(why) => tracing::debug!(why, "a datagram that cannot be answered"),
            }
        }
        outcome
    }

    /// Brings the Ethernet port back if it broke.
    pub(crate) fn repair(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        self.ethernet.repair(hca)
    }
}

impl Log {
    /// Says what happened: whether somebody may wait for it, and what consumers are told.
    fn note(&mut self, event: &Event, now: Instant) -> (bool, Option<NetworkEvent>) {
        match *event {
            Event::Resolved { address, vlan, mac } => {
                tracing::debug!(%address, ?vlan, mac = %Mac(mac), "a neighbour was found");
                (true, None)
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
