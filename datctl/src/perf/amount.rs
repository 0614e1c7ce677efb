//! Command line values for the size of messages and for the number of operations or the duration of a measurement.

use std::time::{Duration, Instant};

use crate::hello::MAX_BYTES;
use simnic::simulated::duration;

/// An amount of operations: a number of operations, or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Operations(u64),
    Time(Duration),
}

impl Amount {
    /// Returns true if `operations`, or the time since `since`, reach the amount.
    pub(super) fn is_reached(self, operations: u64, since: Instant) -> bool {
        match self {
            Self::Operations(count) => operations >= count,
            Self::Time(time) => since.elapsed() >= time,
        }
    }

    /// Returns the number of operations that may still begin; it is not limited for a duration.
    pub(super) const fn left(self, begun: u64) -> u64 {
        match self {
            Self::Operations(count) => count.saturating_sub(begun),
            Self::Time(_) => u64::MAX,
        }
    }
}

/// Parses a number of operations such as `100`, or a duration such as `500ms`.
pub(super) fn warm_up(text: &str) -> Result<Amount, String> {
    if let Ok(count) = text.parse() {
        return Ok(Amount::Operations(count));
    }
    let time = duration(text);
    time.map(Amount::Time)
        .map_err(|_| format!("{text:?} is neither a number of operations nor a time like 500ms"))
}

/// Parses a duration such as `500ms`. Refuses a duration of 0.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() {
        return Err(format!("{text:?} is no time to measure anything in"));
    }
    Ok(time)
}

/// Parses a size such as `64`, `4k`, `4KiB`, `1M` or `1G`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let unit_at = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").unwrap_or(&unit);
    let factor = match unit {
        "" | "b" => Some(1),
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        _ => None,
    };
    let bytes = digits
        .parse()
        .ok()
        .and_then(|count: u64| count.checked_mul(factor?));
    bytes
        .filter(|bytes| (1..=MAX_BYTES).contains(bytes))
        .ok_or_else(|| format!("{text:?} is no size from 1 to 1G, such as 64, 4k or 1M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        for (text, bytes) in [
            ("64", 64),
            ("64B", 64),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("1m", 1 << 20),
            ("1024M", 1 << 30),
            ("1G", 1 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "0",
            "K",
            "1025M",
            "2G",
            "1T",
            "-1",
            "1.5k",
            "4 k",
            "ib",
            "18446744073709551615M",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_comes_before_is_a_number_or_a_time() {
        assert_eq!(warm_up("100"), Ok(Amount::Operations(100)));
        assert_eq!(warm_up("0"), Ok(Amount::Operations(0)));
        assert_eq!(
            warm_up("1.5s"),
            Ok(Amount::Time(Duration::from_millis(1500)))
        );
        assert!(warm_up("soon").is_err());
        assert_eq!(some_time("10s"), Ok(Duration::from_secs(10)));
        assert!(some_time("0s").is_err() && some_time("5").is_err());
    }
}
