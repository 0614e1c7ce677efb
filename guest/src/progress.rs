//! Progress of the steps that take minutes the first time: fetching and unpacking.

/// A receiver of progress reports.
pub trait Progress {
    /// Reports that a step begins.
    fn begins(&self, step: &str);

    /// Reports that this percentage of the step is done.
    fn is_at(&self, _percent: u64) {}
}

impl<F: Fn(&str)> Progress for F {
    fn begins(&self, step: &str) {
        self(step);
    }
}

/// A line of a script's output: apt's lines about downloads (`APT::Status-Fd`), or our lines about packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Percentage of the download that is done.
    Fetched { percent: u64 },
    /// Number of packages that are unpacked, and number of all packages.
    Unpacked { done: u64, of: u64 },
}

impl Line {
    /// Parses `dlstatus:NUMBER:PERCENT:TEXT`, or `unpacked NUMBER OF`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        if let Some(fetched) = line.strip_prefix("dlstatus:") {
            let percent = fetched.split(':').nth(1)?;
            let percent = percent.split('.').next()?.parse().ok()?;
            return Some(Self::Fetched { percent });
        }
        let (done, of) = line.strip_prefix("unpacked ")?.split_once(' ')?;
        Some(Self::Unpacked {
            done: done.parse().ok()?,
            of: of.parse().ok()?,
        })
    }

    /// Reports the line as progress.
    pub(crate) fn report(&self, progress: &impl Progress) {
        match *self {
            Self::Fetched { percent } => progress.is_at(percent),
            Self::Unpacked { done: 0, of } => {
                let plural = if of == 1 { "" } else { "s" };
                progress.begins(&format!("unpacking {of} package{plural}"));
            }
            Self::Unpacked { done, of } => progress.is_at(100 * done / of.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Progress lines of apt and of the unpacking script are parsed; other lines are not. The first line is from apt
    /// 3.0 of Debian 13.
    #[test]
    fn lines_of_apt_and_of_the_unpacking_script_are_steps_and_percents() {
        let fetched = "dlstatus:3:12.4567:Retrieving file 3 of 97";
        assert_eq!(Line::parse(fetched), Some(Line::Fetched { percent: 12 }));
        let unpacked = Line::Unpacked { done: 3, of: 97 };
        assert_eq!(Line::parse("unpacked 3 97"), Some(unpacked));
        for other in [
            "",
            "dlstatus:",
            "dlstatus:1:x:y",
            "unpacked",
            "unpacked 1",
            "Get:1 http",
        ] {
            assert_eq!(Line::parse(other), None, "{other}");
        }
    }

    #[test]
    fn unpacking_is_a_step_of_its_own() {
        #[derive(Default)]
        struct Heard(RefCell<Vec<String>>);
        impl Progress for Heard {
            fn begins(&self, step: &str) {
                self.0.borrow_mut().push(step.to_owned());
            }
            fn is_at(&self, percent: u64) {
                self.0.borrow_mut().push(format!("{percent} %"));
            }
        }
        let heard = Heard::default();
        for line in [
            "dlstatus:1:50.0:x",
            "unpacked 0 4",
            "unpacked 1 4",
            "unpacked 4 4",
        ] {
            Line::parse(line).expect(line).report(&heard);
        }
        let told = ["50 %", "unpacking 4 packages", "25 %", "100 %"];
        assert_eq!(*heard.0.borrow(), told);
    }
}
