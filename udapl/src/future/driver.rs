//! The driver owns the instance, takes its events in, and wakes tasks.

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
use crate::{Ia, NotClosed, ia_close};

/// Events of connections, and requests to connect, that may lie there between two turns.
const CONNECTION_EVENTS: u32 = 4096;

/// Owns an instance whose operations are futures. When it is closed or dropped, the instance ends, and all futures with
/// it.
pub struct Driver {
    shared: Rc<Shared>,
}

/// The result of [`Driver::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "tasks may have been woken"]
pub enum Turn {
    /// Events were taken in. Let the tasks run, then call [`Driver::turn`] again.
    Taken,
    /// There was none, and the instance is armed: sleep on the descriptor, this long at most. If a handle of the driver
    /// is used before the sleep, call [`Driver::turn`] again first.
    Armed(Duration),
}

/// Why an instance cannot be driven, with the instance, unchanged.
#[derive(Debug)]
pub struct Refused {
    /// The instance.
    pub ia: Box<Ia>,
    /// Why not.
    pub error: Error,
}

impl Driver {
    /// Drives an instance, with room for `transfers` transfers in flight.
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

    /// A handle, to make endpoints, listeners and pools with.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Rc::clone(&self.shared))
    }

    /// The descriptor to sleep on after [`Turn::Armed`].
    ///
    /// # Errors
    /// As [`Ia::descriptor`](dat_core::Ia::descriptor).
    pub fn descriptor(&mut self) -> Result<Descriptor, Error> {
        self.shared
            .with(|core| core.ia()?.descriptor().map_err(Error::Dat))
    }

    /// Takes in events, up to some number, and wakes the tasks they are for. If there is none, arms the instance.
    ///
    /// # Errors
    /// [`Error::Dead`], once nothing more can come. DAT's refusal to arm the instance.
    pub fn turn(&mut self) -> Result<Turn, Error> {
        let armed = self.turn_then(|armed| armed.timeout())?;
        Ok(armed.map_or(Turn::Taken, Turn::Armed))
    }

    /// Takes in what is there ([`Driver::turn`]); `idle` is what is done if nothing is.
    fn turn_then<T>(
        &mut self,
        idle: impl FnOnce(Armed<'_, MlxProvider>) -> T,
    ) -> Result<Option<T>, Error> {
        self.shared.end_regions();
        self.shared.with(|core| {
            // What ended without an event, an endpoint that was refused its end before, has woken tasks too.
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

    /// Calls [`Driver::turn`] again and again, as a task beside the others. When there are no events it awaits the
    /// future that `sleep` returns. That future gets the longest time to sleep, and should be ready when the time is
    /// over or the descriptor is readable. It is dropped early when another task posts something. Returns why it cannot
    /// go on.
    pub async fn run<S: Future<Output = ()>>(
        &mut self,
        mut sleep: impl FnMut(Duration) -> S,
    ) -> Error {
        loop {
            let idle = poll_fn(|cx| match self.turn() {
                Ok(Turn::Taken) => {
                    // Tasks first.
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

    /// Calls [`Driver::turn`] until a future is ready, and sleeps by the clock of the function: for programs without a
    /// runtime, and for virtual time. If something else wakes the future, that is noticed when the sleep ends, after a
    /// second at most.
    ///
    /// # Errors
    /// As [`Driver::turn`].
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

    /// Closes the instance abruptly. Transfers in flight end with [`Error::Closed`], and their buffers come back: the
    /// card no longer uses them.
    ///
    /// # Errors
    /// As [`ia_close`]. The futures have ended all the same. If the device could not be stopped (`CloseReport`, the
    /// log), it may go on with buffers that were in flight.
    pub fn close(self) -> Result<CloseReport, NotClosed> {
        while self
            .shared
            .with(|core| core.take_in())
            .is_ok_and(|taken| taken > 0)
        {}
        // PANIC: only this and the drop take it, and both end the driver.
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

/// What a driver needs; all of it or nothing.
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
    // PANIC: there are two.
    Ok((zone, [evds[0], evds[1]]))
}

/// The waker of [`Driver::block_on`].
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}
