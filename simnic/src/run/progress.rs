//! Display of the progress of downloading and unpacking: a bar on a terminal, otherwise a line for each step.

use std::cell::OnceCell;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Template of the progress bar.
const BAR: &str = "simnic: {msg} {bar:24} {percent:>3} % {elapsed}";
/// Interval at which the elapsed time on the bar is redrawn.
const TICK: Duration = Duration::from_secs(1);

/// Display of progress, which is removed when this is dropped.
pub struct ProgressDisplay {
    kept: PathBuf,
    is_terminal: bool,
    /// Progress bar, created at the first step.
    bar: OnceCell<ProgressBar>,
}

impl ProgressDisplay {
    /// Makes an empty display. Messages name the folder in which files are kept.
    pub fn new(kept: &Path) -> Self {
        Self {
            kept: kept.to_owned(),
            is_terminal: stderr().is_terminal(),
            bar: OnceCell::new(),
        }
    }

    fn bar(&self) -> &ProgressBar {
        self.bar.get_or_init(|| {
            let bar = ProgressBar::new(100);
            let style = ProgressStyle::with_template(BAR);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(TICK);
            bar
        })
    }
}

impl Progress for ProgressDisplay {
    fn begins(&self, step: &str) {
        match self.is_terminal {
            true => {
                let bar = self.bar();
                bar.set_position(0);
                bar.set_message(step.to_owned());
            }
            false => eprintln!("simnic: {step} (once; kept in {})", self.kept.display()),
        }
    }

    fn is_at(&self, percent: u64) {
        if self.is_terminal {
            self.bar().set_position(percent);
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
