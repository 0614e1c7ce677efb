//! Limits of namespaces and hosts: how many I/Os and bytes per second a namespace gives, or a host gets.
//!
//! Each rate has a schedule, as in the generic cell rate algorithm (ITU-T I.371): an I/O takes a time of the schedule,
//! which follows from its size and the rate, and begins when the schedule is at most the burst ahead of the clock. So
//! I/Os after an idle time begin at once until the burst is used up, and the others at the rate. An I/O may be larger
//! than the burst: those that follow it wait longer then.
//!
//! All workers share the schedules. An I/O reserves its time when it arrives, so I/Os begin in the order in which they
//! came, whichever worker has them. One that ends before its time has come gives it back. A command of a host with a
//! limit at a namespace with a limit waits for its time at the host first. Then it reserves its time at the namespace,
//! and what it has got at the host is spent, however it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Moment;
use crate::lines::nanos;
use crate::nvme::Nqn;

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// Limits of a namespace, or of a host at a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// I/Os per second; `None` without a limit.
    pub ios_per_second: Option<u64>,
    /// Bytes per second that are read and written; `None` without a limit.
    pub bytes_per_second: Option<u64>,
    /// Time whose I/Os and bytes may begin at once after an idle time.
    pub burst: Duration,
}

impl Limit {
    /// Lowest number of I/Os per second.
    pub const LEAST_IOS: u64 = 10;
    /// Lowest number of bytes per second: a Read or a Write of 128 KiB then takes a second.
    pub const LEAST_BYTES: u64 = 128 << 10;
    /// Highest number of I/Os and bytes per second.
    pub const MOST: u64 = 1 << 40;
    /// Default of the burst.
    pub const USUAL_BURST: Duration = Duration::from_millis(100);
    /// Longest burst.
    pub const LONGEST_BURST: Duration = Duration::from_secs(60);

    /// Returns whether each number is in its range, and at least one rate is limited.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let within =
            |rate: Option<u64>, least| rate.is_none_or(|it| (least..=Self::MOST).contains(&it));
        (self.ios_per_second.is_some() || self.bytes_per_second.is_some())
            && within(self.ios_per_second, Self::LEAST_IOS)
            && within(self.bytes_per_second, Self::LEAST_BYTES)
            && self.burst <= Self::LONGEST_BURST
    }
}

/// I/Os and bytes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub ios: u64,
    pub bytes: u64,
}

/// The schedules of a limit, which the workers share.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: Limit,
    /// End of the schedule of I/Os, and of that of bytes, in nanoseconds of the target's clock.
    ios: AtomicU64,
    bytes: AtomicU64,
    /// Number of commands that waited. A host's limit counts here, because its commands are at many namespaces.
    waited: AtomicU64,
}

impl Limiter {
    pub(super) const fn new(limit: Limit) -> Self {
        Self {
            limit,
            ios: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        }
    }

    /// Returns a limiter that takes the place of another, and goes on with its number of commands that waited.
    fn after(limit: Limit, before: Option<&Arc<Self>>) -> Self {
        let next = Self::new(limit);
        let waited = before.map_or(0, |before| before.waited());
        next.waited.store(waited, Ordering::Relaxed);
        next
    }

    /// Records that a command waits.
    pub(crate) fn note_wait(&self) {
        self.waited.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of commands that waited.
    pub(crate) fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    pub(crate) const fn limit(&self) -> Limit {
        self.limit
    }

    /// Reserves the time of a command. Returns the moment at which the command may begin, which is `now` if it need not
    /// wait.
    pub(crate) fn reserve(&self, now: Moment, cost: Cost) -> Moment {
        let Limit {
            ios_per_second,
            bytes_per_second,
            burst,
        } = self.limit;
        let now = nanos(now);
        let mut begin = now;
        for (schedule, time) in [
            (&self.ios, time_of(cost.ios, ios_per_second)),
            (&self.bytes, time_of(cost.bytes, bytes_per_second)),
        ] {
            let Some(time) = time else {
                continue;
            };
            let before = schedule.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |end| {
                Some(end.max(now).saturating_add(time))
            });
            // The update never fails, because it always has a new value.
            let (Ok(end) | Err(end)) = before;
            begin = begin.max(end.saturating_sub(nanos(burst)));
        }
        Moment::from_nanos(begin)
    }

    /// Gives the time of a command back, which has waited and does not begin.
    pub(crate) fn give_back(&self, cost: Cost) {
        for (schedule, time) in [
            (&self.ios, time_of(cost.ios, self.limit.ios_per_second)),
            (
                &self.bytes,
                time_of(cost.bytes, self.limit.bytes_per_second),
            ),
        ] {
            let Some(time) = time else {
                continue;
            };
            // The update never fails, because it always has a new value.
            let _ = schedule.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |end| {
                Some(end.saturating_sub(time))
            });
        }
    }
}

/// The limiters of the hosts of a subsystem, by name. Its namespaces share them, and each worker has a copy of the map.
#[derive(Debug, Default)]
pub(crate) struct HostLimits(Mutex<Arc<Limiters>>);

/// Limiters by the name of the host.
pub(crate) type Limiters = BTreeMap<Nqn, Arc<Limiter>>;

