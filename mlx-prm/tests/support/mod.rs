//! Modules that the tests of recordings have in common.

pub mod trace;
