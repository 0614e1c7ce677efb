//! DAT 1.2 as a model.
#![forbid(unsafe_code)]
pub mod provider;
pub mod types;
