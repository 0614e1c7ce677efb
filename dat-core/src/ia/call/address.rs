//! Calls that list, add and remove addresses of an open adapter, and calls that send an echo request as `ping` does.
//! Also here: the instance's handling of a removed address and of other events of the network.

use std::net::IpAddr;

use crate::address::{Address, Echo};
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::{AsyncEvent, NetworkEvent};
use crate::handle::EpKey;
use crate::ia::instance::Ia;
use crate::object::ep::cause::EndCause;
use crate::provider::{Path, Provider, ProviderError};

impl<P: Provider> Ia<P> {
    /// Returns the adapter's addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.provider.addresses()
    }

    /// Adds an address to the adapter. From then on connections of all instances can start from this address and be
    /// accepted at it. Each instance gets the event [`NetworkEvent::AddressAdded`].
    ///
    /// Page: none of DAT 1.2.
    ///
    /// # Errors
    /// DAT_INVALID_ADDRESS|MALFORMED: not the address of one node, or one that breaks a rule of [`Address`].
    /// |UNSUPPORTED: the adapter has it already. DAT_INSUFFICIENT_RESOURCES: the table of addresses is full.
    /// DAT_INTERNAL_ERROR: the device refused. On an error nothing has changed.
    pub fn address_add(&mut self, address: Address) -> DatResult<()> {
        self.alive()?;
        let address = address.to_canonical();
        let malformed =
            |why| DatError::new(ReturnType::InvalidAddress, Subtype::AddressMalformed).because(why);
        let ip = address.address;
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast {
            return Err(malformed("no address of one node"));
        }
        address.check().map_err(malformed)?;
        let added = self.provider.add_address(&address);
        added.map_err(|error| self.address_refused("address_add", error))
    }

    /// Removes an address from the adapter. No new connection starts from this address or is accepted at it.
    /// Connections that use it end with [`EndCause::AddressRemoved`], and their peers are notified. Each instance gets
    /// the event [`NetworkEvent::AddressRemoved`].
    ///
    /// Page: none of DAT 1.2.
    ///
    /// # Errors
    /// DAT_INVALID_ADDRESS|UNSUPPORTED: the adapter does not have the address, or it is the link-local address made
    /// of the MAC, which cannot be removed. On an error nothing has changed.
    pub fn address_remove(&mut self, address: IpAddr) -> DatResult<()> {
        self.alive()?;
        let removed = self.provider.remove_address(address.to_canonical());
        removed.map_err(|error| self.address_refused("address_remove", error))?;
        self.progress();
        Ok(())
    }

    /// Sends an echo request, as `ping` does, to any node of the network. The node need not support RDMA.
    /// [`Ia::echo_answered`] returns the answer. An adapter has one outstanding echo: a new one replaces the old one.
    /// Returns `false` if nothing was sent, because the node's MAC is still being resolved. The caller should wait and
    /// call again.
    ///
    /// Page: none of DAT 1.2.
    ///
    /// # Errors
    /// DAT_INVALID_ADDRESS|UNREACHABLE: no node answers for the address, or no address of the adapter has a route to
    /// it. DAT_INVALID_ADDRESS|UNSUPPORTED: the adapter takes no part in the network.
    pub fn echo(&mut self, destination: IpAddr, sequence: u16) -> DatResult<bool> {
        self.alive()?;
        let asked = self.provider.echo(destination.to_canonical(), sequence);
        asked.map_err(|error| match error {
            ProviderError::Unreachable { why, ref what } => {
                self.health.note(format!("echo: {what}"));
                DatError::new(ReturnType::InvalidAddress, Subtype::AddressUnreachable).because(why)
            }
            ProviderError::Resources(_)
            | ProviderError::Limit { .. }
            | ProviderError::Unsupported(_)
            | ProviderError::Foreign(_)
            | ProviderError::Device(_)
            | ProviderError::Dead(_) => self.address_refused("echo", error),
        })
    }

    /// Returns the answer to the last echo, if it has arrived and was not returned before. A wait, or this call,
    /// receives answers.
    ///
    /// Page: none of DAT 1.2.
    pub fn echo_answered(&mut self) -> Option<Echo> {
        self.progress();
        self.provider.take_echo()
    }

    fn address_refused(&mut self, what: &'static str, error: ProviderError) -> DatError {
        match error {
            ProviderError::Unsupported(why) => {
                self.health.note(format!("{what}: {why}"));
                DatError::new(ReturnType::InvalidAddress, Subtype::AddressUnsupported)
                    .because("see last_device_error")
            }
            ProviderError::Limit { .. } => {
                self.note_device_error(what, &error);
                DatError::resources(Subtype::None)
                    .because("the table of addresses is full; see last_device_error")
            }
            ProviderError::Resources(_)
            | ProviderError::Unreachable { .. }
            | ProviderError::Foreign(_)
            | ProviderError::Device(_)
            | ProviderError::Dead(_) => self.device_refused(what, error, Subtype::None),
        }
    }

    /// Ends connections and connection attempts whose source is a removed address of the adapter.
    pub(in crate::ia) fn address_is_gone(&mut self, source_gid_index: u8) {
        let leaves_from_it = |path: &Path| path.source_gid_index == source_gid_index;
        let concerned: Vec<EpKey> = self
            .eps
            .iter()
            .filter(|(_, ep)| ep.path.as_ref().is_some_and(leaves_from_it))
            .map(|(key, _)| key)
            .collect();
        for key in concerned {
            self.drain_queues_of(key);
            self.apply_effects();
            self.set_end_cause(key, EndCause::AddressRemoved);
            self.connection_failed(key);
        }
    }

    /// Queues a network event on the asynchronous EVD, unless that EVD is half full: errors must still fit. Events
    /// about neighbours, and about stations that use an address which we keep, are queued only while the EVD is less
    /// than a quarter full: others can cause many of them, and the other network events must still fit.
    pub(in crate::ia) fn network_event(&mut self, event: NetworkEvent) {
        use NetworkEvent as E;
        let (by_others, divisor) = match event {
            E::NeighbourMoved { .. }
            | E::NeighbourLost(_)
            | E::AddressDuplicate { lost: false, .. } => (true, 4),
            E::AddressDuplicate { lost: true, .. } => (true, 2),
            E::PortDown
            | E::PortUp { .. }
            | E::AddressAdded(_)
            | E::AddressRemoved(_)
            | E::NotJoined => (false, 2),
        };
        if !by_others {
            tracing::info!(%event, "network");
        } else if let Some(unlogged) = self.log.stations.take(self.provider.now()) {
            tracing::info!(%event, unlogged, "network");
        }
        self.notice_async(AsyncEvent::Network(event));
        let evd = &self.evds[self.async_evd];
        if self.config.network_events && evd.len() * divisor < evd.qlen {
            self.push_async(AsyncEvent::Network(event));
        }
    }
}
