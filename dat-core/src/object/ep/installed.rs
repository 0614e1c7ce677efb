//! An optional queue pair whose tag precedes it in memory.
//!
//! rustc may place the tag of an `Option` anywhere inside the value, in a bit pattern that the content never has. The
//! tag could then lie in a cache line that a receive reads and a request does not. Here the tag lies right before the
//! queue pair, in the cache line that all posts read.

/// An optional queue pair.
#[repr(u32)]
pub(crate) enum Installed<Q> {
    /// No queue pair.
    Nothing,
    /// A queue pair.
    One(Q),
}

impl<Q> Installed<Q> {
    /// Returns the queue pair, if there is one.
    #[inline(always)]
    pub(crate) const fn get(&self) -> Option<&Q> {
        match self {
            Self::Nothing => None,
            Self::One(queue_pair) => Some(queue_pair),
        }
    }

    /// Returns the queue pair, if there is one, by mutable reference.
    #[inline(always)]
    pub(crate) const fn get_mut(&mut self) -> Option<&mut Q> {
        match self {
            Self::Nothing => None,
            Self::One(queue_pair) => Some(queue_pair),
        }
    }

    /// Replaces the queue pair, and returns the previous one.
    pub(crate) fn exchange(&mut self, other: Option<Q>) -> Option<Q> {
        match core::mem::replace(self, other.into()) {
            Self::Nothing => None,
            Self::One(queue_pair) => Some(queue_pair),
        }
    }
}

impl<Q> From<Option<Q>> for Installed<Q> {
    fn from(perhaps: Option<Q>) -> Self {
        perhaps.map_or(Self::Nothing, Self::One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_precedes_the_queue_pair() {
        assert_eq!(size_of::<Installed<Box<u64>>>(), 16);
        let mut place = Installed::from(Some(7));
        assert_eq!(place.get_mut().map(|one| *one + 1), Some(8));
        assert_eq!(place.exchange(None), Some(7));
        assert_eq!(place.get(), None);
        assert_eq!(place.exchange(Some(1)), None);
        assert_eq!(place.get(), Some(&1));
    }
}
