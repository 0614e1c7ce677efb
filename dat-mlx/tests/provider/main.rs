//! The provider against devices that show what it does: the register-level simulator, and generations of cards.

mod datapath;
mod essential;
mod not_joined;
mod profiles;
mod reopen;
