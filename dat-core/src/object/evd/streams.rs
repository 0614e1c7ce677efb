//! The event streams that an EVD receives, and the rules for sharing it.
//!
//! The manual pages let a consumer control notification in three ways: each post chooses (UNSIGNALLED), the peer
//! chooses (SOLICITED_WAIT), or waiters count events (EVD_THRESHOLD). The pages allow only one of these ways per EVD,
//! because one waiter cannot be woken by three rules. So all DTO streams of an EVD must have the same completion flags.
//! Streams of other kinds may share the EVD only with DTO streams that count. (uDAPL 1.2, dat_ep_create, "EVD" part of
//! USAGE.) Existing consumers break these rules, so [`crate::IaConfig::strict_evd_sharing`] can disable them.

use crate::types::{CompletionFlags, EvdState};

/// Rule that decides which completions of a queue are notification events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DtoMode {
    /// Every completion notifies; waiters count events.
    Threshold,
    /// Each post chooses, by the UNSIGNALLED flag.
    Unsignalled,
    /// The peer chooses, by the SOLICITED_WAIT flag (receives only).
    Solicited,
}

impl DtoMode {
    pub(crate) const fn of(flags: CompletionFlags) -> Self {
        if flags.contains(CompletionFlags::UNSIGNALLED) {
            Self::Unsignalled
        } else if flags.contains(CompletionFlags::SOLICITED_WAIT) {
            Self::Solicited
        } else {
            Self::Threshold
        }
    }
}

/// An event stream of an EVD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Completions of the receives or of the requests of an endpoint.
    Dto(DtoMode),
    /// Connection events of an endpoint.
    Connection,
    /// Connection requests of a service point, or asynchronous events.
    Other,
}

/// Number of streams of each kind that an EVD receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    threshold: u32,
    unsignalled: u32,
    solicited: u32,
    connection: u32,
    other: u32,
    /// True if the consumer may post events. This stream is always attached, and does not prevent the EVD from being
    /// freed.
    software: bool,
}

impl Streams {
    pub(crate) fn new(software: bool) -> Self {
        Self {
            software,
            ..Self::default()
        }
    }

    fn count(&mut self, stream: Stream) -> &mut u32 {
        match stream {
            Stream::Dto(DtoMode::Threshold) => &mut self.threshold,
            Stream::Dto(DtoMode::Unsignalled) => &mut self.unsignalled,
            Stream::Dto(DtoMode::Solicited) => &mut self.solicited,
            Stream::Connection => &mut self.connection,
            Stream::Other => &mut self.other,
        }
    }

    pub(crate) fn attach(&mut self, stream: Stream) {
        *self.count(stream) += 1;
    }

    pub(crate) fn detach(&mut self, stream: Stream) {
        let count = self.count(stream);
        assert!(
            *count > 0,
            "a {stream:?} stream was detached that was not attached"
        );
        *count -= 1;
    }

    /// Returns the number of endpoints whose connection events this EVD receives.
    pub(crate) const fn connections(&self) -> u32 {
        self.connection
    }

    /// Returns whether any stream prevents the EVD from being freed.
    pub(crate) const fn any(&self) -> bool {
        self.threshold != 0
            || self.unsignalled != 0
            || self.solicited != 0
            || self.connection != 0
            || self.other != 0
    }

    /// Returns whether these streams may share one EVD.
    pub(crate) const fn may_share(&self) -> bool {
        let threshold = self.threshold != 0;
        let unsignalled = self.unsignalled != 0;
        let solicited = self.solicited != 0;
        let other = self.connection != 0 || self.other != 0 || self.software;
        match (threshold, unsignalled, solicited) {
            (false, false, false) | (true, false, false) => true,
            (false, true, false) | (false, false, true) => !other,
            (true, true, _) | (true, _, true) | (_, true, true) => false,
        }
    }

    /// Returns whether notification events release waiters, not a count of events. The only legal threshold is then 1.
    pub(crate) const fn consumer_controlled(&self) -> bool {
        self.unsignalled != 0 || self.solicited != 0
    }

    /// Returns whether only solicited completions can release a waiter. If so, the device needs to interrupt only for
    /// these.
    pub(crate) const fn solicited_only(&self) -> bool {
        self.solicited != 0 && self.unsignalled == 0 && self.threshold == 0
    }

    /// Returns the CONFIG part of the EVD's state.
    pub(crate) const fn config(&self) -> EvdState {
        if self.unsignalled != 0 {
            EvdState::CONFIG_NOTIFY
        } else if self.solicited != 0 {
            EvdState::CONFIG_SOLICITED
        } else {
            EvdState::CONFIG_THRESHOLD
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(of: &[Stream]) -> Streams {
        let mut streams = Streams::default();
        of.iter().for_each(|&stream| streams.attach(stream));
        streams
    }

    #[test]
    fn only_streams_that_count_share_an_evd_with_other_kinds() {
        const T: Stream = Stream::Dto(DtoMode::Threshold);
        const U: Stream = Stream::Dto(DtoMode::Unsignalled);
        const S: Stream = Stream::Dto(DtoMode::Solicited);
        const O: Stream = Stream::Other;
        let legal: &[&[Stream]] = &[&[], &[O], &[T], &[T, T, O], &[U], &[U, U], &[S], &[S, S]];
        let illegal: &[&[Stream]] = &[&[T, U], &[T, S], &[U, S], &[U, O], &[S, O], &[T, U, S]];
        legal
            .iter()
            .for_each(|of| assert!(streams(of).may_share(), "{of:?}"));
        illegal
            .iter()
            .for_each(|of| assert!(!streams(of).may_share(), "{of:?}"));
    }

    #[test]
    fn software_events_count_as_another_kind() {
        let mut fed = Streams::new(true);
        fed.attach(Stream::Dto(DtoMode::Unsignalled));
        assert!(!fed.may_share());
        assert!(!Streams::new(true).any(), "but keep no EVD alive");
    }
}
