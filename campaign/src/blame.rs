//! What the driver blames its device for.
//!
//! A completion entry that fits nothing that was posted is ignored, with a warning that the device lies. The
//! simulator's devices never do, so whoever says so has lost count himself. The warnings of a world's thread are heard
//! here.
//!
//! `tracing` keeps for the whole process whether a warning is wanted, and takes the answer from whichever thread meets
//! it first. So one subscriber is the process's, installed before any world has a driver, and it sorts by thread.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How such a warning ends.
const IGNORED: &str = "; ignored";

/// The subscriber is the process's.
static INSTALLED: Once = Once::new();

thread_local! {
    /// The world that this thread runs.
    static HEARS: RefCell<Option<Blame>> = const { RefCell::new(None) };
}

/// What was said so far.
#[derive(Clone)]
pub struct Blame(Arc<Mutex<Vec<String>>>);

/// Hears the warnings of this thread until it is dropped.
pub struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        HEARS.set(None);
    }
}

impl Blame {
    /// Nothing yet. Each world begins with this: no thread may meet a warning before the subscriber is there.
    ///
    /// # Panics
    /// The process has another subscriber: worlds would not be heard.
    pub fn new() -> Self {
        INSTALLED.call_once(|| {
            let installed = tracing::subscriber::set_global_default(ByThread);
            // PANIC: a world that is not heard would pass whatever its drivers say.
            installed.expect("the campaign's subscriber is the process's only one");
        });
        Self(Arc::default())
    }

    /// Hears what this thread says from now on.
    pub fn listen(&self) -> Listening {
        HEARS.set(Some(self.clone()));
        Listening
    }

    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first thing, if there was any.
    pub fn first(&self) -> Option<String> {
        self.said().first().cloned()
    }
}

/// Reads the message of an event.
struct Message(Option<String>);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

/// Passes a warning to the world of the thread that it comes from.
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
        let blames = |text: &String| text.ends_with(IGNORED);
        let blame = HEARS.with_borrow(Clone::clone);
        if let Some(blame) = blame {
            blame.said().extend(message.0.filter(blames));
        }
    }

    // Nothing opens spans that would matter here.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
