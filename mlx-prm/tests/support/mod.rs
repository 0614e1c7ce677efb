//! Shared by the tests that read recordings.

pub mod trace;
