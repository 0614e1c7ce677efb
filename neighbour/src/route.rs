//! Routes: the source, the next hop, and its MAC.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Duration;

use crate::address::{Interface, is_link_local, is_unicast, named_mac};
use crate::event::{Reason, Resolution};
use crate::neighbours::{Echoing, Neighbours};
use crate::own::{Claim, Own};
use crate::state::{State, Step};
use crate::table::{Key, Neighbour};
use crate::wire::Echo;

/// Data of our echo requests: as much as `ping` sends.
pub(crate) const ECHO_DATA: [u8; 56] = [0x5a; 56];

impl Neighbours {
    /// Returns the address of ours to send from: the destination itself if it is ours. For a link-local destination,
    /// a link-local address. Otherwise one that shares its prefix with the destination, the longest prefix first;
    /// otherwise one with a gateway. Of two equal ones, the one added first. An address under detection is not
    /// usable, unless it is optimistic.
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
        let same_scope = |own: &Interface| is_link_local(own.address) == is_link_local(destination);
        let on_link = serving()
            .filter(|own| own.has(destination) && same_scope(own))
            .min_by_key(|own| Reverse(own.prefix));
        let routed = || serving().find(|own| own.gateway.is_some() && same_scope(own));
        let found = match is_link_local(destination) {
            true => on_link.or_else(|| serving().find(same_scope)),
            false => on_link.or_else(routed),
        };
        found.map(|own| own.address)
    }

    /// Returns the neighbour that frames from `source` to `destination` go to; events name it. It is the destination
    /// if that is on link. Otherwise it is the gateway of the source, or of another address of ours in its VLAN.
    ///
    /// # Errors
    /// The reason why there is no route; never a reason that asking gives.
    pub fn next_hop(&self, source: IpAddr, destination: IpAddr) -> Result<IpAddr, Reason> {
        self.route(source.to_canonical(), destination.to_canonical())
            .map(|(key, _)| key.address)
    }

    /// Returns the MAC to send to from `source`, an address of ours, to `destination`. Asks for it if necessary.
    pub fn resolve(&mut self, source: IpAddr, destination: IpAddr, now: Duration) -> Resolution {
        self.pass(now);
        let destination = destination.to_canonical();
        let (key, is_ours) = match self.route(source.to_canonical(), destination) {
            Ok(route) => route,
            Err(reason) => return Resolution::Unreachable(reason),
        };
        if is_ours {
            return Resolution::Known(self.config.mac);
        }
        // A static entry of the destination applies to it, gateway or not.
        let fixed = [destination, key.address];
        if let Some(&mac) = fixed.iter().find_map(|address| self.statics.get(address)) {
            return Resolution::Known(mac);
        }
        let Some(entry) = self.table.get_mut(key) else {
            return self.begin(key, source.to_canonical());
        };
        entry.used = self.now;
        entry.asker = source.to_canonical();
        if self.up {
            self.step(key, Step::Used, Reason::NoAnswer);
        }
        self.answer(key)
    }

    /// Sends an echo request to `destination`, from `source`, an address of ours. If the result is
    /// [`Resolution::Known`], the request is queued, and replies to an earlier one are no longer expected. Otherwise
    /// it only does what [`resolve`](Self::resolve) does. The reply is [`Event::Echoed`](crate::Event::Echoed).
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

    /// Notes that traffic from `destination` to `source`, an address of ours, has proven that the neighbour on its
    /// path receives our frames (RFC 4861, 7.3.1).
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

    /// Returns the next hop, and whether it is ourselves.
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
        if !is_unicast(destination) || in_vlan().any(|own| own.is_edge(destination)) {
            return Err(Reason::NotUnicast);
        }
        if in_vlan().any(|own| own.address == destination) {
            return Ok((key(destination), true));
        }
        let link_local = destination.is_ipv6() && is_link_local(destination);
        if link_local || in_vlan().any(|own| own.has(destination)) {
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

    /// Creates the entry of an unknown neighbour.
    fn begin(&mut self, key: Key, source: IpAddr) -> Resolution {
        let named = named_mac(key.address).filter(|&mac| mac != self.config.mac);
        if !self.up {
            // No entry is kept: the neighbour is asked for when the link is up.
            let unreachable = Resolution::Unreachable(Reason::LinkDown);
            return named.map_or(unreachable, Resolution::Known);
        }
        if self.table.len() >= self.config.neighbours {
            let Some(idle) = self.table.idle() else {
                return Resolution::Unreachable(Reason::TableFull);
            };
            self.counters.evicted += 1;
            self.table.remove(idle);
        }
        self.table
            .insert(key, Neighbour::new(source, named, self.now));
        let step = named.map_or(Step::Used, |_| Step::Named);
        self.step(key, step, Reason::NoAnswer);
        self.ask_if_due(key);
        self.answer(key)
    }

    /// Returns the resolution that an entry gives.
    fn answer(&self, key: Key) -> Resolution {
        let entry = self.table.get(key);
        match entry.map(|entry| (entry.state(), entry.usable_mac())) {
            Some((_, Some(mac))) => Resolution::Known(mac),
            Some((State::Incomplete, _)) => Resolution::Pending,
            _ => Resolution::Unreachable(Reason::NoAnswer),
        }
    }

    /// Returns the address of ours that asks for a neighbour: the one that wants to send, or else another in its
    /// VLAN. An optimistic or tentative address must not ask (RFC 4429, 3.2).
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
