//! The driver: owns an instance, processes its events and wakes tasks.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dat_core::{Arm, Armed, CloseFlags, DatResult, EvdFlags, EvdHandle, PzHandle};
use dat_mlx::MlxProvider;
use driver::Descriptor;
use hw_mlx::CloseReport;

use super::error::Error;
use super::handle::Handle;
use super::table::Shared;
use crate::open::NotClosed;
use crate::{Ia, ia_close};

/// Maximum number of connection events and connection requests queued between two calls of `Driver::run_once`.
const CONNECTION_EVENTS: u32 = 4096;

/// A driver owns an instance whose operations are futures. Closing or dropping the driver closes the instance and ends
/// all its futures.
pub struct Driver {
    shared: Rc<Shared>,
}

/// The result of [`Driver::run_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "tasks may have been woken"]
pub enum Progress {
    /// Events were processed. Run the tasks, then call [`Driver::run_once`] again.
    Taken,
    /// There was no event, and the instance is armed. Sleep on the descriptor, at most for this time. If a task uses
    /// a handle of the driver before the sleep, call [`Driver::run_once`] again first.
    Armed(Duration),
}

/// Error: the driver of an instance could not be created. The instance is unchanged.
#[derive(Debug)]
pub struct Refused {
    /// The instance.
    pub ia: Box<Ia>,
    /// Reason of the failure.
    pub error: Error,
}

impl Driver {
    /// Creates a driver of an instance, for up to `transfers` transfers in flight.
    ///
    /// # Errors
    /// [`Refused`]: the device cannot create a PZ and two EVDs, one of which has a capacity of `transfers` events.
    pub fn new(mut ia: Ia, transfers: u32) -> Result<Self, Refused> {
        match objects(&mut ia, transfers) {
            Ok((zone, evds)) => Ok(Self {
                shared: Shared::new(ia, zone, evds, transfers),
            }),
            Err(error) => Err(Refused {
                ia: Box::new(ia),
                error: Error::Dat(error),
            }),
        }
    }

    /// Returns a handle, which creates endpoints, listeners and pools.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Rc::clone(&self.shared))
    }

    /// Returns the descriptor to sleep on after [`Progress::Armed`].
    ///
    /// # Errors
    /// Those of [`Ia::descriptor`](dat_core::Ia::descriptor).
    pub fn descriptor(&mut self) -> Result<Descriptor, Error> {
        self.shared
            .with(|core| core.ia()?.descriptor().map_err(Error::Dat))
    }

    /// Processes a limited number of events and wakes their tasks. If there is no event, arms the instance.
    ///
    /// # Errors
    /// [`Error::Dead`]: the instance can no longer be used, and has no more events. DAT's errors of polling the EVDs
    /// and of arming the instance.
    pub fn run_once(&mut self) -> Result<Progress, Error> {
        let armed = self.run_once_or(|armed| armed.timeout())?;
        Ok(armed.map_or(Progress::Taken, Progress::Armed))
    }

    /// Processes events like [`Driver::run_once`]. If there are none, arms the instance and calls `idle`.
    fn run_once_or<T>(
        &mut self,
        idle: impl FnOnce(Armed<'_, MlxProvider>) -> T,
    ) -> Result<Option<T>, Error> {
        self.shared.end_regions();
        self.shared.with(|core| {
            // Freeing an endpoint may have failed before and succeeded now, which wakes tasks without an event.
            if core.poll_evds()? > 0 || core.wakes_tasks() {
                return Ok(None);
            }
            if core.is_dead() {
                return Err(Error::Dead);
            }
            let evds = [core.dtos, core.connections, core.peek()?.async_evd()];
            let result = match core.driven().ok_or(Error::Closed)?.arm(&evds)? {
                Arm::Ready => return Ok(None),
                Arm::Armed(armed) => idle(armed),
            };
            core.is_armed();
            Ok(Some(result))
        })
    }

    /// Calls [`Driver::run_once`] in a loop, as a task beside the others. When there are no events it awaits the future
    /// that `sleep` returns. `sleep` gets the maximum time to sleep. Its future should be ready when that time is over
    /// or when the descriptor is readable. The loop drops the future early when another task makes a call that may
    /// consume events, such as a post. Returns the error that ends the loop.
    pub async fn run<S: Future<Output = ()>>(
        &mut self,
        mut sleep: impl FnMut(Duration) -> S,
    ) -> Error {
        loop {
            let idle = poll_fn(|cx| match self.run_once() {
                Ok(Progress::Taken) => {
                    // Wake this task again and return, so that the other tasks run first.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Ok(Progress::Armed(longest)) => Poll::Ready(Ok(longest)),
                Err(error) => Poll::Ready(Err(error)),
            });
            let longest = match idle.await {
                Ok(longest) => longest,
                Err(error) => return error,
            };
            let mut asleep = pin!(sleep(longest));
            poll_fn(|cx| {
                if self.shared.with(|core| core.disturbed(cx.waker())) {
                    return Poll::Ready(());
                }
                asleep.as_mut().poll(cx)
            })
            .await;
        }
    }

    /// Calls [`Driver::run_once`] until a future is ready, and sleeps by the clock of the function. This is for
    /// programs without a runtime, and for virtual time. If another thread wakes the future during a sleep, the driver
    /// notices that when the sleep ends, after at most one second.
    ///
    /// # Errors
    /// Those of [`Driver::run_once`].
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, Error> {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if woken.0.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                return Ok(output);
            }
            self.run_once_or(|armed| {
                if !woken.0.load(Ordering::Acquire) {
                    armed.sleep();
                }
            })?;
        }
    }

    /// Closes the instance abruptly. Transfers in flight end with [`Error::Closed`], and their buffers are returned,
    /// because the card no longer uses them.
    ///
    /// # Errors
    /// Those of [`ia_close`]. The futures end even then. If the device could not be stopped (see `CloseReport` and
    /// the log), it may still access buffers that were in flight.
    pub fn close(self) -> Result<CloseReport, NotClosed> {
        while self
            .shared
            .with(|core| core.poll_evds())
            .is_ok_and(|taken| taken > 0)
        {}
        // PANIC: only this function and `drop` take the instance, and both consume the driver.
        let ia = self
            .shared
            .with(|core| core.take_ia())
            .expect("an instance");
        let closed = ia_close(ia, CloseFlags::Abrupt);
        self.shared.with(|core| core.end_all());
        closed
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.shared.with(|core| core.take_ia()));
        self.shared.with(|core| core.end_all());
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.shared.with(|core| format!("{:?}", core.driven()));
        f.debug_tuple("Driver")
            .field(&format_args!("{text}"))
            .finish()
    }
}

/// Creates the PZ and the EVDs of a driver. After an error it has freed those that it created.
fn objects(ia: &mut Ia, transfers: u32) -> DatResult<(PzHandle, [EvdHandle; 2])> {
    let zone = ia.pz_create()?;
    let mut evds = Vec::new();
    for (events, streams) in [
        (transfers, EvdFlags::DTO),
        (CONNECTION_EVENTS, EvdFlags::CONNECTION | EvdFlags::CR),
    ] {
        match ia.evd_create(events, streams) {
            Ok(evd) => evds.push(evd),
            Err(error) => {
                for evd in evds {
                    ia.evd_free(evd)?;
                }
                ia.pz_free(zone)?;
                return Err(error);
            }
        }
    }
    // PANIC: the vector has two EVDs.
    Ok((zone, [evds[0], evds[1]]))
}

/// A waker for [`Driver::block_on`]: true if the future must be polled again.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}
