//! Ways that frames have gone.
//!
//! Where a frame goes follows from its first header and its length, from cables, switches, ports and lists. All of
//! these change seldom, and never by what queue pairs do. So a world remembers a few ways, and forgets all of them
//! whenever something happens that is not the data path's: a command, a register, a timer of a function's, a call from
//! outside.

use crate::link::Port;
use crate::wire::Link;

/// So many are remembered.
const MOST: usize = 8;

/// What is known of the frames that a function sends with a header of this kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Who sends them.
    pub(crate) nic: usize,
    /// Their first header: both addresses and the VLAN, by which switches and lists go.
    pub(crate) link: Link,
    /// The longest that was looked at.
    pub(crate) longest: usize,
    /// Where they go, if it is there.
    pub(crate) over: Option<Over>,
}

/// Over a cable, and into a function at its other end that has the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over {
    /// The cable, and the side of it that they come from.
    pub(crate) cable: usize,
    pub(crate) from: Port,
    /// Who receives them.
    pub(crate) function: usize,
}

/// The ways that a world remembers.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    known: Vec<Way>,
    /// The place of the next one, once there are so many.
    next: usize,
}

impl Ways {
    /// The way of a frame; `None` if nothing is known of it.
    pub(crate) fn find(&self, nic: usize, link: Link, length: usize) -> Option<Option<Over>> {
        let same = |way: &&Way| way.nic == nic && way.link == link;
        let way = self.known.iter().find(same)?;
        (length <= way.longest).then_some(way.over)
    }

    /// One more, in place of what was known of the same frames.
    pub(crate) fn add(&mut self, way: Way) {
        let same = |known: &&mut Way| known.nic == way.nic && known.link == way.link;
        if let Some(known) = self.known.iter_mut().find(same) {
            *known = way;
        } else if self.known.len() < MOST {
            self.known.push(way);
        } else {
            self.known[self.next] = way;
            self.next = (self.next + 1) % MOST;
        }
    }

    /// Something has happened.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}
