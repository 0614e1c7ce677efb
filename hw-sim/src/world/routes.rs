//! Cache of routes that frames have taken.
//!
//! The route of a frame follows from its first header and its length, and from cables, switches, ports and lists. All
//! of these change seldom, and never by queue pairs. So a world caches a few routes, and drops all of them whenever
//! something outside the data path happens: a command, a register, a timer of a function, a call from outside.

use crate::link::Port;
use crate::wire::Link;

/// Number of cached routes.
const MOST: usize = 8;

/// Cached route of a function's frames with one header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Sending function.
    pub(crate) nic: usize,
    /// Their first header: both addresses and the VLAN, by which switches and lists forward.
    pub(crate) link: Link,
    /// Length of the longest frame it was determined for, in bytes.
    pub(crate) longest: usize,
    /// Route, if it is one over a cable.
    pub(crate) over: Option<CableRoute>,
}

/// A route over a cable to a function that has the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CableRoute {
    /// The cable, and the sender's side of it.
    pub(crate) cable: usize,
    pub(crate) from: Port,
    /// Receiving function.
    pub(crate) function: usize,
}

/// The cached routes of a world.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    known: Vec<Route>,
    /// Index of the next one to replace, once the cache is full.
    next: usize,
}

impl RouteCache {
    /// Returns the route of a frame; `None` if it is not cached.
    pub(crate) fn find(&self, nic: usize, link: Link, length: usize) -> Option<Option<CableRoute>> {
        let same = |route: &&Route| route.nic == nic && route.link == link;
        let route = self.known.iter().find(same)?;
        (length <= route.longest).then_some(route.over)
    }

    /// Adds a route, in place of one for the same frames.
    pub(crate) fn add(&mut self, route: Route) {
        let same = |known: &&mut Route| known.nic == route.nic && known.link == route.link;
        if let Some(known) = self.known.iter_mut().find(same) {
            *known = route;
        } else if self.known.len() < MOST {
            self.known.push(route);
        } else {
            self.known[self.next] = route;
            self.next = (self.next + 1) % MOST;
        }
    }

    /// Drops all routes.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}
