//! Cache of the routes of frames.
//!
//! The route of a frame depends on its link header and its length, and on cables, switches, ports and address lists.
//! These change seldom, and queue pairs never change them. The cache holds a few routes, and is cleared whenever
//! something outside the data path happens: an event of a card, a command, a write of the initialization segment, a
//! timer of a function, or a call that may change the simulation.

use crate::link::Port;
use crate::wire::Link;

/// Maximum number of cached routes.
const MOST: usize = 8;

/// Cached route of a function's frames with a given link header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Index of the sending function.
    pub(crate) nic: usize,
    /// Link header of the frames: both addresses and the VLAN. Switches and address lists forward by these.
    pub(crate) link: Link,
    /// Length of the longest frame for which the route was determined, in bytes.
    pub(crate) longest: usize,
    /// Route, if the frames go over a cable to another function. `None` means that they need the general path.
    pub(crate) over: Option<CableRoute>,
}

/// A route over a cable to a function that has the destination address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CableRoute {
    /// Number of the cable, and the sender's end of the cable.
    pub(crate) cable: usize,
    pub(crate) from: Port,
    /// Index of the receiving function.
    pub(crate) function: usize,
}

/// Cache of routes.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    known: Vec<Route>,
    /// Index of the next entry to replace when the cache is full.
    next: usize,
}

impl RouteCache {
    /// Returns the cached route of a frame. The outer `None` means that the cache has no entry.
    pub(crate) fn find(&self, nic: usize, link: Link, length: usize) -> Option<Option<CableRoute>> {
        let same = |route: &&Route| route.nic == nic && route.link == link;
        let route = self.known.iter().find(same)?;
        (length <= route.longest).then_some(route.over)
    }

    /// Adds a route. It replaces an entry for the same frames, or the oldest entry if the cache is full.
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
