//! Reaching peers: the state of the port, the MAC to which a datagram or a queue pair's packets are sent, and the
//! periodic work of the network protocols.

use std::net::IpAddr;
use std::time::Duration;

use dat_core::NetworkEvent;
use dat_core::address::Address;
use dat_core::provider::{
    MadAddress, Nanos, PORT_DOWN, Path, Provider, ProviderError, ProviderEvent,
};
use driver::Instant;
use hw_mlx::gid::{address_of, gid_of};
use hw_mlx::gsi::ReceivedMad;
use hw_mlx::{AsyncEvent, GidEntry, MlxError, datagrams};
use neighbour::Need;

use super::MlxProvider;
use super::errors::ForDat;
use crate::network::{LINK_TRAINING, NextHop};

/// Time after which resolving a peer's MAC for a queue pair fails.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a port that is down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Time at which we learned that the port is down.
    pub(super) since: Instant,
    /// True if the port was already down when the function came up. Then the link may still be training.
    pub(super) trains: bool,
}

/// Returns the error for a destination that cannot be reached.
fn unreachable_error(what: String) -> ProviderError {
    ProviderError::Unreachable {
        why: "nothing leads to this address now",
        what,
    }
}

impl MlxProvider {
    /// Passes on the events of the completion queues that all instances share. Returns true if there was any.
    pub(super) fn collect_shared(&mut self) -> bool {
        let mut handled = false;
        // Both locks are held for all events: an instance that finds a queue unarmed arms it, and its arm request must
        // carry the count of all events.
        let mut network = self.common.network();
        let mut gsi = self.common.gsi();
        while let Some(cqn) = self.hca.next_shared_completion() {
            if cqn.get() == gsi.cqn() {
                gsi.notified();
                handled = true;
            } else if let Some(network) = &mut network
                && cqn.get() == network.cqn()
            {
                network.notified();
                handled = true;
            }
        }
        handled
    }

    /// Returns the next datagram that QP1 has received.
    pub(super) fn receive_mad(&mut self) -> Option<ReceivedMad> {
        let mut gsi = self.common.gsi();
        let (received, dropped) = (gsi.receive(), gsi.newly_dropped());
        drop(gsi);
        // The peers' connection managers send the datagrams again.
        if dropped > 0
            && let Some(unlogged) = self.log_mads_dropped.take(self.hca.now().0)
        {
            tracing::warn!(
                function = self.hca.name(),
                dropped,
                total = self.common.mads_dropped.get(),
                unlogged,
                "datagrams of connection management were dropped: they arrive faster than they are read"
            );
        }
        received
    }

    /// Runs the network protocols once: repairs the port, receives and sends frames, runs due timers, and sends the
    /// datagrams whose destinations were resolved.
    pub(super) fn run_network(&mut self) {
        if self.resuming.is_some() {
            return;
        }
        let Some(mut network) = self.common.network() else {
            return;
        };
        if let Err(error) = network.repair(&mut self.hca)
            && !self.hca.is_dead()
        {
            if network.repair_due().is_some() {
                tracing::error!(%error, "the Ethernet port cannot be repaired now; the repair is tried again");
            } else {
                tracing::error!(%error, "the Ethernet port is given up: neighbours with unknown MACs are unreachable from now on");
                self.hca
                    .push_event(AsyncEvent::Network(hw_mlx::NetworkEvent::PortGivenUp));
            }
        }
        let outcome = network.run_once(self.hca.now());
        drop(network);
        for event in outcome.heard {
            self.hca.push_event(AsyncEvent::Network(event));
        }
        for (to, mac, mad) in outcome.resolved {
            if let Err(error) = self.send_over(&to, mac, &mad) {
                // The connection manager protocol sends the datagram again.
                tracing::debug!(%error, "a datagram that had waited");
            }
        }
        let nobody = outcome.nobody.into_iter();
        self.events
            .extend(nobody.map(|gid| ProviderEvent::Unreachable { gid }));
    }

