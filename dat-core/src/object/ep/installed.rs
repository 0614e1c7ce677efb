//! Perhaps a queue pair, and which is said in front of it.
//!
//! An `Option` may say it anywhere within (rustc looks for a value that its content never has), for instance in a cache
//! line that a receive needs and a request does not. Here it is said right before, which is in the line that all posts
//! read.

/// Perhaps a queue pair.
#[repr(u32)]
pub(crate) enum Installed<Q> {
    /// None.
    Nothing,
    /// This.
    One(Q),
}

impl<Q> Installed<Q> {
    /// It, if there is one.
    #[inline(always)]
    pub(crate) const fn get(&self) -> Option<&Q> {
        match self {
            Self::Nothing => None,
            Self::One(queue_pair) => Some(queue_pair),
        }
    }

    /// Likewise.
    #[inline(always)]
    pub(crate) const fn get_mut(&mut self) -> Option<&mut Q> {
        match self {
            Self::Nothing => None,
            Self::One(queue_pair) => Some(queue_pair),
        }
    }

    /// Takes it out, and puts that into its place.
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
    fn what_is_installed_is_said_before_it() {
        assert_eq!(size_of::<Installed<Box<u64>>>(), 16);
        let mut place = Installed::from(Some(7));
        assert_eq!(place.get_mut().map(|one| *one + 1), Some(8));
        assert_eq!(place.exchange(None), Some(7));
        assert_eq!(place.get(), None);
        assert_eq!(place.exchange(Some(1)), None);
        assert_eq!(place.get(), Some(&1));
    }
}
