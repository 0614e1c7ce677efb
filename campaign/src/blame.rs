//! What the driver blames its device for.
//!
//! A completion entry that fits nothing that was posted is ignored, with a warning that the device lies. The
//! simulator's devices never do, so whoever says so has lost count himself. The warnings of a world's thread are heard
//! here.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How such a warning ends.
const IGNORED: &str = "; ignored";

/// What was said so far.
#[derive(Clone, Default)]
pub struct Blame(Arc<Mutex<Vec<String>>>);

impl Blame {
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

impl Subscriber for Blame {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("hw_mlx")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(None);
        event.record(&mut message);
        let blames = |text: &String| text.ends_with(IGNORED);
        self.said().extend(message.0.filter(blames));
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
