//! A thread that looks after an adapter while the program's own threads are busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use dat_core::provider::Provider;
use dat_core::{Arm, AsyncEvent, CloseFlags, Event, IaConfig, Waker};

use crate::Ia;
use crate::open::{Adapter, OpenError};

/// A thread of the library with an instance of its own. It does the work that all instances have in common: commands of
/// the firmware, the health of the device, and the connection manager, which answers requests, repetitions and
/// farewells of peers. Work of one instance alone waits for that instance.
///
/// A program needs no attendant as long as one of its threads polls or waits in some instance. The adapter stays open
/// while there is an attendant; dropping it ends the thread. If the device dies or is wanted back, the thread ends by
/// itself.
///
/// It is for functions that run in real time. In virtual time (`sim:` names without a link) whoever sleeps moves time
/// on, and a thread that only sleeps moves it as fast as the machine can.
#[derive(Debug)]
#[must_use = "dropping it ends the thread"]
pub struct Attendant {
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
    /// Starts a thread that looks after the adapter.
    ///
    /// # Errors
    /// As [`Adapter::instance`]; DAT_INSUFFICIENT_RESOURCES: no descriptor is left. [`OpenError::Thread`]: the system
    /// starts no thread; nothing has changed.
    pub fn attended(&self) -> Result<Attendant, OpenError> {
        let mut ia = self.instance(IaConfig::default())?;
        // What it sleeps on: from here on there is nothing that could be missing.
        ia.descriptor()?;
        let over = Arc::new(AtomicBool::new(false));
        let waker = Wake(ia.provider().waker());
        let told = Arc::clone(&over);
        // If there is no thread the instance is dropped with what it would have run, which ends it.
        let thread = Builder::new()
            .name("udapl-attendant".to_owned())
            .spawn(move || attend(ia, &told))
            .map_err(|error| OpenError::Thread {
                name: self.name().to_owned(),
                error,
            })?;
        Ok(Attendant {
            over,
            waker,
            thread: Some(thread),
        })
    }
}

fn attend(mut ia: Ia, over: &AtomicBool) {
    let evd = ia.async_evd();
    while !over.load(Ordering::Acquire) {
        match ia.arm(&[evd]) {
            // Whoever said it is over meanwhile has had its call taken by the arming.
            Ok(Arm::Armed(armed)) if !over.load(Ordering::Acquire) => armed.sleep(),
            Ok(Arm::Armed(_)) => break,
            Ok(Arm::Ready) => {
                while let Ok(Some(event)) = ia.evd_dequeue(evd) {
                    // The instances of the program are told, too.
                    if matches!(event, Event::Async(AsyncEvent::IaCatastrophic)) {
                        return end(ia);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the attendant of an adapter cannot sleep, and ends");
                return end(ia);
            }
        }
    }
    end(ia);
}

fn end(ia: Ia) {
    if let Err(error) = crate::ia_close(ia, CloseFlags::Abrupt) {
        tracing::warn!(%error, "the instance of an attendant");
    }
}

impl Attendant {
    /// Whether the thread still looks after the adapter.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        (self.waker.0)();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the attendant of an adapter panicked");
        }
    }
}
