//! The provider against devices that show its behaviour: the register-level simulator, and generations of cards.

mod datapath;
mod essential;
mod not_joined;
mod profiles;
mod reopen;
