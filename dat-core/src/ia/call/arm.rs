//! Event loops: one descriptor to sleep on, and a way to sleep that loses no wake-up.
//!
//! ```text
//! loop {
//!     match ia.arm(&[events])? {
//!         Arm::Ready => while let Ok(Some(event)) = ia.evd_dequeue(events) { /* ... */ },
//!         Arm::Armed(armed) => poll(armed.as_fd(), armed.timeout()),
//!     }
//! }
//! ```
//!
//! An event that arrives between the last poll of an EVD and the sleep has to end the sleep. So `Ia::arm` first
//! requests interrupts from the device and then polls the EVDs again. A further poll of the device's event queue would
//! disarm the completion queues. Therefore an [`Armed`] borrows the IA: while the caller may sleep, no call can poll.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{DatError, DatResult, Subtype};
use crate::handle::EvdHandle;
use crate::ia::instance::Ia;
use crate::object::evd::mode::EvdInput;
use crate::provider::{Nanos, Provider, ProviderError};

/// A provider that has a descriptor which signals its interrupts.
pub trait Descriptor: Provider {
    /// Type of the descriptor; its clones refer to the same one.
    type Fd: AsFd + Clone;
    /// Returns the descriptor. It is readable while [`Provider::progress`] has work to do.
    ///
    /// # Errors
    /// The system has no descriptor left.
    fn descriptor(&mut self) -> Result<Self::Fd, ProviderError>;
    /// Clears the descriptor's readable state. A caller that has slept calls this before it polls EVDs.
    fn woken(&mut self);
}

/// Result of [`Ia::arm`].
#[derive(Debug)]
#[must_use]
pub enum Arm<'a, P: Descriptor> {
    /// At least one EVD has events.
    Ready,
    /// No EVD has events; the descriptor signals the next one.
    Armed(Armed<'a, P>),
}

/// An armed IA without events, on whose descriptor the caller can sleep.
#[must_use]
pub struct Armed<'a, P: Descriptor> {
    ia: &'a mut Ia<P>,
    descriptor: P::Fd,
    until: Nanos,
}

impl<P: Descriptor> Ia<P> {
    /// Returns this instance's descriptor, for an event loop. The descriptor signals events only after [`Ia::arm`].
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no descriptor left.
    pub fn descriptor(&mut self) -> DatResult<P::Fd> {
        let made = self.provider.descriptor();
        made.map_err(|error| {
            self.note_device_error("a descriptor for an event loop", &error);
            DatError::resources(Subtype::ResourceMemory)
                .because("no descriptor is left; see last_device_error")
        })
    }

    /// Polls several EVDs, as a wait does. If none has events, arms everything that can bring an event to one of them.
    /// After that, the next event, or work for [`Ia::progress`], makes the descriptor readable. It stays readable until
    /// the IA is armed again. An UNSIGNALLED completion makes it readable too, although it is no notification event. A
    /// receive that is not solicited does not, if all DTO streams of the EVD are SOLICITED_WAIT.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_STATE: |EVD_WAITER another waiter is on one of the EVDs, |EVD_UNWAITABLE one is
    /// unwaitable. The errors of [`Ia::descriptor`]. On an error nothing is armed.
    pub fn arm(&mut self, evds: &[EvdHandle]) -> DatResult<Arm<'_, P>> {
        for evd in evds {
            let queue = self.evd(*evd)?;
            queue.mode.next(EvdInput::Wait).map_err(DatError::state)?;
        }
        let descriptor = self.descriptor()?;
        let slept = core::mem::take(&mut self.may_sleep);
        if slept {
            self.woke();
            // The latency of the wake-up is measured before any poll consumes its completion.
            evds.iter().for_each(|evd| self.time_wakeup(evd.key));
        }
        self.provider.woken();
        self.progress();
        let ready = self.have_events(evds);
        if slept {
            for evd in evds {
                let queue = &mut self.evds[evd.key];
                queue.wakeups += u64::from(queue.len() > 0);
            }
        }
        if ready {
            return Ok(Arm::Ready);
        }
        let mut quiet = true;
        for evd in evds {
            quiet &= self.arm_watched(evd.key);
        }
        for evd in evds {
            self.arm_own(evd.key);
        }
        // From here on the device's event queue may not be polled: consuming an event would disarm its completion
        // queue.
        if self.have_events(evds) {
            return Ok(Arm::Ready);
        }
        let until = self.sleep_deadline(self.provider.now(), quiet, None);
        self.may_sleep = true;
        Ok(Arm::Armed(Armed {
            ia: self,
            descriptor,
            until,
        }))
    }

    fn have_events(&mut self, evds: &[EvdHandle]) -> bool {
        evds.iter().any(|evd| {
            self.drain_with_feeders(evd.key);
            self.evds[evd.key].len() > 0
        })
    }
}

impl<P: Descriptor> AsFd for Armed<'_, P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<P: Descriptor> Armed<'_, P> {
    /// Returns the longest permitted sleep: at most one second, and not beyond the next timer of a connection or of the
    /// device.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.until.saturating_sub(self.ia.provider.now()))
    }

    /// Sleeps until the IA has work, for a program that waits for nothing else. The sleep uses the device's clock. With
    /// a simulated device only this sleep advances the clock, so only it brings events.
    pub fn sleep(self) {
        if let Err(error) = self.ia.provider.wait(self.until) {
            self.ia.device_died(&error);
        }
    }
}

impl<P: Descriptor> core::fmt::Debug for Armed<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let until = &self.until;
        f.debug_struct("Armed")
            .field("until", until)
            .finish_non_exhaustive()
    }
}
