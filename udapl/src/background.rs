//! A thread that serves an adapter while the program's own threads do something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use dat_core::provider::Provider;
use dat_core::{Arm, AsyncEvent, CloseFlags, Event, IaConfig, Waker};
use driver::HeldSignals;

use crate::Ia;
use crate::open::{Adapter, OpenError};

/// A thread of the library with an instance of its own. The thread does the work that all instances share: firmware
/// commands, health polling and the connection manager, which answers REQs, retransmissions and DREQs of peers. The
/// thread does not poll completions of other instances; their threads do that.
///
/// A program needs no such thread as long as one of its own threads polls or waits in some instance. The adapter stays
/// open while this thread runs. Dropping this handle ends the thread. The thread ends by itself if the device dies, if
/// the system requests the release of the device, or if the thread cannot sleep.
///
/// Use it only for functions that run in real time. In virtual time (functions of a `fabric::Fabric`, `sim:` names with
/// `,time=virtual`) a sleeping thread advances the clock, and a thread that only sleeps advances the clock as fast as
/// the machine can.
#[derive(Debug)]
#[must_use = "dropping it ends the thread"]
pub struct BackgroundThread {
    over: Arc<AtomicBool>,
    waker: Wake,
    thread: Option<JoinHandle<()>>,
}

struct Wake(Waker);

impl core::fmt::Debug for Wake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Wake").finish()
    }
}

impl Adapter {
    /// Starts a thread that serves the adapter.
    ///
    /// # Errors
    /// Those of [`Adapter::instance`]. DAT_INSUFFICIENT_RESOURCES: no file descriptor is left. [`OpenError::Thread`]:
    /// the system cannot start a thread; nothing has changed.
    pub fn background_thread(&self) -> Result<BackgroundThread, OpenError> {
        let mut ia = self.instance(IaConfig::default())?;
        // The descriptor that the thread sleeps on is created here, so that nothing can fail in the thread.
        ia.descriptor()?;
        let over = Arc::new(AtomicBool::new(false));
        let waker = Wake(ia.provider().waker());
        let ends = Arc::clone(&over);
        // The thread inherits the blocked signals, so the program's signals go to the program's threads.
        let _held = HeldSignals::hold();
        // If the thread cannot start, its closure is dropped, and so is the instance.
        let thread = Builder::new()
            .name("udapl-progress".to_owned())
            .spawn(move || run(ia, &ends))
            .map_err(|error| OpenError::Thread {
                name: self.name().to_owned(),
                error,
            })?;
        Ok(BackgroundThread {
            over,
            waker,
            thread: Some(thread),
        })
    }
}

fn run(mut ia: Ia, over: &AtomicBool) {
    let evd = ia.async_evd();
    while !over.load(Ordering::Acquire) {
        match ia.arm(&[evd]) {
            // If `drop` set `over` before the arming, the arming has consumed its wake-up, so the thread must not
            // sleep.
            Ok(Arm::Armed(armed)) if !over.load(Ordering::Acquire) => armed.sleep(),
            Ok(Arm::Armed(_)) => break,
            Ok(Arm::Ready) => {
                while let Ok(Some(event)) = ia.evd_dequeue(evd) {
                    // The program's own instances get this event, too.
                    if matches!(event, Event::Async(AsyncEvent::IaCatastrophic)) {
                        return end(ia);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the background thread of an adapter cannot sleep, and ends");
                return end(ia);
            }
        }
    }
    end(ia);
}

fn end(ia: Ia) {
    if let Err(error) = crate::ia_close(ia, CloseFlags::Abrupt) {
        tracing::warn!(%error, "the instance of a background thread did not close");
    }
}

impl BackgroundThread {
    /// Returns whether the thread is still running.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        (self.waker.0)();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread of an adapter panicked");
        }
    }
}
