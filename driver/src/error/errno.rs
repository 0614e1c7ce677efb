//! An errno, in words.

use std::fmt;

use nix::errno::Errno;

/// An errno as people look for it: its name, its number, and what the system calls it.
pub(crate) struct Told(pub(crate) Errno);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(errno) = *self;
        write!(f, "{errno:?} ({}): {}", errno as i32, errno.desc())
    }
}
