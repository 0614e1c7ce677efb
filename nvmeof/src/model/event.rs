//! Asynchronous events of a controller (Base specification, "Asynchronous Event Request command").
//!
//! An event waits for an event request of the host. After an event was reported, further events of its kind are held
//! back until the host reads the log page that the event names, without RAE. So a host that does not read the page gets
//! only one event of the kind.

mod parking;

use std::collections::VecDeque;

use crate::nvme::log::page;

/// Maximum number of outstanding event requests.
pub const REQUESTS: u8 = 4;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Namespace attributes changed.
    Namespace,
    /// The access of a port to a group changed.
    Access,
    /// The discovery log page changed.
    Discovery,
    /// A notice about a reservation waits.
    Reservation,
}

const KINDS: [Kind; 4] = [
    Kind::Namespace,
    Kind::Access,
    Kind::Discovery,
    Kind::Reservation,
];

impl Kind {
    /// Returns the bit that enables the event, or 0 if the event is always enabled.
    const fn bit(self) -> u32 {
        match self {
            Self::Namespace => 1 << 8,
            Self::Access => 1 << 11,
            Self::Discovery => 1 << 31,
            Self::Reservation => 0,
        }
    }

    /// Returns the log page whose reading clears the event.
    const fn page(self) -> u8 {
        match self {
            Self::Namespace => page::CHANGED_NAMESPACES,
            Self::Access => page::ACCESS,
            Self::Discovery => page::DISCOVERY,
            Self::Reservation => page::RESERVATION,
        }
    }

    /// Returns dword 0 of the completion: event type, event information, log page.
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

/// Events of an I/O controller, as bits of OAES.
pub const OF_IO: u32 = Kind::Namespace.bit() | Kind::Access.bit();
/// Events that a host of an I/O controller may enable: those of OAES, and bits 7:0, critical warnings of SMART, which
/// have no bits in OAES. There are no such warnings here, and SPDK enables them.
pub const SETTABLE_IO: u32 = OF_IO | 0xff;
/// Events of a discovery controller, as bits of OAES.
pub const OF_DISCOVERY: u32 = Kind::Discovery.bit();

/// The events and event requests of a controller.
#[derive(Debug, Default)]
pub struct Events {
    /// Events that the host has enabled, out of [`SETTABLE_IO`] or [`OF_DISCOVERY`].
    wanted: u32,
    /// Number of outstanding event requests.
    requests: u8,
    waiting: VecDeque<Kind>,
    /// Bit mask of the kinds that were reported and whose log page was not read since.
    reported: u32,
}

impl Events {
    /// Returns the events that the host has enabled.
    #[must_use]
    pub const fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Enables exactly these events.
    pub fn want(&mut self, bits: u32) {
        self.wanted = bits;
    }

    /// Adds an event request. Returns false if there are too many already.
    pub fn request(&mut self) -> bool {
        let there_is_room = self.requests < REQUESTS;
        if there_is_room {
            self.requests += 1;
        }
        there_is_room
    }

    /// Takes an event request back.
    pub fn take_back(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    /// Adds an event, unless the host has not enabled its kind or one of its kind waits already. Returns whether an
    /// event request can be answered now.
    pub fn happened(&mut self, kind: Kind) -> bool {
        let is_wanted = kind.bit() == 0 || self.wanted & kind.bit() != 0;
        if is_wanted && !self.waiting.contains(&kind) {
            self.waiting.push_back(kind);
        }
        self.can_answer()
    }

    const fn mark(kind: Kind) -> u32 {
        1 << (kind as u32)
    }

    fn next(&self) -> Option<usize> {
        let free = |kind: &Kind| self.reported & Self::mark(*kind) == 0;
        self.waiting.iter().position(free)
    }

    /// Takes the next event and an event request. Returns dword 0 of the request's completion.
    pub fn take(&mut self) -> Option<u32> {
        if self.requests == 0 {
            return None;
        }
        let kind = self.waiting.remove(self.next()?)?;
        self.requests -= 1;
        self.reported |= Self::mark(kind);
        Some(kind.result())
    }

    /// Records that a log page was read, so that events of its kind are reported again. Returns whether an event
    /// request can be answered with an event that was held back.
    pub fn read(&mut self, page: u8) -> bool {
        for kind in KINDS.into_iter().filter(|kind| kind.page() == page) {
            self.reported &= !Self::mark(kind);
        }
        self.can_answer()
    }

    /// Returns whether an event request can be answered with an event.
    pub(super) fn can_answer(&self) -> bool {
        self.requests > 0 && self.next().is_some()
    }

    /// Returns whether the host has enabled and requested nothing, and read no event, since the last reset.
    pub(super) const fn is_reset(&self) -> bool {
        self.wanted == 0 && self.requests == 0 && self.reported == 0
    }

    /// Clears everything, because the controller is disabled or shut down: the host has enabled no event, and no event
    /// or request waits.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results have the values that Linux and libnvme expect: 0x0004_0002, 0x000c_0302, 0x0070_f002.
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
