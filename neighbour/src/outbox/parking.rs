//! Queues that are handed over to another process.

use super::Outbox;
use crate::address::AddressError;
use crate::bounds::{self, Bounds};
use crate::config::Config;
use crate::event::Event;
use crate::resume_error::ResumeError;
use crate::wire::ethernet::{LEAST_FRAME_BYTES, MOST_FRAME_BYTES};

impl Outbox {
    /// Describes the frames and the events.
    pub(crate) fn park(&self) -> (Vec<Vec<u8>>, Vec<Event>) {
        let frames = self.frames.iter().cloned().collect();
        (frames, self.events.iter().copied().collect())
    }

    /// Makes the queues again.
    ///
    /// # Errors
    /// A queue is longer than the configuration allows, a frame is not ours, or an address, VLAN or MAC of an event is
    /// not valid.
    pub(crate) fn resume(
        frames: &[Vec<u8>],
        events: &[Event],
        bounds: &Bounds,
        config: &Config,
    ) -> Result<Self, ResumeError> {
        // While the link is down, there are none.
        let most_frames = if bounds.up { config.frames } else { 0 };
        bounds::length("frames", frames.len(), most_frames)?;
        bounds::length("events", events.len(), config.events)?;
        for (number, frame) in frames.iter().enumerate() {
            check_frame(number, frame, bounds)?;
        }
        for (number, event) in events.iter().enumerate() {
            check_event(number, event)?;
        }
        Ok(Self {
            frames: frames.iter().cloned().collect(),
            events: events.iter().copied().collect(),
            ..Self::new(config)
        })
    }
}

/// Checks the length and the source of a frame. Its message is not parsed, because it has no effect on our state.
fn check_frame(number: usize, frame: &[u8], bounds: &Bounds) -> Result<(), ResumeError> {
    let bytes = frame.len();
    let source = frame.get(6..12).unwrap_or_default();
    if (LEAST_FRAME_BYTES..=MOST_FRAME_BYTES).contains(&bytes) && source == bounds.mac {
        return Ok(());
    }
    let facts = format!(
        "{bytes} bytes from {source:02x?}; ours have {LEAST_FRAME_BYTES} to {MOST_FRAME_BYTES} from {:02x?}",
        bounds.mac
    );
    Err(ResumeError::contradiction(format!("frame {number}"), facts))
}

/// Checks the addresses, VLAN and MACs of an event. The caller believes them.
fn check_event(number: usize, event: &Event) -> Result<(), ResumeError> {
    let at = |address, vlan| -> Result<(), AddressError> {
        bounds::node(address)?;
        bounds::vlan(vlan)?;
        Ok(())
    };
    match *event {
        Event::Resolved { address, vlan, mac }
        | Event::Duplicate {
            address, vlan, mac, ..
        } => {
            at(address, vlan)?;
            bounds::station(mac)?;
        }
        Event::Moved {
            address,
            vlan,
            old,
            new,
        } => {
            at(address, vlan)?;
            bounds::station(old)?;
            bounds::station(new)?;
        }
        Event::Unreachable { address, vlan, .. } | Event::Announced { address, vlan } => {
            at(address, vlan)?;
        }
        Event::Echoed { address, bytes, .. } => {
            at(address, None)?;
            if bytes > MOST_FRAME_BYTES {
                let facts =
                    format!("an echo of {bytes} bytes; a frame has at most {MOST_FRAME_BYTES}");
                let item = format!("event {number}");
                return Err(ResumeError::contradiction(item, facts));
            }
        }
    }
    Ok(())
}