impl HostLimits {
    /// Returns the limiters.
    pub(crate) fn all(&self) -> Arc<Limiters> {
        let all = self.0.lock();
        Arc::clone(&all.unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the limit of a host; `None` ends it.
    pub(super) fn set(&self, host: &Nqn, limit: Option<Limit>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = Arc::make_mut(&mut all);
        match limit {
            Some(limit) => {
                let next = Limiter::after(limit, all.get(host));
                all.insert(host.clone(), Arc::new(next));
            }
            None => {
                all.remove(host);
            }
        }
    }
}

/// Returns the time of so many units at a rate, in nanoseconds; `None` without a rate.
fn time_of(units: u64, rate: Option<u64>) -> Option<u64> {
    let time = u128::from(units) * SECOND / u128::from(rate?.max(1));
    Some(u64::try_from(time).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Cost = Cost {
        ios: 1,
        bytes: 4096,
    };

    fn limiter(ios: Option<u64>, bytes: Option<u64>, burst_ms: u64) -> Limiter {
        Limiter::new(Limit {
            ios_per_second: ios,
            bytes_per_second: bytes,
            burst: Duration::from_millis(burst_ms),
        })
    }

    fn ms(time: u64) -> Moment {
        Moment::from_millis(time)
    }

    #[test]
    fn a_burst_begins_at_once_and_the_others_at_the_rate() {
        // 100 a second are one each 10 ms, so 50 ms are five. The one that fills the burst begins, too.
        let limiter = limiter(Some(100), None, 50);
        let begins: Vec<Moment> = (0..9).map(|_| limiter.reserve(ms(1000), ONE)).collect();
        let waits = [0, 0, 0, 0, 0, 0, 10, 20, 30].map(|wait| ms(1000 + wait));
        assert_eq!(begins, waits);
    }

    #[test]
    fn an_idle_time_gives_one_burst_back_and_no_more() {
        let limiter = limiter(Some(100), None, 20);
        for _ in 0..3 {
            assert_eq!(limiter.reserve(ms(0), ONE), ms(0));
        }
        assert_eq!(limiter.reserve(ms(0), ONE), ms(10));
        let later = ms(3_600_000);
        let begins: Vec<Moment> = (0..5).map(|_| limiter.reserve(later, ONE)).collect();
        assert_eq!(begins, [0, 0, 0, 10, 20].map(|wait| later + ms(wait)));
    }

    #[test]
    fn the_slower_of_the_two_rates_counts() {
        // 4096 bytes take 4 ms, and an I/O takes 1 ms.
        let limiter = limiter(Some(1000), Some(1_024_000), 0);
        let begins: Vec<Moment> = (0..3).map(|_| limiter.reserve(ms(0), ONE)).collect();
        assert_eq!(begins, [0, 4, 8].map(ms));
        // A command without data waits for its turn, and takes the time of an I/O alone.
        let empty = Cost { ios: 1, bytes: 0 };
        assert_eq!(limiter.reserve(ms(0), empty), ms(12));
        assert_eq!(limiter.reserve(ms(0), ONE), ms(12));
    }

    #[test]
    fn time_that_is_given_back_is_for_the_next_one() {
        let limiter = limiter(Some(100), Some(1 << 20), 0);
        for _ in 0..3 {
            limiter.reserve(ms(0), ONE);
        }
        limiter.give_back(ONE);
        limiter.give_back(ONE);
        assert_eq!(limiter.reserve(ms(0), ONE), ms(10));
        for _ in 0..5 {
            limiter.give_back(ONE);
        }
        assert_eq!(limiter.reserve(ms(5), ONE), ms(5));
    }

    #[test]
    fn a_command_larger_than_the_burst_begins_and_the_next_one_pays() {
        let limiter = limiter(None, Some(1 << 20), 10);
        let large = Cost {
            ios: 1,
            bytes: 1 << 20,
        };
        assert_eq!(limiter.reserve(ms(0), large), ms(0));
        assert_eq!(limiter.reserve(ms(0), large), ms(990));
    }

    #[test]
    fn a_schedule_that_reaches_the_end_of_time_stays_there() {
        let limiter = limiter(None, Some(1), 0);
        let endless = Cost {
            ios: 1,
            bytes: u64::MAX,
        };
        limiter.reserve(ms(0), endless);
        let begin = limiter.reserve(ms(0), endless);
        assert_eq!(begin, Moment::from_nanos(u64::MAX));
        assert_eq!(limiter.reserve(ms(0), ONE), begin);
    }

    #[test]
    fn numbers_out_of_range_and_no_number_are_no_limit() {
        let limit = |ios, bytes, burst_s| Limit {
            ios_per_second: ios,
            bytes_per_second: bytes,
            burst: Duration::from_secs(burst_s),
        };
        assert!(limit(Some(10), None, 60).is_valid());
        assert!(limit(None, Some(128 << 10), 0).is_valid());
        for bad in [
            limit(None, None, 1),
            limit(Some(9), None, 1),
            limit(Some((1 << 40) + 1), None, 1),
            limit(None, Some((128 << 10) - 1), 1),
            limit(Some(10), None, 61),
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }
}
