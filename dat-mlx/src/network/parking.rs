//! The network side of a function that is handed over to another process.
//!
//! Frames and datagrams that come meanwhile stay in the queues of the Ethernet port and of QP1. The first
//! [`Network::run_once`] takes the frames in before it runs timers, because a frame may answer a request whose timer is
//! overdue.
//!
//! Three things are not in a snapshot. The peers of queue pairs are marked again when the queue pairs are resumed
//! ([`Network::resume_peer`]). The time of the next timer follows from the rest. The rate limits of the log belong to
//! the process.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dat_core::Echo;
use dat_core::provider::MadAddress;
use driver::Instant;
use hw_mlx::ethernet::{BROADCAST, Ethernet, EthernetSnapshot, SEND_BYTES};
use hw_mlx::gid::address_of;
use hw_mlx::gsi::ReceivedMad;
use hw_mlx::mad::MAD_BYTES;
use hw_mlx::{AsyncEvent, Hca, HcaTables, ParkError, ParkingHca, ResumeError};
use neighbour::{Config, Neighbours, NeighboursSnapshot};

use super::{
    CountersCopy, LINK_TRAINING, Log, Network, Peers, PendingMad, REFRESH, WAITING, since_start,
};

/// Name of the table in errors.
const TABLE: &str = "the network";
/// Mask of a flow label.
const FLOW_LABEL_MASK: u32 = 0xf_ffff;
/// Maximum priority of a frame.
const MAX_PRIORITY: u8 = 7;

/// The network side of a function. Times are those of the function's clock, which is the system's.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NetworkSnapshot {
    /// The Ethernet port.
    pub ethernet: EthernetSnapshot,
    /// Our addresses in the network, and the stations on its links.
    pub neighbours: NeighboursSnapshot,
    /// Datagrams that wait for the MACs of their destinations, oldest first.
    pub outgoing: Vec<PendingMadSnapshot>,
    /// Received datagrams that wait for the MACs of their senders, oldest first.
    pub incoming: Vec<ReceivedMad>,
    /// Received datagrams whose senders' MACs were found, oldest first.
    pub found: Vec<ReceivedMad>,
    /// Our address and the peer's of the queue pair that was marked last as using its neighbour.
    pub refreshed: Option<(IpAddr, IpAddr)>,
    /// Time at which the next peers are marked.
    pub refresh_at: Duration,
    /// Time until which the link may still train, if it was down when the function came up.
    pub training_until: Option<Duration>,
    /// Time of the last echo request.
    pub echo_at: Duration,
    /// Answer to the last echo request, if the caller has not fetched it.
    pub echo: Option<Echo>,
}

/// A datagram that is sent when its destination is resolved.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PendingMadSnapshot {
    /// Destination.
    pub to: MadAddress,
    /// Our address from which it is sent.
    pub source: IpAddr,
    /// The 256 bytes of the datagram.
    #[serde(with = "serde_bytes")]
    pub mad: [u8; MAD_BYTES],
}

impl Network {
    /// Describes the network side for another process.
    ///
    /// # Errors
    /// [`ParkError::Broken`]: the Ethernet port has failed, and was not repaired.
    pub(crate) fn park(self, at_quiet_point: &ParkingHca) -> Result<NetworkSnapshot, ParkError> {
        let Self {
            ethernet,
            neighbours,
            outgoing,
            incoming,
            found,
            due: _,
            peers: _,
            refreshed,
            refresh_at,
            training_until,
            // `neighbours.up` has the same value.
            is_up: _,
            echo_at,
            echo,
            frame: _,
            recorder: _,
            counters: _,
            log: _,
        } = self;
        let ethernet = ethernet.park(at_quiet_point).map_err(|refused| refused.1)?;
        let outgoing = outgoing.into_iter().map(|pending| {
            let PendingMad { to, source, mad } = pending;
            PendingMadSnapshot {
                to,
                source,
                mad: *mad,
            }
        });
        Ok(NetworkSnapshot {
            ethernet,
            neighbours: neighbours.park(),
            outgoing: outgoing.collect(),
            incoming: incoming.into(),
            found: found.into(),
            refreshed,
            refresh_at,
            training_until,
            echo_at,
            echo,
        })
    }

    /// Marks the peer of a queue pair that had one before. Unlike [`Network::peer`], this keeps the time of the next
    /// marking.
    pub(crate) fn resume_peer(&mut self, source: IpAddr, destination: IpAddr) -> Arc<()> {
        let peer = self.peers.entry((source, destination)).or_default();
        let held = peer.upgrade().unwrap_or_else(|| {
            let new = Arc::new(());
            *peer = Arc::downgrade(&new);
            new
        });
        self.changed();
        held
    }
}

/// A network side whose snapshot was checked, and which has no Ethernet port yet.
pub(crate) struct CheckedNetwork<'a> {
    snapshot: &'a NetworkSnapshot,
    neighbours: Neighbours,
}

