//! The campaign, small: what every run of the tests does of it.

mod flood;
mod worlds;
