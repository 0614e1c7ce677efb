//! `DAT_LOG`: logs the library's activity to standard error, for programs that do not use `tracing`.
//!
//! `DAT_LOG=debug` logs every error and command, as lines like
//!
//! ```text
//! dat[4711] DEBUG udapl::capi::answer: refused error=DAT_INVALID_HANDLE|DAT_INVALID_HANDLE_EP (0x8005000c)
//! ```
//!
//! The value is the least severe level to log (`error`, `warn`, `info`, `debug`, `trace`, `off`), or a list of levels
//! by module, as in `warn,hw_mlx=trace`. The longest module name that is a prefix of a line's target decides. If a Rust
//! program has its own subscriber, that subscriber stays in use. Nothing is logged by default, because standard error
//! belongs to the program.
//!
//! This small subscriber replaces `tracing-subscriber`, whose crates would be linked into every program that links the
//! library.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::{Write as _, stderr};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Name of the environment variable.
const VARIABLE: &str = "DAT_LOG";

/// Starts logging if the environment variable is set. A set-user-ID program ignores it. Only the first call has an
/// effect.
pub(super) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let wanted = driver::caller_variable(VARIABLE).and_then(|value| value.into_string().ok());
        let Some(wanted) = wanted else {
            return;
        };
        match Wanted::parse(&wanted) {
            // Fails if the program has set a subscriber.
            Ok(wanted) => drop(tracing::subscriber::set_global_default(Log {
                wanted,
                spans: AtomicU64::new(1),
            })),
            Err(bad) => drop(writeln!(
                stderr(),
                "dat: {VARIABLE}={wanted}: {bad:?} is none of error, warn, info, debug, trace, off, and no PART=LEVEL"
            )),
        }
    });
}

/// Modules, each with its least severe level to log. The entry with an empty name is for all other modules.
#[derive(Debug, PartialEq)]
struct Wanted(Vec<(String, LevelFilter)>);

impl Wanted {
    /// Parses the value of the environment variable.
    ///
    /// # Errors
    /// The malformed word.
    fn parse(text: &str) -> Result<Self, String> {
        let words = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        let parsed = words.map(|word| {
            let (part, level) = word.split_once('=').unwrap_or(("", word));
            let level = level.parse().map_err(|_| word.to_owned())?;
            Ok((part.to_owned(), level))
        });
        parsed.collect::<Result<_, _>>().map(Self)
    }

    fn level_of(&self, target: &str) -> LevelFilter {
        let about = self.0.iter().filter(|(part, _)| target.starts_with(part));
        about
            .max_by_key(|(part, _)| part.len())
            .map_or(LevelFilter::OFF, |(_, level)| *level)
    }
}

struct Log {
    wanted: Wanted,
    /// ID of the next span. Spans get IDs and are not logged.
    spans: AtomicU64,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.wanted.level_of(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.wanted.0.iter().map(|(_, level)| *level).max()
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // Each line is written by one call, so that lines of several threads do not mix. An error is ignored, because
        // there is nowhere else to report it.
        let _unread = stderr().write_all(line(event).as_bytes());
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn line(event: &Event<'_>) -> String {
    let metadata = event.metadata();
    let mut line = Line(format!(
        "dat[{}] {} {}:",
        std::process::id(),
        metadata.level(),
        metadata.target()
    ));
    event.record(&mut line);
    line.0.push('\n');
    line.0
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        // PANIC: a write to a `String` does not fail.
        written.expect("a string");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_part_decides() {
        let wanted = Wanted::parse("warn,hw_mlx=trace, hw_mlx::mad=off").expect("three words");
        for (target, level) in [
            ("udapl::capi", LevelFilter::WARN),
            ("hw_mlx::cmd", LevelFilter::TRACE),
            ("hw_mlx::mad", LevelFilter::OFF),
        ] {
            assert_eq!(wanted.level_of(target), level, "{target}");
        }
        let one = Wanted::parse("hw_mlx=info").expect("a word");
        assert_eq!(one.level_of("udapl"), LevelFilter::OFF);
    }

    #[test]
    fn a_word_that_says_nothing_is_named() {
        assert_eq!(Wanted::parse("warn,loud"), Err("loud".to_owned()));
        assert_eq!(Wanted::parse("udapl=loud"), Err("udapl=loud".to_owned()));
        assert_eq!(Wanted::parse(""), Ok(Wanted(Vec::new())));
    }
}
