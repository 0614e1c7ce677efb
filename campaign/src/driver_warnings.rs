//! Collects the driver's warnings about wrong completion entries.
//!
//! The driver ignores a completion entry that does not belong to a posted work request, and logs a warning. The
//! simulated devices write no such entries, so each such warning is a defect of the driver. This module collects the
//! warnings of the thread that runs a simulation.
//!
//! `tracing` caches for the whole process whether a warning is enabled. The first thread that logs the warning
//! determines the cached value. So the process has one subscriber, which is installed before any simulation has a
//! driver and which sorts the warnings by thread.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Text at the end of each warning about an ignored completion entry.
const IGNORED: &str = "; ignored";

/// Ensures that the process's subscriber is installed once.
static INSTALLED: Once = Once::new();

thread_local! {
    /// Collector for the simulation that this thread runs.
    static COLLECTOR: RefCell<Option<WarningCollector>> = const { RefCell::new(None) };
}

/// Warnings collected so far.
#[derive(Clone)]
pub struct WarningCollector(Arc<Mutex<Vec<String>>>);

/// Guard for collecting the warnings of this thread. Collecting ends when it is dropped.
pub struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        COLLECTOR.set(None);
    }
}

impl WarningCollector {
    /// Returns an empty collector. Each simulation starts with this call, because the subscriber must exist before any
    /// thread logs a warning.
    ///
    /// # Panics
    /// If the process has another subscriber, because warnings would not be collected then.
    pub fn new() -> Self {
        INSTALLED.call_once(|| {
            let installed = tracing::subscriber::set_global_default(ByThread);
            // PANIC: without the subscriber, a simulation would pass whatever its drivers warn of.
            installed.expect("the campaign's subscriber is the process's only one");
        });
        Self(Arc::default())
    }

    /// Collects the warnings of this thread until the returned guard is dropped.
    pub fn listen(&self) -> Listening {
        COLLECTOR.set(Some(self.clone()));
        Listening
    }

    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first warning, if there is one.
    pub fn first(&self) -> Option<String> {
        self.said().first().cloned()
    }
}

/// Visitor that reads the message of an event.
struct Message(Option<String>);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

/// Subscriber that passes a warning to the collector of the thread that logs it.
struct ByThread;

impl Subscriber for ByThread {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
            && ["dat_mlx", "hw_mlx"]
                .iter()
                .any(|of| metadata.target().starts_with(of))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(None);
        event.record(&mut message);
        let is_about_an_entry = |text: &String| text.ends_with(IGNORED);
        let collector = COLLECTOR.with_borrow(Clone::clone);
        if let Some(collector) = collector {
            collector.said().extend(message.0.filter(is_about_an_entry));
        }
    }

    // Spans are not used here.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
