//! An errno, in words.

use std::fmt;

use nix::errno::Errno;

/// An errno in the form people search for: its name, its number, and the system's text.
pub(crate) struct ErrnoText(pub(crate) Errno);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(errno) = *self;
        write!(f, "{errno:?} ({}): {}", errno as i32, errno.desc())
    }
}
