//! Removal of a handover from systemd's descriptor store, and the pace of messages to the service manager.

use super::name::{CANARY, FILE};
use crate::clock::Instant;
use crate::service_manager::{Messenger, ServiceManager, ServiceManagerError};

/// Number of messages between two barriers. Descriptors that are on their way count against the limit of this process
/// (unix(7), `ETOOMANYREFS`).
const MESSAGES_AT_ONCE: usize = 128;

/// Removes the file of a handover and then the other names from the store, and waits until that is done.
pub(super) fn remove_all(
    manager: &ServiceManager,
    names: &[String],
    deadline: Instant,
) -> Result<(), ServiceManagerError> {
    let messenger = manager.connect()?;
    messenger.forget(FILE, deadline)?;
    messenger.forget(CANARY, deadline)?;
    let mut pace = Pace::new(&messenger, deadline);
    for name in names {
        messenger.forget(name, deadline)?;
        pace.sent_one()?;
    }
    messenger.barrier(deadline)
}

/// Inserts barriers between messages.
pub(super) struct Pace<'a> {
    messenger: &'a Messenger,
    deadline: Instant,
    sent: usize,
}

impl<'a> Pace<'a> {
    pub(super) const fn new(messenger: &'a Messenger, deadline: Instant) -> Self {
        Self {
            messenger,
            deadline,
            sent: 0,
        }
    }

    /// Counts a message. After every [`MESSAGES_AT_ONCE`] messages, waits until all are handled.
    pub(super) fn sent_one(&mut self) -> Result<(), ServiceManagerError> {
        self.sent += 1;
        if self.sent.is_multiple_of(MESSAGES_AT_ONCE) {
            self.messenger.barrier(self.deadline)?;
        }
        Ok(())
    }
}
