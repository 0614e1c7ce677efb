//! Asynchronous events of a controller (Base specification, "Asynchronous Event Request command").
//!
//! An event waits until a request is there for it. Once it was told, others of its kind are held back until the host
//! reads the log page that it names, without RAE. So a host that does not read is told once.

use std::collections::VecDeque;

use crate::nvme::log::page;

/// Requests that may wait at once.
pub const REQUESTS: u8 = 4;

/// Kinds of events that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Namespaces came, went or changed.
    Namespace,
    /// A port reaches a group in another way.
    Access,
    /// What discovery tells has changed.
    Discovery,
    /// A reservation of another host's concerns this one.
    Reservation,
}

const KINDS: [Kind; 4] = [
    Kind::Namespace,
    Kind::Access,
    Kind::Discovery,
    Kind::Reservation,
];

impl Kind {
    /// The bit by which it is asked for; events without one are always told.
    const fn bit(self) -> u32 {
        match self {
            Self::Namespace => 1 << 8,
            Self::Access => 1 << 11,
            Self::Discovery => 1 << 31,
            Self::Reservation => 0,
        }
    }

    /// The log page that has more, and ends it.
    const fn page(self) -> u8 {
        match self {
            Self::Namespace => page::CHANGED_NAMESPACES,
            Self::Access => page::ACCESS,
            Self::Discovery => page::DISCOVERY,
            Self::Reservation => page::RESERVATION,
        }
    }

    /// Dword 0 of the completion: type, information, log page.
    pub(crate) const fn result(self) -> u32 {
        let (kind, information) = match self {
            Self::Namespace => (2, 0x00),
            Self::Access => (2, 0x03),
            Self::Discovery => (2, 0xf0),
            Self::Reservation => (6, 0x00),
        };
        kind | information << 8 | (self.page() as u32) << 16
    }
}

/// Bits of OAES of an I/O controller, and of a discovery controller.
pub const OF_IO: u32 = Kind::Namespace.bit() | Kind::Access.bit();
/// Likewise of a discovery controller.
pub const OF_DISCOVERY: u32 = Kind::Discovery.bit();

/// The events of a controller.
#[derive(Debug, Default)]
pub struct Events {
    /// What the host asked for, [`OF_IO`] or [`OF_DISCOVERY`] of it.
    wanted: u32,
    /// Requests that wait.
    requests: u8,
    waiting: VecDeque<Kind>,
    /// Told, and not read about yet.
    told: u32,
}

impl Events {
    /// What the host asked for.
    #[must_use]
    pub const fn wanted(&self) -> u32 {
        self.wanted
    }

    /// From now on these are asked for.
    pub fn want(&mut self, bits: u32) {
        self.wanted = bits;
    }

    /// A request waits from now on; false if it is one too many.
    pub fn request(&mut self) -> bool {
        let there_is_room = self.requests < REQUESTS;
        if there_is_room {
            self.requests += 1;
        }
        there_is_room
    }

    /// Something has happened. Whether a request can be answered.
    pub fn happened(&mut self, kind: Kind) -> bool {
        let is_wanted = kind.bit() == 0 || self.wanted & kind.bit() != 0;
        if is_wanted && !self.waiting.contains(&kind) {
            self.waiting.push_back(kind);
        }
        self.requests > 0 && self.next().is_some()
    }

    const fn mark(kind: Kind) -> u32 {
        1 << (kind as u32)
    }

    fn next(&self) -> Option<usize> {
        let free = |kind: &Kind| self.told & Self::mark(*kind) == 0;
        self.waiting.iter().position(free)
    }

    /// The event that a request is answered with, and the request is none any more.
    pub fn take(&mut self) -> Option<u32> {
        if self.requests == 0 {
            return None;
        }
        let kind = self.waiting.remove(self.next()?)?;
        self.requests -= 1;
        self.told |= Self::mark(kind);
        Some(kind.result())
    }

    /// A log page was read: events of its kind are told again. Whether a request can be answered with one that was
    /// held back.
    pub fn read(&mut self, page: u8) -> bool {
        for kind in KINDS.into_iter().filter(|kind| kind.page() == page) {
            self.told &= !Self::mark(kind);
        }
        self.requests > 0 && self.next().is_some()
    }

    /// The controller is disabled: nothing is asked for, nothing waits, and no request does.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux and libnvme know them: 0x0004_0002, 0x000c_0302, 0x0070_f002.
    #[test]
    fn results_have_type_information_and_page() {
        assert_eq!(Kind::Namespace.result(), 0x0004_0002);
        assert_eq!(Kind::Access.result(), 0x000c_0302);
        assert_eq!(Kind::Discovery.result(), 0x0070_f002);
    }

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = Events::default();
        events.want(OF_IO);
        assert!(!events.happened(Kind::Namespace), "no request waits");
        assert!(events.request());
        assert_eq!(events.take(), Some(0x0004_0002));
        assert!(events.request());
        assert!(!events.happened(Kind::Namespace));
        assert_eq!(events.take(), None);
        assert!(
            events.happened(Kind::Access),
            "another kind is not held back"
        );
        assert_eq!(events.take(), Some(0x000c_0302));
        assert!(events.request());
        events.read(page::CHANGED_NAMESPACES);
        assert_eq!(events.take(), Some(0x0004_0002));
    }

    #[test]
    fn events_that_nobody_asked_for_and_requests_beyond_four_are_none() {
        let mut events = Events::default();
        for _ in 0..REQUESTS {
            assert!(events.request());
        }
        assert!(!events.request());
        assert!(!events.happened(Kind::Namespace));
        assert_eq!(events.take(), None);
    }
}
