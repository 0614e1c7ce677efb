//! Numbers and their limits.

/// Returns the first of `(name, value, limit)` whose value is over its limit.
pub(crate) fn first_out_of_range<T: PartialOrd, const N: usize>(
    numbers: [(&'static str, T, T); N],
) -> Option<(&'static str, T, T)> {
    numbers.into_iter().find(|(_, value, limit)| value > limit)
}
