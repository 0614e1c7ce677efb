//! Events and event requests that outlive their process ([`crate::model::parking`]).

use super::{Events, KINDS, Kind, OF_DISCOVERY, REQUESTS, SETTABLE_IO};
use crate::model::refusal::ModelResumeError as Error;
use crate::model::snapshot::EventsSnapshot;

impl Events {
    /// Writes the events and event requests out.
    pub(in crate::model) fn park(&self) -> EventsSnapshot {
        let is_reported = |kind: &Kind| self.reported & Self::mark(*kind) != 0;
        EventsSnapshot {
            wanted: self.wanted,
            requests: self.requests,
            waiting: self.waiting.iter().copied().collect(),
            reported: KINDS.into_iter().filter(is_reported).collect(),
        }
    }

    /// Goes on with parked events and event requests. `of` is the controller, for errors.
    pub(in crate::model) fn resume(
        of: &str,
        parked: &EventsSnapshot,
        is_discovery: bool,
    ) -> Result<Self, Error> {
        let requests = ("requests", parked.requests.into(), REQUESTS.into());
        Error::check_range(of, [requests])?;
        let (bits, kinds): (_, &[Kind]) = if is_discovery {
            (OF_DISCOVERY, &[Kind::Discovery])
        } else {
            (
                SETTABLE_IO,
                &[Kind::Namespace, Kind::Access, Kind::Reservation],
            )
        };
        let what = format!("wanted is {:#x}, of {bits:#x}", parked.wanted);
        Error::check(parked.wanted & !bits == 0, of, what)?;
        let marks = |name, list: &[Kind]| {
            let mut marks = 0;
            for kind in list {
                let is_possible = kinds.contains(kind) && marks & Self::mark(*kind) == 0;
                let what = format!("{name}: event {kind:?} is impossible, or twice");
                Error::check(is_possible, of, what)?;
                marks |= Self::mark(*kind);
            }
            Ok::<_, Error>(marks)
        };
        marks("waiting", &parked.waiting)?;
        Ok(Self {
            wanted: parked.wanted,
            requests: parked.requests,
            waiting: parked.waiting.iter().copied().collect(),
            reported: marks("reported", &parked.reported)?,
        })
    }
}
