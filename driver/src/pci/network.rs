//! Traffic of a network interface, which would be cut off if the interface disappeared.
//!
//! A function that is unbound from its network driver loses its interfaces. If the default route or the user's own
//! connection goes over one of them, the machine cannot be reached any more. The main routing tables and the TCP
//! connections are in procfs. The `upper_` links in sysfs show that an interface is a part of another (a bond, a
//! bridge, a VLAN); the traffic of the upper interface counts, too.
//!
//! A connection uses the interface of the longest matching route to its peer. A local address belongs to an interface
//! if the route to it is a direct one of that interface (IPv4), or if the kernel lists it there (IPv6). Policy
//! routing, other network namespaces and protocols other than TCP are not considered.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::machine::{Machine, hex, names};

/// Traffic of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// The default route.
    DefaultRoute {
        /// The interface.
        interface: String,
    },
    /// An established TCP connection.
    Connection {
        /// The interface.
        interface: String,
        /// IP address and port on this machine.
        local: SocketAddr,
        /// IP address and port of the peer.
        remote: SocketAddr,
    },
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Port of sshd.
        const SSH: u16 = 22;
        match self {
            Self::DefaultRoute { interface } => {
                write!(f, "the default route goes over {interface}")
            }
            Self::Connection {
                interface,
                local,
                remote,
            } => {
                let what = if local.port() == SSH {
                    "the ssh session"
                } else {
                    "the TCP connection"
                };
                write!(f, "{what} {local} with {remote} goes over {interface}")
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Route {
    interface: String,
    destination: u128,
    /// Prefix length of `destination` in bits.
    length: u32,
    metric: u32,
    /// True if the route has no gateway: the destination is on the interface's own network.
    direct: bool,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl Machine {
    /// Returns the traffic of these interfaces and of all interfaces that they are a part of.
    #[must_use]
    pub fn traffic(&self, netdevs: &[String]) -> Vec<Traffic> {
        let carried = self.with_uppers(netdevs);
        let routes = self.routes();
        let owned = self.ipv6_addresses();
        let mut traffic: BTreeSet<Traffic> = routes
            .iter()
            .filter(|route| route.length == 0 && carried.contains(&route.interface))
            .map(|route| Traffic::DefaultRoute {
                interface: route.interface.clone(),
            })
            .collect();
        for (local, remote) in self.connections() {
            if remote.ip().is_loopback() || remote.ip() == local.ip() {
                continue;
            }
            let way = best(&routes, remote.ip()).map(|route| &route.interface);
            let own = best(&routes, local.ip())
                .filter(|route| route.direct)
                .map(|route| &route.interface);
            let listed = owned
                .iter()
                .find(|(address, _)| *address == local.ip())
                .map(|(_, interface)| interface);
            let over = [way, own, listed]
                .into_iter()
                .flatten()
                .find(|interface| carried.contains(*interface));
            if let Some(interface) = over {
                traffic.insert(Traffic::Connection {
                    interface: interface.clone(),
                    local,
                    remote,
                });
            }
        }
        traffic.into_iter().collect()
    }

    /// Returns these interfaces and all interfaces that they are a part of.
    fn with_uppers(&self, netdevs: &[String]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = netdevs.to_vec();
        while let Some(netdev) = open.pop() {
            let links = names(&self.path("/sys/class/net").join(&netdev));
            if found.insert(netdev) {
                let uppers = links
                    .iter()
                    .filter_map(|name| name.strip_prefix("upper_"))
                    .map(str::to_owned);
                open.extend(uppers);
            }
        }
        found
    }

    fn lines(&self, path: &str) -> Vec<Vec<String>> {
        let text = self.text(path).unwrap_or_default();
        text.lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    }

    fn routes(&self) -> Vec<Route> {
        let four = self.lines("/proc/net/route");
        let six = self.lines("/proc/net/ipv6_route");
        four.iter()
            .filter_map(|fields| route_v4(fields))
            .chain(six.iter().filter_map(|fields| route_v6(fields)))
            .collect()
    }

    fn ipv6_addresses(&self) -> Vec<(IpAddr, String)> {
        self.lines("/proc/net/if_inet6")
            .iter()
            .filter_map(|fields| {
                let address = u128::from_str_radix(fields.first()?, 16).ok()?;
                Some((Ipv6Addr::from_bits(address).into(), fields.get(5)?.clone()))
            })
            .collect()
    }

    /// Returns the established TCP connections: local address, remote address.
    fn connections(&self) -> Vec<(SocketAddr, SocketAddr)> {
        /// TCP_ESTABLISHED in `include/net/tcp_states.h`.
        const ESTABLISHED: &str = "01";
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .flat_map(|path| self.lines(path))
            .filter(|fields| fields.get(3).is_some_and(|state| state == ESTABLISHED))
            .filter_map(|fields| Some((socket(fields.get(1)?)?, socket(fields.get(2)?)?)))
            .collect()
    }
}

/// Returns the route to an address with the longest prefix, and of several the one with the lowest metric.
fn best(routes: &[Route], to: IpAddr) -> Option<&Route> {
    let (bits, version, width) = match to {
        IpAddr::V4(four) => (u128::from(four.to_bits()), Version::V4, 32),
        IpAddr::V6(six) => (six.to_bits(), Version::V6, 128),
    };
    routes
        .iter()
        .filter(|route| route.version == version)
        .filter(|route| {
            let rest = width - route.length.min(width);
            let top = |value: u128| value.checked_shr(rest).unwrap_or_default();
            top(bits) == top(route.destination)
        })
        .min_by_key(|route| (u32::MAX - route.length, route.metric))
}

/// Parses a line of `/proc/net/route`: numbers in hex, addresses in the processor's byte order. `None` if the route is
/// not up, or rejects packets.
fn route_v4(fields: &[String]) -> Option<Route> {
    let word = |at: usize| Some(u32::from_be(hex(fields.get(at)?)?));
    /// RTF_UP and RTF_REJECT.
    const UP: u32 = 0x0001;
    const REJECT: u32 = 0x0200;
    let flags = hex(fields.get(3)?)?;
    (flags & UP != 0 && flags & REJECT == 0).then_some(())?;
    Some(Route {
        interface: fields.first()?.clone(),
        destination: u128::from(word(1)?),
        length: word(7)?.leading_ones(),
        metric: fields.get(6)?.parse().ok()?,
        direct: word(2)? == 0,
        version: Version::V4,
    })
}

/// Parses a line of `/proc/net/ipv6_route`: numbers in hex, addresses as on the wire. `None` as for [`route_v4`].
fn route_v6(fields: &[String]) -> Option<Route> {
    const UP: u32 = 0x0001;
    const REJECT: u32 = 0x0200;
    let address = |at: usize| u128::from_str_radix(fields.get(at)?, 16).ok();
    let flags = hex(fields.get(8)?)?;
    (flags & UP != 0 && flags & REJECT == 0).then_some(())?;
    Some(Route {
        interface: fields.get(9)?.clone(),
        destination: address(0)?,
        length: hex(fields.get(1)?)?,
        metric: hex(fields.get(5)?)?,
        direct: address(4)? == 0,
        version: Version::V6,
    })
}

/// Parses `0100007F:0016`, or the same with four words, each in the processor's byte order. An IPv4-mapped IPv6
/// address becomes IPv4.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_be(hex(address.get(at * 8..at * 8 + 8)?)?));
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from_bits(word(0)?)),
        32 => {
            let mut bits = 0;
            for at in 0..4 {
                bits = bits << 32 | u128::from(word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}
