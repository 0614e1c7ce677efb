//! Limits of log lines that peers can cause, by the address of the peer.
//!
//! Each kind of line has a limit for each source ([`LogBudget`]). At most [`BUDGETS`] budgets exist at a time; one that
//! was not used for a period can be replaced. If all are in use, the line is not written. The next line that is written
//! contains the number of lines that were not.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use udapl::log_budget::{LogBudget, PERIOD};

/// Maximum number of budgets, one for each source and kind of line.
const BUDGETS: usize = 64;

/// The budgets of log lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Budget of each source and kind of line, with the time of its last use.
    budgets: BTreeMap<(IpAddr, &'static str), (Duration, LogBudget)>,
    /// Number of lines that were not written, and that no existing budget counts.
    unlogged: u64,
}

/// Returns a time in nanoseconds, of which a `u64` has centuries.
pub(crate) fn nanos(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Lines {
    /// Returns `Some` if a line of this kind is to be written. The value is the number of lines of this source and kind
    /// that were not written since the last one, plus the lines that no existing budget counts. `now` is the time since
    /// the start of the caller's clock.
    pub(crate) fn take(
        &mut self,
        source: IpAddr,
        kind: &'static str,
        now: Duration,
    ) -> Option<u64> {
        let whose = (source, kind);
        if self.budgets.len() >= BUDGETS && !self.budgets.contains_key(&whose) {
            let used = |(_, (last, _)): &(&_, &(Duration, _))| *last;
            let oldest = self.budgets.iter().min_by_key(used);
            let oldest = oldest.map(|(whose, (last, _))| (*whose, *last));
            match oldest {
                Some((whose, last)) if last + PERIOD <= now => {
                    let gone = self.budgets.remove(&whose);
                    let gone = gone.and_then(|(_, mut budget)| budget.take(nanos(now)));
                    self.unlogged += gone.unwrap_or(0);
                }
                _ => {
                    self.unlogged += 1;
                    return None;
                }
            }
        }
        let (last, budget) = self.budgets.entry(whose).or_default();
        *last = now;
        let unlogged = budget.take(nanos(now))?;
        Some(unlogged + core::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    /// There are 64 budgets of eight lines in ten seconds, however many addresses cause lines.
    #[test]
    fn lines_of_any_number_of_sources_are_bounded_and_those_that_are_missing_are_told() {
        let mut lines = Lines::default();
        let now = Duration::from_secs(1);
        let mut written = 0;
        for number in 0..1000 {
            for _ in 0..10 {
                written += u32::from(lines.take(source(number), "a", now).is_some());
            }
        }
        assert_eq!(written, 64 * 8);
        let later = now + PERIOD;
        // The first line counts those of all sources without a budget and of the replaced budget: 936 x 10 + 2.
        assert_eq!(lines.take(source(2000), "a", later), Some(9362));
        assert_eq!(lines.take(source(2000), "b", later), Some(2));
        assert_eq!(lines.take(source(63), "a", later), Some(2));
        assert_eq!(lines.take(source(63), "a", later), Some(0));
    }

    #[test]
    fn a_source_that_is_loud_leaves_the_lines_of_others_and_its_other_kinds() {
        let mut lines = Lines::default();
        let now = Duration::from_secs(1);
        let mut take = |number, kind| lines.take(source(number), kind, now);
        while take(1, "a").is_some() {}
        assert_eq!((take(2, "a"), take(1, "b")), (Some(0), Some(0)));
    }
}
