//! The driver owns the instance, takes in its events and wakes tasks.

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

use super::endpoint::Handle;
use super::error::Error;
use super::table::Shared;
use crate::open::NotClosed;
use crate::{Ia, ia_close};

/// Maximum number of connection events and connection requests queued between two turns.
const CONNECTION_EVENTS: u32 = 4096;

/// Owns an instance whose operations are futures. Closing or dropping the driver closes the instance and ends all its
/// futures.
pub struct Driver {
    shared: Rc<Shared>,
}

/// The result of [`Driver::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "tasks may have been woken"]
pub enum Turn {
    /// Events were taken in. Run the tasks, then call [`Driver::turn`] again.
    Taken,
    /// There was no event, and the instance is armed: sleep on the descriptor, at most for this time. If a task uses
    /// a handle of the driver before the sleep, call [`Driver::turn`] again first.
    Armed(Duration),
}

/// The instance could not get a driver. It is unchanged.
#[derive(Debug)]
pub struct Refused {
    /// The instance.
    pub ia: Box<Ia>,
    /// Reason.
    pub error: Error,
}

impl Driver {
    /// Creates a driver of an instance, for up to `transfers` transfers in flight.
    ///
    /// # Errors
    /// [`Refused`]: the device has no room for two EVDs, one of which holds `transfers` events, or for a PZ.
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

    /// Returns a handle, which makes endpoints, listeners and pools.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Rc::clone(&self.shared))
    }

    /// Returns the descriptor to sleep on after [`Turn::Armed`].
    ///
    /// # Errors
    /// Those of [`Ia::descriptor`](dat_core::Ia::descriptor).
    pub fn descriptor(&mut self) -> Result<Descriptor, Error> {
        self.shared
            .with(|core| core.ia()?.descriptor().map_err(Error::Dat))
    }

    /// Takes in a bounded number of events and wakes their tasks. If there is no event, arms the instance.
    ///
    /// # Errors
    /// [`Error::Dead`]: no more events can come. DAT's error of arming the instance.
    pub fn turn(&mut self) -> Result<Turn, Error> {
        let armed = self.turn_then(|armed| armed.timeout())?;
        Ok(armed.map_or(Turn::Taken, Turn::Armed))
    }

    /// Takes in events like [`Driver::turn`]. If there are none, calls `idle`.
    fn turn_then<T>(
        &mut self,
        idle: impl FnOnce(Armed<'_, MlxProvider>) -> T,
    ) -> Result<Option<T>, Error> {
        self.shared.end_regions();
        self.shared.with(|core| {
            // An endpoint whose earlier free failed may have ended now, which wakes tasks without an event.
            if core.take_in()? > 0 || core.wakes_somebody() {
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

    /// Calls [`Driver::turn`] in a loop, as a task beside the others. When there are no events it awaits the future
    /// that `sleep` returns. That future gets the longest time to sleep, and should be ready when the time is over or
    /// the descriptor is readable. The loop drops it early when another task posts something. Returns the error that
    /// ends the loop.
    pub async fn run<S: Future<Output = ()>>(
        &mut self,
        mut sleep: impl FnMut(Duration) -> S,
    ) -> Error {
        loop {
            let idle = poll_fn(|cx| match self.turn() {
                Ok(Turn::Taken) => {
                    // Let the other tasks run first.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Ok(Turn::Armed(longest)) => Poll::Ready(Ok(longest)),
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

    /// Calls [`Driver::turn`] until a future is ready, and sleeps by the clock of the function. This is for programs
    /// without a runtime, and for virtual time. A wake-up from another source is noticed when the sleep ends, after
    /// one second at most.
    ///
    /// # Errors
    /// Those of [`Driver::turn`].
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
            self.turn_then(|armed| {
                if !woken.0.load(Ordering::Acquire) {
                    armed.sleep();
                }
            })?;
        }
    }

    /// Closes the instance abruptly. Transfers in flight end with [`Error::Closed`], and their buffers are returned:
    /// the card no longer uses them.
    ///
    /// # Errors
    /// Those of [`ia_close`]. The futures end even then. If the device could not be stopped (see `CloseReport` and
    /// the log), it may still access buffers that were in flight.
    pub fn close(self) -> Result<CloseReport, NotClosed> {
        while self
            .shared
            .with(|core| core.take_in())
            .is_ok_and(|taken| taken > 0)
        {}
        // PANIC: only this and `drop` take it, and both consume the driver.
        let ia = self
            .shared
            .with(|core| core.take_ia())
            .expect("an instance");
        let closed = ia_close(ia, CloseFlags::Abrupt);
        self.shared.with(|core| core.all_is_over());
        closed
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.shared.with(|core| core.take_ia()));
        self.shared.with(|core| core.all_is_over());
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

/// Creates the objects of a driver. After an error nothing is left.
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

/// The waker of [`Driver::block_on`].
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}