    /// Returns the time at which the next timer of the network, a repair, or the end of a removed address is due.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        if self.resuming.is_some() {
            // `progress` runs no timer before the resumption is finished.
            return None;
        }
        let network = self.common.network();
        let due = network.as_ref().and_then(|network| network.due());
        let due = due.map(|due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
        let port = network.and_then(|network| network.repair_due());
        // Nothing is repaired on a dead device.
        let repairs =
            [port, self.common.gsi().repair_due()].map(|at| at.filter(|_| !self.hca.is_dead()));
        let [port, gsi] = repairs.map(|at| at.map(|at| at.0));
        let retired = self.hca.retired_at().map(|at| at.0);
        [due, port, gsi, retired].into_iter().flatten().min()
    }

    /// Clears addresses that were removed and are no longer in use.
    pub(super) fn clear_retired_addresses(&mut self) {
        while let Some(entry) = self.hca.clear_retired() {
            if let Some(mut network) = self.common.network() {
                network.remove(&mut self.hca, entry.address.address);
            }
        }
    }

    /// Adds an address to the device and to the network.
    pub(super) fn add(&mut self, address: &Address) -> Result<(), MlxError> {
        self.clear_retired_addresses();
        let entry = self.hca.add_address(address)?;
        let joined = match self.common.network() {
            Some(mut network) => network.add(&mut self.hca, entry.address),
            None => Ok(()),
        };
        if joined.is_err() {
            self.hca.retire_address(entry.address.address)?;
            self.clear_retired_addresses();
        }
        joined
    }

    /// Sends an echo request to a node. Returns false if the node's MAC must be resolved first.
    pub(super) fn send_echo(
        &mut self,
        destination: IpAddr,
        sequence: u16,
    ) -> Result<bool, ProviderError> {
        self.check_port()?;
        let source = self.source(gid_of(destination), None)?.address.address;
        let Some(mut network) = self.common.network() else {
            let why = "the adapter takes no part in the network".to_owned();
            return Err(ProviderError::Unsupported(why));
        };
        let way = network.echo(source, destination, sequence, self.hca.now());
        drop(network);
        // Sends the queued frames.
        self.run_network();
        match way {
            NextHop::Known(_) => Ok(true),
            NextHop::Pending => Ok(false),
            NextHop::Unreachable(what) => Err(unreachable_error(what)),
        }
    }

    /// Returns the event for a port that has just come up, with speed and MTU as far as the device reports them.
    pub(super) fn port_up_event(&mut self) -> NetworkEvent {
        let speed = self.hca.port_megabits();
        let state = self.hca.vport_state();
        if let Err(error) = &state {
            tracing::debug!(%error, "the port does not say what it is");
        }
        NetworkEvent::PortUp {
            megabits: speed.ok().flatten(),
            mtu: state.ok().and_then(|state| state.ip_mtu()),
        }
    }

    /// Returns our source address for a connection to a GID: the requested address, or one that has a route to the GID.
    pub(super) fn source(
        &self,
        gid: [u8; 16],
        asked: Option<IpAddr>,
    ) -> Result<GidEntry, ProviderError> {
        let destination = address_of(gid);
        let Some(asked) = asked else {
            return self.hca.source_gid(gid).ok_or_else(|| {
                ProviderError::Unreachable {
                    why: "the adapter has no address that this peer is reached from: `,address=IP/PREFIX` behind its name gives it one",
                    what: format!("no source address for {destination}"),
                }
            });
        };
        if asked.is_ipv4() != destination.is_ipv4() {
            return Err(ProviderError::Unreachable {
                why: "the address that this was to leave from is of another family than the peer's",
                what: format!("{destination} from {asked}"),
            });
        }
        let ours = self.hca.gids();
        let entry = ours.iter().find(|entry| entry.address.address == asked);
        entry.copied().ok_or_else(|| {
            let known: Vec<String> = ours
                .iter()
                .map(|entry| entry.address.address.to_string())
                .collect();
            ProviderError::Unreachable {
                why: "the address that this was to leave from is none of the adapter's",
                what: format!(
                    "{asked} is no address of {}; it has {}",
                    self.hca.name(),
                    known.join(", ")
                ),
            }
        })
    }

    /// Resolves a GID to a MAC, with our address at an index as the source.
    pub(super) fn way(&self, gid: [u8; 16], source_index: u8, need: Need) -> NextHop {
        let unresolved = match self.hca.resolve(gid) {
            Ok(mac) => return NextHop::Known(mac),
            Err(error) => error,
        };
        match (self.common.network(), self.hca.gid_at(source_index)) {
            (Some(mut network), Some(source)) => {
                let destination = address_of(gid);
                let source = source.address.address;
                network.way(source, destination, need, self.hca.now())
            }
            (None, _) | (_, None) => NextHop::Unreachable(unresolved.to_string()),
        }
    }

    /// Returns the MAC through which a peer is reached. Waits while the MAC is resolved, at most for `RESOLVE_TIMEOUT`.
    pub(super) fn find(&mut self, path: &Path) -> Result<[u8; 6], ProviderError> {
        let patience = self.hca.now() + RESOLVE_TIMEOUT;
        loop {
            match self.way(path.gid, path.source_gid_index, Need::Own) {
                NextHop::Known(mac) => return Ok(mac),
                NextHop::Unreachable(what) => return Err(unreachable_error(what)),
                NextHop::Pending if self.hca.now() >= patience => {
                    let address = address_of(path.gid);
                    return Err(ProviderError::Unreachable {
                        why: "nobody answers for this address",
                        what: format!("{address} was asked for {} s", RESOLVE_TIMEOUT.as_secs()),
                    });
                }
                NextHop::Pending => {}
            }
            self.run_network();
            let until = self
                .next_timeout()
                .map_or(patience, |due| patience.min(Instant(due)));
            self.hca.wait(until).for_dat()?;
            self.collect();
            self.run_network();
        }
    }

    pub(super) fn send_over(
        &mut self,
        to: &MadAddress,
        mac: [u8; 6],
        mad: &[u8; 256],
    ) -> Result<(), ProviderError> {
        let sent = self.common.gsi().send(to, mac, mad);
        sent.map_err(|_| {
            ProviderError::Resources("too many management datagrams in flight".to_owned())
        })?;
        datagrams::sent(&self.hca, to, mac, mad);
        Ok(())
    }

    /// Updates the port's state from an event.
    pub(super) fn note_port(&mut self, event: &AsyncEvent) {
        match event {
            AsyncEvent::PortDown => {
                self.down = Some(Down {
                    since: self.hca.now(),
                    trains: false,
                });
                self.network_link(false);
            }
            AsyncEvent::PortUp => {
                self.down = None;
                self.network_link(true);
            }
            AsyncEvent::PortChange { .. }
            | AsyncEvent::CommEstablished { .. }
            | AsyncEvent::QpError { .. }
            | AsyncEvent::SqDrained { .. }
            | AsyncEvent::SrqLastWqe { .. }
            | AsyncEvent::SrqLimit { .. }
            | AsyncEvent::SrqError { .. }
            | AsyncEvent::CqError { .. }
            | AsyncEvent::DeviceDead { .. }
            | AsyncEvent::DeviceRequested
            | AsyncEvent::Network(_)
            | AsyncEvent::AddressRemoved { .. }
            // PortUp or PortDown follows.
            | AsyncEvent::EventsLost { .. }
            | AsyncEvent::Other { .. } => {}
        }
    }

    fn network_link(&self, up: bool) {
        if let Some(mut network) = self.common.network() {
            network.link(up, self.hca.now());
        }
    }

    /// Returns an error if the port is down and is not expected to come up by itself.
    pub(super) fn check_port(&self) -> Result<(), ProviderError> {
        let Some(Down { since, trains }) = self.down else {
            return Ok(());
        };
        let down = self.hca.now() - since;
        if trains && down < LINK_TRAINING {
            tracing::warn!(?down, "the port is down; it may still come up");
            return Ok(());
        }
        Err(ProviderError::Unreachable {
            why: PORT_DOWN,
            what: format!(
                "the port of {} is down, and was when last seen {} s ago",
                self.hca.name(),
                down.as_secs()
            ),
        })
    }
}
