//! Routes: choice of the source address, of the next hop, and of the next hop's MAC.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Duration;

use crate::address::{Address, is_edge, is_link_local, is_unicast, named_mac};
use crate::event::{Reason, Resolution};
use crate::neighbours::{Echoing, Neighbours};
use crate::own::{Claim, Own};
use crate::state::{State, Step};
use crate::table::{Key, Neighbour, STRANGERS};
use crate::wire::Echo;

/// Data of our echo requests: 56 bytes, as many as `ping` sends.
pub(crate) const ECHO_DATA: [u8; 56] = [0x5a; 56];

/// Reason for which a caller needs a neighbour. Any host can send us datagrams with a forged source address. So an
/// entry that only such datagrams needed counts in the share of the strangers
/// ([`Config::neighbours`](crate::Config::neighbours)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A local sender will go on sending to the neighbour. Its entry no longer counts as a stranger's.
    Own,
    /// A local sender sends one datagram, which may be an answer to a stranger. A stranger stays a stranger.
    Datagram,
    /// The neighbour has sent a datagram. A new entry is a stranger's.
    Sender,
}

impl Neighbours {
    /// Returns the source address, one of ours, for a destination. The rules, in this order:
    ///
    /// - the destination itself, if it is one of our addresses;
    /// - an address whose prefix contains the destination and that has the destination's scope (link-local or not); of
    ///   several such addresses, one with the longest prefix;
    /// - for a link-local destination: any link-local address; for another destination: an address that is not
    ///   link-local and has a gateway.
    ///
    /// Of several addresses that fit a rule equally, the one that was added first is returned. An address under
    /// detection is not used, unless the address is optimistic.
    #[must_use]
    pub fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        let destination = destination.to_canonical();
        let serving = || {
            let own = self.own.iter().filter(|own| own.claim().serves());
            own.map(|own| own.interface)
                .filter(|own| own.address.is_ipv4() == destination.is_ipv4())
        };
        if let Some(own) = serving().find(|own| own.address == destination) {
            return Some(own.address);
        }
        let same_scope = |own: &Address| is_link_local(own.address) == is_link_local(destination);
        let on_link = serving()
            .filter(|own| own.shares_prefix(destination) && same_scope(own))
            .min_by_key(|own| Reverse(own.prefix_bits()));
        let routed = || serving().find(|own| own.gateway.is_some() && same_scope(own));
        let found = match is_link_local(destination) {
            true => on_link.or_else(|| serving().find(same_scope)),
            false => on_link.or_else(routed),
        };
        found.map(|own| own.address)
    }

    /// Returns the next hop of frames from `source` to `destination`. Events name this neighbour. The next hop is the
    /// destination if the destination is on link. Otherwise the next hop is the gateway of the source, or the gateway
    /// of another of our addresses in the source's VLAN.
    ///
    /// # Errors
    /// The reason why there is no route. A reason that results from a request to a neighbour is never returned.
    pub fn next_hop(&self, source: IpAddr, destination: IpAddr) -> Result<IpAddr, Reason> {
        self.route(source.to_canonical(), destination.to_canonical())
            .map(|(key, _)| key.address)
    }

    /// Returns the MAC to which frames from `source`, one of our addresses, to `destination` are sent. If the MAC is
    /// not known, sends a request for it.
    pub fn resolve(&mut self, source: IpAddr, destination: IpAddr, now: Duration) -> Resolution {
        self.resolve_for(source, destination, Need::Own, now)
    }

    /// Does the same as [`resolve`](Self::resolve) for a caller with this [`Need`].
    pub fn resolve_for(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        need: Need,
        now: Duration,
    ) -> Resolution {
        self.pass(now);
        let destination = destination.to_canonical();
        let (key, is_ours) = match self.route(source.to_canonical(), destination) {
            Ok(route) => route,
            Err(reason) => return Resolution::Unreachable(reason),
        };
        if is_ours {
            return Resolution::Known(self.config.mac);
        }
        // A static entry for the destination is used even if the destination is behind a gateway.
        let fixed = [destination, key.address];
        if let Some(&mac) = fixed.iter().find_map(|address| self.statics.get(address)) {
            return Resolution::Known(mac);
        }
        let Some(entry) = self.table.get_mut(key) else {
            return self.begin(key, source.to_canonical(), need == Need::Sender);
        };
        entry.stranger &= need != Need::Own;
        entry.used = self.now;
        entry.asker = source.to_canonical();
        if self.up {
            self.step(key, Step::Used, Reason::NoAnswer);
        }
        self.answer(key)
    }

    /// Sends an echo request to `destination` from `source`, one of our addresses. If the result is
    /// [`Resolution::Known`], the request is queued, and a reply to an earlier request is no longer accepted. Otherwise
    /// this function only does what [`resolve`](Self::resolve) does. The reply is reported as
    /// [`Event::Echoed`](crate::Event::Echoed).
    pub fn echo(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        sequence: u16,
        now: Duration,
    ) -> Resolution {
        let (source, destination) = (source.to_canonical(), destination.to_canonical());
        let resolution = self.resolve(source, destination, now);
        let Resolution::Known(to) = resolution else {
            return resolution;
        };
        let identifier = self.draw.number();
        let request = Echo {
            source,
            destination,
            identifier,
            sequence,
            data: &ECHO_DATA,
        };
        let vlan = self.own(source).and_then(|own| own.interface.vlan);
        if let Some(frame) = request.request(self.config.mac, to, vlan) {
            self.echo = Some(Echoing {
                source,
                destination,
                identifier,
                sequence,
            });
            self.send(frame);
        }
        resolution
    }

    /// Records that traffic from `destination` to `source`, one of our addresses, has proven that the next hop to
    /// `destination` receives our frames (RFC 4861, 7.3.1).
    pub fn confirm(&mut self, source: IpAddr, destination: IpAddr, now: Duration) {
        self.pass(now);
        let route = self.route(source.to_canonical(), destination.to_canonical());
        let Ok((key, false)) = route else {
            return;
        };
        if let Some(entry) = self.table.get_mut(key) {
            entry.used = self.now;
        }
        if self.up {
            self.step(key, Step::Confirmed, Reason::NoAnswer);
        }
    }

    /// Returns the next hop, and whether the destination is one of our own addresses.
    fn route(&self, source: IpAddr, destination: IpAddr) -> Result<(Key, bool), Reason> {
        let own = self.own(source).ok_or(Reason::NotOurs)?;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(Reason::NotOurs);
        }
        match own.claim() {
            Claim::Tentative => return Err(Reason::Detecting),
            Claim::Duplicate => return Err(Reason::Duplicate),
            Claim::Optimistic | Claim::Preferred => {}
        }
        let vlan = own.interface.vlan_id();
        let key = |address| Key { vlan, address };
        let in_vlan = || {
            let own = self.own.iter().map(|own| &own.interface);
            own.filter(|own| own.vlan_id() == vlan && own.address.is_ipv4() == source.is_ipv4())
        };
        if !is_unicast(destination) || in_vlan().any(|own| is_edge(own, destination)) {
            return Err(Reason::NotUnicast);
        }
        if in_vlan().any(|own| own.address == destination) {
            return Ok((key(destination), true));
        }
        let link_local = destination.is_ipv6() && is_link_local(destination);
        if link_local || in_vlan().any(|own| own.shares_prefix(destination)) {
            return Ok((key(destination), false));
        }
        // Routers do not forward packets from a link-local address (RFC 4291, 2.5.6; RFC 3927, 2.7).
        if is_link_local(source) {
            return Err(Reason::NoRoute);
        }
        let own_gateway = own.interface.gateway;
        let gateway = own_gateway.or_else(|| in_vlan().find_map(|own| own.gateway));
        gateway
            .map(|gateway| (key(gateway), false))
            .ok_or(Reason::NoRoute)
    }

    /// Creates the entry of a neighbour that is not in the table, and starts to resolve its MAC.
    fn begin(&mut self, key: Key, source: IpAddr, stranger: bool) -> Resolution {
        let named = named_mac(key.address).filter(|&mac| mac != self.config.mac);
        if !self.up {
            // No entry is created. The first sender after the link is up causes a request.
            let unreachable = Resolution::Unreachable(Reason::LinkDown);
            return named.map_or(unreachable, Resolution::Known);
        }
        if !self.make_room(stranger) {
            return Resolution::Unreachable(Reason::TableFull);
        }
        let entry = Neighbour::new(source, stranger, named, self.now);
        self.table.insert(key, entry);
        let step = named.map_or(Step::Used, |_| Step::Named);
        self.step(key, step, Reason::NoAnswer);
        self.ask_if_due(key);
        self.answer(key)
    }

    /// Drops an entry if there is no room for another one. Returns `false` if there is still no room. Entries of
    /// strangers evict each other once they fill their share of the table. A neighbour that a sender of ours needs
    /// evicts a stranger first.
    fn make_room(&mut self, stranger: bool) -> bool {
        let most = self.config.neighbours;
        let is_share_full = stranger && self.table.strangers() >= (most / STRANGERS).max(1);
        if self.table.len() < most && !is_share_full {
            return true;
        }
        let leaves = match stranger && !is_share_full {
            true => self.table.idle(),
            false => self.table.oldest_stranger().or_else(|| self.table.idle()),
        };
        if let Some(leaves) = leaves {
            self.counters.evicted += 1;
            self.forget(leaves, Reason::TableFull);
        }
        leaves.is_some()
    }

    /// Returns the resolution that the state of the entry implies.
    fn answer(&self, key: Key) -> Resolution {
        let entry = self.table.get(key);
        match entry.map(|entry| (entry.state(), entry.usable_mac())) {
            Some((_, Some(mac))) => Resolution::Known(mac),
            Some((State::Incomplete, _)) => Resolution::Pending,
            _ => Resolution::Unreachable(Reason::NoAnswer),
        }
    }

    /// Returns the source address of requests for a neighbour: `wanted`, the address of the sender, or otherwise
    /// another of our addresses in the same VLAN. An optimistic or tentative address must send no requests (RFC 4429,
    /// 3.2).
    pub(crate) fn asker(&self, key: Key, wanted: IpAddr) -> Option<&Own> {
        let may_ask = |own: &&Own| {
            own.claim() == Claim::Preferred
                && own.interface.vlan_id() == key.vlan
                && own.address().is_ipv4() == key.address.is_ipv4()
        };
        let wanted = self.own(wanted).filter(may_ask);
        wanted.or_else(|| self.own.iter().find(may_ask))
    }
}
