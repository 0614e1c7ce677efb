//! Asynchronous events (Base specification, "Asynchronous Event Request command").
//!
//! One request is always outstanding. An event comes as its completion. Reading the log page that the event names
//! clears the event, and the next request asks for the next one. So a controller that reports events without end costs
//! a program one event for each call of [`Controller::next_event`].

use nvme_types::command::{ALL_NAMESPACES, admin};
use nvme_types::log::page;
use nvme_types::{Sqe, feature};

use crate::controller::{Controller, EVENT};
use crate::error::NvmeError;
use crate::prp::Piece;

/// Critical warnings of SMART, which a host enables one by one: spare blocks, temperature, reliability, read-only,
/// backup of volatile memory.
const WARNINGS: u32 = 0x1f;
/// Notice that the attributes of a namespace have changed.
const NAMESPACES_CHANGED: u32 = 1 << 8;
/// Maximum number of namespaces in the log page of those that have changed.
const MOST_CHANGED: usize = 1024;
/// Bytes that are read of a log page whose content is not used.
const LEAST_BYTES: usize = 64;

/// An event that a controller has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The controller has found an error of its own, such as a doorbell with an impossible value.
    Error {
        /// Kind of the error (Base specification, "Asynchronous Event Information - Error Status").
        information: u8,
    },
    /// A critical warning of SMART has begun or ended.
    Health {
        /// The warnings that are there now, as bits: 0 spare blocks, 1 temperature, 2 reliability, 3 read-only, 4
        /// backup of volatile memory.
        warnings: u8,
    },
    /// Namespaces have changed, appeared or vanished.
    Namespaces {
        /// Their numbers; `None` if there are more than the log page has room for.
        changed: Option<Vec<u32>>,
    },
    /// An event of another kind.
    Other {
        /// Event type.
        kind: u8,
        /// Event information.
        information: u8,
        /// Log page that the event names.
        page: u8,
    },
}

impl Controller {
    /// Enables the events that the controller has, and asks for the first one. A controller that has none refuses that,
    /// and works all the same.
    pub(crate) fn begin_events(&mut self, offered: u32) -> Result<(), NvmeError> {
        let mut sqe = Sqe::of(admin::SET_FEATURES);
        sqe.cdw10 = u32::from(feature::EVENTS).into();
        sqe.cdw11 = (WARNINGS | offered & NAMESPACES_CHANGED).into();
        match self.admin(sqe) {
            Ok(_) => self.ask_for_event(),
            Err(error @ NvmeError::Status { .. }) => {
                tracing::debug!(%error, "no asynchronous events");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn ask_for_event(&mut self) -> Result<(), NvmeError> {
        self.submit_admin(Sqe::of(admin::ASYNC_EVENT), &[], EVENT)
    }

    /// Returns the next event that the controller has reported; `None` if there is none. Reads the log page of an
    /// event, which may take as long as an admin command may ([`Config::admin_limit`](crate::Config::admin_limit)).
    ///
    /// # Errors
    /// [`NvmeError`]. After [`NvmeError::Status`] the event is lost, and the next one is asked for.
    pub fn next_event(&mut self) -> Result<Option<Event>, NvmeError> {
        self.take_event()?;
        let Some(ended) = self.event.take() else {
            return Ok(None);
        };
        if !ended.status.is_success() {
            // The controller takes no more requests, or the request was aborted.
            tracing::warn!(status = %ended.status, "no more asynchronous events");
            return Ok(None);
        }
        let event = self.read_event(ended.result);
        self.ask_for_event()?;
        event.map(Some)
    }

    /// Reads the log page of an event. `result`: dword 0 of the completion.
    fn read_event(&mut self, result: u32) -> Result<Event, NvmeError> {
        // CAST: fields of 3 and 8 bits.
        #[expect(clippy::cast_possible_truncation, reason = "the fields that are meant")]
        let (kind, information, page) =
            (result as u8 & 7, (result >> 8) as u8, (result >> 16) as u8);
        match (kind, page) {
            (0, page::ERRORS) => {
                self.read_log(page, LEAST_BYTES)?;
                Ok(Event::Error { information })
            }
            (1, page::HEALTH) => {
                self.read_log(page, 512)?;
                let warnings = self.data.read_obj(0);
                Ok(Event::Health { warnings })
            }
            (2, page::CHANGED_NAMESPACES) => {
                self.read_log(page, MOST_CHANGED * 4)?;
                let list: [zerocopy::little_endian::U32; MOST_CHANGED] = self.data.read_obj(0);
                let numbers = list.iter().map(|nsid| nsid.get());
                let changed: Vec<u32> = numbers.take_while(|nsid| *nsid != 0).collect();
                let is_whole = changed.first() != Some(&ALL_NAMESPACES);
                Ok(Event::Namespaces {
                    changed: is_whole.then_some(changed),
                })
            }
            _ => {
                if page != 0 {
                    self.read_log(page, LEAST_BYTES)?;
                }
                Ok(Event::Other {
                    kind,
                    information,
                    page,
                })
            }
        }
    }

    /// Reads the first bytes of a log page into the memory for data, and clears the event.
    fn read_log(&mut self, page: u8, bytes: usize) -> Result<(), NvmeError> {
        self.data.fill(0, bytes, 0);
        let mut sqe = Sqe::of(admin::GET_LOG_PAGE);
        sqe.nsid = ALL_NAMESPACES.into();
        // CAST: at most 4 KiB.
        #[expect(clippy::cast_possible_truncation, reason = "at most 4 KiB")]
        let length = bytes as u32;
        sqe.cdw10 = (u32::from(page) | (length / 4 - 1) << 16).into();
        let data = Piece {
            iova: self.data.iova(),
            bytes: length,
        };
        self.admin_command(sqe, &[data])?;
        Ok(())
    }
}