impl<'a> CheckedNetwork<'a> {
    /// Checks a snapshot against the tables of its function. `seed` is the seed of the neighbours' random numbers, and
    /// `is_up` says whether the link was up for the instance. Sends no command.
    ///
    /// # Errors
    /// [`ResumeError::Snapshot`]: numbers of the snapshot are impossible, or contradict each other or the tables.
    pub(crate) fn new(
        snapshot: &'a NetworkSnapshot,
        tables: &HcaTables,
        (seed, is_up): (u64, bool),
        now: Instant,
    ) -> Result<Self, ResumeError> {
        let NetworkSnapshot {
            // The device confirms it.
            ethernet: _,
            neighbours,
            outgoing,
            incoming,
            found,
            // The marking of peers can go on behind any pair of addresses.
            refreshed: _,
            refresh_at,
            training_until,
            echo_at,
            echo,
        } = snapshot;
        let refused = |what: String| Err(ResumeError::snapshot(TABLE, what));
        let time = since_start(now);
        let is_possible = outgoing.len().max(incoming.len()).max(found.len()) <= WAITING
            && *refresh_at <= time + REFRESH
            && training_until.is_none_or(|until| until <= time + LINK_TRAINING)
            && *echo_at <= time
            && echo.is_none_or(|echo| echo.took <= time && echo.bytes <= usize::from(u16::MAX));
        if !is_possible {
            return refused(format!(
                "{} datagrams to be sent, {} and {} received; peers are marked at {refresh_at:?}, the link trains until {training_until:?}, echo request at {echo_at:?}, answered by {echo:?}; the time is {time:?}",
                outgoing.len(),
                incoming.len(),
                found.len()
            ));
        }
        if let Some(pending) = outgoing.iter().find(|pending| !is_sound(pending)) {
            return refused(format!(
                "a datagram from {} to {:?}",
                pending.source, pending.to
            ));
        }
        // An instance that has not fetched such an event knows the earlier state.
        let has_port_event = tables
            .instances
            .iter()
            .flat_map(|instance| &instance.events)
            .any(|event| matches!(event, AsyncEvent::PortUp | AsyncEvent::PortDown));
        if neighbours.up != is_up && !has_port_event {
            return refused(format!(
                "the link is up for neighbours: {}, and for the instance: {is_up}",
                neighbours.up
            ));
        }
        check_addresses(neighbours, tables)?;
        let config = Config::new(tables.port.mac, seed);
        let neighbours = Neighbours::resume(neighbours, config, time)
            .map_err(|error| ResumeError::snapshot(TABLE, error.to_string()))?;
        let ours: BTreeSet<_> = snapshot.ethernet.groups.iter().copied().collect();
        let mut groups = neighbours.groups().chain([BROADCAST]);
        if let Some(missing) = groups.find(|group| !ours.contains(group)) {
            return refused(format!("the port does not accept frames to {missing:02x?}"));
        }
        Ok(Self {
            snapshot,
            neighbours,
        })
    }

    /// Makes the Ethernet port again, and goes on with the network side.
    ///
    /// # Errors
    /// As [`Ethernet::resume`].
    pub(crate) fn resume(self, hca: &mut Hca) -> Result<Network, ResumeError> {
        let Self {
            snapshot,
            neighbours,
        } = self;
        let ethernet = Ethernet::resume(hca, &snapshot.ethernet)?;
        let outgoing = snapshot.outgoing.iter().map(|pending| {
            let PendingMadSnapshot { to, source, mad } = pending.clone();
            PendingMad {
                to,
                source,
                mad: Box::new(mad),
            }
        });
        let mut network = Network {
            ethernet,
            neighbours,
            outgoing: outgoing.collect(),
            incoming: snapshot.incoming.iter().cloned().collect(),
            found: snapshot.found.iter().cloned().collect(),
            due: None,
            peers: Peers::new(),
            refreshed: snapshot.refreshed,
            refresh_at: snapshot.refresh_at,
            training_until: snapshot.training_until,
            is_up: snapshot.neighbours.up,
            echo_at: snapshot.echo_at,
            echo: snapshot.echo,
            frame: Box::new([0; SEND_BYTES]),
            recorder: Arc::clone(hca.recorder()),
            counters: CountersCopy::default(),
            log: Log::default(),
        };
        network.changed();
        Ok(network)
    }
}

/// Returns whether the numbers of a datagram fit in their fields, and its addresses are of one family.
fn is_sound(pending: &PendingMadSnapshot) -> bool {
    let path = &pending.to.path;
    path.flow_label <= FLOW_LABEL_MASK
        && path.priority <= MAX_PRIORITY
        && pending.source.is_ipv4() == address_of(path.gid).is_ipv4()
}

/// Checks that the network has only addresses that the function has, and static neighbours that were configured.
fn check_addresses(neighbours: &NeighboursSnapshot, tables: &HcaTables) -> Result<(), ResumeError> {
    let ours: Vec<_> = tables.gids.entries.iter().map(|one| one.address).collect();
    for one in &neighbours.addresses {
        if !ours.contains(&one.address) {
            let what = format!("the function does not have address {}", one.address);
            return Err(ResumeError::snapshot(TABLE, what));
        }
    }
    for at in &neighbours.statics {
        let mut configured = tables.neighbours.iter();
        if !configured.any(|(address, mac)| (address.to_canonical(), *mac) == *at) {
            let what = format!("neighbour {} was not configured", at.0);
            return Err(ResumeError::snapshot(TABLE, what));
        }
    }
    Ok(())
}
