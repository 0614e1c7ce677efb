//! Latencies of one row: a histogram, and the figures from it.
//!
//! The histogram keeps three significant digits of each time, from a nanosecond to an hour, in memory of constant size
//! (HdrHistogram). So every figure is accurate to one part in a thousand.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use super::Operation;

/// Number of significant digits that are kept of a time.
const DIGITS: u8 = 3;
/// Longest time that the histogram can record, in nanoseconds; longer times count as this.
const LONGEST: u64 = 3_600_000_000_000;
/// Length of the longest bar, in columns.
const COLUMNS: u64 = 50;
/// Number of lines of a picture.
const LINES: u32 = 20;

/// Latencies of one row; the output has them in microseconds.
#[derive(Serialize)]
pub(super) struct Latency {
    measures: &'static str,
    pub(super) operations: u64,
    pub(super) min_us: f64,
    pub(super) median_us: f64,
    p90_us: f64,
    pub(super) p99_us: f64,
    p99_9_us: f64,
    pub(super) p99_99_us: f64,
    pub(super) max_us: f64,
    pub(super) mean_us: f64,
    deviation_us: f64,
    #[serde(rename = "histogram", serialize_with = "as_bars")]
    times: Histogram<u64>,
}

/// A bar of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    /// Upper bound of the times in this bar, in microseconds. Shorter times are in the bars before.
    pub(super) up_to_us: f64,
    pub(super) count: u64,
    /// Percentage of all times that are at most `up_to_us`.
    pub(super) percentile: f64,
}

fn as_bars<S: Serializer>(times: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(bars(times))
}

// CAST: counts and nanoseconds below 2^53 are exact.
const fn float(number: u64) -> f64 {
    number as f64
}

fn micros(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e3
}

fn bars(times: &Histogram<u64>) -> impl Iterator<Item = Bar> {
    let all = float(times.len().max(1));
    let mut so_far = 0;
    times.iter_recorded().map(move |step| {
        so_far += step.count_since_last_iteration();
        Bar {
            up_to_us: micros(step.value_iterated_to()),
            count: step.count_since_last_iteration(),
            percentile: 100.0 * float(so_far) / all,
        }
    })
}

/// Returns an empty histogram.
pub(crate) fn histogram() -> Histogram<u64> {
    // PANIC: the bounds are constants that the histogram accepts.
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("bounds")
}

/// Adds a time to a histogram.
pub(crate) fn count(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST).max(1));
}

impl Latency {
    pub(super) fn of(operation: Operation, times: Histogram<u64>) -> Self {
        match operation {
            Operation::Send => Self::of_round_trips(times),
            Operation::Write | Operation::Read => Self::measured("post to completion", times),
        }
    }

    /// Returns the latencies for times that are each half of a round trip.
    pub(super) fn of_round_trips(times: Histogram<u64>) -> Self {
        Self::measured("half the round trip", times)
    }

    fn measured(measures: &'static str, times: Histogram<u64>) -> Self {
        let at = |quantile: f64| micros(times.value_at_quantile(quantile).min(times.max()));
        Self {
            measures,
            operations: times.len(),
            min_us: micros(times.min()),
            median_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: micros(times.max()),
            mean_us: times.mean() / 1e3,
            deviation_us: times.stdev() / 1e3,
            times,
        }
    }

    /// Returns a text that says which time was measured.
    pub(super) const fn measures(&self) -> &'static str {
        self.measures
    }

    /// Returns the bars of all times.
    pub(super) fn bars(&self) -> impl Iterator<Item = Bar> {
        bars(&self.times)
    }

    /// Returns a histogram of this many steps from the shortest time to the longest, with a constant ratio between
    /// steps: for each step its upper bound in nanoseconds and its count.
    pub(super) fn steps(&self, steps: u32) -> Vec<(f64, u64)> {
        let (first, last) = (
            float(self.times.min().max(1)),
            float(self.times.max().max(2)),
        );
        let ratio = (last / first).max(1.001).powf(1.0 / f64::from(steps));
        let mut filled: Vec<(f64, u64)> = (1..=steps)
            .map(|step| (first * ratio.powf(f64::from(step)), 0))
            .collect();
        let end = filled.len() - 1;
        for step in self.times.iter_recorded() {
            let time = float(step.value_iterated_to());
            let place = filled.partition_point(|(up_to, _)| *up_to < time);
            filled[place.min(end)].1 += step.count_since_last_iteration();
        }
        filled
    }

    /// Returns a picture of the histogram as text, with bars of `#`.
    pub(super) fn picture(&self) -> String {
        let steps = self.steps(LINES);
        let most = max_count(&steps);
        let mut so_far = 0;
        let lines: Vec<String> = steps
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(up_to, count)| {
                so_far += count;
                let below = 100.0 * float(so_far) / float(self.operations.max(1));
                let bar =
                    "#".repeat(usize::try_from((count * COLUMNS).div_ceil(most)).unwrap_or(0));
                format!(
                    "  up to {:>10.2} us {count:>9} {below:>7.2}% {bar}",
                    up_to / 1e3
                )
            })
            .collect();
        lines.join("\n")
    }
}

/// Returns the largest count of a step, at least 1, which is the full height of a picture.
pub(super) fn max_count(steps: &[(f64, u64)]) -> u64 {
    let counts = steps.iter().map(|&(_, count)| count);
    counts.max().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanoseconds: impl Iterator<Item = u64>) -> Latency {
        let mut times = histogram();
        nanoseconds.for_each(|time| count(&mut times, Duration::from_nanos(time)));
        Latency::of(Operation::Write, times)
    }

    #[test]
    fn percentiles_are_right_to_one_in_a_thousand_whatever_the_order() {
        let latency = of((1..=100_000).rev().map(|micro| micro * 1000));
        for (found, right) in [
            (latency.min_us, 1.0),
            (latency.median_us, 50_000.0),
            (latency.p90_us, 90_000.0),
            (latency.p99_us, 99_000.0),
            (latency.p99_9_us, 99_900.0),
            (latency.p99_99_us, 99_990.0),
            (latency.max_us, 100_000.0),
            (latency.mean_us, 50_000.5),
        ] {
            assert!((found - right).abs() <= right / 1000.0, "{found} {right}");
        }
        assert_eq!(latency.operations, 100_000);
    }

    #[test]
    fn every_time_is_in_one_bar_of_each_kind() {
        let latency = of([5, 5, 70, 900, 1_000_000, u64::MAX].into_iter());
        let bars: Vec<Bar> = latency.bars().collect();
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 6);
        assert!((bars.last().expect("one").percentile - 100.0).abs() < 1e-9);
        let steps = latency.steps(20);
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), 6);
        assert_eq!(latency.picture().matches('%').count(), 5);
    }

    #[test]
    fn no_time_at_all_is_shown_as_nothing() {
        let latency = of(std::iter::empty());
        assert_eq!((latency.operations, latency.bars().count()), (0, 0));
        assert_eq!(latency.picture(), "");
    }
}
